/* Two threads race on one word, with plain loads, stores and arithmetic and without any order between them. Every value that
   a thread loads is used and what comes of it is stored in memory of its own, so that the recorded accesses of one
   thread can be checked against each other: what was stored must follow from what was loaded.

   race [THOUSANDS [THREADS]]: about THOUSANDS thousand instructions in all. The memory is always at the same place. */
#include "common.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#define SHARED 0x1000000000
#define LOGS 0x1000100000 /* a page for each thread */
#define INSTRUCTIONS_PER_ROUND 1100
#define THREADS_MAX 8

__asm__(".include \"race_rounds.inc\"");
void race_rounds(void *shared, void *own, uint64_t rounds, uint64_t seed);

static pthread_barrier_t barrier;
static uint64_t rounds;

static void *map(uint64_t address, size_t length)
{
    void *place = mmap((void *)address, length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(place == (void *)address);
    return place;
}

static void *racer(void *number)
{
    uintptr_t thread = (uintptr_t)number;
    pthread_barrier_wait(&barrier);
    race_rounds((void *)SHARED, (void *)(LOGS + 4096 * thread), rounds, 0x9e3779b97f4a7c15 * (thread + 1));
    return NULL;
}

static unsigned long argument(int count, char **arguments, int number, unsigned long otherwise, unsigned long most)
{
    if (number >= count)
        return otherwise;
    char *end;
    unsigned long value = strtoul(arguments[number], &end, 10);
    if (*end || end == arguments[number] || value < 1 || value > most) {
        fprintf(stderr, "usage: race [THOUSANDS [THREADS]], with up to %d threads\n", THREADS_MAX);
        exit(2);
    }
    return value;
}

int main(int count, char **arguments)
{
    unsigned long thousands = argument(count, arguments, 1, 10000, 1000000000);
    unsigned long threads = argument(count, arguments, 2, 2, THREADS_MAX);
    pthread_t racers[THREADS_MAX];
    rounds = thousands * 1000 / INSTRUCTIONS_PER_ROUND / threads;
    map(SHARED, 4096);
    map(LOGS, 4096 * THREADS_MAX);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (uintptr_t thread = 0; thread < threads; thread++)
        CHECK(pthread_create(&racers[thread], NULL, racer, (void *)thread) == 0);
    for (uintptr_t thread = 0; thread < threads; thread++)
        CHECK(pthread_join(racers[thread], NULL) == 0);
    printf("race: %lu threads, %lu rounds each\n", threads, (unsigned long)rounds);
    return 0;
}
