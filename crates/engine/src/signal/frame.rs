//! The kernel's signal frame, and the frames that the engine builds for the application's handlers.
//!
//! The system calls that go with frames, rt_sigreturn and sigaltstack, are here, too.

use entity::AppPc;
use wire::{RSP, Registers, word};

use super::action::{SA_ONSTACK, SignalAction};
use super::mask::{before_blocking, set_mask};
use super::vectors::{patch_vectors, restore_vectors, vectors_length};
use crate::memory::{self, PlainData};
use crate::tcb::{AlternateStack, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, Tcb};
use crate::{ring, sys};

/// The kernel's `siginfo_t`.
pub type SignalInfo = [u64; 16];

/// The kernel's `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SignalContext {
    pub(super) flags: u64,
    pub(super) link: u64,
    pub(super) stack: AlternateStack,
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags.
    pub(super) registers: [u64; 18],
    /// Segments, error code, trap number, old mask, cr2.
    pub(super) more: [u64; 5],
    pub(super) fpstate: u64,
    pub(super) reserved: [u64; 8],
    pub(super) mask: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for SignalContext {}

/// Where each general register, in the order of machine code, is in [`SignalContext::registers`].
const CONTEXT_ORDER: [usize; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];

pub(super) const CONTEXT_RIP: usize = 16;
pub(super) const CONTEXT_FLAGS: usize = 17;
pub(super) const CONTEXT_R15: usize = 7;
pub(super) const CONTEXT_RSP: usize = 15;
pub(super) const CONTEXT_RAX: usize = 13;

/// In [`SignalContext::more`]: the error code of a page fault.
pub(super) const CONTEXT_ERROR: usize = 1;

pub(super) const ERROR_WRITE: u64 = 2;

impl SignalContext {
    pub(super) fn registers(&self) -> Registers {
        let mut registers =
            Registers { rip: self.registers[CONTEXT_RIP], rflags: self.registers[CONTEXT_FLAGS], ..Default::default() };
        for (register, index) in registers.general.iter_mut().zip(CONTEXT_ORDER) {
            *register = self.registers[index];
        }
        registers
    }

    pub(super) fn set_registers(&mut self, registers: &Registers) {
        for (register, index) in registers.general.iter().zip(CONTEXT_ORDER) {
            self.registers[index] = *register;
        }
        self.registers[CONTEXT_RIP] = registers.rip;
        self.registers[CONTEXT_FLAGS] = registers.rflags;
    }
}

/// The kernel's `struct rt_sigframe`.
#[repr(C)]
pub(super) struct SignalFrame {
    pub(super) return_address: u64,
    pub(super) context: SignalContext,
    pub(super) info: SignalInfo,
}

pub(super) const FLAG_TRAP: u64 = 1 << 8;
pub(super) const FLAG_DIRECTION: u64 = 1 << 10;
pub(super) const FLAG_RESUME: u64 = 1 << 16;
pub(super) const FLAG_ALIGNMENT: u64 = 1 << 18;
const RED_ZONE: u64 = 128;

/// Puts a frame for the application's handler on the application's stack. `None` if the stack is
/// not writable.
pub(super) fn build_frame(
    tcb: &mut Tcb,
    action: &SignalAction,
    info: &SignalInfo,
    context: &mut SignalContext,
    saved_xmm: bool,
) -> Option<u64> {
    let rsp = tcb.registers.general[RSP];
    let stack = tcb.alternate_stack;
    let switch = action.flags & SA_ONSTACK != 0 && stack.flags & SS_DISABLE == 0 && !is_on_alternate_stack(&stack, rsp);
    let top = if switch { stack.address + stack.length } else { rsp.wrapping_sub(RED_ZONE) };
    if saved_xmm {
        patch_vectors(tcb, context);
    }
    let length = if context.fpstate == 0 { 0 } else { vectors_length(context.fpstate) };
    let vectors = top.wrapping_sub(length) & !63;
    let frame_address = (vectors.wrapping_sub(size_of::<SignalFrame>() as u64) & !15).wrapping_sub(8);
    // SAFETY: copies from our stack to the application's, as the kernel would; a fault is caught.
    if unsafe { memory::copy(vectors, context.fpstate, length) } != length {
        return None;
    }
    let mut frame = SignalFrame { return_address: action.restorer, context: *context, info: *info };
    frame.context.set_registers(&tcb.registers);
    frame.context.stack = stack;
    frame.context.mask = tcb.signals().mask.get();
    frame.context.fpstate = if length == 0 { 0 } else { vectors };
    // SAFETY: as above.
    let copied = unsafe { memory::copy(frame_address, &raw const frame as u64, size_of::<SignalFrame>() as u64) };
    (copied == size_of::<SignalFrame>() as u64).then_some(frame_address)
}

/// The application's rt_sigreturn: goes back to what the frame says. False if there is no frame.
pub fn sigreturn(tcb: &mut Tcb) -> bool {
    let Some(context) = memory::read::<SignalContext>(tcb.registers.general[RSP]) else { return false };
    before_blocking(tcb, context.mask);
    if !restore_vectors(tcb, context.fpstate) {
        return false;
    }
    let rflags = tcb.registers.rflags;
    tcb.registers = context.registers();
    // Privileged flags stay as they are.
    const SETTABLE: u64 = 0x0005_0dd5;
    tcb.registers.rflags = tcb.registers.rflags & SETTABLE | rflags & !SETTABLE;
    tcb.alternate_stack = context.stack;
    tcb.alternate_stack.flags &= !SS_ONSTACK;
    set_mask(tcb, context.mask);
    ring::append_timed(tcb, word::RESUME, AppPc::new(context.registers[CONTEXT_RIP]));
    true
}

/// The application's sigaltstack.
pub fn sigaltstack(tcb: &mut Tcb, new: u64, old: u64) -> i64 {
    let mut before = tcb.alternate_stack;
    let on_it = is_on_alternate_stack(&before, tcb.registers.general[RSP]);
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
    // SAFETY: the application's system call writes there.
    let is_written = old == 0 || unsafe { memory::write(old, &before) };
    if is_written { 0 } else { sys::EFAULT }
}

/// Whether `rsp` is on the alternate stack.
pub fn is_on_alternate_stack(stack: &AlternateStack, rsp: u64) -> bool {
    stack.flags & (SS_DISABLE | SS_AUTODISARM) == 0
        && rsp.wrapping_sub(stack.address) <= stack.length
        && stack.length != 0
}
