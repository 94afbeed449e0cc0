// A library that is loaded by routines.c.
__attribute__((noinline)) static long own(long x) {
    return x * 3 ^ x >> 1;
}

long plugged(long x, long (*callback)(long)) {
    long sum = own(x);
    for (long i = 0; i < x; i++)
        sum += callback(i);
    return sum;
}
