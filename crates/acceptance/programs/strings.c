// Accesses memory by repeated string instructions, whose number of accesses only the data says, and
// by plain ones.
#include <stdio.h>
#include <string.h>

static unsigned char source[5000], destination[5000];

static void copy(void *to, const void *from, unsigned long bytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

static void fill(void *to, int value, unsigned long bytes) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}

__attribute__((noinline)) static unsigned work(int round) {
    fill(source, round, 1000 + round);
    copy(destination, source, 500 + 3 * round);
    unsigned sum = 0;
    for (int i = 0; i < 3000; i++)
        sum += destination[i];
    return sum;
}

int main(void) {
    unsigned sum = 0;
    for (int round = 0; round < 60; round++)
        sum = sum * 31 + work(round);
    printf("%u\n", sum);
    return 0;
}
