/* Seccomp filters that answer with errors or signals, also for system calls that a recorder would answer itself or make in a
   way of its own; two filters at once; a thread and an exec behind a filter; bad filters. */
#include "seccomp.h"
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

static const char *name(int result)
{
    return result >= 0 ? "allowed" : strerrorname_np(errno);
}

static void errors(void)
{
    FILTER(SECCOMP_RET_ERRNO | EXDEV, SECCOMP_RET_ALLOW, 1, SYS_getppid, SYS_mmap, SYS_clone, SYS_clone3, SYS_sigaltstack,
           SYS_rt_sigaction);
    FILTER(SECCOMP_RET_ERRNO | EDOM, SECCOMP_RET_ALLOW, 0, SYS_getppid, SYS_getuid, SYS_execve);
    printf("getppid %s, ", name(syscall(SYS_getppid)));
    printf("getuid %s, ", name(syscall(SYS_getuid)));
    printf("getpid %s\n", name(syscall(SYS_getpid)));
    void *memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("mmap %s, ", name(memory == MAP_FAILED ? -1 : 0));
    printf("munmap %s, ", name(munmap((void *)0x10000, 4096)));
    printf("fork %s\n", name(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)));
    struct sigaction action;
    printf("sigaction %s, ", name(sigaction(SIGUSR1, NULL, &action)));
    sigset_t set;
    printf("sigprocmask %s, ", name(sigprocmask(SIG_BLOCK, NULL, &set)));
    stack_t stack;
    printf("sigaltstack %s, ", name(sigaltstack(NULL, &stack)));
    char *arguments[] = {"x", NULL};
    printf("exec %s\n", name(execv("/proc/self/exe", arguments)));
}

extern char after_getppid[];
static volatile int traps;
static volatile int in_order;

/* The call gets the answer 1000 and its own number. */
static void answer(int number, siginfo_t *information, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    in_order += number == SIGSYS && information->si_code == 1 && information->si_errno == 7 &&
                (greg_t)information->si_call_addr == registers[REG_RIP] &&
                information->si_syscall == registers[REG_RAX] && information->si_arch == AUDIT_ARCH_X86_64;
    traps++;
    registers[REG_RAX] = 1000 + registers[REG_RAX];
}

static void trap(void)
{
    handle(SIGSYS, answer, 0);
    FILTER(SECCOMP_RET_TRAP | 7, SECCOMP_RET_ALLOW, 0, SYS_getppid, SYS_mprotect, SYS_rt_sigprocmask, SYS_clone, SYS_fork,
           SYS_sched_yield);
    long result;
    __asm__ volatile("syscall\n.globl after_getppid\nafter_getppid:" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
    printf("getppid %ld, ", result);
    printf("mprotect %ld, ", syscall(SYS_mprotect, 0x1000, 4096, PROT_READ));
    printf("sigprocmask %ld, ", syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, NULL, 8));
    printf("clone %ld, fork %ld\n", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), syscall(SYS_fork));
    for (int i = 0; i < 1000; i++)
        CHECK(sched_yield() == 1000 + SYS_sched_yield);
    printf("traps %d, in order %d\n", traps, in_order);
    /* Blocked, it kills. */
    sigset_t set;
    sigfillset(&set);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, NULL, 8) == 1000 + SYS_rt_sigprocmask);
    signal(SIGSYS, SIG_IGN);
    fflush(stdout);
    syscall(SYS_getppid);
    say("not reached\n");
}

static void *work(void *argument)
{
    FILTER(SECCOMP_RET_ERRNO | EXDEV, SECCOMP_RET_ALLOW, 0, SYS_getppid);
    *(const char **)argument = name(syscall(SYS_getppid));
    return NULL;
}

/* A filter of one thread is not another's. */
static void thread(void)
{
    pthread_t thread;
    const char *in_thread = NULL;
    CHECK(pthread_create(&thread, NULL, work, &in_thread) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("in the thread %s, ", in_thread);
    printf("outside %s\n", name(syscall(SYS_getppid)));
}

static void bad(void)
{
    struct sock_filter jump = BPF_JUMP(BPF_JMP | BPF_JA, 99, 0, 0);
    struct sock_fprog nothing = {.len = 0, .filter = &jump}, broken = {.len = 1, .filter = &jump};
    struct sock_fprog nowhere = {.len = 3, .filter = (struct sock_filter *)8};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    printf("nothing %s, ", name(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &nothing)));
    printf("broken %s, ", name(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &broken)));
    printf("nowhere %s, ", name(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &nowhere)));
    printf("no program %s, ", name(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL)));
    printf("no operation %s, ", name(syscall(SYS_seccomp, 99, 0, NULL)));
    printf("mode %d\n", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "errors") == 0) {
        errors();
    } else if (strcmp(mode, "trap") == 0) {
        trap();
    } else if (strcmp(mode, "thread") == 0) {
        thread();
    } else if (strcmp(mode, "bad") == 0) {
        bad();
    } else if (strcmp(mode, "exec") == 0) {
        FILTER(SECCOMP_RET_ERRNO | EXDEV, SECCOMP_RET_ALLOW, 1, SYS_getppid);
        char *again[] = {argv[0], "after", NULL};
        execv("/proc/self/exe", again);
        return 1;
    } else if (strcmp(mode, "after") == 0) {
        printf("after exec: getppid %s\n", name(syscall(SYS_getppid)));
    } else {
        return 2;
    }
    return 0;
}
