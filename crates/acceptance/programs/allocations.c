// Allocates in many ways and logs each call: thread, routine, size, result, old block, and the call
// stack as backtrace() sees it. The log is printed at the end. Usage: allocations MODE [THREADS].
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
#define FRAMES 64
#define ENTRIES 4000

struct entry {
    const char *routine;
    size_t size;
    void *result, *old;
    int count;
    void *frames[FRAMES];
};

struct log {
    int tid, count;
    struct entry *entries;
};

static struct log logs[64];
static __thread struct log *own;

// The caller's frames follow its own frame and that of this function.
NOINLINE static void note(const char *routine, size_t size, void *result, void *old) {
    if (own->count == ENTRIES)
        abort();
    struct entry *entry = &own->entries[own->count++];
    entry->routine = routine;
    entry->size = size;
    entry->result = result;
    entry->old = old;
    entry->count = backtrace(entry->frames, FRAMES);
}

NOINLINE static void *logged_malloc(size_t size) {
    void *result = malloc(size);
    note("malloc", size, result, 0);
    return result;
}

NOINLINE static void *logged_calloc(size_t count, size_t size) {
    void *result = calloc(count, size);
    note("calloc", count * size, result, 0);
    return result;
}

NOINLINE static void *logged_realloc(void *old, size_t size) {
    void *volatile copy = old;
    void *result = realloc(old, size);
    note("realloc", size, result, copy);
    return result;
}

NOINLINE static void *logged_reallocarray(void *old, size_t count, size_t size) {
    void *volatile copy = old;
    void *result = reallocarray(old, count, size);
    note("reallocarray", count * size, result, copy);
    return result;
}

NOINLINE static void logged_free(void *old) {
    void *volatile copy = old;
    free(old);
    note("free", 0, 0, copy);
}

NOINLINE static void *logged_aligned_alloc(size_t alignment, size_t size) {
    void *result = aligned_alloc(alignment, size);
    note("aligned_alloc", size, result, 0);
    return result;
}

NOINLINE static void *logged_posix_memalign(size_t alignment, size_t size) {
    void *result = 0;
    if (posix_memalign(&result, alignment, size) != 0)
        result = 0;
    note("posix_memalign", size, result, 0);
    return result;
}

NOINLINE static void *logged_memalign(size_t alignment, size_t size) {
    void *result = memalign(alignment, size);
    // The test takes both names for one.
    note("aligned_alloc", size, result, 0);
    return result;
}

NOINLINE static void *logged_valloc(size_t size) {
    void *result = valloc(size);
    note("valloc", size, result, 0);
    return result;
}

NOINLINE static void *logged_mmap(size_t size) {
    void *result = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    note("mmap", size, result, 0);
    return result;
}

NOINLINE static void *logged_mremap(void *old, size_t size, size_t larger) {
    void *result = mremap(old, size, larger, MREMAP_MAYMOVE);
    note("mremap", larger, result, old);
    return result;
}

NOINLINE static void logged_munmap(void *old, size_t size) {
    munmap(old, size);
    note("munmap", size, 0, old);
}

NOINLINE static void *recursive(int depth, size_t size) {
    void *result = depth == 0 ? logged_malloc(size) : recursive(depth - 1, size + 1);
    __asm__ volatile("" ::: "memory");
    return result;
}

NOINLINE static void *on_large_frame(int length, size_t size) {
    char *room = alloca(length);
    memset(room, length, length);
    void *result = recursive(2, size);
    __asm__ volatile("" : : "r"(room) : "memory");
    return result;
}

NOINLINE static void *aligned_frame(size_t size) {
    char room[64] __attribute__((aligned(64)));
    memset(room, 1, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory");
    void *result = on_large_frame(300, size);
    __asm__ volatile("" : : "r"(room) : "memory");
    return result;
}

static __thread jmp_buf place;

NOINLINE static void jump_from(int depth) {
    if (depth == 0) {
        logged_free(logged_malloc(5));
        longjmp(place, 1);
    }
    jump_from(depth - 1);
    __asm__ volatile("" ::: "memory");
}

NOINLINE static void jumps(int depth) {
    // The frames of a recursion have equal return addresses.
    if (depth > 0) {
        jumps(depth - 1);
        __asm__ volatile("" ::: "memory");
        return;
    }
    for (volatile int i = 0; i < 3; i++) {
        if (setjmp(place) == 0)
            jump_from(i + 1);
        logged_free(logged_malloc(6));
    }
}

static void everything(int round) {
    void *blocks[16];
    int n = 0;
    blocks[n++] = logged_malloc(10 + round);
    blocks[n++] = logged_calloc(3, 7 + round);
    blocks[n++] = logged_realloc(logged_malloc(20), 5000 + round);
    blocks[n++] = logged_realloc(0, 33);
    blocks[n++] = logged_reallocarray(logged_malloc(8), 9, 100);
    blocks[n++] = logged_aligned_alloc(64, 128);
    blocks[n++] = logged_posix_memalign(256, 77);
    blocks[n++] = logged_memalign(32, 99);
    blocks[n++] = logged_valloc(100);
    blocks[n++] = recursive(20, 50);
    blocks[n++] = on_large_frame(100 + 16 * round, 60);
    blocks[n++] = aligned_frame(70);
    blocks[n++] = logged_malloc(300000);
    logged_free(0);
    for (int i = n - 1; i >= 0; i--)
        logged_free(blocks[i]);
    void *mapped = logged_mmap(8192);
    mapped = logged_mremap(mapped, 8192, 65536);
    logged_munmap(mapped, 65536);
    jumps(2);
}

static void begin(int index) {
    own = &logs[index];
    own->tid = syscall(SYS_gettid);
    own->entries = mmap(0, ENTRIES * sizeof(struct entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *worker(void *argument) {
    begin((long)argument);
    for (int round = 0; round < 20; round++)
        everything(round);
    return 0;
}

static void handler(int signal) {
    (void)signal;
    logged_free(logged_malloc(123));
}

static void with_signals(void) {
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, 0);
    for (int flags = 0; flags < 2; flags++) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = flags ? SA_ONSTACK : 0};
        sigaction(SIGUSR1, &action, 0);
        for (int i = 0; i < 3; i++) {
            raise(SIGUSR1);
            logged_free(recursive(i, 7));
        }
    }
}

static void print_log(struct log *log) {
    for (int i = 0; i < log->count; i++) {
        struct entry *entry = &log->entries[i];
        printf("%d %s %zu %p %p", log->tid, entry->routine, entry->size, entry->result, entry->old);
        // Without note() and the logging function.
        for (int frame = 2; frame < entry->count; frame++)
            printf(" %p", entry->frames[frame]);
        printf("\n");
    }
}

static volatile int goes_on = 1;

static void stop(int signal) {
    (void)signal;
    goes_on = 0;
}

// Waits for the recorder at the end of deep calls, then allocates on the way back.
NOINLINE static void deep(int depth) {
    if (depth == 0) {
        while (goes_on)
            usleep(1000);
    } else {
        deep(depth - 1);
    }
    logged_free(logged_malloc(10 + depth));
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    int threads = count > 2 ? atoi(arguments[2]) : 1;
    void *warm[4];
    backtrace(warm, 4);
    begin(0);
    if (strcmp(mode, "all") == 0) {
        pthread_t others[64];
        for (long i = 1; i < threads; i++)
            pthread_create(&others[i], 0, worker, (void *)i);
        worker(0);
        for (int i = 1; i < threads; i++)
            pthread_join(others[i], 0);
    } else if (strcmp(mode, "signals") == 0) {
        with_signals();
    } else if (strcmp(mode, "attach") == 0) {
        signal(SIGUSR2, stop);
        void *older = logged_malloc(77);
        printf("ready %p\n", older);
        fflush(stdout);
        own->count = 0;
        deep(10);
        logged_free(older);
    }
    for (int i = 0; i < threads; i++)
        print_log(&logs[i]);
    return 0;
}
