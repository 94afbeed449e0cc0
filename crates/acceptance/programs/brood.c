// Many short threads: each adds its number and ends. At most sixteen are alive at a time.
// Argument: how many.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long sum;

static void *add(void *number)
{
    __atomic_fetch_add(&sum, (unsigned long)number, __ATOMIC_RELAXED);
    return NULL;
}

int main(int argc, char **argv)
{
    enum { ALIVE = 16 };
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 0) : 1000;
    pthread_t threads[ALIVE];
    for (unsigned long i = 0; i < count; i++) {
        if (i >= ALIVE)
            pthread_join(threads[i % ALIVE], NULL);
        int error = pthread_create(&threads[i % ALIVE], NULL, add, (void *)i);
        if (error) {
            printf("thread %lu: error %d\n", i, error);
            return 1;
        }
    }
    for (unsigned long i = 0; i < ALIVE && i < count; i++)
        pthread_join(threads[i], NULL);
    printf("%lu threads, sum %lu\n", count, sum);
    return 0;
}
