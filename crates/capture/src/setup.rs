//! Runs the set-up of the engine in a traced thread. If the set-up fails, removes the engine from
//! the process and restores the thread.
//!
//! The thread makes system calls of its own during the set-up, with all signals blocked. It changes
//! nothing of the application before it reports that it is done (`wire::STAGE_STARTED`), so
//! unmapping undoes everything. A fault is the exception: the kernel resets the action of a blocked
//! signal that a fault raises. So the engine saves these actions first.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use libc::{user_fpregs_struct, user_regs_struct};
use wire::{Control, FAILURE_DEFECT, STAGE_NONE, STAGE_RUNNING, STAGE_STARTED};

use crate::inject::{self, Context, InjectError, InjectedRanges, Layout, Result};
use crate::remote::Remote;
use crate::{session, state};

/// Bytes of a signal set.
const SET_BYTES: u64 = 8;

/// Starts the engine in a thread, with these registers, and stops the thread when the engine is set
/// up. After [`InjectError::SetUp`] the engine is gone, and the thread can go on with its former
/// registers and mask.
pub fn run(remote: &mut Remote, entry: &user_regs_struct, layout: &Layout, control: &Control) -> Result<()> {
    let vectors = remote.tracee.vectors().context("reading registers")?;
    let stage = || control.stage.load(Ordering::SeqCst);
    let has_faulted = match remote.run(entry, || stage() != STAGE_NONE) {
        Ok(()) if stage() == STAGE_STARTED => return Ok(()),
        Ok(()) => false,
        Err(InjectError::Fault(_)) => true,
        Err(error) => return Err(error),
    };
    // Memory that cannot be unmapped stays, unused.
    if let Err(InjectError::Exited(exit)) = restore(remote, &vectors, has_faulted, layout, control) {
        return Err(InjectError::Exited(exit));
    }
    // A later check must not take this for a failure of a recording.
    let reason = session::describe_failure(match control.failure.swap(0, Ordering::SeqCst) {
        0 => FAILURE_DEFECT,
        failure => failure,
    });
    Err(InjectError::SetUp(reason))
}

/// Lets a thread go on in which the engine is set up.
pub fn release(remote: Remote, control: &Control) -> Result<()> {
    remote.restore_code()?;
    control.stage.store(STAGE_RUNNING, Ordering::SeqCst);
    remote.detach()
}

/// Undoes what the set-up has changed, except for general registers.
fn restore(
    remote: &mut Remote,
    vectors: &user_fpregs_struct,
    has_faulted: bool,
    layout: &Layout,
    control: &Control,
) -> Result<()> {
    remote.tracee.set_vectors(vectors).context("setting registers")?;
    if has_faulted {
        remote.tracee.set_signal_mask(u64::MAX).context("setting the signal mask")?;
    }
    let gate = control.layout.gate.load(Ordering::SeqCst);
    if gate != 0 {
        // A seccomp filter allows every call from the engine's image.
        remote.move_to(gate)?;
    }
    let InjectedRanges { shared, .. } = layout.injected_ranges();
    if has_faulted && gate != 0 {
        let actions = shared.start + offset_of!(Control, fault_actions) as u64;
        for (signal, action) in wire::FAULT_SIGNALS.into_iter().zip((actions..).step_by(8 * wire::ACTION_WORDS)) {
            let arguments = [u64::from(signal), action, 0, SET_BYTES, 0, 0];
            remote.call("rt_sigaction", libc::SYS_rt_sigaction, arguments)?;
        }
    }
    for range in state::engine_ranges(control) {
        remote.call("munmap", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
    }
    inject::remove(remote, &layout.injected_ranges())
}
