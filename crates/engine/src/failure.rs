//! Failures: when the engine cannot continue, the thread stops with the application's state saved,
//! and the recorder detaches all threads. The program never ends because of the engine.

use core::sync::atomic::{AtomicBool, Ordering};

use wire::Control;

use crate::signal::Interruption;
use crate::tcb::{Signals, Tcb};
use crate::{detach, engine_memory, memory, reclaim, ring, rseq, signal, sys};

/// Why the engine cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no free memory within reach of the application's code.
    NoRoom,
    NoMemory,
    /// Every slot of the shared memory belongs to a thread.
    TooManyThreads,
    /// The code at the next address can be executed but not read.
    Unreadable,
    /// An invariant of the engine is broken.
    Defect,
    /// A process that shares the memory was killed while it held a lock of the engine.
    KilledChild,
    /// A defect that shows in a signal handler of the engine.
    Handler,
}

impl Failure {
    const fn code(self) -> u32 {
        match self {
            Self::NoRoom => wire::FAILURE_NO_ROOM,
            Self::NoMemory => wire::FAILURE_NO_MEMORY,
            Self::TooManyThreads => wire::FAILURE_TOO_MANY_THREADS,
            Self::Unreadable => wire::FAILURE_UNREADABLE,
            Self::Defect => wire::FAILURE_DEFECT,
            Self::KilledChild => wire::FAILURE_KILLED_CHILD,
            Self::Handler => wire::FAILURE_HANDLER,
        }
    }
}

/// Whether a test wants this failure to happen now.
pub fn is_injected(control: &Control, failure: Failure) -> bool {
    // SAFETY: asked in a target only, where gs points at the state of the thread in the engine.
    is_injected_in(control, failure, || unsafe { Signals::current() }.is_child_process())
}

/// The same, in a signal handler.
pub fn is_injected_in_handler(signals: &Signals) -> bool {
    is_injected_in(signals.control(), Failure::Handler, || signals.is_child_process())
}

fn is_injected_in(control: &Control, failure: Failure, is_child: impl FnOnce() -> bool) -> bool {
    let injected = control.injected_failure.load(Ordering::Relaxed);
    let is_meant = injected == failure.code() || injected == failure.code() | wire::INJECT_IN_CHILD && is_child();
    is_meant && is_counted_down(control, injected)
}

fn is_counted_down(control: &Control, injected: u32) -> bool {
    control.injected_failure.load(Ordering::Relaxed) == injected
        && control.injected_after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
}

/// Whether a test wants this failure to happen now, while the engine sets itself up.
pub fn is_injected_in_set_up(control: &Control, failure: Failure) -> bool {
    is_counted_down(control, failure.code() | wire::INJECT_IN_SET_UP)
}

/// Reports a failure to the recorder and requests a detach. The first failure counts.
pub fn report(control: &Control, failure: Failure) {
    note(control, failure);
    detach::request(control);
}

fn note(control: &Control, failure: Failure) {
    let _ = control.failure.compare_exchange(0, failure.code(), Ordering::SeqCst, Ordering::SeqCst);
}

/// Reports that the engine cannot be set up, and waits until the recorder puts the thread into
/// native code.
pub fn abandon_set_up(control: &Control, failure: Failure) -> ! {
    note(control, failure);
    control.stage.store(wire::STAGE_FAILED, Ordering::SeqCst);
    wait_while(control, wire::STAGE_FAILED);
    // Without a recorder, the state of the application is lost.
    sys::abort()
}

/// Waits until the recorder changes the stage or is gone.
pub fn wait_while(control: &Control, stage: u32) {
    while control.stage.load(Ordering::SeqCst) == stage && ring::has_recorder(control) {
        sys::nap();
    }
}

/// Detaches a thread that cannot continue at `tcb.registers.rip`; its state is saved. Waits until
/// the recorder puts it into native code. True if there is no recorder and the thread detaches by
/// itself. False if what has failed may be tried again.
pub fn detach(tcb: &mut Tcb, failure: Failure) -> bool {
    let control = tcb.control();
    report(control, failure);
    rseq::abort_before_detach(tcb);
    // Deferred signals cannot be delivered first, because the thread cannot continue in the cache.
    signal::requeue_all_in_kernel(tcb);
    if tcb.is_child_process() {
        return detach::detach_thread(tcb);
    }
    detach::park_if_requested(tcb);
    if (!ring::has_recorder(control) || tcb.interrupted != 0) && detach::detach_thread(tcb) {
        return true;
    }
    signal::block_asynchronous(tcb);
    false
}

/// The engine is set up: the first thread has its state, and gs points at it.
static STARTED: AtomicBool = AtomicBool::new(false);

/// From here on, failures end in a detach.
pub fn set_up() {
    STARTED.store(true, Ordering::Relaxed);
}

/// Handles a panic of the engine. If the application's state is saved, the thread waits for the
/// recorder. If a signal handler of the engine has interrupted the application, the application
/// continues and is detached like the other threads. If the engine is not set up yet, the recorder
/// removes it from the process.
pub fn on_panic() -> ! {
    if !STARTED.load(Ordering::Relaxed) {
        let failure = if memory::is_exhausted() { Failure::NoMemory } else { Failure::Defect };
        match engine_memory::control() {
            Some(control) => abandon_set_up(control, failure),
            None => sys::abort(),
        }
    }
    // SAFETY: this is the engine, so gs points at the thread's state; what used the state before
    // does not continue.
    let tcb = unsafe { &mut *Tcb::current() };
    // SAFETY: what held locks in the handler does not continue.
    match unsafe { signal::interruption(tcb) } {
        Interruption::Code => {
            report(tcb.control(), Failure::Handler);
            // SAFETY: as above.
            unsafe { signal::abandon_handler(tcb) };
        }
        Interruption::Nothing if !reclaim::has_saved_state(tcb) => sys::abort(),
        Interruption::Nothing | Interruption::Entry => {}
    }
    // SAFETY: what held the lock in this thread does not continue.
    unsafe { release_own_lock(tcb) };
    while !detach(tcb, Failure::Defect) {}
    crate::dispatch::enter_native()
}

/// Releases the engine's lock if the calling thread holds it.
///
/// # Safety
/// What held the lock in this thread does not continue.
unsafe fn release_own_lock(tcb: &Tcb) {
    /// No other thread has a stack in so many bytes above the one on which the injector starts the
    /// first thread.
    const ABOVE: u64 = 64 << 10;
    let on_stack = 0u8;
    let here = &raw const on_stack as u64;
    let own = tcb.mapping..tcb.mapping + tcb.mapping_length;
    let stacks = if own.contains(&here) { own } else { here..here + ABOVE };
    // SAFETY: the caller's promise; the range has stacks of this thread only.
    unsafe { crate::engine::ENGINE.release_for_dead(stacks) };
}
