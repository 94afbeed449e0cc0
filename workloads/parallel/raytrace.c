/* A picture of SIZE x SIZE points: spheres that mirror each other above a chequered floor, one light, shadows. Threads take
 * tiles from a counter.
 */
#include "common.h"
#include <math.h>

enum { TILE = 16, SPHERES = 24, REFLECTIONS = 4 };

typedef struct {
    double x, y, z;
} vector;

struct sphere {
    vector centre, colour;
    double radius, mirror;
};

static struct sphere spheres[SPHERES];
static long side;
static uint32_t *picture;
static atomic_long next_tile;

static vector add(vector a, vector b) { return (vector){a.x + b.x, a.y + b.y, a.z + b.z}; }
static vector subtract(vector a, vector b) { return (vector){a.x - b.x, a.y - b.y, a.z - b.z}; }
static vector scale(vector a, double by) { return (vector){a.x * by, a.y * by, a.z * by}; }
static double dot(vector a, vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
static vector unit(vector a) { return scale(a, 1 / sqrt(dot(a, a))); }

/* Distance along the ray to a sphere; negative if it is missed. */
static double meet(const struct sphere *sphere, vector origin, vector direction)
{
    vector to = subtract(sphere->centre, origin);
    double along = dot(to, direction), discriminant = along * along - dot(to, to) + sphere->radius * sphere->radius;
    if (discriminant < 0)
        return -1;
    double root = sqrt(discriminant);
    return along - root > 1e-6 ? along - root : along + root > 1e-6 ? along + root : -1;
}

/* The nearest sphere on the ray, or NULL. */
static const struct sphere *nearest(vector origin, vector direction, double *distance)
{
    const struct sphere *found = NULL;
    for (int i = 0; i < SPHERES; i++) {
        double here = meet(&spheres[i], origin, direction);
        if (here > 0 && (found == NULL || here < *distance)) {
            found = &spheres[i];
            *distance = here;
        }
    }
    return found;
}

static vector sky(vector direction)
{
    double height = (direction.y + 1) / 2;
    return (vector){0.6 - 0.3 * height, 0.7 - 0.2 * height, 0.9};
}

static vector trace(vector origin, vector direction, int depth);

/* Light that leaves a point of a surface along the ray. */
static vector shade(vector at, vector normal, vector colour, double mirror, vector direction, int depth)
{
    vector light = unit((vector){0.5, 1, -0.4});
    double distance, lit = dot(normal, light);
    if (lit < 0 || nearest(at, light, &distance) != NULL)
        lit = 0;
    vector result = scale(colour, 0.15 + 0.85 * lit);
    if (mirror > 0 && depth < REFLECTIONS) {
        vector reflected = subtract(direction, scale(normal, 2 * dot(direction, normal)));
        result = add(scale(result, 1 - mirror), scale(trace(at, reflected, depth + 1), mirror));
    }
    return result;
}

static vector trace(vector origin, vector direction, int depth)
{
    double distance = 0;
    const struct sphere *sphere = nearest(origin, direction, &distance);
    double floor_distance = direction.y < 0 ? -origin.y / direction.y : -1;
    if (floor_distance > 1e-6 && (sphere == NULL || floor_distance < distance)) {
        vector at = add(origin, scale(direction, floor_distance));
        int dark = ((long)floor(at.x) + (long)floor(at.z)) & 1;
        vector colour = dark ? (vector){0.2, 0.2, 0.2} : (vector){0.9, 0.9, 0.8};
        return floor_distance > 60 ? sky(direction) : shade(at, (vector){0, 1, 0}, colour, 0.1, direction, depth);
    }
    if (sphere == NULL)
        return sky(direction);
    vector at = add(origin, scale(direction, distance));
    return shade(at, unit(subtract(at, sphere->centre)), sphere->colour, sphere->mirror, direction, depth);
}

static uint32_t byte_of(double value)
{
    return value >= 1 ? 255 : (uint32_t)(value * 256);
}

static void draw(long row, long column)
{
    double x = ((double)column + 0.5) / (double)side - 0.5, y = 0.5 - ((double)row + 0.5) / (double)side;
    vector colour = trace((vector){0, 2.5, -9}, unit((vector){x, y - 0.1, 0.9}), 0);
    picture[row * side + column] = byte_of(colour.x) << 16 | byte_of(colour.y) << 8 | byte_of(colour.z);
}

static void work(int thread)
{
    (void)thread;
    long tiles = (side + TILE - 1) / TILE;
    for (long tile; (tile = atomic_fetch_add(&next_tile, 1)) < tiles * tiles;)
        for (long i = 0; i < TILE * TILE; i++) {
            long row = tile / tiles * TILE + i / TILE, column = tile % tiles * TILE + i % TILE;
            if (row < side && column < side)
                draw(row, column);
        }
}

int main(int argc, char **argv)
{
    side = parse_arguments(argc, argv, (struct size_rule){"points per side", 1000, 1, 8192});
    picture = allocate((size_t)(side * side), sizeof *picture);
    for (int i = 0; i < SPHERES; i++) {
        uint64_t n = 8 * (uint64_t)i;
        double radius = 0.4 + 0.8 * random_unit(n);
        spheres[i] = (struct sphere){{10 * random_unit(n + 1) - 5, radius, 10 * random_unit(n + 2) - 3},
                                     {random_unit(n + 3), random_unit(n + 4), random_unit(n + 5)},
                                     radius,
                                     0.6 * random_unit(n + 6)};
    }
    run_threads(work);
    uint64_t hash = HASH_START;
    for (long i = 0; i < side * side; i++)
        hash = hash_word(hash, picture[i]);
    printf("raytrace: %ld x %ld, hash %016llx\n", side, side, (unsigned long long)hash);
    return 0;
}
