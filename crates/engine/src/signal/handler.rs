//! The handler that the kernel calls for every signal, and its way back.
//!
//! The kernel enters at `trackway_signal`, on the thread's signal stack; [`on_signal`] decides what
//! to do by class and by interruption point. The handler returns through `trackway_restorer`, which
//! looks for signals that came meanwhile.

use core::arch::{asm, naked_asm};
use core::sync::atomic::Ordering;

use super::action::{ACTIONS, SA_RESTART, action_of};
use super::class::{
    InterruptionPoint, SignalClass, can_fault, classify, interruption_point, is_detach_request, is_inside_engine,
};
use super::deferred::{defer, recover_dropped_signal};
use super::delivery::{
    IncomingSignal, choose_delivery, deliver, deliver_before_call, deliver_or_resume, on_native_signal,
    on_stateless_signal, recover_state, restart_call,
};
use super::fault::{on_detach_request, on_engine_fault, redirect_to_safe_point, step};
use super::frame::{CONTEXT_RIP, FLAG_RESUME, SignalContext, SignalInfo};
use super::mask::set_kernel_mask;
use super::send::confirm_backup;
use super::{SIGTRAP, SYNCHRONOUS};
use crate::engine::ENGINE;
use crate::tcb::{SIGNALS, Signals, Tcb};
use crate::{dispatch, emulate, exec, failure, gs, pending, sys, syscall};

/// A signal that is being handled. It lives on the signal stack, in `on_kernel_signal`.
pub struct HandledSignal {
    pub(super) signal: usize,
    pub(super) info: *const SignalInfo,
    pub(super) context: *mut SignalContext,
    /// The base of gs that the interrupted code has.
    pub(super) gs_base: u64,
    /// The signal whose handler this one has interrupted, or null.
    pub(super) outer: *const HandledSignal,
}

/// What a failed handler of the engine has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// No handler was running, or its signal was a fault of the engine, which cannot continue.
    Nothing,
    /// A thread on its way into the cache, whose state is saved.
    Entry,
    /// Code that can continue.
    Code,
}

/// Called by the kernel on the thread's signal stack, with the interrupted code's flags.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn trackway_signal(signal: i32, info: *mut SignalInfo, context: *mut SignalContext) {
    naked_asm!(
        "push 2", // no direction, no alignment checks
        "popfq",
        "jmp {on_kernel_signal}",
        on_kernel_signal = sym on_kernel_signal,
    )
}

/// The return address of the engine's handlers. If signals were deferred meanwhile, it redirects
/// the interrupted code to a safe point. A handler that is interrupted here starts here again.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn trackway_restorer() {
    naked_asm!(
        "cmp dword ptr gs:[{has_deferred}], 0",
        "je 2f",
        "mov rdi, rsp", // the context
        "call {redirect_to_safe_point}",
        "2:",
        "mov eax, 15",
        ".globl trackway_restorer_instruction",
        "trackway_restorer_instruction:",
        "syscall",
        "ud2",
        has_deferred = const SIGNALS + core::mem::offset_of!(Signals, has_deferred),
        redirect_to_safe_point = sym redirect_to_safe_point,
    )
}

unsafe extern "C" {
    fn trackway_restorer_instruction();
}

/// Whether a handler of the engine is returning.
fn is_returning(pc: u64) -> bool {
    (trackway_restorer as *const () as u64..=trackway_restorer_instruction as *const () as u64).contains(&pc)
}

#[unsafe(naked)]
unsafe extern "C" fn trackway_plain_restorer() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// Makes a handler of the engine return without a check for deferred signals.
///
/// # Safety
/// The context is in the kernel's frame of this handler, behind the address that it returns to.
unsafe fn use_plain_restorer(context: *mut SignalContext) {
    // SAFETY: the caller's promise.
    unsafe { *context.cast::<u64>().sub(1) = trackway_plain_restorer as *const () as u64 };
}

pub(super) unsafe extern "C" fn on_kernel_signal(signal: i32, info: *mut SignalInfo, context: *mut SignalContext) {
    let frame_context = context;
    // SAFETY: the kernel made both, and nothing else uses them until this function returns.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let Some(state) = gs::state_of(&context.stack, core::ptr::from_ref(context) as u64) else {
        // SAFETY: the kernel's frame of this handler.
        unsafe { use_plain_restorer(frame_context) };
        return on_stateless_signal(signal as usize, info, context);
    };
    // SAFETY: the thread's state. Only `Signals` is referred to, which is always shared.
    let signals = unsafe { &*state.cast::<u8>().add(SIGNALS).cast::<Signals>() };
    // SAFETY: as above; the base of gs is used by handlers only while the thread is native.
    let before = unsafe { gs::enter_handler(state, signals.native.get()) };
    // The kernel calls the engine with all signals blocked. They stay blocked where a signal is
    // only deferred, so that handlers do not pile up on the stack. Anywhere else, faults may happen
    // from here on.
    let is_only_deferred =
        classify(signal as usize, info) != SignalClass::Synchronous && is_inside_engine(context.registers[CONTEXT_RIP]);
    if !is_only_deferred {
        set_kernel_mask(!SYNCHRONOUS);
    }
    let outer = signals.handled.get();
    let handled = HandledSignal { signal: signal as usize, info, context, gs_base: before, outer };
    signals.handled.set(&raw const handled);
    on_signal(signals, signal as usize, info, context);
    signals.handled.set(outer);
    if signals.native.get() || before != state as u64 {
        // The way back cannot check for deferred signals, because gs is the application's there.
        set_kernel_mask(!0);
        if signals.has_deferred.load(Ordering::SeqCst) != 0 {
            redirect_to_safe_point(context);
        }
        // SAFETY: the kernel's frame of this handler.
        unsafe { use_plain_restorer(frame_context) };
    }
    // SAFETY: as above.
    unsafe { gs::exit_handler(state, signals.native.get(), before) };
}

pub(super) fn on_signal(signals: &'static Signals, signal: usize, info: &SignalInfo, context: &mut SignalContext) {
    let pc = context.registers[CONTEXT_RIP];
    if signal == SIGTRAP && is_detach_request(info) {
        return on_detach_request(signals, context, pc);
    }
    let mut class = classify(signal, info);
    assert!(
        class != SignalClass::Asynchronous || !failure::is_injected_in_handler(signals),
        "a test wants the handler to fail"
    );
    match class {
        SignalClass::Asynchronous => pending::discard_backup(signals.slot_index, signal),
        SignalClass::Synchronous => recover_dropped_signal(signals, signal),
        SignalClass::Hint => {}
    }
    if class == SignalClass::Synchronous && on_engine_fault(signals, signal, info, context) {
        return;
    }
    let interruption_point = interruption_point(signals, context);
    if !can_fault(signals, &interruption_point, signal, pc) && class == SignalClass::Synchronous {
        // A process may send itself the information of a fault, as crash handlers do.
        class = SignalClass::Asynchronous;
    }
    match (interruption_point, class) {
        (InterruptionPoint::Engine, SignalClass::Synchronous) if signals.accessing.get() => {
            // The engine has accessed memory for the application, so the fault is the
            // application's.
            signals.accessing.set(false);
            // SAFETY: the function that accessed the memory does not continue.
            let tcb = unsafe { &mut *Tcb::current() };
            tcb.registers.rflags |= FLAG_RESUME;
            emulate::flush(tcb);
            deliver_or_resume(tcb, IncomingSignal { signal, info, class, mask: signals.mask.get() }, context, true);
        }
        (InterruptionPoint::Engine, SignalClass::Synchronous) => {
            panic!("signal {signal} at {pc:#x} in the engine, address {:#x}", info[2]);
        }
        // The call may have met a page that the engine has write-protected, and is made again then.
        // Or it may have taken the signal that the hint is about.
        (
            InterruptionPoint::Engine | InterruptionPoint::AfterCall(sys::EFAULT),
            SignalClass::Asynchronous | SignalClass::Hint,
        )
        | (InterruptionPoint::AfterCall(0..), SignalClass::Hint) => {
            defer(signals, signal, info, class, context);
            if is_returning(pc) {
                context.registers[CONTEXT_RIP] = trackway_restorer as *const () as u64;
            }
        }
        (InterruptionPoint::BetweenSafePoints, _) => {
            defer(signals, signal, info, class, context);
            step(signals, context);
        }
        (InterruptionPoint::Native, SignalClass::Hint) => {}
        (InterruptionPoint::Native, _) => on_native_signal(signal, info, class, context),
        (InterruptionPoint::SafePoint(position), _) => {
            let incoming = IncomingSignal { signal, info, class, mask: signals.mask.get() };
            if let Some((signal, info, class)) = choose_delivery(signals, incoming) {
                // SAFETY: translated code has no reference to the state.
                let tcb = unsafe { &mut *Tcb::current() };
                recover_state(tcb, context, position);
                deliver(tcb, signal, &info, class, context, false);
            }
        }
        (InterruptionPoint::Entering, _) => {
            let incoming = IncomingSignal { signal, info, class, mask: signals.mask.get() };
            match choose_delivery(signals, incoming) {
                Some((signal, info, class)) => {
                    // SAFETY: the assembly has no reference to the state, and its callers have
                    // returned.
                    let tcb = unsafe { &mut *Tcb::current() };
                    deliver(tcb, signal, &info, class, context, true);
                }
                None if signals.native.get() => {}
                None => context.registers[CONTEXT_RIP] = dispatch::enter_start(),
            }
        }
        (InterruptionPoint::BeforeCall, _) => {
            let incoming = IncomingSignal { signal, info, class, mask: signals.mask.get() };
            match choose_delivery(signals, incoming) {
                Some((signal, info, class)) => deliver_before_call(signal, &info, class, context),
                None => restart_call(signals, context),
            }
        }
        (InterruptionPoint::AfterCall(result), _) => {
            let interrupted = result == sys::EINTR;
            let mask = if interrupted { signals.call_mask.get() } else { None };
            let incoming = IncomingSignal { signal, info, class, mask: mask.unwrap_or(signals.mask.get()) };
            match choose_delivery(signals, incoming) {
                // The kernel has not asked whether this one restarts the call.
                Some((signal, info, class))
                    if interrupted
                        && incoming.class == SignalClass::Hint
                        && action_of(signals, signal).flags & SA_RESTART != 0 =>
                {
                    deliver_before_call(signal, &info, class, context);
                }
                Some((signal, info, class)) => {
                    // SAFETY: the functions that made the call do not continue.
                    let tcb = unsafe { &mut *Tcb::current() };
                    confirm_backup(signals, result == 0);
                    exec::abandon(tcb);
                    syscall::complete(tcb, result as u64);
                    deliver(tcb, signal, &info, class, context, true);
                }
                // A signal that is blocked interrupts nothing.
                None if interrupted => restart_call(signals, context),
                None => {}
            }
        }
    }
}

/// Returns what the engine has interrupted when it has failed, perhaps in a handler. Defers the
/// signal of that handler, to be delivered when the thread is native.
///
/// # Safety
/// Code that held locks in this handler does not continue.
pub unsafe fn interruption(tcb: &Tcb) -> Interruption {
    let signals = tcb.signals();
    // SAFETY: null, or in a frame of a handler that has not returned.
    let Some(&HandledSignal { signal, info, context, .. }) = (unsafe { signals.handled.get().as_ref() }) else {
        return Interruption::Nothing;
    };
    // SAFETY: the kernel's frame of this handler, which nothing else uses any more.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let (pc, class) = (context.registers[CONTEXT_RIP], classify(signal, info));
    if class == SignalClass::Synchronous && is_inside_engine(pc) {
        return Interruption::Nothing;
    }
    set_kernel_mask(!0);
    // The interrupted code may hold locks, too, and continues. Only locks of the handler, which has
    // a stack of its own, are released. A handler that has interrupted the engine, perhaps another
    // handler on the same stack, holds none: it only defers its signal.
    if !is_inside_engine(pc) {
        let stack = tcb.signal_stack..tcb.signal_stack + tcb.signal_stack_length;
        // SAFETY: the caller's promise.
        unsafe {
            ACTIONS.release_for_dead(stack.clone());
            ENGINE.release_for_dead(stack);
        }
    }
    if class == SignalClass::Asynchronous && !is_detach_request(info) {
        defer(signals, signal, info, SignalClass::Asynchronous, context);
    }
    if dispatch::is_entering(pc) && !signals.native.get() { Interruption::Entry } else { Interruption::Code }
}

/// Abandons a failed handler: the interrupted code continues. Returns if no handler was running.
///
/// # Safety
/// What used the state of the thread in this handler does not continue.
pub unsafe fn abandon_handler(tcb: &Tcb) {
    let signals = tcb.signals();
    // SAFETY: null, or in a frame of a handler that has not returned.
    let Some(&HandledSignal { context, gs_base, outer, .. }) = (unsafe { signals.handled.get().as_ref() }) else {
        return;
    };
    // The interrupted code may be another handler, which may itself be failing.
    signals.handled.set(outer);
    // SAFETY: the thread's state and the base that it had. The kernel's frame of the handler is the
    // context, behind the address that the handler returns to; nothing else on this stack is needed
    // any more.
    unsafe {
        gs::exit_handler(tcb, signals.native.get(), gs_base);
        asm!("mov rsp, {context}", "jmp {restorer}", context = in(reg) context,
            restorer = sym trackway_plain_restorer, options(noreturn));
    }
}
