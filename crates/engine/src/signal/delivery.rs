//! Delivery: recovers the application's state at a safe point and runs the application's handler
//! from the code cache next.

use core::sync::atomic::Ordering;

use entity::AppPc;
use wire::{RAX, RCX, RDI, RDX, RSI, RSP, Registers, word};

use super::action::{
    IGNORED_BY_DEFAULT, SA_NODEFER, SA_ONSTACK, SA_RESTART, SIG_DFL, SIG_IGN, SignalAction, action_of,
    set_kernel_action, take_action,
};
use super::class::{SignalClass, classify};
use super::deferred::{next_deliverable, store_pending};
use super::frame::{
    CONTEXT_FLAGS, CONTEXT_RIP, CONTEXT_RSP, FLAG_ALIGNMENT, FLAG_DIRECTION, FLAG_RESUME, FLAG_TRAP, SignalContext,
    SignalFrame, SignalInfo, build_frame,
};
use super::mask::set_mask;
use super::send::confirm_backup;
use super::vectors::{XMM, frame_field, patch_vectors, reset_vectors, save_vectors};
use super::{SIGSEGV, SIGSYS, SYNCHRONOUS, bit};
use crate::fragment::AppPosition;
use crate::pending::requeue;
use crate::tcb::{AlternateStack, SS_AUTODISARM, SS_DISABLE, Signals, Tcb, Vectors};
use crate::translate::{RegisterState, Spill};
use crate::{dispatch, exec, probe, ring, rseq, sys, syscall};

/// A signal that has come at a point where it can be delivered.
#[derive(Clone, Copy)]
pub(super) struct IncomingSignal<'a> {
    pub(super) signal: usize,
    pub(super) info: &'a SignalInfo,
    pub(super) class: SignalClass,
    /// The application's mask.
    pub(super) mask: u64,
}

/// Chooses the signal to deliver at a safe point, if any. A deferred signal comes first; a fault
/// happens again after it.
pub(super) fn choose_delivery(signals: &Signals, incoming: IncomingSignal) -> Option<(usize, SignalInfo, SignalClass)> {
    let IncomingSignal { signal, info, class, mask } = incoming;
    let is_first = signals.deferred.load(Ordering::SeqCst) == 0;
    if is_first
        && (class == SignalClass::Synchronous || class == SignalClass::Asynchronous && SYNCHRONOUS & bit(signal) == 0)
    {
        return Some((signal, *info, class));
    }
    match class {
        SignalClass::Asynchronous => store_pending(signals, signal, info, class),
        SignalClass::Hint => signals.hinted.set(true),
        SignalClass::Synchronous => {}
    }
    next_deliverable(signals, mask)
}

pub(super) fn deliver_or_resume(tcb: &mut Tcb, incoming: IncomingSignal, context: &mut SignalContext, saved_xmm: bool) {
    match choose_delivery(tcb.signals(), incoming) {
        Some((signal, info, class)) => deliver(tcb, signal, &info, class, context, saved_xmm),
        None => resume_saved_state(tcb, context, saved_xmm),
    }
}

/// Delivers a signal: the thread runs the application's handler next, or the application ends. The
/// interrupted state is the saved one. With `saved_xmm`, the low halves of the vector registers are
/// in the saved state rather than in the context.
pub(super) fn deliver(
    tcb: &mut Tcb,
    signal: usize,
    info: &SignalInfo,
    class: SignalClass,
    context: &mut SignalContext,
    saved_xmm: bool,
) {
    let signals = tcb.signals();
    let action = take_action(Some(signals), signal);
    match action.handler {
        // Another thread has changed the action since the kernel has called the engine.
        SIG_IGN if class != SignalClass::Synchronous => return discard(tcb, context, saved_xmm),
        SIG_DFL if IGNORED_BY_DEFAULT & bit(signal) != 0 => return discard(tcb, context, saved_xmm),
        SIG_DFL | SIG_IGN => return terminate(tcb, signal, info, context, saved_xmm),
        _ => {}
    }
    if signals.mask.get() & bit(signal) != 0 && class == SignalClass::Synchronous {
        return terminate(tcb, signal, info, context, saved_xmm);
    }
    let mut info = *info;
    if signal == SIGSYS && class == SignalClass::Synchronous {
        // The address of the application's instruction, not of the engine's.
        info[2] = tcb.registers.rip;
    }
    let info = &info;
    let interrupted = tcb.pc();
    let after = rseq::after_signal(tcb);
    tcb.set_pc(after);
    let frame = build_frame(tcb, &action, info, context, saved_xmm);
    tcb.set_pc(interrupted);
    let Some(frame) = frame else {
        return terminate(tcb, SIGSEGV, info, context, saved_xmm);
    };
    if !signals.native.get() {
        ring::append_signal(tcb, signal as u8, AppPc::new(action.handler));
    }
    let base = signals.call_mask.take().unwrap_or(signals.mask.get());
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
    let registers = &mut tcb.registers;
    registers.general[RDI] = signal as u64;
    registers.general[RSI] = frame + core::mem::offset_of!(SignalFrame, info) as u64;
    registers.general[RDX] = frame + core::mem::offset_of!(SignalFrame, context) as u64;
    registers.general[RAX] = 0;
    registers.general[RSP] = frame;
    registers.rip = action.handler;
    registers.rflags &= !(FLAG_DIRECTION | FLAG_TRAP | FLAG_RESUME);
    if !signals.native.get() {
        probe::enter_handler(tcb);
    }
    if tcb.alternate_stack.flags & SS_AUTODISARM != 0 && action.flags & SA_ONSTACK != 0 {
        tcb.alternate_stack = AlternateStack { address: 0, flags: SS_DISABLE, padding: 0, length: 0 };
    }
    set_mask(tcb, base | action.mask | own);
    reset_vectors(context);
    tcb.xmm = Vectors([[0; 2]; 16]);
    tcb.mxcsr = 0x1f80;
    resume_saved_state(tcb, context, true);
}

/// Recovers the application's state from the registers at a safe point of the code cache.
pub(super) fn recover_state(tcb: &mut Tcb, context: &SignalContext, position: Option<AppPosition>) {
    let mut registers = context.registers();
    registers.rflags &= !FLAG_TRAP;
    let Some(position) = position else {
        // A jump to an address without code.
        tcb.cursor = registers.general[wire::R15];
        registers.general[wire::R15] = tcb.registers.general[wire::R15];
        tcb.registers = registers;
        return;
    };
    registers.rip = position.pc.get();
    let own_r15 =
        matches!(position.state, RegisterState::App | RegisterState::ScratchApp | RegisterState::Spilled(_, true));
    if !own_r15 {
        tcb.cursor = registers.general[wire::R15];
        registers.general[wire::R15] = tcb.registers.general[wire::R15];
    }
    match position.state {
        RegisterState::Scratch | RegisterState::ScratchApp => {
            registers.general[RCX] = tcb.scratch_rcx;
            registers.general[RDX] = tcb.scratch_rdx;
        }
        RegisterState::Spilled(spill, _) => unspill(tcb, context, &mut registers, spill),
        _ => {}
    }
    tcb.registers = registers;
    tcb.progress = position.progress;
}

/// Restores the registers that translated code has spilled.
fn unspill(tcb: &Tcb, context: &SignalContext, registers: &mut Registers, spill: Spill) {
    let spilled =
        [(spill.general, tcb.scratch_rcx), (spill.third, tcb.scratch_third), (spill.segment, tcb.scratch_segment)];
    for (register, value) in spilled {
        if register != Spill::NONE {
            registers.general[usize::from(register)] = value;
        }
    }
    if spill.flags {
        // In ah as `lahf` gives them, overflow in al.
        let [overflow, others] = [tcb.flags & 1, tcb.flags >> 8 & 0xd5];
        registers.rflags = registers.rflags & !0x8d5 | others | overflow << 11;
    }
    if spill.vector != Spill::NONE && context.fpstate != 0 {
        // SAFETY: the kernel's frame on our stack.
        unsafe {
            *frame_field::<[u64; 2]>(context.fpstate + XMM + 16 * u64::from(spill.vector)) =
                [tcb.scratch_vector[0], tcb.scratch_vector[1]];
        }
    }
}

/// Discards the signal and resumes.
fn discard(tcb: &mut Tcb, context: &mut SignalContext, saved_xmm: bool) {
    if tcb.progress.has_fragment() {
        ring::append_signal(tcb, 0, tcb.pc());
    }
    resume_saved_state(tcb, context, saved_xmm);
}

/// Makes the return from the engine's handler resume the saved state.
pub(super) fn resume_saved_state(tcb: &mut Tcb, context: &mut SignalContext, saved_xmm: bool) {
    let signals = tcb.signals();
    signals.stepping.set(false);
    signals.misaligned.set(false);
    signals.stale.set(false);
    context.mask = signals.real_mask.get();
    signals.mask_changed.store(0, Ordering::SeqCst);
    if signals.has_deferred.load(Ordering::SeqCst) != 0 {
        // The way into the cache checks for deferred signals.
        signals.mask_changed.store(1, Ordering::SeqCst);
    }
    if signals.native.get() {
        if saved_xmm {
            patch_vectors(tcb, context);
        }
        context.set_registers(&tcb.registers);
        return;
    }
    if !saved_xmm {
        // The way into the cache loads them from the saved state.
        save_vectors(tcb, context);
    }
    context.registers[CONTEXT_RIP] = dispatch::resume_entry();
    context.registers[CONTEXT_RSP] = tcb.engine_stack;
    context.registers[CONTEXT_FLAGS] &= !(FLAG_TRAP | FLAG_DIRECTION | FLAG_ALIGNMENT);
}

/// Lets the signal end the application: closes the ring, then queues the signal with its default
/// action.
fn terminate(tcb: &mut Tcb, signal: usize, info: &SignalInfo, context: &mut SignalContext, saved_xmm: bool) {
    if !tcb.signals().native.get() {
        ring::append_signal(tcb, signal as u8, AppPc::NONE);
        ring::close(tcb, word::END);
        tcb.signals().native.set(true);
    }
    if saved_xmm {
        patch_vectors(tcb, context);
    }
    set_kernel_action(signal, &SignalAction::default());
    requeue(signal, info);
    context.set_registers(&tcb.registers);
    context.mask = tcb.signals().mask.get() & !bit(signal);
}

/// Delivers a signal before a system call, which is made again afterwards.
pub(super) fn deliver_before_call(signal: usize, info: &SignalInfo, class: SignalClass, context: &mut SignalContext) {
    // SAFETY: the functions that were about to make the call do not continue.
    let tcb = unsafe { &mut *Tcb::current() };
    confirm_backup(tcb.signals(), false);
    exec::abandon(tcb);
    interrupt_call(tcb, signal);
    deliver(tcb, signal, info, class, context, true);
}

/// Makes the thread check for signals and then make its system call again.
pub(super) fn restart_call(signals: &Signals, context: &mut SignalContext) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    context.registers[CONTEXT_RIP] = syscall::window_start(context.registers[CONTEXT_RIP]);
}

/// Decides what becomes of a system call that had begun natively and was interrupted for the
/// engine, when a handler is to run before it. It is treated as if the signal had interrupted it:
/// if the kernel would not restart it, it returns EINTR.
fn interrupt_call(tcb: &mut Tcb, signal: usize) {
    const ERESTARTSYS: u32 = 512;
    const ERESTARTNOINTR: u32 = 513;
    let action = action_of(tcb.signals(), signal);
    if tcb.interrupted == 0 || action.handler <= SIG_IGN {
        return;
    }
    match core::mem::take(&mut tcb.interrupted) {
        ERESTARTNOINTR => {}
        ERESTARTSYS if action.flags & SA_RESTART != 0 => {}
        _ => syscall::complete(tcb, sys::EINTR as u64),
    }
}

/// Delivers a signal to a detached thread whose signals still come on the engine's signal stack:
/// the application's handler runs natively, with a frame on the application's stack.
pub(super) fn on_native_signal(signal: usize, info: &SignalInfo, class: SignalClass, context: &mut SignalContext) {
    // SAFETY: native code has no reference to the state; a handler of ours that is interrupted is
    // not native code.
    let tcb = unsafe { &mut *Tcb::current() };
    tcb.registers = context.registers();
    tcb.signals().mask.set(context.mask);
    deliver(tcb, signal, info, class, context, false);
}

/// Delivers a signal to a native thread without a state: one that has returned from such a frame,
/// or was created later. The kernel has used the application's stack, so the handler is simply
/// called. gs is the application's.
pub(super) fn on_stateless_signal(signal: usize, info: &SignalInfo, context: &mut SignalContext) {
    let action = take_action(None, signal);
    match action.handler {
        SIG_IGN if classify(signal, info) != SignalClass::Synchronous => return,
        SIG_DFL if IGNORED_BY_DEFAULT & bit(signal) != 0 => return,
        SIG_DFL | SIG_IGN => {
            set_kernel_action(signal, &SignalAction::default());
            requeue(signal, info);
            context.mask &= !bit(signal);
            return;
        }
        _ => {}
    }
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
    let mask = context.mask | action.mask | own;
    // SAFETY: the kernel reads the mask; the application's handler expects these three arguments.
    unsafe {
        sys::call(sys::number::RT_SIGPROCMASK, [2, &raw const mask as u64, 0, 8, 0, 0]);
        let handler: extern "C" fn(i32, *const SignalInfo, *mut SignalContext) =
            core::mem::transmute(action.handler as *const ());
        handler(signal as i32, info, context);
    }
}
