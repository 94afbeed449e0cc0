// A routine that is left by exceptions, and otherwise, by turns.
#include <cstdio>
#include <stdexcept>
#include <string>

#define ROUTINE __attribute__((noinline, noclone))

namespace some {
ROUTINE int bottom(int x) {
    if (x % 3 == 1)
        throw std::runtime_error("bottom");
    return x * 7;
}

struct Guard {
    int &count;
    ~Guard() { count++; }
};

static int unwound;

ROUTINE int chosen(int x) {
    Guard guard{unwound};
    return x > 4 ? chosen(x - 3) + 1 : bottom(x);
}

ROUTINE int catcher(int x) {
    try {
        return chosen(x);
    } catch (const std::exception &) {
        return bottom(3 * x);
    }
}
} // namespace some

int main() {
    int sum = 0;
    for (int i = 0; i < 60; i++)
        sum += some::catcher(i % 13) + some::bottom(3 * i);
    printf("%d %d\n", sum, some::unwound);
    return 0;
}
