//! The thread control block: the state of one thread. gs points at it, in translated code and in
//! the engine.
//!
//! One mapping per thread holds its engine stack, its signal stack and, at the end, the [`Tcb`] and
//! the [`Signals`].

use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64};

use entity::{AppPc, ThreadId, Tsc};
use wire::{Control, Registers, Rseq, Slot};

use crate::memory::PlainData;
use crate::{engine_memory, sys};

/// A thread control block. The application's r15 is always in `registers`, because translated code
/// keeps the cursor in r15; the other registers are there while the engine runs.
#[repr(C, align(64))]
pub struct Tcb {
    pub this: *mut Tcb,
    /// The application's rcx and rdx while translated code uses them, and rcx in an exit stub.
    pub scratch_rcx: u64,
    pub scratch_rdx: u64,
    /// A third register, while data is recorded.
    pub scratch_third: u64,
    /// The register that holds the base of an operand relative to gs.
    pub scratch_segment: u64,
    /// The base of the application's gs.
    pub gs_base: u64,
    /// Flags before an instruction: overflow in al, the others in ah.
    pub flags: u64,
    /// Address of the next word, while r15 is the application's or the engine runs.
    pub cursor: u64,
    /// Addresses that translated code jumps to: see `dispatch`.
    pub exit_entry: u64,
    pub mismatch_entry: u64,
    pub miss_entry: u64,
    /// The low bits of an address that index the indirect-branch table.
    pub table_mask: u64,
    /// Top of the engine's stack; nothing on it is needed while translated code runs.
    pub engine_stack: u64,
    /// Where to go next: an address in the code cache, or the application's own address, if the
    /// code there cannot be read.
    pub next: u64,
    pub mxcsr: u32,
    /// The application's state while the engine runs. `rip` is always valid then.
    pub registers: Registers,
    pub xmm: Vectors,
    /// Copies of memory operands, and a vector register, while data is recorded.
    pub operand: OperandBuffer,
    pub scratch_vector: [u64; 8],
    /// Iterations of a string instruction that are not recorded yet.
    pub string_run: Option<alloc::boxed::Box<crate::emulate::StringRun>>,
    pub alternate_stack: AlternateStack,
    /// For a child process that runs natively: its signal actions.
    pub actions: Option<alloc::boxed::Box<[crate::signal::SignalAction; crate::signal::SIGNAL_COUNT]>>,
    /// What the thread has executed since its last word, when a signal has interrupted it.
    pub progress: crate::fragment::Progress,
    /// The thread is in an exec.
    pub executing: bool,
    /// The thread is to detach at the next safe point.
    pub detaching: bool,
    /// The kernel allows `wrgsbase`.
    pub fsgsbase: bool,
    /// The data of the instruction that the engine emulates is recorded.
    pub records: bool,
    pub slot: *const Slot,
    pub slot_index: u32,
    pub thread: ThreadId,
    pub control: *const Control,
    /// First byte and end of the segment being written.
    pub segment: u64,
    pub limit: u64,
    /// The mapping this structure is in.
    pub mapping: u64,
    pub mapping_length: u64,
    pub signal_stack: u64,
    pub signal_stack_length: u64,
    /// Non-zero while the thread waits for the recorder to put it into native code.
    pub parked: AtomicU32,
    /// The next system call had begun before the engine came, and was interrupted for it: see
    /// `wire::Init::interrupted`.
    pub interrupted: u32,
    /// What the thread has registered for restartable sequences, and the critical section that it
    /// is in.
    pub rseq: Rseq,
    pub section: Option<crate::rseq::Section>,
    /// For a child process that is to be followed: the entry where it waits.
    pub follow: *const wire::Child,
    /// For a child process: it shares its parent's memory.
    pub shares: bool,
    /// Time at which the thread was created.
    pub created: Tsc,
    /// The recorder knows this process, which shares its parent's memory, and will see its exec.
    pub followed: bool,
    /// The ring is closed, and the slot may be another thread's.
    pub closed: bool,
    /// Translation mode, and the state of selection and skipping.
    pub selection: crate::select::SelectionState,
    /// The table of owners (see `owners`), and the keys that turn an address into a tag, by the
    /// logarithm of the operand's size.
    pub owners: u64,
    pub order_keys: [u64; 4],
    /// The current locked instruction: index and tag of its entry, the values before and after it,
    /// and the carry flag before it.
    pub order_index: u64,
    pub order_tag: u64,
    pub order_old: u64,
    pub order_left: u64,
    pub order_carry: u64,
    /// By entry: the value that the thread's last locked instruction has written.
    pub order_values: [u64; crate::owners::OWNER_COUNT],
    /// Calls of allocation routines that have not returned.
    pub calls: crate::probe::AllocationCalls,
}

/// The signal state of a thread: what a handler may use while the engine code that it has
/// interrupted holds the thread's [`Tcb`]. It lies behind the Tcb and is not a part of it, so that
/// a `&mut Tcb` does not cover it. All references to it are shared.
///
/// Only the thread itself and its handlers use it. A handler runs to its end before the interrupted
/// code continues.
#[repr(C)]
pub struct Signals {
    pub this: *const Self,
    pub control: *const Control,
    pub slot_index: u32,
    /// The mask with which the assembly raises a signal to deliver a deferred one: all but the
    /// synchronous signals.
    pub raise_mask: u64,
    /// The mask that the kernel should have while the application runs.
    pub real_mask: Cell<u64>,
    /// The mask that the application has set.
    pub mask: Cell<u64>,
    /// The mask during the current system call, if it sets one (ppoll, sigsuspend …).
    pub call_mask: Cell<Option<u64>>,
    /// Non-zero: the kernel must be given `real_mask` before the thread enters the code cache or
    /// makes a system call of the application.
    pub mask_changed: AtomicU32,
    /// Non-zero: before that, deferred and pending signals must be checked.
    pub has_deferred: AtomicU32,
    /// The deferred asynchronous signal, which came where it could not be delivered; 0 for none.
    /// While there is one, the kernel holds all others that can be blocked.
    pub deferred: AtomicU32,
    pub deferred_info: Cell<crate::signal::SignalInfo>,
    /// Synchronous signals that wait for the next safe point, or until the application unblocks
    /// them. Their information is in `pending_info`, by `signal::synchronous_index`.
    pub pending: AtomicU64,
    /// Those of `pending` that a fault has raised.
    pub raised_by_fault: AtomicU64,
    pub pending_info: [Cell<crate::signal::SignalInfo>; crate::signal::SYNCHRONOUS_COUNT],
    /// Another thread has sent a hint: a signal is pending for the process, or a backup was
    /// confirmed (see `pending`).
    pub hinted: Cell<bool>,
    /// The unconfirmed backup that the thread has stored: slot of the receiver, and signal.
    pub backup: Cell<Option<(usize, usize)>>,
    /// Single-stepping to the next safe point.
    pub stepping: Cell<bool>,
    /// The thread single-steps a store of the engine without the alignment checks that the
    /// application has enabled.
    pub misaligned: Cell<bool>,
    /// Code address and data address of the last write that faulted.
    pub faulted_write: Cell<(u64, u64)>,
    /// The thread must go to the dispatcher at the next safe point, because its code has changed.
    pub stale: Cell<bool>,
    /// The engine accesses memory for the application: a fault is the application's.
    pub accessing: Cell<bool>,
    /// The thread runs natively; only its signals still come to the engine.
    pub native: Cell<bool>,
    /// The signal that is being handled, in case the handler fails; null for none.
    pub handled: Cell<*const crate::signal::HandledSignal>,
    /// The signal actions of a child process that shares its parent's memory (see
    /// `clone::record_child`). Null for a thread of the target, which uses the process's.
    pub own_actions: Cell<*mut [crate::signal::SignalAction; crate::signal::SIGNAL_COUNT]>,
}

/// The layout of what gs points at.
#[repr(C)]
struct TcbAndSignals {
    tcb: Tcb,
    signals: Signals,
}

/// Offset of the [`Signals`] from gs.
pub const SIGNALS: usize = offset_of!(TcbAndSignals, signals);

impl Signals {
    /// Whether the thread is a child process that shares its parent's memory. It takes none of the
    /// signals that are pending for the target's process.
    pub fn is_child_process(&self) -> bool {
        !self.own_actions.get().is_null()
    }

    pub fn control(&self) -> &'static Control {
        // SAFETY: the shared mapping stays as long as the process.
        unsafe { &*self.control }
    }

    /// The calling thread's.
    ///
    /// # Safety
    /// gs must point at a thread's state.
    pub unsafe fn current() -> &'static Self {
        let this: *const Self;
        // SAFETY: the first word of the structure is its address. No `&mut` to it exists.
        unsafe {
            asm!("mov {}, gs:[{}]", out(reg) this, const SIGNALS, options(nostack, preserves_flags, readonly));
            &*this
        }
    }
}

/// Room for a memory operand.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct OperandBuffer(pub [u8; OPERAND_BYTES]);

pub const OPERAND_BYTES: usize = 512;

/// The low halves of the vector registers, where `movaps` can reach them.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Vectors(pub [[u64; 2]; 16]);

/// `stack_t` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AlternateStack {
    pub address: u64,
    pub flags: i32,
    pub padding: i32,
    pub length: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for AlternateStack {}

pub const SS_ONSTACK: i32 = 1;
pub const SS_DISABLE: i32 = 2;
pub const SS_AUTODISARM: i32 = 1 << 31;

pub const SCRATCH_RCX: u32 = offset_of!(Tcb, scratch_rcx) as u32;
pub const SCRATCH_RDX: u32 = offset_of!(Tcb, scratch_rdx) as u32;
pub const SCRATCH_THIRD: u32 = offset_of!(Tcb, scratch_third) as u32;
pub const SCRATCH_SEGMENT: u32 = offset_of!(Tcb, scratch_segment) as u32;
pub const GS_BASE: u32 = offset_of!(Tcb, gs_base) as u32;
pub const SCRATCH_VECTOR: u32 = offset_of!(Tcb, scratch_vector) as u32;
pub const FLAGS: u32 = offset_of!(Tcb, flags) as u32;
pub const OPERAND: u32 = offset_of!(Tcb, operand) as u32;
pub const ENGINE_STACK: u32 = offset_of!(Tcb, engine_stack) as u32;
pub const CURSOR: u32 = offset_of!(Tcb, cursor) as u32;
pub const EXIT_ENTRY: u32 = offset_of!(Tcb, exit_entry) as u32;
pub const MISMATCH_ENTRY: u32 = offset_of!(Tcb, mismatch_entry) as u32;
pub const MISS_ENTRY: u32 = offset_of!(Tcb, miss_entry) as u32;
pub const TABLE_MASK: u32 = offset_of!(Tcb, table_mask) as u32;
pub const OWNERS: u32 = offset_of!(Tcb, owners) as u32;
pub const ORDER_KEYS: u32 = offset_of!(Tcb, order_keys) as u32;
pub const ORDER_INDEX: u32 = offset_of!(Tcb, order_index) as u32;
pub const ORDER_TAG: u32 = offset_of!(Tcb, order_tag) as u32;
pub const ORDER_OLD: u32 = offset_of!(Tcb, order_old) as u32;
pub const ORDER_LEFT: u32 = offset_of!(Tcb, order_left) as u32;
pub const ORDER_CARRY: u32 = offset_of!(Tcb, order_carry) as u32;
pub const ORDER_VALUES: u32 = offset_of!(Tcb, order_values) as u32;
/// Where the application's r15 lives.
pub const APP_R15: u32 = (offset_of!(Tcb, registers) + 8 * wire::R15) as u32;

const GUARD: u64 = 4096;
const ENGINE_STACK_BYTES: u64 = 128 << 10;
const SIGNAL_STACK: u64 = 64 << 10;

impl Tcb {
    /// What the thread's signal handlers may touch at any time.
    pub fn signals(&self) -> &'static Signals {
        // SAFETY: made in `OwnedTcb::new`, in the same mapping, for as long as the thread lives; no
        // `&mut` to it exists.
        unsafe { &*self.this.cast::<u8>().add(SIGNALS).cast::<Signals>() }
    }

    pub fn control(&self) -> &'static Control {
        // SAFETY: the shared mapping stays as long as the process.
        unsafe { &*self.control }
    }

    /// The address of the application's current instruction, while the engine runs.
    #[inline]
    pub fn pc(&self) -> AppPc {
        AppPc::new(self.registers.rip)
    }

    /// Makes the application continue at `pc`.
    #[inline]
    pub fn set_pc(&mut self, pc: AppPc) {
        self.registers.rip = pc.get();
    }

    /// Whether the thread is a process of its own that shares its parent's memory.
    pub fn is_child_process(&self) -> bool {
        self.signals().is_child_process()
    }

    pub fn slot(&self) -> &'static Slot {
        // SAFETY: part of the shared mapping.
        unsafe { &*self.slot }
    }

    /// The calling thread's state.
    ///
    /// # Safety
    /// gs must point at it, as it does in the engine and in translated code.
    pub unsafe fn current() -> *mut Self {
        let this: *mut Self;
        // SAFETY: the first word of the structure that gs points at is its address.
        unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly)) };
        this
    }

    /// Makes the signal stack the kernel's alternate stack for this thread; the one that it had is
    /// the application's.
    pub fn install_signal_stack(&mut self) {
        let stack =
            AlternateStack { address: self.signal_stack, flags: 0, padding: 0, length: self.signal_stack_length };
        let before = &raw mut self.alternate_stack as u64;
        // SAFETY: the kernel reads one structure and writes the other; the stack belongs to this
        // thread.
        unsafe { sys::call(sys::number::SIGALTSTACK, [&raw const stack as u64, before, 0, 0, 0, 0]) };
    }
}

/// The state of a thread that does not run yet, or any more. The thread that has made it owns it.
///
/// Nothing is freed when this is dropped: a thread that has been started owns its state itself.
pub struct OwnedTcb(*mut Tcb);

impl OwnedTcb {
    /// Makes the state of a new thread. `None` if there is no memory.
    pub fn new(control: &Control, slot_index: u32, thread: ThreadId, min_signal_stack: u64) -> Option<Self> {
        let signal_stack_length = SIGNAL_STACK + ((min_signal_stack + 4095) & !4095);
        let size = (size_of::<TcbAndSignals>() as u64 + 4095) & !4095;
        let length = (GUARD + ENGINE_STACK_BYTES + signal_stack_length + size + 0xffff) & !0xffff;
        let mapping = engine_memory::map(length)?;
        // SAFETY: the first page was mapped just now; it becomes a guard page.
        unsafe { sys::protect(mapping, GUARD, 0) };
        let engine_stack = mapping + GUARD + ENGINE_STACK_BYTES;
        let address = engine_stack + signal_stack_length;
        let this = address as *mut Tcb;
        // SAFETY: fresh zeroed memory of the right size and alignment. Zero is a value of all
        // fields but of some options, which are set below before they are read; so are the
        // pointers.
        let signals = unsafe { &mut *(address as *mut TcbAndSignals).cast::<u8>().add(SIGNALS).cast::<Signals>() };
        // The memory of the thread's state, to which there is no other reference yet.
        let mut tcb = Self(this);
        signals.this = signals;
        signals.control = control;
        signals.slot_index = slot_index;
        signals.raise_mask = !crate::signal::SYNCHRONOUS;
        signals.call_mask = Cell::new(None);
        signals.backup = Cell::new(None);
        tcb.this = this;
        tcb.engine_stack = engine_stack;
        tcb.signal_stack = engine_stack;
        tcb.signal_stack_length = signal_stack_length;
        tcb.mapping = mapping;
        tcb.mapping_length = length;
        tcb.mxcsr = 0x1f80;
        tcb.fsgsbase = crate::clone::has_fsgsbase();
        tcb.alternate_stack = AlternateStack { address: 0, flags: SS_DISABLE, padding: 0, length: 0 };
        tcb.section = None;
        tcb.control = control;
        tcb.slot = &raw const control.slots[slot_index as usize];
        tcb.slot_index = slot_index;
        tcb.thread = thread;
        crate::dispatch::set_entries(&mut tcb);
        Some(tcb)
    }

    /// The address of the state, for the thread that is to run with it.
    pub fn as_ptr(&self) -> *mut Tcb {
        self.0
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nothing may use the thread's state or stacks any more.
    pub unsafe fn free(mut self) {
        self.string_run = None;
        // SAFETY: the caller's promise.
        unsafe { sys::unmap(self.mapping, self.mapping_length) };
    }
}

impl Deref for OwnedTcb {
    type Target = Tcb;

    fn deref(&self) -> &Tcb {
        // SAFETY: made by `new`. The thread does not run, so this is the only reference to its
        // state.
        unsafe { &*self.0 }
    }
}

impl DerefMut for OwnedTcb {
    fn deref_mut(&mut self) -> &mut Tcb {
        // SAFETY: as above.
        unsafe { &mut *self.0 }
    }
}

/// Points gs at `address`.
///
/// # Safety
/// What uses gs from here on must expect it there: the engine and translated code the thread's
/// state, native code its own base.
pub unsafe fn set_gs(address: u64, fsgsbase: bool) {
    if fsgsbase {
        // SAFETY: the kernel allows the instruction.
        unsafe { asm!("wrgsbase {}", in(reg) address, options(nostack, preserves_flags)) };
    } else {
        const ARCH_SET_GS: u64 = 0x1001;
        // SAFETY: sets the base of gs.
        unsafe { sys::call(sys::number::ARCH_PRCTL, [ARCH_SET_GS, address, 0, 0, 0, 0]) };
    }
}
