//! Signals. The kernel calls [`on_signal`] for every signal that the application handles and for
//! those that faults raise; the application's handler is then run from the code cache, on the
//! application's stack, with a frame like the kernel's.
//!
//! A signal is let through where the application's state is exact: at an instruction of translated
//! code, on the way into the cache, before or after a system call. Anywhere else in the engine it
//! is kept ([`Signals`]), to be delivered at the next such point; in the few instructions of
//! translated code between two application instructions, the thread is single-stepped to the next
//! safe point first.
//!
//! What a handler may touch depends on what it has interrupted. The engine's own code may be in the
//! middle of anything, and goes on afterwards: there, only [`Signals`] is touched and no lock is
//! taken. Everywhere else, nothing of the engine is half done: translated code and the assembly
//! before and after system calls hold no lock, and the functions that have called that assembly do
//! not go on if a handler of the application is to run. So the handler may use the thread's
//! [`Tcb`].

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
    Action, copy_actions, install_own_actions, note_fault_actions, restore_actions, restore_own_actions,
    restore_process_actions, set_kernel_ignores, set_up, sigaction,
};
pub use class::{image, set_image};
pub use deferred::{
    complete_sigpending, hand_pending_to_kernel, has_descriptor, has_pending, note_descriptor, on_seccomp_trap,
    on_taken_by_call, requeue_all_in_kernel, requeue_process_pending, stop_taking_signals, take_pending_back,
    try_sigtimedwait,
};
pub use frame::{Context, Info, is_on_alternate_stack, sigaltstack, sigreturn};
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

/// Signals that faults raise: never really blocked while translated code or the engine runs, always
/// ours first.
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV) | bit(SIGSYS);

/// The same, one by one.
pub const SYNCHRONOUS_SIGNALS: [usize; SYNCHRONOUS_COUNT] = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS];

pub const SYNCHRONOUS_COUNT: usize = 6;

/// The place of a signal in [`RAISED`].
pub fn synchronous_index(signal: usize) -> Option<usize> {
    SYNCHRONOUS_SIGNALS.iter().position(|&raised| raised == signal)
}
