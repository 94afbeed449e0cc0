/* THREADS threads, the first of them included, go round a short loop ROUNDS times each: many instructions in a small trace. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

static void *spin(void *rounds)
{
    volatile uint64_t result;
    uint64_t value = 1;
    for (uint64_t i = 0; i < (uint64_t)(uintptr_t)rounds; i++) {
        value = value * 3 + i;
        if (value & 1)
            value ^= 5;
    }
    result = value;
    (void)result;
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int others = atoi(argv[1]) - 1;
    void *rounds = (void *)(uintptr_t)strtoull(argv[2], NULL, 0);
    pthread_t threads[64];
    if (others < 0 || others > 64)
        return 2;
    for (int i = 0; i < others; i++)
        if (pthread_create(&threads[i], NULL, spin, rounds) != 0)
            return 1;
    spin(rounds);
    for (int i = 0; i < others; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
