//! Detach: threads return to native code.
//!
//! Together: each thread saves its state and waits ([`park_if_requested`]). When all threads are
//! parked or in a system call of the application, the recorder puts them into native code and
//! unmaps the engine.
//!
//! Alone, without a recorder ([`detach_thread`]): the engine stays mapped, because the kernel still
//! calls it for the signals of a detached thread, at first on the engine's signal stack.

use core::arch::naked_asm;
use core::sync::atomic::Ordering;

use wire::{Control, DETACH_TOGETHER, STAGE_FINISHED, word};

use crate::engine::ENGINE;
use crate::tcb::Tcb;
use crate::{follow, pending, reclaim, ring, signal, sys};

/// How often a parked thread checks that the recorder is alive.
const PATIENCE_MILLISECONDS: u64 = 100;

/// Whether the recorder wants threads to park.
pub fn is_parking(control: &Control) -> bool {
    control.detach.load(Ordering::Relaxed) == DETACH_TOGETHER
}

/// Asks the recorder to detach all threads. They park at once.
pub fn request(control: &Control) {
    let request =
        control.detach.compare_exchange(wire::DETACH_NONE, DETACH_TOGETHER, Ordering::SeqCst, Ordering::SeqCst);
    if request.is_ok() {
        control.doorbell.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&control.doorbell);
    }
}

/// Parks the thread if the recorder wants that: the application's state is saved and every signal
/// is blocked until the recorder puts the thread into native code. Returns if the recorder has
/// withdrawn the request or has died.
pub fn park_if_requested(tcb: &mut Tcb) {
    let control = tcb.control();
    // The wait would destroy what the kernel remembers of an interrupted system call. The thread
    // restarts that call at once, and can be stopped in it.
    if !is_parking(control) || tcb.interrupted != 0 || tcb.is_child_process() {
        return;
    }
    if !signal::block_all(tcb) {
        // A signal has to be delivered first.
        return signal::block_asynchronous(tcb);
    }
    signal::refuse_hints(tcb);
    signal::hand_pending_to_kernel(tcb, true);
    tcb.parked.store(1, Ordering::SeqCst);
    while is_parking(control) && ring::has_recorder(control) {
        sys::futex_wait(&control.detach, DETACH_TOGETHER, PATIENCE_MILLISECONDS);
    }
    tcb.parked.store(0, Ordering::SeqCst);
    pending::accept_hints(tcb.slot_index);
    signal::take_pending_back(tcb);
}

/// Restores signal actions, pending signals and page protections of the process. The recorder makes
/// one thread execute this when all threads are stopped. The thread then waits for the recorder.
///
/// # Safety
/// Called by the recorder on the thread's engine stack, when every thread is native or waits.
pub unsafe extern "C" fn finish(tcb: &mut Tcb) -> ! {
    let control = tcb.control();
    ENGINE.lock().release_guarded();
    signal::restore_process_actions();
    signal::requeue_process_pending();
    control.stage.store(STAGE_FINISHED, Ordering::SeqCst);
    loop {
        sys::futex_wait_without_limit(&control.stage, STAGE_FINISHED);
    }
}

/// A `syscall` instruction at which the recorder makes stopped threads execute system calls.
///
/// # Safety
/// Not to be called: the recorder moves the thread away after the system call.
#[unsafe(naked)]
pub unsafe extern "C" fn trackway_gate() {
    naked_asm!("syscall", "ud2")
}

/// Detaches the thread: the way into the code cache leads to native code at `tcb.registers.rip`
/// instead. False if a signal has to be delivered first.
pub fn detach_thread(tcb: &mut Tcb) -> bool {
    if tcb.signals().native.get() {
        return true;
    }
    if !signal::block_all(tcb) {
        signal::block_asynchronous(tcb);
        return false;
    }
    if tcb.is_child_process() {
        detach_child(tcb);
        return true;
    }
    if ring::has_recorder(tcb.control()) || tcb.control().detach.load(Ordering::Relaxed) != wire::DETACH_NONE {
        ring::close(tcb, word::DETACH);
    }
    reclaim::exit_cache(tcb);
    // Native system calls must not meet pages that the engine has write-protected.
    ENGINE.lock().release_guarded();
    // The kernel looks after pending signals from now on. It delivers none before the way into the
    // cache unblocks them.
    signal::stop_taking_signals(tcb);
    signal::refuse_hints(tcb);
    signal::hand_pending_to_kernel(tcb, true);
    set_native(tcb);
    true
}

/// Whether the thread has to detach by itself: there is no recorder, or the thread is a child
/// process, which the recorder does not stop.
pub fn must_detach_alone(tcb: &Tcb) -> bool {
    let control = tcb.control();
    tcb.detaching || !ring::has_recorder(control) || tcb.is_child_process() && is_parking(control)
}

/// Detaches a child process that shares its parent's memory. All signals are blocked.
fn detach_child(tcb: &mut Tcb) {
    follow::wait_in_child(tcb);
    reclaim::exit_cache(tcb);
    ring::close(tcb, word::DETACH);
    ENGINE.lock().release_guarded();
    signal::hand_pending_to_kernel(tcb, false);
    signal::restore_own_actions(tcb);
    let stack = tcb.alternate_stack;
    // SAFETY: the kernel reads the application's own alternate stack; the thread is on its engine
    // stack.
    unsafe { sys::call(sys::number::SIGALTSTACK, [&raw const stack as u64, 0, 0, 0, 0, 0]) };
    set_native(tcb);
}

/// Notes that the thread runs natively, with the application's own signal mask.
pub fn set_native(tcb: &mut Tcb) {
    tcb.signals().native.set(true);
    tcb.detaching = false;
    tcb.signals().real_mask.set(tcb.signals().mask.get());
    tcb.signals().mask_changed.store(1, Ordering::Relaxed);
}
