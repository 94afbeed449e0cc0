// Functions that call themselves and each other, with frames of several shapes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE static int tree(int depth, int value) {
    if (depth == 0)
        return value;
    int left = tree(depth - 1, value * 2 + 1);
    __asm__ volatile("" ::: "memory");
    return left ^ tree(depth - 1, value + 3);
}

NOINLINE static int odd(int number, char *frame);

NOINLINE static int even(int number) {
    char *frame = __builtin_alloca(number % 7 * 16 + 16);
    memset(frame, number, 16);
    return number == 0 ? 1 : odd(number - 1, frame) + frame[3];
}

NOINLINE static int odd(int number, char *frame) {
    char aligned[32] __attribute__((aligned(64)));
    memset(aligned, frame[0], sizeof aligned);
    __asm__ volatile("" : : "r"(aligned) : "memory");
    return number == 0 ? 0 : even(number - 1) + aligned[5];
}

int main(void) {
    int sum = 0;
    for (int round = 0; round < 50; round++)
        sum = sum * 31 + tree(6, round) + even(round);
    printf("%d\n", sum);
    return 0;
}
