//! The shared memory between the engine inside the target and the recorder outside, byte by byte.
//!
//! Nouns: the [`Control`] page; the *code ring* ([`code`]), in which the engine announces every
//! block, fragment and module before a thread executes it; and one *slot* per thread, a short ring
//! of segments of [`word`]s. A word is the number of a **path**: a sequence of blocks, announced
//! before, that the thread has just executed. One word stands for many branches. An indirect target
//! needs no word: the next path begins there. Recorded data follows the word.
//!
//! Neither side trusts the other to be alive. The engine waits with a time-out and checks
//! [`Control::recorder`]. The recorder can read the segment of a killed thread, because unwritten
//! words are zero and zero is no path.
#![no_std]

#[cfg(test)]
extern crate std;

use core::sync::atomic::{AtomicU32, AtomicU64};

use entity::ThreadId;

pub mod code;
pub mod routine;
pub mod word;

/// The directory of this crate's sources, from which `capture` builds the engine image.
pub const MANIFEST_DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");

/// Changes whenever anything in this crate changes its layout or meaning.
pub const VERSION: u32 = 12;
pub const MAGIC: u64 = u64::from_le_bytes(*b"TRACKWAY");

/// Threads that can be alive at once.
pub const SLOT_COUNT: usize = 4096;
pub const SEGMENT_COUNT: usize = 4;
/// Distance between two segments of a slot. In the target, the end of each is a guard page.
pub const SEGMENT_STRIDE: usize = 512 << 10;
pub const GUARD_BYTES: usize = 16 << 10;
/// Most bytes of a path's word and its data: fewer than a guard page has, so that no store skips
/// it.
pub const RECORD_BYTES_MAX: usize = 12 << 10;
/// Bytes of words a segment can hold.
pub const SEGMENT_BYTES: usize = SEGMENT_STRIDE - GUARD_BYTES;
pub const SLOT_STRIDE: usize = SEGMENT_COUNT * SEGMENT_STRIDE;

/// Capacity of the code ring, a power of two.
pub const CODE_RING_BYTES: usize = 8 << 20;

/// The layout of the shared mapping.
pub const CONTROL_BYTES: usize = (size_of::<Control>() + 4095) & !4095;
/// The address ranges for [`Control::selection`], as pairs of start and end, and the entries of
/// routines.
pub const RANGES_OFFSET: usize = CONTROL_BYTES;
pub const RANGES_MAX: usize = 1 << 16;
pub const ENTRIES_OFFSET: usize = RANGES_OFFSET + RANGES_MAX * 16;
pub const ENTRIES_MAX: usize = 1 << 16;
/// The entries of allocation routines, as pairs of address and [`routine`].
pub const PROBES_OFFSET: usize = ENTRIES_OFFSET + ENTRIES_MAX * 8;
pub const PROBES_MAX: usize = 1 << 12;
pub const CODE_RING_OFFSET: usize = PROBES_OFFSET + PROBES_MAX * 16;
pub const SLOTS_OFFSET: usize = CODE_RING_OFFSET + CODE_RING_BYTES;
pub const SHARED_BYTES: usize = SLOTS_OFFSET + SLOT_COUNT * SLOT_STRIDE;

/// Offset in the shared mapping of segment `segment` of slot `slot`.
#[must_use]
pub const fn segment_offset(slot: usize, segment: usize) -> usize {
    SLOTS_OFFSET + slot * SLOT_STRIDE + segment * SEGMENT_STRIDE
}

/// The first pages of the shared mapping. All-zero is a valid initial state except for `magic`,
/// `version`, `recorder` and `recorder_pid`, which the recorder fills in before the target sees the
/// mapping.
#[repr(C)]
pub struct Control {
    pub magic: u64,
    pub version: u32,
    pub recorder_pid: u32,
    /// The first word is the futex of a robust, process-shared mutex that the recorder holds all
    /// its life: the kernel sets [`OWNER_DIED`] in it when the recorder dies. The rest belongs to
    /// the C library.
    pub recorder: [AtomicU32; 16],
    /// Bytes that the engine has ever appended to the code ring.
    pub code_head: AtomicU64,
    /// Bytes that the recorder has ever taken from the code ring. The low half is a futex on which
    /// the engine waits.
    pub code_tail: AtomicU64,
    /// Non-zero while the engine waits for room in the code ring.
    pub code_waiting: AtomicU32,
    /// The recorder sets this before it sleeps on `doorbell`. A thread that publishes something and
    /// finds it set adds one to `doorbell` and wakes the recorder.
    pub recorder_sleeping: AtomicU32,
    pub doorbell: AtomicU32,
    /// Next block number; survives exec, so that a number is unique in a recording.
    pub next_block: AtomicU32,
    /// Next thread number.
    pub next_thread: AtomicU32,
    /// State of an exec, a futex for the thread and the recorder: one of the `EXEC_*` values.
    pub exec_state: AtomicU32,
    /// Thread id of the thread that wants to exec, in its own namespace.
    pub exec_tid: AtomicU32,
    /// Number of execs since the launch. Set by the recorder.
    pub image: AtomicU32,
    /// Whether threads are to detach: one of the `DETACH_*`. Also a futex, on which parked threads
    /// wait.
    pub detach: AtomicU32,
    /// Next path number, minus one (0 is no path); survives exec.
    pub next_path: AtomicU32,
    /// What is recorded beside control flow, one of the `DATA_*`. Set by the recorder before the
    /// target sees it.
    pub data: AtomicU32,
    /// Facts for the user, and for the recorder before an exec: `NOTICE_*` bits. Set by the engine.
    pub notices: AtomicU32,
    /// With [`NOTICE_FILTERED`]: the address that the engine must have after an exec.
    pub engine_start: AtomicU64,
    /// Progress of the engine's set-up or detach, a futex: one of the `STAGE_*`.
    pub stage: AtomicU32,
    /// Number of threads that wait for a child that shares their memory until it execs or exits
    /// (vfork).
    pub vforks: AtomicU32,
    /// Non-zero once there is a process that shares the memory and that no parent waits for: the
    /// engine can never be unmapped.
    pub sharers: AtomicU32,
    pub reserved: [u32; 2],
    pub layout: EngineLayout,
    /// The memory that the engine has mapped for itself, as start and end. Unused entries have an
    /// end of 0.
    pub engine_ranges: [[AtomicU64; 2]; ENGINE_RANGES_MAX],
    /// Which code is recorded, some of the `SELECT_*`. Set by the recorder before the target sees
    /// it.
    pub selection: AtomicU32,
    /// Instructions that are still to be skipped and that no thread has taken as its quota.
    pub skip: AtomicU64,
    /// Changes with the tables of ranges, entries and probes; odd while the recorder changes them.
    pub selection_generation: AtomicU32,
    pub range_count: AtomicU32,
    pub entry_count: AtomicU32,
    pub probe_count: AtomicU32,
    /// Number of threads that hold a quota of `skip`, a futex: a thread that finds nothing left
    /// waits until it is 0.
    pub skippers: AtomicU32,
    /// Whether new processes are to be recorded, too. Set by the recorder before the target sees
    /// it.
    pub follow: AtomicU32,
    /// New processes that wait to be followed.
    pub children: [Child; CHILDREN_MAX],
    /// Number of new processes for which `children` had no room.
    pub lost_children: AtomicU32,
    /// Why the engine wants its threads to be detached: one of the `FAILURE_*`, or 0. Set by the
    /// engine.
    pub failure: AtomicU32,
    /// For tests: this failure, alone or with one of the `INJECT_*`, is injected after
    /// `injected_after` opportunities. Set by the recorder.
    pub injected_failure: AtomicU32,
    pub injected_after: AtomicU32,
    /// The application's actions for the [`FAULT_SIGNALS`], each a `struct sigaction` of the
    /// kernel. Set by the engine before [`EngineLayout::gate`].
    pub fault_actions: [[AtomicU64; ACTION_WORDS]; FAULT_SIGNALS.len()],
    /// Limit of the code cache and its tables in bytes; 0 for none. Set by the recorder.
    pub code_cache: AtomicU64,
    pub slots: [Slot; SLOT_COUNT],
}

/// A new process, if [`Control::follow`] is set. Its parent takes a free entry before it creates
/// the process.
#[repr(C)]
pub struct Child {
    /// One of the `CHILD_*`, a futex on which the process waits.
    pub state: AtomicU32,
    /// Its process id, in its own namespace.
    pub process: AtomicU32,
    /// Time of its creation.
    pub tsc: AtomicU64,
}

/// Most processes that can wait at once.
pub const CHILDREN_MAX: usize = 64;

pub const CHILD_FREE: u32 = 0;
/// Taken by the parent.
pub const CHILD_MADE: u32 = 1;
/// The process has a copy of its parent's memory and waits. Except for the signal mask, its state
/// in the kernel is that of native code. Its registers are in the thread control block that gs
/// points at.
pub const CHILD_WAITS: u32 = 2;
/// The process shares its parent's memory and waits until the recorder can see its exec. It runs
/// natively until then.
pub const CHILD_SHARES: u32 = 3;
/// The recorder is about to attach: the process goes on waiting.
pub const CHILD_TAKEN: u32 = 4;
/// The recorder has seen the process, or does not follow it: it continues natively.
pub const CHILD_GOES: u32 = 5;

/// There is no free memory within reach of the application's code.
pub const FAILURE_NO_ROOM: u32 = 1;
/// There is no memory for the engine.
pub const FAILURE_NO_MEMORY: u32 = 2;
/// More threads than there are slots.
pub const FAILURE_TOO_MANY_THREADS: u32 = 3;
/// Code that can be executed but not read.
pub const FAILURE_UNREADABLE: u32 = 4;
/// A defect of the engine.
pub const FAILURE_DEFECT: u32 = 5;
/// A process that shares the memory was killed while it held a lock of the engine.
pub const FAILURE_KILLED_CHILD: u32 = 6;
/// A defect of the engine, in a signal handler.
pub const FAILURE_HANDLER: u32 = 7;

/// The synchronous signals: SEGV, BUS, FPE, ILL, TRAP and SYS. A fault during set-up, where they
/// are blocked, makes the kernel reset the action.
pub const FAULT_SIGNALS: [u32; 6] = [11, 7, 8, 4, 5, 31];
pub const ACTION_WORDS: usize = 4;

/// Added to one of the `FAILURE_*` in [`Control::injected_failure`]: the failure happens during
/// set-up only.
pub const INJECT_IN_SET_UP: u32 = 0x100;
/// Likewise: the failure happens only in children that share their parent's memory (vfork).
pub const INJECT_IN_CHILD: u32 = 0x200;

/// The least that [`Control::code_cache`] can be.
pub const CODE_CACHE_MIN: u64 = 16 << 20;

/// Only code in the ranges is recorded.
pub const SELECT_INSIDE: u32 = 1;
/// Code in the ranges is not recorded.
pub const SELECT_OUTSIDE: u32 = 2;
/// A thread is recorded from one of the entries until it returns from that routine.
pub const SELECT_CALLEES: u32 = 4;

/// Calls of the routines at the probes are recorded, and so are the system calls that map memory.
/// Words of uninstrumented code are handed over, too, and events say where the stack pointer goes.
pub const SELECT_ALLOCATIONS: u32 = 8;
/// The stack pointer at the entries is recorded.
pub const SELECT_SCOPES: u32 = 16;

/// No detach.
pub const DETACH_NONE: u32 = 0;
/// The recorder is gone or cannot help: each thread detaches by itself, and the engine stays
/// mapped.
pub const DETACH_SEPARATELY: u32 = 1;
/// Each thread saves its state (see [`EngineLayout::parked`]) and waits until this changes. The
/// recorder then puts all threads into native code.
pub const DETACH_TOGETHER: u32 = 2;

pub const STAGE_NONE: u32 = 0;
/// The first thread has set the engine up; the states of the others are made. The thread waits for
/// [`STAGE_RUNNING`].
pub const STAGE_STARTED: u32 = 1;
/// The application has its own signal actions again, and the engine has unguarded all of its pages.
pub const STAGE_FINISHED: u32 = 2;
/// The recorder has released the first thread, which enters the code cache. Set by the recorder.
pub const STAGE_RUNNING: u32 = 3;
/// The engine cannot be set up; [`Control::failure`] says why. The kernel still has the
/// application's signal actions and alternate stack. The thread waits for the recorder to put it
/// back to native code.
pub const STAGE_FAILED: u32 = 4;

/// Most entries of [`Control::engine_ranges`].
pub const ENGINE_RANGES_MAX: usize = 1024;

/// What the recorder needs to start further threads and to detach threads: addresses in the
/// engine's image, and offsets in the thread control block that gs points at. Set by the engine
/// before anything that can fail.
#[repr(C)]
pub struct EngineLayout {
    /// Entry point of further threads: rdi is the thread control block, rsp the top of its engine
    /// stack less 8.
    pub adopt: AtomicU64,
    /// Entry point, with the same registers, at which a stopped thread restores what belongs to the
    /// process: then [`STAGE_FINISHED`].
    pub finish: AtomicU64,
    /// The `syscall` instruction with which the application's own system calls are made.
    pub system_call: AtomicU64,
    /// A `syscall` instruction for the recorder, at which it makes a stopped thread execute system
    /// calls.
    pub gate: AtomicU64,
    /// The state's own address.
    pub this: AtomicU32,
    /// The application's [`Registers`].
    pub registers: AtomicU32,
    /// The low halves of its vector registers, 256 bytes, and mxcsr, 4 bytes.
    pub vectors: AtomicU32,
    pub mxcsr: AtomicU32,
    /// The base of its gs, 8 bytes.
    pub gs_base: AtomicU32,
    /// Its signal mask, 8 bytes.
    pub mask: AtomicU32,
    /// Its alternate stack, as the kernel's `stack_t`.
    pub alternate_stack: AtomicU32,
    /// Non-zero while the thread waits to be put into native code, 4 bytes.
    pub parked: AtomicU32,
    /// Top of its engine stack, 8 bytes.
    pub engine_stack: AtomicU32,
    /// The address where its next word goes, and that of the segment it is in, 8 bytes each.
    pub cursor: AtomicU32,
    pub segment: AtomicU32,
    /// The number of its slot, 4 bytes.
    pub slot: AtomicU32,
}

/// The arguments of a thread's rseq registration; all zero for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rseq {
    pub address: u64,
    pub length: u32,
    pub signature: u32,
}

/// Value of a queued SIGTRAP that makes a thread in translated code go to the dispatcher and check
/// [`Control::detach`].
pub const DETACH_REQUEST: u64 = MAGIC;

/// Control flow only.
pub const DATA_NONE: u32 = 0;
/// Also the address of every memory operand.
pub const DATA_ADDRESSES: u32 = 1;
/// Also the value of every memory operand.
pub const DATA_VALUES: u32 = 2;

/// The application has asked for seccomp's strict mode, in which the engine could not work, and was
/// refused.
pub const NOTICE_SECCOMP_STRICT: u32 = 1;
/// The application's seccomp filter had no room for the engine's instructions, and was refused.
pub const NOTICE_SECCOMP_LONG: u32 = 1 << 1;
/// A seccomp filter forbids the system calls that inject an engine after an exec.
pub const NOTICE_SECCOMP_EXEC: u32 = 1 << 2;
/// The application has asked for its system calls to become signals, and was refused.
pub const NOTICE_DISPATCH: u32 = 1 << 3;
/// There is a seccomp filter that knows the engine by its address: after an exec, the engine must
/// be at the same address.
pub const NOTICE_FILTERED: u32 = 1 << 4;

/// Set by the kernel in the first word of [`Control::recorder`] when the recorder is dead.
pub const OWNER_DIED: u32 = 0x4000_0000;

/// No exec.
pub const EXEC_IDLE: u32 = 0;
/// The engine asks (doorbell rung) and waits on `exec_state` until the recorder has attached.
pub const EXEC_WANTED: u32 = 1;
/// The recorder is attached and will see the exec.
pub const EXEC_READY: u32 = 2;
/// The recorder could not attach: the engine execs all the same, and the new image runs untraced.
pub const EXEC_REFUSED: u32 = 3;
/// The exec has failed. The engine waits until the recorder has detached and set `EXEC_IDLE`.
pub const EXEC_FAILED: u32 = 4;

/// One thread's ring. The engine takes a free slot, the recorder gives it back.
#[repr(C, align(64))]
pub struct Slot {
    /// One of the `SLOT_*` values.
    pub state: AtomicU32,
    pub os_tid: AtomicU32,
    /// Logical thread number.
    pub thread: AtomicU32,
    /// Segments ever completed by the thread. Segment `head % SEGMENT_COUNT` is being written.
    pub head: AtomicU32,
    /// Segments ever consumed (and zeroed) by the recorder, a futex. The thread waits while
    /// `head - tail == SEGMENT_COUNT`.
    pub tail: AtomicU32,
    /// Non-zero while the thread waits for `tail` to move.
    pub waiting: AtomicU32,
    /// Bytes used in each completed segment.
    pub used: [AtomicU32; SEGMENT_COUNT],
    /// Logical number of the thread that created this one; `u32::MAX` for none.
    pub parent: AtomicU32,
    /// If not 0: one more than the number of valid bytes in the segment being written. The words
    /// behind those are uninstrumented and overwritten again and again.
    pub uninstrumented_from: AtomicU32,
    pub reserved: [u32; 4],
}

pub const SLOT_FREE: u32 = 0;
/// Owned by a thread that is being created or runs.
pub const SLOT_LIVE: u32 = 1;
/// The thread has published everything and will not touch the slot again.
pub const SLOT_ENDED: u32 = 2;
/// The thread was a child process that shared the memory, and was killed. The segment that was
/// being written is valid up to its first zero.
pub const SLOT_ABANDONED: u32 = 3;

/// General registers of the application, in the order of [`Registers::general`].
pub const RAX: usize = 0;
pub const RCX: usize = 1;
pub const RDX: usize = 2;
pub const RBX: usize = 3;
pub const RSP: usize = 4;
pub const RBP: usize = 5;
pub const RSI: usize = 6;
pub const RDI: usize = 7;
pub const R8: usize = 8;
pub const R9: usize = 9;
pub const R10: usize = 10;
pub const R11: usize = 11;
pub const R15: usize = 15;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// In the order of their numbers in machine code: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to
    /// r15.
    pub general: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
}

/// The injector's arguments for the engine. The engine's entry point is called with the address of
/// this in rdi, rsp at the top of a stack of at least 64 KiB, other registers undefined, and all
/// signals blocked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Init {
    pub version: u32,
    pub flags: u32,
    /// Address of the shared mapping ([`Control`] is at its start).
    pub shared: u64,
    /// Address of [`TABLE_COUNT`] times [`TABLE_BYTES`] zeroed bytes for the indirect-branch
    /// tables, below 2 GiB if there is room.
    pub table: u64,
    /// Address range of the injected engine (image, stack, tables, this block), which does not
    /// cross a multiple of 4 GiB.
    pub engine_start: u64,
    pub engine_end: u64,
    /// The application's state; its next instruction is `registers.rip`.
    pub registers: Registers,
    /// The base of its gs.
    pub gs_base: u64,
    pub os_tid: u32,
    /// The target's process id, in its own namespace.
    pub pid: u32,
    /// From the auxiliary vector: smallest stack a signal frame fits on (AT_MINSIGSTKSZ), or 0.
    pub min_signal_stack: u64,
    /// Logical thread number and slot that the injector has taken for this thread (slot state
    /// already live).
    pub thread: ThreadId,
    pub slot: u32,
    /// With [`FLAG_ATTACHED`]: length of the array of these, of which this is the first.
    pub thread_count: u32,
    /// With [`FLAG_ATTACHED`]: the system call at `registers.rip` had begun and was interrupted by
    /// the attach. This is the kernel's internal error number for its restart (`ERESTART*`, or
    /// `EINTR`); 0 for none.
    pub interrupted: u32,
    /// The application's signal mask.
    pub mask: u64,
    /// With [`FLAG_ATTACHED`]: what the thread has registered for restartable sequences.
    pub rseq: Rseq,
    /// Address of the thread control block. Set by the engine before [`STAGE_STARTED`].
    pub state: u64,
    /// Address of the process's [`CodeMapping`]s. The engine may not be able to read /proc.
    pub mappings: u64,
    pub mapping_count: u32,
    pub mxcsr: u32,
    /// With [`FLAG_ATTACHED`]: the low halves of the vector registers.
    pub vectors: [[u64; 2]; 16],
}

/// Memory that is executable and, in addition, writable or shared.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeMapping {
    pub start: u64,
    pub end: u64,
    /// Some of the `MAPPING_*`.
    pub flags: u64,
}

pub const MAPPING_WRITABLE: u64 = 1;
pub const MAPPING_SHARED: u64 = 2;

/// The kernel lets user code write gs base (`AT_HWCAP2` bit 1).
pub const FLAG_FSGSBASE: u32 = 1;
/// The process was running before: its threads have masks, alternate stacks and vector registers to
/// be taken over.
pub const FLAG_ATTACHED: u32 = 2;

/// Bytes of an indirect-branch table, a power of two.
pub const TABLE_BYTES: usize = 8 << 18;
/// Number of indirect-branch tables: one for instrumented code, one for uninstrumented code.
pub const TABLE_COUNT: usize = 2;
