//! Instructions that compute with their memory operand. They get another operand: a scratch
//! register, or a copy in the thread control block.

use iced_x86::{Code, Instruction, Register};
use wire::code;

use super::memory::{copy, load_code, memory, pieces, store_code, with_copy, with_register};
use super::scratch::part;
use super::vector::vector_of;
use super::{RAX, RSP, SourceInstruction};
use crate::tcb;
use crate::translate::Translator;
use crate::translate::operand::{Mask, OperandForm};

impl Translator<'_, '_> {
    /// Records an operand by the direction of its accesses.
    pub(super) fn compute(&mut self, source: &SourceInstruction, operands: &[OperandForm], first: usize) {
        match operands {
            [read] if !read.writes => self.read(source, read, first),
            [write] => self.write(source, write, first),
            [read, write] if !read.writes && write.writes => self.modify(source, read, first),
            _ => self.copy_source(source),
        }
    }

    /// Records an operand that is only read: through a general register, a vector register, or a
    /// copy.
    fn read(&mut self, source: &SourceInstruction, operand: &OperandForm, first: usize) {
        let bytes = usize::from(operand.size);
        let is_single = matches!(operand.kind, code::PLAIN | code::ANY);
        if is_single && let Some(replaced) = self.with_general(source, bytes) {
            return self.read_general(source, replaced, bytes, first);
        }
        let all = if is_single { bytes } else { usize::from(operand.bytes()) };
        if let Some((register, replaced)) = self.with_vector(source, all) {
            return self.read_vector(source, operand, register, replaced, first);
        }
        if operand.mask != Mask::None && !is_single {
            self.failed = true;
            return;
        }
        self.read_copy(source, bytes, first);
    }

    /// The instruction with a part of the scratch register in place of its memory operand, if there
    /// is an encoding for that. Some instructions take a longer register than memory operand.
    fn with_general(&mut self, source: &SourceInstruction, bytes: usize) -> Option<Instruction> {
        let widths = if bytes <= 8 { &[bytes, 4, 8][..] } else { &[] };
        let scratch = self.choose_scratch(source, RSP);
        widths.iter().find_map(|&width| self.replaced(source, part(scratch, width)))
    }

    /// An unused vector register of so many bytes, and the instruction with that register in place
    /// of its memory operand, if there is an encoding for that.
    fn with_vector(&mut self, source: &SourceInstruction, bytes: usize) -> Option<(Register, Instruction)> {
        let instruction = source.instruction;
        if !matches!(bytes, 4 | 8 | 16 | 32 | 64) || instruction.is_broadcast() || self.is_far(instruction) {
            return None;
        }
        let register = vector_of(self.free_vector(), bytes);
        Some((register, self.replaced(source, register)?))
    }

    fn replaced(&mut self, source: &SourceInstruction, register: Register) -> Option<Instruction> {
        let replaced = with_register(source.instruction, register)?;
        self.encodes(&replaced).then_some(replaced)
    }

    fn read_general(&mut self, source: &SourceInstruction, replaced: Instruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.load(source, scratch, 0, bytes);
        self.record_scratch(first, scratch, bytes);
        self.encode_app(Ok(replaced));
        self.map_between_safe_points();
        self.give_scratch();
    }

    /// Lets the instruction use a copy of its operand.
    fn read_copy(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        if bytes > tcb::OPERAND_BYTES {
            self.failed = true;
            return;
        }
        let scratch = self.take_scratch(source, RSP);
        let offset = self.allocate(bytes);
        for (at, size) in pieces(bytes) {
            self.load(source, scratch, at, size);
            self.store_data(offset + at as u16, size, scratch);
            self.encode_app(Instruction::with2(store_code(size), copy(at), part(scratch, size)));
        }
        self.data.accesses[first].value = offset;
        self.give_scratch();
        self.encode_app(Ok(with_copy(source.instruction)));
        self.map_between_safe_points();
    }

    /// Records an operand that an instruction computes and writes: it is executed twice, first into
    /// a copy.
    fn write(&mut self, source: &SourceInstruction, operand: &OperandForm, first: usize) {
        let bytes = usize::from(operand.bytes());
        if bytes > tcb::OPERAND_BYTES || !matches!(operand.kind, code::PLAIN | code::MASKED) {
            self.failed = true;
            return;
        }
        self.map_between_safe_points();
        self.write_copy(source.instruction);
        self.record_copy(source, bytes, first);
        self.map_safe_point(self.pc);
        self.copy_source(source);
    }

    /// Executes an instruction into the copy, and leaves the x87 stack as it was.
    fn write_copy(&mut self, instruction: &Instruction) {
        let mut changed = with_copy(instruction);
        let (store_without_pop, undo) = store_without_pop(instruction.code());
        changed.set_code(store_without_pop);
        self.encode_app(Ok(changed));
        if let Some(undo) = undo {
            changed.set_code(undo);
            self.encode(Ok(changed));
        }
    }

    fn record_copy(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        let offset = self.allocate(bytes);
        for (at, size) in pieces(bytes) {
            self.encode(Instruction::with2(load_code(size), part(scratch, size.max(4)), copy(at)));
            self.store_data(offset + at as u16, size, scratch);
        }
        self.data.accesses[first].value = offset;
        self.give_scratch();
    }

    /// Records an operand that is read, modified and written without a lock, in a register.
    fn modify(&mut self, source: &SourceInstruction, operand: &OperandForm, first: usize) {
        let bytes = usize::from(operand.size);
        if bytes > 8 || operand.kind != code::PLAIN {
            self.failed = true;
            return;
        }
        let scratch = self.choose_scratch(source, RAX);
        match with_register(source.instruction, part(scratch, bytes)) {
            Some(changed) => self.modify_in_register(source, changed, bytes, first),
            None => self.failed = true,
        }
    }

    fn modify_in_register(&mut self, source: &SourceInstruction, changed: Instruction, bytes: usize, first: usize) {
        let instruction = source.instruction;
        let scratch = self.take_scratch(source, RAX);
        self.load(source, scratch, 0, bytes);
        let [old, new] = self.allocate_pair(first, bytes);
        self.store_data(old, bytes, scratch);
        if instruction.rflags_modified() != 0 {
            self.save_flags();
        }
        self.encode_app(Ok(changed));
        self.store_data(new, bytes, scratch);
        self.encode_app(Instruction::with2(store_code(bytes), memory(instruction, 0), part(scratch, bytes)));
        self.spill.flags = false;
        self.map_between_safe_points();
        self.give_scratch();
    }
}

/// An instruction that stores the same value without a pop, or with an instruction that undoes the
/// pop.
fn store_without_pop(code: Code) -> (Code, Option<Code>) {
    match code {
        Code::Fstp_m32fp => (Code::Fst_m32fp, None),
        Code::Fstp_m64fp => (Code::Fst_m64fp, None),
        Code::Fstp_m80fp => (code, Some(Code::Fld_m80fp)),
        Code::Fistp_m16int => (Code::Fist_m16int, None),
        Code::Fistp_m32int => (Code::Fist_m32int, None),
        Code::Fnstenv_m14byte => (code, Some(Code::Fldenv_m14byte)),
        Code::Fnstenv_m28byte => (code, Some(Code::Fldenv_m28byte)),
        Code::Fnsave_m94byte => (code, Some(Code::Frstor_m94byte)),
        Code::Fnsave_m108byte => (code, Some(Code::Frstor_m108byte)),
        _ => (code, None),
    }
}
