/* Sixty-four threads at once, started within milliseconds, under one mutex and one barrier. */
#include "common.h"
#include <pthread.h>

enum { COUNT = 64 };

static pthread_barrier_t barrier;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned sum, rounds[COUNT];

static void *work(void *argument)
{
    unsigned number = *(unsigned *)argument;
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < 100; i++) {
        pthread_mutex_lock(&mutex);
        sum += number;
        pthread_mutex_unlock(&mutex);
    }
    pthread_barrier_wait(&barrier);
    rounds[number] = sum;
    return NULL;
}

int main(void)
{
    pthread_t threads[COUNT];
    unsigned numbers[COUNT];
    CHECK(pthread_barrier_init(&barrier, NULL, COUNT) == 0);
    for (unsigned i = 0; i < COUNT; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (unsigned i = 0; i < COUNT; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK(rounds[i] == sum);
    printf("threads %d sum %u\n", COUNT, sum);
    return 0;
}
