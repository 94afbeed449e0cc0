// Threads that wait, sleep and compute.
#include "stop.h"
#include <pthread.h>
#include <time.h>

static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void work(long kind) {
    pthread_barrier_wait(&barrier);
    if (kind == 0) pthread_mutex_lock(&mutex);
    if (kind == 1) sleep(1000);
    if (kind == 2) {
        struct timespec time;
        for (;;) sink += clock_gettime(CLOCK_MONOTONIC, &time);
    }
    if (kind == 3) for (;;) sink++;
    pause();
}

__attribute__((noinline)) static long deeper(long kind, int depth) {
    if (depth == 0) work(kind); else deeper(kind, depth - 1);
    return sink + kind;
}

static void *run(void *kind) {
    return (void *)deeper((long)kind, 3 + (int)(long)kind);
}

int main(void) {
    pthread_t threads[6];
    pthread_barrier_init(&barrier, NULL, 7);
    pthread_mutex_lock(&mutex);
    for (long i = 0; i < 6; i++) pthread_create(&threads[i], NULL, run, (void *)i);
    pthread_barrier_wait(&barrier);
    usleep(100000);
    stop_here();
    return 0;
}
