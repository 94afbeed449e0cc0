//! Signals. The kernel calls [`on_signal`] for every signal that the application handles and for those that faults raise;
//! the application's handler is then run from the code cache, on the application's stack, with a frame like the kernel's.
//!
//! A signal is let through where the application's state is exact: at an instruction of translated code, on the way into the
//! cache, before or after a system call. Anywhere else in the engine it is kept ([`Signals`]), to be delivered at the next such
//! point; in the few instructions of translated code between two application instructions, the thread is single-stepped to
//! the next safe point first.
//!
//! What a handler may touch depends on what it has interrupted. The engine's own code may be in the middle of anything, and goes
//! on afterwards: there, only [`Signals`] is touched and no lock is taken. Everywhere else, nothing of the engine is
//! half done: translated code and the assembly before and after system calls hold no lock, and the functions that have called
//! that assembly do not go on if a handler of the application is to run. So the handler may use the thread's [`Tcb`].

use alloc::alloc::{Layout, alloc, dealloc};
use alloc::boxed::Box;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use wire::{RAX, RCX, RDI, RDX, RSI, RSP, Registers, word};

use crate::engine::ENGINE;
use crate::fragment::AppPosition;
use crate::lock::Mutex;
use crate::pending::{self, PROCESS};
use crate::tcb::{AlternateStack, SIGNALS, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, Signals, Tcb, Vectors};
use crate::translate::{RegisterState, Spill};
use crate::{
    clone, detach, dispatch, emulate, exec, failure, gs, memory, profile, ring, rseq, seccomp, skip, sys, syscall,
};

pub const SIGILL: usize = 4;
pub const SIGTRAP: usize = 5;
pub const SIGBUS: usize = 7;
pub const SIGFPE: usize = 8;
pub const SIGKILL: usize = 9;
pub const SIGSEGV: usize = 11;
pub const SIGSTOP: usize = 19;
pub const SIGSYS: usize = 31;
pub const SIGNAL_COUNT: usize = 65;

pub const fn bit(signal: usize) -> u64 {
    1 << (signal - 1)
}

/// Signals that faults raise: never really blocked while translated code or the engine runs, always ours first.
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV) | bit(SIGSYS);
/// The same, one by one.
pub const SYNCHRONOUS_SIGNALS: [usize; SYNCHRONOUS_COUNT] = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS];
pub const SYNCHRONOUS_COUNT: usize = 6;

/// The place of a signal in [`RAISED`].
pub fn synchronous_index(signal: usize) -> Option<usize> {
    SYNCHRONOUS_SIGNALS.iter().position(|&raised| raised == signal)
}
/// SIGCHLD, SIGCONT, SIGURG and SIGWINCH.
const IGNORED_BY_DEFAULT: u64 = bit(17) | bit(18) | bit(23) | bit(28);
const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SA_NOCLDSTOP: u64 = 1;
const SA_NOCLDWAIT: u64 = 2;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
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

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// What the application has asked for. See [`with_actions`].
static ACTIONS: Mutex<[Action; SIGNAL_COUNT]> =
    Mutex::new([Action { handler: 0, flags: 0, restorer: 0, mask: 0 }; SIGNAL_COUNT]);

/// The kernel's `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Context {
    flags: u64,
    link: u64,
    stack: AlternateStack,
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags.
    registers: [u64; 18],
    /// Segments, error code, trap number, old mask, cr2.
    more: [u64; 5],
    fpstate: u64,
    reserved: [u64; 8],
    mask: u64,
}

/// Where each general register, in the order of machine code, is in [`Context::registers`].
const CONTEXT_ORDER: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
const CONTEXT_RIP: usize = 16;
const CONTEXT_FLAGS: usize = 17;
const CONTEXT_R15: usize = 7;
const CONTEXT_RSP: usize = 15;
const CONTEXT_RAX: usize = 13;
/// In [`Context::more`]: the error code of a page fault.
const CONTEXT_ERROR: usize = 1;
const ERROR_WRITE: u64 = 2;

impl Context {
    fn get(&self) -> Registers {
        let mut registers =
            Registers { rip: self.registers[CONTEXT_RIP], rflags: self.registers[CONTEXT_FLAGS], ..Default::default() };
        for (register, index) in registers.general.iter_mut().zip(CONTEXT_ORDER) {
            *register = self.registers[index];
        }
        registers
    }

    fn set(&mut self, registers: &Registers) {
        for (register, index) in registers.general.iter().zip(CONTEXT_ORDER) {
            self.registers[index] = *register;
        }
        self.registers[CONTEXT_RIP] = registers.rip;
        self.registers[CONTEXT_FLAGS] = registers.rflags;
    }
}

/// The kernel's `siginfo_t`.
pub type Info = [u64; 16];

/// The kernel's `struct rt_sigframe`.
#[repr(C)]
struct Frame {
    return_address: u64,
    context: Context,
    info: Info,
}

const FLAG_TRAP: u64 = 1 << 8;
const FLAG_DIRECTION: u64 = 1 << 10;
const FLAG_RESUME: u64 = 1 << 16;
const FLAG_ALIGNMENT: u64 = 1 << 18;
const RED_ZONE: u64 = 128;

/// Tells the recorder what the application does about faults.
pub fn note_fault_actions(control: &wire::Control) {
    for (signal, action) in wire::FAULT_SIGNALS.into_iter().zip(&control.fault_actions) {
        // SAFETY: the kernel writes one action, which has as many words.
        unsafe { sys::call(sys::number::RT_SIGACTION, [u64::from(signal), 0, action.as_ptr() as u64, 8, 0, 0]) };
    }
}

/// Takes over the signals that faults raise and those that the application handles already. Ignored ones stay so.
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

/// Does something with the table of actions: that of the process, or a child process's own. Handlers use it, too, so all signals are
/// really blocked while it is locked: no handler finds its own thread holding the lock.
fn with_actions<R>(signals: Option<&Signals>, operate: impl FnOnce(&mut [Action; SIGNAL_COUNT]) -> R) -> R {
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

fn action_of(signals: &Signals, signal: usize) -> Action {
    with_actions(Some(signals), |actions| actions[signal])
}

/// What is pending for the process that the thread belongs to.
fn process_pending(signals: &Signals) -> u64 {
    if signals.is_child_process() { 0 } else { PROCESS.bits() }
}

/// Gives the kernel a mask for the calling thread; returns the one that it had.
fn set_kernel_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one mask and writes the other.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [2, &raw const mask as u64, &raw mut before as u64, 8, 0, 0]) };
    before
}

/// Makes the kernel block more.
fn add_to_kernel_mask(mask: u64) {
    // SAFETY: the kernel reads the mask.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [0, &raw const mask as u64, 0, 8, 0, 0]) };
}

/// Makes the kernel call us for a signal.
fn install(signal: usize, action: &Action) -> i64 {
    let ours = Action {
        handler: trackway_signal as *const () as u64,
        flags: SA_SIGINFO | SA_ONSTACK | SA_RESTORER | action.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT),
        restorer: trackway_restorer as *const () as u64,
        // All of them: see `enter`.
        mask: !0,
    };
    set_kernel_action(signal, &ours)
}

fn set_kernel_action(signal: usize, action: &Action) -> i64 {
    // SAFETY: the kernel reads one action.
    unsafe { sys::call(sys::number::RT_SIGACTION, [signal as u64, core::ptr::from_ref(action) as u64, 0, 8, 0, 0]) }
}

/// What the application has asked for, for a child process, in which nobody may be left to release a lock.
/// `clear`: all that it would handle is to have its default action.
pub fn copy_actions(clear: bool) -> Box<[Action; SIGNAL_COUNT]> {
    let mut actions = Box::new(with_actions(None, |actions| *actions));
    for action in actions.iter_mut().filter(|action| clear && action.handler > SIG_IGN) {
        *action = Action::default();
    }
    actions
}

/// Before an exec, signals that the application ignores have to be ignored by the kernel as well, because that is what the new
/// image inherits; when the exec has failed, they come to us again.
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

/// Gives the kernel the application's own handlers, in a child process that runs natively.
pub fn restore_actions(actions: &[Action; SIGNAL_COUNT]) {
    for (signal, action) in actions.iter().enumerate().skip(1) {
        set_kernel_action(signal, action);
    }
}

/// In a child process that is recorded: makes the kernel call us as it does in the parent, but for the child's own actions.
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

/// In a child process that goes on natively: gives the kernel its own handlers.
pub fn restore_own_actions(tcb: &Tcb) {
    with_actions(Some(tcb.signals()), |actions| restore_actions(actions));
}

/// Gives the kernel the application's own handlers, when all threads leave together.
pub fn restore_all() {
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
        address => match memory::read::<Action>(address) {
            Some(action) => Some(action),
            None => return sys::EFAULT,
        },
    };
    let changed = with_actions(Some(tcb.signals()), |actions| {
        let before = actions[index];
        let Some(mut action) = action else { return Ok(before) };
        action.mask &= !UNBLOCKABLE;
        // The kernel forgets what it does not know.
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
        // What is pending is forgotten, as the kernel does.
        tcb.signals().pending.fetch_and(!bit(index), Ordering::SeqCst);
        if !tcb.is_child_process() {
            let _ = PROCESS.take(index);
        }
    }
    if old != 0 && !memory::write(old, &before) { sys::EFAULT } else { 0 }
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
    if old != 0 && !memory::write(old, &before) { sys::EFAULT } else { 0 }
}

/// The application is about to block more. A signal that was taken from the kernel before that is delivered first: then the system
/// call is made again, and this does not return. What comes later stays in the kernel, pending.
fn before_blocking(tcb: &Tcb, mask: u64) {
    let signals = tcb.signals();
    let more = mask & !signals.mask.get() & !SYNCHRONOUS & !UNBLOCKABLE;
    if more != 0 {
        add_to_kernel_mask(more);
    }
    while signals.deferred.load(Ordering::SeqCst) != 0 {
        syscall::deliver_deferred();
    }
}

/// Changes the application's mask; the kernel's follows on the way into the cache.
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

/// Blocks everything that can be blocked while the engine works; the application's mask returns on the way into the cache.
pub fn block_all(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(!SYNCHRONOUS);
}

/// Really blocks everything: no fault may happen until [`block_all`] or the way into the cache. False if a signal is kept that may have
/// to be delivered first.
#[must_use]
pub fn block_everything(tcb: &Tcb) -> bool {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(!0);
    tcb.signals().has_deferred.load(Ordering::SeqCst) == 0
}

/// A new thread must not be sent a signal before it has a state and a stack for signals of its own. A filter of the
/// application may raise SIGSYS instead of making one.
pub fn block_for_clone(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    set_kernel_mask(if seccomp::is_filtered(tcb) { !bit(SIGSYS) } else { !0 });
}

/// Whether signals that the kernel could have pending are kept here: those of the thread, or also those of the process.
pub fn has_pending(tcb: &Tcb, of_process: bool) -> bool {
    let signals = tcb.signals();
    let bits = signals.pending.load(Ordering::SeqCst) | if of_process { process_pending(signals) } else { 0 };
    bits & signals.mask.get() != 0
}

/// Gives the kernel the application's exact mask, and what is pending here. No fault may happen until [`take_back`].
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
            send_again(signal, &info);
        }
        if let Some(info) = of_process.then(|| PROCESS.take(signal)).flatten() {
            send_again(signal, &info);
        }
    }
}

/// There may be faults again: what is still pending in the kernel comes back to us.
pub fn take_pending_back(tcb: &Tcb) {
    set_mask(tcb, tcb.signals().mask.get());
    block_all(tcb);
}

/// All threads leave together: what is pending here for the process is given to the kernel.
pub fn requeue_process_pending() {
    for signal in SYNCHRONOUS_SIGNALS {
        let Some(info) = PROCESS.take(signal) else { continue };
        // SAFETY: no arguments; then the kernel reads the information.
        unsafe {
            let process = sys::call(sys::number::GETPID, [0; 6]) as u64;
            let arguments = [process, signal as u64, info.as_ptr() as u64, 0, 0, 0];
            if sys::call(sys::number::RT_SIGQUEUEINFO, arguments) < 0 {
                // Only the first thread may say who has called kill.
                sys::call(sys::number::KILL, [process, signal as u64, 0, 0, 0, 0]);
            }
        }
    }
}

/// Whether the application may have a descriptor from which it reads signals that faults raise.
static HAS_DESCRIPTOR: AtomicBool = AtomicBool::new(false);

/// The application makes a signalfd.
pub fn note_descriptor() {
    HAS_DESCRIPTOR.store(true, Ordering::Relaxed);
}

pub fn has_descriptor() -> bool {
    HAS_DESCRIPTOR.load(Ordering::Relaxed)
}

/// The thread takes no signals any more: what was meant for it because it was sent to the process goes to another.
pub fn stop_taking_signals(tcb: &Tcb) {
    pending::publish(tcb.slot_index, !0);
    let pending = process_pending(tcb.signals());
    for signal in SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| pending & bit(signal) != 0) {
        pending::hint_another_thread(tcb.control(), signal);
    }
}

/// A filter of the application has raised SIGSYS instead of letting the system call happen, and it is kept for the way into the
/// cache, where the call is complete. A signal that was taken before has its handler run before the call, which then is made
/// again.
pub fn on_seccomp_trap(tcb: &Tcb) {
    let signals = tcb.signals();
    block_all(tcb);
    if signals.deferred.load(Ordering::SeqCst) != 0 {
        signals.pending.fetch_and(!bit(SIGSYS), Ordering::SeqCst);
        syscall::deliver_deferred();
    }
}

/// The application's sigaltstack.
pub fn sigaltstack(tcb: &mut Tcb, new: u64, old: u64) -> i64 {
    let mut before = tcb.alternate_stack;
    let on_it = is_on(&before, tcb.registers.general[RSP]);
    if new != 0 {
        let Some(stack) = memory::read::<AlternateStack>(new) else { return sys::EFAULT };
        if on_it {
            return sys::EPERM;
        }
        match stack.flags & !SS_AUTODISARM {
            SS_DISABLE => {
                tcb.alternate_stack = AlternateStack { address: 0, flags: SS_DISABLE, padding: 0, length: 0 };
            }
            0 | SS_ONSTACK if stack.length < 2048 => return sys::ENOMEM,
            0 | SS_ONSTACK => {
                tcb.alternate_stack = AlternateStack { flags: stack.flags & SS_AUTODISARM, ..stack };
            }
            _ => return sys::EINVAL,
        }
    }
    if on_it {
        before.flags |= SS_ONSTACK;
    }
    if old != 0 && !memory::write(old, &before) { sys::EFAULT } else { 0 }
}

/// Whether `rsp` is on the alternate stack.
pub fn is_on(stack: &AlternateStack, rsp: u64) -> bool {
    stack.flags & (SS_DISABLE | SS_AUTODISARM) == 0
        && rsp.wrapping_sub(stack.address) <= stack.length
        && stack.length != 0
}

/// What the frame says that the handler leaves, if there is nothing else to do. If signals have been kept meanwhile, the interrupted
/// code is made to come to a point where they are delivered. A handler that is interrupted here starts here again.
#[unsafe(naked)]
unsafe extern "C" fn trackway_restorer() {
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

/// Whether a handler of ours is on its way out.
fn is_returning(pc: u64) -> bool {
    (trackway_restorer as *const () as u64..=trackway_restorer_instruction as *const () as u64).contains(&pc)
}

/// Called by the kernel on the thread's signal stack, with the interrupted code's flags.
#[unsafe(naked)]
unsafe extern "C" fn trackway_signal(signal: i32, info: *mut Info, context: *mut Context) {
    naked_asm!(
        "push 2", // no direction, no alignment checks
        "popfq",
        "jmp {enter}",
        enter = sym enter,
    )
}

/// A signal that is being handled. It lives on the signal stack, in [`enter`].
pub struct Handled {
    signal: usize,
    info: *const Info,
    context: *mut Context,
    /// The base of gs that the interrupted code has.
    gs_base: u64,
}

unsafe extern "C" fn enter(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel made both, and nobody else uses them until we return.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let Some(state) = gs::state_of(&context.stack, core::ptr::from_ref(context) as u64) else {
        // SAFETY: the kernel's frame of this handler.
        unsafe { return_plainly(context) };
        return on_stateless_signal(signal as usize, info, context);
    };
    // SAFETY: the thread's state. Only `Signals` is referred to, which is always shared.
    let signals = unsafe { &*state.cast::<u8>().add(SIGNALS).cast::<Signals>() };
    // SAFETY: as above; the base of gs is used by handlers only while the thread is native.
    let before = unsafe { gs::enter_handler(state, signals.native.get()) };
    // The kernel calls us with everything blocked, and that is how it stays where a signal is only kept: so handlers do not pile
    // up on the stack, however many signals there are. Anywhere else, there may be faults from here on.
    let is_only_deferred =
        classify(signal as usize, info) != SignalClass::Synchronous && is_inside_engine(context.registers[CONTEXT_RIP]);
    if !is_only_deferred {
        set_kernel_mask(!SYNCHRONOUS);
    }
    let handled = Handled { signal: signal as usize, info, context, gs_base: before };
    let outer = signals.handled.replace(&raw const handled);
    on_signal(signals, signal as usize, info, context);
    signals.handled.set(outer);
    if signals.native.get() || before != state as u64 {
        // The way back cannot look whether something is kept, as gs is not ours there.
        set_kernel_mask(!0);
        if signals.has_deferred.load(Ordering::SeqCst) != 0 {
            redirect_to_safe_point(context);
        }
        // SAFETY: the kernel's frame of this handler.
        unsafe { return_plainly(context) };
    }
    // SAFETY: as above.
    unsafe { gs::leave_handler(state, signals.native.get(), before) };
}

/// What a handler that has failed has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// No handler was at work, or its signal was a fault of the engine, which cannot go on.
    Nothing,
    /// A thread on its way into the cache, whose state is saved.
    Entry,
    /// Code that can go on.
    Code,
}

/// The engine has failed, perhaps in a handler. Keeps the signal of that handler, to be delivered when the thread is native.
///
/// # Safety
/// What held locks in this handler does not go on.
pub unsafe fn interruption(tcb: &Tcb) -> Interruption {
    let signals = tcb.signals();
    // SAFETY: null, or in a frame of a handler that has not returned.
    let Some(&Handled { signal, info, context, .. }) = (unsafe { signals.handled.get().as_ref() }) else {
        return Interruption::Nothing;
    };
    // SAFETY: the kernel's frame of this handler, which nobody else uses any more.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let (pc, class) = (context.registers[CONTEXT_RIP], classify(signal, info));
    if class == SignalClass::Synchronous && is_inside_engine(pc) {
        return Interruption::Nothing;
    }
    set_kernel_mask(!0);
    // The interrupted code may hold locks as well, and goes on: only those of the handler, which has a stack of its own, are released.
    let stack = tcb.signal_stack..tcb.signal_stack + tcb.signal_stack_length;
    // SAFETY: the caller's promise.
    unsafe {
        ACTIONS.release_for_dead(stack.clone());
        ENGINE.release_for_dead(stack);
    }
    if class == SignalClass::Asynchronous && !is_detach_request(info) {
        defer(signals, signal, info, SignalClass::Asynchronous, context);
    }
    if dispatch::is_entering(pc) && !signals.native.get() { Interruption::Entry } else { Interruption::Code }
}

/// The engine has failed in a handler: the code that it has interrupted goes on. Returns if no handler was at work.
///
/// # Safety
/// What used the state of the thread in this handler does not go on.
pub unsafe fn abandon_handler(tcb: &Tcb) {
    let signals = tcb.signals();
    // SAFETY: as above.
    let Some(&Handled { context, gs_base, .. }) = (unsafe { signals.handled.replace(core::ptr::null()).as_ref() })
    else {
        return;
    };
    // SAFETY: the thread's state and the base that it had. The kernel's frame of the handler is the context, behind the address that the
    // handler returns to; nothing else on this stack is needed any more.
    unsafe {
        gs::leave_handler(tcb, signals.native.get(), gs_base);
        asm!("mov rsp, {context}", "jmp {restorer}", context = in(reg) context,
            restorer = sym trackway_plain_restorer, options(noreturn));
    }
}

/// Makes a handler of ours return without looking whether anything is kept.
///
/// # Safety
/// The context is in the kernel's frame of this handler, behind the address that it returns to.
unsafe fn return_plainly(context: &mut Context) {
    // SAFETY: the caller's promise.
    unsafe { *core::ptr::from_mut(context).cast::<u64>().sub(1) = trackway_plain_restorer as *const () as u64 };
}

#[unsafe(naked)]
unsafe extern "C" fn trackway_plain_restorer() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// The calling thread's state.
///
/// # Safety
/// No other reference to it may be used any more as long as this one is.
unsafe fn current_tcb() -> &'static mut Tcb {
    // SAFETY: gs points at it in the engine; the rest is the caller's promise.
    unsafe { &mut *Tcb::current() }
}

/// Whether the thread is in the engine where signals cannot be delivered.
fn is_inside_engine(pc: u64) -> bool {
    is_engine(pc) && !dispatch::is_entering(pc) && matches!(syscall::window(pc), syscall::Window::Outside)
}

/// Makes the code that a handler returns to come to a point where signals that are kept can be delivered.
extern "C" fn redirect_to_safe_point(context: &mut Context) {
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
        // It comes there by itself.
    } else {
        step(signals, context);
    }
}

/// A thread that runs natively cannot come to such a point: the kernel delivers what is kept when our handler has returned.
fn requeue_in_kernel(signals: &Signals) {
    set_kernel_mask(!0);
    signals.has_deferred.store(0, Ordering::SeqCst);
    let first = signals.deferred.swap(0, Ordering::SeqCst);
    if first != 0 {
        send_again(first as usize, &signals.deferred_info.get());
    }
    let kept = signals.pending.swap(0, Ordering::SeqCst);
    for (index, &signal) in SYNCHRONOUS_SIGNALS.iter().enumerate().filter(|(_, signal)| kept & bit(**signal) != 0) {
        send_again(signal, &signals.pending_info[index].get());
    }
}

/// The thread cannot come to such a point at all.
pub fn requeue_all_in_kernel(tcb: &Tcb) {
    tcb.signals().mask_changed.store(1, Ordering::SeqCst);
    requeue_in_kernel(tcb.signals());
}

/// Why a signal has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SignalClass {
    /// The instruction that was interrupted has raised it.
    Synchronous,
    /// Somebody has sent it: a process, a timer, the kernel. It says nothing about the code that was interrupted.
    Asynchronous,
    /// Another thread of ours says that something is pending for the process.
    Hint,
}

/// Where a signal has found the thread.
enum InterruptionPoint {
    /// On the way into the cache or to native code: the application's state is saved.
    Entering,
    /// Before a system call of the application: the state is saved.
    BeforeCall,
    /// After one, with this result.
    AfterCall(i64),
    /// Anywhere else in the engine. It goes on afterwards.
    Engine,
    /// In translated code, where the application's state is exact; or in code that cannot be read.
    SafePoint(Option<AppPosition>),
    /// In translated code between two safe points.
    BetweenSafePoints,
    /// In the application's own code.
    Native,
}

fn interruption_point(signals: &Signals, context: &Context) -> InterruptionPoint {
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
    // Code that is not the engine's holds no lock of the engine's.
    match ENGINE.lock().app_position(pc) {
        Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) => InterruptionPoint::BetweenSafePoints,
        position => InterruptionPoint::SafePoint(position),
    }
}

/// Why the signal has come, as far as can be told without knowing where it has found the thread.
fn classify(signal: usize, info: &Info) -> SignalClass {
    const BUS_MCEERR_AO: i32 = 5;
    const TRAP_PERF: i32 = 6;
    if pending::is_hint(signal, info) {
        return SignalClass::Hint;
    }
    match (signal, code(info)) {
        // Memory that has gone bad somewhere, and a counter: the kernel sends these, the instruction is not to blame.
        (SIGBUS, BUS_MCEERR_AO) | (SIGTRAP, TRAP_PERF) => SignalClass::Asynchronous,
        (_, 1..) if SYNCHRONOUS & bit(signal) != 0 => SignalClass::Synchronous,
        _ => SignalClass::Asynchronous,
    }
}

fn code(info: &Info) -> i32 {
    info[1] as u32 as i32
}

fn on_signal(signals: &'static Signals, signal: usize, info: &Info, context: &mut Context) {
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
            // What the engine does for the application, the application has done.
            signals.accessing.set(false);
            // SAFETY: the function that accessed the memory does not go on.
            let tcb = unsafe { current_tcb() };
            tcb.registers.rflags |= FLAG_RESUME;
            emulate::flush(tcb);
            deliver_or_resume(tcb, IncomingSignal { signal, info, class, mask: signals.mask.get() }, context, true);
        }
        (InterruptionPoint::Engine, SignalClass::Synchronous) => {
            panic!("signal {signal} at {pc:#x} in the engine, address {:#x}", info[2]);
        }
        // The call may have met a page that we have write-protected, and is to be made again. Or it may have taken the very signal
        // that the hint is about.
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
                let tcb = unsafe { current_tcb() };
                recover_state(tcb, context, position);
                deliver(tcb, signal, &info, class, context, false);
            }
        }
        (InterruptionPoint::Entering, _) => {
            let incoming = IncomingSignal { signal, info, class, mask: signals.mask.get() };
            match choose_delivery(signals, incoming) {
                // SAFETY: the assembly has no reference to the state, and whoever has called it has returned.
                Some((signal, info, class)) => deliver(unsafe { current_tcb() }, signal, &info, class, context, true),
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
                    // SAFETY: the functions that made the call do not go on.
                    let tcb = unsafe { current_tcb() };
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

/// The kernel has dropped what other threads have sent while the fault was pending: the letter is there.
fn recover_dropped_signal(signals: &Signals, signal: usize) {
    if pending::confirmed_backups(signals.slot_index) & bit(signal) != 0
        && let Some(info) = pending::take_backup(signals.slot_index, signal)
    {
        store_pending(signals, signal, &info, SignalClass::Asynchronous);
    }
}

/// Whether an instruction where the thread is can raise a signal.
fn can_fault(signals: &Signals, interruption_point: &InterruptionPoint, signal: usize, pc: u64) -> bool {
    match interruption_point {
        // The jump to an address that is none; the instruction that is there to raise a signal.
        InterruptionPoint::Entering => signals.native.get() || pc == dispatch::enter_jump(),
        InterruptionPoint::BeforeCall => false,
        // Raised by a filter instead of making the call.
        InterruptionPoint::AfterCall(_) => signal == SIGSYS,
        _ => true,
    }
}

/// A fault that the engine causes and mends. False if it is none.
fn on_engine_fault(signals: &'static Signals, signal: usize, info: &Info, context: &mut Context) -> bool {
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
            let tcb = unsafe { current_tcb() };
            if !ring::is_guard(tcb, info[2]) {
                return false;
            }
            on_segment_end(tcb, context);
        }
        SIGBUS if in_cache => return on_misaligned_store(signals, info, context),
        SIGTRAP if code(info) == TRAP_TRACE && (signals.misaligned.get() || signals.stepping.get()) => {
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
            // The call has not happened; whoever wanted to make it puts things in order first.
            store_pending(signals, signal, info, SignalClass::Synchronous);
            context.registers[CONTEXT_RAX] = syscall::TRAPPED as u64;
        }
        _ => return false,
    }
    true
}

const TRAP_TRACE: i32 = 2;

/// On the way into the cache, or before a system call, where signals wait: delivers the next of them.
fn on_raise(signals: &Signals, context: &mut Context, pc: u64) {
    let is_entering = dispatch::is_entering(pc);
    match next_deliverable(signals, signals.mask.get()) {
        Some((signal, info, class)) if is_entering => {
            // SAFETY: the assembly has no reference to the state, and whoever has called it has returned.
            deliver(unsafe { current_tcb() }, signal, &info, class, context, true);
        }
        Some((signal, info, class)) => deliver_before_call(signal, &info, class, context),
        None if is_entering => context.registers[CONTEXT_RIP] = dispatch::enter_start(),
        None => context.registers[CONTEXT_RIP] = syscall::window_start(pc),
    }
}

/// A signal at a point where it can be delivered.
#[derive(Clone, Copy)]
struct IncomingSignal<'a> {
    signal: usize,
    info: &'a Info,
    class: SignalClass,
    /// What the application blocks.
    mask: u64,
}

/// What is to be delivered, if anything, when a signal has found the thread at a point where that is possible. A deferred
/// signal comes first; a fault happens again after it.
fn choose_delivery(signals: &Signals, incoming: IncomingSignal) -> Option<(usize, Info, SignalClass)> {
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

fn deliver_or_resume(tcb: &mut Tcb, incoming: IncomingSignal, context: &mut Context, saved_xmm: bool) {
    match choose_delivery(tcb.signals(), incoming) {
        Some((signal, info, class)) => deliver(tcb, signal, &info, class, context, saved_xmm),
        None => resume_saved_state(tcb, context, saved_xmm),
    }
}

/// The next of the signals that are kept and not blocked by `mask`.
fn next_deliverable(signals: &Signals, mask: u64) -> Option<(usize, Info, SignalClass)> {
    // What is kept from now on is seen below, or makes the thread look again.
    signals.has_deferred.store(0, Ordering::SeqCst);
    if signals.hinted.get() {
        SYNCHRONOUS_SIGNALS.into_iter().for_each(|signal| recover_dropped_signal(signals, signal));
    }
    let found = next_pending(signals, mask).or_else(|| next_process_pending(signals, mask));
    if found.is_none() && signals.hinted.take() {
        // This thread blocks it by now; perhaps another one does not.
        for signal in SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| process_pending(signals) & bit(signal) != 0) {
            pending::hint_another_thread(signals.control(), signal);
        }
    }
    if found.is_some() {
        // There may be more.
        signals.mask_changed.store(1, Ordering::SeqCst);
        signals.has_deferred.store(1, Ordering::SeqCst);
    }
    found
}

fn next_pending(signals: &Signals, mask: u64) -> Option<(usize, Info, SignalClass)> {
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

fn next_process_pending(signals: &Signals, mask: u64) -> Option<(usize, Info, SignalClass)> {
    let open = process_pending(signals) & !mask;
    SYNCHRONOUS_SIGNALS.into_iter().filter(|&signal| open & bit(signal) != 0).find_map(|signal| {
        let info = PROCESS.take(signal)?;
        (action_of(signals, signal).handler != SIG_IGN).then_some((signal, info, SignalClass::Asynchronous))
    })
}

/// Whether a signal was sent to the thread rather than to the process. A queued one does not say; most are sent to the process.
fn is_for_thread(info: &Info) -> bool {
    code(info) == SI_TKILL || code(info) > 0
}

/// The application sends a signal that faults raise to another thread of its own. `send` makes the system call.
pub fn send_to_thread(tcb: &mut Tcb, tid: u64, signal: u64, info: Option<Info>, send: fn(&mut Tcb) -> i64) -> i64 {
    let control = tcb.control();
    // To itself, nothing is dropped: a fault is handled before the thread can send.
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

/// The system call that goes with a letter was made, or will be made again with another letter.
fn confirm_backup(signals: &Signals, was_sent: bool) {
    if let Some((slot, signal)) = signals.backup.take() {
        pending::confirm_backup(signals.control(), slot, signal, was_sent);
    }
}

/// The application sends a signal that faults raise to its own process. The kernel would have some thread handle it at some time,
/// as none blocks it really; here it is pending at once. `send` makes the system call.
pub fn send_to_process(tcb: &mut Tcb, process: u64, signal: u64, info: Option<Info>, send: fn(&mut Tcb) -> i64) -> i64 {
    let number = usize::try_from(signal).ok().filter(|&signal| synchronous_index(signal).is_some());
    let Some((signal, mut info)) = number.zip(info) else { return send(tcb) };
    // SAFETY: no arguments.
    let own = unsafe { sys::call(sys::number::GETPID, [0; 6]) } as u32;
    // Only the first thread may say what it likes.
    let permitted = code(&info) == SI_USER || code(&info) < 0 && code(&info) != SI_TKILL;
    if process as u32 != own || !permitted || seccomp::is_filtered(tcb) {
        return send(tcb);
    }
    info[0] = info[0] & !0xffff_ffff | signal as u64;
    let signals = tcb.signals();
    if signals.is_child_process() {
        // Its only thread is the caller.
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

const SI_USER: i32 = 0;
const SI_TKILL: i32 = -6;

/// What the kernel says of a signal that is sent by tkill or tgkill, if faults raise it, too.
pub fn tkill_info(signal: u64) -> Option<Info> {
    sender_info(signal, SI_TKILL)
}

/// What the kernel says of a signal that is sent by kill, if faults raise it, too.
pub fn kill_info(signal: u64) -> Option<Info> {
    sender_info(signal, SI_USER)
}

fn sender_info(signal: u64, code: i32) -> Option<Info> {
    synchronous_index(usize::try_from(signal).ok()?)?;
    let mut info: Info = [0; 16];
    // SAFETY: no arguments.
    let [process, user] =
        [sys::number::GETPID, sys::number::GETUID].map(|call| unsafe { sys::call(call, [0; 6]) } as u32);
    (info[0], info[1]) = (signal, u64::from(code as u32));
    info[2] = u64::from(process) | u64::from(user) << 32;
    Some(info)
}

/// After the application's rt_sigpending: adds what is kept here to the set. False if it cannot be written.
pub fn complete_sigpending(tcb: &Tcb, set: u64) -> bool {
    let signals = tcb.signals();
    let ours = (signals.pending.load(Ordering::SeqCst) | process_pending(signals)) & signals.mask.get();
    ours == 0 || memory::read::<u64>(set).is_some_and(|kernel| memory::write(set, &(kernel | ours)))
}

/// Before the application's rt_sigtimedwait: takes what is kept here, if it is asked for.
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
        return Some(if info_address != 0 && !memory::write(info_address, &info) {
            sys::EFAULT
        } else {
            signal as i64
        });
    }
    None
}

/// A system call of the application's has taken a signal.
pub fn taken_by_call(tcb: &Tcb, signal: i64) {
    if let Some(signal) = usize::try_from(signal).ok().filter(|&signal| synchronous_index(signal).is_some()) {
        pending::discard_backup(tcb.slot_index, signal);
    }
}

/// Delivers a signal before a system call, which is made again afterwards.
fn deliver_before_call(signal: usize, info: &Info, class: SignalClass, context: &mut Context) {
    // SAFETY: the functions that were about to make the call do not go on.
    let tcb = unsafe { current_tcb() };
    confirm_backup(tcb.signals(), false);
    exec::abandon(tcb);
    interrupt_call(tcb, signal);
    deliver(tcb, signal, info, class, context, true);
}

/// Makes the thread look at what is pending before it makes its system call (again).
fn restart_call(signals: &Signals, context: &mut Context) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    context.registers[CONTEXT_RIP] = syscall::window_start(context.registers[CONTEXT_RIP]);
}

/// Whether the recorder wants the thread to come out of translated code.
fn is_detach_request(info: &Info) -> bool {
    const SI_QUEUE: i32 = -1;
    info[1] as u32 as i32 == SI_QUEUE && info[3] == wire::DETACH_REQUEST
}

/// Brings a thread that may go round in translated code for ever to the dispatcher. Anywhere else it gets there by itself.
fn on_detach_request(signals: &'static Signals, context: &mut Context, pc: u64) {
    if signals.native.get() || is_engine(pc) {
        if pc == syscall::instruction_end() && context.registers[CONTEXT_RAX] as i64 == sys::EINTR {
            // The thread has entered a system call meanwhile, which our signal has interrupted: it is made again.
            context.registers[CONTEXT_RIP] = syscall::entry();
        }
        return;
    }
    // SAFETY: translated code has no reference to the state.
    let tcb = unsafe { current_tcb() };
    if tcb.interrupted != 0 {
        return;
    }
    let position = ENGINE.lock().app_position(pc);
    match position {
        None => {}
        Some(_) if signals.stepping.get() => signals.stale.set(true),
        Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) => {
            signals.stale.set(true);
            step_with_signals_blocked(signals, context);
        }
        Some(position) => {
            recover_state(tcb, context, Some(position));
            ring::append_signal(tcb, 0, tcb.registers.rip);
            resume_saved_state(tcb, context, false);
        }
    }
}

/// A handler is to run before a system call that had begun natively and was interrupted for us. It might as well have been interrupted
/// by the signal: then it is not made again if the kernel would not do so.
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

/// A thread that has left gets a signal while the kernel still uses our stack for its signals: the application's handler is run natively,
/// with a frame on the application's stack.
fn on_native_signal(signal: usize, info: &Info, class: SignalClass, context: &mut Context) {
    // SAFETY: native code has no reference to the state; a handler of ours that is interrupted is not native code.
    let tcb = unsafe { current_tcb() };
    tcb.registers = context.get();
    tcb.signals().mask.set(context.mask);
    deliver(tcb, signal, info, class, context, false);
}

/// A thread that runs natively, and for which the kernel uses the application's stacks by itself: one that has left and returned from
/// such a frame, or was created after that. The handler is simply called. gs is the application's.
fn on_stateless_signal(signal: usize, info: &Info, context: &mut Context) {
    let action = take_action(None, signal);
    match action.handler {
        SIG_IGN if classify(signal, info) != SignalClass::Synchronous => return,
        SIG_DFL if IGNORED_BY_DEFAULT & bit(signal) != 0 => return,
        SIG_DFL | SIG_IGN => {
            set_kernel_action(signal, &Action::default());
            send_again(signal, info);
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
        let handler: extern "C" fn(i32, *const Info, *mut Context) = core::mem::transmute(action.handler as *const ());
        handler(signal as i32, info, context);
    }
}

static IMAGE_START: AtomicU64 = AtomicU64::new(0);
static IMAGE_END: AtomicU64 = AtomicU64::new(0);

/// Says where the engine's own code is.
pub fn set_image(start: u64, end: u64) {
    IMAGE_START.store(start, Ordering::Relaxed);
    IMAGE_END.store(end, Ordering::Relaxed);
}

/// Where the engine's own code is.
pub fn image() -> core::ops::Range<u64> {
    IMAGE_START.load(Ordering::Relaxed)..IMAGE_END.load(Ordering::Relaxed)
}

fn is_engine(pc: u64) -> bool {
    image().contains(&pc)
}

/// A write has faulted: if it was to code that we watch, it is made again. A thread that has changed the very code it
/// executes goes on in a new translation.
fn on_write_fault(signals: &Signals, info: &Info, context: &mut Context) -> bool {
    let mut engine = ENGINE.lock();
    if !engine.written(info[2]) {
        // Another thread may have released the page just now: once more will show.
        let write = (context.registers[CONTEXT_RIP], info[2]);
        let again = engine.pages.any_guarded && signals.faulted_write.get() != write;
        signals.faulted_write.set(if again { write } else { (0, 0) });
        return again;
    }
    let position = engine.app_position(context.registers[CONTEXT_RIP]);
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

/// The application has asked for alignment checks, and one of our own stores at the cursor is not aligned: makes it without.
fn on_misaligned_store(signals: &Signals, info: &Info, context: &mut Context) -> bool {
    const BUS_ADRALN: u64 = 1;
    let flags = context.registers[CONTEXT_FLAGS];
    if info[1] & 0xffff_ffff != BUS_ADRALN || flags & FLAG_ALIGNMENT == 0 {
        return false;
    }
    let pc = context.registers[CONTEXT_RIP];
    let Some(position) = ENGINE.lock().app_position(pc) else { return false };
    if matches!(position.state, RegisterState::App | RegisterState::ScratchApp | RegisterState::Spilled(_, true)) {
        return false;
    }
    let mut code = [0; isa::INSTRUCTION_BYTES_MAX];
    let length = memory::read_bytes(pc, &mut code);
    // Where r15 is the cursor, only we use it.
    let is_ours = isa::decoder(pc, &code[..length]).decode().memory_base() == iced_x86::Register::R15;
    if is_ours {
        signals.misaligned.set(true);
        context.registers[CONTEXT_FLAGS] = flags & !FLAG_ALIGNMENT | FLAG_TRAP;
    }
    is_ours
}

/// The cursor has met the guard page: opens the next segment and lets the instruction write there.
fn on_segment_end(tcb: &mut Tcb, context: &mut Context) {
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

/// Keeps a signal that cannot be delivered here, and blocks all others that can be blocked, so that none of them overtakes it.
/// Whatever it has interrupted, this is safe: nothing but [`Signals`] is touched.
fn defer(signals: &Signals, signal: usize, info: &Info, class: SignalClass, context: &mut Context) {
    if class == SignalClass::Hint {
        signals.hinted.set(true);
    } else {
        store_pending(signals, signal, info, class);
    }
    signals.mask_changed.store(1, Ordering::SeqCst);
    signals.has_deferred.store(1, Ordering::SeqCst);
    context.mask |= !SYNCHRONOUS;
}

/// Keeps a signal. Of the ones that faults raise, one of a number is kept, as of all standard signals; of the others the kernel
/// delivers none before the one that is kept here is delivered.
fn store_pending(signals: &Signals, signal: usize, info: &Info, class: SignalClass) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    signals.has_deferred.store(1, Ordering::SeqCst);
    let Some(index) = synchronous_index(signal) else {
        if signals.deferred.load(Ordering::SeqCst) != 0 {
            return send_again(signal, info);
        }
        signals.deferred_info.set(*info);
        return signals.deferred.store(signal as u32, Ordering::SeqCst);
    };
    if class == SignalClass::Synchronous {
        signals.raised_by_fault.fetch_or(bit(signal), Ordering::SeqCst);
    } else if signals.pending.load(Ordering::SeqCst) & bit(signal) != 0 {
        return;
    }
    // Whoever takes it reads the information before the bit is cleared, and a handler that comes in between finds the bit set.
    signals.pending_info[index].set(*info);
    signals.pending.fetch_or(bit(signal), Ordering::SeqCst);
}

fn send_again(signal: usize, info: &Info) {
    let info = *info;
    // SAFETY: no arguments; then the kernel reads the information.
    unsafe {
        let pid = sys::call(sys::number::GETPID, [0; 6]) as u64;
        let tid = u64::from(sys::gettid());
        sys::call(sys::number::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, info.as_ptr() as u64, 0, 0]);
    }
}

fn step(signals: &Signals, context: &mut Context) {
    signals.stepping.set(true);
    context.registers[CONTEXT_FLAGS] |= FLAG_TRAP;
}

/// Steps with everything blocked that can be.
fn step_with_signals_blocked(signals: &Signals, context: &mut Context) {
    signals.mask_changed.store(1, Ordering::SeqCst);
    context.mask |= !SYNCHRONOUS;
    step(signals, context);
}

/// One instruction further on the way to a safe point.
fn on_step(signals: &'static Signals, context: &mut Context, pc: u64) {
    let in_cache = !is_engine(pc);
    let position = if in_cache { ENGINE.lock().app_position(pc) } else { None };
    if let Some(AppPosition { state: RegisterState::BetweenSafePoints, .. }) = position {
        return;
    }
    signals.stepping.set(false);
    context.registers[CONTEXT_FLAGS] &= !FLAG_TRAP;
    if !in_cache {
        // The way back into the cache unblocks (or leaves).
        signals.stale.set(false);
        return;
    }
    // SAFETY: translated code has no reference to the state.
    let tcb = unsafe { current_tcb() };
    signals.mask_changed.store(0, Ordering::SeqCst);
    context.mask = signals.real_mask.get();
    if let Some((signal, info, class)) = next_deliverable(signals, signals.mask.get()) {
        recover_state(tcb, context, position);
        return deliver(tcb, signal, &info, class, context, false);
    }
    let stale = signals.stale.take();
    if stale || tcb.detaching {
        recover_state(tcb, context, position);
        ring::append_signal(tcb, 0, tcb.registers.rip);
    }
    // A child process gives its signal stack up when it leaves, which it cannot do here.
    if tcb.detaching && !tcb.is_child_process() && detach::detach_thread(tcb) {
        context.mask = signals.real_mask.get();
        context.set(&tcb.registers);
    } else if tcb.detaching || stale {
        resume_saved_state(tcb, context, false);
    }
}

/// Makes the saved state the application's state at a safe point in the cache.
fn recover_state(tcb: &mut Tcb, context: &Context, position: Option<AppPosition>) {
    let mut registers = context.get();
    registers.rflags &= !FLAG_TRAP;
    let Some(position) = position else {
        // A jump to where no code is.
        tcb.cursor = registers.general[wire::R15];
        registers.general[wire::R15] = tcb.registers.general[wire::R15];
        tcb.registers = registers;
        return;
    };
    registers.rip = position.pc;
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

/// Puts registers that the engine was using back.
fn unspill(tcb: &Tcb, context: &Context, registers: &mut Registers, spill: Spill) {
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
            *at::<[u64; 2]>(context.fpstate + XMM + 16 * u64::from(spill.vector)) =
                [tcb.scratch_vector[0], tcb.scratch_vector[1]];
        }
    }
}

/// Runs the application's handler next (or ends the application), from the saved state. `saved_xmm`: the vector registers'
/// low halves are in the saved state rather than in the context.
fn deliver(tcb: &mut Tcb, signal: usize, info: &Info, class: SignalClass, context: &mut Context, saved_xmm: bool) {
    let signals = tcb.signals();
    let action = take_action(Some(signals), signal);
    match action.handler {
        // Another thread has changed the action since the kernel decided to call us.
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
        // Where the application called, not where we did it for it.
        info[2] = tcb.registers.rip;
    }
    let info = &info;
    let interrupted = tcb.registers.rip;
    tcb.registers.rip = rseq::after_signal(tcb);
    let frame = build_frame(tcb, &action, info, context, saved_xmm);
    tcb.registers.rip = interrupted;
    let Some(frame) = frame else {
        return terminate(tcb, SIGSEGV, info, context, saved_xmm);
    };
    if !signals.native.get() {
        ring::append_signal(tcb, signal as u8, action.handler);
    }
    let base = signals.call_mask.take().unwrap_or(signals.mask.get());
    let own = if action.flags & SA_NODEFER != 0 { 0 } else { bit(signal) };
    let registers = &mut tcb.registers;
    registers.general[RDI] = signal as u64;
    registers.general[RSI] = frame + core::mem::offset_of!(Frame, info) as u64;
    registers.general[RDX] = frame + core::mem::offset_of!(Frame, context) as u64;
    registers.general[RAX] = 0;
    registers.general[RSP] = frame;
    registers.rip = action.handler;
    registers.rflags &= !(FLAG_DIRECTION | FLAG_TRAP | FLAG_RESUME);
    if tcb.alternate_stack.flags & SS_AUTODISARM != 0 && action.flags & SA_ONSTACK != 0 {
        tcb.alternate_stack = AlternateStack { address: 0, flags: SS_DISABLE, padding: 0, length: 0 };
    }
    set_mask(tcb, base | action.mask | own);
    reset_vectors(context);
    tcb.xmm = Vectors([[0; 2]; 16]);
    tcb.mxcsr = 0x1f80;
    resume_saved_state(tcb, context, true);
}

/// Goes on as if there had been no signal.
fn discard(tcb: &mut Tcb, context: &mut Context, saved_xmm: bool) {
    if tcb.progress.fragment != 0 {
        ring::append_signal(tcb, 0, tcb.registers.rip);
    }
    resume_saved_state(tcb, context, saved_xmm);
}

/// The action for a signal; SA_RESETHAND is honoured.
fn take_action(signals: Option<&Signals>, signal: usize) -> Action {
    with_actions(signals, |actions| {
        let action = actions[signal];
        if action.flags & SA_RESETHAND != 0 && action.handler > SIG_IGN {
            actions[signal].handler = SIG_DFL;
            if SYNCHRONOUS & bit(signal) == 0 {
                set_kernel_action(signal, &Action::default());
            }
        }
        action
    })
}

/// Makes the return from our handler continue with the saved state.
fn resume_saved_state(tcb: &mut Tcb, context: &mut Context, saved_xmm: bool) {
    let signals = tcb.signals();
    signals.stepping.set(false);
    signals.misaligned.set(false);
    signals.stale.set(false);
    context.mask = signals.real_mask.get();
    signals.mask_changed.store(0, Ordering::SeqCst);
    if signals.has_deferred.load(Ordering::SeqCst) != 0 {
        // The way into the cache looks at it.
        signals.mask_changed.store(1, Ordering::SeqCst);
    }
    if signals.native.get() {
        if saved_xmm {
            patch_vectors(tcb, context);
        }
        context.set(&tcb.registers);
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

/// The signal ends the application: hands over what is recorded, then lets the kernel do it.
fn terminate(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context, saved_xmm: bool) {
    if !tcb.signals().native.get() {
        ring::append_signal(tcb, signal as u8, 0);
        ring::close(tcb, word::END);
        tcb.signals().native.set(true);
    }
    if saved_xmm {
        patch_vectors(tcb, context);
    }
    set_kernel_action(signal, &Action::default());
    send_again(signal, info);
    context.set(&tcb.registers);
    context.mask = tcb.signals().mask.get() & !bit(signal);
}

const LEGACY_BYTES: u64 = 512;
const SOFTWARE_MAGIC: u64 = 464;
const MAGIC: u32 = 0x4650_5853;
const HEADER: u64 = 512;
const MXCSR: u64 = 24;
const XMM: u64 = 160;
const FEATURE_SSE: u64 = 2;

/// Length of the extended state at `address`, a kernel's signal frame or a copy of one.
fn vectors_length(address: u64) -> u64 {
    match memory::read::<[u32; 2]>(address + SOFTWARE_MAGIC) {
        Some([MAGIC, length]) => u64::from(length),
        _ => LEGACY_BYTES,
    }
}

/// # Safety
/// `address` must be part of a kernel's signal frame on our own stack.
unsafe fn at<T>(address: u64) -> &'static mut T {
    // SAFETY: the caller's promise.
    unsafe { &mut *(address as *mut T) }
}

/// Copies the low vector registers from our own frame to the saved state.
fn save_vectors(tcb: &mut Tcb, context: &Context) {
    let fpstate = context.fpstate;
    if fpstate == 0 {
        return;
    }
    let extended = vectors_length(fpstate) > LEGACY_BYTES;
    // SAFETY: the kernel's frame on our stack.
    unsafe {
        tcb.mxcsr = *at::<u32>(fpstate + MXCSR);
        let present = !extended || *at::<u64>(fpstate + HEADER) & FEATURE_SSE != 0;
        tcb.xmm = Vectors(if present { *at(fpstate + XMM) } else { [[0; 2]; 16] });
    }
}

/// Copies the low vector registers from the saved state to our own frame.
fn patch_vectors(tcb: &Tcb, context: &mut Context) {
    let fpstate = context.fpstate;
    if fpstate == 0 {
        return;
    }
    let extended = vectors_length(fpstate) > LEGACY_BYTES;
    // SAFETY: the kernel's frame on our stack.
    unsafe {
        *at::<u32>(fpstate + MXCSR) = tcb.mxcsr;
        *at(fpstate + XMM) = tcb.xmm.0;
        if extended {
            *at::<u64>(fpstate + HEADER) |= FEATURE_SSE;
        }
    }
}

/// Makes the return from our handler put all vector and floating-point registers into their initial state, as the kernel
/// does for a handler.
fn reset_vectors(context: &mut Context) {
    let fpstate = context.fpstate;
    if fpstate != 0 && vectors_length(fpstate) > LEGACY_BYTES {
        // SAFETY: the kernel's frame on our stack.
        unsafe {
            *at::<u64>(fpstate + HEADER) = 0;
            *at::<u32>(fpstate + MXCSR) = 0x1f80;
        }
    }
}

/// Puts a frame for the application's handler on the application's stack. `None` if the stack is not writable.
fn build_frame(tcb: &mut Tcb, action: &Action, info: &Info, context: &mut Context, saved_xmm: bool) -> Option<u64> {
    let rsp = tcb.registers.general[RSP];
    let stack = tcb.alternate_stack;
    let switch = action.flags & SA_ONSTACK != 0 && stack.flags & SS_DISABLE == 0 && !is_on(&stack, rsp);
    let top = if switch { stack.address + stack.length } else { rsp.wrapping_sub(RED_ZONE) };
    if saved_xmm {
        patch_vectors(tcb, context);
    }
    let length = if context.fpstate == 0 { 0 } else { vectors_length(context.fpstate) };
    let vectors = top.wrapping_sub(length) & !63;
    let frame_address = (vectors.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    // SAFETY: copies from our stack to the application's, as the kernel would; a fault is caught.
    if unsafe { memory::copy(vectors, context.fpstate, length) } != length {
        return None;
    }
    let mut frame = Frame { return_address: action.restorer, context: *context, info: *info };
    frame.context.set(&tcb.registers);
    frame.context.stack = stack;
    frame.context.mask = tcb.signals().mask.get();
    frame.context.fpstate = if length == 0 { 0 } else { vectors };
    // SAFETY: as above.
    let copied = unsafe { memory::copy(frame_address, &raw const frame as u64, size_of::<Frame>() as u64) };
    (copied == size_of::<Frame>() as u64).then_some(frame_address)
}

/// The application's rt_sigreturn: goes back to what the frame says. False if there is no frame.
pub fn sigreturn(tcb: &mut Tcb) -> bool {
    let Some(context) = memory::read::<Context>(tcb.registers.general[RSP]) else { return false };
    before_blocking(tcb, context.mask);
    if !restore_vectors(tcb, context.fpstate) {
        return false;
    }
    let rflags = tcb.registers.rflags;
    tcb.registers = context.get();
    // Privileged flags stay as they are.
    const SETTABLE: u64 = 0x0005_0dd5;
    tcb.registers.rflags = tcb.registers.rflags & SETTABLE | rflags & !SETTABLE;
    tcb.alternate_stack = context.stack;
    tcb.alternate_stack.flags &= !SS_ONSTACK;
    set_mask(tcb, context.mask);
    ring::append_timed(tcb, word::RESUME, context.registers[CONTEXT_RIP]);
    true
}

/// Whether the processor takes the extended state at `address`, which an application may have changed.
///
/// # Safety
/// There must be a whole header, in memory of our own.
unsafe fn is_loadable(address: u64) -> bool {
    let (low, high): (u32, u32);
    // SAFETY: where there is an extended state, the instruction exists; the caller vouches for the header.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem));
        let [features, rest @ ..] = *at::<[u64; 8]>(address + HEADER);
        let supported = u64::from(high) << 32 | u64::from(low);
        let mxcsr = *at::<u32>(address + MXCSR);
        features & !supported == 0 && rest == [0; 7] && mxcsr < 1 << 16
    }
}

/// The processor may touch an area up to the end of everything that it could hold, also if the frame says that it holds less: tiles make it 11008 bytes.
const AREA_BYTES: usize = 16 << 10;

/// Loads vector and floating-point registers from an application's frame.
fn restore_vectors(tcb: &mut Tcb, fpstate: u64) -> bool {
    if fpstate == 0 {
        return true;
    }
    let length = vectors_length(fpstate);
    let Ok(layout) = Layout::from_size_align((length as usize).max(AREA_BYTES), 64) else { return false };
    // SAFETY: the size is not zero.
    let buffer = unsafe { alloc(layout) };
    // SAFETY: reads the application's frame into our own buffer.
    let whole = !buffer.is_null() && unsafe { memory::copy(buffer as u64, fpstate, length) } == length;
    // SAFETY: the buffer is filled.
    let whole = whole && (length <= LEGACY_BYTES || unsafe { is_loadable(buffer as u64) });
    if whole {
        // SAFETY: the buffer holds what the kernel (or this engine) saved in this format; only registers that translated
        // code uses, and those of the engine that may change at any call, are loaded.
        unsafe {
            if length > LEGACY_BYTES {
                asm!("xrstor64 [{}]", in(reg) buffer, in("eax") -1, in("edx") -1, clobber_abi("C"), options(nostack));
            } else {
                asm!("fxrstor64 [{}]", in(reg) buffer, clobber_abi("C"), options(nostack));
            }
            let present = length <= LEGACY_BYTES || *at::<u64>(buffer as u64 + HEADER) & FEATURE_SSE != 0;
            tcb.mxcsr = *at::<u32>(buffer as u64 + MXCSR);
            tcb.xmm = Vectors(if present { *at(buffer as u64 + XMM) } else { [[0; 2]; 16] });
        }
    }
    if !buffer.is_null() {
        // SAFETY: allocated above with the same layout.
        unsafe { dealloc(buffer, layout) };
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_that_this_processor_can_save() {
        // The size of everything that the processor knows, whether it is switched on or not.
        let bytes = core::arch::x86_64::__cpuid_count(0xd, 0).ecx as usize;
        assert!(bytes <= AREA_BYTES, "{bytes}");
    }
}
