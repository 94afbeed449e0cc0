/* posix_spawn: a program that exists, one that does not (ENOENT comes back, no child remains), and signal attributes. */
#include "common.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(void)
{
    pid_t child;
    int status;
    char *ok[] = {"sh", "-c", "echo spawned; exit 4", NULL};
    CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, ok, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    printf("status %d\n", WEXITSTATUS(status));
    int error = posix_spawn(&child, "/nonexistent/program", NULL, NULL, ok, environ);
    printf("missing: %s\n", error == ENOENT ? "ENOENT" : strerror(error));
    CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
    fflush(stdout);

    /* The child must get a signal mask and default actions of our choice. */
    posix_spawnattr_t attributes;
    sigset_t none, usr1;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &usr1, NULL) == 0);
    CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
    CHECK(posix_spawnattr_init(&attributes) == 0);
    CHECK(posix_spawnattr_setsigmask(&attributes, &none) == 0);
    CHECK(posix_spawnattr_setsigdefault(&attributes, &usr1) == 0);
    CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0);
    char *killed[] = {"sh", "-c", "kill -USR1 $$; echo survived", NULL};
    CHECK(posix_spawnp(&child, "sh", NULL, &attributes, killed, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    printf("signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    return 0;
}
