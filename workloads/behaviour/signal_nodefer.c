/* SA_NODEFER: a handler is interrupted by its own signal. */
#include "common.h"

static volatile sig_atomic_t depth;

static void nest(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    say("(");
    if (++depth < 5)
        raise(SIGUSR1);
    say(")");
}

int main(void)
{
    handle(SIGUSR1, nest, SA_NODEFER);
    raise(SIGUSR1);
    say("\n");
    return depth;
}
