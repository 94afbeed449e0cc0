/* Handlers inside handlers: another signal interrupts, the same one waits, and sa_mask holds a third back. */
#include "common.h"

static void innermost(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    say("[hup]");
}

static void inner(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    say("[usr2 ");
    raise(SIGHUP);
    say("]");
}

static volatile sig_atomic_t rounds;

static void outer(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    say("[usr1 ");
    if (rounds++ == 0) {
        raise(SIGUSR1); /* waits until this handler is left */
        raise(SIGTERM); /* so does this, by sa_mask */
        say("pending ");
    }
    raise(SIGUSR2);
    say("]");
}

static void masked(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    say("[term]");
}

int main(void)
{
    handle(SIGHUP, innermost, 0);
    handle(SIGUSR2, inner, 0);
    handle(SIGTERM, masked, 0);
    struct sigaction action = {.sa_sigaction = outer, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR1);
    say("\n");
    return 0;
}
