/* Product of two matrices of SIZE x SIZE, in tiles; threads own rows of the result. */
#include "common.h"

enum { TILE = 32 };

static long side;
static double *left, *right, *product;

static void multiply_tile(struct range rows, long inner, long column)
{
    long inner_end = inner + TILE < side ? inner + TILE : side, column_end = column + TILE < side ? column + TILE : side;
    for (long i = rows.begin; i < rows.end; i++)
        for (long k = inner; k < inner_end; k++) {
            double value = left[i * side + k];
            for (long j = column; j < column_end; j++)
                product[i * side + j] += value * right[k * side + j];
        }
}

static void work(int thread)
{
    struct range mine = share(side, thread);
    for (long i = mine.begin * side; i < mine.end * side; i++) {
        left[i] = random_unit((uint64_t)i) - 0.5;
        right[i] = random_unit((uint64_t)(i + side * side)) - 0.5;
    }
    barrier();
    for (long inner = 0; inner < side; inner += TILE)
        for (long column = 0; column < side; column += TILE)
            multiply_tile(mine, inner, column);
}

int main(int argc, char **argv)
{
    side = parse_arguments(argc, argv, (struct size_rule){"rows and columns", 768, 1, 8192});
    left = allocate((size_t)(side * side), sizeof *left);
    right = allocate((size_t)(side * side), sizeof *right);
    product = allocate((size_t)(side * side), sizeof *product);
    run_threads(work);
    /* The sum of all elements is also the product of the column sums of the one and the row sums of the other. */
    double sum = 0, weighted = 0, wanted = 0;
    for (long k = 0; k < side; k++) {
        double column_sum = 0, row_sum = 0;
        for (long i = 0; i < side; i++) {
            column_sum += left[i * side + k];
            row_sum += right[k * side + i];
        }
        wanted += column_sum * row_sum;
    }
    for (long i = 0; i < side * side; i++) {
        sum += product[i];
        weighted += product[i] * (double)(i % 11 + 1);
    }
    double error = sum - wanted;
    int good = error < 1e-6 && error > -1e-6;
    printf("matmul: %ld x %ld, weighted sum %.9e, %s\n", side, side, weighted, good ? "sums agree" : "WRONG");
    return good ? 0 : 1;
}
