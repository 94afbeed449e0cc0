/* System calls without the C library's wrappers: results, errors, and the registers that must survive. */
#include "common.h"
#include <sys/syscall.h>

static long raw(long number, long first, long second, long third)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
    return result;
}

int main(void)
{
    CHECK(raw(SYS_getpid, 0, 0, 0) == getpid());
    CHECK(raw(SYS_gettid, 0, 0, 0) == getpid());
    CHECK(raw(SYS_close, -1, 0, 0) == -EBADF);
    CHECK(raw(100000, 0, 0, 0) == -ENOSYS);
    /* rcx is the return address and r11 the flags afterwards; everything else is as before. */
    unsigned long after, flags, expected, kept;
    __asm__ volatile("movl $39, %%eax\n\t"
                     "movq $0x1234567, %%r9\n\t"
                     "cmpl %%eax, %%eax\n\t"
                     "syscall\n"
                     "1:\tmovq %%rcx, %0\n\t"
                     "movq %%r11, %1\n\t"
                     "movq %%r9, %3\n\t"
                     "leaq 1b(%%rip), %2"
                     : "=&r"(after), "=&r"(flags), "=&r"(expected), "=&r"(kept)
                     :
                     : "rax", "rcx", "r9", "r11", "cc", "memory");
    printf("rcx %s, zero flag %lu, trap flag %lu, r9 %lx\n", after == expected ? "right" : "wrong", flags >> 6 & 1,
           flags >> 8 & 1, kept);
    raw(SYS_write, 1, (long)"written\n", 8); /* before stdio's buffer */
    return 0;
}
