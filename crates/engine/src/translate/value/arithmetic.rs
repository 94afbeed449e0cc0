//! Locked arithmetic: replaced by `lock xadd` with a scratch register, which gives the old value.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind};

use super::exchange::Addend;
use super::memory::{field, memory, with_register};
use super::scratch::part;
use super::{RSP, SourceInstruction};
use crate::tcb;
use crate::translate::Translator;
use crate::translate::copy::free_register;
use crate::translate::operand::{general, wide};

impl Translator<'_, '_> {
    /// Replaces a locked `add`, `sub`, `inc`, `dec` or `or` with 0 by `lock xadd` with a scratch
    /// register, followed by the same arithmetic on that register for the flags. With `first`,
    /// values are recorded for the accesses from there on.
    pub(in crate::translate) fn locked_arithmetic(&mut self, source: &SourceInstruction, first: Option<usize>) {
        let instruction = source.instruction;
        let bytes = instruction.memory_size().size();
        let keeps_carry = matches!(instruction.mnemonic(), Mnemonic::Inc | Mnemonic::Dec);
        let scratch = self.take_scratch(source, RSP);
        self.load_addend(instruction, scratch);
        if keeps_carry {
            self.encode(Instruction::with1(Code::Setb_rm8, field(tcb::ORDER_CARRY)));
        }
        self.locked_exchange_and_add(source, scratch, bytes);
        self.map_between_safe_points();
        self.out.store_gs(tcb::ORDER_OLD, scratch);
        let new = first.map(|first| self.record_old(first, scratch, bytes));
        if keeps_carry {
            self.encode(Instruction::with2(Code::Bt_rm32_imm8, field(tcb::ORDER_CARRY), 0));
        }
        self.repeat_on_register(instruction, scratch, bytes);
        self.out.store_gs(tcb::ORDER_LEFT, scratch);
        if let Some(new) = new {
            self.store_data(new, bytes, scratch);
        }
        self.give_scratch();
    }

    /// Records the old value; returns the offset for the new one.
    fn record_old(&mut self, first: usize, scratch: u8, bytes: usize) -> u16 {
        let [old, new] = self.allocate_pair(first, bytes);
        self.store_data(old, bytes, scratch);
        new
    }

    /// The arithmetic on a scratch register in place of memory.
    fn repeat_on_register(&mut self, instruction: &Instruction, scratch: u8, bytes: usize) {
        match with_register(instruction, part(scratch, bytes)) {
            Some(mut changed) => {
                changed.set_has_lock_prefix(false);
                self.encode_app(Ok(changed));
            }
            None => self.failed = true,
        }
    }

    /// Loads what a locked instruction adds into a scratch register.
    fn load_addend(&mut self, instruction: &Instruction, scratch: u8) {
        let negative = matches!(instruction.mnemonic(), Mnemonic::Sub | Mnemonic::Dec);
        let constant = match (instruction.op_count(), instruction.op1_kind()) {
            (1, _) => 1,
            (_, OpKind::Register) => {
                let Some(number) = general(instruction.op1_register()) else { return self.failed = true };
                self.encode_app(Instruction::with2(Code::Mov_r64_rm64, wide(scratch), wide(number)));
                if negative {
                    self.encode(Instruction::with1(Code::Not_rm64, wide(scratch)));
                    self.add_to(scratch, Addend::Constant(1));
                }
                return;
            }
            _ => instruction.immediate(1) as i64,
        };
        let constant = if negative { constant.wrapping_neg() } else { constant };
        self.encode(Instruction::with2(Code::Mov_r64_imm64, wide(scratch), constant));
    }

    /// `lock xadd` of a scratch register and the memory operand of an instruction.
    fn locked_exchange_and_add(&mut self, source: &SourceInstruction, scratch: u8, bytes: usize) {
        let code = match bytes {
            1 => Code::Xadd_rm8_r8,
            2 => Code::Xadd_rm16_r16,
            4 => Code::Xadd_rm32_r32,
            _ => Code::Xadd_rm64_r64,
        };
        let is_far = self.is_far(source.instruction);
        let mut place = memory(source.instruction, 0);
        if is_far {
            let register = free_register(source.instruction, scratch);
            self.spill_third(register);
            self.out.load_constant(register, source.instruction.ip_rel_memory_address());
            place = MemoryOperand::with_base(wide(register));
        }
        let exchanged = Instruction::with2(code, place, part(scratch, bytes));
        self.encode_app(exchanged.map(|mut exchanged| {
            exchanged.set_has_lock_prefix(true);
            exchanged
        }));
        if is_far {
            self.map_between_safe_points();
            self.reload_third();
        }
    }
}
