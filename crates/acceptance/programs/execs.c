// Replaces itself COUNT times, by its first thread or by another one, every third time while threads run and signals come.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static int left;
static char *self;

static void nothing(int signal) {
    (void)signal;
}

static void *spin(void *argument) {
    for (volatile long i = 0;; i++)
        if (i % 100000 == 0)
            usleep(10);
    return argument;
}

static void *again(void *argument) {
    char text[16];
    snprintf(text, sizeof text, "%d", left - 1);
    execl(self, self, text, (char *)NULL);
    perror("exec");
    _exit(1);
    return argument;
}

static void set_timer(int microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

int main(int count, char **words) {
    self = words[0];
    left = count > 1 ? atoi(words[1]) : 0;
    if (left == 0) {
        puts("last image");
        return 0;
    }
    pthread_t id;
    if (left % 3 == 0) {
        signal(SIGALRM, nothing);
        set_timer(500);
        for (int i = 0; i < 4; i++)
            pthread_create(&id, NULL, spin, NULL);
        usleep(2000);
        // The next image has no handler.
        set_timer(0);
    }
    if (left % 2 == 0) {
        pthread_create(&id, NULL, again, NULL);
        for (;;)
            pause();
    }
    again(NULL);
    return 1;
}
