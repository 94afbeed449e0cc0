/* SA_RESETHAND: the handler runs once, the second signal has its default action and ends the program. */
#include "common.h"

static void once(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    struct sigaction now;
    CHECK(sigaction(SIGUSR1, NULL, &now) == 0);
    say(now.sa_handler == SIG_DFL ? "once, reset\n" : "once, not reset\n");
}

int main(void)
{
    handle(SIGUSR1, once, SA_RESETHAND);
    raise(SIGUSR1);
    say("again\n");
    raise(SIGUSR1);
    say("not reached\n");
    return 1;
}
