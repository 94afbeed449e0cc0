// Threads that live for a moment: ROUNDS times eight that are joined, one detached, and now and then one that is cancelled.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long sum, cleaned, detached;

static void clean(void *argument) {
    (void)argument;
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED);
}

static void *brief(void *argument) {
    __atomic_add_fetch(&sum, (long)argument, __ATOMIC_RELAXED);
    return NULL;
}

static void *alone(void *argument) {
    __atomic_add_fetch(&detached, 1, __ATOMIC_RELEASE);
    return argument;
}

static void *waits(void *argument) {
    pthread_cleanup_push(clean, NULL);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return argument;
}

static void cancel_one(void) {
    pthread_t id;
    if (pthread_create(&id, NULL, waits, NULL))
        exit(3);
    pthread_cancel(id);
    pthread_join(id, NULL);
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 1;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < rounds; i++) {
        pthread_t ids[8], other;
        for (long n = 0; n < 8; n++)
            if (pthread_create(&ids[n], NULL, brief, (void *)n))
                return 1;
        if (pthread_create(&other, &attributes, alone, NULL))
            return 2;
        if (i % 8 == 0)
            cancel_one();
        for (int n = 0; n < 8; n++)
            pthread_join(ids[n], NULL);
    }
    while (__atomic_load_n(&detached, __ATOMIC_ACQUIRE) < rounds)
        usleep(100);
    // A thread may be cancelled before it has pushed its cleanup.
    printf("%d %d\n", sum == 28L * rounds, cleaned <= (rounds + 7) / 8);
    return 0;
}
