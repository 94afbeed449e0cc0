/* Ocean (see ocean.h) with the grid kept as tiles of 32 x 32 points, each in one piece of memory. */
#include "ocean.h"

enum { TILE = 32 };

static long tiles; /* per side */
static double *points;

static double *point(long row, long column)
{
    long tile = row / TILE * tiles + column / TILE;
    return points + tile * TILE * TILE + row % TILE * TILE + column % TILE;
}

int main(int argc, char **argv)
{
    side = parse_arguments(argc, argv, OCEAN_SIZE);
    tiles = (side + 2 + TILE - 1) / TILE;
    points = allocate((size_t)(tiles * tiles), TILE * TILE * sizeof *points);
    return ocean_main("ocean-contiguous");
}
