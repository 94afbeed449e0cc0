//! Memory operands: that of the instruction, its copy in the thread control block, and what stands
//! in for it in another form of the instruction.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};

use crate::tcb;

/// The memory operand of an instruction, `offset` bytes further on.
pub(in crate::translate) fn memory(instruction: &Instruction, offset: i64) -> MemoryOperand {
    let displacement = (instruction.memory_displacement64() as i64).wrapping_add(offset);
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let size = match (base, index) {
        // Four or eight: this also says how long addresses are.
        (Register::None, _) => instruction.memory_displ_size(),
        _ if displacement == 0 => 0,
        _ => 1,
    };
    let scale = instruction.memory_index_scale();
    MemoryOperand::new(base, index, scale, displacement, size, false, instruction.segment_prefix())
}

/// The place for copies of operands in the thread's state.
pub(super) fn copy(offset: usize) -> MemoryOperand {
    let displacement = i64::from(tcb::OPERAND) + offset as i64;
    MemoryOperand::new(Register::None, Register::None, 1, displacement, 8, false, Register::GS)
}

/// A field of the thread's state.
pub(super) fn field(offset: u32) -> MemoryOperand {
    MemoryOperand::new(Register::None, Register::None, 1, i64::from(offset), 8, false, Register::GS)
}

/// The instruction with a register in place of its memory operand.
pub(super) fn with_register(instruction: &Instruction, register: Register) -> Option<Instruction> {
    let mut changed = *instruction;
    let at = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory)?;
    changed.set_op_kind(at, OpKind::Register);
    changed.set_op_register(at, register);
    changed.set_segment_prefix(Register::None);
    if matches!(instruction.mnemonic(), Mnemonic::Insertps | Mnemonic::Vinsertps) {
        // With a register, the top bits choose one of its elements.
        changed.set_immediate8(instruction.immediate8() & 0x3f);
    }
    Some(changed)
}

/// The instruction with the copy in the thread's state as its memory operand.
pub(super) fn with_copy(instruction: &Instruction) -> Instruction {
    let mut changed = *instruction;
    changed.set_memory_base(Register::None);
    changed.set_memory_index(Register::None);
    changed.set_memory_index_scale(1);
    changed.set_memory_displacement64(u64::from(tcb::OPERAND));
    changed.set_memory_displ_size(8);
    changed.set_segment_prefix(Register::GS);
    changed
}

/// Sizes of the pieces in which a number of bytes is moved through a general register.
pub(super) fn pieces(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let size = [8, 4, 2, 1].into_iter().find(|size| at + size <= bytes)?;
        at += size;
        Some((at - size, size))
    })
}

/// The instruction that loads so many bytes into a general register, with zeros above.
pub(super) fn load_code(bytes: usize) -> Code {
    match bytes {
        1 => Code::Movzx_r32_rm8,
        2 => Code::Movzx_r32_rm16,
        4 => Code::Mov_r32_rm32,
        _ => Code::Mov_r64_rm64,
    }
}

/// The instruction that stores so many bytes of a general register.
pub(super) fn store_code(bytes: usize) -> Code {
    match bytes {
        1 => Code::Mov_rm8_r8,
        2 => Code::Mov_rm16_r16,
        4 => Code::Mov_rm32_r32,
        _ => Code::Mov_rm64_r64,
    }
}
