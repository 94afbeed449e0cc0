//! Stack instructions with an operand that is not a general register or a constant.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use super::memory::{load_code, memory, store_code};
use super::scratch::part;
use super::{RSP, SourceInstruction};
use crate::translate::Translator;

impl Translator<'_, '_> {
    /// Loads the operand into a scratch register and pushes that.
    pub(super) fn push_memory(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.load(source, scratch, 0, bytes);
        let offset = self.record_scratch(first, scratch, bytes);
        self.data.accesses[first + 1].value = offset;
        let code = if bytes == 8 { Code::Push_r64 } else { Code::Push_r16 };
        self.encode(Instruction::with1(code, part(scratch, bytes)));
        self.map_between_safe_points();
        self.give_scratch();
    }

    pub(super) fn push_segment(&mut self, source: &SourceInstruction, segment: Register, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.encode(Instruction::with2(Code::Mov_r32m16_Sreg, part(scratch, 4), segment));
        self.record_scratch(first, scratch, bytes);
        self.give_scratch();
        self.copy_source(source);
    }

    /// Loads the top of the stack into a scratch register and stores that to the operand.
    pub(super) fn pop_memory(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let instruction = source.instruction;
        let scratch = self.take_scratch(source, RSP);
        self.load_stack(scratch, bytes);
        let offset = self.record_scratch(first, scratch, bytes);
        self.data.accesses[first + 1].value = offset;
        // The address uses the stack pointer after the pop. rsp changes only when nothing can fault
        // any more.
        let moved = if instruction.memory_base() == Register::RSP { bytes as i64 } else { 0 };
        self.encode_app(Instruction::with2(store_code(bytes), memory(instruction, moved), part(scratch, bytes)));
        self.map_between_safe_points();
        self.move_stack(bytes as i64);
        self.give_scratch();
    }

    /// Loads the top of the stack.
    pub(super) fn load_stack(&mut self, register: u8, bytes: usize) {
        let stack = MemoryOperand::new(Register::RSP, Register::None, 1, 0, 0, false, Register::None);
        self.encode(Instruction::with2(load_code(bytes), part(register, bytes.max(4)), stack));
    }

    /// Moves the stack pointer without a change of flags.
    pub(super) fn move_stack(&mut self, by: i64) {
        let moved = MemoryOperand::new(Register::RSP, Register::None, 1, by, 1, false, Register::None);
        self.encode(Instruction::with2(Code::Lea_r64_m, Register::RSP, moved));
    }
}
