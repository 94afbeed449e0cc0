//! Loads and stores: the value passes through a register of the instruction, which is stored as
//! data, or is a constant.

use iced_x86::{Code, Instruction, Register};
use wire::code;

use super::scratch::{is_high_byte, part};
use super::{RBP, RCX, SourceInstruction};
use crate::tcb;
use crate::translate::Translator;
use crate::translate::data::WORD;
use crate::translate::operand::{OperandForm, general, repeats};
use crate::translate::symbol::Symbol;

impl Translator<'_, '_> {
    pub(super) fn load_to(&mut self, source: &SourceInstruction, register: Register, first: usize) {
        self.copy_source(source);
        self.value_after(first, register);
    }

    pub(super) fn store_from(
        &mut self,
        source: &SourceInstruction,
        register: Register,
        operand: &OperandForm,
        first: usize,
    ) {
        self.value_before(first, register, value_bytes(register, operand));
        self.copy_source(source);
    }

    pub(super) fn store_from_whole(&mut self, source: &SourceInstruction, register: Register, first: usize) {
        self.value_before(first, register, register.size());
        if repeats(source.instruction) {
            self.begin_string();
        }
        self.copy_source(source);
    }

    pub(super) fn store_constant(&mut self, source: &SourceInstruction, value: u64, first: usize) {
        self.constant(first, value);
        self.copy_source(source);
    }

    /// Records a register that will be written to memory as the value of an access. It is not
    /// stored again if it is in the data.
    pub(super) fn value_before(&mut self, access: usize, register: Register, bytes: usize) {
        if let Some(number) = general(register).filter(|_| !is_high_byte(register)) {
            match self.data.symbols.get(number) {
                Symbol::Slot { offset, add: 0 } => return self.data.accesses[access].value = offset,
                Symbol::Low { offset, bytes: low } if bytes <= usize::from(low) => {
                    return self.data.accesses[access].value = offset;
                }
                Symbol::Constant(value) => return self.constant(access, value),
                _ => {}
            }
        }
        let offset = self.allocate(stored_bytes(register, bytes));
        self.data.accesses[access].value = offset;
        self.store_value(offset, register, bytes);
    }

    /// Records a register that was loaded from memory as the value of an access.
    pub(super) fn value_after(&mut self, access: usize, register: Register) {
        let descriptor = &self.data.accesses[access];
        let elements = if descriptor.kind == code::PLAIN { 1 } else { usize::from(descriptor.count.max(1)) };
        let all = usize::from(descriptor.size) * elements;
        let bytes = if descriptor.kind == code::PLAIN { all } else { register.size().max(all) };
        self.map_between_safe_points();
        let offset = self.allocate(stored_bytes(register, bytes));
        self.data.accesses[access].value = offset;
        self.store_value(offset, register, bytes);
    }

    fn constant(&mut self, access: usize, value: u64) {
        self.data.accesses[access].value = code::CONSTANT;
        self.data.accesses[access].constant = value;
    }

    /// Notes that a register which was loaded from memory is equal to the recorded value.
    pub(in crate::translate) fn learn_loaded(&mut self, instruction: &Instruction, first: usize) {
        let Some(access) = self.data.accesses.get(first) else { return };
        if access.value >= code::CONSTANT || access.flags & code::WRITES != 0 {
            return;
        }
        let offset = access.value;
        let (register, symbol) = match instruction.code() {
            Code::Leaveq => (RBP, Symbol::Slot { offset, add: 0 }),
            Code::Mov_r64_rm64 | Code::Pop_r64 => {
                let Some(register) = general(instruction.op0_register()) else { return };
                (register, Symbol::Slot { offset, add: 0 })
            }
            Code::Mov_r32_rm32 | Code::Movzx_r32_rm16 | Code::Movzx_r32_rm8 => {
                let Some(register) = general(instruction.op0_register()) else { return };
                (register, Symbol::Low { offset, bytes: access.size as u8 })
            }
            _ => return,
        };
        self.data.symbols.set(register, symbol);
    }

    /// Stores a general register, or a part of one.
    pub(in crate::translate) fn store_general_part(&mut self, offset: u16, register: Register, bytes: usize) {
        let Some(number) = general(register) else { return };
        if number == 15 {
            // All of r15 is stored. Surplus bytes are overwritten or lie in the padding.
            return self.store_app_r15(offset, bytes);
        }
        self.require_cursor_mapped();
        if !is_high_byte(register) {
            return self.out.store_data(u32::from(offset) + WORD, bytes, number);
        }
        // `mov [r15 + …], ah` does not exist, so the value goes through another register.
        let scratch = if number == RCX { 2 } else { RCX };
        self.spill_third(scratch);
        self.encode(Instruction::with2(Code::Mov_r8_rm8, part(scratch, 1), register));
        self.out.store_data(u32::from(offset) + WORD, bytes, scratch);
        self.reload_third();
    }

    /// The application's r15 as a value.
    pub(in crate::translate) fn store_app_r15(&mut self, offset: u16, bytes: usize) {
        self.require_cursor_mapped();
        self.spill_third(RCX);
        self.out.load_gs(RCX, tcb::APP_R15);
        self.out.store_data(u32::from(offset) + WORD, bytes, RCX);
        self.reload_third();
    }
}

/// Bytes that are stored of a register for an operand.
fn value_bytes(register: Register, operand: &OperandForm) -> usize {
    match operand.kind {
        code::PLAIN => usize::from(operand.size),
        _ => register.size().max(usize::from(operand.bytes())),
    }
}

/// Bytes that storing so many bytes of a register takes: mask registers are stored whole.
fn stored_bytes(register: Register, bytes: usize) -> usize {
    if register.is_k() { 8 } else { bytes }
}
