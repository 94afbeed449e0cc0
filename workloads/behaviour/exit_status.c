/* exit_status N: ends with status N, after atexit handlers in reverse order. */
#include "common.h"

static void first(void) { say("first\n"); }
static void second(void) { say("second\n"); }

int main(int argc, char **argv)
{
    atexit(first);
    atexit(second);
    return argc == 2 ? atoi(argv[1]) : 17;
}
