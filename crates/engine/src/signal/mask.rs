//! Signal masks: the one that the application has set, and the one that the kernel has.
//!
//! The application's mask is in [`Signals::mask`]. The kernel gets it without the synchronous
//! signals, and only on the way into the code cache or into a system call of the application.

use core::sync::atomic::Ordering;

use super::deferred::process_pending;
use super::{SIGKILL, SIGSTOP, SIGSYS, SYNCHRONOUS, bit};
use crate::tcb::Tcb;
use crate::{memory, pending, seccomp, sys, syscall};

pub(super) const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

/// Gives the kernel a mask for the calling thread; returns the one that it had.
pub(super) fn set_kernel_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one mask and writes the other.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [2, &raw const mask as u64, &raw mut before as u64, 8, 0, 0]) };
    before
}

/// Makes the kernel block more signals.
pub(super) fn add_to_kernel_mask(mask: u64) {
    // SAFETY: the kernel reads the mask.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [0, &raw const mask as u64, 0, 8, 0, 0]) };
}

/// The application's rt_sigprocmask.
pub fn sigprocmask(tcb: &mut Tcb, how: u64, new: u64, old: u64, set_size: u64) -> i64 {
    if set_size != 8 {
        return sys::EINVAL;
    }
    let before = tcb.signals().mask.get();
    if new != 0 {
        let Some(set) = memory::read::<u64>(new) else { return sys::EFAULT };
        let mask = match how {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return sys::EINVAL,
        };
        before_blocking(tcb, mask);
        set_mask(tcb, mask);
    }
    // SAFETY: the application's system call writes there.
    let is_written = old == 0 || unsafe { memory::write(old, &before) };
    if is_written { 0 } else { sys::EFAULT }
}

/// Prepares for a mask that blocks more signals. A signal that the kernel has delivered before is
/// delivered first: the system call is then made again, and this does not return. Later signals
/// stay pending in the kernel.
pub(super) fn before_blocking(tcb: &Tcb, mask: u64) {
    let signals = tcb.signals();
    let more = mask & !signals.mask.get() & !SYNCHRONOUS & !UNBLOCKABLE;
    if more != 0 {
        add_to_kernel_mask(more);
    }
    while signals.deferred.load(Ordering::SeqCst) != 0 {
        syscall::deliver_deferred();
    }
}

/// Sets the application's mask. The kernel's mask follows on the way into the cache.
pub fn set_mask(tcb: &Tcb, mask: u64) {
    let signals = tcb.signals();
    let mask = mask & !UNBLOCKABLE;
    signals.mask.set(mask);
    signals.real_mask.set(mask & !SYNCHRONOUS);
    signals.mask_changed.store(1, Ordering::SeqCst);
    pending::publish(tcb.slot_index, mask);
    if (signals.pending.load(Ordering::SeqCst) | process_pending(signals)) & !mask != 0 {
        signals.has_deferred.store(1, Ordering::SeqCst);
    }
}

/// Blocks all asynchronous signals while the engine works. The way into the cache restores the
/// application's mask.
pub fn block_asynchronous(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(!SYNCHRONOUS);
}

/// Blocks all signals, also the synchronous ones: no fault may happen until [`block_asynchronous`]
/// or the way into the cache. False if a deferred signal may have to be delivered first.
#[must_use]
pub fn block_all(tcb: &Tcb) -> bool {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(!0);
    tcb.signals().has_deferred.load(Ordering::SeqCst) == 0
}

/// Blocks all signals for a clone: a new thread must not get a signal before it has a state and a
/// signal stack. SIGSYS stays unblocked if a seccomp filter may raise it instead of the call.
pub fn block_for_clone(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(if seccomp::is_filtered(tcb) { !bit(SIGSYS) } else { !0 });
}
