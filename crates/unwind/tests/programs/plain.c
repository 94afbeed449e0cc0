// A chain of calls, for code without call frame information.
#include "stop.h"

__attribute__((noinline)) static int last(int value) {
    char text[100];
    snprintf(text, sizeof text, "%d", value);
    stop_here();
    return text[0] + value;
}

__attribute__((noinline)) static int middle(int value) {
    int (*volatile function)(int) = last;
    return function(value + 1) * 2;
}

__attribute__((noinline)) int first(int value) {
    return middle(value) + 1;
}

int main(void) {
    return first(1) & 1;
}
