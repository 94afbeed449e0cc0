//! Helpers of the emitter's tests: they emit, and decode what was emitted.

use entity::AppPc;
use iced_x86::{Instruction, Register};

use super::Emitter;
use crate::cache_pc::CachePc;

pub(super) const ADDRESS: CachePc = CachePc::new(0x7000_0000);

pub(super) fn emit(write: impl FnOnce(&mut Emitter)) -> (Vec<u8>, Vec<Instruction>) {
    let mut room = [0; 512];
    let mut out = Emitter::new(&mut room, ADDRESS);
    write(&mut out);
    assert!(!out.overflowed());
    let length = out.position();
    let code = room[..length].to_vec();
    let instructions = isa::decoder(AppPc::new(ADDRESS.get()), &code).into_iter().collect();
    (code, instructions)
}

pub(super) fn one(write: impl FnOnce(&mut Emitter)) -> Instruction {
    let (code, instructions) = emit(write);
    assert_eq!(instructions.len(), 1, "{code:x?}");
    assert_eq!(instructions[0].len(), code.len());
    instructions[0]
}

pub(super) const GENERAL: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

pub(super) fn is_gs(instruction: &Instruction, offset: u32) -> bool {
    instruction.memory_segment() == Register::GS
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == u64::from(offset)
}
