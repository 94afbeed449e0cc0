//! New processes that are to be recorded, too: they wait until the recorder has seen them.
//!
//! A process with a copy of the memory waits with the state of its one thread saved; the recorder
//! takes everything of this engine out of it and attaches as to any other process. A process that
//! shares the memory is a thread of its parent's recording until it executes another program;
//! before that, it waits until the recorder is there to see it.

use core::sync::atomic::Ordering;

use wire::{
    CHILD_FREE, CHILD_GOES, CHILD_MADE, CHILD_SHARES, CHILD_TAKEN, CHILD_WAITS, Child, Control, DETACH_NONE, OWNER_DIED,
};

use crate::sys;
use crate::tcb::Tcb;

const PATIENCE_MILLISECONDS: u64 = 100;

/// Before a process is made: a place where it can wait.
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

/// In the parent: no process was made.
pub fn forget(child: Option<&Child>) {
    if let Some(child) = child {
        child.state.store(CHILD_FREE, Ordering::SeqCst);
    }
}

/// In the new process: waits until the recorder has seen it. One that does not share memory returns
/// only if it is not recorded.
pub fn wait(tcb: &Tcb, child: &Child, shares: bool, born: u64) {
    let control = tcb.control();
    let waiting = if shares { CHILD_SHARES } else { CHILD_WAITS };
    // SAFETY: no arguments.
    let process = unsafe { sys::call(sys::number::GETPID, [0; 6]) };
    child.process.store(process as u32, Ordering::SeqCst);
    child.tsc.store(born, Ordering::SeqCst);
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

/// In a process that shares its parent's memory and is recorded there: waits, once, until the
/// recorder is there to see that it executes another program.
pub fn wait_in_child(tcb: &mut Tcb) {
    let control = tcb.control();
    if tcb.followed || control.detach.load(Ordering::SeqCst) != DETACH_NONE {
        return;
    }
    if let Some(child) = prepare(control) {
        tcb.followed = true;
        wait(tcb, child, true, tcb.born);
    }
}

/// In a process that is not recorded: it does not need what it may have inherited of the shared
/// memory.
pub fn unmap(tcb: &Tcb) {
    // SAFETY: nobody uses it any more; without a recorder there is no need to.
    unsafe { sys::unmap(tcb.control as u64, wire::CONTROL_BYTES as u64) };
}
