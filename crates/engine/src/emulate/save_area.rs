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
    /// Of 512 bytes, without a header.
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
    // SAFETY: an application that uses xsave runs where the operating system has enabled it; others
    // ask CPUID first.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Bytes of the area that an instruction reads or writes at `address`.
fn bytes_of_area(tcb: &Tcb, area: SaveArea, address: u64) -> usize {
    /// Where a compact area says what is in it.
    const COMPACT: u64 = 520;
    let [low, high] = [RAX, RDX].map(|at| tcb.registers.general[at] as u32);
    let requested = enabled_components() & (u64::from(high) << 32 | u64::from(low));
    match area {
        SaveArea::OldSave | SaveArea::OldRestore => 512,
        SaveArea::Save => area_bytes(requested, false),
        SaveArea::SaveCompact => area_bytes(requested, true),
        SaveArea::Restore => match memory::read::<u64>(address.wrapping_add(COMPACT)) {
            Some(components) if components >> 63 != 0 => area_bytes(components, true),
            _ => area_bytes(requested, false),
        },
    }
}

/// `xsave`, `xrstor` and their variants, through a copy of the area.
pub(super) fn save_or_restore(tcb: &mut Tcb, instruction: &Instruction, area: SaveArea) {
    let address = operand_address(tcb, instruction);
    let restores = matches!(area, SaveArea::Restore | SaveArea::OldRestore);
    let bytes = bytes_of_area(tcb, area, address);
    // Room for whatever the processor may write.
    let Ok(layout) = Layout::from_size_align(area_bytes(enabled_components(), false).max(bytes) + 64, 64) else {
        return;
    };
    // SAFETY: the size is not zero.
    let buffer = unsafe { alloc(layout) };
    if buffer.is_null() {
        // The thread is about to detach (`memory::is_exhausted`): the access is not recorded.
        // SAFETY: the application's own instruction, on its own area.
        return unsafe { transfer_state(tcb, instruction, address as *mut u8) };
    }
    // SAFETY: the buffer is ours, aligned and large enough; the application's own accesses at
    // `address`. The copy initialises what `record` reads.
    unsafe {
        let whole = |copied: u64| copied == bytes as u64;
        let aligned = address.is_multiple_of(if bytes == 512 { 16 } else { 64 });
        if !aligned || !whole(memory::copy(buffer as u64, address, bytes as u64)) {
            // It faults, as the application's instruction would.
            transfer_state(tcb, instruction, address as *mut u8);
        }
        transfer_state(tcb, instruction, buffer);
        if !restores && !whole(memory::copy(address, buffer as u64, bytes as u64)) {
            transfer_state(tcb, instruction, address as *mut u8);
        }
        record(tcb, address, !restores, core::slice::from_raw_parts(buffer, bytes));
        dealloc(buffer, layout);
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
        Mnemonic::Xsave => transfer!("xsave"),
        Mnemonic::Xsave64 => transfer!("xsave64"),
        Mnemonic::Xsaveopt => transfer!("xsaveopt"),
        Mnemonic::Xsaveopt64 => transfer!("xsaveopt64"),
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
