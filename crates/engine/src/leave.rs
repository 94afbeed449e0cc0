//! Going back to native code.
//!
//! A thread that leaves keeps pointing gs at its state, because the kernel still calls us for its signals; everything else is
//! as if we had never been there.

use core::sync::atomic::Ordering;

use wire::word;

use crate::fragment::ENGINE;
use crate::ring;
use crate::tcb::Tcb;

/// Makes the way into the cache lead to native code at `tcb.registers.rip` instead.
pub fn leave(tcb: &mut Tcb) {
    if tcb.native {
        return;
    }
    if ring::is_wanted(tcb.control()) || tcb.control().leave.load(Ordering::Relaxed) != 0 {
        ring::close(tcb, word::LEAVE);
    }
    // System calls of a native thread find no write-protected pages.
    ENGINE.lock().release_guarded();
    go_native(tcb);
}

/// The part of leaving that has nothing to do with recording.
pub fn go_native(tcb: &mut Tcb) {
    tcb.native = true;
    tcb.leaving = false;
    // The way into the cache loads r15 from here.
    tcb.cursor = tcb.registers.general[wire::R15];
    tcb.next = tcb.registers.rip;
    tcb.real_mask = tcb.mask;
    tcb.deferred.store(1, Ordering::Relaxed);
}
