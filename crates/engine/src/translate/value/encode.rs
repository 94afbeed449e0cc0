//! Instructions that the translator makes, and moves between memory, scratch registers and data.

use iced_x86::{IcedError, Instruction, MemoryOperand};

use super::SourceInstruction;
use super::memory::{load_code, memory};
use super::scratch::part;
use crate::translate::Translator;
use crate::translate::data::WORD;

impl Translator<'_, '_> {
    /// Emits an instruction that may use the application's r15 and memory.
    pub(super) fn encode_app(&mut self, instruction: Result<Instruction, IcedError>) {
        match instruction {
            Ok(instruction) => {
                self.require_app_r15_for(&instruction);
                self.failed |= !self.try_encode(&instruction);
            }
            Err(_) => self.failed = true,
        }
    }

    /// Emits an instruction that does not use r15.
    pub(in crate::translate) fn encode(&mut self, instruction: Result<Instruction, IcedError>) {
        self.failed |= !instruction.is_ok_and(|instruction| self.try_encode(&instruction));
    }

    /// Emits an instruction if there is an encoding for it.
    fn try_encode(&mut self, instruction: &Instruction) -> bool {
        let here = self.out.here();
        let encoder = self.data.encoder();
        let encoded = encoder.encode(instruction, here.get()).is_ok();
        let bytes = encoder.take_buffer();
        if encoded {
            self.out.bytes(&bytes);
        }
        encoded
    }

    /// Whether there is an encoding for an instruction.
    pub(super) fn encodes(&mut self, instruction: &Instruction) -> bool {
        let here = self.out.here();
        let encoder = self.data.encoder();
        let encoded = encoder.encode(instruction, here.get()).is_ok();
        drop(encoder.take_buffer());
        encoded
    }

    /// Loads a part of a memory operand into a general register.
    pub(super) fn load(&mut self, source: &SourceInstruction, register: u8, offset: usize, bytes: usize) {
        let target = part(register, bytes.max(4));
        let mut operand = memory(source.instruction, offset as i64);
        if self.is_far(source.instruction) {
            let address = source.instruction.ip_rel_memory_address();
            self.out.load_constant(register, address.wrapping_add(offset as u64));
            operand = MemoryOperand::with_base(part(register, 8));
        }
        self.encode_app(Instruction::with2(load_code(bytes), target, operand));
    }

    /// Whether the operand of an instruction is relative to rip and out of reach from here.
    pub(super) fn is_far(&self, instruction: &Instruction) -> bool {
        // Leaves room for the code before the instruction that uses it.
        const REACH: u64 = (1 << 31) - (1 << 16);
        let here = self.out.here().get();
        instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address().abs_diff(here) > REACH
    }

    /// Stores a general register as data.
    pub(super) fn store_data(&mut self, offset: u16, bytes: usize, register: u8) {
        self.require_cursor_mapped();
        self.out.store_data(u32::from(offset) + WORD, bytes, register);
    }

    /// Records a scratch register as the value of an access; returns its offset in the data.
    pub(super) fn record_scratch(&mut self, access: usize, scratch: u8, bytes: usize) -> u16 {
        let offset = self.allocate(bytes);
        self.store_data(offset, bytes, scratch);
        self.data.accesses[access].value = offset;
        offset
    }

    /// Allocates data for the old and the new value of an operand, the accesses from `first` on.
    pub(super) fn allocate_pair(&mut self, first: usize, bytes: usize) -> [u16; 2] {
        let pair = [bytes, bytes].map(|bytes| self.allocate(bytes));
        for (access, offset) in pair.into_iter().enumerate() {
            self.data.accesses[first + access].value = offset;
        }
        pair
    }
}
