/* Signals that an instruction causes: SIGFPE by a division, SIGILL by ud2, SIGTRAP by int3, SIGBUS behind the end of a file,
   SIGSEGV by a non-canonical address and by a jump to nowhere. The handler sees the instruction's address and jumps on. */
#include "common.h"
#include <sys/mman.h>
#include <ucontext.h>

static volatile unsigned long resume_at, fault_at;

static void skip(int number, siginfo_t *information, void *context)
{
    (void)information;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    fault_at = registers[REG_RIP];
    registers[REG_RIP] = resume_at;
    registers[REG_RAX] = number;
}

/* Runs `instruction` with `input` in rdx and prints the signal that it caused, and how far behind the start of the
   instruction the handler found the program (-1: at address 0, where the jump went). */
#define PROVOKE(instruction, input)                                                                                    \
    ({                                                                                                                 \
        unsigned long at, result;                                                                                      \
        __asm__ volatile("leaq 2f(%%rip), %%rax\n\t"                                                                   \
                         "movq %%rax, %[resume]\n\t"                                                                   \
                         "leaq 1f(%%rip), %[at]\n\t"                                                                   \
                         "xorl %%eax, %%eax\n"                                                                         \
                         "1:\t" instruction "\n"                                                                       \
                         "2:\n\t"                                                                                      \
                         : [at] "=&r"(at), "=&a"(result), [resume] "=m"(resume_at)                                     \
                         : "d"(input)                                                                                  \
                         : "memory", "cc", "rcx");                                                                     \
        printf("signal %lu offset %ld\n", result, fault_at == 0 ? -1 : (long)(fault_at - at));                           \
    })

int main(void)
{
    static const int numbers[] = {SIGFPE, SIGILL, SIGTRAP, SIGBUS, SIGSEGV};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        handle(numbers[i], skip, 0);
    int file = memfd_create("empty", 0);
    CHECK(file >= 0);
    char *empty = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(empty != MAP_FAILED);
    PROVOKE("divq %%rdx", 0UL);
    PROVOKE("ud2", 0UL);
    PROVOKE("int3", 0UL);
    PROVOKE("movb (%%rdx), %%al", empty);
    PROVOKE("movq (%%rdx), %%rax", 0x8000000000000000UL);
    PROVOKE("jmp *%%rdx", 0UL);
    return 0;
}
