// A program that executes itself: first at fixed low addresses (linked statically), then elsewhere, with memory of its own at those low
// addresses, which has to stay.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FIRST 0x1000000UL
#define LAST 0x5f000000UL
#define STEP 0x100000UL

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    if (count > 1) {
        execv(words[1], words + 1);
        return 1;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    unsigned long chunks = 0, wrong = 0;
    for (unsigned long at = FIRST; at < LAST; at += STEP)
        if (mmap((void *)at, STEP, PROT_READ | PROT_WRITE, flags, -1, 0) == (void *)at) {
            *(unsigned long *)at = at;
            chunks++;
        }
    for (double end = now() + 2; now() < end;)
        for (unsigned long at = FIRST; at < LAST; at += STEP)
            wrong += *(volatile unsigned long *)at != at;
    printf("%s, wrong %lu\n", chunks > 1000 ? "mapped" : "no room", wrong);
}
