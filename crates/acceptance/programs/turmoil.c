// Sixty-four threads that never rest and check everything they see, until SIGTERM: locks and conditions, threads that are
// created and end, timers, signals on alternate stacks, system calls that wait and must not be interrupted by anything but
// a signal. Prints a line of counts, and "good" or what was wrong. With an argument, does not look whether the kernel knows the same
// alternate stacks.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 40, PAIRS = 5, SPAWNERS = 4, WAITERS = 9 };

static atomic_int over, bad;
static int loose;
static atomic_long worked, passed, spawned, waited, handled, alarms;

static void wrong(const char *format, ...) {
    char text[200];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text - 1, format, list);
    va_end(list);
    text[length++] = '\n';
    if (atomic_fetch_add(&bad, 1) < 10)
        (void)!write(1, text, length);
}

#define CHECK(condition) ((condition) ? (void)0 : wrong("line %d: %s (errno %d)", __LINE__, #condition, errno))

static uint64_t mix(uint64_t x) {
    x ^= x << 13;
    x ^= x >> 7;
    return x ^ x << 17;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void block_all(void) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
}

static void change_mask(int how, int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(how, &set, NULL);
}

// Workers: a sum under a lock, floating-point values that have to survive, signals on their own stacks.

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long sum, sum_check;
static __thread int own_number;
static __thread char *own_stack;
static pthread_t workers[WORKERS];

static void on_user(int signal, siginfo_t *info, void *context) {
    char here;
    (void)context;
    CHECK(signal == SIGUSR1 && info->si_code == SI_QUEUE);
    CHECK(info->si_value.sival_int == own_number);
    CHECK(&here > own_stack && &here < own_stack + SIGSTKSZ * 4);
    atomic_fetch_add(&handled, 1);
}

static void on_alarm(int signal) {
    CHECK(signal == SIGALRM);
    atomic_fetch_add(&alarms, 1);
}

static void *work(void *argument) {
    own_number = (int)(long)argument;
    own_stack = malloc(SIGSTKSZ * 4);
    stack_t stack = {.ss_sp = own_stack, .ss_size = SIGSTKSZ * 4};
    CHECK(sigaltstack(&stack, NULL) == 0);
    change_mask(SIG_UNBLOCK, SIGUSR1);
    uint64_t x = own_number + 1;
    double a = own_number, b = 1.5, c = -own_number;
    for (long round = 0; !over; round++) {
        double a2 = a, b2 = b, c2 = c;
        for (int i = 0; i < 200; i++) {
            x = mix(x);
            a = a * 0.5 + (double)(x & 0xff), b = b * 0.25 + 3, c -= 1;
            a2 = a2 * 0.5 + (double)(x & 0xff), b2 = b2 * 0.25 + 3, c2 -= 1;
            __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c));
        }
        CHECK(a == a2 && b == b2 && c == c2);
        pthread_mutex_lock(&lock);
        CHECK(sum == sum_check);
        sum += own_number;
        if (round % 64 == 0)
            sched_yield();
        sum_check += own_number;
        pthread_mutex_unlock(&lock);
        atomic_fetch_add(&worked, 1);
        stack_t current;
        CHECK(loose || sigaltstack(NULL, &current) == 0 && current.ss_sp == own_stack && current.ss_flags == 0);
        if (round % 16 == 0)
            usleep(500);
    }
    change_mask(SIG_BLOCK, SIGUSR1);
    stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    free(own_stack);
    return NULL;
}

// Pairs: numbers through a box, with conditions.

struct box {
    pthread_mutex_t lock;
    pthread_cond_t full, empty;
    long value;
} boxes[PAIRS];

static void *give(void *argument) {
    struct box *box = argument;
    for (long i = 1; ; i++) {
        pthread_mutex_lock(&box->lock);
        while (box->value)
            pthread_cond_wait(&box->empty, &box->lock);
        box->value = over ? -1 : i;
        long value = box->value;
        pthread_cond_signal(&box->full);
        pthread_mutex_unlock(&box->lock);
        if (value < 0)
            return NULL;
    }
}

static void *take(void *argument) {
    struct box *box = argument;
    for (long i = 1; ; i++) {
        pthread_mutex_lock(&box->lock);
        while (!box->value) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += 30;
            CHECK(pthread_cond_timedwait(&box->full, &box->lock, &until) == 0);
        }
        long value = box->value;
        box->value = 0;
        pthread_cond_signal(&box->empty);
        pthread_mutex_unlock(&box->lock);
        if (value < 0)
            return NULL;
        CHECK(value == i);
        atomic_fetch_add(&passed, 1);
    }
}

// Spawners: threads that live for a moment.

static void *brief(void *argument) {
    uint64_t x = (uint64_t)argument;
    for (int i = 0; i < 100; i++)
        x = mix(x);
    return (void *)x;
}

static void *spawn(void *argument) {
    block_all();
    for (uint64_t i = (uint64_t)argument * 1000000 + 1; !over; i++) {
        pthread_t thread;
        void *result = NULL;
        CHECK(pthread_create(&thread, NULL, brief, (void *)i) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == brief((void *)i));
        atomic_fetch_add(&spawned, 1);
        usleep(300);
    }
    return NULL;
}

// Waiters: each in one kind of system call, with all signals blocked, so that nothing may interrupt it.

static int pipes[2], polled[2], listener, epoll, event;
static sem_t semaphore;

static void *wait_read(void *argument) {
    (void)argument;
    block_all();
    char byte;
    for (;;) {
        CHECK(read(pipes[0], &byte, 1) == 1);
        if (byte)
            return NULL;
        atomic_fetch_add(&waited, 1);
    }
}

static void *wait_poll(void *argument) {
    (void)argument;
    block_all();
    for (char byte = 0; !byte;) {
        struct pollfd file = {polled[0], POLLIN, 0};
        CHECK(poll(&file, 1, 60000) == 1);
        CHECK(read(polled[0], &byte, 1) == 1);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static void *wait_epoll(void *argument) {
    (void)argument;
    block_all();
    for (uint64_t value = 0; value < 1000000;) {
        struct epoll_event found;
        CHECK(epoll_wait(epoll, &found, 1, -1) == 1);
        CHECK(read(event, &value, 8) == 8);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static void *wait_semaphore(void *argument) {
    (void)argument;
    block_all();
    while (!over) {
        CHECK(sem_wait(&semaphore) == 0);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static void *wait_sleep(void *argument) {
    double length = (long)argument * 0.001;
    block_all();
    while (!over) {
        double start = now();
        struct timespec time = {0, (long)argument * 1000000};
        CHECK(nanosleep(&time, NULL) == 0);
        double slept = now() - start;
        CHECK(slept >= length - 0.0001);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static void *wait_signal(void *argument) {
    (void)argument;
    block_all();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 2);
    while (!over) {
        siginfo_t info;
        CHECK(sigwaitinfo(&set, &info) == SIGRTMIN + 2);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static void *wait_accept(void *argument) {
    (void)argument;
    block_all();
    for (char byte = 0; !byte;) {
        int file = accept(listener, NULL, NULL);
        CHECK(file >= 0);
        CHECK(recv(file, &byte, 1, 0) == 1);
        close(file);
        atomic_fetch_add(&waited, 1);
    }
    return NULL;
}

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void knock(char byte) {
    int file = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(file, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(send(file, &byte, 1, 0) == 1);
    close(file);
}

static void on_term(int signal) {
    (void)signal;
    over = 1;
}

static void prepare(void) {
    struct sigaction user = {.sa_sigaction = on_user, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct sigaction term = {.sa_handler = on_term};
    sigaction(SIGUSR1, &user, NULL);
    sigaction(SIGALRM, &alarm, NULL);
    sigaction(SIGTERM, &term, NULL);
    signal(SIGPIPE, SIG_IGN);
    change_mask(SIG_BLOCK, SIGUSR1);
    change_mask(SIG_BLOCK, SIGRTMIN + 2);
    CHECK(pipe(pipes) == 0 && pipe(polled) == 0);
    event = eventfd(0, 0);
    epoll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted) == 0);
    sem_init(&semaphore, 0, 0);
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "turmoil-%d", getpid());
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 10) == 0);
}

static pthread_t threads[100];
static int thread_count;

static pthread_t start(void *(*function)(void *), void *argument) {
    CHECK(pthread_create(&threads[thread_count], NULL, function, argument) == 0);
    return threads[thread_count++];
}

int main(int count, char **words) {
    (void)words;
    loose = count > 1;
    prepare();
    for (long i = 0; i < WORKERS; i++)
        workers[i] = start(work, (void *)i);
    for (int i = 0; i < PAIRS; i++) {
        boxes[i] = (struct box){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        start(give, &boxes[i]);
        start(take, &boxes[i]);
    }
    for (long i = 0; i < SPAWNERS; i++)
        start(spawn, (void *)i);
    start(wait_read, NULL);
    start(wait_poll, NULL);
    start(wait_epoll, NULL);
    start(wait_semaphore, NULL);
    start(wait_sleep, (void *)3L);
    start(wait_sleep, (void *)50L);
    start(wait_sleep, (void *)400L);
    pthread_t waiter = start(wait_signal, NULL);
    start(wait_accept, NULL);
    struct itimerval interval = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &interval, NULL);
    printf("ready\n");
    fflush(stdout);
    uint64_t one = 1, many = 1000000;
    for (unsigned round = 0; !over; round++) {
        union sigval value = {.sival_int = (int)(round % WORKERS)};
        if (pthread_sigqueue(workers[round % WORKERS], SIGUSR1, value))
            CHECK(errno == EAGAIN);
        if (round % 7 == 0) {
            CHECK(write(pipes[1], "", 1) == 1 && write(polled[1], "", 1) == 1 && write(event, &one, 8) == 8);
            sem_post(&semaphore);
            pthread_sigqueue(waiter, SIGRTMIN + 2, value);
            knock(0);
        }
        usleep(400);
    }
    struct itimerval none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    CHECK(write(pipes[1], "1", 1) == 1 && write(polled[1], "1", 1) == 1 && write(event, &many, 8) == 8);
    sem_post(&semaphore);
    pthread_sigqueue(waiter, SIGRTMIN + 2, (union sigval){0});
    knock(1);
    for (int i = 0; i < thread_count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(sum == sum_check);
    printf("worked %ld, passed %ld, spawned %ld, waited %ld, handled %ld, alarms %ld\n", worked, passed, spawned, waited,
           handled, alarms);
    printf("%s\n", bad ? "bad" : "good");
    return bad != 0;
}
