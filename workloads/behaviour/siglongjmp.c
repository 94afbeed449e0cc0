/* Leaving a handler by siglongjmp, out of nested calls too; the mask is restored each time. */
#include "common.h"
#include <setjmp.h>

static sigjmp_buf place;
/* Not a constant that the compiler could judge. */
static int *volatile nowhere = (int *)8;

static void leave(int number, siginfo_t *information, void *context)
{
    (void)information, (void)context;
    siglongjmp(place, number);
}

static void __attribute__((noinline)) deeper(int depth)
{
    if (depth == 0)
        raise(SIGUSR1);
    else
        deeper(depth - 1);
    say("not reached\n");
}

int main(void)
{
    static volatile int jumps;
    handle(SIGUSR1, leave, 0);
    handle(SIGSEGV, leave, 0);
    while (jumps < 4) {
        int number = sigsetjmp(place, 1);
        if (number == 0) {
            if (jumps % 2 == 0)
                deeper(10);
            else
                *nowhere = 1;
        } else {
            jumps++;
            say(number == SIGUSR1 ? "usr1\n" : "segv\n");
        }
    }
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    return sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGSEGV);
}
