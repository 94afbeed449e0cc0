/* Transactional memory: a transaction may always abort, and goes on at its fallback as if nothing had happened. Outside of one, xtest says
   so, xabort does nothing and xend faults. */
#include "common.h"
#include <cpuid.h>
#include <ucontext.h>

static long total;

/* One transaction; the fallback does the same without. The status says why, and has its upper half clear. */
__attribute__((noinline)) static void add(long value)
{
    unsigned long status = ~0UL, kept = value;
    __asm__ volatile("mov $-1, %%rax\n"
                     "stc\n"
                     "xbegin 1f\n"
                     "add %2, %1\n"
                     "xend\n"
                     "jmp 2f\n"
                     "1: jnc 3f\n"
                     "mov %%rax, %0\n"
                     "add %2, %1\n"
                     "3:\n"
                     "2:\n"
                     : "+r"(status), "+m"(total)
                     : "r"(kept)
                     : "rax", "memory", "cc");
    CHECK(status == ~0UL || status >> 32 == 0);
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    (void)signal_number;
    user->uc_mcontext.gregs[REG_RIP] += 3;
    user->uc_mcontext.gregs[REG_RAX] = info->si_code;
}

int main(void)
{
    unsigned eax, ebx = 0, ecx, edx;
    unsigned char inside = 0;
    long code = 0x80;
    handle(SIGSEGV, on_fault, 0);
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & 1 << 11) {
        for (long i = 0; i < 1000; i++)
            add(i);
        __asm__ volatile("xtest\nsetnz %0" : "=r"(inside) : : "cc");
        __asm__ volatile("xabort $5" : : : "memory");
        __asm__ volatile("xor %%eax, %%eax\nxend" : "=a"(code) : : "cc");
    } else {
        total = 999 * 500;
    }
    printf("total %ld, inside %d, code %lx\n", total, inside, code);
    return 0;
}
