/* setjmp and longjmp over many frames, out of a callback, again and again; coroutines by makecontext and swapcontext. */
#include "common.h"
#include <setjmp.h>
#include <ucontext.h>

static jmp_buf back;

static int dive(int depth, int value)
{
    volatile char room[64];
    room[depth & 63] = value;
    if (depth == 0 && value > 0)
        longjmp(back, value);
    return depth == 0 ? 0 : dive(depth - 1, value) + room[0];
}

static int compare(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    if (a == 77 || b == 77)
        longjmp(back, 78);
    return a - b;
}

static ucontext_t main_context, coroutines[3];
static char stacks[3][32768];
static char order[64];

static void coroutine(int number, int steps)
{
    for (int i = 0; i < steps; i++) {
        char text[] = {'a' + number, '0' + i, 0};
        strcat(order, text);
        CHECK(swapcontext(&coroutines[number], &coroutines[(number + 1) % 3]) == 0);
    }
}

static void start_coroutines(void)
{
    for (volatile int i = 0; i < 3; i++) {
        CHECK(getcontext(&coroutines[i]) == 0);
        coroutines[i].uc_stack.ss_sp = stacks[i];
        coroutines[i].uc_stack.ss_size = sizeof stacks[i];
        coroutines[i].uc_link = &main_context;
        makecontext(&coroutines[i], (void (*)(void))coroutine, 2, i, 3);
    }
    CHECK(swapcontext(&main_context, &coroutines[0]) == 0);
}

int main(void)
{
    volatile int sum = 0;
    for (volatile int i = 1; i <= 100; i++) {
        int value = setjmp(back);
        if (value == 0)
            dive(i % 17, i);
        sum += value;
    }
    int numbers[] = {5, 3, 77, 1};
    int value = setjmp(back);
    if (value == 0)
        qsort(numbers, 4, sizeof *numbers, compare);
    printf("sum %d, callback %d\n", sum, value);
    start_coroutines();
    printf("order %s\n", order);
    return 0;
}
