// Recursion, then a callback through the C library, with frames of variable and of aligned size.
#include "stop.h"

static int stopped;

__attribute__((noinline)) static int compare(const void *one, const void *other) {
    if (!stopped) {
        stopped = 1;
        stop_here();
    }
    return *(const int *)one - *(const int *)other;
}

__attribute__((noinline)) static int sorted(int count) {
    int values[count + 2];
    for (int i = 0; i < count + 2; i++) values[i] = count - i;
    qsort(values, count + 2, sizeof values[0], compare);
    sink = values[count / 2];
    return values[0] + sink;
}

__attribute__((noinline)) static int aligned(int count) {
    char space[64 + count] __attribute__((aligned(64)));
    memset(space, count, sizeof space);
    sink += space[count];
    return sorted(count) + space[1];
}

__attribute__((noinline)) static int recurse(int depth) {
    int below = depth == 0 ? aligned(10) : recurse(depth - 1);
    sink += depth;
    return below * 3 + sink;
}

int main(void) {
    printf("%d\n", recurse(20) & 1);
    return 0;
}
