/* die_signal abort|kill|segv|term|fpe: death by a signal without a handler. */
#include "common.h"

/* Not a constant that the compiler could judge. */
static int *volatile nowhere = (int *)16;

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "abort";
    say("dying\n");
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(how, "segv") == 0)
        *nowhere = 1;
    if (strcmp(how, "term") == 0)
        raise(SIGTERM);
    if (strcmp(how, "fpe") == 0)
        __asm__ volatile("xorl %%ecx, %%ecx; divl %%ecx" : : "a"(1), "d"(0) : "ecx", "cc");
    say("survived\n");
    return 1;
}
