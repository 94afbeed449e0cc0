//! Going back to native code.
//!
//! Together: each thread stops with its state saved and waits ([`park_if_requested`]). When all of
//! them do, or are in a system call of the application's, the recorder puts them into native code
//! and unmaps the engine. Nothing stays behind.
//!
//! Alone, if the recorder is dead ([`leave`]): the kernel still calls us for the signals of a
//! thread that leaves, at first on our stack; everything else is as if we had never been there.

use core::arch::naked_asm;
use core::sync::atomic::Ordering;

use wire::{Control, DETACH_TOGETHER, STAGE_FINISHED, word};

use crate::engine::ENGINE;
use crate::tcb::Tcb;
use crate::{follow, reclaim, ring, signal, sys};

/// How often a parked thread looks whether the recorder is still alive.
const PATIENCE_MILLISECONDS: u64 = 100;

/// Whether threads are to stop and wait.
pub fn is_parking(control: &Control) -> bool {
    control.detach.load(Ordering::Relaxed) == DETACH_TOGETHER
}

/// From inside: asks the recorder to bring all threads back to native code. They stop at once.
pub fn request(control: &Control) {
    let request =
        control.detach.compare_exchange(wire::DETACH_NONE, DETACH_TOGETHER, Ordering::SeqCst, Ordering::SeqCst);
    if request.is_ok() {
        control.doorbell.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&control.doorbell);
    }
}

/// If threads are to leave: waits, with all of the application's state saved and every signal
/// blocked, until the recorder takes the thread out of here. Returns if it has changed its mind or
/// died.
pub fn park_if_requested(tcb: &mut Tcb) {
    let control = tcb.control();
    // What the kernel remembers of an interrupted system call would not survive the wait. The
    // thread makes the call at once, and can be stopped in it.
    if !is_parking(control) || tcb.interrupted != 0 || tcb.is_child_process() {
        return;
    }
    if !signal::block_all(tcb) {
        // A signal has to be delivered first.
        return signal::block_asynchronous(tcb);
    }
    signal::hand_pending_to_kernel(tcb, true);
    tcb.parked.store(1, Ordering::SeqCst);
    while is_parking(control) && ring::is_wanted(control) {
        sys::futex_wait(&control.detach, DETACH_TOGETHER, PATIENCE_MILLISECONDS);
    }
    tcb.parked.store(0, Ordering::SeqCst);
    signal::take_pending_back(tcb);
}

/// The recorder makes one thread execute this when all of them are stopped: gives the application
/// back what belongs to the process as a whole. Waits for the recorder to take the thread out of
/// here.
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

/// Where the recorder makes a stopped thread execute system calls.
///
/// # Safety
/// Not to be called; the recorder takes the thread away from here.
#[unsafe(naked)]
pub unsafe extern "C" fn trackway_gate() {
    naked_asm!("syscall", "ud2")
}

/// Makes the way into the cache lead to native code at `tcb.registers.rip` instead. False if a
/// signal has to be delivered first.
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
    if ring::is_wanted(tcb.control()) || tcb.control().detach.load(Ordering::Relaxed) != wire::DETACH_NONE {
        ring::close(tcb, word::DETACH);
    }
    reclaim::leave_cache(tcb);
    // System calls of a native thread find no write-protected pages.
    ENGINE.lock().release_guarded();
    // What is pending is the kernel's business from now on. Nothing arrives before the way into the
    // cache.
    signal::stop_taking_signals(tcb);
    signal::hand_pending_to_kernel(tcb, true);
    set_native(tcb);
    true
}

/// Whether the thread is to go back to native code by itself: without a recorder, or because it is
/// a process of its own, which the recorder does not stop.
pub fn must_detach_alone(tcb: &Tcb) -> bool {
    let control = tcb.control();
    tcb.detaching || !ring::is_wanted(control) || tcb.is_child_process() && is_parking(control)
}

/// A process that shares its parent's memory goes on as if it had never been recorded. Everything
/// is blocked.
fn detach_child(tcb: &mut Tcb) {
    follow::wait_in_child(tcb);
    reclaim::leave_cache(tcb);
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

/// The part of leaving that has nothing to do with recording.
pub fn set_native(tcb: &mut Tcb) {
    tcb.signals().native.set(true);
    tcb.detaching = false;
    tcb.signals().real_mask.set(tcb.signals().mask.get());
    tcb.signals().mask_changed.store(1, Ordering::Relaxed);
}
