// A handler on an alternate stack, of a signal that interrupts a function of the library, and in
// it a fault, whose handler runs on the same stack: `fault`, or a call to nowhere: `call`.
#include "stop.h"

static const char *kind;
static int *nowhere;
static int (*no_function)(int);

__attribute__((noinline)) static void on_fault(int number) {
    sink += number;
    stop_here();
    _exit(0);
}

__attribute__((noinline)) static int fault(int value) {
    return *nowhere + value;
}

__attribute__((noinline)) static int call(int value) {
    return no_function(value + 1) + value;
}

static void on_signal(int number) {
    sink += strcmp(kind, "fault") == 0 ? fault(number) : call(number);
}

__attribute__((noinline)) static int raiser(int depth) {
    if (depth == 0) return raise(SIGUSR1);
    return raiser(depth - 1) + sink;
}

int main(int count, char **arguments) {
    kind = count > 1 ? arguments[1] : "fault";
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, NULL);
    return raiser(5);
}
