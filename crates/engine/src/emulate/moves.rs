//! Instructions that move data in ways of their own: from tables, from frame to frame, out of the
//! floating-point unit, from memory to memory.

use core::arch::asm;

use iced_x86::{Instruction, Mnemonic, Register};
use wire::RAX;

use super::{load, operand_address, record, register, segment_base, set_part, store};
use crate::tcb::Tcb;

/// `xlat`: the byte at rbx plus al.
pub(super) fn translate_byte(tcb: &mut Tcb, instruction: &Instruction) {
    const RBX: usize = 3;
    let reach = if instruction.memory_base() == Register::EBX { u64::from(u32::MAX) } else { u64::MAX };
    let base = segment_base(tcb, instruction);
    let offset = tcb.registers.general[RBX].wrapping_add(tcb.registers.general[RAX] & 0xff) & reach;
    let address = base.wrapping_add(offset);
    // SAFETY: the application's own access.
    let value = unsafe { load(address, 1) };
    set_part(tcb, Register::AL, value);
    record(tcb, address, false, &[value as u8]);
}

/// `enter` with nesting levels.
pub(super) fn enter(tcb: &mut Tcb, instruction: &Instruction) {
    const RSP: usize = 4;
    const RBP: usize = 5;
    let level = u64::from(instruction.immediate8_2nd() & 31);
    let (frame, pointer) = (tcb.registers.general[RBP], tcb.registers.general[RSP]);
    let new_frame = pointer.wrapping_sub(8);
    let mut values = [0; 33];
    values[0] = frame;
    for index in 1..level {
        // SAFETY: the application's own access.
        values[index as usize] = unsafe { load(frame.wrapping_sub(8 * index), 8) };
    }
    let count = if level == 0 { 1 } else { level + 1 };
    if level > 0 {
        values[level as usize] = new_frame;
    }
    for (index, value) in (1..=count).zip(values) {
        // SAFETY: the application's own access.
        unsafe { store(pointer.wrapping_sub(8 * index), 8, value) };
    }
    for index in 1..level {
        record(tcb, frame.wrapping_sub(8 * index), false, &values[index as usize].to_le_bytes());
    }
    for (index, value) in (1..=count).zip(values) {
        record(tcb, pointer.wrapping_sub(8 * index), true, &value.to_le_bytes());
    }
    tcb.registers.general[RBP] = new_frame;
    tcb.registers.general[RSP] = pointer.wrapping_sub(8 * count).wrapping_sub(u64::from(instruction.immediate16()));
}

/// `fistp` and others that pop what they store. The first pass restores the state, so that the
/// store to application memory happens, or faults, before anything changes.
pub(super) fn pop_integer(tcb: &mut Tcb, instruction: &Instruction) {
    let address = operand_address(tcb, instruction);
    let bytes = instruction.memory_size().size();
    let mut state = FloatState([0; 512]);
    let mut value = [0u8; 16];
    for finally in [false, true] {
        macro_rules! pop {
            ($operation:literal) => {{
                let (state, value) = (&raw mut state, &raw mut value);
                // SAFETY: the floating-point unit is the application's, and the engine does not use
                // it. The vector registers that come back with its state are as they were saved:
                // no other instruction is between.
                unsafe {
                    if finally {
                        asm!(concat!($operation, " [{v}]"), v = in(reg) value, options(nostack));
                    } else {
                        asm!("fxsave64 [{s}]", concat!($operation, " [{v}]"), "fxrstor64 [{s}]",
                            s = in(reg) state, v = in(reg) value, options(nostack));
                    }
                }
            }};
        }
        match (instruction.mnemonic(), bytes) {
            (Mnemonic::Fistp, _) => pop!("fistp qword ptr"),
            (Mnemonic::Fisttp, 2) => pop!("fisttp word ptr"),
            (Mnemonic::Fisttp, 4) => pop!("fisttp dword ptr"),
            (Mnemonic::Fisttp, _) => pop!("fisttp qword ptr"),
            _ => pop!("fbstp tbyte ptr"),
        }
        if !finally {
            for (index, byte) in value[..bytes].iter().enumerate() {
                // SAFETY: the application's own write.
                unsafe { store(address.wrapping_add(index as u64), 1, u64::from(*byte)) };
            }
        }
    }
    record(tcb, address, true, &value[..bytes]);
}

#[repr(C, align(16))]
struct FloatState([u8; 512]);

/// `movdir64b`: 64 bytes from memory to memory.
pub(super) fn move_line(tcb: &mut Tcb, instruction: &Instruction) {
    let source = operand_address(tcb, instruction);
    let destination = register(tcb, instruction.op0_register());
    let mut line = Line([0; 64]);
    for (index, piece) in line.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: the application's own access.
        *piece = unsafe { load(source.wrapping_add(8 * index as u64), 8) }.to_le_bytes();
    }
    // SAFETY: the application's own instruction, from a copy of its source: movdir64b rax, [rsi].
    unsafe {
        asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x06", in("rax") destination, in("rsi") line.0.as_ptr(), options(nostack));
    }
    record(tcb, source, false, &line.0);
    record(tcb, destination, true, &line.0);
}

#[repr(C, align(64))]
struct Line([u8; 64]);
