// A timer interrupts qsort wherever it is, and its handler leaves by siglongjmp, COUNT times.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

// Few enough for qsort not to allocate, which a jump must not leave in the middle.
enum { NUMBERS = 200 };
static int numbers[NUMBERS];
static sigjmp_buf out;
static volatile sig_atomic_t armed, jumps;

static void handler(int signal) {
    (void)signal;
    if (armed) {
        armed = 0;
        jumps++;
        siglongjmp(out, 1);
    }
}

static int compare(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static void sort(void) {
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = (int)(i * 7919u % 503u);
    qsort(numbers, NUMBERS, sizeof *numbers, compare);
}

int main(int count, char **words) {
    int wanted = count > 1 ? atoi(words[1]) : 1;
    signal(SIGALRM, handler);
    struct itimerval timer = {{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &timer, NULL);
    while (jumps < wanted) {
        if (sigsetjmp(out, 1) == 0) {
            armed = 1;
            for (;;)
                sort();
        }
    }
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    sort();
    for (int i = 1; i < NUMBERS; i++)
        if (numbers[i - 1] > numbers[i])
            return 1;
    puts("sorted");
    return 0;
}
