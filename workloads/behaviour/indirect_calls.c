/* Indirect calls and jumps as a compiler makes them: function pointers, a callback of the C library, a switch. */
#include "common.h"

typedef unsigned (*operation)(unsigned, unsigned);

static unsigned add(unsigned a, unsigned b) { return a + b; }
static unsigned subtract(unsigned a, unsigned b) { return a - b; }
static unsigned multiply(unsigned a, unsigned b) { return a * b; }
static unsigned exclusive(unsigned a, unsigned b) { return a ^ b; }

static operation volatile operations[] = {add, subtract, multiply, exclusive};

static int by_last_digit(const void *left, const void *right)
{
    unsigned a = *(const unsigned *)left, b = *(const unsigned *)right;
    if (a % 10 != b % 10)
        return a % 10 < b % 10 ? -1 : 1;
    return a < b ? -1 : a > b;
}

static unsigned dispatch(unsigned code, unsigned value)
{
    switch (code % 9) {
    case 0: return value + 3;
    case 1: return value * 5;
    case 2: return value ^ 0x55;
    case 3: return value >> 1;
    case 4: return value << 3;
    case 5: return ~value;
    case 6: return value % 1000;
    case 7: return value / 7;
    default: return value;
    }
}

int main(void)
{
    unsigned value = 1;
    for (unsigned i = 0; i < 100; i++)
        value = operations[i * 7 % 4](value, i);
    unsigned numbers[50];
    for (unsigned i = 0; i < 50; i++)
        numbers[i] = i * 37 % 101;
    qsort(numbers, 50, sizeof numbers[0], by_last_digit);
    unsigned code = 12345;
    for (unsigned i = 0; i < 100; i++)
        code = dispatch(i * i, code + i);
    printf("operations %u sorted %u %u %u switch %u\n", value, numbers[0], numbers[25], numbers[49], code);
    return 0;
}
