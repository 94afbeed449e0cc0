//! Vector and floating-point registers in signal frames, in the format of `xsave` or, on old
//! processors, of `fxsave`.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;

use super::frame::SignalContext;
use crate::memory;
use crate::tcb::{Tcb, Vectors};

const LEGACY_BYTES: u64 = 512;
const SOFTWARE_MAGIC: u64 = 464;
const MAGIC: u32 = 0x4650_5853;
const HEADER: u64 = 512;
const MXCSR: u64 = 24;
pub(super) const XMM: u64 = 160;
const FEATURE_SSE: u64 = 2;

/// The processor may read an area up to its largest possible size, whatever size the frame gives.
/// With tile registers that is 11,008 bytes.
const AREA_BYTES: usize = 16 << 10;

/// Length of the extended state at `address`, in a signal frame or a copy of one.
pub(super) fn vectors_length(address: u64) -> u64 {
    match memory::read::<[u32; 2]>(address.wrapping_add(SOFTWARE_MAGIC)) {
        Some([MAGIC, length]) => u64::from(length),
        _ => LEGACY_BYTES,
    }
}

/// A pointer to a field of a kernel's signal frame, or of a copy of its extended state.
pub(super) fn frame_field<T>(address: u64) -> *mut T {
    address as *mut T
}

/// Copies the low vector registers from the kernel's frame to the saved state.
pub(super) fn save_vectors(tcb: &mut Tcb, context: &SignalContext) {
    let fpstate = context.fpstate;
    if fpstate == 0 {
        return;
    }
    let extended = vectors_length(fpstate) > LEGACY_BYTES;
    // SAFETY: the kernel's frame on our stack.
    unsafe {
        tcb.mxcsr = *frame_field::<u32>(fpstate + MXCSR);
        let present = !extended || *frame_field::<u64>(fpstate + HEADER) & FEATURE_SSE != 0;
        tcb.xmm = Vectors(if present { *frame_field(fpstate + XMM) } else { [[0; 2]; 16] });
    }
}

/// Copies the low vector registers from the saved state to the kernel's frame.
pub(super) fn patch_vectors(tcb: &Tcb, context: &mut SignalContext) {
    let fpstate = context.fpstate;
    if fpstate == 0 {
        return;
    }
    let extended = vectors_length(fpstate) > LEGACY_BYTES;
    // SAFETY: the kernel's frame on our stack.
    unsafe {
        *frame_field::<u32>(fpstate + MXCSR) = tcb.mxcsr;
        *frame_field(fpstate + XMM) = tcb.xmm.0;
        if extended {
            *frame_field::<u64>(fpstate + HEADER) |= FEATURE_SSE;
        }
    }
}

/// Makes the return from the engine's handler reset all vector and floating-point registers, as the
/// kernel does for a handler.
pub(super) fn reset_vectors(context: &mut SignalContext) {
    let fpstate = context.fpstate;
    if fpstate != 0 && vectors_length(fpstate) > LEGACY_BYTES {
        // SAFETY: the kernel's frame on our stack.
        unsafe {
            *frame_field::<u64>(fpstate + HEADER) = 0;
            *frame_field::<u32>(fpstate + MXCSR) = 0x1f80;
        }
    }
}

/// Whether the processor can load the extended state at `address`, which the application may have
/// changed.
///
/// # Safety
/// The engine's memory must have the legacy area there and, of an extended state, the header.
unsafe fn is_loadable(address: u64, is_extended: bool) -> bool {
    // SAFETY: the caller's promise.
    let mxcsr = unsafe { *frame_field::<u32>(address + MXCSR) };
    // The upper half is reserved.
    if mxcsr >= 1 << 16 || !is_extended {
        return mxcsr < 1 << 16;
    }
    let (low, high): (u32, u32);
    // SAFETY: where there is an extended state, the instruction exists; the caller vouches for the
    // header.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem));
        let [features, rest @ ..] = *frame_field::<[u64; 8]>(address + HEADER);
        let supported = u64::from(high) << 32 | u64::from(low);
        features & !supported == 0 && rest == [0; 7]
    }
}

/// Loads vector and floating-point registers from an application's frame. False if they cannot be
/// loaded.
pub(super) fn restore_vectors(tcb: &mut Tcb, fpstate: u64) -> bool {
    if fpstate == 0 {
        return true;
    }
    let length = vectors_length(fpstate);
    let Ok(layout) = Layout::from_size_align((length as usize).max(AREA_BYTES), 64) else { return false };
    // SAFETY: the size is not zero.
    let buffer = unsafe { alloc_zeroed(layout) };
    // SAFETY: reads the application's frame into our own buffer.
    let whole = !buffer.is_null() && unsafe { memory::copy(buffer as u64, fpstate, length) } == length;
    let is_extended = length > LEGACY_BYTES;
    // SAFETY: the buffer has the bytes of an area, copied or zero.
    let whole = whole && unsafe { is_loadable(buffer as u64, is_extended) };
    if whole {
        // SAFETY: the buffer is aligned, as large as any area, and holds a state that the processor
        // accepts. Only registers that translated code uses, and those of the engine that may
        // change at any call, are loaded.
        unsafe {
            if is_extended {
                asm!("xrstor64 [{}]", in(reg) buffer, in("eax") -1, in("edx") -1, clobber_abi("C"), options(nostack));
            } else {
                asm!("fxrstor64 [{}]", in(reg) buffer, clobber_abi("C"), options(nostack));
            }
            let present = !is_extended || *frame_field::<u64>(buffer as u64 + HEADER) & FEATURE_SSE != 0;
            tcb.mxcsr = *frame_field::<u32>(buffer as u64 + MXCSR);
            tcb.xmm = Vectors(if present { *frame_field(buffer as u64 + XMM) } else { [[0; 2]; 16] });
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
    use entity::ThreadId;

    use super::*;
    use crate::tcb::OwnedTcb;

    /// A state in the format of `fxsave` with this mxcsr.
    fn legacy_state(mxcsr: u32) -> [u32; LEGACY_BYTES as usize / 4] {
        const CONTROL_WORD: u32 = 0x37f;
        let mut state = [0; LEGACY_BYTES as usize / 4];
        (state[0], state[MXCSR as usize / 4]) = (CONTROL_WORD, mxcsr);
        state
    }

    #[test]
    fn a_state_that_the_processor_refuses_is_not_loaded() {
        let shared = memory::tests::shared();
        // SAFETY: zeroed memory of the right size is a control page.
        let control = unsafe { &*(shared as *const wire::Control) };
        let mut tcb = OwnedTcb::new(control, 0, ThreadId::FIRST, 0).unwrap();
        let [good, bad] = [0x1f80, 0x1_1f80].map(legacy_state);
        assert!(restore_vectors(&mut tcb, good.as_ptr() as u64));
        assert_eq!(tcb.mxcsr, 0x1f80);
        assert!(!restore_vectors(&mut tcb, bad.as_ptr() as u64), "the instruction would fault");
    }

    #[test]
    fn there_is_room_for_all_that_this_processor_can_save() {
        // The size of everything that the processor knows, whether it is switched on or not.
        let bytes = core::arch::x86_64::__cpuid_count(0xd, 0).ecx as usize;
        assert!(bytes <= AREA_BYTES, "{bytes}");
    }
}
