// Waits for two seconds in every kind of system call at once, a thread for each, and prints how each wait ended and whether it had
// the right length. No signal interrupts them, so none may end early or with EINTR.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 2.0
#define MILLISECONDS 2000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static int timer(void) {
    int file = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec time = {.it_value = {2, 0}};
    timerfd_settime(file, 0, &time, NULL);
    return file;
}

// Each returns what its call returned; the expected value is in the table.

static long do_read(void) {
    long expirations;
    return read(timer(), &expirations, 8);
}
static long do_poll(void) { return poll(NULL, 0, MILLISECONDS); }
static long do_poll_file(void) {
    struct pollfd file = {timer(), POLLIN, 0};
    return poll(&file, 1, -1);
}
static long do_ppoll(void) {
    struct timespec time = {2, 0};
    sigset_t set;
    sigfillset(&set);
    return ppoll(NULL, 0, &time, &set);
}
static long do_select(void) {
    struct timeval time = {2, 0};
    return select(0, NULL, NULL, NULL, &time);
}
static long do_pselect(void) {
    struct timespec time = {2, 0};
    sigset_t set;
    sigfillset(&set);
    return pselect(0, NULL, NULL, NULL, &time, &set);
}
static long do_nanosleep(void) {
    struct timespec time = {2, 0};
    return nanosleep(&time, NULL);
}
static long do_sleep_until(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += 2;
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}
static long do_futex(void) {
    int word = 0;
    struct timespec time = {2, 0};
    long result = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, NULL, 0);
    return result < 0 && errno == ETIMEDOUT ? 0 : result;
}
static long do_condition(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    time.tv_sec += 2;
    pthread_mutex_lock(&mutex);
    return pthread_cond_timedwait(&condition, &mutex, &time) == ETIMEDOUT ? 0 : -1;
}
static int epoll_with(int file) {
    int epoll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, file, &wanted);
    return epoll;
}
static long do_epoll(void) {
    struct epoll_event found;
    return epoll_wait(epoll_with(timer()), &found, 1, -1);
}
static long do_epoll_timeout(void) {
    struct epoll_event found;
    return epoll_wait(epoll_create1(0), &found, 1, MILLISECONDS);
}
static long do_epoll_pwait(void) {
    struct epoll_event found;
    sigset_t set;
    sigfillset(&set);
    return epoll_pwait(epoll_with(timer()), &found, 1, -1, &set);
}
static long do_sigtimedwait(void) {
    struct timespec time = {2, 0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    long result = sigtimedwait(&set, NULL, &time);
    return result < 0 && errno == EAGAIN ? 0 : result;
}
static long do_accept(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "waits-%d", getpid());
    int file = socket(AF_UNIX, SOCK_STREAM, 0);
    bind(file, (struct sockaddr *)&address, sizeof address);
    listen(file, 5);
    if (fork() == 0) {
        usleep(MILLISECONDS * 1000);
        int other = socket(AF_UNIX, SOCK_STREAM, 0);
        _exit(connect(other, (struct sockaddr *)&address, sizeof address) != 0);
    }
    return accept(file, NULL, NULL) >= 0 ? 0 : -1;
}
static long do_receive(void) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct timeval time = {2, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    char byte;
    long result = recv(pair[0], &byte, 1, 0);
    return result < 0 && errno == EAGAIN ? 0 : result;
}
static long do_wait(void) {
    pid_t child = fork();
    if (child == 0) {
        usleep(MILLISECONDS * 1000);
        _exit(3);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3 ? 0 : -1;
}
static long do_semaphore(void) {
    int set = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf take = {0, -1, 0};
    struct timespec time = {2, 0};
    long result = semtimedop(set, &take, 1, &time);
    int error = errno;
    semctl(set, 0, IPC_RMID);
    return result < 0 && error == EAGAIN ? 0 : result;
}
static int queue = -1;
static void *send_late(void *argument) {
    (void)argument;
    usleep(MILLISECONDS * 1000);
    struct { long type; char text[8]; } message = {1, "late"};
    msgsnd(queue, &message, sizeof message.text, 0);
    return NULL;
}
static long do_message(void) {
    struct { long type; char text[8]; } message;
    pthread_t sender;
    queue = msgget(IPC_PRIVATE, 0600);
    pthread_create(&sender, NULL, send_late, NULL);
    long result = msgrcv(queue, &message, sizeof message.text, 0, 0);
    pthread_join(sender, NULL);
    msgctl(queue, IPC_RMID, NULL);
    return result == 8 ? 0 : -1;
}
static long do_lock(void) {
    char name[] = "/tmp/waits-XXXXXX";
    int file = mkstemp(name);
    int again = open(name, O_RDWR);
    unlink(name);
    flock(file, LOCK_EX);
    if (fork() == 0) {
        usleep(MILLISECONDS * 1000);
        flock(file, LOCK_UN);
        _exit(0);
    }
    return flock(again, LOCK_EX);
}

// `stretches`: the kernel does not report how much of the time is left, so the wait may take longer; never shorter.
static struct wait {
    const char *name;
    long (*call)(void);
    long expected;
    int stretches;
    long result;
    int error;
    double took;
} waits[] = {
    {"read", do_read, 8, 0},
    {"poll", do_poll, 0, 0},
    {"poll with a file", do_poll_file, 1, 0},
    {"ppoll", do_ppoll, 0, 0},
    {"select", do_select, 0, 0},
    {"pselect", do_pselect, 0, 0},
    {"nanosleep", do_nanosleep, 0, 0},
    {"clock_nanosleep", do_sleep_until, 0, 0},
    {"futex", do_futex, 0, 0},
    {"pthread_cond_timedwait", do_condition, 0, 0},
    {"epoll_wait", do_epoll, 1, 0},
    {"epoll_wait with a limit", do_epoll_timeout, 0, 1},
    {"epoll_pwait", do_epoll_pwait, 1, 0},
    {"sigtimedwait", do_sigtimedwait, 0, 1},
    {"accept", do_accept, 0, 0},
    {"recv with a limit", do_receive, 0, 1},
    {"waitpid", do_wait, 0, 0},
    {"semtimedop", do_semaphore, 0, 1},
    {"msgrcv", do_message, 0, 0},
    {"flock", do_lock, 0, 0},
};
enum { COUNT = sizeof waits / sizeof *waits };

static void *run(void *argument) {
    struct wait *wait = argument;
    double start = now();
    wait->result = wait->call();
    wait->error = errno;
    wait->took = now() - start;
    return NULL;
}

int main(void) {
    pthread_t threads[COUNT];
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (int i = 0; i < COUNT; i++)
        pthread_create(&threads[i], NULL, run, &waits[i]);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < COUNT; i++) {
        struct wait *wait = &waits[i];
        pthread_join(threads[i], NULL);
        // The machine may be busy.
        double most = wait->stretches ? LENGTH * 3 : LENGTH + 0.9;
        int fine = wait->result == wait->expected && wait->took >= LENGTH - 0.01 && wait->took <= most;
        if (fine)
            printf("%s: fine\n", wait->name);
        else
            printf("%s: %ld, error %d, %.3f seconds\n", wait->name, wait->result, wait->error, wait->took);
    }
    return 0;
}
