// The same piece of work again and again, until SIGTERM; prints how many microseconds of processor time each took.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static volatile sig_atomic_t over;

static void on_term(int signal) {
    (void)signal;
    over = 1;
}

static uint64_t work(void) {
    static uint32_t table[4096];
    uint64_t x = 88172645463325252ull;
    memset(table, 0, sizeof table);
    for (int i = 0; i < 3000000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (x & 1)
            table[x >> 52] += (uint32_t)x;
        else
            table[x >> 52] ^= table[(x >> 40) & 4095];
    }
    uint64_t sum = 0;
    for (int i = 0; i < 4096; i++)
        sum = sum * 31 + table[i];
    return sum;
}

int main(void) {
    signal(SIGTERM, on_term);
    setvbuf(stdout, NULL, _IOLBF, 0);
    uint64_t expected = work();
    while (!over) {
        struct timespec start, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        if (work() != expected)
            return 1;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        printf("%ld\n", (end.tv_sec - start.tv_sec) * 1000000 + (end.tv_nsec - start.tv_nsec) / 1000);
    }
    return 0;
}
