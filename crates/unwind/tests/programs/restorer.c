// A handler that returns through code without call frame information, as programs have it that do
// not use the system's library.
#include "stop.h"
#include <sys/syscall.h>

// gdb recognises the name.
void restorer(void) __asm__("__restore_rt");
__asm__(
    ".text\n"
    "ret\n"
    ".type __restore_rt, @function\n"
    "__restore_rt: mov $15, %rax\n"
    "syscall\n"
    ".size __restore_rt, . - __restore_rt\n");

static void on_signal(int number) {
    sink += number;
    stop_here();
}

__attribute__((noinline)) static int raiser(int depth) {
    int result = depth == 0 ? raise(SIGUSR1) : raiser(depth - 1);
    return result + sink;
}

int main(void) {
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {on_signal, 0x04000000, restorer, 0};
    syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8);
    return raiser(3) & 1;
}
