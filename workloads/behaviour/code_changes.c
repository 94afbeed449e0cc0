/* Code that changes: written into a mapping and called, overwritten in place and called again, protected, unmapped and something
   else mapped at the same address. */
#include "common.h"
#include <sys/mman.h>

typedef int (*function)(void);

/* mov eax, value; ret */
static void write_function(unsigned char *code, int value)
{
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
}

int main(void)
{
    int total = 0;
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
    for (int i = 1; i <= 10; i++) { /* written and executed in turn */
        write_function(code, i);
        total += ((function)code)();
    }
    printf("in place %d\n", total);
    write_function(code, 100);
    CHECK(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);
    total += ((function)code)();
    CHECK(mprotect(code, 4096, PROT_READ | PROT_WRITE) == 0);
    write_function(code, 200);
    CHECK(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);
    total += ((function)code)();
    printf("protected %d\n", total);
    CHECK(munmap(code, 4096) == 0);
    unsigned char *again = mmap(code, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(again == code);
    write_function(again, 3000);
    CHECK(mprotect(again, 4096, PROT_READ | PROT_EXEC) == 0);
    total += ((function)again)();
    printf("mapped again %d\n", total);
    return 0;
}
