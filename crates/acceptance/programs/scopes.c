/* Enters functions and loops, and counts itself how often: for each function its calls, for each
   loop how often it was entered and its iterations. Every loop is a do-while with a barrier at its
   beginning, so that a compiler with an option not to unroll keeps it as it is. Calls that must not
   become jumps are followed by a barrier. */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTION __attribute__((noinline, noclone, noipa))
#define BARRIER __asm__ volatile("" ::: "memory")

enum { NEST, INNER, RECURSIVE, COUNTDOWN, SWITCH, JUMPED, HANDLED, COMPARED, TAILED, LOOPS };
static const char *const names[] = {"nest",   "nest",   "recursive", "recursive", "interpret",
                                    "thrown", "handle", "compare",   "tail"};
static volatile long entered[LOOPS], iterations[LOOPS];
static volatile long calls[16];
static jmp_buf back;
/* A compiler must not know how often a loop goes round. */
static volatile int twice = 2, thrice = 3, five_times = 5, ten_times = 10;

#define ENTER(loop) (entered[loop]++)
#define ITERATE(loop) (iterations[loop]++)

FUNCTION void nest(int rows, int columns) {
    calls[0]++;
    int i = 0;
    ENTER(NEST);
    do {
        BARRIER;
        ITERATE(NEST);
        int j = 0;
        ENTER(INNER);
        do {
            BARRIER;
            ITERATE(INNER);
        } while (++j < columns + i);
    } while (++i < rows);
}

/* Calls itself from inside of its loop. */
FUNCTION void recursive(int depth) {
    calls[1]++;
    int i = 0;
    ENTER(RECURSIVE);
    do {
        BARRIER;
        ITERATE(RECURSIVE);
        if (depth > 0) {
            recursive(depth - 1);
            BARRIER;
        }
    } while (++i < thrice);
    int left = depth;
    if (left > 0) {
        ENTER(COUNTDOWN);
        do {
            BARRIER;
            ITERATE(COUNTDOWN);
        } while (--left > 0);
    }
}

/* A loop around a jump table. */
FUNCTION int interpret(const char *code) {
    calls[2]++;
    int sum = 0;
    ENTER(SWITCH);
    do {
        BARRIER;
        ITERATE(SWITCH);
        switch (*code) {
        case 'a': sum += 1; break;
        case 'b': sum *= 3; break;
        case 'c': sum -= 7; break;
        case 'd': sum ^= 9; break;
        case 'e': sum <<= 1; break;
        case 'f': sum |= 64; break;
        case 'g': sum = ~sum; break;
        default: break;
        }
    } while (*++code);
    return sum;
}

FUNCTION void leap(int depth) {
    calls[3]++;
    if (depth == 0)
        longjmp(back, 1);
    leap(depth - 1);
    BARRIER;
}

/* Its loop is continued by longjmp out of calls. */
FUNCTION void thrown(void) {
    calls[4]++;
    volatile int i = 0;
    ENTER(JUMPED);
    do {
        BARRIER;
        ITERATE(JUMPED);
        if (setjmp(back) == 0)
            leap(4);
    } while (++i < ten_times);
}

FUNCTION void handle(int signal) {
    (void)signal;
    calls[5]++;
    int i = 0;
    ENTER(HANDLED);
    do {
        BARRIER;
        ITERATE(HANDLED);
    } while (++i < five_times);
}

/* Called from the C library, which is in between. */
FUNCTION int compare(const void *a, const void *b) {
    calls[6]++;
    int i = 0;
    ENTER(COMPARED);
    do {
        BARRIER;
        ITERATE(COMPARED);
    } while (++i < twice);
    return *(const int *)a - *(const int *)b;
}

FUNCTION int tail(int n) {
    calls[7]++;
    ENTER(TAILED);
    do {
        BARRIER;
        ITERATE(TAILED);
    } while (--n > 0);
    return n;
}

FUNCTION int caller_of_tail(int n) {
    calls[8]++;
    return tail(n + 1);
}

static const char *const functions[] = {"nest",   "recursive", "interpret", "leap",          "thrown",
                                        "handle", "compare",   "tail",      "caller_of_tail"};

int main(void) {
    int numbers[] = {5, 3, 9, 1, 7, 2, 8};
    nest(6, 4);
    nest(2, 1);
    recursive(3);
    interpret("abcdefghgfedcba");
    thrown();
    signal(SIGUSR1, handle);
    raise(SIGUSR1);
    raise(SIGUSR1);
    qsort(numbers, 7, sizeof numbers[0], compare);
    caller_of_tail(3);
    caller_of_tail(1);
    tail(2);
    for (int i = 0; i < 9; i++)
        printf("function %s %ld\n", functions[i], calls[i]);
    for (int i = 0; i < LOOPS; i++)
        printf("loop %s %ld %ld\n", names[i], entered[i], iterations[i]);
    return 0;
}
