/* Each thread locks and unlocks a mutex of its own: uncontended locks.
   mutexes THREADS [SIZE]: SIZE thousand times in all. */
#include "common.h"

struct counter {
    pthread_mutex_t lock;
    long count;
    char room[128];
};

static struct counter *counters;
static long total;

static void work(int number)
{
    struct counter *own = &counters[number];
    struct range range = share(total, number);
    for (long i = range.begin; i < range.end; i++) {
        pthread_mutex_lock(&own->lock);
        own->count++;
        pthread_mutex_unlock(&own->lock);
    }
}

int main(int argc, char **argv)
{
    long size = parse_arguments(argc, argv, (struct size_rule){"thousands of locks", 4000, 1, 1000000000});
    total = 1000 * size;
    counters = allocate((size_t)thread_count, sizeof *counters);
    for (int i = 0; i < thread_count; i++)
        pthread_mutex_init(&counters[i].lock, NULL);
    run_threads(work);
    long sum = 0;
    for (int i = 0; i < thread_count; i++)
        sum += counters[i].count;
    printf("mutexes: %ld locked, %s\n", total, sum == total ? "counts agree" : "COUNTS DIFFER");
    return sum != total;
}
