/* A signal must get into a loop that never leaves: `jmp .`, with an interval timer whose handler jumps out; then an alarm
   in a loop of two blocks. */
#include "common.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf place;

static void leave(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    siglongjmp(place, 1);
}

static volatile sig_atomic_t ended;

static void finish(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    ended = 1;
}

int main(void)
{
    handle(SIGALRM, leave, 0);
    if (sigsetjmp(place, 1) == 0) {
        struct itimerval soon = {.it_value = {.tv_usec = 50000}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        __asm__ volatile("1: jmp 1b");
    }
    say("out of the loop\n");
    handle(SIGALRM, finish, 0);
    struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    while (!ended)
        __asm__ volatile("");
    say("out of the other\n");
    return 0;
}
