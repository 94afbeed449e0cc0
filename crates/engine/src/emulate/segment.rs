//! Instructions that set gs or fs.

use core::arch::asm;

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::{load, number_of, operand_address, record, register};
use crate::tcb::Tcb;
use crate::{gs, ring};

/// `mov gs`, `pop gs` and `lgs`. An invalid selector faults, so other registers change after it is
/// loaded.
pub(super) fn load_gs(tcb: &mut Tcb, instruction: &Instruction) {
    const RSP: usize = 4;
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
            gs::load_selector(tcb, register(tcb, instruction.op1_register()) as u16);
        }
        Mnemonic::Mov => {
            let address = operand_address(tcb, instruction);
            // SAFETY: the application's own access.
            let selector = unsafe { load(address, 2) } as u16;
            gs::load_selector(tcb, selector);
            record(tcb, address, false, &selector.to_le_bytes());
        }
        Mnemonic::Pop => {
            let (address, bytes) = (tcb.registers.general[RSP], instruction.stack_pointer_increment() as usize);
            // SAFETY: the application's own access.
            let value = unsafe { load(address, bytes) };
            gs::load_selector(tcb, value as u16);
            tcb.registers.general[RSP] = address.wrapping_add(bytes as u64);
            record(tcb, address, false, &value.to_le_bytes()[..bytes]);
        }
        _ => load_far_pointer(tcb, instruction),
    }
}

/// `lgs`: an offset, then the selector.
fn load_far_pointer(tcb: &mut Tcb, instruction: &Instruction) {
    let (address, target) = (operand_address(tcb, instruction), instruction.op0_register());
    let bytes = target.size();
    // SAFETY: the application's own accesses.
    let (offset, selector) = unsafe { (load(address, bytes), load(address.wrapping_add(bytes as u64), 2) as u16) };
    gs::load_selector(tcb, selector);
    let kept = if bytes == 2 { tcb.registers.general[number_of(target)] & !0xffff } else { 0 };
    tcb.registers.general[number_of(target)] = kept | offset;
    let mut value = [0; 10];
    value[..bytes].copy_from_slice(&offset.to_le_bytes()[..bytes]);
    value[bytes..bytes + 2].copy_from_slice(&selector.to_le_bytes());
    record(tcb, address, false, &value[..bytes + 2]);
}

/// `wrfsbase`.
pub(super) fn set_fs_base(tcb: &mut Tcb, instruction: &Instruction) {
    let base = register(tcb, instruction.op0_register());
    // SAFETY: the application's own instruction; the engine does not use fs.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
    ring::append_fs_base(tcb);
}
