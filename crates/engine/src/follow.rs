//! Following new processes: each waits until the recorder has seen it.
//!
//! A process with a copy of the memory waits with the state of its thread saved. The recorder
//! unmaps the engine from it and attaches as to any other process. A process that shares the memory
//! is recorded as a thread of its parent until it execs; before the exec, it waits until the
//! recorder can see it.

use core::sync::atomic::Ordering;

use entity::Tsc;
use wire::{
    CHILD_FREE, CHILD_GOES, CHILD_MADE, CHILD_SHARES, CHILD_TAKEN, CHILD_WAITS, Child, Control, DETACH_NONE, OWNER_DIED,
};

use crate::sys;
use crate::tcb::Tcb;

const PATIENCE_MILLISECONDS: u64 = 100;

/// Takes an entry for a new process, before it is created.
pub fn prepare(control: &'static Control) -> Option<&'static Child> {
    if control.follow.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let take = |child: &&Child| {
        child.state.compare_exchange(CHILD_FREE, CHILD_MADE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    let child = control.children.iter().find(take);
    if child.is_none() {
        control.lost_children.fetch_add(1, Ordering::SeqCst);
    }
    child
}

/// Frees the entry of a process that was not created.
pub fn forget(child: Option<&Child>) {
    if let Some(child) = child {
        child.state.store(CHILD_FREE, Ordering::SeqCst);
    }
}

/// In the new process: waits until the recorder has seen it. One that does not share memory returns
/// only if it is not recorded.
pub fn wait(tcb: &Tcb, child: &Child, shares: bool, created: Tsc) {
    let control = tcb.control();
    let waiting = if shares { CHILD_SHARES } else { CHILD_WAITS };
    // SAFETY: no arguments.
    let process = unsafe { sys::call(sys::number::GETPID, [0; 6]) };
    child.process.store(process as u32, Ordering::SeqCst);
    child.tsc.store(created.get(), Ordering::SeqCst);
    child.state.store(waiting, Ordering::SeqCst);
    control.doorbell.fetch_add(1, Ordering::SeqCst);
    sys::futex_wake(&control.doorbell);
    loop {
        match child.state.load(Ordering::SeqCst) {
            CHILD_GOES => break,
            CHILD_TAKEN => {}
            _ if control.detach.load(Ordering::SeqCst) != DETACH_NONE => {
                let given_up = child.state.compare_exchange(waiting, CHILD_GOES, Ordering::SeqCst, Ordering::SeqCst);
                if given_up.is_ok() {
                    break;
                }
            }
            _ => {}
        }
        if control.recorder[0].load(Ordering::SeqCst) & OWNER_DIED != 0 {
            break;
        }
        sys::futex_wait(&child.state, child.state.load(Ordering::SeqCst), PATIENCE_MILLISECONDS);
    }
    child.state.store(CHILD_FREE, Ordering::SeqCst);
}

/// In a recorded process that shares its parent's memory: waits, once, until the recorder can see
/// its exec.
pub fn wait_in_child(tcb: &mut Tcb) {
    let control = tcb.control();
    if tcb.followed || control.detach.load(Ordering::SeqCst) != DETACH_NONE {
        return;
    }
    if let Some(child) = prepare(control) {
        tcb.followed = true;
        wait(tcb, child, true, tcb.created);
    }
}

/// In a process that is not recorded: unmaps the part of the shared memory that it may have
/// inherited.
pub fn unmap(tcb: &Tcb) {
    // SAFETY: no thread uses the memory any more; without a recorder it is not needed.
    unsafe { sys::unmap(tcb.control as u64, wire::CONTROL_BYTES as u64) };
}
