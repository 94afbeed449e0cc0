/* A blocked signal waits, is seen as pending, and arrives when it is unblocked; a second one of the same is lost, queued
   real-time signals are not. */
#include "common.h"

static volatile sig_atomic_t usual, queued, queued_sum;

static void count(int number, siginfo_t *information, void *context)
{
    (void)context;
    if (number == SIGUSR1) {
        usual++;
    } else {
        queued++;
        queued_sum = queued_sum * 10 + information->si_value.sival_int;
    }
}

int main(void)
{
    handle(SIGUSR1, count, 0);
    handle(SIGRTMIN, count, 0);
    sigset_t set, old, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    CHECK(sigprocmask(SIG_BLOCK, &set, &old) == 0);
    CHECK(!sigismember(&old, SIGUSR1));
    raise(SIGUSR1);
    raise(SIGUSR1);
    for (int i = 1; i <= 3; i++)
        CHECK(sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i}) == 0);
    CHECK(sigpending(&pending) == 0);
    printf("blocked: %d %d pending %d %d\n", usual, queued, sigismember(&pending, SIGUSR1),
           sigismember(&pending, SIGRTMIN));
    CHECK(sigprocmask(SIG_SETMASK, &old, &set) == 0);
    CHECK(sigismember(&set, SIGUSR1) && sigismember(&set, SIGRTMIN));
    CHECK(sigpending(&pending) == 0);
    printf("unblocked: %d %d order %d pending %d\n", usual, queued, queued_sum, sigismember(&pending, SIGUSR1));
    return 0;
}
