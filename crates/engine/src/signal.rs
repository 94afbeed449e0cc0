//! Signals. The kernel calls [`on_signal`] for every signal that the application handles and for those that faults raise;
//! the application's handler is then run from the code cache, on the application's stack, with a frame like the kernel's.
//!
//! A signal is let through where the application's state is exact: at an instruction of translated code, on the way into the
//! cache, before or after a system call. Anywhere else in the engine it is sent again, to arrive at the next such point;
//! in the few instructions of translated code between two application instructions, the thread is single-stepped to the
//! next clean point first.

use alloc::alloc::{Layout, alloc, dealloc};
use alloc::boxed::Box;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering};

use wire::{RAX, RCX, RDI, RDX, RSI, RSP, Registers, word};

use crate::fragment::{ENGINE, Place};
use crate::lock::Mutex;
use crate::tcb::{AlternateStack, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, Tcb, Vectors};
use crate::translate::{Spill, State};
use crate::{clone, dispatch, emulate, exec, gs, leave, memory, profile, ring, skip, sys, syscall};

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

/// Signals that faults raise: never really blocked, always ours first.
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV) | bit(SIGSYS);
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

/// What the application has asked for.
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
        for (register, place) in registers.general.iter_mut().zip(CONTEXT_ORDER) {
            *register = self.registers[place];
        }
        registers
    }

    fn set(&mut self, registers: &Registers) {
        for (register, place) in registers.general.iter().zip(CONTEXT_ORDER) {
            self.registers[place] = *register;
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

/// Takes over the signals that faults raise and those that the application handles already. Ignored ones stay so.
pub fn set_up() {
    let mut actions = ACTIONS.lock();
    for signal in 1..SIGNAL_COUNT {
        // SAFETY: the kernel writes one action.
        unsafe { sys::call(sys::number::RT_SIGACTION, [signal as u64, 0, &raw mut actions[signal] as u64, 8, 0, 0]) };
        if SYNCHRONOUS & bit(signal) != 0 || actions[signal].handler > SIG_IGN {
            install(signal, &actions[signal]);
        }
    }
}

/// Makes the kernel call us for a signal.
fn install(signal: usize, action: &Action) -> i64 {
    let ours = Action {
        handler: trackway_signal as *const () as u64,
        // Not deferred: while we handle a fault, we may read memory that is not there.
        flags: SA_SIGINFO
            | SA_ONSTACK
            | SA_NODEFER
            | SA_RESTORER
            | action.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT),
        restorer: trackway_restorer as *const () as u64,
        mask: !SYNCHRONOUS,
    };
    set_kernel_action(signal, &ours)
}

fn set_kernel_action(signal: usize, action: &Action) -> i64 {
    // SAFETY: the kernel reads one action.
    unsafe { sys::call(sys::number::RT_SIGACTION, [signal as u64, core::ptr::from_ref(action) as u64, 0, 8, 0, 0]) }
}

/// What the application has asked for, for a child process, in which nobody may be left to release a lock.
/// `clear`: all that it would handle is to have its default action.
pub fn actions(clear: bool) -> Box<[Action; SIGNAL_COUNT]> {
    let mut actions = Box::new(*ACTIONS.lock());
    for action in actions.iter_mut().filter(|action| clear && action.handler > SIG_IGN) {
        *action = Action::default();
    }
    actions
}

/// Before an exec, signals that the application ignores have to be ignored by the kernel as well, because that is what the new
/// image inherits; when the exec has failed, they come to us again.
pub fn ignore_really(on: bool) {
    let actions = ACTIONS.lock();
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
}

/// Gives the kernel the application's own handlers, in a child process that runs natively.
pub fn restore_actions(actions: &[Action; SIGNAL_COUNT]) {
    for (signal, action) in actions.iter().enumerate().skip(1) {
        set_kernel_action(signal, action);
    }
}

/// Gives the kernel the application's own handlers, when all threads leave together.
pub fn restore_all() {
    restore_actions(&ACTIONS.lock());
}

/// The application's rt_sigaction.
pub fn sigaction(signal: u64, new: u64, old: u64, set_size: u64) -> i64 {
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
    let mut actions = ACTIONS.lock();
    let before = actions[index];
    if let Some(mut action) = action {
        action.mask &= !UNBLOCKABLE;
        // The kernel forgets what it does not know.
        action.flags &= KNOWN_FLAGS;
        let ours = SYNCHRONOUS & bit(index) != 0;
        let result = match action.handler {
            SIG_DFL | SIG_IGN if !ours => set_kernel_action(index, &action),
            _ => install(index, &action),
        };
        if result < 0 {
            return result;
        }
        actions[index] = action;
    }
    drop(actions);
    if old != 0 && !memory::write(old, &before) { sys::EFAULT } else { 0 }
}

/// The application's rt_sigprocmask.
pub fn sigprocmask(tcb: &mut Tcb, how: u64, new: u64, old: u64, set_size: u64) -> i64 {
    if set_size != 8 {
        return sys::EINVAL;
    }
    let before = tcb.mask;
    if new != 0 {
        let Some(set) = memory::read::<u64>(new) else { return sys::EFAULT };
        let mask = match how {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return sys::EINVAL,
        };
        set_mask(tcb, mask);
    }
    if old != 0 && !memory::write(old, &before) { sys::EFAULT } else { 0 }
}

/// Changes the application's mask; the kernel's follows on the way into the cache.
pub fn set_mask(tcb: &mut Tcb, mask: u64) {
    tcb.mask = mask & !UNBLOCKABLE;
    tcb.real_mask = tcb.mask & !SYNCHRONOUS;
    tcb.deferred.store(1, Ordering::Relaxed);
}

/// Blocks everything that can be blocked; returns to the application's mask on the way into the cache.
pub fn block_all(tcb: &mut Tcb) {
    let mask = !SYNCHRONOUS;
    tcb.deferred.store(1, Ordering::Relaxed);
    // SAFETY: the kernel reads the mask.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [2, &raw const mask as u64, 0, 8, 0, 0]) };
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

#[unsafe(naked)]
unsafe extern "C" fn trackway_restorer() {
    naked_asm!("mov eax, 15", "syscall", "ud2")
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

unsafe extern "C" fn enter(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: the kernel made both.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let Some(state) = gs::state_of(&context.stack, core::ptr::from_ref(context) as u64) else {
        return on_stateless_signal(signal as usize, info, context);
    };
    // SAFETY: the thread's state, and the interrupted code does not use it until we return, or is code of ours that expects it to
    // change (see the module's comment).
    unsafe {
        let tcb = &mut *state;
        let before = gs::enter_handler(tcb);
        on_signal(tcb, signal as usize, info, context);
        gs::leave_handler(tcb, before);
    }
}

fn on_signal(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context) {
    let pc = context.registers[CONTEXT_RIP];
    if signal == SIGTRAP && is_leave_request(info) {
        return on_leave_request(tcb, context, pc);
    }
    if signal == SIGSEGV || signal == SIGBUS {
        if signal == SIGSEGV
            && is_fault(info)
            && context.more[CONTEXT_ERROR] & ERROR_WRITE != 0
            && on_write(tcb, info, context)
        {
            return;
        }
        if pc == memory::copy_instruction() {
            context.registers[CONTEXT_RIP] = memory::copy_recovery();
            return;
        }
        if !tcb.native && !is_engine(pc) && ring::is_guard(tcb, info[2]) && is_fault(info) {
            return on_ring_end(tcb, context);
        }
    }
    if signal == SIGBUS && is_fault(info) && !tcb.native && on_misaligned_store(tcb, info, context) {
        return;
    }
    if signal == SIGTRAP && core::mem::take(&mut tcb.misaligned) {
        context.registers[CONTEXT_FLAGS] |= FLAG_ALIGNMENT;
        if !tcb.stepping {
            context.registers[CONTEXT_FLAGS] &= !FLAG_TRAP;
            return;
        }
    }
    if signal == SIGTRAP && tcb.stepping {
        return on_step(tcb, context, pc);
    }
    if signal == SIGSYS && is_fault(info) && (pc == syscall::call_end() || pc == clone::call_end()) {
        // The call has not happened; whoever wanted to make it puts things in order first.
        tcb.held = Some((signal, *info));
        context.registers[CONTEXT_RAX] = syscall::TRAPPED as u64;
        return;
    }
    if !is_fault(info) && is_ignored(signal) {
        return;
    }
    if dispatch::is_entering(pc) {
        return deliver(tcb, signal, info, context, true);
    }
    match syscall::window(pc) {
        syscall::Window::Before => {
            exec::abandon(tcb);
            interrupt_call(tcb, signal);
            return deliver(tcb, signal, info, context, true);
        }
        // The call may have met a page that we have write-protected, and is to be made again.
        syscall::Window::After if context.registers[CONTEXT_RAX] as i64 == sys::EFAULT => {
            return put_off(tcb, signal, info, context);
        }
        syscall::Window::After => {
            exec::abandon(tcb);
            syscall::complete(tcb, context.registers[CONTEXT_RAX]);
            return deliver(tcb, signal, info, context, true);
        }
        syscall::Window::Outside => {}
    }
    if tcb.native {
        return on_native_signal(tcb, signal, info, context);
    }
    if is_engine(pc) {
        if SYNCHRONOUS & bit(signal) != 0 && is_fault(info) && tcb.accessing {
            // What the engine does for the application, the application has done.
            tcb.accessing = false;
            tcb.registers.rflags |= FLAG_RESUME;
            emulate::flush(tcb);
            return deliver(tcb, signal, info, context, true);
        }
        if SYNCHRONOUS & bit(signal) != 0 && is_fault(info) {
            panic!("signal {signal} at {pc:#x} in the engine, address {:#x}", info[2]);
        }
        put_off(tcb, signal, info, context);
        return;
    }
    let place = ENGINE.lock().place(pc);
    match place {
        Some(Place { state: State::Dirty, .. }) => {
            put_off(tcb, signal, info, context);
            step(tcb, context);
        }
        place => {
            settle(tcb, context, place);
            deliver(tcb, signal, info, context, false);
        }
    }
}

/// Whether the recorder wants the thread to come out of translated code.
fn is_leave_request(info: &Info) -> bool {
    const SI_QUEUE: i32 = -1;
    info[1] as u32 as i32 == SI_QUEUE && info[3] == wire::LEAVE_REQUEST
}

/// Brings a thread that may go round in translated code for ever to the dispatcher. Anywhere else it gets there by itself.
fn on_leave_request(tcb: &mut Tcb, context: &mut Context, pc: u64) {
    if tcb.native || is_engine(pc) || tcb.interrupted != 0 {
        return;
    }
    let place = ENGINE.lock().place(pc);
    match place {
        None => {}
        Some(_) if tcb.stepping => tcb.stale = true,
        Some(Place { state: State::Dirty, .. }) => {
            tcb.stale = true;
            tcb.deferred.store(1, Ordering::Relaxed);
            context.mask |= !SYNCHRONOUS;
            step(tcb, context);
        }
        Some(place) => {
            settle(tcb, context, Some(place));
            ring::append_signal(tcb, 0, tcb.registers.rip);
            go_on(tcb, context, false);
        }
    }
}

/// A handler is to run before a system call that had begun natively and was interrupted for us. It might as well have been interrupted
/// by the signal: then it is not made again if the kernel would not do so.
fn interrupt_call(tcb: &mut Tcb, signal: usize) {
    const ERESTARTSYS: u32 = 512;
    const ERESTARTNOINTR: u32 = 513;
    let action = ACTIONS.lock()[signal];
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
fn on_native_signal(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context) {
    tcb.registers = context.get();
    tcb.mask = context.mask;
    deliver(tcb, signal, info, context, false);
}

/// A thread that runs natively, and for which the kernel uses the application's stacks by itself: one that has left and returned from
/// such a frame, or was created after that. The handler is simply called. gs is the application's.
fn on_stateless_signal(signal: usize, info: &Info, context: &mut Context) {
    let action = take_action(signal);
    match action.handler {
        SIG_IGN if !is_fault(info) => return,
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

/// Whether the kernel raised the signal for a fault, as opposed to another process sending it.
fn is_fault(info: &Info) -> bool {
    let code = (info[1] & 0xffff_ffff) as u32 as i32;
    code > 0
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
fn on_write(tcb: &mut Tcb, info: &Info, context: &mut Context) -> bool {
    let mut engine = ENGINE.lock();
    if !engine.written(info[2]) {
        // Another thread may have released the page just now: once more will show.
        let write = (context.registers[CONTEXT_RIP], info[2]);
        let again = engine.pages.any_guarded && tcb.faulted_write != write;
        tcb.faulted_write = if again { write } else { (0, 0) };
        return again;
    }
    let place = engine.place(context.registers[CONTEXT_RIP]);
    drop(engine);
    if place.is_some_and(|place| place.state != State::Dirty && !ENGINE.lock().is_current(&place)) {
        // The write first: the new translation would protect the page again.
        tcb.stale = true;
        tcb.deferred.store(1, Ordering::Relaxed);
        context.mask |= !SYNCHRONOUS;
        step(tcb, context);
    }
    true
}

/// The application has asked for alignment checks, and one of our own stores at the cursor is not aligned: makes it without.
fn on_misaligned_store(tcb: &mut Tcb, info: &Info, context: &mut Context) -> bool {
    const BUS_ADRALN: u64 = 1;
    let flags = context.registers[CONTEXT_FLAGS];
    if info[1] & 0xffff_ffff != BUS_ADRALN || flags & FLAG_ALIGNMENT == 0 {
        return false;
    }
    let pc = context.registers[CONTEXT_RIP];
    let Some(place) = ENGINE.lock().place(pc) else { return false };
    if matches!(place.state, State::Own | State::ScratchOwn | State::Spilled(_, true)) {
        return false;
    }
    let mut code = [0; isa::INSTRUCTION_BYTES_MAX];
    let length = memory::read_bytes(pc, &mut code);
    // Where r15 is the cursor, only we use it.
    let is_ours = isa::decoder(pc, &code[..length]).decode().memory_base() == iced_x86::Register::R15;
    if is_ours {
        tcb.misaligned = true;
        context.registers[CONTEXT_FLAGS] = flags & !FLAG_ALIGNMENT | FLAG_TRAP;
    }
    is_ours
}

/// The cursor has met the guard page: opens the next segment and lets the instruction write there.
fn on_ring_end(tcb: &mut Tcb, context: &mut Context) {
    tcb.cursor = context.registers[CONTEXT_R15];
    profile::study(tcb);
    ring::advance_with_data(tcb);
    if tcb.stand.skipping {
        skip::go_on(tcb);
        tcb.stale |= skip::is_near_end(tcb);
    }
    context.registers[CONTEXT_R15] = tcb.cursor;
    if (tcb.leaving || tcb.stale) && !tcb.stepping {
        tcb.deferred.store(1, Ordering::Relaxed);
        context.mask |= !SYNCHRONOUS;
        step(tcb, context);
    }
}

/// Keeps the signal for the next clean point: the kernel holds it, blocked; or we do, if it must not be blocked.
fn put_off(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context) {
    if SYNCHRONOUS & bit(signal) != 0 {
        tcb.held = Some((signal, *info));
    } else {
        send_again(signal, info);
    }
    tcb.deferred.store(1, Ordering::Relaxed);
    context.mask |= !SYNCHRONOUS;
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

fn step(tcb: &mut Tcb, context: &mut Context) {
    tcb.stepping = true;
    context.registers[CONTEXT_FLAGS] |= FLAG_TRAP;
}

/// Makes the way into the cache trap, so that a held signal is delivered there.
pub fn trap_on_entry(tcb: &mut Tcb) {
    tcb.stepping = true;
    tcb.registers.rflags |= FLAG_TRAP;
}

/// One instruction further on the way to a clean point.
fn on_step(tcb: &mut Tcb, context: &mut Context, pc: u64) {
    if dispatch::is_entering(pc)
        && let Some((signal, info)) = tcb.held.take()
    {
        tcb.stepping = false;
        tcb.registers.rflags &= !FLAG_TRAP;
        return deliver(tcb, signal, &info, context, true);
    }
    let in_cache = !is_engine(pc);
    let place = if in_cache { ENGINE.lock().place(pc) } else { None };
    if let Some(Place { state: State::Dirty, .. }) = place {
        return;
    }
    tcb.stepping = false;
    context.registers[CONTEXT_FLAGS] &= !FLAG_TRAP;
    let stale = core::mem::take(&mut tcb.stale);
    if !in_cache {
        // The way back into the cache unblocks (or leaves).
        return;
    }
    tcb.deferred.store(0, Ordering::Relaxed);
    context.mask = tcb.real_mask;
    if let Some((signal, info)) = tcb.held.take() {
        settle(tcb, context, place);
        return deliver(tcb, signal, &info, context, false);
    }
    if stale || tcb.leaving {
        settle(tcb, context, place);
        ring::append_signal(tcb, 0, tcb.registers.rip);
    }
    if tcb.leaving {
        leave::leave(tcb);
        context.set(&tcb.registers);
        context.mask = tcb.mask;
    } else if stale {
        go_on(tcb, context, false);
    }
}

/// Makes the saved state the application's state at a clean place in the cache.
fn settle(tcb: &mut Tcb, context: &Context, place: Option<Place>) {
    let mut registers = context.get();
    registers.rflags &= !FLAG_TRAP;
    let Some(place) = place else {
        // A jump to where no code is.
        tcb.cursor = registers.general[wire::R15];
        registers.general[wire::R15] = tcb.registers.general[wire::R15];
        tcb.registers = registers;
        return;
    };
    registers.rip = place.pc;
    let own_r15 = matches!(place.state, State::Own | State::ScratchOwn | State::Spilled(_, true));
    if !own_r15 {
        tcb.cursor = registers.general[wire::R15];
        registers.general[wire::R15] = tcb.registers.general[wire::R15];
    }
    match place.state {
        State::Scratch | State::ScratchOwn => {
            registers.general[RCX] = tcb.scratch_rcx;
            registers.general[RDX] = tcb.scratch_rdx;
        }
        State::Spilled(spill, _) => unspill(tcb, context, &mut registers, spill),
        _ => {}
    }
    tcb.registers = registers;
    tcb.progress = place.progress;
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
fn deliver(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context, saved_xmm: bool) {
    let action = take_action(signal);
    match action.handler {
        // Another thread has changed the action since the kernel decided to call us.
        SIG_IGN if !is_fault(info) => return forget(tcb, context, saved_xmm),
        SIG_DFL if IGNORED_BY_DEFAULT & bit(signal) != 0 => return forget(tcb, context, saved_xmm),
        SIG_DFL | SIG_IGN => return end(tcb, signal, info, context, saved_xmm),
        _ => {}
    }
    let blocked = tcb.mask & bit(signal) != 0 && SYNCHRONOUS & bit(signal) != 0;
    if blocked && is_fault(info) {
        return end(tcb, signal, info, context, saved_xmm);
    }
    let mut info = *info;
    if signal == SIGSYS && is_fault(&info) {
        // Where the application called, not where we did it for it.
        info[2] = tcb.registers.rip;
    }
    let info = &info;
    let Some(frame) = build_frame(tcb, &action, info, context, saved_xmm) else {
        return end(tcb, SIGSEGV, info, context, saved_xmm);
    };
    if !tcb.native {
        ring::append_signal(tcb, signal as u8, action.handler);
    }
    let base = tcb.call_mask.take().unwrap_or(tcb.mask);
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
    go_on(tcb, context, true);
}

/// Goes on as if there had been no signal.
fn forget(tcb: &mut Tcb, context: &mut Context, saved_xmm: bool) {
    if tcb.progress.fragment != 0 {
        ring::append_signal(tcb, 0, tcb.registers.rip);
    }
    go_on(tcb, context, saved_xmm);
}

/// Whether the application ignores a signal that comes to us because faults raise it, too.
fn is_ignored(signal: usize) -> bool {
    SYNCHRONOUS & bit(signal) != 0 && ACTIONS.lock()[signal].handler == SIG_IGN
}

/// The action for a signal; SA_RESETHAND is honoured.
fn take_action(signal: usize) -> Action {
    let mut actions = ACTIONS.lock();
    let action = actions[signal];
    if action.flags & SA_RESETHAND != 0 && action.handler > SIG_IGN {
        actions[signal].handler = SIG_DFL;
        if SYNCHRONOUS & bit(signal) == 0 {
            set_kernel_action(signal, &Action::default());
        }
    }
    action
}

/// Makes the return from our handler continue with the saved state.
fn go_on(tcb: &mut Tcb, context: &mut Context, saved_xmm: bool) {
    context.mask = tcb.real_mask;
    tcb.deferred.store(0, Ordering::Relaxed);
    if tcb.native {
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
fn end(tcb: &mut Tcb, signal: usize, info: &Info, context: &mut Context, saved_xmm: bool) {
    if !tcb.native {
        ring::append_signal(tcb, signal as u8, 0);
        ring::close(tcb, word::END);
        tcb.native = true;
    }
    if saved_xmm {
        patch_vectors(tcb, context);
    }
    set_kernel_action(signal, &Action::default());
    send_again(signal, info);
    context.set(&tcb.registers);
    context.mask = tcb.mask & !bit(signal);
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
    frame.context.mask = tcb.mask;
    frame.context.fpstate = if length == 0 { 0 } else { vectors };
    // SAFETY: as above.
    let copied = unsafe { memory::copy(frame_address, &raw const frame as u64, size_of::<Frame>() as u64) };
    (copied == size_of::<Frame>() as u64).then_some(frame_address)
}

/// The application's rt_sigreturn: goes back to what the frame says. False if there is no frame.
pub fn sigreturn(tcb: &mut Tcb) -> bool {
    let Some(context) = memory::read::<Context>(tcb.registers.general[RSP]) else { return false };
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
