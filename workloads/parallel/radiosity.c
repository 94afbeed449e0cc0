/* Light between the patches of a scene, refined where it matters, with work stealing.
 *
 * The scene is a box of square patches. A task is a pair of squares: if they see much of each other they are cut into four
 * and become tasks of their own, else light is transferred. Every thread has a deque of tasks: it works at one end, thieves
 * take from the other. Light is counted in integers, so the order of the transfers does not matter.
 */
#include "common.h"
#include <sched.h>

enum { ROUNDS = 3, FACES = 6, REFINEMENT_MAX = 4 };

typedef struct {
    double x, y, z;
} vector;

/* A square somewhere on a patch. */
struct square {
    int patch;
    double u, v, side; /* corner and side on the face, the face being 1 x 1 */
};

struct task {
    struct square from, to;
    int depth;
};

struct deque {
    pthread_mutex_t mutex;
    struct task *tasks;
    long top, bottom, capacity; /* thieves take at top, the owner at bottom */
};

static int patch_count, patches_per_side;
static int64_t *light, *emitted;
static _Atomic int64_t *received;
static struct deque *deques;
static atomic_long open_tasks, transfer_count;

static void push(struct deque *deque, struct task task)
{
    atomic_fetch_add(&open_tasks, 1);
    pthread_mutex_lock(&deque->mutex);
    if (deque->top == deque->bottom)
        deque->top = deque->bottom = 0;
    if (deque->bottom == deque->capacity) {
        deque->capacity = deque->capacity * 2 + 64;
        deque->tasks = realloc(deque->tasks, (size_t)deque->capacity * sizeof *deque->tasks);
        if (deque->tasks == NULL)
            fail("radiosity", "out of memory");
    }
    deque->tasks[deque->bottom++] = task;
    pthread_mutex_unlock(&deque->mutex);
}

static int take(struct deque *deque, struct task *task, int steal)
{
    pthread_mutex_lock(&deque->mutex);
    int found = deque->top < deque->bottom;
    if (found)
        *task = deque->tasks[steal ? deque->top++ : --deque->bottom];
    pthread_mutex_unlock(&deque->mutex);
    return found;
}

/* From the own deque, or from the others in turn. */
static int next_task(int thread, struct task *task)
{
    if (take(&deques[thread], task, 0))
        return 1;
    for (int i = 1; i < thread_count; i++)
        if (take(&deques[(thread + i) % thread_count], task, 1))
            return 1;
    return 0;
}

static int face_of(int patch)
{
    return patch / (patches_per_side * patches_per_side);
}

/* The point (u, v) of a face of the box. */
static vector on_face(int face, double u, double v)
{
    switch (face) {
    case 0: return (vector){u, v, 0};
    case 1: return (vector){u, v, 1};
    case 2: return (vector){u, 0, v};
    case 3: return (vector){u, 1, v};
    case 4: return (vector){0, u, v};
    default: return (vector){1, u, v};
    }
}

/* The component of a direction that is perpendicular to a face, without sign. */
static double facing(int face, vector direction)
{
    double along = face < 2 ? direction.z : face < 4 ? direction.y : direction.x;
    return along < 0 ? -along : along;
}

/* About the share of the light leaving `from` that reaches `to`. */
static double form_factor(const struct square *from, const struct square *to)
{
    int from_face = face_of(from->patch), to_face = face_of(to->patch);
    vector a = on_face(from_face, from->u + from->side / 2, from->v + from->side / 2);
    vector b = on_face(to_face, to->u + to->side / 2, to->v + to->side / 2);
    vector d = {b.x - a.x, b.y - a.y, b.z - a.z};
    double square = d.x * d.x + d.y * d.y + d.z * d.z;
    double area = to->side * to->side;
    return facing(from_face, d) * facing(to_face, d) / square * area / (3.14159265358979 * square + area);
}

static struct square quarter(struct square square, int which)
{
    square.side /= 2;
    square.u += which & 1 ? square.side : 0;
    square.v += which & 2 ? square.side : 0;
    return square;
}

static void refine(struct deque *deque, struct task task)
{
    int cut_receiver = task.to.side >= task.from.side;
    for (int i = 0; i < 4; i++) {
        struct task part = {task.from, task.to, task.depth + 1};
        if (cut_receiver)
            part.to = quarter(task.to, i);
        else
            part.from = quarter(task.from, i);
        push(deque, part);
    }
}

static void perform(int thread, struct task task)
{
    double factor = form_factor(&task.from, &task.to);
    if (factor > 0.004 && task.depth < REFINEMENT_MAX) {
        refine(&deques[thread], task);
        return;
    }
    double whole = 1.0 / patches_per_side;
    double part = task.from.side * task.from.side / (whole * whole);
    atomic_fetch_add(&received[task.to.patch], (int64_t)((double)emitted[task.from.patch] * part * factor * 0.7));
    atomic_fetch_add(&transfer_count, 1);
}

static struct square whole_patch(int patch)
{
    int within = patch % (patches_per_side * patches_per_side);
    double side = 1.0 / patches_per_side;
    return (struct square){patch, within % patches_per_side * side, within / patches_per_side * side, side};
}

static void seed_tasks(int thread)
{
    struct range mine = share(patch_count, thread);
    for (int from = (int)mine.begin; from < mine.end; from++)
        for (int to = 0; to < patch_count; to++)
            if (face_of(from) != face_of(to) && emitted[from] > 0)
                push(&deques[thread], (struct task){whole_patch(from), whole_patch(to), 0});
}

static void work(int thread)
{
    for (int round = 0; round < ROUNDS; round++) {
        seed_tasks(thread);
        barrier();
        struct task task;
        while (atomic_load(&open_tasks) > 0)
            if (next_task(thread, &task)) {
                perform(thread, task);
                atomic_fetch_sub(&open_tasks, 1);
            } else {
                sched_yield(); /* the last tasks are in other hands */
            }
        barrier();
        struct range mine = share(patch_count, thread);
        for (long i = mine.begin; i < mine.end; i++) {
            light[i] += received[i];
            emitted[i] = received[i];
            received[i] = 0;
        }
        barrier();
    }
}

int main(int argc, char **argv)
{
    patches_per_side = (int)parse_arguments(argc, argv, (struct size_rule){"patches per side of each face", 16, 1, 32});
    patch_count = FACES * patches_per_side * patches_per_side;
    light = allocate((size_t)patch_count, sizeof *light);
    emitted = allocate((size_t)patch_count, sizeof *emitted);
    received = allocate((size_t)patch_count, sizeof *received);
    deques = allocate((size_t)thread_count, sizeof *deques);
    for (int i = 0; i < thread_count; i++)
        pthread_mutex_init(&deques[i].mutex, NULL);
    for (int i = 0; i < patches_per_side * patches_per_side; i++)
        light[i] = emitted[i] = 1000000000; /* the ceiling shines */
    run_threads(work);
    int64_t total = 0;
    uint64_t hash = HASH_START;
    for (int i = 0; i < patch_count; i++) {
        total += light[i];
        hash = hash_word(hash, (uint64_t)light[i]);
    }
    printf("radiosity: %d patches, %ld transfers, light %lld, hash %016llx\n", patch_count, (long)transfer_count,
           (long long)total, (unsigned long long)hash);
    return 0;
}
