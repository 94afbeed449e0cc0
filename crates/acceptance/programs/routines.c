// Routines that call each other, for recordings of some of them: MODE [PLUGIN].
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUTINE __attribute__((noinline, noclone)) long

static jmp_buf escape;
static volatile sig_atomic_t handled;

ROUTINE leaf(long x) {
    long sum = 0;
    for (long i = 0; i < x; i++)
        sum += i * x ^ sum >> 3;
    return sum;
}

ROUTINE helper(long x) {
    return leaf(x) + leaf(x + 1);
}

// Calls itself, from two places, and what others call too.
ROUTINE chosen(long x) {
    long sum = helper(x);
    if (x > 3)
        sum += chosen(x - 1);
    if (x % 4 == 1)
        sum ^= chosen(x / 2);
    return sum + leaf(3);
}

ROUTINE chosen_too(long x) {
    char text[32];
    snprintf(text, sizeof text, "%ld", x);
    return (long)strlen(text) + helper(x);
}

// The chosen ones end by a jump out of them.
ROUTINE chosen_jumper(long x) {
    if (helper(x) % 3 == 0)
        longjmp(escape, 1);
    return chosen(x % 5);
}

ROUTINE catcher(long x) {
    volatile long sum = leaf(2);
    if (setjmp(escape) == 0)
        sum += chosen_jumper(x);
    else
        sum += leaf(4);
    return sum + leaf(5);
}

static void handler(int signal) {
    handled += (int)leaf(signal % 7);
}

ROUTINE chosen_raiser(long x) {
    raise(SIGUSR1);
    return helper(x % 6) + handled;
}

ROUTINE plain(long rounds) {
    long sum = 0;
    for (long i = 0; i < rounds; i++) {
        sum += helper(i % 7);
        sum += chosen(i % 9);
        sum ^= chosen_too(i);
    }
    return sum;
}

ROUTINE jumps(long rounds) {
    long sum = 0;
    for (long i = 0; i < rounds; i++)
        sum += catcher(i % 11) + helper(i % 3);
    return sum;
}

ROUTINE signals(long rounds) {
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    long sum = 0;
    for (long i = 0; i < rounds; i++) {
        sum += chosen_raiser(i);
        raise(SIGUSR1);
        sum += leaf(i % 5);
    }
    return sum;
}

static void *work(void *rounds) {
    return (void *)plain((long)rounds);
}

ROUTINE threads(long rounds) {
    pthread_t thread[4];
    long sum = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, work, (void *)(rounds + i));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(thread[i], &result);
        sum += (long)result;
    }
    return sum;
}

ROUTINE library(long rounds, const char *path) {
    long sum = 0;
    for (int load = 0; load < 2; load++) {
        void *plugin = dlopen(path, RTLD_NOW);
        if (!plugin) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        long (*routine)(long, long (*)(long)) = (long (*)(long, long (*)(long)))dlsym(plugin, "plugged");
        for (long i = 0; i < rounds; i++)
            sum += routine(i % 6, helper) + leaf(i % 4);
        dlclose(plugin);
    }
    return sum;
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "plain";
    long rounds = count > 2 ? atol(words[2]) : 60;
    long sum = 0;
    if (!strcmp(mode, "plain"))
        sum = plain(rounds);
    else if (!strcmp(mode, "jumps"))
        sum = jumps(rounds);
    else if (!strcmp(mode, "signals"))
        sum = signals(rounds);
    else if (!strcmp(mode, "threads"))
        sum = threads(rounds);
    else if (!strcmp(mode, "library") && count > 3)
        sum = library(rounds, words[3]);
    printf("%ld\n", sum);
    return 0;
}
