// Goes round in code at the very end of readable memory.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int is_over;

static void end(int signal) {
    is_over = signal;
}

int main(void) {
    signal(SIGTERM, end);
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    // 1: cmp dword ptr [rdi], 0; je 1b; ret
    static const char code[] = "\x83\x3f\x00\x74\xfb\xc3";
    char *start = memcpy(pages + 4096 - 6, code, 6);
    mprotect(pages, 4096, PROT_READ | PROT_EXEC);
    puts("ready");
    fflush(stdout);
    ((void (*)(volatile int *))start)(&is_over);
    printf("signal %d\n", is_over);
}
