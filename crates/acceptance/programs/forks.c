// Six threads fork, vfork and spawn at once, ROUNDS times each, and look at the statuses.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int rounds;
static long bad, good;

static void expect(pid_t child, int code) {
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == code) {
        __atomic_add_fetch(&good, 1, __ATOMIC_RELAXED);
    } else {
        __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
        fprintf(stderr, "child %d: status %x instead of code %d\n", child, status, code);
    }
}

static void compute_and_exit(int code) {
    volatile long n = 0;
    for (int i = 0; i < 1000; i++)
        n += i;
    _exit(n == 499500 ? code : 255);
}

static pid_t shell(int way, char **words) {
    pid_t child = -1;
    switch (way) {
    case 0:
        if (posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ))
            abort();
        return child;
    case 1:
        child = vfork();
        break;
    default:
        child = fork();
    }
    if (child == 0) {
        execv("/bin/sh", words);
        _exit(254);
    }
    return child;
}

static void *work(void *argument) {
    for (int i = 0; i < rounds; i++) {
        int code = (int)(long)argument * 20 + i % 20;
        pid_t child = fork();
        if (child == 0)
            compute_and_exit(code);
        expect(child, code);
        char text[16];
        snprintf(text, sizeof text, "exit %d", code);
        char *words[] = {"sh", "-c", text, NULL};
        expect(shell(i % 3, words), code);
    }
    return NULL;
}

int main(int count, char **words) {
    rounds = count > 1 ? atoi(words[1]) : 1;
    pthread_t ids[6];
    for (long i = 0; i < 6; i++)
        pthread_create(&ids[i], NULL, work, (void *)i);
    for (int i = 0; i < 6; i++)
        pthread_join(ids[i], NULL);
    printf("bad %ld good %d\n", bad, good == 12L * rounds);
    return 0;
}
