/* All threads lock and unlock one mutex, and do a little inside and outside.
   mutex THREADS [SIZE]: SIZE thousand times in all. */
#include "common.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long count;
static uint64_t mixed;
static long total;

static void work(int number)
{
    struct range range = share(total, number);
    uint64_t state = 0;
    for (long i = range.begin; i < range.end; i++) {
        uint64_t bits = random_bits((uint64_t)i);
        state ^= bits;
        pthread_mutex_lock(&lock);
        count++;
        mixed ^= bits;
        pthread_mutex_unlock(&lock);
    }
    __asm__ volatile("" : : "r"(state));
}

int main(int argc, char **argv)
{
    long size = parse_arguments(argc, argv, (struct size_rule){"thousands of locks", 2000, 1, 1000000000});
    total = 1000 * size;
    run_threads(work);
    printf("mutex: %ld locked, mixed %016lx, %s\n", total, mixed, count == total ? "counts agree" : "COUNTS DIFFER");
    return count != total;
}
