//! Runs the set-up of the engine in a thread that stays traced. If the set-up fails, everything of ours leaves the process, and the
//! thread is as it was before.
//!
//! The thread makes system calls of its own while it sets the engine up, with all signals blocked. It takes nothing from the
//! application before it says that it is done (`wire::STAGE_STARTED`), so unmapping is all there is to undo. A fault is the exception:
//! the kernel resets the action of a blocked signal that a fault raises.

use std::sync::atomic::Ordering;

use libc::{user_fpregs_struct, user_regs_struct};
use wire::{Control, FAILURE_DEFECT, STAGE_NONE, STAGE_RUNNING, STAGE_STARTED};

use crate::inject::{self, Context, InjectError, Layout, Result};
use crate::remote::Remote;
use crate::{session, state};

/// Bytes of the kernel's `struct sigaction` and of a signal set.
const ACTION_BYTES: u64 = 32;
const SET_BYTES: u64 = 8;

/// Starts the engine in a thread, with these registers, and stops the thread when the engine is set up. After
/// [`InjectError::SetUp`] the engine is gone, and the thread can go on with the registers and the mask that it had.
pub fn run(remote: &mut Remote, entry: &user_regs_struct, layout: &Layout, control: &Control) -> Result<()> {
    let before = Before::new(remote, layout)?;
    let stage = || control.stage.load(Ordering::SeqCst);
    let signal = match remote.run(entry, || stage() != STAGE_NONE) {
        Ok(()) if stage() == STAGE_STARTED => return Ok(()),
        Ok(()) => None,
        Err(InjectError::Fault(signal)) => Some(signal),
        Err(error) => return Err(error),
    };
    // What cannot be taken out stays, without being used.
    if let Err(InjectError::Gone(exit)) = before.restore(remote, signal, layout, control) {
        return Err(InjectError::Gone(exit));
    }
    // Who asks later must not take this for a failure of a recording.
    let reason = session::describe_failure(match control.failure.swap(0, Ordering::SeqCst) {
        0 => FAILURE_DEFECT,
        failure => failure,
    });
    Err(InjectError::SetUp(reason))
}

/// Lets a thread in which the engine is set up go on.
pub fn go(remote: Remote, control: &Control) -> Result<()> {
    remote.restore_code()?;
    control.stage.store(STAGE_RUNNING, Ordering::SeqCst);
    remote.detach()
}

/// What the set-up may change of a thread besides its general registers.
struct Before {
    vectors: user_fpregs_struct,
    /// Whether the actions of the signals that faults raise are in the target's memory.
    has_actions: bool,
}

impl Before {
    fn new(remote: &mut Remote, layout: &Layout) -> Result<Self> {
        let vectors = remote.tracee.vectors().context("reading registers")?;
        // A seccomp filter was not asked whether it allows this.
        let has_actions = !layout.is_filtered;
        if has_actions {
            for (signal, address) in actions(layout) {
                remote.call("rt_sigaction", libc::SYS_rt_sigaction, [signal, 0, address, SET_BYTES, 0, 0])?;
            }
        }
        Ok(Self { vectors, has_actions })
    }

    /// After a fault, `signal` says which one.
    fn restore(&self, remote: &mut Remote, signal: Option<i32>, layout: &Layout, control: &Control) -> Result<()> {
        remote.tracee.set_vectors(&self.vectors).context("setting registers")?;
        // A seccomp filter lets the engine's image make every call.
        match control.places.gate.load(Ordering::SeqCst) {
            0 => {}
            gate => remote.move_to(gate)?,
        }
        if signal.is_some() {
            remote.tracee.set_signal_mask(u64::MAX).context("setting the signal mask")?;
        }
        if signal.is_some() && self.has_actions {
            for (signal, address) in actions(layout) {
                remote.call("rt_sigaction", libc::SYS_rt_sigaction, [signal, address, 0, SET_BYTES, 0, 0])?;
            }
        }
        for range in state::own(control) {
            remote.call("munmap", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
        }
        inject::remove(remote, &layout.placed())
    }
}

/// The signals that faults raise, and where in the target the action of each is kept meanwhile: on the stack of the set-up, which is far
/// from being used up.
fn actions(layout: &Layout) -> impl Iterator<Item = (u64, u64)> {
    let start = layout.stack_bottom();
    crate::remote::FAULTS
        .into_iter()
        .enumerate()
        .map(move |(index, signal)| (signal as u64, start + index as u64 * ACTION_BYTES))
}
