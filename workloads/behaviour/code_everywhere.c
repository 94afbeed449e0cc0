/* Code that changes all the time: beside data that is written, by itself, through a second mapping, by another process, in System V
   shared memory, between mprotects. */
#include "common.h"
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>

typedef int (*function)(void);

enum { PAGE = 4096, ROUNDS = 200, RWX = PROT_READ | PROT_WRITE | PROT_EXEC };

static unsigned char *map(int protection, int flags, int file)
{
    unsigned char *code = mmap(NULL, PAGE, protection, flags, file, 0);
    CHECK(code != MAP_FAILED);
    return code;
}

/* mov eax, value; ret */
static void write_function(unsigned char *code, int value)
{
    code[0] = 0xb8;
    memcpy(code + 1, &value, 4);
    code[5] = 0xc3;
}

static int call(unsigned char *code)
{
    return ((function)code)();
}

/* A counter on the same page as the code that counts: inc dword ptr [rip + 9]; mov eax, [rip + 3]; ret */
static int beside_data(void)
{
    unsigned char *code = map(RWX, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    const unsigned char text[] = {0xff, 0x05, 0x09, 0, 0, 0, 0x8b, 0x05, 0x03, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0, 0, 0, 0};
    memcpy(code, text, sizeof text);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++)
        result += call(code);
    return result;
}

/* Changes the operand of its own next instruction: inc dword ptr [rip + 1]; mov eax, 0; ret */
static int by_itself(void)
{
    unsigned char *code = map(RWX, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    const unsigned char text[] = {0xff, 0x05, 0x01, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(code, text, sizeof text);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++)
        result += call(code);
    return result;
}

/* Some functions stay, one changes. */
static int neighbours(void)
{
    unsigned char *code = map(RWX, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    write_function(code + 64, 1);
    write_function(code + 128, 2);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++) {
        write_function(code, i);
        result += call(code) + call(code + 64) + call(code + 128);
    }
    return result;
}

static int through_another_mapping(void)
{
    int file = memfd_create("code", 0);
    CHECK(file >= 0 && ftruncate(file, PAGE) == 0);
    unsigned char *writable = map(PROT_READ | PROT_WRITE, MAP_SHARED, file);
    unsigned char *executable = map(PROT_READ | PROT_EXEC, MAP_SHARED, file);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++) {
        write_function(writable, i);
        result += call(executable);
    }
    CHECK(munmap(executable, PAGE) == 0);
    /* The other one becomes code, too. */
    CHECK(mprotect(writable, PAGE, PROT_READ | PROT_EXEC) == 0);
    result += call(writable);
    write_function(map(PROT_READ | PROT_WRITE, MAP_SHARED, file), 1000);
    result += call(writable);
    return result;
}

static int by_another_process(void)
{
    unsigned char *code = map(RWX, MAP_SHARED | MAP_ANONYMOUS, -1);
    int result = 0;
    for (int i = 0; i < 5; i++) {
        write_function(code, i);
        result += call(code);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            write_function(code, 100 + i);
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
        result += call(code);
    }
    return result;
}

static int system_v(void)
{
    int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0700);
    CHECK(id >= 0);
    unsigned char *writable = shmat(id, NULL, 0), *executable = shmat(id, NULL, SHM_EXEC | SHM_RDONLY);
    CHECK(writable != (void *)-1 && executable != (void *)-1);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++) {
        write_function(writable, i);
        result += call(executable);
    }
    CHECK(shmdt(executable) == 0 && shmdt(writable) == 0);
    return result;
}

static int between_protections(void)
{
    unsigned char *code = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    write_function(code + 64, 5);
    int result = 0;
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(mprotect(code, PAGE, PROT_READ | PROT_WRITE) == 0);
        if (i % 3 == 0)
            write_function(code, i);
        CHECK(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
        result += call(code) + call(code + 64);
        if (i == 50) /* fails, changes nothing */
            CHECK(mprotect(code + 1, PAGE, PROT_READ) == -1 && errno == EINVAL);
    }
    CHECK(mprotect(code, PAGE, RWX) == 0);
    write_function(code, 7);
    return result + call(code);
}

int main(void)
{
    printf("beside data %d\n", beside_data());
    printf("by itself %d\n", by_itself());
    printf("neighbours %d\n", neighbours());
    printf("through another mapping %d\n", through_another_mapping());
    fflush(stdout);
    printf("by another process %d\n", by_another_process());
    printf("System V %d\n", system_v());
    printf("between protections %d\n", between_protections());
    return 0;
}
