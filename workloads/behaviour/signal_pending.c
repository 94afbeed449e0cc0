/* Blocked signals stay pending, also those that faults raise if they are sent: sigpending shows them, one of a number is kept,
   sigtimedwait and sigsuspend take them, unblocking delivers them. One that is sent to the process goes to a thread that does
   not block it. */
#include "common.h"
#include <pthread.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>

static const int numbers[] = {SIGSEGV, SIGTRAP, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGUSR1, SIGTERM};
enum { KINDS = sizeof numbers / sizeof numbers[0] };

static volatile int counts[65], codes[65];
static volatile pthread_t where[65];

static void count(int number, siginfo_t *information, void *context)
{
    (void)context;
    counts[number]++;
    codes[number] = information->si_code;
    where[number] = pthread_self();
}

static sigset_t only(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

static int is_pending(int number)
{
    sigset_t set;
    CHECK(sigpending(&set) == 0);
    return sigismember(&set, number);
}

static int receive(int number, siginfo_t *information)
{
    sigset_t set = only(number);
    struct timespec none = {0, 0};
    return sigtimedwait(&set, information, &none);
}

static void in_one_thread(int number)
{
    sigset_t set = only(number), before;
    siginfo_t information;
    counts[number] = 0;
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
    CHECK(pthread_kill(pthread_self(), number) == 0);
    CHECK(pthread_kill(pthread_self(), number) == 0);
    CHECK(counts[number] == 0 && is_pending(number));
    /* The C library makes SI_USER of SI_TKILL here. */
    CHECK(receive(number, &information) == number && information.si_code == SI_USER);
    CHECK(!is_pending(number) && receive(number, &information) == -1 && errno == EAGAIN);

    CHECK(sigqueue(getpid(), number, (union sigval){.sival_int = 77}) == 0);
    CHECK(counts[number] == 0 && is_pending(number));
    CHECK(receive(number, &information) == number && information.si_code == SI_QUEUE);
    CHECK(information.si_value.sival_int == 77 && information.si_pid == getpid());

    int descriptor = signalfd(-1, &set, SFD_NONBLOCK);
    struct signalfd_siginfo taken;
    CHECK(descriptor >= 0);
    CHECK(pthread_kill(pthread_self(), number) == 0);
    CHECK(read(descriptor, &taken, sizeof taken) == sizeof taken && (int)taken.ssi_signo == number);
    CHECK(read(descriptor, &taken, sizeof taken) == -1 && errno == EAGAIN);
    close(descriptor);

    CHECK(kill(getpid(), number) == 0);
    CHECK(counts[number] == 0 && is_pending(number));
    sigset_t without = before;
    sigdelset(&without, number);
    CHECK(sigsuspend(&without) == -1 && errno == EINTR);
    CHECK(counts[number] == 1 && codes[number] == SI_USER && !is_pending(number));

    CHECK(pthread_kill(pthread_self(), number) == 0);
    CHECK(counts[number] == 1);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(counts[number] == 2 && codes[number] == SI_TKILL);
}

static volatile int stop;

static void *open_to_all(void *unused)
{
    while (!stop)
        syscall(SYS_getppid);
    return unused;
}

/* The main thread blocks everything; the other one nothing. */
static void in_two_threads(void)
{
    pthread_t other;
    sigset_t all, before;
    CHECK(pthread_create(&other, NULL, open_to_all, NULL) == 0);
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    for (int i = 0; i < KINDS; i++) {
        int number = numbers[i];
        counts[number] = 0;
        CHECK(kill(getpid(), number) == 0);
        for (int wait = 0; counts[number] == 0 && wait < 5000; wait++)
            usleep(1000);
        CHECK(counts[number] == 1 && pthread_equal(where[number], other) && !is_pending(number));
    }
    stop = 1;
    CHECK(pthread_join(other, NULL) == 0);
    /* No thread can take it; it stays pending for the process. */
    for (int i = 0; i < KINDS; i++) {
        counts[numbers[i]] = 0;
        CHECK(kill(getpid(), numbers[i]) == 0);
        CHECK(is_pending(numbers[i]) && counts[numbers[i]] == 0);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    for (int i = 0; i < KINDS; i++)
        CHECK(counts[numbers[i]] == 1);
}

/* What is ignored is forgotten, also if it was pending. */
static void ignored(int number)
{
    sigset_t set = only(number), before;
    counts[number] = 0;
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
    CHECK(pthread_kill(pthread_self(), number) == 0 && is_pending(number));
    CHECK(signal(number, SIG_IGN) != SIG_ERR);
    CHECK(!is_pending(number));
    handle(number, count, 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(counts[number] == 0);
}

int main(void)
{
    for (int i = 0; i < KINDS; i++)
        handle(numbers[i], count, 0);
    for (int i = 0; i < KINDS; i++)
        in_one_thread(numbers[i]);
    in_two_threads();
    for (int i = 0; i < KINDS; i++)
        ignored(numbers[i]);
    say("pending\n");
    return 0;
}
