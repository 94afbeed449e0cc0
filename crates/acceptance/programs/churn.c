// Generates functions for as long as it runs, as a just-in-time compiler does: a fresh one every 64
// bytes of a writable and executable buffer, each called once, round and round.
// Arguments: the number of functions; optionally a number of threads, each with a buffer of its own;
// optionally "spin": one more thread goes round in a loop without system calls meanwhile.
// Its own memory does not grow: it ends with an error if, behind the first quarter, the process has
// taken more than 64 MiB.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BUFFER = 1 << 20, STRIDE = 64 };

static uint64_t count;
static const long GROWTH_MAX = 64 << 10;

// KiB of memory that is the process's own.
static long memory(void)
{
    long size = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %ld", &size);
    if (status)
        fclose(status);
    return size;
}
static volatile int done;

// mov rax, value; inc eax; ret
static void generate(unsigned char *at, uint64_t value)
{
    at[0] = 0x48;
    at[1] = 0xb8;
    memcpy(at + 2, &value, sizeof value);
    at[10] = 0xff;
    at[11] = 0xc0;
    at[12] = 0xc3;
}

static void *churn(void *unused)
{
    unsigned char *buffer =
        mmap(NULL, BUFFER, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return (void *)1;
    uint64_t wrong = 0;
    long before = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (i == count / 4)
            before = memory();
        unsigned char *at = buffer + i * STRIDE % BUFFER;
        generate(at, i & 0x7fffffff);
        wrong += ((uint64_t(*)(void))at)() != (i & 0x7fffffff) + 1;
    }
    long grown = memory() - before;
    if (grown > GROWTH_MAX) {
        fprintf(stderr, "the process has grown by %ld KiB\n", grown);
        wrong++;
    }
    munmap(buffer, BUFFER);
    return (void *)wrong;
}

static void *spin(void *unused)
{
    uint64_t turns = 0;
    while (!done)
        turns++;
    return (void *)turns;
}

int main(int argc, char **argv)
{
    count = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t spinner, thread[64];
    int spins = argc > 3 && strcmp(argv[3], "spin") == 0;
    if (spins)
        pthread_create(&spinner, NULL, spin, NULL);
    for (int i = 1; i < threads && i < 64; i++)
        pthread_create(&thread[i], NULL, churn, NULL);
    uint64_t wrong = (uint64_t)churn(NULL);
    for (int i = 1; i < threads && i < 64; i++) {
        void *result;
        pthread_join(thread[i], &result);
        wrong += (uint64_t)result;
    }
    if (spins) {
        done = 1;
        pthread_join(spinner, NULL);
    }
    printf("%llu functions per thread, %llu wrong\n", (unsigned long long)count, (unsigned long long)wrong);
    return wrong != 0;
}
