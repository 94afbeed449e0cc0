/* A child by fork: shares nothing, runs on its own, its status and its death by a signal come back to the parent. */
#include "common.h"
#include <sys/wait.h>

static int value = 1;

int main(void)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        value = 2;
        say("child\n");
        _exit(23);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("status %d value %d\n", WEXITSTATUS(status), value);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        kill(getpid(), SIGKILL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
    child = fork(); /* a child that runs another program */
    CHECK(child >= 0);
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "echo shell; exit 5", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("status %d\n", WEXITSTATUS(status));
    return 0;
}
