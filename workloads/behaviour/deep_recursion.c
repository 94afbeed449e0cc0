/* A hundred thousand calls before the first return: deeper than any return stack. */
#include "common.h"

static volatile unsigned deepest;

static unsigned descend(unsigned depth)
{
    if (depth == 0)
        return 0;
    deepest++;
    unsigned below = descend(depth - 1);
    return below + (depth & 1); /* after the call, so that it is no tail call */
}

int main(void)
{
    unsigned odd = descend(100000);
    printf("depth %u odd %u\n", deepest, odd);
    return 0;
}
