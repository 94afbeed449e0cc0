// A thread jumps through a register, again and again, until the first thread ends the process.
#include <pthread.h>
#include <unistd.h>

static int is_jumping;

static void *jump(void *argument) {
    __atomic_store_n(&is_jumping, 1, __ATOMIC_RELEASE);
    asm volatile("lea 1f(%%rip), %%rax\n1: jmp *%%rax" ::: "rax");
    return argument;
}

int main(void) {
    pthread_t id;
    if (pthread_create(&id, NULL, jump, NULL))
        return 1;
    while (!__atomic_load_n(&is_jumping, __ATOMIC_ACQUIRE))
        ;
    usleep(1000);
    _exit(0);
}
