// Eight threads write code, run it, write it anew in the same place; now and then they map a page for it and unmap it again.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int rounds;
static long bad;
typedef int (*function)(void);

// mov eax, value; ret
static void put(unsigned char *code, int value) {
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
}

static void expect(unsigned char *code, int value) {
    if (((function)code)() != value)
        __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
}

static unsigned char *map(int protection) {
    return mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *work(void *argument) {
    int n = (int)(long)argument;
    unsigned char *page = map(PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int i = 0; i < rounds; i++) {
        unsigned char *place = page + 64 * (i % 8);
        put(place, n * 1000 + i);
        expect(place, n * 1000 + i);
        if (i % 10 == 0) {
            unsigned char *other = map(PROT_READ | PROT_WRITE);
            put(other, i);
            mprotect(other, 4096, PROT_READ | PROT_EXEC);
            expect(other, i);
            munmap(other, 4096);
        }
    }
    munmap(page, 4096);
    return NULL;
}

int main(int count, char **words) {
    rounds = count > 1 ? atoi(words[1]) : 1;
    pthread_t ids[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(ids[i], NULL);
    printf("bad %ld\n", bad);
    return 0;
}
