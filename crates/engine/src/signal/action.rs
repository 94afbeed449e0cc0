//! Signal actions: those that the application has set by rt_sigaction, and those that the kernel
//! gets instead.
//!
//! The kernel calls the engine for every signal that the application handles and for all
//! synchronous ones. Ignored and default actions of the other signals are the kernel's.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use super::handler::{trackway_restorer, trackway_signal};
use super::mask::{UNBLOCKABLE, set_kernel_mask};
use super::{SIGNAL_COUNT, SYNCHRONOUS, bit};
use crate::lock::Mutex;
use crate::memory::{self, PlainData};
use crate::pending::PROCESS;
use crate::sys;
use crate::tcb::{Signals, Tcb};

pub(super) const SIG_DFL: u64 = 0;
pub(super) const SIG_IGN: u64 = 1;
const SA_NOCLDSTOP: u64 = 1;
const SA_NOCLDWAIT: u64 = 2;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
pub(super) const SA_ONSTACK: u64 = 0x0800_0000;
pub(super) const SA_RESTART: u64 = 0x1000_0000;
pub(super) const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const SA_EXPOSE_TAGBITS: u64 = 0x800;

const KNOWN_FLAGS: u64 = SA_NOCLDSTOP
    | SA_NOCLDWAIT
    | SA_SIGINFO
    | SA_RESTORER
    | SA_ONSTACK
    | SA_RESTART
    | SA_NODEFER
    | SA_RESETHAND
    | SA_EXPOSE_TAGBITS;

/// SIGCHLD, SIGCONT, SIGURG and SIGWINCH.
pub(super) const IGNORED_BY_DEFAULT: u64 = bit(17) | bit(18) | bit(23) | bit(28);

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SignalAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for SignalAction {}

/// The actions that the application has set. See [`with_actions`].
pub(super) static ACTIONS: Mutex<[SignalAction; SIGNAL_COUNT]> =
    Mutex::new([SignalAction { handler: 0, flags: 0, restorer: 0, mask: 0 }; SIGNAL_COUNT]);

/// Notes the application's actions for synchronous signals for the recorder.
pub fn note_fault_actions(control: &wire::Control) {
    for (signal, action) in wire::FAULT_SIGNALS.into_iter().zip(&control.fault_actions) {
        // SAFETY: the kernel writes one action, which has as many words.
        unsafe { sys::call(sys::number::RT_SIGACTION, [u64::from(signal), 0, action.as_ptr() as u64, 8, 0, 0]) };
    }
}

/// Takes over the synchronous signals and those that the application handles already. Ignored
/// signals stay ignored.
pub fn set_up() {
    with_actions(None, |actions| {
        for (signal, action) in actions.iter_mut().enumerate().skip(1) {
            // SAFETY: the kernel writes one action.
            unsafe {
                sys::call(sys::number::RT_SIGACTION, [signal as u64, 0, core::ptr::from_mut(action) as u64, 8, 0, 0])
            };
            if SYNCHRONOUS & bit(signal) != 0 || action.handler > SIG_IGN {
                install(signal, action);
            }
        }
    });
}

/// Calls `operate` with the table of actions: the process's, or a child process's own. Handlers use
/// it, too, so all signals are blocked while it is locked: no handler can find its own thread
/// holding the lock.
fn with_actions<R>(signals: Option<&Signals>, operate: impl FnOnce(&mut [SignalAction; SIGNAL_COUNT]) -> R) -> R {
    let before = set_kernel_mask(!0);
    let own = signals.map_or(core::ptr::null_mut(), |signals| signals.own_actions.get());
    // SAFETY: null, or a table that only the calling thread uses, which no handler interrupts here.
    let result = match unsafe { own.as_mut() } {
        Some(actions) => operate(actions),
        None => operate(&mut ACTIONS.lock()),
    };
    set_kernel_mask(before);
    result
}

pub(super) fn action_of(signals: &Signals, signal: usize) -> SignalAction {
    with_actions(Some(signals), |actions| actions[signal])
}

/// Returns the action for a signal to be delivered, and resets it if it has SA_RESETHAND.
pub(super) fn take_action(signals: Option<&Signals>, signal: usize) -> SignalAction {
    with_actions(signals, |actions| {
        let action = actions[signal];
        if action.flags & SA_RESETHAND != 0 && action.handler > SIG_IGN {
            actions[signal].handler = SIG_DFL;
            if SYNCHRONOUS & bit(signal) == 0 {
                set_kernel_action(signal, &SignalAction::default());
            }
        }
        action
    })
}

/// Makes the kernel call the engine for a signal.
fn install(signal: usize, action: &SignalAction) -> i64 {
    let ours = SignalAction {
        handler: trackway_signal as *const () as u64,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | action.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT),
        restorer: trackway_restorer as *const () as u64,
        // All of them: see `on_kernel_signal`.
        mask: !0,
    };
    set_kernel_action(signal, &ours)
}

pub(super) fn set_kernel_action(signal: usize, action: &SignalAction) -> i64 {
    // SAFETY: the kernel reads one action.
    unsafe { sys::call(sys::number::RT_SIGACTION, [signal as u64, core::ptr::from_ref(action) as u64, 0, 8, 0, 0]) }
}

/// Copies the application's actions for a child process, in which the lock's holder may not exist.
/// With `clear`, handlers become default actions.
pub fn copy_actions(clear: bool) -> Box<[SignalAction; SIGNAL_COUNT]> {
    let mut actions = Box::new(with_actions(None, |actions| *actions));
    for action in actions.iter_mut().filter(|action| clear && action.handler > SIG_IGN) {
        *action = SignalAction::default();
    }
    actions
}

/// Before an exec (`on`), makes the kernel ignore the synchronous signals that the application
/// ignores, because the new image inherits that. After a failed exec, takes them over again.
pub fn set_kernel_ignores(signals: &Signals, on: bool) {
    with_actions(Some(signals), |actions| {
        for (signal, action) in actions.iter().enumerate().skip(1) {
            if SYNCHRONOUS & bit(signal) == 0 || action.handler != SIG_IGN {
                continue;
            }
            if on {
                set_kernel_action(signal, action);
            } else {
                install(signal, action);
            }
        }
    });
}

/// Gives the kernel the application's actions.
pub fn restore_actions(actions: &[SignalAction; SIGNAL_COUNT]) {
    for (signal, action) in actions.iter().enumerate().skip(1) {
        set_kernel_action(signal, action);
    }
}

/// In a recorded child process: installs the engine's handler for the child's own actions.
pub fn install_own_actions(tcb: &Tcb) {
    with_actions(Some(tcb.signals()), |actions| {
        for (signal, action) in actions.iter().enumerate().skip(1) {
            if SYNCHRONOUS & bit(signal) != 0 || action.handler > SIG_IGN {
                install(signal, action);
            } else {
                set_kernel_action(signal, action);
            }
        }
    });
}

/// In a child process that detaches: gives the kernel the child's own actions.
pub fn restore_own_actions(tcb: &Tcb) {
    with_actions(Some(tcb.signals()), |actions| restore_actions(actions));
}

/// Gives the kernel the application's actions, when all threads detach together.
pub fn restore_process_actions() {
    with_actions(None, |actions| restore_actions(actions));
}

/// The application's rt_sigaction.
pub fn sigaction(tcb: &Tcb, signal: u64, new: u64, old: u64, set_size: u64) -> i64 {
    let index = signal as usize;
    if set_size != 8 || index == 0 || index >= SIGNAL_COUNT || (new != 0 && UNBLOCKABLE & bit(index) != 0) {
        return sys::EINVAL;
    }
    let action = match new {
        0 => None,
        address => match memory::read::<SignalAction>(address) {
            Some(action) => Some(action),
            None => return sys::EFAULT,
        },
    };
    let changed = with_actions(Some(tcb.signals()), |actions| {
        let before = actions[index];
        let Some(mut action) = action else { return Ok(before) };
        action.mask &= !UNBLOCKABLE;
        // The kernel ignores flags that it does not know.
        action.flags &= KNOWN_FLAGS;
        let ours = SYNCHRONOUS & bit(index) != 0;
        let result = match action.handler {
            SIG_DFL | SIG_IGN if !ours => set_kernel_action(index, &action),
            _ => install(index, &action),
        };
        if result < 0 {
            return Err(result);
        }
        actions[index] = action;
        Ok(before)
    });
    let before = match changed {
        Ok(before) => before,
        Err(error) => return error,
    };
    if action.is_some_and(|action| action.handler == SIG_IGN) {
        // As in the kernel, a signal that is ignored is no longer pending.
        tcb.signals().pending.fetch_and(!bit(index), Ordering::SeqCst);
        if !tcb.is_child_process() {
            let _ = PROCESS.take(index);
        }
    }
    // SAFETY: the application's system call writes there.
    let is_written = old == 0 || unsafe { memory::write(old, &before) };
    if is_written { 0 } else { sys::EFAULT }
}
