// Exceptions through deep stacks, of several types, in threads, and one that is not caught.
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Noisy {
    int n;
    ~Noisy() {
        if (n % 100 == 0)
            std::cout << "gone " << n << "\n";
    }
};

static int deep(int n) {
    Noisy noisy{n};
    if (n == 0)
        throw std::runtime_error("bottom");
    return deep(n - 1) + 1;
}

static int throw_and_catch(int i) {
    try {
        if (i % 2)
            throw i;
        throw std::string("x");
    } catch (int n) {
        return n;
    } catch (const std::string &) {
        return 1;
    }
}

int main() {
    try {
        deep(300);
    } catch (const std::exception &e) {
        std::cout << "caught " << e.what() << "\n";
    }
    int thrown = 0;
    for (int i = 0; i < 500; i++)
        thrown += throw_and_catch(i);
    std::cout << thrown << "\n";
    std::vector<std::thread> threads;
    std::vector<int> caught(6);
    for (int i = 0; i < 6; i++)
        threads.emplace_back([i, &caught] {
            for (int j = 0; j < 20; j++)
                caught[i] += throw_and_catch(j);
        });
    for (auto &thread : threads)
        thread.join();
    for (int count : caught)
        std::cout << count << "\n";
    try {
        std::map<int, int>().at(1);
    } catch (const std::out_of_range &) {
        std::cout << "out of range" << std::endl;
    }
    throw 1;
}
