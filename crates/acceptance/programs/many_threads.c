// Two hundred threads at once.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 200 };
static pthread_barrier_t barrier;

static void *work(void *argument) {
    long n = (long)argument, sum = 0;
    pthread_barrier_wait(&barrier);
    for (long i = 0; i < 1000; i++) {
        char *block = malloc(i % 64 + 1);
        block[0] = (char)i;
        sum += block[0] ^ n;
        free(block);
    }
    return (void *)sum;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)n))
            return 1;
    long total = 0;
    for (long n = 0; n < THREADS; n++) {
        void *sum;
        pthread_join(threads[n], &sum);
        total += (long)sum;
    }
    printf("%ld\n", total);
    return 0;
}
