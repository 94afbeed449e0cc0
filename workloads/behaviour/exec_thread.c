/* Exec by a thread that is not the first, while others run: it becomes the only one, under the process's number. */
#include "common.h"
#include <pthread.h>

static char *self;

static void *spin(void *argument)
{
    for (;;)
        __asm__ volatile("pause");
    return argument;
}

static void *replace(void *argument)
{
    char *again[] = {self, argument, NULL};
    execv("/proc/self/exe", again);
    return NULL;
}

int main(int argc, char **argv)
{
    char number[32];
    if (argc == 2) {
        snprintf(number, sizeof number, "%d", (int)getpid());
        say(strcmp(number, argv[1]) == 0 ? "same process\n" : "other process\n");
        return 0;
    }
    self = argv[0];
    snprintf(number, sizeof number, "%d", (int)getpid());
    pthread_t spinner, replacer;
    CHECK(pthread_create(&spinner, NULL, spin, NULL) == 0);
    CHECK(pthread_create(&replacer, NULL, replace, number) == 0);
    CHECK(pthread_join(replacer, NULL) == 0);
    return 1;
}
