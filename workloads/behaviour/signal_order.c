/* Real-time signals arrive in the order in which they were queued, each once, while the thread makes system calls, copies
   strings and changes its mask. */
#include "common.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { COUNT = 30000, NUMBERS = 3 };

static volatile int next[NUMBERS], wrong;
static volatile int sent;
static pthread_t receiver;

static void take(int number, siginfo_t *information, void *context)
{
    (void)context;
    volatile int *expected = &next[number - SIGRTMIN];
    wrong += information->si_value.sival_int != *expected || information->si_code != SI_QUEUE;
    *expected = information->si_value.sival_int + 1;
}

static void *send(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < COUNT; i++) {
        union sigval value = {.sival_int = i / NUMBERS};
        int number = SIGRTMIN + i % NUMBERS;
        /* The last number goes to the process. */
        while ((i % NUMBERS == 2 ? sigqueue(getpid(), number, value) : pthread_sigqueue(receiver, number, value)) != 0)
            usleep(100);
    }
    sent = 1;
    return unused;
}

int main(void)
{
    static char from[512], to[512];
    pthread_t sender;
    receiver = pthread_self();
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < NUMBERS; i++) {
        CHECK(sigaction(SIGRTMIN + i, &action, NULL) == 0);
        sigaddset(&set, SIGRTMIN + i);
    }
    CHECK(pthread_create(&sender, NULL, send, NULL) == 0);
    while (!sent) {
        unsigned long length = sizeof to;
        char *source = from, *destination = to;
        __asm__ volatile("rep movsb" : "+S"(source), "+D"(destination), "+c"(length) : : "memory");
        syscall(SYS_getppid);
        sigset_t before;
        CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
        int seen = next[0] + next[1] + next[2];
        syscall(SYS_getppid);
        wrong += seen != next[0] + next[1] + next[2];
        CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    }
    CHECK(pthread_join(sender, NULL) == 0);
    printf("taken %d %d %d, wrong %d\n", next[0], next[1], next[2], wrong);
    return wrong != 0;
}
