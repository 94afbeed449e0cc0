/* AVX and AVX2: the upper halves of the vector registers live on across calls, indirect jumps and system calls. A processor
   without them gets the same results from plain code. */
#include "common.h"
#include <immintrin.h>

static void __attribute__((noinline)) nothing(void)
{
    __asm__ volatile("");
}

static void (*volatile pointer)(void) = nothing;

__attribute__((target("avx2"))) static unsigned with_avx2(void)
{
    unsigned lanes[8], total = 0;
    __asm__ volatile("vpcmpeqd %%ymm7, %%ymm7, %%ymm7\n\t"
                     "vpsrld $31, %%ymm7, %%ymm7\n\t" /* eight ones */
                     "vpxor %%ymm6, %%ymm6, %%ymm6\n\t"
                     "movl $100, %%r12d\n"
                     "1:\tvpaddd %%ymm7, %%ymm6, %%ymm6\n\t"
                     "leaq 2f(%%rip), %%rax\n\t"
                     "jmp *%%rax\n"
                     "2:\tmovl $39, %%eax\n\t"
                     "syscall\n\t"
                     "decl %%r12d\n\t"
                     "jnz 1b\n\t"
                     "vmovdqu %%ymm6, %0\n\t"
                     "vzeroupper"
                     : "=m"(lanes)
                     :
                     : "rax", "rcx", "r11", "r12", "xmm6", "xmm7", "cc", "memory");
    for (int i = 0; i < 8; i++)
        total += lanes[i] * (unsigned)(i + 1);
    return total;
}

static unsigned plain(void)
{
    unsigned total = 0;
    for (unsigned i = 1; i <= 8; i++)
        total += 100 * i;
    return total;
}

int main(void)
{
    pointer();
    unsigned total = __builtin_cpu_supports("avx2") ? with_avx2() : plain();
    pointer();
    char text[300], copy[300]; /* the C library's own vector code */
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    memcpy(copy, text, sizeof text);
    printf("total %u length %zu compare %d\n", total, strlen(copy), strcmp(text, copy));
    return 0;
}
