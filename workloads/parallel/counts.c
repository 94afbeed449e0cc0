/* Reference counts: each thread takes and drops references to objects, nearly always its own, now and then one that all share.
   counts THREADS [SIZE]: SIZE thousand references in all. */
#include "common.h"

enum { OBJECTS = 64 };

struct object {
    atomic_long references;
    long payload;
};

static struct object *objects;
static struct object shared = {1, 7};
static atomic_long destroyed;
static long total;

static void take(struct object *object)
{
    atomic_fetch_add(&object->references, 1);
}

static void drop(struct object *object)
{
    if (atomic_fetch_sub(&object->references, 1) == 1)
        atomic_fetch_add(&destroyed, 1);
}

static void work(int number)
{
    struct object *own = objects + number * OBJECTS;
    struct range range = share(total, number);
    for (long i = range.begin; i < range.end; i++) {
        struct object *object = i % 1024 == 0 ? &shared : &own[random_bits((uint64_t)i) % OBJECTS];
        take(object);
        object->payload & 1 ? drop(object) : drop(object);
    }
    barrier();
    for (int i = 0; i < OBJECTS; i++)
        drop(&own[i]);
}

int main(int argc, char **argv)
{
    long size = parse_arguments(argc, argv, (struct size_rule){"thousands of references", 4000, 1, 1000000000});
    total = 1000 * size;
    objects = allocate((size_t)thread_count * OBJECTS, sizeof *objects);
    for (int i = 0; i < thread_count * OBJECTS; i++)
        objects[i] = (struct object){1, i};
    run_threads(work);
    int is_right = destroyed == thread_count * OBJECTS && shared.references == 1;
    printf("counts: %ld references, %s\n", total, is_right ? "every object destroyed once" : "WRONG");
    return !is_right;
}
