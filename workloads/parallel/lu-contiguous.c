/* LU decomposition (see lu.h) with every block in one piece of memory. */
#include "lu.h"

static double *blocks_in_order;

static double *block(long row, long column)
{
    return blocks_in_order + (row * blocks + column) * BLOCK * BLOCK;
}

static long stride(void)
{
    return BLOCK;
}

int main(int argc, char **argv)
{
    blocks = parse_arguments(argc, argv, LU_SIZE);
    blocks_in_order = allocate((size_t)(blocks * blocks), BLOCK * BLOCK * sizeof(double));
    return lu_main("lu-contiguous");
}
