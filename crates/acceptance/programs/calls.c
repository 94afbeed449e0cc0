// Threads read from a pipe and poll it while a timer interrupts any of them. ROUNDS bytes for each of four readers; a
// second argument makes the interrupted calls restart.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int ends[2], rounds;
static unsigned long sum, interrupted;

static void nothing(int signal) {
    (void)signal;
}

static void expect_interruption(void) {
    if (errno != EINTR)
        abort();
    __atomic_add_fetch(&interrupted, 1, __ATOMIC_RELAXED);
}

static void *reads(void *argument) {
    struct pollfd poller = {ends[0], POLLIN, 0};
    for (int i = 0; i < rounds;) {
        unsigned char byte;
        if (i % 2 && poll(&poller, 1, 1000) < 0) {
            expect_interruption();
            continue;
        }
        if (read(ends[0], &byte, 1) == 1) {
            __atomic_add_fetch(&sum, byte, __ATOMIC_RELAXED);
            i++;
        } else {
            expect_interruption();
        }
    }
    return argument;
}

static void rest(void) {
    struct timespec left = {0, 3000000};
    while (nanosleep(&left, &left) < 0)
        expect_interruption();
}

int main(int count, char **words) {
    rounds = atoi(words[1]);
    if (pipe(ends))
        return 1;
    struct sigaction action = {.sa_handler = nothing, .sa_flags = count > 2 ? SA_RESTART : 0};
    sigaction(SIGALRM, &action, NULL);
    pthread_t ids[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&ids[i], NULL, reads, NULL);
    struct itimerval timer = {{0, 900}, {0, 900}};
    setitimer(ITIMER_REAL, &timer, NULL);
    unsigned long expected = 0;
    for (int i = 0; i < 4 * rounds; i++) {
        unsigned char byte = (unsigned char)i;
        expected += byte;
        while (write(ends[1], &byte, 1) != 1)
            expect_interruption();
        if (i % 50 == 0)
            rest();
    }
    for (int i = 0; i < 4; i++)
        pthread_join(ids[i], NULL);
    timer = (struct itimerval){0};
    setitimer(ITIMER_REAL, &timer, NULL);
    printf("%d %d\n", sum == expected, interrupted > 0);
    return 0;
}
