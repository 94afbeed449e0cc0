// A storm of signals for SECONDS: every number that a program can handle, sent by kill, tgkill, sigqueue, pthread_sigqueue and
// timers, and raised by real faults; blocked and not blocked; while the threads that get them make system calls, copy strings,
// change code, and other threads come and go. What arrives, how often and in which order is checked against signal(7): a blocked
// signal is pending; of a standard signal one is pending, of a real-time signal all, in the order in which they were sent.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        fprintf(stderr, "line %d: ", __LINE__);                                                                        \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        _exit(1);                                                                                                      \
    } while (0)
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("%s: %s", #condition, strerror(errno));                                                               \
    } while (0)

enum method { KILL, TGKILL, SIGQUEUE, THREAD_SIGQUEUE, TIMER, THREAD_TIMER, METHODS };
enum command { NONE, BLOCK, LOOK, TAKE, UNBLOCK, STOP };
enum { BURST = 6, PATIENCE = 120 };

static const int code_of[METHODS] = {SI_USER, SI_TKILL, SI_QUEUE, SI_QUEUE, SI_TIMER, SI_TIMER};

// A thread that gets signals, and what it is to get.
struct receiver {
    pthread_t thread;
    volatile pid_t tid;
    int group;
    sigset_t numbers;
    volatile int number, method, command, answer;
    volatile unsigned arrived, faults_raised, faults_seen;
    volatile int next_value;
    timer_t timers[65];
    unsigned seed;
};

static struct receiver receivers[2];
static __thread struct receiver *me;
static __thread volatile unsigned long resume_at;
static volatile int over;
static char *beyond_file;

static long seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static int is_real_time(int number) { return number >= SIGRTMIN; }

static void check_sent(struct receiver *to, int number, const siginfo_t *info, int code)
{
    if (number != to->number || info->si_signo != number || info->si_code != code)
        FAIL("signal %d code %d instead of %d code %d", number, info->si_code, to->number, code);
    if (code != SI_TIMER && info->si_pid != getpid())
        FAIL("signal %d from %d", number, info->si_pid);
    if (code == SI_QUEUE || code == SI_TIMER) {
        // Of several standard signals one is pending; which one is not specified.
        int value = info->si_value.sival_int;
        if (is_real_time(number) ? value != to->next_value : value < 0 || value >= BURST)
            FAIL("signal %d value %d instead of %d", number, info->si_value.sival_int, to->next_value);
        to->next_value++;
    }
    __atomic_add_fetch(&to->arrived, 1, __ATOMIC_SEQ_CST);
}

static void handler(int number, siginfo_t *info, void *context)
{
    if (!me)
        FAIL("signal %d code %d in a thread that blocks it", number, info->si_code);
    if (info->si_code > 0) {
        greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
        if (!resume_at)
            FAIL("signal %d code %d address %p at %llx, but no fault", number, info->si_code, info->si_addr,
                 registers[REG_RIP]);
        registers[REG_RIP] = (greg_t)resume_at;
        me->faults_seen++;
        return;
    }
    check_sent(me, number, info, code_of[me->method]);
}

static unsigned draw(unsigned *seed)
{
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 16;
}

// Runs `instruction`, which raises a signal, with `input` in rdx.
#define PROVOKE(instruction, input)                                                                                    \
    __asm__ volatile("leaq 2f(%%rip), %%rax\n\t"                                                                       \
                     "movq %%rax, %[resume]\n\t"                                                                       \
                     "xorl %%eax, %%eax\n\t" instruction "\n"                                                          \
                     "2:\n\t"                                                                                          \
                     : [resume] "=m"(resume_at)                                                                        \
                     : "d"(input)                                                                                      \
                     : "rax", "memory", "cc")

// A fault, unless its number is being sent: then the kernel may drop one of the two.
static void fault(struct receiver *self)
{
    static const int numbers[2][3] = {{SIGSEGV, SIGTRAP, SIGFPE}, {SIGBUS, SIGILL, SIGSEGV}};
    int number = numbers[self->group][draw(&self->seed) % 3];
    if (!sigismember(&self->numbers, number))
        return;
    if (number == self->number)
        return;
    self->faults_raised++;
    switch (number) {
    case SIGSEGV: PROVOKE("movb (%%rdx), %%al", 8ul); break;
    case SIGBUS: PROVOKE("movb (%%rdx), %%al", beyond_file); break;
    case SIGFPE: PROVOKE("divq %%rdx", 0ul); break;
    case SIGILL: PROVOKE("ud2", 0ul); break;
    case SIGTRAP: PROVOKE("int3", 0ul); break;
    }
    resume_at = 0;
    if (self->faults_seen != self->faults_raised)
        FAIL("%u faults of signal %d instead of %u", self->faults_seen, number, self->faults_raised);
}

static void change_code(unsigned *seed, unsigned char *code)
{
    unsigned char value = (unsigned char)draw(seed);
    memcpy(code, (unsigned char[]){0xb8, value, 0, 0, 0, 0xc3}, 6); // mov eax, value; ret
    if (((int (*)(void))code)() != value)
        FAIL("code that was replaced is executed");
}

static void copy(unsigned *seed)
{
    static __thread char from[4096], to[4096];
    size_t length = draw(seed) % sizeof from, count = length;
    memset(from, (int)draw(seed), sizeof from);
    char *source = from, *destination = to;
    __asm__ volatile("rep movsb" : "+S"(source), "+D"(destination), "+c"(count) : : "memory");
    if (memcmp(from, to, length) != 0 || source != from + length)
        FAIL("a copy differs");
    memcpy(to, from, sizeof from);
}

static void *brief(void *unused) { return unused; }

static void make_thread(void)
{
    pthread_t thread;
    sigset_t all;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, &all);
    CHECK(pthread_create(&thread, &attributes, brief, NULL) == 0);
    pthread_attr_destroy(&attributes);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void system_calls(void)
{
    sigset_t set, before;
    struct sigaction action;
    syscall(SYS_getppid);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMAX);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    sigaction(SIGUSR1, NULL, &action);
    sigaction(SIGUSR1, &action, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct timespec moment = {0, 1000};
    nanosleep(&moment, NULL);
}

static unsigned char *map_code(void)
{
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    return code;
}

static void act(unsigned *seed, unsigned char *code)
{
    switch (draw(seed) % 8) {
    case 0: change_code(seed, code); break;
    case 1: make_thread(); break;
    case 2:
    case 3: copy(seed); break;
    default: system_calls(); break;
    }
}

// Executes a command about the signal that is being sent.
static void obey(struct receiver *self)
{
    sigset_t set, pending;
    int command = __atomic_load_n(&self->command, __ATOMIC_SEQ_CST), number = self->number;
    sigemptyset(&set);
    sigaddset(&set, number);
    switch (command) {
    case NONE:
    case STOP: return;
    case BLOCK: CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0); break;
    case LOOK: {
        long start = seconds();
        do // timers take a while
            CHECK(sigpending(&pending) == 0);
        while (!sigismember(&pending, number) && seconds() - start < PATIENCE);
        if (!sigismember(&pending, number))
            FAIL("signal %d method %d is blocked and not pending", number, self->method);
        break;
    }
    case TAKE: {
        siginfo_t info;
        struct timespec none = {0, 0};
        while (sigtimedwait(&set, &info, &none) == number) {
            int code = code_of[self->method];
            check_sent(self, number, &info, code == SI_TKILL ? SI_USER : code); // as the C library says
        }
        break;
    }
    case UNBLOCK: CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0); break;
    }
    self->command = NONE;
    __atomic_store_n(&self->answer, 1, __ATOMIC_SEQ_CST);
}

static void *receive(void *argument)
{
    struct receiver *self = argument;
    unsigned char *code = map_code();
    me = self;
    self->tid = (pid_t)syscall(SYS_gettid);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &self->numbers, NULL) == 0);
    while (self->command != STOP) {
        act(&self->seed, code);
        fault(self);
        obey(self);
    }
    return NULL;
}

static void *bustle(void *argument)
{
    unsigned seed = (unsigned)(long)argument;
    unsigned char *code = map_code();
    while (!over)
        act(&seed, code);
    return NULL;
}

/* Lets others run. Not by sched_yield: some kernels let a thread that yields in a loop starve the whole machine. */
static void nap(void)
{
    struct timespec time = {0, 20000};
    nanosleep(&time, NULL);
}

static void tell(struct receiver *to, int command)
{
    long start = seconds();
    to->answer = 0;
    __atomic_store_n(&to->command, command, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&to->answer, __ATOMIC_SEQ_CST)) {
        if (seconds() - start > PATIENCE)
            FAIL("no answer to %d about signal %d", command, to->number);
        nap();
    }
}

static void send(struct receiver *to, int number, int method, int value)
{
    union sigval with = {.sival_int = value};
    switch (method) {
    case KILL: CHECK(kill(getpid(), number) == 0); break;
    case TGKILL: CHECK(syscall(SYS_tgkill, getpid(), to->tid, number) == 0); break;
    case SIGQUEUE: CHECK(sigqueue(getpid(), number, with) == 0); break;
    case THREAD_SIGQUEUE: CHECK(pthread_sigqueue(to->thread, number, with) == 0); break;
    default: {
        struct sigevent event = {.sigev_signo = number, .sigev_value = with};
        event.sigev_notify = method == TIMER ? SIGEV_SIGNAL : SIGEV_THREAD_ID;
        event._sigev_un._tid = to->tid;
        struct itimerspec once = {.it_value = {0, 1000}};
        timer_t *timer = &to->timers[number];
        CHECK(timer_create(CLOCK_MONOTONIC, &event, timer) == 0);
        CHECK(timer_settime(*timer, 0, &once, NULL) == 0);
    }
    }
}

static void await(struct receiver *to, unsigned count)
{
    long start = seconds();
    while (__atomic_load_n(&to->arrived, __ATOMIC_SEQ_CST) < count) {
        if (seconds() - start > PATIENCE)
            FAIL("signal %d method %d: %u of %u have arrived", to->number, to->method, to->arrived, count);
        nap();
    }
}

// Sends one number by one method and checks what comes of it.
static void round_of(struct receiver *to, int number, int method, int blocked, int take)
{
    int is_timer = method == TIMER || method == THREAD_TIMER;
    unsigned sent = is_timer ? 1 : blocked || is_real_time(number) ? BURST : 1;
    unsigned expected = is_real_time(number) ? sent : 1;
    // The last fault of this number is over when the thread answers.
    to->number = number, to->method = method, to->next_value = 0, to->arrived = 0;
    tell(to, blocked ? BLOCK : UNBLOCK);
    for (unsigned i = 0; i < sent; i++)
        send(to, number, method, (int)i);
    if (blocked) {
        tell(to, LOOK);
        if (to->arrived != 0)
            FAIL("signal %d method %d is blocked and arrives", number, method);
        if (take)
            tell(to, TAKE);
        tell(to, UNBLOCK);
        if (to->arrived != expected)
            FAIL("signal %d method %d blocked: %u instead of %u", number, method, to->arrived, expected);
    } else {
        await(to, expected);
    }
    if (is_timer)
        CHECK(timer_delete(to->timers[number]) == 0);
    tell(to, UNBLOCK);
    if (to->arrived != expected)
        FAIL("signal %d method %d: %u instead of %u", number, method, to->arrived, expected);
}

static void *storm(void *argument)
{
    struct receiver *to = argument;
    unsigned seed = 77u + (unsigned)to->group;
    while (!over)
        for (int number = 1; number < 65 && !over; number++)
            if (sigismember(&to->numbers, number))
                round_of(to, number, (int)(draw(&seed) % METHODS), (int)(draw(&seed) % 2), (int)(draw(&seed) % 3 == 0));
    return NULL;
}

int main(int count, char **words)
{
    long end = seconds() + (count > 1 ? atol(words[1]) : 3);
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    int file = memfd_create("empty", 0);
    beyond_file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(beyond_file != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        sigemptyset(&receivers[i].numbers);
        receivers[i].group = i, receivers[i].seed = 5u + (unsigned)i;
    }
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigfillset(&action.sa_mask);
    for (int number = 1; number < 65; number++) {
        // What cannot be handled, and what the C library keeps for itself.
        if (number == SIGKILL || number == SIGSTOP || (number >= 32 && number < SIGRTMIN))
            continue;
        CHECK(sigaction(number, &action, NULL) == 0);
        // One that stops the process and one that continues it take each other away.
        int first = number == SIGSEGV || number == SIGTRAP || number == SIGFPE || (number >= SIGCONT && number <= SIGTTOU);
        int second = number == SIGBUS || number == SIGILL || number == SIGSYS;
        sigaddset(&receivers[first ? 0 : second ? 1 : number % 2].numbers, number);
    }
    pthread_t senders[2], others[2];
    for (long i = 0; i < 2; i++) {
        CHECK(pthread_create(&receivers[i].thread, NULL, receive, &receivers[i]) == 0);
        while (!receivers[i].tid)
            nap();
        CHECK(pthread_create(&senders[i], NULL, storm, &receivers[i]) == 0);
        CHECK(pthread_create(&others[i], NULL, bustle, (void *)(i + 1)) == 0);
    }
    while (seconds() < end)
        usleep(20000);
    over = 1;
    for (int i = 0; i < 2; i++) {
        pthread_join(senders[i], NULL);
        pthread_join(others[i], NULL);
        receivers[i].command = STOP;
        pthread_join(receivers[i].thread, NULL);
    }
    puts("storm over");
    return 0;
}
