// Stops the process, so that its threads can be looked at.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

__attribute__((noinline)) static void stop_here(void) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    kill(getpid(), SIGSTOP);
    __asm__ volatile("");
}

static volatile int sink;
