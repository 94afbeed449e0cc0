/* Signals that faults raise, sent instead: a second thread sends SIGSEGV, SIGTRAP and SIGBUS in turn to a thread that calls
   sigaction in a loop. Each arrives once, with the sender's information. */
#include "common.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

enum { COUNT = 20000 };

static const int numbers[] = {SIGSEGV, SIGTRAP, SIGBUS};
static volatile int arrived, wrong, done;
static pthread_t receiver;
static sem_t answer;

static void count(int number, siginfo_t *information, void *context)
{
    (void)context;
    wrong += number != numbers[arrived % 3] || information->si_code != SI_TKILL || information->si_pid != getpid();
    arrived++;
    sem_post(&answer);
}

static void *send(void *unused)
{
    for (int i = 0; i < COUNT; i++) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 30;
        CHECK(pthread_kill(receiver, numbers[i % 3]) == 0);
        if (sem_timedwait(&answer, &limit) != 0)
            break; /* lost for good */
    }
    done = 1;
    return unused;
}

int main(void)
{
    pthread_t sender;
    receiver = pthread_self();
    CHECK(sem_init(&answer, 0, 0) == 0);
    for (int i = 0; i < 3; i++)
        handle(numbers[i], count, 0);
    CHECK(pthread_create(&sender, NULL, send, NULL) == 0);
    while (!done) {
        struct sigaction action;
        for (int i = 0; i < 3; i++) {
            CHECK(sigaction(numbers[i], NULL, &action) == 0);
            CHECK(sigaction(numbers[i], &action, NULL) == 0);
        }
    }
    CHECK(pthread_join(sender, NULL) == 0);
    printf("arrived %d, wrong %d\n", arrived, wrong);
    return arrived != COUNT || wrong != 0;
}
