// A library is loaded, used and unloaded ROUNDS times while other threads run.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int stop;

static void *spin(void *argument) {
    unsigned long n = 1;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        n = n * 3 + 1;
    return argument;
}

static double call(const char *name, double argument) {
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        puts(dlerror());
        exit(1);
    }
    double (*function)(double) = (double (*)(double))dlsym(library, name);
    double result = function(argument);
    dlclose(library);
    return result;
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 2;
    pthread_t ids[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&ids[i], NULL, spin, NULL);
    double sum = 0;
    for (int i = 0; i < rounds; i++)
        sum += i % 2 ? call("cbrt", 27) : call("tgamma", 4);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++)
        pthread_join(ids[i], NULL);
    printf("%.1f\n", sum / rounds);
    return 0;
}
