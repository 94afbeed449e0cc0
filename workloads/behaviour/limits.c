/* Limits that a program sets for itself: address space, data, stack, files. What it asks for it sees again, and memory runs out where
   it should, without anything else breaking. */
#include "common.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MEGABYTE = 1 << 20 };

static void limit(int resource, rlim_t size)
{
    struct rlimit limit = {size, size}, seen;
    CHECK(setrlimit(resource, &limit) == 0);
    CHECK(getrlimit(resource, &seen) == 0 && seen.rlim_cur == size && seen.rlim_max == size);
    CHECK(prlimit(0, resource, NULL, &seen) == 0 && seen.rlim_cur == size);
}

/* Maps until that fails; returns how many megabytes. */
static int map_all(void)
{
    int count = 0;
    while (mmap(NULL, MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        count++;
    CHECK(errno == ENOMEM);
    return count;
}

static unsigned recurse(unsigned depth)
{
    volatile char room[1000];
    room[depth % 1000] = depth;
    return depth == 0 ? 0 : recurse(depth - 1) + (room[depth % 1000] == (char)depth);
}

/* New code after memory has run out. */
static int compare(const void *left, const void *right)
{
    return *(const int *)left - *(const int *)right;
}

static int run(int (*body)(void))
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(body());
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int few_files(void)
{
    limit(RLIMIT_NOFILE, 10);
    int count = 0;
    while (dup(0) >= 0)
        count++;
    return errno == EMFILE && count > 0 ? 3 : 1;
}

static int small_files(void)
{
    signal(SIGXFSZ, SIG_IGN);
    limit(RLIMIT_FSIZE, 0);
    return memfd_create("file", 0) >= 0 ? 4 : 1;
}

int main(void)
{
    printf("files %d, sizes %d\n", run(few_files), run(small_files));
    limit(RLIMIT_STACK, 64 * MEGABYTE);
    printf("deep %u\n", recurse(40000));
    limit(RLIMIT_AS, 300 * MEGABYTE);
    int count = map_all();
    int numbers[1000];
    for (int i = 0; i < 1000; i++)
        numbers[i] = i * 7919 % 1009;
    qsort(numbers, 100, sizeof *numbers, compare);
    printf("space %d, malloc %d, first %d\n", count > 100 && count < 300, malloc(50 * MEGABYTE) == NULL, numbers[0]);
    return 0;
}
