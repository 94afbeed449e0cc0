/* Ocean (see ocean.h) with the grid kept as one two-dimensional array. */
#include "ocean.h"

static double *points;

static double *point(long row, long column)
{
    return points + row * (side + 2) + column;
}

int main(int argc, char **argv)
{
    side = parse_arguments(argc, argv, OCEAN_SIZE);
    points = allocate((size_t)((side + 2) * (side + 2)), sizeof *points);
    return ocean_main("ocean-noncontiguous");
}
