/* Threads that are cancelled: in a system call that waits, in one that is about to, in a loop (asynchronously), while it is disabled;
   with clean-up handlers, which run in order. */
#include "common.h"
#include <pthread.h>
#include <semaphore.h>

static sem_t ready, asked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static char order[64];
static int at;

static void note(void *text)
{
    order[at++] = *(char *)text;
}

static void unlock(void *mutex)
{
    pthread_mutex_unlock(mutex);
}

static void *in_read(void *argument)
{
    (void)argument;
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    pthread_cleanup_push(note, "1");
    pthread_cleanup_push(note, "2");
    sem_post(&ready);
    CHECK(read(ends[0], &byte, 1) == 0);
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_wait(void *argument)
{
    pthread_mutex_lock(&lock);
    pthread_cleanup_push(unlock, &lock);
    pthread_cleanup_push(note, "3");
    sem_post(&ready);
    while (1)
        pthread_cond_wait(&condition, &lock);
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return argument;
}

static void *in_a_loop(void *argument)
{
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    pthread_cleanup_push(note, "4");
    sem_post(&ready);
    for (volatile unsigned long i = 0;; i++)
        ;
    pthread_cleanup_pop(0);
    return argument;
}

static void *while_disabled(void *argument)
{
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
    sem_post(&ready);
    while (sem_wait(&asked) != 0)
        ;
    note("5");
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
    pthread_testcancel();
    note("x");
    return argument;
}

int main(void)
{
    void *(*bodies[])(void *) = {in_read, in_wait, in_a_loop, while_disabled};
    int cancelled = 0;
    CHECK(sem_init(&ready, 0, 0) == 0 && sem_init(&asked, 0, 0) == 0);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            pthread_t thread;
            void *result;
            CHECK(pthread_create(&thread, NULL, bodies[i], NULL) == 0);
            while (sem_wait(&ready) != 0)
                ;
            if (round == 2)
                usleep(1000);
            CHECK(pthread_cancel(thread) == 0);
            if (bodies[i] == while_disabled)
                sem_post(&asked);
            CHECK(pthread_join(thread, &result) == 0);
            cancelled += result == PTHREAD_CANCELED;
        }
    CHECK(pthread_mutex_lock(&lock) == 0);
    printf("cancelled %d, order %s\n", cancelled, order);
    return 0;
}
