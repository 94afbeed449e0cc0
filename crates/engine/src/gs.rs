//! The application's gs. In translated code and in the engine, the processor's gs base is the
//! address of the thread's [`Tcb`]; the application's base is [`Tcb::gs_base`]. Translated code
//! adds it to operands relative to gs (`translate/segment.rs`); this module reads and writes it.
//! The selector is the application's: the engine does not use it, and with FSGSBASE the kernel
//! keeps selector and base apart.
//!
//! A few instructions here set the processor's base to the application's for a moment, and native
//! threads have the application's base. So the signal handler does not rely on gs: it finds the
//! thread's state by the signal stack ([`state_of`]).

use core::arch::asm;

use crate::sys::{self, number};
use crate::tcb::{self, AlternateStack, Tcb};
use crate::{clone, engine_memory, memory, seccomp};

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_GS: u64 = 0x1004;

/// The processor's base.
fn hardware_base() -> u64 {
    let mut base = 0u64;
    if clone::has_fsgsbase() {
        // SAFETY: the kernel allows the instruction.
        unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    } else {
        // SAFETY: the kernel writes the base.
        unsafe { sys::call(number::ARCH_PRCTL, [ARCH_GET_GS, &raw mut base as u64, 0, 0, 0, 0]) };
    }
    base
}

/// Returns the state of an interrupted thread, given the kernel's signal frame and the thread's
/// alternate stack. `None` for a native thread that has no state or no longer uses the engine's
/// signal stack.
pub fn state_of(stack: &AlternateStack, frame: u64) -> Option<*mut Tcb> {
    if frame.wrapping_sub(stack.address) >= stack.length {
        return None;
    }
    // One mapping holds the stack and, behind it, the state.
    let state = stack.address.wrapping_add(stack.length);
    (hardware_base() == state || engine_memory::contains(stack.address)).then_some(state as *mut Tcb)
}

/// Points gs at the state of an interrupted thread. Returns what it was.
///
/// # Safety
/// The state is the calling thread's, which handles a signal.
pub unsafe fn enter_handler(tcb: *mut Tcb, native: bool) -> u64 {
    let before = hardware_base();
    if before != tcb as u64 {
        // SAFETY: the caller's promise; nothing else uses the state of a thread that runs natively.
        unsafe {
            if native {
                (*tcb).gs_base = before;
            }
            tcb::set_gs(tcb as u64, clone::has_fsgsbase());
        }
    }
    before
}

/// Restores gs before the interrupted thread continues: the base that it had, or the application's
/// if it continues natively.
///
/// # Safety
/// As [`enter_handler`], whose result `before` is. Nothing uses gs until the handler returns.
pub unsafe fn exit_handler(tcb: *const Tcb, native: bool, before: u64) {
    // SAFETY: nothing else uses the state of a thread that runs natively.
    let wanted = if native { unsafe { (*tcb).gs_base } } else { before };
    if wanted != tcb as u64 {
        // SAFETY: the caller's promise.
        unsafe { tcb::set_gs(wanted, clone::has_fsgsbase()) };
    }
}

/// The application's `wrgsbase`. An invalid value raises the application's fault.
pub fn write_base(tcb: &mut Tcb, value: u64) {
    let state = tcb.this as u64;
    // SAFETY: gs points at the state again before anything uses it; a signal in between is
    // deferred, see `exit_handler`.
    unsafe {
        asm!("wrgsbase {}", "wrgsbase {}", in(reg) value, in(reg) state, options(nostack, preserves_flags));
    }
    tcb.gs_base = value;
}

/// The application's `rdgsbase`. Where the kernel does not allow it, this raises the application's
/// fault.
pub fn read_base(tcb: &Tcb) -> u64 {
    if !clone::has_fsgsbase() {
        // SAFETY: reads the base.
        unsafe { asm!("rdgsbase {}", out(reg) _, options(nostack, preserves_flags)) };
    }
    tcb.gs_base
}

/// Loads the selector. The processor sets the base, or faults.
pub fn load_selector(tcb: &mut Tcb, selector: u16) {
    let state = tcb.this as u64;
    let base: u64;
    if clone::has_fsgsbase() {
        // SAFETY: as in `write_base`.
        unsafe {
            asm!("mov gs, {selector:e}", "rdgsbase {base}", "wrgsbase {state}", selector = in(reg) u32::from(selector),
                base = out(reg) base, state = in(reg) state, options(nostack, preserves_flags));
        }
    } else {
        // SAFETY: as in `write_base`; the calls do not use gs.
        unsafe {
            asm!("mov gs, {:e}", in(reg) u32::from(selector), options(nostack, preserves_flags));
            base = hardware_base();
            tcb::set_gs(state, false);
        }
    }
    tcb.gs_base = base;
}

/// The application's arch_prctl, if it is about gs.
pub fn arch_prctl(tcb: &mut Tcb, code: u64, argument: u64) -> Option<i64> {
    if code != ARCH_SET_GS && code != ARCH_GET_GS {
        return None;
    }
    let mut ignored = 0u64;
    // A seccomp filter may object.
    let harmless = if code == ARCH_SET_GS { tcb.this as u64 } else { &raw mut ignored as u64 };
    // SAFETY: sets the base to what it is, or writes it to `ignored`.
    let objection = unsafe { seccomp::objection(tcb, number::ARCH_PRCTL, [code, harmless, 0, 0, 0, 0]) };
    if objection.is_some() {
        return objection;
    }
    if code == ARCH_GET_GS {
        // SAFETY: the application's system call writes there.
        return Some(if unsafe { memory::write(argument, &tcb.gs_base) } { 0 } else { sys::EFAULT });
    }
    if !is_settable(argument) {
        return Some(sys::EPERM);
    }
    tcb.gs_base = argument;
    Some(0)
}

/// Whether the kernel accepts an address as the base of a segment. The limit depends on the levels
/// of its page tables. It is the same for fs, which the engine does not use.
fn is_settable(address: u64) -> bool {
    const FOUR_LEVELS: u64 = (1 << 47) - 4096;
    if address < FOUR_LEVELS {
        return true;
    }
    let before = sys::fs_base();
    // SAFETY: fs is the application's again before it continues.
    unsafe {
        let result = sys::call(number::ARCH_PRCTL, [ARCH_SET_FS, address, 0, 0, 0, 0]);
        if result == 0 && sys::call(number::ARCH_PRCTL, [ARCH_SET_FS, before, 0, 0, 0, 0]) != 0 {
            // An address that only the instruction takes.
            asm!("wrfsbase {}", in(reg) before, options(nostack, preserves_flags));
        }
        result == 0
    }
}
