//! Signals that the application sends to its own threads or process, if their numbers are
//! synchronous.
//!
//! The kernel does not block these signals for the engine, so the engine keeps them: see
//! [`crate::pending`].

use core::sync::atomic::Ordering;

use super::class::{SI_TKILL, SI_USER, SignalClass, si_code};
use super::deferred::store_pending;
use super::frame::SignalInfo;
use super::{bit, synchronous_index};
use crate::pending::PROCESS;
use crate::tcb::{Signals, Tcb};
use crate::{pending, seccomp, sys};

/// Sends a signal to another thread of the application. `send` makes the system call. A backup is
/// stored if the number is synchronous.
pub fn send_to_thread(
    tcb: &mut Tcb,
    tid: u64,
    signal: u64,
    info: Option<SignalInfo>,
    send: fn(&mut Tcb) -> i64,
) -> i64 {
    let control = tcb.control();
    // A signal to the thread itself is not dropped: a fault is handled before the thread can send.
    let slot = match usize::try_from(signal).ok().and_then(synchronous_index) {
        Some(_) if tid != u64::from(sys::gettid()) => pending::slot_of(control, tid as u32),
        _ => None,
    };
    let signal = signal as usize;
    if let Some((slot, info)) = slot.zip(info)
        && pending::store_backup(slot, signal, &info)
    {
        tcb.signals().backup.set(Some((slot, signal)));
    }
    let result = send(tcb);
    confirm_backup(tcb.signals(), result == 0);
    result
}

/// Confirms or discards the thread's backup, when its system call was made or has to be made again.
pub(super) fn confirm_backup(signals: &Signals, was_sent: bool) {
    if let Some((slot, signal)) = signals.backup.take() {
        pending::confirm_backup(signals.control(), slot, signal, was_sent);
    }
}

/// Sends a signal to the application's own process. If the number is synchronous, the signal is
/// pending here at once: the kernel, which has no thread that blocks it, would deliver it to any
/// thread. `send` makes the system call otherwise.
pub fn send_to_process(
    tcb: &mut Tcb,
    process: u64,
    signal: u64,
    info: Option<SignalInfo>,
    send: fn(&mut Tcb) -> i64,
) -> i64 {
    let number = usize::try_from(signal).ok().filter(|&signal| synchronous_index(signal).is_some());
    let Some((signal, mut info)) = number.zip(info) else { return send(tcb) };
    // SAFETY: no arguments.
    let own = unsafe { sys::call(sys::number::GETPID, [0; 6]) } as u32;
    // The kernel lets only the main thread forge other codes.
    let permitted = si_code(&info) == SI_USER || si_code(&info) < 0 && si_code(&info) != SI_TKILL;
    if process as u32 != own || !permitted || seccomp::is_filtered(tcb) {
        return send(tcb);
    }
    info[0] = info[0] & !0xffff_ffff | signal as u64;
    let signals = tcb.signals();
    if signals.is_child_process() {
        // The caller is the only thread of the child process.
        store_pending(signals, signal, &info, SignalClass::Asynchronous);
        return 0;
    }
    PROCESS.put(signal, &info);
    if signals.mask.get() & bit(signal) == 0 {
        signals.mask_changed.store(1, Ordering::SeqCst);
        signals.has_deferred.store(1, Ordering::SeqCst);
    } else {
        pending::hint_another_thread(tcb.control(), signal);
    }
    0
}

/// The information that the kernel would give with a tkill or tgkill; `None` unless the signal is
/// synchronous.
pub fn tkill_info(signal: u64) -> Option<SignalInfo> {
    sender_info(signal, SI_TKILL)
}

/// The information that the kernel would give with a kill; `None` unless the signal is synchronous.
pub fn kill_info(signal: u64) -> Option<SignalInfo> {
    sender_info(signal, SI_USER)
}

fn sender_info(signal: u64, code: i32) -> Option<SignalInfo> {
    synchronous_index(usize::try_from(signal).ok()?)?;
    let mut info: SignalInfo = [0; 16];
    // SAFETY: no arguments.
    let [process, user] =
        [sys::number::GETPID, sys::number::GETUID].map(|call| unsafe { sys::call(call, [0; 6]) } as u32);
    (info[0], info[1]) = (signal, u64::from(code as u32));
    info[2] = u64::from(process) | u64::from(user) << 32;
    Some(info)
}
