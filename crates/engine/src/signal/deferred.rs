//! Deferred and pending signals: those that the engine has taken from the kernel and not delivered
//! yet.
//!
//! A *deferred* signal has found the thread where the application's state is not exact, and waits
//! for the next safe point. A synchronous signal that was sent rather than raised is *pending* here
//! while the application blocks it, because the kernel never blocks these. The process's pending
//! signals are in [`crate::pending`].

use core::sync::atomic::{AtomicBool, Ordering};

use super::action::{SIG_IGN, action_of};
use super::class::{SignalClass, is_for_thread};
use super::frame::{SignalContext, SignalInfo};
use super::mask::{add_to_kernel_mask, block_asynchronous, set_kernel_mask, set_mask};
use super::{SIGSYS, SYNCHRONOUS, SYNCHRONOUS_SIGNALS, bit, synchronous_index};
use crate::pending::{PROCESS, requeue};
use crate::tcb::{Signals, Tcb};
use crate::{memory, pending, sys, syscall};

/// Defers a signal to the next safe point, and blocks all others that can be blocked, so that none
/// overtakes it. This is allowed at any interruption point, because it uses [`Signals`] only.
pub(super) fn defer(
    signals: &Signals,
    signal: usize,
    info: &SignalInfo,
    class: SignalClass,
    context: &mut SignalContext,
) {
    if class == SignalClass::Hint {
        signals.hinted.set(true);
    } else {
        store_pending(signals, signal, info, class);
    }
    signals.mask_changed.store(1, Ordering::SeqCst);
    signals.has_deferred.store(1, Ordering::SeqCst);
    context.mask |= !SYNCHRONOUS;
}

/// Stores a signal. One synchronous signal per number is stored, as the kernel does for standard
/// signals. Of the others one is stored: the kernel delivers no other before it.
pub(super) fn store_pending(signals: &Signals, signal: usize, info: &SignalInfo, class: SignalClass) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    signals.has_deferred.store(1, Ordering::SeqCst);
    let Some(index) = synchronous_index(signal) else {
        if signals.deferred.load(Ordering::SeqCst) != 0 {
            return requeue(signal, info);
        }
        signals.deferred_info.set(*info);
        return signals.deferred.store(signal as u32, Ordering::SeqCst);
    };
    if class == SignalClass::Synchronous {
        signals.raised_by_fault.fetch_or(bit(signal), Ordering::SeqCst);
    } else if signals.pending.load(Ordering::SeqCst) & bit(signal) != 0 {
        return;
    }
    // A taker reads the information before it clears the bit, and a handler in between finds the
    // bit set.
    signals.pending_info[index].set(*info);
    signals.pending.fetch_or(bit(signal), Ordering::SeqCst);
}

/// Takes the next deferred or pending signal that `mask` does not block.
pub(super) fn next_deliverable(signals: &Signals, mask: u64) -> Option<(usize, SignalInfo, SignalClass)> {
    // A signal that is stored from now on is found below, or sets the flag again.
    signals.has_deferred.store(0, Ordering::SeqCst);
    if signals.hinted.get() {
        SYNCHRONOUS_SIGNALS.into_iter().for_each(|signal| recover_dropped_signal(signals, signal));
    }
    let found = next_pending(signals, mask).or_else(|| next_process_pending(signals, mask));
    if found.is_none() && signals.hinted.take() {
        // This thread blocks the signal by now; another one may not.
        for signal in SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| process_pending(signals) & bit(signal) != 0) {
            pending::hint_another_thread(signals.control(), signal);
        }
    }
    if found.is_some() {
        // More signals may wait.
        signals.mask_changed.store(1, Ordering::SeqCst);
        signals.has_deferred.store(1, Ordering::SeqCst);
    }
    found
}

fn next_pending(signals: &Signals, mask: u64) -> Option<(usize, SignalInfo, SignalClass)> {
    let first = signals.deferred.load(Ordering::SeqCst) as usize;
    if first != 0 {
        let info = signals.deferred_info.get();
        signals.deferred.store(0, Ordering::SeqCst);
        return Some((first, info, SignalClass::Asynchronous));
    }
    for (index, &signal) in SYNCHRONOUS_SIGNALS.iter().enumerate() {
        if signals.pending.load(Ordering::SeqCst) & bit(signal) == 0 {
            continue;
        }
        let info = signals.pending_info[index].get();
        let was_fault = signals.raised_by_fault.load(Ordering::SeqCst) & bit(signal) != 0;
        let blocked = mask & bit(signal) != 0;
        if blocked && !was_fault && (is_for_thread(&info) || signals.is_child_process()) {
            continue;
        }
        signals.raised_by_fault.fetch_and(!bit(signal), Ordering::SeqCst);
        signals.pending.fetch_and(!bit(signal), Ordering::SeqCst);
        if was_fault {
            return Some((signal, info, SignalClass::Synchronous));
        }
        if !blocked && action_of(signals, signal).handler != SIG_IGN {
            return Some((signal, info, SignalClass::Asynchronous));
        }
        if blocked {
            PROCESS.put(signal, &info);
            pending::hint_another_thread(signals.control(), signal);
        }
    }
    None
}

fn next_process_pending(signals: &Signals, mask: u64) -> Option<(usize, SignalInfo, SignalClass)> {
    let open = process_pending(signals) & !mask;
    SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| open & bit(signal) != 0).find_map(|signal| {
        let info = PROCESS.take(signal)?;
        (action_of(signals, signal).handler != SIG_IGN).then_some((signal, info, SignalClass::Asynchronous))
    })
}

/// The pending signals of the process that the thread belongs to.
pub(super) fn process_pending(signals: &Signals) -> u64 {
    if signals.is_child_process() { 0 } else { PROCESS.bits() }
}

/// Takes the backup of a signal that the kernel has dropped because a fault of the same number was
/// pending.
pub(super) fn recover_dropped_signal(signals: &Signals, signal: usize) {
    if pending::confirmed_backups(signals.slot_index) & bit(signal) != 0
        && let Some(info) = pending::take_backup(signals.slot_index, signal)
    {
        store_pending(signals, signal, &info, SignalClass::Asynchronous);
    }
}

/// Whether blocked signals are pending here: those of the thread or, with `of_process`, also those
/// of the process.
pub fn has_pending(tcb: &Tcb, of_process: bool) -> bool {
    let signals = tcb.signals();
    let bits = signals.pending.load(Ordering::SeqCst) | if of_process { process_pending(signals) } else { 0 };
    bits & signals.mask.get() != 0
}

/// Gives the kernel the application's exact mask and the signals that are pending here. No fault
/// may happen until [`take_pending_back`].
pub fn hand_pending_to_kernel(tcb: &Tcb, of_process: bool) {
    let signals = tcb.signals();
    let of_process = of_process && !signals.is_child_process();
    let mask = signals.mask.get();
    signals.real_mask.set(mask);
    signals.mask_changed.store(1, Ordering::SeqCst);
    add_to_kernel_mask(mask & SYNCHRONOUS);
    for (index, &signal) in SYNCHRONOUS_SIGNALS.iter().enumerate().filter(|(_, signal)| mask & bit(**signal) != 0) {
        if signals.pending.load(Ordering::SeqCst) & bit(signal) != 0 {
            let info = signals.pending_info[index].get();
            signals.pending.fetch_and(!bit(signal), Ordering::SeqCst);
            requeue(signal, &info);
        }
        if let Some(info) = of_process.then(|| PROCESS.take(signal)).flatten() {
            requeue(signal, &info);
        }
    }
}

/// Ends [`hand_pending_to_kernel`]: faults may happen again, and signals that are still pending in
/// the kernel come back to the engine.
pub fn take_pending_back(tcb: &Tcb) {
    set_mask(tcb, tcb.signals().mask.get());
    block_asynchronous(tcb);
}

/// Sees to it that no hint is left in the kernel when the thread, which blocks all signals, becomes
/// native. What the hints were about is queued in the kernel.
pub fn refuse_hints(tcb: &Tcb) {
    let slot = tcb.slot_index;
    let hinted = pending::refuse_hints(slot) & pending::confirmed_backups(slot);
    for signal in SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| hinted & bit(signal) != 0) {
        if let Some(info) = pending::take_backup(slot, signal) {
            requeue(signal, &info);
        }
    }
}

/// Gives the process's pending signals to the kernel, when all threads detach together.
pub fn requeue_process_pending() {
    for signal in SYNCHRONOUS_SIGNALS {
        let Some(info) = PROCESS.take(signal) else { continue };
        // SAFETY: no arguments; then the kernel reads the information.
        unsafe {
            let process = sys::call(sys::number::GETPID, [0; 6]) as u64;
            let arguments = [process, signal as u64, info.as_ptr() as u64, 0, 0, 0];
            if sys::call(sys::number::RT_SIGQUEUEINFO, arguments) < 0 {
                // The kernel lets only the main thread forge this information.
                sys::call(sys::number::KILL, [process, signal as u64, 0, 0, 0, 0]);
            }
        }
    }
}

/// Queues the stored signals of a native thread in the kernel, which delivers them when the
/// engine's handler has returned. A native thread has no safe points.
pub(super) fn requeue_in_kernel(signals: &Signals) {
    set_kernel_mask(!0);
    signals.has_deferred.store(0, Ordering::SeqCst);
    let first = signals.deferred.swap(0, Ordering::SeqCst);
    if first != 0 {
        requeue(first as usize, &signals.deferred_info.get());
    }
    let pending = signals.pending.swap(0, Ordering::SeqCst);
    for (index, &signal) in SYNCHRONOUS_SIGNALS.iter().enumerate().filter(|(_, signal)| pending & bit(**signal) != 0) {
        requeue(signal, &signals.pending_info[index].get());
    }
}

/// Queues the stored signals of a thread that cannot reach a safe point.
pub fn requeue_all_in_kernel(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    requeue_in_kernel(tcb.signals());
}

/// Notes that the thread takes no more signals. Those pending for the process are hinted to another
/// thread.
pub fn stop_taking_signals(tcb: &Tcb) {
    pending::publish(tcb.slot_index, !0);
    let pending = process_pending(tcb.signals());
    for signal in SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| pending & bit(signal) != 0) {
        pending::hint_another_thread(tcb.control(), signal);
    }
}

/// Handles a SIGSYS that the application's seccomp filter has raised instead of a system call. It
/// is delivered on the way into the cache, when the call is complete. An earlier deferred signal is
/// delivered before the call, which is then made again.
pub fn on_seccomp_trap(tcb: &Tcb) {
    let signals = tcb.signals();
    block_asynchronous(tcb);
    if signals.deferred.load(Ordering::SeqCst) != 0 {
        signals.pending.fetch_and(!bit(SIGSYS), Ordering::SeqCst);
        syscall::deliver_deferred();
    }
}

/// Whether the application may have a signalfd, from which it reads synchronous signals.
static HAS_DESCRIPTOR: AtomicBool = AtomicBool::new(false);

/// Notes that the application makes a signalfd.
pub fn note_descriptor() {
    HAS_DESCRIPTOR.store(true, Ordering::Relaxed);
}

pub fn has_descriptor() -> bool {
    HAS_DESCRIPTOR.load(Ordering::Relaxed)
}

/// Completes the application's rt_sigpending: adds the signals that are pending here. False if the
/// set cannot be written.
pub fn complete_sigpending(tcb: &Tcb, set: u64) -> bool {
    let signals = tcb.signals();
    let ours = (signals.pending.load(Ordering::SeqCst) | process_pending(signals)) & signals.mask.get();
    // SAFETY: the application's system call writes there.
    let add = |kernel: u64| unsafe { memory::write(set, &(kernel | ours)) };
    ours == 0 || memory::read::<u64>(set).is_some_and(add)
}

/// Answers the application's rt_sigtimedwait with a signal that is pending here; `None` if there is
/// none.
pub fn try_sigtimedwait(tcb: &Tcb, set: u64, info_address: u64) -> Option<i64> {
    let signals = tcb.signals();
    let set = memory::read::<u64>(set)? & signals.mask.get();
    for (index, &signal) in SYNCHRONOUS_SIGNALS.iter().enumerate().filter(|(_, signal)| set & bit(**signal) != 0) {
        let is_pending = signals.pending.load(Ordering::SeqCst) & bit(signal) != 0;
        let info = if is_pending {
            let info = signals.pending_info[index].get();
            signals.pending.fetch_and(!bit(signal), Ordering::SeqCst);
            info
        } else if signals.is_child_process() {
            continue;
        } else if let Some(info) = PROCESS.take(signal) {
            info
        } else {
            continue;
        };
        // SAFETY: the application's system call writes there.
        let is_written = info_address == 0 || unsafe { memory::write(info_address, &info) };
        return Some(if is_written { signal as i64 } else { sys::EFAULT });
    }
    None
}

/// Notes that a system call of the application has taken a signal.
pub fn on_taken_by_call(tcb: &Tcb, signal: i64) {
    if let Some(signal) = usize::try_from(signal).ok().filter(|&signal| synchronous_index(signal).is_some()) {
        pending::discard_backup(tcb.slot_index, signal);
    }
}
