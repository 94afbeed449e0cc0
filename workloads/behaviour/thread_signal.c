/* Signals to one thread of several: pthread_kill reaches the named one, with its own mask and alternate stack. */
#include "common.h"
#include <pthread.h>

enum { COUNT = 4 };

static pthread_barrier_t barrier;
static __thread volatile sig_atomic_t mine;
static int counts[COUNT], on_stack[COUNT];

static __thread char *stack_memory;

static void count(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    char here;
    mine += &here >= stack_memory && &here < stack_memory + (1 << 16) ? 11 : 1;
}

static void *work(void *argument)
{
    int number = *(int *)argument;
    stack_memory = malloc(1 << 16);
    stack_t alternate = {.ss_sp = stack_memory, .ss_size = 1 << 16};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    pthread_barrier_wait(&barrier); /* the signals are sent now */
    pthread_barrier_wait(&barrier);
    CHECK(mine == 0);
    if (number != 2)
        CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    counts[number] = mine / 11;
    on_stack[number] = mine % 11 == 0;
    return NULL;
}

int main(void)
{
    pthread_t threads[COUNT];
    int numbers[COUNT];
    handle(SIGUSR1, count, SA_ONSTACK);
    CHECK(pthread_barrier_init(&barrier, NULL, COUNT + 1) == 0);
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    pthread_barrier_wait(&barrier);
    CHECK(pthread_kill(threads[1], SIGUSR1) == 0);
    CHECK(pthread_kill(threads[2], SIGUSR1) == 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < COUNT; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("handled %d %d %d %d, main %d\n", counts[0], counts[1], counts[2], counts[3], mine);
    return !(on_stack[0] && on_stack[1] && on_stack[2] && on_stack[3]);
}
