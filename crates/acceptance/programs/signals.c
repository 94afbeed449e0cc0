// Sixty-four threads compute the same thing over and over, ROUNDS times, under many signals: from a timer, from the
// main thread, from themselves. Handlers nest and run on alternate stacks.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { THREADS = 64 };
static pthread_t ids[THREADS];
static int rounds, done;
static unsigned long handled, bad;
static __thread char stack[65536];

static void is_bad(int wrong) {
    if (wrong)
        __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
}

static void handler(int signal, siginfo_t *info, void *context) {
    char local;
    double half = signal * 0.5;
    unsigned words[16];
    for (int i = 0; i < 16; i++)
        words[i] = i * signal + (unsigned)half;
    is_bad(words[15] != 15u * signal + signal / 2 || info->si_signo != signal || !context);
    is_bad(signal == SIGUSR2 && (&local < stack || &local >= stack + sizeof stack));
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
}

static unsigned long compute(unsigned seed) {
    unsigned long hash = seed;
    double x = seed;
    char buffer[256];
    for (int i = 0; i < 400; i++) {
        hash = hash * 6364136223846793005ul + 1442695040888963407ul;
        x = x * 1.0001 + 0.5;
        memset(buffer, (int)hash, sizeof buffer);
        hash ^= buffer[hash % 256];
        if (hash % 7 == 0)
            hash ^= (unsigned long)x;
        switch (hash % 5) {
        case 0: hash += 3; break;
        case 1: hash ^= 9; break;
        case 3: hash -= 5; break;
        }
    }
    return hash;
}

static void *work(void *argument) {
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    unsigned seed = (unsigned)(long)argument;
    unsigned long expected = compute(seed);
    for (int i = 0; i < rounds; i++) {
        is_bad(compute(seed) != expected);
        if (i % 16 == 0)
            raise(i % 32 ? SIGUSR1 : SIGUSR2);
    }
    // The stack goes away with the thread.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    alternate.ss_flags = SS_DISABLE;
    sigaltstack(&alternate, NULL);
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) <= THREADS)
        usleep(500);
    return NULL;
}

int main(int count, char **words) {
    rounds = count > 1 ? atoi(words[1]) : 1;
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    action.sa_flags |= SA_ONSTACK | SA_NODEFER;
    sigaction(SIGUSR2, &action, NULL);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (unsigned i = 0; __atomic_load_n(&done, __ATOMIC_RELAXED) < THREADS; i++) {
        pthread_kill(ids[i % THREADS], SIGUSR1);
        if (i % 8 == 0)
            usleep(200);
    }
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    printf("bad %lu, many %d\n", bad, handled > 64ul * (rounds / 16));
    return 0;
}
