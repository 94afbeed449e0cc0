/* A signal during a read that waits: with SA_RESTART the read goes on, without it fails with EINTR. */
#include "common.h"
#include <sys/wait.h>

static volatile sig_atomic_t count;

static void counter(int number, siginfo_t *information, void *context)
{
    (void)number, (void)information, (void)context;
    count++;
}

/* Whether the process sleeps, by its line in /proc. */
static int sleeps(pid_t process)
{
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fgets(line, sizeof line, file) != NULL && strrchr(line, ')') != NULL)
        state = strrchr(line, ')')[2];
    fclose(file);
    return state == 'S';
}

/* Reads one byte while a child sends a signal, and then (after a while) the byte. */
static void interrupted_read(int flags)
{
    int pipe_ends[2];
    char byte = 0;
    CHECK(pipe(pipe_ends) == 0);
    handle(SIGUSR1, counter, flags);
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        usleep(100000);
        for (int i = 0; i < 100 && !sleeps(parent); i++)
            usleep(10000);
        kill(parent, SIGUSR1);
        usleep(200000);
        _exit(write(pipe_ends[1], "x", 1) == 1 ? 0 : 1);
    }
    ssize_t result = read(pipe_ends[0], &byte, 1);
    if (result == 1)
        printf("read '%c' after %d\n", byte, count);
    else
        printf("%s after %d\n", errno == EINTR ? "EINTR" : "error", count);
    fflush(stdout);
    while (waitpid(child, NULL, 0) < 0)
        CHECK(errno == EINTR);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

int main(void)
{
    interrupted_read(SA_RESTART);
    interrupted_read(0);
    return count;
}
