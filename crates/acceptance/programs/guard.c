// Leaves nothing free below 4 GiB, as Chromium does; then computes through function pointers, until SIGTERM. Makes a process now and then.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t over;

static void on_term(int signal) {
    (void)signal;
    over = 1;
}

static void guard(void) {
    for (uint64_t step = 1ull << 28; step >= 1 << 16; step >>= 2)
        for (uint64_t at = 1 << 16; at + step <= 1ull << 32; at += step)
            mmap((void *)at, step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

static uint64_t half(uint64_t x) { return x / 2; }
static uint64_t triple(uint64_t x) { return 3 * x + 1; }
static uint64_t (*const steps[])(uint64_t) = {half, triple};

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t work(void) {
    static uint64_t lengths[3000];
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        lengths[i] = 0;
        for (uint64_t x = i + 1; x != 1; x = steps[x & 1](x))
            lengths[i]++;
    }
    qsort(lengths, 3000, sizeof lengths[0], compare);
    for (int i = 0; i < 3000; i++)
        sum = sum * 31 + lengths[i];
    return sum;
}

int main(void) {
    signal(SIGTERM, on_term);
    guard();
    puts("ready");
    fflush(stdout);
    uint64_t expected = work();
    int wrong = 0;
    for (int round = 0; !over; round++) {
        wrong += work() != expected;
        if (round % 8 == 0) {
            int status = 1;
            pid_t child = fork();
            if (child == 0)
                _exit(work() == expected ? 3 : 4);
            while (waitpid(child, &status, 0) < 0) {
            }
            wrong += WEXITSTATUS(status) != 3;
        }
    }
    printf("wrong %d\n", wrong);
    return 0;
}
