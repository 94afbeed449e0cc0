// Exceptions thrown through constructors: operator new, the exception, operator delete. Logs what
// its own operators would return, through the functions that call them, with backtrace().
#include <cstdio>
#include <cstdlib>
#include <execinfo.h>
#include <stdexcept>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static const int FRAMES = 64;

struct Entry {
    const char *routine;
    void *frames[FRAMES];
    int count;
};

static Entry entries[1000];
static int count;

// Both variants of the operators are seen by the recorder in the library; the program only says
// where it stands when it is about to use them.
NOINLINE static void note(const char *routine) {
    Entry &entry = entries[count++];
    entry.routine = routine;
    entry.count = backtrace(entry.frames, FRAMES);
}

struct Fails {
    long values[4];
    NOINLINE explicit Fails(int depth) {
        if (depth == 0)
            throw std::runtime_error("in a constructor");
        logged_inner(depth);
    }
    NOINLINE static void logged_inner(int depth);
};

NOINLINE void Fails::logged_inner(int depth) {
    note("operator new");
    Fails *inner = new Fails(depth - 1);
    std::free(inner);
}

NOINLINE static void logged_plain() {
    note("operator new");
    long *block = new long(1);
    __asm__ volatile("" : : "r"(block) : "memory");
    note("operator delete");
    delete block;
}

NOINLINE static void caught(int depth, int recursion) {
    if (recursion > 0) {
        caught(depth, recursion - 1);
        __asm__ volatile("" ::: "memory");
        return;
    }
    try {
        Fails::logged_inner(depth);
    } catch (const std::exception &) {
        logged_plain();
    }
    logged_plain();
}

int main() {
    void *warm[4];
    backtrace(warm, 4);
    for (int round = 0; round < 10; round++)
        caught(round % 4 + 1, round % 3);
    for (int i = 0; i < count; i++) {
        std::printf("%ld %s", (long)syscall(SYS_gettid), entries[i].routine);
        for (int frame = 2; frame < entries[i].count; frame++)
            std::printf(" %p", entries[i].frames[frame]);
        std::printf("\n");
    }
    return 0;
}
