// Threads allocate, check and free blocks until SIGUSR2 comes. Usage: allocators THREADS.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int goes_on = 1;

static void stop(int signal) {
    (void)signal;
    goes_on = 0;
}

__attribute__((noinline)) static int churn(unsigned *seed) {
    unsigned char *blocks[16];
    for (int i = 0; i < 16; i++) {
        size_t size = rand_r(seed) % 500 + 1;
        blocks[i] = malloc(size);
        memset(blocks[i], i, size);
        blocks[i][0] = i;
    }
    int good = 1;
    for (int i = 0; i < 16; i++) {
        good &= blocks[i][0] == i;
        free(blocks[i]);
    }
    return good;
}

__attribute__((noinline)) static void *worker(void *argument) {
    unsigned seed = (unsigned)(long)argument;
    long good = 1;
    while (goes_on) {
        good &= churn(&seed);
        // Others need the processor, too.
        usleep(500);
    }
    return (void *)good;
}

int main(int count, char **arguments) {
    (void)count;
    int threads = atoi(arguments[1]);
    signal(SIGUSR2, stop);
    pthread_t others[64];
    for (long i = 0; i < threads; i++)
        pthread_create(&others[i], 0, worker, (void *)i);
    long good = 1;
    for (int i = 0; i < threads; i++) {
        void *result;
        pthread_join(others[i], &result);
        good &= (long)result;
    }
    if (good)
        printf("%d threads have kept their blocks\n", threads);
    return !good;
}
