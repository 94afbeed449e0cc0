// A library for LD_PRELOAD that logs every call of an allocation routine to the file that
// ALLOCATION_LOG names, until the process exits: routine, size, result, old block.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void __libc_free(void *);

static char buffer[1 << 16];
static size_t filled;
static int file = -2;

static void flush(void) {
    if (file == -2) {
        const char *path = getenv("ALLOCATION_LOG");
        file = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    }
    for (size_t written = 0; file >= 0 && written < filled;)
        written += write(file, buffer + written, filled - written);
    filled = 0;
}

static void number(unsigned long value) {
    char digits[16];
    int count = 0;
    do
        digits[count++] = "0123456789abcdef"[value % 16];
    while (value /= 16);
    buffer[filled++] = ' ';
    while (count > 0)
        buffer[filled++] = digits[--count];
}

static void note(const char *routine, size_t size, void *result, void *old) {
    if (filled + 100 > sizeof buffer)
        flush();
    while (*routine)
        buffer[filled++] = *routine++;
    number(size);
    number((unsigned long)result);
    number((unsigned long)old);
    buffer[filled++] = '\n';
}

void *malloc(size_t size) {
    void *result = __libc_malloc(size);
    note("malloc", size, result, 0);
    return result;
}

void *calloc(size_t count, size_t size) {
    void *result = __libc_calloc(count, size);
    note("calloc", count * size, result, 0);
    return result;
}

void *realloc(void *old, size_t size) {
    unsigned long block = (unsigned long)old;
    void *result = __libc_realloc(old, size);
    note("realloc", size, result, (void *)block);
    return result;
}

// The C library's own one calls realloc, which would be logged instead.
void *reallocarray(void *old, size_t count, size_t size) {
    unsigned long block = (unsigned long)old;
    size_t bytes;
    void *result = __builtin_mul_overflow(count, size, &bytes) ? NULL : __libc_realloc(old, bytes);
    note("reallocarray", bytes, result, (void *)block);
    return result;
}

void free(void *old) {
    unsigned long block = (unsigned long)old;
    __libc_free(old);
    note("free", 0, 0, (void *)block);
}

__attribute__((destructor)) static void finish(void) {
    flush();
    close(file);
    file = -1;
}
