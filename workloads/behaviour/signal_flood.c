/* More signals than can be handled: two threads send SIGSEGV, SIGTRAP, SIGBUS, SIGFPE, SIGILL, SIGSYS and SIGUSR1 to a third
   without waiting. What cannot be handled at once is pending, and one of a number is enough. With an argument, the third
   makes no system calls meanwhile. */
#include "common.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { COUNT = 60000, SENDERS = 2 };

static const int numbers[] = {SIGSEGV, SIGTRAP, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGUSR1};
enum { KINDS = sizeof numbers / sizeof numbers[0] };

static volatile unsigned counts[65];
static volatile int done;
static pthread_t receiver;

static void count(int number, siginfo_t *information, void *context)
{
    (void)context;
    CHECK(information->si_code == SI_TKILL);
    counts[number]++;
}

static void *send(void *unused)
{
    for (int i = 0; i < COUNT; i++)
        CHECK(pthread_kill(receiver, numbers[i % KINDS]) == 0);
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t senders[SENDERS];
    (void)argv;
    receiver = pthread_self();
    for (int i = 0; i < KINDS; i++)
        handle(numbers[i], count, 0);
    for (int i = 0; i < SENDERS; i++)
        CHECK(pthread_create(&senders[i], NULL, send, NULL) == 0);
    while (done < SENDERS) {
        struct sigaction action;
        if (argc > 1)
            continue;
        CHECK(sigaction(SIGSEGV, NULL, &action) == 0);
        syscall(SYS_getppid);
    }
    for (int i = 0; i < SENDERS; i++)
        CHECK(pthread_join(senders[i], NULL) == 0);
    for (int i = 0; i < KINDS; i++)
        CHECK(counts[numbers[i]] > 0 && counts[numbers[i]] <= SENDERS * (COUNT / KINDS + 1));
    say("flooded\n");
    return 0;
}
