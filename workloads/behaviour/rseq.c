/* Restartable sequences: threads count on the processor that they are on, without atomic instructions; critical sections that
   only an interruption can end, by a signal and by membarrier; what a signal handler sees of them.
   rseq [TURNS]: each thread counts so far. */
#include "common.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <ucontext.h>

enum { THREADS = 4, ROUNDS = 50, PROCESSORS_MAX = 4096 };

struct section {
    uint32_t version, flags;
    uint64_t start, length, abort;
};

/* One counter per line of the cache. */
static struct {
    long value, padding[7];
} counters[PROCESSORS_MAX];

extern const struct section endless_section;

static int turns = 20000;
static pthread_t main_thread;
static volatile sig_atomic_t seen_inside, seen_at_abort;
static atomic_int is_waiting, is_over;

static struct rseq *area(void)
{
    return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* Adds one to the counter of a processor, slowly. False if the thread was interrupted, or is on another one. */
__attribute__((noinline)) static int count_on(uint32_t processor)
{
    asm goto(".pushsection __rseq_cs, \"aw\"\n"
             ".balign 32\n"
             "3: .long 0, 0\n"
             ".quad 1f, 2f - 1f, 4f\n"
             ".popsection\n"
             "leaq 3b(%%rip), %%rax\n"
             "movq %%rax, 8(%[area])\n"
             "1:\n"
             "cmpl %[processor], 4(%[area])\n"
             "jne %l[elsewhere]\n"
             "movq (%[counter]), %%rax\n"
             "movl $20, %%ecx\n"
             "5: decl %%ecx\n"
             "jnz 5b\n"
             "incq %%rax\n"
             "movq %%rax, (%[counter])\n"
             "2:\n"
             ".pushsection .text.unlikely, \"ax\"\n"
             ".byte 0x0f, 0xb9, 0x3d\n"
             ".long 0x53053053\n"
             "4: jmp %l[interrupted]\n"
             ".popsection\n"
             :
             : [area] "r"(area()), [processor] "r"(processor), [counter] "r"(&counters[processor].value)
             : "rax", "rcx", "cc", "memory"
             : elsewhere, interrupted);
    return 1;
elsewhere:
interrupted:
    return 0;
}

/* A critical section without an end. */
__attribute__((noinline)) static void wait_for_interruption(void)
{
    asm goto(".pushsection __rseq_cs, \"aw\"\n"
             ".globl endless_section\n"
             ".balign 32\n"
             "endless_section: .long 0, 0\n"
             ".quad 1f, 2f - 1f, 4f\n"
             ".popsection\n"
             "leaq endless_section(%%rip), %%rax\n"
             "movq %%rax, 8(%[area])\n"
             "1: pause\n"
             "jmp 1b\n"
             "2:\n"
             ".pushsection .text.unlikely, \"ax\"\n"
             ".byte 0x0f, 0xb9, 0x3d\n"
             ".long 0x53053053\n"
             "4: jmp %l[interrupted]\n"
             ".popsection\n"
             :
             : [area] "r"(area())
             : "rax", "cc", "memory"
             : interrupted);
interrupted:;
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    uint64_t pc = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pc - endless_section.start < endless_section.length)
        seen_inside++;
    if (pc == endless_section.abort)
        seen_at_abort++;
}

static void *count(void *unused)
{
    for (int turn = 0; turn < turns;) {
        uint32_t processor = area()->cpu_id_start;
        CHECK(processor < PROCESSORS_MAX);
        turn += count_on(processor);
    }
    return unused;
}

static void interrupt_by_signal(void)
{
    pthread_kill(main_thread, SIGUSR1);
}

static void interrupt_by_membarrier(void)
{
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0);
}

static void *interrupt(void *by)
{
    void (*interrupt)(void) = (void (*)(void))by;
    while (!atomic_load(&is_over)) {
        if (atomic_load(&is_waiting))
            interrupt();
        sched_yield();
    }
    return NULL;
}

/* Is interrupted in critical sections, round after round. */
static void be_interrupted(void (*by)(void))
{
    pthread_t thread;
    atomic_store(&is_over, 0);
    pthread_create(&thread, NULL, interrupt, (void *)by);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&is_waiting, 1);
        wait_for_interruption();
        atomic_store(&is_waiting, 0);
    }
    atomic_store(&is_over, 1);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        turns = atoi(argv[1]);
    CHECK(__rseq_size != 0);
    CHECK(sched_getcpu() >= 0 && (int)area()->cpu_id >= 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, count, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    long sum = 0;
    for (int i = 0; i < PROCESSORS_MAX; i++)
        sum += counters[i].value;

    main_thread = pthread_self();
    handle(SIGUSR1, on_signal, 0);
    be_interrupted(interrupt_by_signal);
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0);
    be_interrupted(interrupt_by_membarrier);
    printf("rseq: counted %ld, seen inside %d, at the abort handler %s\n", sum, (int)seen_inside,
           seen_at_abort > 0 ? "yes" : "no");
    return 0;
}
