/* Signals to the process while its threads come and go: whichever thread takes one, none is lost, and none is taken twice. */
#include "common.h"
#include <pthread.h>

enum { COUNT = 6000 };

static volatile int taken, sum, sent;

static void take(int number, siginfo_t *information, void *context)
{
    (void)number, (void)context;
    __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&sum, information->si_value.sival_int, __ATOMIC_SEQ_CST);
}

static void *brief(void *unused)
{
    return unused;
}

static void *send(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < COUNT; i++)
        while (sigqueue(getpid(), SIGRTMIN + i % 5, (union sigval){.sival_int = i}) != 0)
            usleep(100);
    sent = 1;
    return unused;
}

int main(void)
{
    for (int i = 0; i < 5; i++)
        handle(SIGRTMIN + i, take, SA_RESTART);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send, NULL) == 0);
    /* Only the threads that live for a moment take signals. */
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setsigmask_np(&attributes, &none) == 0);
    while (!sent || taken < COUNT) {
        static int rounds;
        pthread_t thread;
        CHECK(pthread_create(&thread, &attributes, brief, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        if (sent && ++rounds > 3000)
            break; /* lost */
    }
    CHECK(pthread_join(sender, NULL) == 0);
    printf("taken %d sum %d\n", taken, sum);
    return taken != COUNT;
}
