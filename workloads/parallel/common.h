/* What the parallel programs share: arguments, threads, a barrier, shares of a range, random numbers, the printed result.
 *
 * Every program is called as NAME THREADS [SIZE] and prints one line that depends on SIZE alone: sums are formed in a fixed
 * order, or of integers. No program looks at a clock.
 */
#ifndef PARALLEL_COMMON_H
#define PARALLEL_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024 };

static int thread_count;
static pthread_barrier_t the_barrier;

/* What one program takes as SIZE. */
struct size_rule {
    const char *meaning;
    long usual, least, greatest;
};

static inline _Noreturn void fail(const char *program, const char *problem)
{
    fprintf(stderr, "%s: %s\n", program, problem);
    exit(2);
}

static inline long parse_number(const char *program, const char *what, const char *text, long least, long greatest)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > greatest) {
        fprintf(stderr, "%s: %s must be a number from %ld to %ld, not '%s'\n", program, what, least, greatest, text);
        exit(2);
    }
    return value;
}

/* Sets thread_count and returns SIZE. */
static inline long parse_arguments(int argc, char **argv, struct size_rule rule)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s THREADS [SIZE]\nSIZE: %s, %ld to %ld, usually %ld\n", argv[0], rule.meaning, rule.least,
                rule.greatest, rule.usual);
        exit(2);
    }
    thread_count = (int)parse_number(argv[0], "THREADS", argv[1], 1, THREADS_MAX);
    return argc == 3 ? parse_number(argv[0], "SIZE", argv[2], rule.least, rule.greatest) : rule.usual;
}

static inline void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL)
        fail("workload", "out of memory");
    return memory;
}

/* All threads meet here. */
static inline void barrier(void)
{
    pthread_barrier_wait(&the_barrier);
}

struct worker {
    pthread_t thread;
    int number;
    void (*work)(int number);
};

static inline void *start_worker(void *argument)
{
    struct worker *worker = argument;
    worker->work(worker->number);
    return NULL;
}

/* Runs work(0) ... work(thread_count - 1), each on a thread of its own, the first on the caller's. */
static inline void run_threads(void (*work)(int number))
{
    struct worker *workers = allocate((size_t)thread_count, sizeof *workers);
    if (pthread_barrier_init(&the_barrier, NULL, (unsigned)thread_count) != 0)
        fail("workload", "cannot make a barrier");
    for (int i = 1; i < thread_count; i++) {
        workers[i] = (struct worker){.number = i, .work = work};
        if (pthread_create(&workers[i].thread, NULL, start_worker, &workers[i]) != 0)
            fail("workload", "cannot start a thread");
    }
    work(0);
    for (int i = 1; i < thread_count; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&the_barrier);
    free(workers);
}

struct range {
    long begin, end;
};

/* The share of thread `number` in 0 ... total - 1. */
static inline struct range share(long total, int number)
{
    return (struct range){total * number / thread_count, total * (number + 1) / thread_count};
}

/* A well-mixed function of `index`: the same number for every caller, in whatever order. */
static inline uint64_t random_bits(uint64_t index)
{
    uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

/* From 0 up to but not 1. */
static inline double random_unit(uint64_t index)
{
    return (double)(random_bits(index) >> 11) * 0x1p-53;
}

/* Adds `value` to a running FNV-1a hash, byte by byte. */
static inline uint64_t hash_word(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
    return hash;
}

static const uint64_t HASH_START = 0xcbf29ce484222325u;

#endif
