/* LU decomposition (see lu.h) of an ordinary two-dimensional array: the rows of a block are far apart. */
#include "lu.h"

static double *matrix;

static double *block(long row, long column)
{
    return matrix + row * BLOCK * blocks * BLOCK + column * BLOCK;
}

static long stride(void)
{
    return blocks * BLOCK;
}

int main(int argc, char **argv)
{
    blocks = parse_arguments(argc, argv, LU_SIZE);
    matrix = allocate((size_t)(blocks * blocks), BLOCK * BLOCK * sizeof(double));
    return lu_main("lu-noncontiguous");
}
