//! Recorded values of memory operands. Each value is taken on its way between memory and the
//! instruction; memory is never read a second time.
//!
//! If the value passes through a register of the instruction, that register is stored. Otherwise
//! the operand is loaded into a scratch register first, which the instruction uses instead; or, if
//! it needs a memory operand, it uses a copy in the thread control block.
//!
//! `strategy` chooses one of these ways for each class of instructions. The other modules carry
//! them out, with the instructions of `encode` and the registers of `scratch`.

use iced_x86::{Decoder, Instruction};
use wire::code;

use super::operand::OperandForm;
use super::{Spill, Translator};

mod arithmetic;
mod compare_exchange;
mod computation;
mod encode;
mod exchange;
mod flags;
mod load_store;
mod memory;
mod scratch;
mod stack;
mod strategy;
mod vector;

pub(super) use memory::memory;
pub(super) use scratch::is_high_byte;
pub(super) use strategy::is_emulated;
pub use strategy::needs_near_cache;

use strategy::ValueStrategy;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// An instruction of the application, with its decoder and bytes.
pub(super) struct SourceInstruction<'a, 'd> {
    pub instruction: &'a Instruction,
    pub decoder: &'a Decoder<'d>,
    pub bytes: &'a [u8],
}

impl Translator<'_, '_> {
    /// Copies an instruction with memory operands, which have access descriptors, and records the
    /// values. If there is no encoding for that, the instruction is copied unchanged, and its
    /// values are missing.
    pub(super) fn copy_with_values(&mut self, source: &SourceInstruction, operands: &[OperandForm], first: usize) {
        let position = self.out.position();
        let before = (self.result.map.len(), self.data.length, self.has_app_r15);
        self.failed = false;
        self.take_values(source, operands, first);
        if self.failed {
            self.out.rewind(position);
            self.result.map.truncate(before.0);
            (self.data.length, self.has_app_r15) = (before.1, before.2);
            self.spill = Spill { segment: self.spill.segment, ..Spill::default() };
            for access in &mut self.data.accesses[first..] {
                access.value = code::NO_VALUE;
            }
            self.map_safe_point(self.pc);
            self.copy_source(source);
        }
    }

    fn take_values(&mut self, source: &SourceInstruction, operands: &[OperandForm], first: usize) {
        let [operand, ..] = operands else { return self.copy_source(source) };
        let bytes = usize::from(operand.size);
        match ValueStrategy::of(source.instruction) {
            ValueStrategy::Load(register) => self.load_to(source, register, first),
            ValueStrategy::Store(register) => self.store_from(source, register, operand, first),
            ValueStrategy::StoreWhole(register) => self.store_from_whole(source, register, first),
            ValueStrategy::Constant(value) => self.store_constant(source, value, first),
            ValueStrategy::PushMemory => self.push_memory(source, bytes, first),
            ValueStrategy::PopMemory => self.pop_memory(source, bytes, first),
            ValueStrategy::PushSegment(segment) => self.push_segment(source, segment, bytes, first),
            ValueStrategy::PushFlags => self.push_flags(source, bytes, first),
            ValueStrategy::PopFlags => self.pop_flags(source, bytes, first),
            ValueStrategy::Exchange(register) => self.exchange(source, register, first),
            ValueStrategy::ExchangeAndAdd(register) => self.exchange_and_add(source, register, first),
            ValueStrategy::CompareAndExchange(register) => self.compare_and_exchange(source, register, bytes, first),
            ValueStrategy::CompareAndExchangePair => self.compare_and_exchange_pair(source, bytes, first),
            ValueStrategy::LockedArithmetic => self.locked_arithmetic(source, Some(first)),
            ValueStrategy::Computation => self.compute(source, operands, first),
            // Emulated instructions end the block before they come here.
            ValueStrategy::Unrecorded | ValueStrategy::Emulated => self.failed = true,
        }
    }

    /// The instruction as it is.
    fn copy_source(&mut self, source: &SourceInstruction) {
        self.copy_plain(source.instruction, source.decoder, source.bytes);
    }
}
