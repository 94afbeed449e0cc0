// Waits, and then: "exec" replaces itself by a program, "vfork" has a child that shares its memory for a while, "thread" goes on
// without its first thread, "end" ends. Computes all the while.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t sum;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void compute(double seconds) {
    for (double end = now() + seconds; now() < end;) {
        uint64_t x = 1;
        for (int i = 0; i < 10000; i++)
            x = x * 6364136223846793005ull + 1442695040888963407ull;
        if (sum != 0 && sum != x)
            exit(1);
        sum = x;
    }
}

static void *go_on(void *argument) {
    compute(2.5);
    puts("alone");
    exit(0);
    return argument;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, go_on, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(what, "vfork")) {
        compute(0.3);
        if (vfork() == 0) {
            usleep(1500000);
            _exit(7);
        }
        int status = 0;
        wait(&status);
        compute(1);
        printf("child %d\n", WEXITSTATUS(status));
        return 0;
    }
    compute(1);
    if (!strcmp(what, "exec"))
        execl("/bin/sh", "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo replaced", NULL);
    puts("end");
    return 5;
}
