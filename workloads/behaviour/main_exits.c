/* The main thread returns while others run, wait and sleep: the process ends at once, with main's status. */
#include "common.h"
#include <pthread.h>

static pthread_barrier_t barrier;

static void *spin(void *argument)
{
    pthread_barrier_wait(&barrier);
    for (;;)
        __asm__ volatile("pause");
    return argument;
}

static void *sleeper(void *argument)
{
    pthread_barrier_wait(&barrier);
    for (;;)
        pause();
    return argument;
}

int main(void)
{
    pthread_t thread;
    CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
    CHECK(pthread_create(&thread, NULL, spin, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    pthread_barrier_wait(&barrier);
    say("leaving\n");
    return 3;
}
