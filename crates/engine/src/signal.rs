//! Signals. The kernel calls the engine (`handler`) for every signal that the application handles
//! and for all synchronous ones. The engine then runs the application's handler from the code
//! cache, on the application's stack, with a frame like the kernel's (`delivery`, `frame`).
//!
//! A signal is delivered at a safe point, where the application's state is exact: at an instruction
//! of translated code, on the way into the cache, before or after a system call. Anywhere else it
//! is deferred to the next safe point (`deferred`). In translated code between safe points, the
//! thread is single-stepped to the next one (`fault`).
//!
//! The state that a handler may use depends on what it has interrupted. Engine code may hold locks
//! and continues afterwards, so there a handler uses only [`crate::tcb::Signals`] and takes no
//! lock. Everywhere else it may use the thread's [`crate::tcb::Tcb`]: translated code and the
//! assembly around system calls hold no lock, and their callers do not continue if a handler of the
//! application is to run.

mod action;
mod class;
mod deferred;
mod delivery;
mod fault;
mod frame;
mod handler;
mod mask;
mod send;
mod vectors;

pub use action::{
    SignalAction, copy_actions, install_own_actions, note_fault_actions, restore_actions, restore_own_actions,
    restore_process_actions, set_kernel_ignores, set_up, sigaction,
};
pub use class::{image, set_image};
pub use deferred::{
    complete_sigpending, hand_pending_to_kernel, has_descriptor, has_pending, note_descriptor, on_seccomp_trap,
    on_taken_by_call, refuse_hints, requeue_all_in_kernel, requeue_process_pending, stop_taking_signals,
    take_pending_back, try_sigtimedwait,
};
pub use frame::{SignalContext, SignalInfo, is_on_alternate_stack, sigaltstack, sigreturn};
pub use handler::{HandledSignal, Interruption, abandon_handler, interruption};
pub use mask::{block_all, block_asynchronous, block_for_clone, set_mask, sigprocmask};
pub use send::{kill_info, send_to_process, send_to_thread, tkill_info};

pub const SIGILL: usize = 4;
pub const SIGTRAP: usize = 5;
pub const SIGBUS: usize = 7;
pub const SIGFPE: usize = 8;
pub const SIGKILL: usize = 9;
pub const SIGSEGV: usize = 11;
pub const SIGSTOP: usize = 19;
pub const SIGSYS: usize = 31;
pub const SIGNAL_COUNT: usize = 65;

pub const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// The synchronous signals, which faults raise. The kernel never blocks them while translated code
/// or the engine runs, and always calls the engine for them.
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV) | bit(SIGSYS);

/// The synchronous signals, one by one.
pub const SYNCHRONOUS_SIGNALS: [usize; SYNCHRONOUS_COUNT] = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS];

pub const SYNCHRONOUS_COUNT: usize = 6;

/// Index of a signal in [`SYNCHRONOUS_SIGNALS`].
pub fn synchronous_index(signal: usize) -> Option<usize> {
    SYNCHRONOUS_SIGNALS.iter().position(|&raised| raised == signal)
}
