//! Compare-and-exchange: the old value ends in a register, and the zero flag says which value was
//! written. If the comparison fails, the instruction writes the value that it has read.

use iced_x86::{Code, Instruction, Register};

use super::scratch::part;
use super::{RAX, RBX, RCX, RDX, RSP, SourceInstruction};
use crate::translate::Translator;
use crate::translate::operand::{general, wide};

impl Translator<'_, '_> {
    pub(super) fn compare_and_exchange(
        &mut self,
        source: &SourceInstruction,
        register: Register,
        bytes: usize,
        first: usize,
    ) {
        let Some(number) = general(register) else { return };
        let scratch = self.take_scratch(source, number);
        self.copy_source(source);
        self.value_after(first, part(RAX, bytes));
        self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
        self.encode(Instruction::with2(Code::Cmovne_r64_rm64, wide(scratch), Register::RAX));
        self.record_scratch(first + 1, scratch, bytes);
        self.give_scratch();
    }

    /// `cmpxchg8b` and `cmpxchg16b`.
    pub(super) fn compare_and_exchange_pair(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let half = bytes / 2;
        let scratch = self.take_scratch(source, RSP);
        self.copy_source(source);
        self.map_between_safe_points();
        let [old, new] = self.allocate_pair(first, 2 * half);
        for (index, (was, wanted)) in [(RAX, RBX), (RDX, RCX)].into_iter().enumerate() {
            let offset = (index * half) as u16;
            self.store_data(old + offset, half, was);
            self.encode(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(wanted)));
            self.encode(Instruction::with2(Code::Cmovne_r64_rm64, wide(scratch), wide(was)));
            self.store_data(new + offset, half, scratch);
        }
        self.give_scratch();
    }
}
