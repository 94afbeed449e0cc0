/* Time through the vdso and, where the kernel has it, through the old fixed addresses; the image of the vdso can be read. */
#include "common.h"
#include <elf.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>

static int is_mapped(const char *name)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

int main(void)
{
    struct timespec before, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &before) == 0);
    int backwards = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
        backwards += now.tv_sec < before.tv_sec || (now.tv_sec == before.tv_sec && now.tv_nsec < before.tv_nsec);
        before = now;
    }
    struct timeval day;
    CHECK(gettimeofday(&day, NULL) == 0);
    time_t seconds = time(NULL);
    unsigned processor = 0, node = 0;
    CHECK(sched_getcpu() >= 0);
    printf("backwards %d, same day %d\n", backwards, labs((long)(seconds - day.tv_sec)) <= 1);
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)getauxval(AT_SYSINFO_EHDR);
    printf("image %d\n", header == NULL || memcmp(header->e_ident, ELFMAG, 4) == 0);
    long old = seconds, other = seconds;
    if (is_mapped("[vsyscall]")) {
        old = ((time_t(*)(time_t *))0xffffffffff600400)(NULL);
        CHECK(((int (*)(struct timeval *, void *))0xffffffffff600000)(&day, NULL) == 0);
        other = day.tv_sec;
        CHECK(((int (*)(unsigned *, unsigned *, void *))0xffffffffff600800)(&processor, &node, NULL) == 0);
    }
    printf("old calls %d\n", labs(old - seconds) <= 2 && labs(other - seconds) <= 2);
    return 0;
}
