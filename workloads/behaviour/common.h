/* What the behaviour programs in C share: a check that ends the program with a message, and printing from handlers. */
#ifndef BEHAVIOUR_COMMON_H
#define BEHAVIOUR_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the program with status 99 and says where, unless `condition` holds. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));                       \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)

/* Prints without stdio, so that handlers may use it and the order with other writers is plain. */
static inline void say(const char *text)
{
    ssize_t written = write(1, text, strlen(text));
    (void)written;
}

/* Installs a handler with flags and an empty mask. */
static inline void handle(int signal_number, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(signal_number, &action, NULL) == 0);
}

#endif
