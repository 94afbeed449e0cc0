//! Faults that the engine causes and mends: the end of a ring segment, writes to protected code,
//! single steps to a safe point, misaligned stores at the cursor, and instructions that raise a
//! signal so that a deferred one is delivered.

use core::sync::atomic::Ordering;

use entity::AppPc;

use super::class::{SignalClass, is_engine, si_code};
use super::deferred::{next_deliverable, requeue_in_kernel, store_pending};
use super::delivery::{deliver, deliver_before_call, recover_state, resume_saved_state};
use super::frame::{
    CONTEXT_ERROR, CONTEXT_FLAGS, CONTEXT_R15, CONTEXT_RAX, CONTEXT_RIP, ERROR_WRITE, FLAG_ALIGNMENT, FLAG_TRAP,
    SignalContext, SignalInfo,
};
use super::{SIGBUS, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SYNCHRONOUS};
use crate::cache_pc::CachePc;
use crate::engine::ENGINE;
use crate::fragment::AppPosition;
use crate::tcb::{Signals, Tcb};
use crate::translate::RegisterState;
use crate::{clone, detach, dispatch, memory, profile, ring, skip, sys, syscall};

const TRAP_TRACE: i32 = 2;

/// Handles a fault that the engine causes and mends. False if it is none.
pub(super) fn on_engine_fault(
    signals: &'static Signals,
    signal: usize,
    info: &SignalInfo,
    context: &mut SignalContext,
) -> bool {
    let pc = context.registers[CONTEXT_RIP];
    let in_cache = !signals.native.get() && !is_engine(pc);
    match signal {
        SIGILL if pc == dispatch::enter_raise() || pc == syscall::unblock_raise() => on_raise(signals, context, pc),
        SIGSEGV if context.more[CONTEXT_ERROR] & ERROR_WRITE != 0 && on_write_fault(signals, info, context) => {}
        SIGSEGV | SIGBUS if pc == memory::copy_instruction() => {
            context.registers[CONTEXT_RIP] = memory::copy_recovery();
        }
        SIGSEGV if in_cache => {
            // SAFETY: translated code has no reference to the state.
            let tcb = unsafe { &mut *Tcb::current() };
            if !ring::is_guard(tcb, info[2]) {
                return false;
            }
            on_segment_end(tcb, context);
        }
        SIGBUS if in_cache => return on_misaligned_store(signals, info, context),
        SIGTRAP if si_code(info) == TRAP_TRACE && (signals.misaligned.get() || signals.stepping.get()) => {
            if signals.misaligned.take() {
                context.registers[CONTEXT_FLAGS] |= FLAG_ALIGNMENT;
            }
            if signals.stepping.get() {
                on_step(signals, context, pc);
            } else {
                context.registers[CONTEXT_FLAGS] &= !FLAG_TRAP;
            }
        }
        SIGSYS if pc == syscall::call_end() || pc == clone::call_end() => {
            // The call has not happened. Its caller in the engine handles that first.
            store_pending(signals, signal, info, SignalClass::Synchronous);
            context.registers[CONTEXT_RAX] = syscall::TRAPPED as u64;
        }
        _ => return false,
    }
    true
}

/// Delivers the next deferred signal, on the way into the cache or before a system call.
fn on_raise(signals: &Signals, context: &mut SignalContext, pc: u64) {
    let is_entering = dispatch::is_entering(pc);
    match next_deliverable(signals, signals.mask.get()) {
        Some((signal, info, class)) if is_entering => {
            // SAFETY: the assembly has no reference to the state, and its caller has returned.
            deliver(unsafe { &mut *Tcb::current() }, signal, &info, class, context, true);
        }
        Some((signal, info, class)) => deliver_before_call(signal, &info, class, context),
        None if is_entering => context.registers[CONTEXT_RIP] = dispatch::enter_start(),
        None => context.registers[CONTEXT_RIP] = syscall::window_start(pc),
    }
}

/// Handles the fault of a write. A write to guarded code is repeated. A thread that has changed the
/// code it executes continues in a new translation. False if the page was not guarded.
fn on_write_fault(signals: &Signals, info: &SignalInfo, context: &mut SignalContext) -> bool {
    let mut engine = ENGINE.lock();
    if !engine.on_write_fault(info[2]) {
        // Another thread may have released the page just now: once more will show.
        let write = (context.registers[CONTEXT_RIP], info[2]);
        let again = engine.pages.any_guarded && signals.faulted_write.get() != write;
        signals.faulted_write.set(if again { write } else { (0, 0) });
        return again;
    }
    let position = engine.app_position(CachePc::new(context.registers[CONTEXT_RIP]));
    drop(engine);
    if position.is_some_and(|position| {
        position.state != RegisterState::BetweenSafePoints && !ENGINE.lock().is_current(&position)
    }) {
        // The write first: the new translation would protect the page again.
        signals.stale.set(true);
        step_with_signals_blocked(signals, context);
    }
    true
}

/// Repeats a misaligned store of the engine at the cursor without alignment checks, which the
/// application has enabled.
fn on_misaligned_store(signals: &Signals, info: &SignalInfo, context: &mut SignalContext) -> bool {
    const BUS_ADRALN: u64 = 1;
    let flags = context.registers[CONTEXT_FLAGS];
    if info[1] & 0xffff_ffff != BUS_ADRALN || flags & FLAG_ALIGNMENT == 0 {
        return false;
    }
    let pc = context.registers[CONTEXT_RIP];
    let Some(position) = ENGINE.lock().app_position(CachePc::new(pc)) else { return false };
    if matches!(position.state, RegisterState::App | RegisterState::ScratchApp | RegisterState::Spilled(_, true)) {
        return false;
    }
    let mut code = [0; isa::INSTRUCTION_BYTES_MAX];
    let length = memory::read_bytes(pc, &mut code);
    // Where r15 is the cursor, only the engine uses it. The base does not depend on the address.
    let is_ours = isa::decoder(AppPc::NONE, &code[..length]).decode().memory_base() == iced_x86::Register::R15;
    if is_ours {
        signals.misaligned.set(true);
        context.registers[CONTEXT_FLAGS] = flags & !FLAG_ALIGNMENT | FLAG_TRAP;
    }
    is_ours
}

/// Opens the next segment when the cursor has met the guard page, and repeats the store there.
fn on_segment_end(tcb: &mut Tcb, context: &mut SignalContext) {
    let signals = tcb.signals();
    tcb.cursor = context.registers[CONTEXT_R15];
    profile::profile_segment(tcb);
    ring::advance_with_data(tcb);
    if tcb.selection.skipping {
        skip::refill(tcb);
        signals.stale.set(signals.stale.get() || skip::is_near_end(tcb));
    }
    context.registers[CONTEXT_R15] = tcb.cursor;
    if (tcb.detaching || signals.stale.get()) && !signals.stepping.get() {
        step_with_signals_blocked(signals, context);
    }
}

/// Brings a thread that may loop in translated code to the dispatcher. Elsewhere it gets there by
/// itself.
pub(super) fn on_detach_request(signals: &'static Signals, context: &mut SignalContext, pc: u64) {
    if signals.native.get() || is_engine(pc) {
        if pc == syscall::instruction_end() && context.registers[CONTEXT_RAX] as i64 == sys::EINTR {
            // The thread has entered a system call meanwhile, which the request has interrupted: it
            // is made again.
            context.registers[CONTEXT_RIP] = syscall::entry();
        }
        return;
    }
    // SAFETY: translated code has no reference to the state.
    let tcb = unsafe { &mut *Tcb::current() };
    if tcb.interrupted != 0 {
        return;
    }
    let position = ENGINE.lock().app_position(CachePc::new(pc));
    match position {
        None => {}
        Some(_) if signals.stepping.get() => signals.stale.set(true),
        Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) => {
            signals.stale.set(true);
            step_with_signals_blocked(signals, context);
        }
        Some(position) => {
            recover_state(tcb, context, Some(position));
            ring::append_signal(tcb, 0, tcb.pc());
            resume_saved_state(tcb, context, false);
        }
    }
}

/// Makes the interrupted code reach a point where deferred signals can be delivered.
pub(super) extern "C" fn redirect_to_safe_point(context: &mut SignalContext) {
    // SAFETY: only code that has found the thread's state this way gets here.
    let signals = unsafe { Signals::current() };
    let pc = context.registers[CONTEXT_RIP];
    if dispatch::is_entering(pc) && !signals.native.get() {
        context.registers[CONTEXT_RIP] = dispatch::enter_start();
    } else if matches!(syscall::window(pc), syscall::Window::Before) {
        signals.mask_changed.store(1, Ordering::SeqCst);
        context.registers[CONTEXT_RIP] = syscall::window_start(pc);
    } else if signals.native.get() {
        requeue_in_kernel(signals);
    } else if is_engine(pc) {
        // The engine reaches such a point by itself.
    } else {
        step(signals, context);
    }
}

pub(super) fn step(signals: &Signals, context: &mut SignalContext) {
    signals.stepping.set(true);
    context.registers[CONTEXT_FLAGS] |= FLAG_TRAP;
}

/// Single-steps with all asynchronous signals blocked.
fn step_with_signals_blocked(signals: &Signals, context: &mut SignalContext) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    context.mask |= !SYNCHRONOUS;
    step(signals, context);
}

/// Handles a single step on the way to a safe point.
fn on_step(signals: &'static Signals, context: &mut SignalContext, pc: u64) {
    let in_cache = !is_engine(pc);
    let position = if in_cache { ENGINE.lock().app_position(CachePc::new(pc)) } else { None };
    if let Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) = position {
        return;
    }
    signals.stepping.set(false);
    context.registers[CONTEXT_FLAGS] &= !FLAG_TRAP;
    if !in_cache {
        // The way back into the cache unblocks signals, or detaches.
        signals.stale.set(false);
        return;
    }
    // SAFETY: translated code has no reference to the state.
    let tcb = unsafe { &mut *Tcb::current() };
    signals.mask_changed.store(0, Ordering::SeqCst);
    context.mask = signals.real_mask.get();
    if let Some((signal, info, class)) = next_deliverable(signals, signals.mask.get()) {
        recover_state(tcb, context, position);
        return deliver(tcb, signal, &info, class, context, false);
    }
    let stale = signals.stale.take();
    if stale || tcb.detaching {
        recover_state(tcb, context, position);
        ring::append_signal(tcb, 0, tcb.pc());
    }
    // A child process gives up its signal stack when it detaches, which is impossible on that
    // stack.
    if tcb.detaching && !tcb.is_child_process() && detach::detach_thread(tcb) {
        context.mask = signals.real_mask.get();
        context.set_registers(&tcb.registers);
    } else if tcb.detaching || stale {
        resume_saved_state(tcb, context, false);
    }
}
