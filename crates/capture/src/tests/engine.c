/* A stand-in for the engine: checks what the injector has set up, writes a little to the rings, and goes on natively.
 * Constants in capitals are defined by the test, from the crate that describes the shared memory. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

struct init {
    u32 version, flags;
    u64 shared, table, engine_start, engine_end;
    u64 general[16];
    u64 rip, rflags, gs_base;
    u32 os_tid, pid;
    u64 min_signal_stack;
    u32 thread, slot, thread_count, interrupted;
    u64 mask;
};

/* Needs a relocation, and room beyond the file. */
static const char *const words[] = {"relocated", "read-only"};
static const char *volatile chosen = 0;
static u8 zeroes[100000];

static u64 system_call(u64 number, u64 a, u64 b, u64 c, u64 d) {
    u64 result;
    register u64 r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static void copy(u8 *to, const void *from, u64 length) {
    for (u64 i = 0; i < length; i++)
        ((volatile u8 *)to)[i] = ((const u8 *)from)[i];
}

static void require(int condition, int number) {
    if (!condition)
        system_call(231, 200 + number, 0, 0, 0);
}

#define WORD32(offset) (*(volatile u32 *)(shared + (offset)))
#define WORD64(offset) (*(volatile u64 *)(shared + (offset)))

static void check(const struct init *init) {
    u8 *shared = (u8 *)init->shared;
    require(init->version == VERSION, 1);
    require(WORD64(0) == MAGIC, 2);
    chosen = words[init->thread & 1];
    require(chosen[0] == 'r' && chosen[2] == 'l', 3);
    for (u64 i = 0; i < sizeof zeroes; i += 999)
        require(zeroes[i] == 0, 4);
    zeroes[5] = 1;
    for (u64 i = 0; i < TABLE_BYTES; i += 8)
        require(*(u64 *)(init->table + i) == 0, 5);
    require(init->engine_start < init->engine_end && init->engine_end < 0x80000000, 6);
    u64 here = (u64)&check, stack = (u64)&shared;
    require(here > init->engine_start && here < init->engine_end, 7);
    require(stack > init->engine_start && stack < init->engine_end, 8);
    require(init->table > init->engine_start && init->table + TABLE_BYTES <= init->engine_end, 9);
    require(init->pid == system_call(39, 0, 0, 0, 0), 10);
    require(init->os_tid == system_call(186, 0, 0, 0, 0), 11);
    require(WORD32(SLOTS + init->slot * SLOT_BYTES) == 1, 12);
    require(init->min_signal_stack >= 2048, 13);
    require((init->general[4] & 15) == 0, 14);
}

static void announce_block(u8 *shared, const struct init *init) {
    u64 head = WORD64(CODE_HEAD);
    u8 *record = shared + CODE_RING + head % CODE_RING_BYTES;
    u32 header[2] = {1, 17};
    u32 block[2] = {WORD32(NEXT_BLOCK)++, 0};
    copy(record, header, 8);
    copy(record + 8, &init->rip, 8);
    copy(record + 16, block, 8);
    copy(record + 24, (void *)init->rip, 1);
    WORD64(CODE_HEAD) = head + 32;
}

static void write_start(u8 *shared, const struct init *init) {
    u8 *segment = shared + SEGMENTS + init->slot * SLOT_STRIDE;
    u32 event = START;
    copy(segment + 4, &init->rip, 8);
    copy(segment, &event, 4);
}

static void publish(u8 *shared, const struct init *init) {
    u64 slot = SLOTS + init->slot * SLOT_BYTES;
    WORD32(slot + USED) = 20;
    WORD32(slot + HEAD) = 1;
    WORD32(slot) = 2;
}

static void exec_state(u8 *shared, u32 state, u32 until) {
    WORD32(EXEC_STATE) = state;
    WORD32(DOORBELL)++;
    system_call(202, (u64)(shared + DOORBELL), 1, 1, 0);
    while (WORD32(EXEC_STATE) != until) {
        u64 short_while[2] = {0, 1000000};
        system_call(202, (u64)(shared + EXEC_STATE), 0, state, (u64)short_while);
    }
}

static void go_native(const struct init *init) {
    __asm__ volatile(
        "mov rsp, [rdi + 40 + 32]\n"
        "push [rdi + 40 + 128]\n"
        "push [rdi + 40 + 136]\n"
        "mov rax, [rdi + 40]\n"
        "mov rcx, [rdi + 40 + 8]\n"
        "mov rdx, [rdi + 40 + 16]\n"
        "mov rbx, [rdi + 40 + 24]\n"
        "mov rbp, [rdi + 40 + 40]\n"
        "mov rsi, [rdi + 40 + 48]\n"
        "mov r8, [rdi + 40 + 64]\n"
        "mov r9, [rdi + 40 + 72]\n"
        "mov r10, [rdi + 40 + 80]\n"
        "mov r11, [rdi + 40 + 88]\n"
        "mov r12, [rdi + 40 + 96]\n"
        "mov r13, [rdi + 40 + 104]\n"
        "mov r14, [rdi + 40 + 112]\n"
        "mov r15, [rdi + 40 + 120]\n"
        "mov rdi, [rdi + 40 + 56]\n"
        "popfq\n"
        "ret\n" ::"D"(init));
    __builtin_unreachable();
}

/* Says that the set-up is done and waits until the recorder has let go. */
static void report_start(u8 *shared, const struct init *init) {
    WORD32(STAGE) = STARTED;
    while (WORD32(STAGE) == STARTED)
        system_call(24, 0, 0, 0, 0);
    system_call(14, 2, (u64)&init->mask, 0, 8);
}

void _start(const struct init *init) {
    u8 *shared = (u8 *)init->shared;
    check(init);
    report_start(shared, init);
    announce_block(shared, init);
    write_start(shared, init);
    if (PUBLISH)
        publish(shared, init);
    if (EXECS > WORD32(IMAGE)) {
        WORD32(EXEC_TID) = init->os_tid;
        exec_state(shared, 1, 2);
        if (EXEC_FAILS)
            exec_state(shared, 4, 0);
    }
    go_native(init);
}
