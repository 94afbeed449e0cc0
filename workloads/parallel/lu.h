/* LU decomposition of a dense matrix in blocks, without pivoting (the diagonal dominates). The two programs that include
 * this differ in where a block lies: they define block() and STRIDE.
 *
 * Blocks are dealt to the threads in turn. Each block is changed in a fixed order, whichever thread does it.
 */
#ifndef PARALLEL_LU_H
#define PARALLEL_LU_H

#include "common.h"
#include <math.h>

enum { BLOCK = 16 };

static long blocks; /* per side */

/* First element of a block; its rows are stride() elements apart. */
static double *block(long row, long column);
static long stride(void);

static int is_mine(long row, long column, int thread)
{
    return (row * blocks + column) % thread_count == thread;
}

/* A = L U in place. */
static void factor(double *a)
{
    for (long k = 0; k < BLOCK; k++)
        for (long i = k + 1; i < BLOCK; i++) {
            double multiple = a[i * stride() + k] /= a[k * stride() + k];
            for (long j = k + 1; j < BLOCK; j++)
                a[i * stride() + j] -= multiple * a[k * stride() + j];
        }
}

/* B = inverse(L) B, in the row of the pivot. */
static void solve_row(double *b, const double *pivot)
{
    for (long k = 0; k < BLOCK; k++)
        for (long i = k + 1; i < BLOCK; i++)
            for (long j = 0; j < BLOCK; j++)
                b[i * stride() + j] -= pivot[i * stride() + k] * b[k * stride() + j];
}

/* B = B inverse(U), in the column of the pivot. */
static void solve_column(double *b, const double *pivot)
{
    for (long i = 0; i < BLOCK; i++)
        for (long k = 0; k < BLOCK; k++) {
            double value = b[i * stride() + k] /= pivot[k * stride() + k];
            for (long j = k + 1; j < BLOCK; j++)
                b[i * stride() + j] -= value * pivot[k * stride() + j];
        }
}

/* C = C - A B. */
static void update(double *c, const double *a, const double *b)
{
    for (long i = 0; i < BLOCK; i++)
        for (long k = 0; k < BLOCK; k++) {
            double value = a[i * stride() + k];
            for (long j = 0; j < BLOCK; j++)
                c[i * stride() + j] -= value * b[k * stride() + j];
        }
}

static double element(long row, long column)
{
    double value = random_unit((uint64_t)(row * blocks * BLOCK + column));
    return row == column ? value + (double)(blocks * BLOCK) : value;
}

static void fill(int thread)
{
    for (long row = 0; row < blocks; row++)
        for (long column = 0; column < blocks; column++)
            if (is_mine(row, column, thread))
                for (long i = 0; i < BLOCK * BLOCK; i++)
                    block(row, column)[i / BLOCK * stride() + i % BLOCK] =
                        element(row * BLOCK + i / BLOCK, column * BLOCK + i % BLOCK);
}

static void decompose(int thread)
{
    fill(thread);
    barrier();
    for (long k = 0; k < blocks; k++) {
        if (is_mine(k, k, thread))
            factor(block(k, k));
        barrier();
        for (long i = k + 1; i < blocks; i++) {
            if (is_mine(k, i, thread))
                solve_row(block(k, i), block(k, k));
            if (is_mine(i, k, thread))
                solve_column(block(i, k), block(k, k));
        }
        barrier();
        for (long i = k + 1; i < blocks; i++)
            for (long j = k + 1; j < blocks; j++)
                if (is_mine(i, j, thread))
                    update(block(i, j), block(i, k), block(k, j));
        barrier();
    }
}

static double factored(long row, long column)
{
    return block(row / BLOCK, column / BLOCK)[row % BLOCK * stride() + column % BLOCK];
}

/* How far row `row` of L U is from that of the matrix. */
static double row_error(long row)
{
    double worst = 0;
    for (long column = 0; column < blocks * BLOCK; column++) {
        double sum = 0;
        for (long k = 0; k <= row && k <= column; k++)
            sum += (k == row ? 1.0 : factored(row, k)) * factored(k, column);
        worst = fmax(worst, fabs(sum - element(row, column)));
    }
    return worst;
}

/* Decomposes, checks some rows and prints the logarithm of the determinant. */
static int lu_main(const char *name)
{
    double logarithm = 0, worst = 0;
    run_threads(decompose);
    for (long i = 0; i < blocks * BLOCK; i++)
        logarithm += log(factored(i, i));
    for (long row = 0; row < blocks * BLOCK; row += blocks * BLOCK / 8)
        worst = fmax(worst, row_error(row));
    printf("%s: %ld x %ld, log determinant %.9e, %s\n", name, blocks * BLOCK, blocks * BLOCK, logarithm,
           worst < 1e-8 ? "product agrees" : "WRONG");
    return worst < 1e-8 ? 0 : 1;
}

static const struct size_rule LU_SIZE = {"blocks of 16 x 16 per side", 72, 1, 256};

#endif
