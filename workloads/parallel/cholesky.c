/* Cholesky decomposition of a sparse matrix: the five-point stencil on a grid of SIZE x SIZE, kept as blocks inside its
 * envelope. Threads take block columns in turn from a counter; a column waits for those to its left, one after the other,
 * so each is changed in a fixed order.
 */
#include "common.h"
#include <math.h>

enum { BLOCK = 16 };

static long side, order, columns, depth; /* depth: blocks from the diagonal to the end of the envelope */
static double *blocks_in_order;
static atomic_long next_column;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static unsigned char *is_finished;

/* Block `below` blocks under the diagonal in `column`, row by row. */
static double *block(long column, long below)
{
    return blocks_in_order + (column * (depth + 1) + below) * BLOCK * BLOCK;
}

static double element(long row, long column)
{
    if (row >= order || column >= order)
        return row == column;
    long difference = row - column;
    if (difference == 0)
        return 4.5;
    return difference == side || (difference == 1 && row % side != 0) ? -1.0 : 0.0;
}

static void fill(long column)
{
    for (long below = 0; below <= depth; below++)
        for (long i = 0; i < BLOCK; i++)
            for (long j = 0; j < BLOCK; j++)
                block(column, below)[i * BLOCK + j] = element((column + below) * BLOCK + i, column * BLOCK + j);
}

static void wait_for(long column)
{
    pthread_mutex_lock(&mutex);
    while (!is_finished[column])
        pthread_cond_wait(&finished, &mutex);
    pthread_mutex_unlock(&mutex);
}

static void finish(long column)
{
    pthread_mutex_lock(&mutex);
    is_finished[column] = 1;
    pthread_cond_broadcast(&finished);
    pthread_mutex_unlock(&mutex);
}

/* C = C - A B', skipping rows of zeros. */
static void update(double *c, const double *a, const double *b)
{
    for (long i = 0; i < BLOCK; i++)
        for (long j = 0; j < BLOCK; j++) {
            double sum = 0;
            for (long k = 0; k < BLOCK; k++)
                sum += a[i * BLOCK + k] * b[j * BLOCK + k];
            c[i * BLOCK + j] -= sum;
        }
}

/* A = L L' in place, the lower half. */
static void factor(double *a)
{
    for (long j = 0; j < BLOCK; j++) {
        for (long k = 0; k < j; k++)
            for (long i = j; i < BLOCK; i++)
                a[i * BLOCK + j] -= a[i * BLOCK + k] * a[j * BLOCK + k];
        double pivot = sqrt(a[j * BLOCK + j]);
        for (long i = j; i < BLOCK; i++)
            a[i * BLOCK + j] /= pivot;
        for (long i = 0; i < j; i++)
            a[i * BLOCK + j] = 0;
    }
}

/* B = B inverse(L'). */
static void solve(double *b, const double *l)
{
    for (long i = 0; i < BLOCK; i++)
        for (long j = 0; j < BLOCK; j++) {
            double value = b[i * BLOCK + j];
            for (long k = 0; k < j; k++)
                value -= b[i * BLOCK + k] * l[j * BLOCK + k];
            b[i * BLOCK + j] = value / l[j * BLOCK + j];
        }
}

static void complete(long column)
{
    fill(column);
    for (long left = column < depth ? 0 : column - depth; left < column; left++) {
        wait_for(left);
        long reach = column - left;
        for (long below = 0; below + reach <= depth; below++)
            update(block(column, below), block(left, reach + below), block(left, reach));
    }
    factor(block(column, 0));
    for (long below = 1; below <= depth; below++)
        solve(block(column, below), block(column, 0));
    finish(column);
}

static void work(int thread)
{
    (void)thread;
    for (long column; (column = atomic_fetch_add(&next_column, 1)) < columns;)
        complete(column);
}

static double factored(long row, long column)
{
    long below = row / BLOCK - column / BLOCK;
    return below < 0 || below > depth ? 0.0 : block(column / BLOCK, below)[row % BLOCK * BLOCK + column % BLOCK];
}

/* How far row `row` of L L' is from that of the matrix, from the start of the envelope on. */
static double row_error(long row)
{
    double worst = 0;
    long first = row < (depth + 1) * BLOCK ? 0 : row - (depth + 1) * BLOCK;
    for (long column = first; column <= row; column++) {
        double sum = 0;
        for (long k = first; k <= column; k++)
            sum += factored(row, k) * factored(column, k);
        worst = fmax(worst, fabs(sum - element(row, column)));
    }
    return worst;
}

int main(int argc, char **argv)
{
    side = parse_arguments(argc, argv, (struct size_rule){"points per side of the grid", 150, 2, 400});
    order = side * side;
    columns = (order + BLOCK - 1) / BLOCK;
    depth = (side + BLOCK - 1) / BLOCK + 1;
    blocks_in_order = allocate((size_t)(columns * (depth + 1)), BLOCK * BLOCK * sizeof(double));
    is_finished = allocate((size_t)columns, 1);
    run_threads(work);
    double logarithm = 0, worst = 0;
    for (long i = 0; i < order; i++)
        logarithm += 2 * log(factored(i, i));
    for (long row = 0; row < order; row += 1 + order / 8)
        worst = fmax(worst, row_error(row));
    printf("cholesky: order %ld, log determinant %.9e, %s\n", order, logarithm, worst < 1e-10 ? "product agrees" : "WRONG");
    return worst < 1e-10 ? 0 : 1;
}
