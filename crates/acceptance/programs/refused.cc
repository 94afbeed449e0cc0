// operator new that throws, and what is allocated afterwards: from the same function, from the same
// instruction, from functions further in, and from main. Logs each call and its result.
#include <cstdio>
#include <cstdlib>
#include <new>

#define NOINLINE __attribute__((noinline, noclone))

static volatile std::size_t huge = std::size_t(1) << 46;

static void log(const char *routine, std::size_t size, void *result) {
    if (result)
        std::printf("%s, %zu, %p\n", routine, size, result);
    else
        std::printf("%s, %zu, failed\n", routine, size);
}

// The same instruction asks for all blocks.
NOINLINE static void *ask(std::size_t size) {
    void *block = nullptr;
    try {
        block = ::operator new(size);
    } catch (const std::bad_alloc &) {
        std::printf("operator new, %zu, no return\n", size);
        return nullptr;
    }
    log("operator new", size, block);
    return block;
}

NOINLINE static void inner(std::size_t size) {
    volatile char frame[256] = {};
    void *block = std::malloc(size);
    log("malloc", size, block);
    std::free(block);
    log("free", size, block);
    frame[0] = 1;
}

NOINLINE static void *passes_on(std::size_t size) {
    volatile char frame[64] = {};
    void *block = ::operator new[](size);
    frame[0] = 1;
    log("operator new[]", size, block);
    return block;
}

NOINLINE static void round(std::size_t size) {
    void *first = ask(size);
    ask(huge);
    void *second = ask(size + 1);
    inner(size + 2);
    try {
        passes_on(huge);
    } catch (const std::bad_alloc &) {
        std::printf("operator new[], %zu, no return\n", huge);
    }
    inner(size + 3);
    void *third = passes_on(size + 4);
    ::operator delete(first);
    log("operator delete", size, first);
    ::operator delete(second);
    log("operator delete", size + 1, second);
    ::operator delete[](third);
    log("operator delete[]", size + 4, third);
}

int main() {
    static char buffer[1 << 16];
    std::setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (std::size_t i = 0; i < 3; i++)
        round(100 + 10 * i);
    log("operator new", huge, ::operator new(huge, std::nothrow));
    inner(7);
    return 0;
}
