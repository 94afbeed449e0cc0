// Four threads take turns, in whatever order they get the lock, ROUNDS times each; each turn calls the next of eight functions, so
// that the order of turns can be seen in the order of calls. Prints where the functions are.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned turn;
static int rounds;

#define FUNCTION(n)                                                                                                            \
    __attribute__((noinline)) static void function##n(void) {                                                                  \
        __asm__ volatile("# %0" : : "i"(n));                                                                                   \
    }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4) FUNCTION(5) FUNCTION(6) FUNCTION(7)

static void (*volatile functions[8])(void) = {function0, function1, function2, function3,
                                              function4, function5, function6, function7};

static void *work(void *argument) {
    for (int i = 0; i < rounds; i++) {
        pthread_mutex_lock(&lock);
        functions[turn++ % 8]();
        pthread_mutex_unlock(&lock);
        for (volatile int rest = 0; rest < i % 50; rest++)
            ;
    }
    return argument;
}

int main(int count, char **words) {
    rounds = count > 1 ? atoi(words[1]) : 1;
    pthread_t ids[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < 8; i++)
        printf("%lx\n", (unsigned long)functions[i]);
    return turn == 4u * rounds ? 0 : 1;
}
