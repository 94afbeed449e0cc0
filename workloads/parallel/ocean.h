/* An elliptic equation on a square grid by red-black relaxation, as ocean models solve it in every time step. The two
 * programs that include this differ in where a point lies: they define point().
 *
 * All red points are relaxed from black ones, then all black from red: the result does not depend on who does it. The
 * residual is summed per row, the rows in order.
 */
#ifndef PARALLEL_OCEAN_H
#define PARALLEL_OCEAN_H

#include "common.h"
#include <math.h>

enum { TIME_STEPS = 4, SWEEPS_MAX = 25 };

static long side; /* inner points per side; the border is at 0 and side + 1 */
static double *row_residuals;
static double residual;
static long sweep_count;

/* Value at a point, border included. */
static double *point(long row, long column);

static double source(long row, long column, int step)
{
    return random_unit((uint64_t)((step * (side + 2) + row) * (side + 2) + column)) - 0.5;
}

/* Relaxes the points of one colour in a row; returns the sum of the squares of the changes. */
static double relax_row(long row, long colour, int step)
{
    double sum = 0;
    for (long column = 1 + (row + colour) % 2; column <= side; column += 2) {
        double *here = point(row, column);
        double around = *point(row - 1, column) + *point(row + 1, column) + *point(row, column - 1) + *point(row, column + 1);
        double change = 1.2 * ((around - source(row, column, step)) / 4 - *here);
        *here += change;
        sum += change * change;
    }
    return sum;
}

static void work(int thread)
{
    struct range mine = share(side, thread);
    for (int step = 0; step < TIME_STEPS; step++)
        for (int sweep = 0; sweep < SWEEPS_MAX; sweep++) {
            for (long colour = 0; colour < 2; colour++) {
                for (long row = mine.begin + 1; row <= mine.end; row++)
                    row_residuals[row] = (colour == 0 ? 0 : row_residuals[row]) + relax_row(row, colour, step);
                barrier();
            }
            if (thread == 0) {
                residual = 0;
                for (long row = 1; row <= side; row++)
                    residual += row_residuals[row];
                sweep_count++;
            }
            barrier();
            if (residual < 1e-3)
                break;
        }
}

static int ocean_main(const char *name)
{
    row_residuals = allocate((size_t)side + 2, sizeof *row_residuals);
    run_threads(work);
    double sum = 0;
    for (long row = 1; row <= side; row++)
        for (long column = 1; column <= side; column++)
            sum += *point(row, column) * (double)(row % 7 + 1);
    int good = isfinite(sum) && residual < (double)(side * side);
    printf("%s: %ld x %ld, %ld sweeps, residual %.9e, sum %.9e%s\n", name, side, side, sweep_count, residual, sum,
           good ? "" : ", WRONG");
    return good ? 0 : 1;
}

static const struct size_rule OCEAN_SIZE = {"inner points per side", 1000, 4, 8192};

#endif
