/* A handler on an alternate stack; asks whether it is there and whether sigaltstack knows. */
#include "common.h"

static char stack_memory[1 << 16];

static void on_stack(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    char here;
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0);
    say(&here >= stack_memory && &here < stack_memory + sizeof stack_memory ? "inside" : "outside");
    say(now.ss_flags == SS_ONSTACK ? " on\n" : now.ss_flags == SS_DISABLE ? " disabled\n" : " off\n");
}

int main(void)
{
    stack_t alternate = {.ss_sp = stack_memory, .ss_size = sizeof stack_memory};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    handle(SIGUSR1, on_stack, SA_ONSTACK);
    handle(SIGUSR2, on_stack, 0);
    raise(SIGUSR1);
    raise(SIGUSR2);
    raise(SIGUSR1);
    alternate.ss_flags = SS_DISABLE;
    CHECK(sigaltstack(&alternate, NULL) == 0);
    raise(SIGUSR1);
    return 0;
}
