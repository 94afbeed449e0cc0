/* A tree over points of a plane, as Barnes-Hut codes build it: all threads insert points at once, under a lock per cell (out of a
   pool), then sum up masses and walk the tree for each point, step by step. What the tree looks like does not depend on
   the order of insertions.
   tree THREADS [SIZE]: SIZE thousand points. */
#include "common.h"

enum { LOCKS = 2048, STEPS = 3 };

struct point {
    double x, y, mass, force;
};

/* A square: four children, or a point, or nothing. */
struct cell {
    _Atomic(struct cell *) children[4];
    _Atomic(struct point *) point;
    double x, y, half;
    double mass, mass_x, mass_y;
    int lock;
    atomic_int is_inner;
};

static struct point *points;
static long point_count;
static struct cell *cells;
static long cells_per_thread;
static struct cell root;
static pthread_mutex_t locks[LOCKS];
static long made[THREADS_MAX];

static struct cell *new_cell(int number, double x, double y, double half)
{
    if (made[number] == cells_per_thread)
        fail("tree", "too many cells");
    struct cell *cell = &cells[number * cells_per_thread + made[number]++];
    memset(cell, 0, sizeof *cell);
    cell->x = x;
    cell->y = y;
    cell->half = half;
    cell->lock = (int)((cell - cells) % LOCKS);
    return cell;
}

static int quadrant(const struct cell *cell, const struct point *point)
{
    return (point->x >= cell->x) | (point->y >= cell->y) << 1;
}

static struct cell *child_of(int number, struct cell *cell, int which)
{
    double half = cell->half / 2;
    return new_cell(number, cell->x + (which & 1 ? half : -half), cell->y + (which & 2 ? half : -half), half);
}

/* Puts a point below a cell that the caller has locked, or that no other thread knows. */
static void push_down(int number, struct cell *cell, struct point *point)
{
    int which = quadrant(cell, point);
    struct cell *child = child_of(number, cell, which);
    child->point = point;
    cell->children[which] = child;
}

static void insert(int number, struct point *point)
{
    struct cell *cell = &root;
    for (;;) {
        int which = quadrant(cell, point);
        struct cell *child = cell->children[which];
        if (child != NULL && child->is_inner) {
            cell = child;
            continue;
        }
        pthread_mutex_t *lock = &locks[cell->lock];
        pthread_mutex_lock(lock);
        child = cell->children[which];
        if (child == NULL) {
            push_down(number, cell, point);
            pthread_mutex_unlock(lock);
            return;
        }
        if (!child->is_inner) {
            /* A leaf becomes a cell with the point that it had in it. */
            push_down(number, child, child->point);
            child->point = NULL;
            child->is_inner = 1;
        }
        pthread_mutex_unlock(lock);
        cell = child;
    }
}

static void sum_up(struct cell *cell)
{
    if (cell->point != NULL) {
        struct point *point = cell->point;
        cell->mass = point->mass;
        cell->mass_x = point->x;
        cell->mass_y = point->y;
        return;
    }
    double mass = 0, x = 0, y = 0;
    for (int i = 0; i < 4; i++) {
        struct cell *child = cell->children[i];
        if (child == NULL)
            continue;
        sum_up(child);
        mass += child->mass;
        x += child->mass * child->mass_x;
        y += child->mass * child->mass_y;
    }
    cell->mass = mass;
    cell->mass_x = x / mass;
    cell->mass_y = y / mass;
}

static double walk(const struct cell *cell, const struct point *point)
{
    double dx = cell->mass_x - point->x, dy = cell->mass_y - point->y;
    double square = dx * dx + dy * dy + 1e-6;
    if (cell->point != NULL || cell->half * cell->half * 16 < square)
        return cell->mass / square;
    double sum = 0;
    for (int i = 0; i < 4; i++)
        if (cell->children[i] != NULL)
            sum += walk(cell->children[i], point);
    return sum;
}

static void work(int number)
{
    struct range range = share(point_count, number);
    for (int step = 0; step < STEPS; step++) {
        made[number] = 0;
        if (number == 0) {
            memset(&root, 0, sizeof root);
            root = (struct cell){.x = 0.5, .y = 0.5, .half = 0.5, .is_inner = 1};
        }
        barrier();
        for (long i = range.begin; i < range.end; i++)
            insert(number, &points[i]);
        barrier();
        if (number == 0)
            sum_up(&root);
        barrier();
        for (long i = range.begin; i < range.end; i++)
            points[i].force = walk(&root, &points[i]);
        barrier();
    }
}

/* Every second bit of a number. */
static uint32_t every_second_bit(uint64_t bits)
{
    uint32_t half = 0;
    for (int i = 0; i < 16; i++)
        half |= (uint32_t)(bits >> 2 * i & 1) << i;
    return half;
}

/* Points along a curve that goes through one quarter of the plane after the other, so that each thread has a region, as in codes that
   share out work by place. */
static struct point point_at(long number)
{
    uint64_t index = 4 * (uint64_t)number;
    uint64_t code = ((uint64_t)number << 32) / (uint64_t)point_count + (random_bits(index + 3) & 0xffffff);
    code = code > 0xffffffff ? 0xffffffff : code;
    double x = every_second_bit(code) + random_unit(index), y = every_second_bit(code >> 1) + random_unit(index + 1);
    return (struct point){x * 0x1p-16, y * 0x1p-16, 1 + random_unit(index + 2), 0};
}

static long count_cells(const struct cell *cell)
{
    long count = 1;
    for (int i = 0; i < 4; i++)
        if (cell->children[i] != NULL)
            count += count_cells(cell->children[i]);
    return count;
}

int main(int argc, char **argv)
{
    long size = parse_arguments(argc, argv, (struct size_rule){"thousands of points", 20, 1, 100000});
    point_count = 1000 * size;
    points = allocate((size_t)point_count, sizeof *points);
    for (long i = 0; i < point_count; i++)
        points[i] = point_at(i);
    cells_per_thread = 4 * point_count + 1000;
    cells = allocate((size_t)(cells_per_thread * thread_count), sizeof *cells);
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&locks[i], NULL);
    run_threads(work);
    double force = 0;
    for (long i = 0; i < point_count; i++)
        force += points[i].force;
    printf("tree: %ld points, %ld cells, force %.9e\n", point_count, count_cells(&root), force);
    return 0;
}
