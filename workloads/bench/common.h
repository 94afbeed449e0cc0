/* What the single-threaded benchmark programs share: NAME [SIZE], random numbers, a hash of the result. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SIZE, or `usual` without one. */
static inline long parse_size(int argc, char **argv, const char *meaning, long usual, long greatest)
{
    char *end = NULL;
    errno = 0;
    long size = argc == 2 ? strtol(argv[1], &end, 10) : usual;
    if (argc > 2 || (argc == 2 && (errno != 0 || end == argv[1] || *end != '\0')) || size < 1 || size > greatest) {
        fprintf(stderr, "usage: %s [SIZE]\nSIZE: %s, 1 to %ld, usually %ld\n", argv[0], meaning, greatest, usual);
        exit(2);
    }
    return size;
}

static inline void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

/* A well-mixed sequence (xorshift with a multiplication); `state` must not be zero. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

#endif
