// Changes a function that is in writable memory from the beginning, and calls it, again and again, until SIGTERM.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static volatile sig_atomic_t over;

static void on_term(int signal) {
    (void)signal;
    over = 1;
}

int main(void) {
    signal(SIGTERM, on_term);
    // mov eax, constant; ret
    unsigned char *code =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\xb8\0\0\0\0\xc3", 6);
    uint32_t (*function)(void) = (uint32_t (*)(void))code;
    puts("ready");
    fflush(stdout);
    uint32_t count = 0, wrong = 0;
    while (!over) {
        memcpy(code + 1, &count, sizeof count);
        for (int i = 0; i < 100; i++)
            wrong += function() != count;
        count++;
    }
    printf("wrong %u\n", wrong);
    return 0;
}
