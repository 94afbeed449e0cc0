//! Scratch registers: registers of the application that are spilled for a while, and the names of
//! their parts.

use iced_x86::{Instruction, OpKind, Register};

use super::SourceInstruction;
use crate::tcb;
use crate::translate::operand::general;
use crate::translate::{Spill, Translator};

/// Scratch registers; first those whose low byte needs no REX prefix.
const CANDIDATES: [u8; 11] = [3, 2, 1, 0, 6, 7, 8, 9, 10, 11, 12];
/// As many of them have a low byte that can be encoded together with `ah` and the other high bytes.
const LEGACY: usize = 4;

pub(in crate::translate) fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// Whether an instruction names a high byte. It cannot have a REX prefix then.
pub(super) fn names_high_byte(instruction: &Instruction) -> bool {
    (0..instruction.op_count())
        .any(|at| instruction.op_kind(at) == OpKind::Register && is_high_byte(instruction.op_register(at)))
}

/// The part of a general register that has this many bytes.
pub(super) fn part(number: u8, bytes: usize) -> Register {
    let first = match bytes {
        1 => return LOW_BYTES[usize::from(number)],
        2 => Register::AX,
        4 => Register::EAX,
        _ => Register::RAX,
    };
    first + u32::from(number)
}

const LOW_BYTES: [Register; 16] = [
    Register::AL,
    Register::CL,
    Register::DL,
    Register::BL,
    Register::SPL,
    Register::BPL,
    Register::SIL,
    Register::DIL,
    Register::R8L,
    Register::R9L,
    Register::R10L,
    Register::R11L,
    Register::R12L,
    Register::R13L,
    Register::R14L,
    Register::R15L,
];

impl Translator<'_, '_> {
    /// Spills a register that the instruction does not use.
    pub(super) fn take_scratch(&mut self, source: &SourceInstruction, but: u8) -> u8 {
        let register = self.choose_scratch(source, but);
        self.out.store_gs(tcb::SCRATCH_RCX, register);
        self.spill.general = register;
        self.map_again();
        register
    }

    /// A register that the instruction does not use, and that is not `but`.
    pub(super) fn choose_scratch(&self, source: &SourceInstruction, but: u8) -> u8 {
        let is_legacy = names_high_byte(source.instruction);
        let candidates = if is_legacy { &CANDIDATES[..LEGACY] } else { &CANDIDATES[..] };
        let is_free = |register: u8| {
            register != but && self.data.used.iter().all(|used| general(used.register()) != Some(register))
        };
        candidates.iter().copied().find(|register| is_free(*register)).unwrap_or(CANDIDATES[0])
    }

    /// Restores the register that `take_scratch` has spilled.
    pub(super) fn give_scratch(&mut self) {
        self.out.load_gs(self.spill.general, tcb::SCRATCH_RCX);
        self.spill.general = Spill::NONE;
        self.map_again();
    }

    /// Spills a second register.
    pub(in crate::translate) fn spill_third(&mut self, register: u8) {
        self.out.store_gs(tcb::SCRATCH_THIRD, register);
        self.spill.third = register;
        self.map_again();
    }

    pub(in crate::translate) fn reload_third(&mut self) {
        self.out.load_gs(self.spill.third, tcb::SCRATCH_THIRD);
        self.spill.third = Spill::NONE;
        self.map_again();
    }
}
