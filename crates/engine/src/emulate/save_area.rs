//! `xsave`, `xrstor` and their variants, which save and restore the extended state in an area of
//! memory.

use alloc::alloc::{Layout, alloc, dealloc};
use core::arch::asm;

use iced_x86::{Instruction, Mnemonic};
use wire::{RAX, RDX};

use super::{operand_address, record};
use crate::memory;
use crate::tcb::Tcb;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveArea {
    Save,
    SaveCompact,
    Restore,
    /// Without a header.
    OldSave,
    OldRestore,
}

pub(super) fn save_area(instruction: &Instruction) -> Option<SaveArea> {
    match instruction.mnemonic() {
        Mnemonic::Xsave | Mnemonic::Xsave64 | Mnemonic::Xsaveopt | Mnemonic::Xsaveopt64 => Some(SaveArea::Save),
        Mnemonic::Xsavec | Mnemonic::Xsavec64 => Some(SaveArea::SaveCompact),
        Mnemonic::Xrstor | Mnemonic::Xrstor64 => Some(SaveArea::Restore),
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => Some(SaveArea::OldSave),
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => Some(SaveArea::OldRestore),
        _ => None,
    }
}

/// Length of an area without a header.
const OLD_BYTES: usize = 512;
const SAVE_HEADER_END: usize = 576;

/// Bytes that an area for these components takes.
fn area_bytes(components: u64, compact: bool) -> usize {
    let mut end = SAVE_HEADER_END;
    for component in (2..63).filter(|component| components >> component & 1 != 0) {
        let leaf = core::arch::x86_64::__cpuid_count(0xd, component);
        let (size, offset) = (leaf.eax as usize, leaf.ebx as usize);
        if compact {
            let start = if leaf.ecx & 2 != 0 { end.next_multiple_of(64) } else { end };
            end = start + size;
        } else {
            end = end.max(offset + size);
        }
    }
    end
}

/// What the operating system lets programs use of the extended state (XCR0).
pub fn enabled_components() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: an application that uses xsave or xrstor runs where the operating system has enabled
    // them; others ask CPUID first.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Bytes of the area that an instruction reads or writes at `address`.
fn bytes_of_area(tcb: &Tcb, area: SaveArea, address: u64) -> usize {
    /// Where a compact area says what is in it.
    const COMPACT: u64 = 520;
    if matches!(area, SaveArea::OldSave | SaveArea::OldRestore) {
        return OLD_BYTES;
    }
    let [low, high] = [RAX, RDX].map(|at| tcb.registers.general[at] as u32);
    let requested = enabled_components() & (u64::from(high) << 32 | u64::from(low));
    match area {
        SaveArea::SaveCompact => area_bytes(requested, true),
        SaveArea::Restore => match memory::read::<u64>(address.wrapping_add(COMPACT)) {
            Some(components) if components >> 63 != 0 => area_bytes(components, true),
            _ => area_bytes(requested, false),
        },
        _ => area_bytes(requested, false),
    }
}

/// `xsave`, `xrstor` and their variants, through a copy of the area.
pub(super) fn save_or_restore(tcb: &mut Tcb, instruction: &Instruction, area: SaveArea) {
    let address = operand_address(tcb, instruction);
    let restores = matches!(area, SaveArea::Restore | SaveArea::OldRestore);
    let bytes = bytes_of_area(tcb, area, address);
    let Ok(layout) = Layout::from_size_align(bytes, 64) else { return };
    // SAFETY: the size is not zero.
    let buffer = unsafe { alloc(layout) };
    if buffer.is_null() {
        // The thread is about to detach (`memory::is_exhausted`): the access is not recorded.
        // SAFETY: the application's own instruction, on its own area.
        return unsafe { transfer_state(tcb, instruction, address as *mut u8) };
    }
    // SAFETY: the buffer is ours, aligned and large enough; the application's own accesses at
    // `address`. The first copy initialises what `record` reads.
    unsafe {
        let copies = |to: u64, from: u64| memory::copy(to, from, bytes as u64) == bytes as u64;
        let is_aligned = address.is_multiple_of(if bytes == OLD_BYTES { 16 } else { 64 });
        let is_readable = is_aligned && copies(buffer as u64, address);
        if is_readable {
            transfer_state(tcb, instruction, buffer);
        }
        let is_done = is_readable && (restores || copies(address, buffer as u64));
        if is_done {
            record(tcb, address, !restores, core::slice::from_raw_parts(buffer, bytes));
        }
        dealloc(buffer, layout);
        if !is_done {
            // It faults, as the application's instruction would.
            transfer_state(tcb, instruction, address as *mut u8);
        }
    }
}

/// Executes xsave or xrstor on `area` with the application's vector registers, whose low halves are
/// in the saved state.
///
/// # Safety
/// `area` is the application's own, or memory of the engine that is large enough, aligned and, for
/// xrstor, a copy of what the application wants to restore.
unsafe fn transfer_state(tcb: &mut Tcb, instruction: &Instruction, area: *mut u8) {
    let [low, high] = [RAX, RDX].map(|at| tcb.registers.general[at] as u32);
    macro_rules! transfer {
        ($operation:literal) => {
            // SAFETY: the caller's promise; the vector registers are those of the application until
            // they are saved again, and the compiler knows that they change.
            unsafe {
                asm!(
                    "ldmxcsr [{m}]",
                    "movaps xmm0, [{x}]", "movaps xmm1, [{x} + 16]",
                    "movaps xmm2, [{x} + 32]", "movaps xmm3, [{x} + 48]",
                    "movaps xmm4, [{x} + 64]", "movaps xmm5, [{x} + 80]",
                    "movaps xmm6, [{x} + 96]", "movaps xmm7, [{x} + 112]",
                    "movaps xmm8, [{x} + 128]", "movaps xmm9, [{x} + 144]",
                    "movaps xmm10, [{x} + 160]", "movaps xmm11, [{x} + 176]",
                    "movaps xmm12, [{x} + 192]", "movaps xmm13, [{x} + 208]",
                    "movaps xmm14, [{x} + 224]", "movaps xmm15, [{x} + 240]",
                    concat!($operation, " [{area}]"),
                    "movaps [{x}], xmm0", "movaps [{x} + 16], xmm1",
                    "movaps [{x} + 32], xmm2", "movaps [{x} + 48], xmm3",
                    "movaps [{x} + 64], xmm4", "movaps [{x} + 80], xmm5",
                    "movaps [{x} + 96], xmm6", "movaps [{x} + 112], xmm7",
                    "movaps [{x} + 128], xmm8", "movaps [{x} + 144], xmm9",
                    "movaps [{x} + 160], xmm10", "movaps [{x} + 176], xmm11",
                    "movaps [{x} + 192], xmm12", "movaps [{x} + 208], xmm13",
                    "movaps [{x} + 224], xmm14", "movaps [{x} + 240], xmm15",
                    "stmxcsr [{m}]",
                    m = in(reg) &raw mut tcb.mxcsr, x = in(reg) &raw mut tcb.xmm, area = in(reg) area,
                    in("eax") low, in("edx") high,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                    out("xmm5") _, out("xmm6") _,
                    out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _,
                    out("xmm14") _, out("xmm15") _, options(nostack),
                );
            }
        };
    }
    match instruction.mnemonic() {
        // xsaveopt would leave out what has not changed since an xrstor from the same address, but
        // the buffer then was a copy of another area.
        Mnemonic::Xsave | Mnemonic::Xsaveopt => transfer!("xsave"),
        Mnemonic::Xsave64 | Mnemonic::Xsaveopt64 => transfer!("xsave64"),
        Mnemonic::Xsavec => transfer!("xsavec"),
        Mnemonic::Xsavec64 => transfer!("xsavec64"),
        Mnemonic::Fxsave => transfer!("fxsave"),
        Mnemonic::Fxsave64 => transfer!("fxsave64"),
        Mnemonic::Fxrstor => transfer!("fxrstor"),
        Mnemonic::Fxrstor64 => transfer!("fxrstor64"),
        Mnemonic::Xrstor => transfer!("xrstor"),
        _ => transfer!("xrstor64"),
    }
}

#[cfg(test)]
mod tests {
    use entity::{AppPc, ThreadId};

    use super::*;
    use crate::tcb::OwnedTcb;

    #[repr(align(64))]
    struct Area([u64; 512]);

    #[test]
    fn xsaveopt_leaves_out_nothing_that_was_restored_from_the_buffer() {
        /// Of x87, SSE and AVX.
        const COMPONENTS: u64 = 7;
        /// Of ymm3, in an area.
        const UPPER_HALF: usize = (SAVE_HEADER_END + 3 * 16) / 8;
        const XRSTOR64: [u8; 4] = [0x48, 0x0f, 0xae, 0x2b];
        const XSAVEOPT64: [u8; 4] = [0x48, 0x0f, 0xae, 0x33];
        if !std::is_x86_feature_detected!("avx") || !std::is_x86_feature_detected!("xsaveopt") {
            use std::io::Write;
            std::io::stderr().write_all(b"NOT TESTED: this machine has no xsaveopt or no AVX\n").unwrap();
            return;
        }
        // SAFETY: zeroed memory of the right size is a control page.
        let control = unsafe { &*(memory::tests::shared() as *const wire::Control) };
        let mut tcb = OwnedTcb::new(control, 0, ThreadId::FIRST, 0).unwrap();
        (tcb.mxcsr, tcb.registers.general[RAX]) = (0x1f80, COMPONENTS);
        let [restore, save] = [XRSTOR64, XSAVEOPT64].map(|code| isa::decoder(AppPc::new(0), &code).decode());
        let mut buffer = Area([0; 512]);
        (buffer.0[0], buffer.0[3], buffer.0[64]) = (0x37f, 0x1f80, COMPONENTS);
        buffer.0[UPPER_HALF] = 0x5a;
        // SAFETY: the buffer is aligned, and the processor accepts the state in it.
        unsafe {
            transfer_state(&mut tcb, &restore, buffer.0.as_mut_ptr().cast());
            // A call that clears the buffer might use AVX.
            (&raw mut buffer.0[UPPER_HALF]).write_volatile(0);
            transfer_state(&mut tcb, &save, buffer.0.as_mut_ptr().cast());
            assert_eq!((&raw const buffer.0[UPPER_HALF]).read_volatile(), 0x5a);
        }
    }
}
