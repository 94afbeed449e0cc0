//! Vector and floating-point registers in signal frames, in the format of `xsave` or, on old
//! processors, of `fxsave`.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::arch::asm;

use super::frame::Context;
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
    match memory::read::<[u32; 2]>(address + SOFTWARE_MAGIC) {
        Some([MAGIC, length]) => u64::from(length),
        _ => LEGACY_BYTES,
    }
}

/// A pointer to a field of a kernel's signal frame, or of a copy of its extended state.
pub(super) fn frame_field<T>(address: u64) -> *mut T {
    address as *mut T
}

/// Copies the low vector registers from the kernel's frame to the saved state.
pub(super) fn save_vectors(tcb: &mut Tcb, context: &Context) {
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
pub(super) fn patch_vectors(tcb: &Tcb, context: &mut Context) {
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
pub(super) fn reset_vectors(context: &mut Context) {
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
/// There must be a whole header, in the engine's memory.
unsafe fn is_loadable(address: u64) -> bool {
    let (low, high): (u32, u32);
    // SAFETY: where there is an extended state, the instruction exists; the caller vouches for the
    // header.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem));
        let [features, rest @ ..] = *frame_field::<[u64; 8]>(address + HEADER);
        let supported = u64::from(high) << 32 | u64::from(low);
        let mxcsr = *frame_field::<u32>(address + MXCSR);
        features & !supported == 0 && rest == [0; 7] && mxcsr < 1 << 16
    }
}

/// Loads vector and floating-point registers from an application's frame.
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
    // SAFETY: the buffer has the bytes of an area, copied or zero.
    let whole = whole && (length <= LEGACY_BYTES || unsafe { is_loadable(buffer as u64) });
    if whole {
        // SAFETY: the buffer holds what the kernel (or this engine) saved in this format; only
        // registers that translated code uses, and those of the engine that may change at any call,
        // are loaded.
        unsafe {
            if length > LEGACY_BYTES {
                asm!("xrstor64 [{}]", in(reg) buffer, in("eax") -1, in("edx") -1, clobber_abi("C"), options(nostack));
            } else {
                asm!("fxrstor64 [{}]", in(reg) buffer, clobber_abi("C"), options(nostack));
            }
            let present = length <= LEGACY_BYTES || *frame_field::<u64>(buffer as u64 + HEADER) & FEATURE_SSE != 0;
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
    use super::*;

    #[test]
    fn there_is_room_for_all_that_this_processor_can_save() {
        // The size of everything that the processor knows, whether it is switched on or not.
        let bytes = core::arch::x86_64::__cpuid_count(0xd, 0).ecx as usize;
        assert!(bytes <= AREA_BYTES, "{bytes}");
    }
}
