// Calls of many kinds: through stubs that are resolved when they are first called, through
// pointers, recursive, as last instruction, out of nested loops, and past frames with longjmp.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf back;
static volatile int sink;

__attribute__((noinline)) static int leaf(int value) {
    return value * 7 + sink;
}

__attribute__((noinline)) static int tail(int value) {
    return leaf(value + 1);
}

__attribute__((noinline)) static int aligned(int count) {
    char space[64 + count] __attribute__((aligned(64)));
    memset(space, count, sizeof space);
    return tail(space[count]);
}

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int g, int h, int i) {
    int sum = 0;
    for (int k = 0; k < 3; k++) sum += leaf(a + b * k) + leaf(c * d) + leaf(e - f) + leaf(g ^ h) + i;
    return sum;
}

__attribute__((noinline)) static int recurse(int depth) {
    if (depth == 0) return many(1, 2, 3, 4, 5, 6, 7, 8, 9) + aligned(5);
    return recurse(depth - 1) + depth;
}

__attribute__((noinline)) static void jump(int depth) {
    if (depth == 0) longjmp(back, 1);
    jump(depth - 1);
    sink++;
}

static int compare(const void *one, const void *other) {
    return leaf(*(const int *)one) - leaf(*(const int *)other);
}

int main(void) {
    int values[] = {4, 2, 9, 1};
    qsort(values, 4, sizeof values[0], compare);
    sink = recurse(4);
    if (setjmp(back) == 0) jump(3);
    char text[32];
    snprintf(text, sizeof text, "%d %s", sink, "text");
    char *copy = strdup(text);
    puts(copy);
    free(copy);
    return 0;
}
