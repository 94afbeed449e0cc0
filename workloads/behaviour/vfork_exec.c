/* A child by vfork borrows the parent's memory until it execs or exits. */
#include "common.h"
#include <sys/wait.h>

static int run(const char *program)
{
    static volatile int failure;
    int status;
    failure = 0;
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(program, program, "-c", "exit 9", (char *)NULL);
        failure = errno; /* seen by the parent: the memory is shared */
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child);
    printf("status %d, exec %s\n", WEXITSTATUS(status), failure == 0 ? "succeeded" : strerror(failure));
    return WEXITSTATUS(status);
}

int main(void)
{
    run("/bin/sh");
    run("/nonexistent/program");
    return run("/bin/sh");
}
