/* Alignment checks (the AC flag): calls, loops and aligned accesses work, a misaligned one raises SIGBUS, whose handler turns the
   checks off. */
#include "common.h"
#include <ucontext.h>

static unsigned long memory[8];
static volatile sig_atomic_t faults;

static void turn_off(int number, siginfo_t *information, void *context)
{
    faults += number == SIGBUS && information->si_code == BUS_ADRALN;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(1L << 18);
}

int main(void)
{
    handle(SIGBUS, turn_off, 0);
    unsigned long sum = 0, flags = 0;
    __asm__ volatile(
        "pushfq; orq $0x40000, (%%rsp); popfq\n"
        "mov $1000, %%ecx\n"
        "1: mov %%rcx, (%2); add %%rcx, 8(%2); mov 8(%2), %%rax; xadd %%rax, 16(%2)\n"
        "call 3f; push %%rax; pop %%rdx; mov %%dl, 25(%2); mov %%edx, 28(%2)\n"
        "dec %%ecx; jnz 1b\n"
        "mov 16(%2), %0; pushfq; pop %1\n"
        "mov 33(%2), %%rax\n" /* off from here on */
        "mov 35(%2), %%rax; jmp 2f\n"
        "3: testb $1, %%al; jz 4f; inc %0; 4: ret\n"
        "2:"
        : "+&r"(sum), "=&r"(flags)
        : "r"(memory)
        : "rax", "rcx", "rdx", "memory", "cc");
    printf("sum %lu, checks %lu, faults %d\n", sum, flags >> 18 & 1, faults);
    return 0;
}
