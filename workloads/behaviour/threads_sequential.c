/* Threads that run one after the other: each is joined before the next starts.
 *
 * A thread sleeps before it ends, so that the first one surely waits for it by then: whether it has to decides the path
 * through pthread_join, and that shall be the same in every run.
 */
#include "common.h"
#include <pthread.h>

static unsigned total;

static void *work(void *argument)
{
    unsigned rounds = *(unsigned *)argument;
    for (unsigned i = 1; i <= rounds; i++)
        total += i;
    usleep(150000);
    return argument;
}

int main(void)
{
    for (unsigned i = 1; i <= 3; i++) {
        unsigned rounds = i * 100;
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, work, &rounds) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == &rounds);
    }
    printf("total %u\n", total);
    return 0;
}
