// Loops that catch exceptions, inside and around each other. Counts itself as scopes.c does.
#include <cstdio>
#include <stdexcept>

#define FUNCTION extern "C" __attribute__((noinline, noclone))
#define BARRIER __asm__ volatile("" ::: "memory")

enum { CATCHER, OUTER, INNER, LOOPS };
static const char *const names[] = {"catcher", "nested", "nested"};
static volatile long entered[LOOPS], iterations[LOOPS], calls[3];

#define ENTER(loop) (entered[loop] = entered[loop] + 1)
#define ITERATE(loop) (iterations[loop] = iterations[loop] + 1)

FUNCTION void throwing(int n) {
    calls[0] = calls[0] + 1;
    if (n % 3 == 0)
        throw std::runtime_error("thrown");
    BARRIER;
}

// Goes on with the loop behind an exception.
FUNCTION void catcher(int n) {
    calls[1] = calls[1] + 1;
    int i = 0;
    ENTER(CATCHER);
    do {
        BARRIER;
        ITERATE(CATCHER);
        try {
            throwing(i);
        } catch (const std::exception &) {
            BARRIER;
        }
    } while (++i < n);
}

// An exception leaves the inner loop only.
FUNCTION void nested(int n) {
    calls[2] = calls[2] + 1;
    int i = 0;
    ENTER(OUTER);
    do {
        BARRIER;
        ITERATE(OUTER);
        try {
            int j = i + 1;
            ENTER(INNER);
            do {
                BARRIER;
                ITERATE(INNER);
                throwing(j);
            } while (++j < n);
        } catch (const std::exception &) {
            BARRIER;
        }
    } while (++i < n);
}

int main() {
    for (int n = 1; n < 9; n++) {
        catcher(n);
        nested(n);
    }
    const char *const functions[] = {"throwing", "catcher", "nested"};
    for (int i = 0; i < 3; i++)
        std::printf("function %s %ld\n", functions[i], calls[i]);
    for (int i = 0; i < LOOPS; i++)
        std::printf("loop %s %ld %ld\n", names[i], entered[i], iterations[i]);
}
