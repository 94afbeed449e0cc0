// Children that share their parent's memory, which waits for them (vfork), and what they do before they execute another program or end.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

// Executes its first instruction COUNT times.
void count_down(long count);
asm(".globl count_down\n.type count_down, @function\ncount_down:\n dec %rdi\n jnz count_down\n ret\n.size count_down, . - count_down\n");

// The same, at another address, for other threads.
void burn(long count);
asm(".globl burn\nburn:\n dec %rdi\n jnz burn\n ret\n");

static volatile long seen[8];

static int end_of(pid_t child) {
    int status = -1;
    if (waitpid(child, &status, 0) != child)
        perror("waitpid");
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// A known loop, an exec that fails, more of the loop, and then an exec that succeeds, or an end.
static void loops(const char *program) {
    static char *words[] = {"true", NULL};
    volatile int error = 0;
    pid_t child = vfork();
    if (child == 0) {
        seen[0] = getpid();
        count_down(1000);
        execve("/nonexistent/one", words, environ);
        error = errno;
        count_down(500);
        if (program)
            execvpe(program, words, environ);
        count_down(250);
        _exit(7);
    }
    int end = end_of(child);
    printf("child %s, end %d, error %d\n", seen[0] == child ? "is itself" : "is another", end, error);
    count_down(100);
}

static volatile sig_atomic_t handled[65], in_child;

static void handler(int signal) {
    handled[signal]++;
    in_child = getpid();
}

static void other_handler(int signal) {
    handled[signal] += 100;
}

static void handle(int signal, void (*function)(int)) {
    struct sigaction action = {.sa_handler = function};
    sigaction(signal, &action, NULL);
}

// The child has a copy of the table of handlers, and changes only that.
static void handlers(void) {
    handle(SIGUSR1, handler);
    handle(SIGUSR2, handler);
    handle(SIGSEGV, handler);
    signal(SIGHUP, SIG_IGN);
    pid_t child = vfork();
    if (child == 0) {
        raise(SIGUSR1); // the parent's handler
        seen[1] = in_child == getpid();
        handle(SIGUSR2, other_handler);
        kill(getpid(), SIGUSR2);
        handle(SIGSEGV, other_handler);
        sigset_t set, pending;
        sigemptyset(&set);
        sigaddset(&set, SIGSEGV);
        sigprocmask(SIG_BLOCK, &set, NULL);
        kill(getpid(), SIGSEGV);
        sigpending(&pending);
        seen[2] = handled[SIGSEGV] == 0 && sigismember(&pending, SIGSEGV);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        seen[3] = handled[SIGSEGV] == 100;
        signal(SIGUSR1, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        count_down(10);
        _exit(handled[SIGUSR2] == 100 ? 3 : 4);
    }
    printf("end %d, %ld %ld %ld\n", end_of(child), seen[1], seen[2], seen[3]);
    raise(SIGHUP);
    raise(SIGUSR1);
    raise(SIGUSR2);
    raise(SIGSEGV);
    struct sigaction action;
    sigaction(SIGUSR2, NULL, &action);
    printf("parent: %d %d %d, %s\n", handled[SIGUSR1], handled[SIGUSR2], handled[SIGSEGV],
           action.sa_handler == handler ? "its own" : "the child's");
}

// Ways to die.
static void deaths(void) {
    int signals[] = {SIGKILL, SIGTERM, SIGSEGV, SIGABRT};
    for (int i = 0; i < 4; i++) {
        pid_t child = vfork();
        if (child == 0) {
            count_down(20);
            raise(signals[i]);
            _exit(1);
        }
        printf("signal %d\n", -end_of(child));
    }
    pid_t child = vfork();
    if (child == 0) {
        count_down(20);
        *(volatile int *)8 = 1;
        _exit(1);
    }
    printf("signal %d\n", -end_of(child));
    child = vfork();
    if (child == 0) {
        count_down(20);
        syscall(SYS_exit, 9);
    }
    printf("end %d\n", end_of(child));
}

static volatile int victim;
static volatile int is_done;

// Kills the children of another thread, wherever they are.
static void *kill_children(void *argument) {
    int signal = (int)(long)argument;
    unsigned random = 1;
    while (!is_done) {
        random = random * 1103515245 + 12345;
        burn(1 + random / 65536 % 40000);
        int process = victim;
        if (process > 0)
            kill(process, signal);
    }
    return NULL;
}

// Code that is executed for the first time in each round, so that the killed child is often at work in the engine.
typedef void (*function)(void);
static char *code;

static void kills(int rounds, int signal) {
    pthread_t killer;
    long page = 4096;
    posix_memalign((void **)&code, page, 64 * page);
    syscall(SYS_mprotect, code, 64 * page, 7);
    pthread_create(&killer, NULL, kill_children, (void *)(long)signal);
    int killed = 0;
    for (int i = 0; i < rounds; i++) {
        pid_t child = vfork();
        if (child == 0) {
            victim = getpid();
            for (long n = 0;; n++) {
                char *at = code + n % 4000 * 64;
                memcpy(at, "\xb8\x01\x00\x00\x00\xc3", 6);
                at[1] = (char)n;
                ((function)(void *)at)();
            }
        }
        victim = 0;
        killed += end_of(child) == -signal;
    }
    is_done = 1;
    pthread_join(killer, NULL);
    printf("killed %d\n", killed);
}

static void many(int count) {
    int good = 0;
    for (int i = 0; i < count; i++) {
        pid_t child = vfork();
        if (child == 0) {
            count_down(10);
            _exit(i % 100);
        }
        good += end_of(child) == i % 100;
    }
    printf("good %d\n", good);
}

// posix_spawn with everything that it can do, popen and system.
static void spawns(int shows_signals) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults, mask;
    handle(SIGUSR1, handler);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGSEGV, SIG_IGN);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGUSR2);
    sigemptyset(&mask);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGBUS);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 5, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 1, 7);
    posix_spawn_file_actions_addclose(&actions, 5);
    posix_spawn_file_actions_addchdir_np(&actions, "/");
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setsigmask(&attributes, &mask);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char *words[] = {"sh", "-c",
                     "test -n \"$0\" && while read k v; do case $k in Sig[BIC]*) echo $k $v;; esac; done </proc/$$/status; pwd; "
                     "echo seven >&7; test -e /proc/$$/fd/5 && echo five; "
                     "read a b c d e rest </proc/$$/stat; test $e = $$ && echo leads; exit 6",
                     shows_signals ? "show" : "", NULL};
    pid_t child;
    fflush(stdout);
    int error = posix_spawnp(&child, "sh", &actions, &attributes, words, environ);
    printf("spawn %d, end %d\n", error, error ? 0 : end_of(child));
    setenv("PATH", "/nonexistent/a:/nonexistent/b:/usr/bin:/bin", 1);
    error = posix_spawnp(&child, "no-such-program", NULL, NULL, words, environ);
    printf("spawn %s\n", strerror(error));
    error = posix_spawnp(&child, "true", NULL, NULL, words, environ);
    printf("spawn %d, end %d\n", error, error ? 0 : end_of(child));
    fflush(stdout);
    printf("system %d\n", WEXITSTATUS(system("echo from the shell; exit 8")));
    char line[100];
    FILE *pipe = popen("echo through a pipe", "r");
    printf("%s", fgets(line, sizeof line, pipe));
    printf("pclose %d\n", pclose(pipe));
}

// Things that a child rarely does: it goes on natively then.
static void rarities(void) {
    pid_t child = vfork();
    if (child == 0) {
        count_down(30);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(11);
        _exit(end_of(grandchild) + 1);
    }
    printf("fork: %d\n", end_of(child));
    child = vfork();
    if (child == 0) {
        volatile pid_t grandchild = vfork();
        if (grandchild == 0)
            _exit(21);
        _exit(end_of(grandchild) + 1);
    }
    printf("vfork: %d\n", end_of(child));
    child = vfork();
    if (child == 0) {
        struct rlimit limit = {1L << 40, 1L << 40};
        _exit(setrlimit(RLIMIT_AS, &limit) == 0 ? 31 : 32);
    }
    struct rlimit limit;
    printf("setrlimit: %d", end_of(child));
    getrlimit(RLIMIT_AS, &limit);
    printf(", %s\n", limit.rlim_cur == RLIM_INFINITY ? "none of the parent's" : "the parent's, too");
}

static void *work(void *argument) {
    long *sum = argument;
    while (!is_done) {
        burn(1000);
        __atomic_add_fetch(sum, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

// Makes children until a file exists, while another thread works.
static void endless(const char *stop) {
    static long sum;
    pthread_t worker;
    pthread_create(&worker, NULL, work, &sum);
    int bad = 0;
    for (int i = 0; access(stop, F_OK); i++) {
        pid_t child = vfork();
        if (child == 0) {
            count_down(i % 1000 + 1);
            if (i % 3 == 0)
                execl("/bin/true", "true", NULL);
            if (i % 3 == 1)
                execl("/nonexistent/true", "true", NULL);
            _exit(i % 3 ? 5 : 6);
        }
        bad += end_of(child) != (i % 3 ? 5 : 0);
    }
    is_done = 1;
    pthread_join(worker, NULL);
    printf("bad %d\n", bad);
}

// Another thread ends the process, or executes another program, while the child goes on.
static void *end_process(void *argument) {
    while (!victim)
        sched_yield();
    if (argument)
        execl("/bin/echo", "echo", "executed", NULL);
    _exit(12);
}

static void orphan(const char *path, int executes) {
    pthread_t other;
    pthread_create(&other, NULL, end_process, executes ? "" : NULL);
    pid_t child = vfork();
    if (child == 0) {
        victim = getpid();
        // Long enough to fill its ring several times.
        for (int i = 0; i < 3000; i++) {
            for (volatile int n = 0; n < 200; n++)
                getppid();
            count_down(100000);
        }
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        write(file, "done", 4);
        _exit(0);
    }
    pthread_join(other, NULL);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    const char *argument = count > 2 ? words[2] : NULL;
    if (!strcmp(what, "loops"))
        loops(argument);
    else if (!strcmp(what, "handlers"))
        handlers();
    else if (!strcmp(what, "deaths"))
        deaths();
    else if (!strcmp(what, "kills"))
        kills(atoi(argument), atoi(words[3]));
    else if (!strcmp(what, "many"))
        many(atoi(argument));
    else if (!strcmp(what, "spawns"))
        spawns(!argument);
    else if (!strcmp(what, "rarities"))
        rarities();
    else if (!strcmp(what, "endless"))
        endless(argument);
    else if (!strcmp(what, "orphan"))
        orphan(argument, count > 3);
    return 0;
}
