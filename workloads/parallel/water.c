/* Molecular dynamics of SIZE^3 water molecules in a periodic box: springs inside a molecule, the Lennard-Jones force between
 * the oxygens of different ones up to a cut-off. A thread computes all forces on its own molecules, so sums have a fixed order.
 */
#include "common.h"
#include <math.h>

enum { TIME_STEPS = 6, ATOMS = 3 };

typedef struct {
    double x, y, z;
} vector;

/* Oxygen, hydrogen, hydrogen. */
struct molecule {
    vector position[ATOMS], velocity[ATOMS], force[ATOMS];
    double potential;
};

static const double MASS[ATOMS] = {16, 1, 1};
static const double TIME_STEP = 0.002, SPACING = 1.2, BOND = 0.3, BOND_STRENGTH = 400, BETWEEN_HYDROGENS = 0.48;

static long count;
static double box, cutoff;
static struct molecule *molecules;

/* The shortest of the distances between the periodic images, in one dimension. */
static double nearest_image(double difference)
{
    if (difference > box / 2)
        return difference - box;
    return difference < -box / 2 ? difference + box : difference;
}

static vector separation(vector to, vector from)
{
    return (vector){nearest_image(to.x - from.x), nearest_image(to.y - from.y), nearest_image(to.z - from.z)};
}

static void push(vector *force, vector direction, double strength)
{
    force->x += direction.x * strength;
    force->y += direction.y * strength;
    force->z += direction.z * strength;
}

static void spring(struct molecule *molecule, int a, int b, double length)
{
    vector d = separation(molecule->position[b], molecule->position[a]);
    double distance = sqrt(d.x * d.x + d.y * d.y + d.z * d.z), stretch = distance - length;
    double strength = BOND_STRENGTH * stretch / distance;
    push(&molecule->force[a], d, strength);
    push(&molecule->force[b], d, -strength);
    molecule->potential += BOND_STRENGTH * stretch * stretch / 2;
}

/* The force of all other oxygens on this one. */
static void attract(long index)
{
    struct molecule *molecule = &molecules[index];
    for (long other = 0; other < count; other++) {
        if (other == index)
            continue;
        vector d = separation(molecule->position[0], molecules[other].position[0]);
        double square = d.x * d.x + d.y * d.y + d.z * d.z;
        if (square > cutoff * cutoff)
            continue;
        double inverse = 1 / square, sixth = inverse * inverse * inverse;
        push(&molecule->force[0], d, 24 * inverse * sixth * (2 * sixth - 1));
        molecule->potential += 2 * sixth * (sixth - 1); /* half of it: the other has the rest */
    }
}

static void compute_forces(long index)
{
    struct molecule *molecule = &molecules[index];
    memset(molecule->force, 0, sizeof molecule->force);
    molecule->potential = 0;
    spring(molecule, 0, 1, BOND);
    spring(molecule, 0, 2, BOND);
    spring(molecule, 1, 2, BETWEEN_HYDROGENS);
    attract(index);
}

static void kick(struct molecule *molecule)
{
    for (int atom = 0; atom < ATOMS; atom++)
        push(&molecule->velocity[atom], molecule->force[atom], TIME_STEP / 2 / MASS[atom]);
}

static void drift(struct molecule *molecule)
{
    for (int atom = 0; atom < ATOMS; atom++)
        push(&molecule->position[atom], molecule->velocity[atom], TIME_STEP);
}

static void work(int thread)
{
    struct range mine = share(count, thread);
    for (long i = mine.begin; i < mine.end; i++)
        compute_forces(i);
    barrier();
    for (int step = 0; step < TIME_STEPS; step++) {
        for (long i = mine.begin; i < mine.end; i++) {
            kick(&molecules[i]);
            drift(&molecules[i]);
        }
        barrier();
        for (long i = mine.begin; i < mine.end; i++) {
            compute_forces(i);
            kick(&molecules[i]);
        }
        barrier();
    }
}

/* Molecules on a cubic lattice, a little displaced, with random velocities. */
static void fill(long per_side)
{
    for (long i = 0; i < count; i++) {
        vector centre = {(double)(i % per_side) * SPACING, (double)(i / per_side % per_side) * SPACING,
                         (double)(i / per_side / per_side) * SPACING};
        for (int atom = 0; atom < ATOMS; atom++) {
            uint64_t n = 6 * (uint64_t)(i * ATOMS + atom);
            vector *position = &molecules[i].position[atom], *velocity = &molecules[i].velocity[atom];
            *position = centre;
            position->x += atom == 1 ? BOND : 0.02 * random_unit(n);
            position->y += atom == 2 ? BOND : 0.02 * random_unit(n + 1);
            position->z += 0.02 * random_unit(n + 2);
            *velocity = (vector){random_unit(n + 3) - 0.5, random_unit(n + 4) - 0.5, random_unit(n + 5) - 0.5};
        }
    }
}

int main(int argc, char **argv)
{
    long per_side = parse_arguments(argc, argv, (struct size_rule){"molecules per side of the box", 13, 2, 40});
    count = per_side * per_side * per_side;
    box = (double)per_side * SPACING;
    cutoff = fmin(box / 2, 3.0);
    molecules = allocate((size_t)count, sizeof *molecules);
    fill(per_side);
    run_threads(work);
    double kinetic = 0, potential = 0;
    for (long i = 0; i < count; i++) {
        potential += molecules[i].potential;
        for (int atom = 0; atom < ATOMS; atom++) {
            vector v = molecules[i].velocity[atom];
            kinetic += MASS[atom] * (v.x * v.x + v.y * v.y + v.z * v.z) / 2;
        }
    }
    printf("water: %ld molecules, kinetic energy %.9e, potential energy %.9e\n", count, kinetic, potential);
    return isfinite(kinetic + potential) ? 0 : 1;
}
