//! Classification: why a signal has come ([`SignalClass`]), and where it has found the thread
//! ([`InterruptionPoint`]).

use core::sync::atomic::{AtomicU64, Ordering};

use super::frame::{CONTEXT_RAX, CONTEXT_RIP, SignalContext, SignalInfo};
use super::{SIGBUS, SIGSYS, SIGTRAP, SYNCHRONOUS, bit};
use crate::cache_pc::CachePc;
use crate::engine::ENGINE;
use crate::fragment::AppPosition;
use crate::tcb::Signals;
use crate::translate::RegisterState;
use crate::{dispatch, pending, syscall};

/// The class of a signal: why it has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalClass {
    /// The interrupted instruction has raised it.
    Synchronous,
    /// A process, a timer or the kernel has sent it. It has nothing to do with the interrupted
    /// code.
    Asynchronous,
    /// Another thread of the target hints at a pending signal: see [`crate::pending`].
    Hint,
}

/// Classifies a signal by its information alone. The interruption point may show that a synchronous
/// one was sent.
pub(super) fn classify(signal: usize, info: &SignalInfo) -> SignalClass {
    const BUS_MCEERR_AO: i32 = 5;
    const TRAP_PERF: i32 = 6;
    if pending::is_hint(signal, info) {
        return SignalClass::Hint;
    }
    match (signal, si_code(info)) {
        // The kernel sends these for bad memory anywhere and for performance counters.
        (SIGBUS, BUS_MCEERR_AO) | (SIGTRAP, TRAP_PERF) => SignalClass::Asynchronous,
        (_, 1..) if SYNCHRONOUS & bit(signal) != 0 => SignalClass::Synchronous,
        _ => SignalClass::Asynchronous,
    }
}

/// Where a signal has found the thread.
pub(super) enum InterruptionPoint {
    /// On the way into the cache or to native code; the application's state is saved.
    Entering,
    /// Before a system call of the application; the state is saved.
    BeforeCall,
    /// After one, with this result.
    AfterCall(i64),
    /// Anywhere else in the engine, which continues afterwards.
    Engine,
    /// At a safe point of translated code, or (`None`) in code that cannot be read.
    SafePoint(Option<AppPosition>),
    /// In translated code between two safe points.
    BetweenSafePoints,
    /// In the application's own code.
    Native,
}

pub(super) fn interruption_point(signals: &Signals, context: &SignalContext) -> InterruptionPoint {
    let pc = context.registers[CONTEXT_RIP];
    if dispatch::is_entering(pc) {
        return InterruptionPoint::Entering;
    }
    match syscall::window(pc) {
        syscall::Window::Before => return InterruptionPoint::BeforeCall,
        syscall::Window::After => return InterruptionPoint::AfterCall(context.registers[CONTEXT_RAX] as i64),
        syscall::Window::Outside => {}
    }
    if is_engine(pc) {
        return InterruptionPoint::Engine;
    }
    if signals.native.get() {
        return InterruptionPoint::Native;
    }
    // Only engine code holds the engine's lock.
    match ENGINE.lock().app_position(CachePc::new(pc)) {
        Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) => InterruptionPoint::BetweenSafePoints,
        position => InterruptionPoint::SafePoint(position),
    }
}

/// Whether an instruction at the interruption point can have raised a signal.
pub(super) fn can_fault(signals: &Signals, interruption_point: &InterruptionPoint, signal: usize, pc: u64) -> bool {
    match interruption_point {
        // Only the jump to an unmapped address, or any step on the way to native code.
        InterruptionPoint::Entering => signals.native.get() || pc == dispatch::enter_jump(),
        InterruptionPoint::BeforeCall => false,
        // A seccomp filter raises SIGSYS instead of the call.
        InterruptionPoint::AfterCall(_) => signal == SIGSYS,
        _ => true,
    }
}

/// Whether the thread is in the engine, away from safe points.
pub(super) fn is_inside_engine(pc: u64) -> bool {
    is_engine(pc) && !dispatch::is_entering(pc) && matches!(syscall::window(pc), syscall::Window::Outside)
}

/// Whether a signal was sent to the thread rather than to the process. The information of a queued
/// signal does not show that; most are sent to the process.
pub(super) fn is_for_thread(info: &SignalInfo) -> bool {
    si_code(info) == SI_TKILL || si_code(info) > 0
}

pub(super) fn si_code(info: &SignalInfo) -> i32 {
    info[1] as u32 as i32
}

/// Whether the recorder or the reclaimer wants the thread to leave the code cache.
pub(super) fn is_detach_request(info: &SignalInfo) -> bool {
    const SI_QUEUE: i32 = -1;
    info[1] as u32 as i32 == SI_QUEUE && info[3] == wire::DETACH_REQUEST
}

pub(super) const SI_USER: i32 = 0;
pub(super) const SI_TKILL: i32 = -6;
static IMAGE_START: AtomicU64 = AtomicU64::new(0);
static IMAGE_END: AtomicU64 = AtomicU64::new(0);

/// Sets the address range of the engine's code.
pub fn set_image(start: u64, end: u64) {
    IMAGE_START.store(start, Ordering::Relaxed);
    IMAGE_END.store(end, Ordering::Relaxed);
}

/// Returns the address range of the engine's code.
pub fn image() -> core::ops::Range<u64> {
    IMAGE_START.load(Ordering::Relaxed)..IMAGE_END.load(Ordering::Relaxed)
}

pub(super) fn is_engine(pc: u64) -> bool {
    image().contains(&pc)
}
