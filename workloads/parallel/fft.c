/* Fourier transform of 4^SIZE complex numbers, forwards and back, by the six-step method: the data are a square matrix,
 * rows are transformed one by one and transposed in between. Threads own rows and meet at barriers.
 */
#include "common.h"
#include <math.h>

typedef struct {
    double real, imaginary;
} number;

static long side;           /* rows and columns */
static number *data, *turned, *roots; /* roots: of unity, of order side * side */

static number multiply(number a, number b)
{
    return (number){a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

/* The root of unity exp(-2 pi i index / (side * side)), conjugated on the way back. */
static number root(long index, int back)
{
    number value = roots[index];
    if (back)
        value.imaginary = -value.imaginary;
    return value;
}

static void transpose(const number *from, number *to, struct range rows)
{
    enum { TILE = 8 };
    for (long tile = 0; tile < side; tile += TILE)
        for (long row = rows.begin; row < rows.end; row++)
            for (long column = tile; column < tile + TILE && column < side; column++)
                to[row * side + column] = from[column * side + row];
}

/* Puts element i where the reversed bits of i say. */
static void reverse_bits(number *row)
{
    for (long i = 1, j = 0; i < side; i++) {
        long bit = side >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            number swapped = row[i];
            row[i] = row[j];
            row[j] = swapped;
        }
    }
}

static void transform_row(number *row, int back)
{
    reverse_bits(row);
    for (long half = 1; half < side; half *= 2) {
        long stride = side / (2 * half) * side;
        for (long start = 0; start < side; start += 2 * half)
            for (long k = 0; k < half; k++) {
                number even = row[start + k], odd = multiply(row[start + k + half], root(k * stride, back));
                row[start + k] = (number){even.real + odd.real, even.imaginary + odd.imaginary};
                row[start + k + half] = (number){even.real - odd.real, even.imaginary - odd.imaginary};
            }
    }
}

static void transform(struct range rows, int back)
{
    transpose(data, turned, rows);
    barrier();
    for (long row = rows.begin; row < rows.end; row++) {
        transform_row(turned + row * side, back);
        for (long column = 0; column < side; column++)
            turned[row * side + column] = multiply(turned[row * side + column], root(row * column, back));
    }
    barrier();
    transpose(turned, data, rows);
    barrier();
    for (long row = rows.begin; row < rows.end; row++)
        transform_row(data + row * side, back);
    barrier();
    transpose(data, turned, rows);
    barrier();
    memcpy(data + rows.begin * side, turned + rows.begin * side, (size_t)((rows.end - rows.begin) * side) * sizeof *data);
    barrier();
}

static number expected(long index)
{
    return (number){random_unit(2 * (uint64_t)index) - 0.5, random_unit(2 * (uint64_t)index + 1) - 0.5};
}

static double energy;

static void work(int thread)
{
    struct range rows = share(side, thread);
    for (long i = rows.begin * side; i < rows.end * side; i++) {
        double angle = -2 * 3.14159265358979323846 * (double)i / (double)(side * side);
        data[i] = expected(i);
        roots[i] = (number){cos(angle), sin(angle)};
    }
    barrier();
    transform(rows, 0);
    if (thread == 0)
        for (long i = 0; i < side * side; i++)
            energy += data[i].real * data[i].real + data[i].imaginary * data[i].imaginary;
    barrier();
    transform(rows, 1);
}

int main(int argc, char **argv)
{
    long size = parse_arguments(argc, argv, (struct size_rule){"half the binary logarithm of the number of points", 10, 1, 13});
    side = 1L << size;
    data = allocate((size_t)(side * side), sizeof *data);
    turned = allocate((size_t)(side * side), sizeof *turned);
    roots = allocate((size_t)(side * side), sizeof *roots);
    run_threads(work);
    double points = (double)(side * side), worst = 0;
    for (long i = 0; i < side * side; i++) {
        number wanted = expected(i);
        double error = fabs(data[i].real / points - wanted.real) + fabs(data[i].imaginary / points - wanted.imaginary);
        worst = error > worst ? error : worst;
    }
    printf("fft: %ld points, energy %.9e, %s\n", side * side, energy / points, worst < 1e-10 ? "inverse agrees" : "WRONG");
    return worst < 1e-10 ? 0 : 1;
}
