// order OPERATIONS [THREADS]: threads synchronise in many ways, each of them OPERATIONS times, in a random order. Every lock, node and slot has a
// number and a counter of turns; the thread that has it calls the function with this number and turn, so that the order of turns can
// be seen in the order of calls. Prints where the functions are.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MUTEXES = 80, LONG = 20, INTS = 40, SHORTS = 20, BYTES = 20, CROSSING = 4, BITS = 16, LOCKS = 200, NODES = 24, SLOTS = 16, LIST = 16 };
_Static_assert(MUTEXES + LONG + INTS + SHORTS + BYTES + CROSSING + BITS == LOCKS, "200 locks");
enum { FIRST_NODE = LOCKS, FIRST_SLOT = FIRST_NODE + NODES, FIRST_LIST = FIRST_SLOT + SLOTS, OBJECTS = FIRST_LIST + LIST, THREADS_MAX = 64 };

// Functions of 16 bytes: eight for each object.
__asm__(".text\n.balign 16\nfunctions:\n.rept 8 * 256\n ret\n.balign 16\n.endr\n");
extern char functions[];
_Static_assert(OBJECTS == 256, "as many as there are functions for");

static unsigned turns[OBJECTS];

// Now and then the thread that has an object holds it for a while, so that others try in vain, and makes a system call, so that what follows has
// a time of its own.
static void hold(void) {
    static _Thread_local unsigned count;
    if (++count % 8 != 0)
        return;
    for (int i = 0; i < 100; i++)
        __builtin_ia32_pause();
    syscall(SYS_getppid);
}

static void turn(int object) {
    hold();
    unsigned number = turns[object]++ % 8;
    ((void (*)(void))(functions + 16 * (8 * object + number)))();
}

static pthread_mutex_t mutexes[MUTEXES];
static uint64_t longs[LONG];
static uint32_t ints[INTS];
static uint16_t shorts[SHORTS];
static uint8_t bytes[BYTES];
static struct {
    char before[6];
    uint32_t word; // over a boundary of eight bytes, not of a line
    char after[54];
} __attribute__((packed, aligned(64))) crossing[CROSSING];
static uint32_t bits;

// Not by sched_yield: some kernels let a thread that yields in a loop starve the whole machine.
static void rest(int *tries) {
    if (++*tries % 64 == 0)
        nanosleep(&(struct timespec){0, 20000}, NULL);
    else
        __builtin_ia32_pause();
}

// Taken by xchg or cmpxchg, released by a plain store.
#define SPIN(type, name, by_exchange)                                                                                          \
    static void name(volatile type *lock, int object) {                                                                        \
        int tries = 0;                                                                                                         \
        for (;;) {                                                                                                             \
            type expected = 0;                                                                                                 \
            if (by_exchange ? __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) == 0                                              \
                            : __atomic_compare_exchange_n(lock, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))          \
                break;                                                                                                         \
            rest(&tries);                                                                                                      \
        }                                                                                                                      \
        turn(object);                                                                                                          \
        __atomic_store_n(lock, 0, __ATOMIC_RELEASE);                                                                           \
    }
SPIN(uint64_t, spin_long, 0)
SPIN(uint32_t, spin_int, 1)
SPIN(uint32_t, spin_int_compare, 0)
SPIN(uint16_t, spin_short, 1)
SPIN(uint8_t, spin_byte, 0)

static void spin_bit(unsigned bit, int object) {
    int tries = 0;
    for (;;) {
        unsigned char was;
        __asm__ volatile("lock btsl %2, %0; setc %1" : "+m"(bits), "=r"(was) : "r"(bit) : "memory", "cc");
        if (!was)
            break;
        rest(&tries);
    }
    turn(object);
    __asm__ volatile("lock btrl %1, %0" : "+m"(bits) : "r"(bit) : "memory", "cc");
}

static void use_lock(int object) {
    int number = object;
    if (number < MUTEXES) {
        pthread_mutex_lock(&mutexes[number]);
        turn(object);
        pthread_mutex_unlock(&mutexes[number]);
        return;
    }
    if ((number -= MUTEXES) < LONG)
        return spin_long(&longs[number], object);
    if ((number -= LONG) < INTS)
        return number % 2 ? spin_int(&ints[number], object) : spin_int_compare(&ints[number], object);
    if ((number -= INTS) < SHORTS)
        return spin_short(&shorts[number], object);
    if ((number -= SHORTS) < BYTES)
        return spin_byte(&bytes[number], object);
    if ((number -= BYTES) < CROSSING)
        return spin_int((volatile uint32_t *)((char *)&crossing[number] + 6), object);
    spin_bit((unsigned)(number - CROSSING), object);
}

// A stack without locks: the head is the number of a node, plus one, and how often it has changed.
static _Atomic uint64_t head;
static uint32_t next_node[NODES];

static void push(uint32_t node) {
    uint64_t old = atomic_load(&head);
    do
        next_node[node] = (uint32_t)old;
    while (!atomic_compare_exchange_weak(&head, &old, ((old >> 32) + 1) << 32 | (node + 1)));
}

static void use_stack(void) {
    uint64_t old = atomic_load(&head);
    int tries = 0;
    for (;;) {
        uint32_t node = (uint32_t)old;
        if (node == 0) {
            rest(&tries);
            old = atomic_load(&head);
            continue;
        }
        uint64_t new = ((old >> 32) + 1) << 32 | __atomic_load_n(&next_node[node - 1], __ATOMIC_RELAXED);
        if (atomic_compare_exchange_weak(&head, &old, new))
            break;
    }
    uint32_t node = (uint32_t)old - 1;
    turn(FIRST_NODE + (int)node);
    push(node);
}

// A queue of slots: each is taken, filled, taken again and emptied, by compare-and-exchange.
static _Atomic uint32_t slots[SLOTS];

static void use_slot(unsigned slot) {
    uint32_t state = 0;
    if (atomic_compare_exchange_strong(&slots[slot], &state, 1)) {
        turn(FIRST_SLOT + (int)slot);
        state = 1;
        atomic_compare_exchange_strong(&slots[slot], &state, 2);
        return;
    }
    state = 2;
    if (atomic_compare_exchange_strong(&slots[slot], &state, 3)) {
        turn(FIRST_SLOT + (int)slot);
        atomic_fetch_sub(&slots[slot], 3);
    }
}

// A list through which threads go hand over hand.
static pthread_mutex_t list[LIST];

static void walk_list(unsigned length) {
    pthread_mutex_lock(&list[0]);
    for (unsigned i = 0; i < length; i++) {
        turn(FIRST_LIST + (int)i);
        if (i + 1 < length)
            pthread_mutex_lock(&list[i + 1]);
        pthread_mutex_unlock(&list[i]);
    }
}

static long operations;

static void *work(void *argument) {
    uint64_t state = 0x9e3779b97f4a7c15u * ((uintptr_t)argument + 1);
    // A thread likes some locks more than others do.
    unsigned favourite = (unsigned)(uintptr_t)argument * 25;
    for (long done = 0; done < operations; done++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned number = (unsigned)(state >> 33);
        switch (number % 16) {
        case 0: use_stack(); break;
        case 1: use_slot(number / 16 % SLOTS); break;
        case 2:
            // Threads wait for each other here, and then the kernel has to wake them.
            if (number / 16 % 64 == 0)
                walk_list(1 + number / 1024 % LIST);
            else
                use_lock((int)(number / 16 % LOCKS));
            break;
        case 3: case 4: case 5: use_lock((int)(number / 16 % LOCKS)); break;
        default: use_lock((int)((favourite + number / 16 % 25) % LOCKS));
        }
    }
    return NULL;
}

int main(int count, char **words) {
    operations = count > 1 ? atol(words[1]) : 1000;
    int threads = count > 2 ? atoi(words[2]) : 8;
    pthread_t ids[THREADS_MAX];
    for (int i = 0; i < MUTEXES; i++)
        pthread_mutex_init(&mutexes[i], NULL);
    for (int i = 0; i < LIST; i++)
        pthread_mutex_init(&list[i], NULL);
    for (uint32_t i = 0; i < NODES; i++)
        push(i);
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    unsigned long sum = 0;
    for (int i = 0; i < OBJECTS; i++)
        sum += turns[i];
    printf("%lx %lu\n", (unsigned long)functions, sum);
    return 0;
}
