//! Exchanges: `xchg` and `xadd`, whose old value ends in a register.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use super::SourceInstruction;
use crate::translate::Translator;
use crate::translate::operand::{general, wide};

pub(super) enum Addend {
    Register(u8),
    Constant(i64),
}

impl Translator<'_, '_> {
    pub(super) fn exchange(&mut self, source: &SourceInstruction, register: Register, first: usize) {
        self.value_before(first + 1, register, register.size());
        self.copy_source(source);
        self.value_after(first, register);
    }

    /// Computes the new value in a scratch register.
    pub(super) fn exchange_and_add(&mut self, source: &SourceInstruction, register: Register, first: usize) {
        let Some(number) = general(register) else { return };
        let scratch = self.take_scratch(source, number);
        self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
        self.copy_source(source);
        self.value_after(first, register);
        self.add_to(scratch, Addend::Register(number));
        self.record_scratch(first + 1, scratch, register.size());
        self.give_scratch();
    }

    /// Adds to a scratch register without a change of flags.
    pub(super) fn add_to(&mut self, scratch: u8, addend: Addend) {
        let (index, displacement) = match addend {
            Addend::Register(register) => (wide(register), 0),
            Addend::Constant(value) => (Register::None, value),
        };
        let size = if displacement == 0 { 0 } else { 1 };
        let sum = MemoryOperand::new(wide(scratch), index, 1, displacement, size, false, Register::None);
        self.encode_app(Instruction::with2(Code::Lea_r64_m, wide(scratch), sum));
    }
}
