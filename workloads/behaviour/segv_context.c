/* Faults whose handler changes the context: rip moves past the instruction, a register gets the value that a load should
   have brought, or the cause is removed and the instruction is tried again. */
#include "common.h"
#include <sys/mman.h>
#include <ucontext.h>

static char *page;
static volatile sig_atomic_t faults;

static void repair(int number, siginfo_t *information, void *context)
{
    (void)number;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    faults++;
    if (information->si_addr == NULL) {
        registers[REG_RAX] = 4242; /* as if the load had succeeded */
        registers[REG_RIP] += 3;   /* its length */
    } else if (information->si_addr == page) {
        CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0); /* try again */
    } else {
        CHECK(0);
    }
}

int main(void)
{
    handle(SIGSEGV, repair, 0);
    unsigned long value;
    for (int i = 0; i < 3; i++) {
        /* mov rax, [rdx] with rdx = 0: three bytes */
        __asm__ volatile(".byte 0x48, 0x8b, 0x02" : "=a"(value) : "d"(0UL), "a"(7UL) : "memory");
        CHECK(value == 4242);
    }
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    *(volatile char *)page = 'p';
    printf("faults %d value %lu page %c\n", faults, value, *page);
    return 0;
}
