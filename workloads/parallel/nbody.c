/* Gravity among SIZE bodies by the method of Barnes and Hut: an octree over the bodies, cells that are far away act as one
 * mass. The first thread builds the tree, all compute the forces on their bodies by walking it.
 */
#include "common.h"
#include <math.h>

enum { TIME_STEPS = 4, CHILDREN = 8, DEPTH_MAX = 48 };

typedef struct {
    double x, y, z;
} vector;

struct body {
    vector position, velocity, acceleration;
    double mass;
};

/* A cube. A leaf holds one body, an inner cell its children. */
struct cell {
    vector centre, mass_centre;
    double half, mass;
    long body; /* -1: none */
    long children[CHILDREN]; /* 0: none; the root has no parent */
    int is_leaf;
};

static const double TIME_STEP = 0.01, SOFTENING = 0.05, OPENING = 0.6;

static long body_count, cell_count, cell_capacity;
static struct body *bodies;
static struct cell *cells;

static long new_cell(vector centre, double half)
{
    if (cell_count == cell_capacity)
        fail("nbody", "the tree is too deep");
    cells[cell_count] = (struct cell){.centre = centre, .half = half, .body = -1, .is_leaf = 1};
    return cell_count++;
}

/* Which of the eight parts of a cell a position lies in. */
static int octant(const struct cell *cell, vector position)
{
    return (position.x > cell->centre.x) | (position.y > cell->centre.y) << 1 | (position.z > cell->centre.z) << 2;
}

static long child_for(long parent, vector position)
{
    int which = octant(&cells[parent], position);
    if (cells[parent].children[which] == 0) {
        double quarter = cells[parent].half / 2;
        vector centre = cells[parent].centre;
        centre.x += which & 1 ? quarter : -quarter;
        centre.y += which & 2 ? quarter : -quarter;
        centre.z += which & 4 ? quarter : -quarter;
        cells[parent].children[which] = new_cell(centre, quarter);
    }
    return cells[parent].children[which];
}

static void insert(long cell, long body, int depth)
{
    if (cells[cell].is_leaf && cells[cell].body < 0) {
        cells[cell].body = body;
        return;
    }
    if (depth == DEPTH_MAX)
        fail("nbody", "two bodies are in the same place");
    if (cells[cell].is_leaf) {
        long other = cells[cell].body;
        cells[cell].is_leaf = 0;
        cells[cell].body = -1;
        insert(child_for(cell, bodies[other].position), other, depth + 1);
    }
    insert(child_for(cell, bodies[body].position), body, depth + 1);
}

/* Masses and their centres, from the leaves up. */
static void weigh(long index)
{
    struct cell *cell = &cells[index];
    if (cell->is_leaf) {
        cell->mass = bodies[cell->body].mass;
        cell->mass_centre = bodies[cell->body].position;
        return;
    }
    vector moment = {0, 0, 0};
    for (int i = 0; i < CHILDREN; i++) {
        if (cell->children[i] == 0)
            continue;
        weigh(cell->children[i]);
        const struct cell *child = &cells[cell->children[i]];
        cell->mass += child->mass;
        moment.x += child->mass * child->mass_centre.x;
        moment.y += child->mass * child->mass_centre.y;
        moment.z += child->mass * child->mass_centre.z;
    }
    cell->mass_centre = (vector){moment.x / cell->mass, moment.y / cell->mass, moment.z / cell->mass};
}

static void build_tree(void)
{
    double reach = 1;
    for (long i = 0; i < body_count; i++) {
        vector position = bodies[i].position;
        reach = fmax(reach, fmax(fabs(position.x), fmax(fabs(position.y), fabs(position.z))));
    }
    cell_count = 0;
    new_cell((vector){0, 0, 0}, reach);
    for (long i = 0; i < body_count; i++)
        insert(0, i, 0);
    weigh(0);
}

static void attract(struct body *body, long index)
{
    const struct cell *cell = &cells[index];
    vector d = {cell->mass_centre.x - body->position.x, cell->mass_centre.y - body->position.y,
                cell->mass_centre.z - body->position.z};
    double square = d.x * d.x + d.y * d.y + d.z * d.z;
    if (cell->is_leaf || 4 * cell->half * cell->half < OPENING * OPENING * square) {
        double softened = square + SOFTENING * SOFTENING;
        double pull = cell->mass / (softened * sqrt(softened)); /* on itself: d is zero */
        body->acceleration.x += pull * d.x;
        body->acceleration.y += pull * d.y;
        body->acceleration.z += pull * d.z;
        return;
    }
    for (int i = 0; i < CHILDREN; i++)
        if (cell->children[i] != 0)
            attract(body, cell->children[i]);
}

static void move(struct body *body)
{
    body->velocity.x += TIME_STEP * body->acceleration.x;
    body->velocity.y += TIME_STEP * body->acceleration.y;
    body->velocity.z += TIME_STEP * body->acceleration.z;
    body->position.x += TIME_STEP * body->velocity.x;
    body->position.y += TIME_STEP * body->velocity.y;
    body->position.z += TIME_STEP * body->velocity.z;
}

static void work(int thread)
{
    struct range mine = share(body_count, thread);
    for (int step = 0; step < TIME_STEPS; step++) {
        if (thread == 0)
            build_tree();
        barrier();
        for (long i = mine.begin; i < mine.end; i++) {
            bodies[i].acceleration = (vector){0, 0, 0};
            attract(&bodies[i], 0);
        }
        barrier();
        for (long i = mine.begin; i < mine.end; i++)
            move(&bodies[i]);
        barrier();
    }
}

int main(int argc, char **argv)
{
    body_count = parse_arguments(argc, argv, (struct size_rule){"bodies", 10000, 1, 1000000});
    bodies = allocate((size_t)body_count, sizeof *bodies);
    cell_capacity = 8 * body_count + 64 * DEPTH_MAX;
    cells = allocate((size_t)cell_capacity, sizeof *cells);
    for (long i = 0; i < body_count; i++) {
        uint64_t n = 6 * (uint64_t)i;
        bodies[i].mass = 1.0 / (double)body_count;
        bodies[i].position = (vector){random_unit(n) - 0.5, random_unit(n + 1) - 0.5, random_unit(n + 2) - 0.5};
        bodies[i].velocity = (vector){random_unit(n + 3) - 0.5, random_unit(n + 4) - 0.5, random_unit(n + 5) - 0.5};
    }
    run_threads(work);
    double kinetic = 0, spread = 0;
    for (long i = 0; i < body_count; i++) {
        vector v = bodies[i].velocity, p = bodies[i].position;
        kinetic += bodies[i].mass * (v.x * v.x + v.y * v.y + v.z * v.z) / 2;
        spread += bodies[i].mass * (p.x * p.x + p.y * p.y + p.z * p.z);
    }
    printf("nbody: %ld bodies, kinetic energy %.9e, spread %.9e\n", body_count, kinetic, spread);
    return isfinite(kinetic) ? 0 : 1;
}
