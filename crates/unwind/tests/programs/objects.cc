// C++: virtual calls, templates, lambdas, a callback through the library's qsort, an exception that
// is being handled.
#include "stop.h"
#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
    virtual ~Shape() = default;
    virtual int area(int depth) = 0;
};

struct Nested : Shape {
    std::function<int(int)> inner;
    __attribute__((noinline)) int area(int depth) override { return inner(depth) + sink; }
};

static bool stopped;

extern "C" int compare(const void *one, const void *other) {
    if (!stopped) {
        stopped = true;
        try {
            std::map<int, std::string> names{{1, "one"}};
            sink += names.at(2).size();
        } catch (const std::out_of_range &error) {
            std::vector<int> values{3, 1, 2};
            std::for_each(values.begin(), values.end(), [](int value) {
                sink += value;
                if (value == 2) stop_here();
            });
        }
    }
    return *static_cast<const int *>(one) - *static_cast<const int *>(other);
}

int main() {
    Nested nested;
    std::vector<int> values{5, 4, 3, 2, 1};
    nested.inner = [&](int depth) {
        if (depth > 0) return nested.area(depth - 1) + 1;
        qsort(values.data(), values.size(), sizeof(int), compare);
        return values[0];
    };
    Shape *shape = &nested;
    std::printf("%d\n", shape->area(4) > 0);
}
