/* gs belongs to the program, as under Wine: each thread has a block of its own that gs points at, with a pointer to itself at 0x30.
   It is set by system call and by instruction, inherited by threads and processes, seen by handlers, and faults with it are exact. */
#include "common.h"
#include <asm/ldt.h>
#include <asm/prctl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

struct block {
    char before[0x30];
    struct block *self;
    long number;
    long rounds;
    long signals;
};

#define GS(offset, type) (*(type volatile __seg_gs *)(offset))

static struct block *own(void) { return GS(0x30, struct block *); }

static void set(struct block *block, long number)
{
    block->self = block;
    block->number = number;
    CHECK(syscall(SYS_arch_prctl, ARCH_SET_GS, block) == 0);
}

static unsigned long base(void)
{
    unsigned long value = 1;
    CHECK(syscall(SYS_arch_prctl, ARCH_GET_GS, &value) == 0);
    return value;
}

static unsigned long read_base(void)
{
    unsigned long value;
    __asm__ volatile("rdgsbase %0" : "=r"(value));
    return value;
}

static void write_base(unsigned long value) { __asm__ volatile("wrgsbase %0" : : "r"(value)); }

static void on_signal(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)info, (void)context;
    __asm__ volatile("lock incq %%gs:0x48" : : : "memory");
}

/* ------------------------------------------------------------------------------------------------------------- faults */

static volatile unsigned long fault_address, fault_code;

/* Steps over the instruction that r12 has the length of. */
static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    ucontext_t *user = context;
    (void)signal_number;
    fault_address = (unsigned long)info->si_addr;
    fault_code = info->si_code;
    user->uc_mcontext.gregs[REG_RIP] += user->uc_mcontext.gregs[REG_R12];
    GS(0x48, long)++;
}

#define FAULTING(instruction, ...)                                                                                     \
    __asm__ volatile("mov $2f - 1f, %%r12d\n1: " instruction "\n2:" : : __VA_ARGS__ : "r12", "memory", "cc")

static void faults(void)
{
    static struct block block;
    unsigned long rbx = 0x1234, rsi;
    set(&block, 1);
    handle(SIGSEGV, on_fault, 0);
    FAULTING("mov %%rax, %%gs:(%%rdi)", "D"(-(unsigned long)&block + 16), "a"(1));
    printf("store %lx %lx\n", fault_address, fault_code);
    FAULTING("addl $5, %%gs:8(%%rdi)", "D"(-(unsigned long)&block + 16));
    printf("add %lx %lx\n", fault_address, fault_code);
    FAULTING("jmp *%%gs:16(%%rdi)", "D"(-(unsigned long)&block + 16));
    printf("jump %lx %lx\n", fault_address, fault_code);
    FAULTING("rep movsb %%gs:(%%rsi), %%es:(%%rdi)", "S"(-(unsigned long)&block + 64), "D"(&block), "c"(3));
    printf("string %lx %lx\n", fault_address, fault_code);
    /* Registers are the program's own in the handler and after it. */
    __asm__ volatile("mov $2f - 1f, %%r12d\n1: mov %%gs:(%%rdi), %%rax\n2:"
                     : "+b"(rbx), "=S"(rsi)
                     : "D"(-(unsigned long)&block + 8), "S"(77L)
                     : "rax", "r12", "memory");
    printf("load %lx %lx, %lx %lx\n", fault_address, fault_code, rbx, rsi);
    FAULTING("wrgsbase %%rax", "a"(0x1234567812345678));
    printf("not canonical %lx %lx\n", fault_address, fault_code);
    FAULTING("mov %%eax, %%gs", "a"(0x1237));
    printf("selector %lx %lx\n", fault_address, fault_code);
    printf("same %d, %ld handled\n", own() == &block && base() == (unsigned long)&block, block.signals);
}

/* ---------------------------------------------------------------------------------------------- ways, threads, processes */

static void *inherits(void *parent)
{
    struct block block = {0};
    int same = own() == parent && read_base() == (unsigned long)parent;
    set(&block, 2);
    raise(SIGUSR1);
    return (void *)(long)(same && own() == &block && block.signals == 1);
}

static void ways(void)
{
    struct block block = {0}, other = {0};
    pthread_t thread;
    void *result;
    int status;
    printf("first %lx %lx\n", base(), read_base());
    set(&block, 1);
    printf("set %d %d %d\n", own() == &block, base() == (unsigned long)&block, read_base() == (unsigned long)&block);
    GS(0x10, long) = 77;
    GS(0x00, int) += 5;
    printf("stored %ld %d\n", *(long *)&block.before[0x10], *(int *)block.before);
    other.self = &other;
    write_base((unsigned long)&other);
    printf("written %d %d\n", own() == &other, base() == (unsigned long)&other);
    handle(SIGUSR1, on_signal, 0);
    raise(SIGUSR1);
    printf("handled %ld\n", other.signals);
    printf("refused %d\n", syscall(SYS_arch_prctl, ARCH_SET_GS, 1UL << 63) == -1 && errno == EPERM && own() == &other);
    CHECK(pthread_create(&thread, NULL, inherits, &other) == 0 && pthread_join(thread, &result) == 0);
    printf("thread %ld, here %d\n", (long)result, own() == &other);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        raise(SIGUSR1);
        _exit(own() == &other && other.signals == 2 && read_base() == (unsigned long)&other && base() == read_base() ? 7 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d, here %d\n", WEXITSTATUS(status), own() == &other && other.signals == 1);
    fflush(stdout);
    child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        if (own() == &other)
            execl("/bin/sh", "sh", "-c", "exit 9", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("child %d, here %d\n", WEXITSTATUS(status), own() == &other);
}

/* ------------------------------------------------------------------------------------------------------------ selectors */

static void selectors(void)
{
    struct user_desc segment = {.entry_number = 0, .limit = 0xfffff, .seg_32bit = 1, .limit_in_pages = 1, .useable = 1};
    struct block *block = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    unsigned before, after;
    CHECK(block != MAP_FAILED);
    block->self = block;
    segment.base_addr = (unsigned long)block;
    handle(SIGUSR1, on_signal, 0);
    CHECK(syscall(SYS_modify_ldt, 1, &segment, sizeof segment) == 0);
    __asm__ volatile("mov %%gs, %0" : "=r"(before));
    __asm__ volatile("mov %0, %%gs" : : "r"(7));
    __asm__ volatile("mov %%gs, %0" : "=r"(after));
    raise(SIGUSR1);
    sched_yield();
    printf("selector %x %x, %d %d %ld\n", before, after, own() == block, base() == (unsigned long)block, block->signals);
    __asm__ volatile("push $0\npop %%gs" : : : "memory");
    printf("without %d\n", base() == 0 || base() == (unsigned long)block);
}

/* -------------------------------------------------------------------------------------------------------- many threads */

enum { THREADS = 4, ROUNDS = 50000, SIGNALS = 30 };

static struct block blocks[THREADS];
static pthread_barrier_t start;

static void *turn(void *argument)
{
    struct block *block = argument;
    if (block->number % 2)
        set(block, block->number);
    else
        write_base((unsigned long)block->self);
    pthread_barrier_wait(&start);
    for (long i = 0; i < ROUNDS; i++) {
        GS(0x40, long)++;
        CHECK(own() == block);
        if (i % 5000 == 0)
            sched_yield();
        if (i % 1000 == 0)
            write_base(read_base());
    }
    while (__atomic_load_n(&block->signals, __ATOMIC_SEQ_CST) < SIGNALS) {
        CHECK(own() == block);
        sched_yield();
    }
    return NULL;
}

static void threads(void)
{
    pthread_t thread[THREADS];
    struct block block = {0};
    long rounds = 0, signals = 0;
    handle(SIGUSR1, on_signal, SA_RESTART);
    pthread_barrier_init(&start, NULL, THREADS + 1);
    set(&block, 100);
    for (int i = 0; i < THREADS; i++) {
        blocks[i].number = i;
        blocks[i].self = &blocks[i];
        CHECK(pthread_create(&thread[i], NULL, turn, &blocks[i]) == 0);
    }
    pthread_barrier_wait(&start);
    for (long sent = 0; sent < SIGNALS; sent++)
        for (int i = 0; i < THREADS; i++) {
            CHECK(pthread_kill(thread[i], SIGUSR1) == 0);
            while (__atomic_load_n(&blocks[i].signals, __ATOMIC_SEQ_CST) <= sent)
                sched_yield();
        }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(thread[i], NULL) == 0);
        rounds += blocks[i].rounds;
        signals += blocks[i].signals;
    }
    printf("%ld rounds, %ld signals, %ld here, %d\n", rounds, signals, block.rounds + block.signals, own() == &block);
}

/* ------------------------------------------------------------------------------------------------------- for attaching */

static volatile sig_atomic_t is_over;

static void on_end(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)info, (void)context;
    is_over = 1;
}

static void *wait_for_end(void *argument)
{
    struct block *block = argument;
    set(block, block->number);
    pthread_barrier_wait(&start);
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        for (int i = 0; i < 1000; i++)
            GS(0x40, long)++;
        CHECK(own() == block && read_base() == (unsigned long)block);
    }
    return NULL;
}

/* Threads that use gs all the time, get signals all the time and see others come and go, until SIGTERM ends it. */
static void turmoil(void)
{
    static struct block block;
    pthread_t thread[THREADS], passing;
    void *result;
    long turns = 0, signals = 0;
    handle(SIGUSR1, on_signal, SA_RESTART);
    handle(SIGTERM, on_end, 0);
    set(&block, 100);
    pthread_barrier_init(&start, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        blocks[i].self = &blocks[i];
        CHECK(pthread_create(&thread[i], NULL, wait_for_end, &blocks[i]) == 0);
    }
    pthread_barrier_wait(&start);
    say("ready\n");
    for (; !is_over; turns++) {
        for (int i = 0; i < THREADS; i++) {
            CHECK(pthread_kill(thread[i], SIGUSR1) == 0);
            while (__atomic_load_n(&blocks[i].signals, __ATOMIC_SEQ_CST) <= turns && !is_over)
                sched_yield();
        }
        CHECK(pthread_create(&passing, NULL, inherits, &block) == 0 && pthread_join(passing, &result) == 0);
        CHECK(result == (void *)1 && own() == &block && base() == (unsigned long)&block);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(thread[i], NULL) == 0);
        signals += blocks[i].signals;
    }
    printf("%s\n", signals >= (turns - 1) * THREADS && own() == &block ? "good" : "bad");
}

int main(int count, char **arguments)
{
    const char *part = count > 1 ? arguments[1] : "ways";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(part, "ways"))
        ways();
    else if (!strcmp(part, "faults"))
        faults();
    else if (!strcmp(part, "selectors"))
        selectors();
    else if (!strcmp(part, "threads"))
        threads();
    else
        turmoil();
    return 0;
}
