// Says that it is ready, computes for SECONDS in THREADS further threads too, under a timer, and says whether all came out
// right. With a third argument it handles SIGTERM.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static unsigned expected;
static volatile sig_atomic_t ticks;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static void term(int signal) {
    (void)signal;
    _exit(write(1, "term\n", 5) == 5 ? 33 : 34);
}

static unsigned compute(void) {
    unsigned n = 27, sum = 0;
    for (int i = 0; i < 2000; i++) {
        n = n % 3 == 0 ? n / 3 : n * 2 + 1;
        sum += n;
    }
    return sum;
}

static void *work(void *argument) {
    unsigned long rounds = 0, wrong = 0;
    for (double end = now() + seconds; now() < end;) {
        wrong += compute() != expected;
        if (++rounds % 64 == 0) {
            struct timespec moment = {0, 100000};
            nanosleep(&moment, NULL);
            free(malloc(rounds));
        }
    }
    (void)argument;
    return (void *)(rounds > 0 && wrong == 0 ? 0L : 1L);
}

int main(int count, char **words) {
    seconds = atof(words[1]);
    int threads = atoi(words[2]);
    expected = compute();
    if (count > 3)
        signal(SIGTERM, term);
    signal(SIGALRM, tick);
    ualarm(5000, 5000);
    puts("ready");
    fflush(stdout);
    pthread_t ids[64];
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    long sum = (long)work(NULL);
    for (int i = 0; i < threads; i++) {
        void *wrong;
        pthread_join(ids[i], &wrong);
        sum += (long)wrong;
    }
    ualarm(0, 0);
    printf("wrong %ld, ticks %d\n", sum, ticks > 10);
    return 12;
}
