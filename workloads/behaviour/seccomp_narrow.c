/* Behind a filter that kills at everything but a few calls: much new code, a thread, timer signals, and an exec of a program
   that may not even open a file. */
#include "seccomp.h"
#include <pthread.h>
#include <sys/time.h>

static volatile int ticks;

static void tick(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    ticks++;
}

/* Sorts without the C library, which might ask the kernel for something. */
static void compute(int count)
{
    int numbers[2000];
    unsigned state = count;
    for (int i = 0; i < count; i++)
        numbers[i] = (state = state * 1664525 + 1013904223) >> 8;
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int i = gap; i < count; i++)
            for (int j = i; j >= gap && numbers[j - gap] > numbers[j]; j -= gap) {
                int number = numbers[j];
                numbers[j] = numbers[j - gap];
                numbers[j - gap] = number;
            }
    for (int i = 1; i < count; i++)
        CHECK(numbers[i - 1] <= numbers[i]);
}

static void *work(void *argument)
{
    for (int i = 0; i < 20; i++)
        compute(1000 + i);
    return argument;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "again") == 0) {
        compute(200);
        say("after exec\n");
        _exit(4);
    }
    handle(SIGALRM, tick, SA_RESTART);
    struct itimerval timer = {{0, 700}, {0, 700}}, none = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, aligned_alloc(4096, 1 << 18), 1 << 18);
    FILTER(SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, 1,
           /* what this program does */
           SYS_write, SYS_setitimer, SYS_exit_group, SYS_execve, SYS_rt_sigreturn,
           /* threads */
           SYS_clone3, SYS_clone, SYS_futex, SYS_set_robust_list, SYS_rseq, SYS_exit, SYS_rt_sigprocmask, SYS_madvise,
           SYS_mprotect, SYS_rt_sigaction,
           /* the start of a static program */
           SYS_brk, SYS_arch_prctl, SYS_set_tid_address, SYS_prlimit64, SYS_readlinkat, SYS_readlink, SYS_getrandom);
    for (int i = 0; i < 100 || ticks < 5; i++)
        compute(2000);
    say("computed\n");
    pthread_t thread;
    CHECK(pthread_create(&thread, &attributes, work, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    say("joined\n");
    CHECK(setitimer(ITIMER_REAL, &none, NULL) == 0);
    char *again[] = {argv[0], "again", NULL};
    execv("/proc/self/exe", again);
    return 1;
}
