/* All timers of a process: setitimer in its three kinds, POSIX timers with values and threads, alarm, timerfd, signalfd, sleeps
   that are interrupted. Results do not depend on timing. */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

static volatile sig_atomic_t counts[65];
static volatile int value;
static volatile int notified;

static void count(int number, siginfo_t *information, void *context)
{
    (void)context;
    counts[number]++;
    if (information->si_code == SI_TIMER)
        value = information->si_value.sival_int;
}

static void notify(union sigval argument)
{
    __atomic_add_fetch(&notified, argument.sival_int, __ATOMIC_SEQ_CST);
}

static unsigned long spin(unsigned long rounds)
{
    volatile unsigned long sum = 0;
    for (unsigned long i = 0; i < rounds; i++)
        sum += i;
    return sum;
}

static void interval(int which, int number)
{
    struct itimerval timer = {{0, 1000}, {0, 1000}}, none = {{0, 0}, {0, 0}};
    CHECK(setitimer(which, &timer, NULL) == 0);
    while (counts[number] < 2)
        CHECK(spin(1000) == 499500);
    CHECK(setitimer(which, &none, NULL) == 0);
}

int main(void)
{
    handle(SIGALRM, count, 0);
    handle(SIGVTALRM, count, 0);
    handle(SIGPROF, count, 0);
    handle(SIGRTMIN, count, 0);
    interval(ITIMER_REAL, SIGALRM);
    interval(ITIMER_VIRTUAL, SIGVTALRM);
    interval(ITIMER_PROF, SIGPROF);
    printf("intervals %d %d %d\n", counts[SIGALRM] >= 2, counts[SIGVTALRM] >= 2, counts[SIGPROF] >= 2);

    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 42};
    /* Again and again: one that expires just before the sleep begins does not interrupt it. */
    struct itimerspec soon = {{0, 0}, {0, 2000000}}, again = {{0, 2000000}, {0, 2000000}};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &again, NULL) == 0);
    struct timespec long_time = {100, 0}, rest;
    while (counts[SIGRTMIN] == 0)
        CHECK(nanosleep(&long_time, &rest) == -1 && errno == EINTR && rest.tv_sec >= 99);
    CHECK(timer_delete(timer) == 0);
    struct sigevent threaded = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify, .sigev_value.sival_int = 5};
    CHECK(timer_create(CLOCK_REALTIME, &threaded, &timer) == 0 && timer_settime(timer, 0, &soon, NULL) == 0);
    while (__atomic_load_n(&notified, __ATOMIC_SEQ_CST) == 0)
        usleep(1000);
    CHECK(timer_delete(timer) == 0);
    printf("value %d notified %d\n", value, notified);

    int file = timerfd_create(CLOCK_MONOTONIC, 0);
    uint64_t expirations = 0;
    CHECK(file >= 0 && timerfd_settime(file, 0, &soon, NULL) == 0);
    CHECK(read(file, &expirations, sizeof expirations) == sizeof expirations);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    int signals = signalfd(-1, &set, 0);
    CHECK(signals >= 0 && raise(SIGUSR1) == 0);
    struct pollfd wait = {.fd = signals, .events = POLLIN};
    struct signalfd_siginfo information;
    CHECK(poll(&wait, 1, -1) == 1 && read(signals, &information, sizeof information) == sizeof information);
    printf("expirations %lu signal %u\n", (unsigned long)expirations, information.ssi_signo);
    counts[SIGALRM] = 0;
    // Long enough to be waited for, on a busy machine too.
    ualarm(100000, 0);
    pause();
    printf("alarm %d\n", counts[SIGALRM]);
    return 0;
}
