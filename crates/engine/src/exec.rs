//! exec: the recorder attaches before the call and injects an engine into the new image, so that it
//! is recorded, too.

use core::sync::atomic::Ordering;

use wire::{EXEC_FAILED, EXEC_IDLE, EXEC_REFUSED, EXEC_WANTED, word};

use crate::tcb::Tcb;
use crate::{follow, ring, seccomp, signal, sys, syscall};

const PATIENCE_MILLISECONDS: u64 = 100;

/// The application's execve or execveat; returns if it fails.
pub fn exec(tcb: &mut Tcb) -> i64 {
    if tcb.is_child_process() {
        return exec_in_child(tcb);
    }
    let control = tcb.control();
    seccomp::prepare_exec(tcb);
    while control.exec_state.compare_exchange(EXEC_IDLE, EXEC_WANTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // Another thread is about to exec: it ends this thread, or fails.
        if !ring::has_recorder(control) {
            return call_exec(tcb);
        }
        sys::futex_wait(&control.exec_state, control.exec_state.load(Ordering::SeqCst), PATIENCE_MILLISECONDS);
    }
    control.exec_tid.store(sys::gettid(), Ordering::SeqCst);
    ring_and_wait(tcb, EXEC_WANTED);
    ring::append_time(tcb, word::TIME);
    call_recorded(tcb)
}

/// In a process that shares its parent's memory: the new image is not part of this recording. The
/// parent ends the thread's recording when the exec has succeeded.
fn exec_in_child(tcb: &mut Tcb) -> i64 {
    follow::wait_in_child(tcb);
    ring::append_time(tcb, word::TIME);
    call_recorded(tcb)
}

fn call_recorded(tcb: &mut Tcb) -> i64 {
    tcb.executing = true;
    signal::set_kernel_ignores(tcb.signals(), true);
    let result = call_exec(tcb);
    abandon(tcb);
    result
}

/// Notifies the recorder that the exec has failed, or that a signal is delivered first. A repeated
/// call starts again.
pub fn abandon(tcb: &mut Tcb) {
    if !core::mem::take(&mut tcb.executing) {
        return;
    }
    signal::set_kernel_ignores(tcb.signals(), false);
    if tcb.is_child_process() {
        return;
    }
    seccomp::forget_exec(tcb);
    let control = tcb.control();
    let refused = control.exec_state.load(Ordering::SeqCst) == EXEC_REFUSED;
    control.exec_state.store(if refused { EXEC_IDLE } else { EXEC_FAILED }, Ordering::SeqCst);
    if !refused {
        ring_and_wait(tcb, EXEC_FAILED);
    }
}

/// Notifies the recorder and waits until it has changed the state from `state`.
fn ring_and_wait(tcb: &Tcb, state: u32) {
    let control = tcb.control();
    control.doorbell.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&control.doorbell);
    while control.exec_state.load(Ordering::SeqCst) == state && ring::has_recorder(control) {
        sys::futex_wait(&control.exec_state, state, PATIENCE_MILLISECONDS);
    }
}

/// Makes the call. The new image inherits signal mask and pending signals, so the kernel gets the
/// application's.
fn call_exec(tcb: &mut Tcb) -> i64 {
    signal::hand_pending_to_kernel(tcb, true);
    let result = syscall::pass_through(tcb);
    signal::take_pending_back(tcb);
    result
}
