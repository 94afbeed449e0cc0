/* One narrow window of the engine per mode, each of which was once left open. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long ticks;

static void tick(int signal)
{
    (void)signal;
    ticks++;
}

static void start_timer(int microseconds)
{
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &interval, NULL);
}

static unsigned char *map_code(size_t length)
{
    unsigned char *code = mmap(NULL, length, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED)
        exit(1);
    return code;
}

/* mov eax, 1; ret */
static const unsigned char RETURN_ONE[] = {0xb8, 1, 0, 0, 0, 0xc3};

static long call(const unsigned char *code) { return ((int (*)(void))code)(); }

/* Signals that wait while a system call begins. */
static long system_calls(void)
{
    start_timer(50);
    for (long i = 0; i < 300000; i++)
        syscall(SYS_getppid);
    return 0;
}

/* Code that stores beside itself: inc dword [code + 0x100]; mov eax, [code + 0x100]; ret */
static long store_beside_code(void)
{
    static const unsigned char text[] = {0xff, 0x05, 0xfa, 0, 0, 0, 0x8b, 0x05, 0xf4, 0, 0, 0, 0xc3};
    unsigned char *code = map_code(4096);
    memcpy(code, text, sizeof text);
    long last = 0;
    for (int i = 0; i < 300; i++)
        last = call(code);
    return last - 300;
}

/* A child that changes code which its parent has executed. */
static long fork_and_change(void)
{
    unsigned char *code = map_code(4096);
    memcpy(code, RETURN_ONE, sizeof RETURN_ONE);
    long bad = call(code) != 1;
    pid_t child = fork();
    if (child == 0) {
        code[1] = 2;
        _exit((int)call(code));
    }
    int status;
    waitpid(child, &status, 0);
    return bad + (status != 2 << 8);
}

/* Signals while an exec is being prepared that fails. */
static long failing_execs(void)
{
    char *words[] = {(char *)"none", NULL};
    long bad = 0;
    start_timer(300);
    for (int i = 0; i < 100; i++) {
        execv("/nonexistent/program", words);
        bad += errno != ENOENT;
    }
    return bad;
}

/* Code on the stack, which is executable from the start (linked with -z execstack). */
__attribute__((noinline)) static int apply(int (*function)(int), int x) { return function(x); }
__attribute__((noinline)) static int times(int k)
{
    int inner(int x) { return x * k; }
    return apply(inner, 3);
}
__attribute__((noinline)) static int minus(int k)
{
    int inner(int x) { return x - k; }
    return apply(inner, 100);
}
static long code_on_the_stack(void)
{
    long bad = 0;
    for (int i = 0; i < 50; i++)
        bad += times(i) != 3 * i || minus(i) != 100 - i;
    return bad;
}

/* A signal right behind a loop instruction. */
static long loop_instruction(void)
{
    long bad = 0;
    start_timer(100);
    for (int i = 0; i < 50; i++) {
        long count = 0, left = 1000000;
        __asm__ volatile("1: inc %0\n\tloop 1b" : "+r"(count), "+c"(left));
        bad += count != 1000000;
    }
    return bad;
}

/* Signals while mappings change. */
static long mappings(void)
{
    enum { LENGTH = 1 << 21 };
    unsigned char *code = map_code(LENGTH);
    long bad = 0;
    start_timer(60);
    for (int i = 0; i < 2000; i++) {
        mprotect(code, LENGTH, PROT_READ | PROT_WRITE);
        memset(code, i, 1 << 14);
        mprotect(code, LENGTH, PROT_READ | PROT_WRITE | PROT_EXEC);
        memcpy(code, RETURN_ONE, sizeof RETURN_ONE);
        bad += call(code) != 1;
        code[1] = 2;
        bad += call(code) != 2;
    }
    return bad;
}

/* Old system calls at a fixed address. */
static long fixed_address(void)
{
    long (*time_at)(long *) = (long (*)(long *))0xffffffffff600400;
    return time_at(NULL) < 1000000000;
}

int main(int count, char **words)
{
    static long (*const modes[])(void) = {system_calls,  store_beside_code, fork_and_change, failing_execs,
                                          code_on_the_stack, loop_instruction,  mappings,        fixed_address};
    int mode = count > 1 ? atoi(words[1]) : 0;
    printf("bad %ld\n", modes[mode & 7]());
    return 0;
}
