// Makes processes in every way (fork, vfork and exec, posix_spawn, clone, and a grandchild), waits for them and prints how they ended. With
// an argument: the last one outlives its parent, which ends with status 7 at once.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int work(int rounds) {
    volatile unsigned x = 1;
    for (int i = 0; i < rounds; i++)
        x = x * 1664525u + 1013904223u;
    return x & 1;
}

static void end(const char *what, pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        perror("waitpid");
    if (WIFSIGNALED(status))
        printf("%s: signal %d\n", what, WTERMSIG(status));
    else
        printf("%s: status %d\n", what, WEXITSTATUS(status));
    fflush(stdout);
}

static void count(int signal) {
    (void)signal;
}

int main(int argument_count, char **words) {
    if (argument_count > 1 && !strcmp(words[1], "outlived")) {
        if (fork() == 0) {
            work(30000000);
            printf("survivor\n");
            return 9;
        }
        return 7;
    }
    signal(SIGUSR1, count);
    pid_t child = fork();
    if (child == 0) {
        work(100000);
        raise(SIGUSR1);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(work(50000) + 20);
        int status;
        waitpid(grandchild, &status, 0);
        _exit(WEXITSTATUS(status) >= 20 ? 3 : 1);
    }
    end("fork", child);
    child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 4", NULL);
        _exit(1);
    }
    end("vfork", child);
    char *arguments[] = {"sh", "-c", "kill -TERM $$", NULL};
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ))
        perror("posix_spawn");
    end("posix_spawn", child);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        work(1000);
        execl("/bin/echo", "echo", "executed", NULL);
        _exit(1);
    }
    end("clone", child);
    child = vfork();
    if (child == 0)
        _exit(6);
    end("vfork without exec", child);
    return 0;
}
