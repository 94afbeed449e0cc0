/* Radix sort of SIZE thousand keys of 32 bits, eight bits at a time. Each thread counts its share, the counts become
 * positions, each thread moves its share.
 */
#include "common.h"

enum { DIGITS = 256, PASSES = 4 };

static long count;
static uint32_t *keys, *moved;
static long (*positions)[DIGITS]; /* of each thread */

/* Turns the counts of all threads into the places where each begins to write. */
static void place(void)
{
    long next = 0;
    for (int digit = 0; digit < DIGITS; digit++)
        for (int thread = 0; thread < thread_count; thread++) {
            long here = positions[thread][digit];
            positions[thread][digit] = next;
            next += here;
        }
}

static void work(int thread)
{
    struct range mine = share(count, thread);
    for (long i = mine.begin; i < mine.end; i++)
        keys[i] = (uint32_t)random_bits((uint64_t)i);
    barrier();
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t *from = pass % 2 == 0 ? keys : moved;
        uint32_t *to = pass % 2 == 0 ? moved : keys;
        memset(positions[thread], 0, sizeof positions[thread]);
        for (long i = mine.begin; i < mine.end; i++)
            positions[thread][from[i] >> (8 * pass) & 0xff]++;
        barrier();
        if (thread == 0)
            place();
        barrier();
        for (long i = mine.begin; i < mine.end; i++)
            to[positions[thread][from[i] >> (8 * pass) & 0xff]++] = from[i];
        barrier();
    }
}

int main(int argc, char **argv)
{
    count = 1000 * parse_arguments(argc, argv, (struct size_rule){"thousands of keys", 20000, 1, 100000});
    keys = allocate((size_t)count, sizeof *keys);
    moved = allocate((size_t)count, sizeof *moved);
    positions = allocate((size_t)thread_count, sizeof *positions);
    run_threads(work);
    uint64_t sum = 0, wanted = 0, weighted = 0;
    int sorted = 1;
    for (long i = 0; i < count; i++) {
        sorted &= i == 0 || keys[i - 1] <= keys[i];
        sum += keys[i];
        weighted += keys[i] * (uint64_t)(i + 1);
        wanted += (uint32_t)random_bits((uint64_t)i);
    }
    sorted &= sum == wanted;
    printf("radix: %ld keys, weighted sum %016llx, %s\n", count, (unsigned long long)weighted, sorted ? "sorted" : "WRONG");
    return sorted ? 0 : 1;
}
