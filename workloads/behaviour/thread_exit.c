/* Threads that end by pthread_exit, deep inside, with cleanup handlers and thread-specific data; then the main thread does so
   too, and the program goes on until the last thread returns. */
#include "common.h"
#include <pthread.h>

static pthread_key_t key;
static pthread_t main_thread;

/* Through a pointer, so that the compiler does not know that it never returns. */
static void (*volatile leave_by)(void *) = pthread_exit;

static void cleanup(void *text)
{
    say(text);
}

static void __attribute__((noinline)) deeper(int depth)
{
    if (depth > 0)
        deeper(depth - 1);
    else
        leave_by((void *)42);
    say("not reached\n");
}

static void *leave(void *argument)
{
    (void)argument;
    pthread_setspecific(key, "data\n");
    pthread_cleanup_push(cleanup, "cleanup\n");
    deeper(5);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *last(void *argument)
{
    (void)argument;
    CHECK(pthread_join(main_thread, NULL) == 0);
    say("main has ended\n");
    exit(7);
}

int main(void)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_key_create(&key, cleanup) == 0);
    CHECK(pthread_create(&thread, NULL, leave, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == (void *)42);
    main_thread = pthread_self();
    CHECK(pthread_create(&thread, NULL, last, NULL) == 0);
    pthread_exit(NULL);
}
