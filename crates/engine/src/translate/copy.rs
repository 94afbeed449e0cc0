//! Instructions without transfer. They are copied; operands relative to rip are relocated, and r15
//! is the application's while an instruction uses it.

use iced_x86::{Decoder, Instruction, OpKind, Register};

use super::value::SourceInstruction;
use super::{Spill, Translator, pc_after, pc_of, segment};

impl Translator<'_, '_> {
    /// An instruction without transfer.
    pub(super) fn copy(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        if segment::is_relative(instruction) {
            self.copy_with_base(instruction, decoder);
        } else {
            self.copy_rebased(instruction, decoder, bytes);
        }
    }

    /// An instruction without transfer that is not relative to gs, or not any more.
    pub(super) fn copy_rebased(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        if self.options.data == wire::DATA_NONE {
            self.copy_plain(instruction, decoder, bytes);
        } else {
            self.copy_recorded(instruction, decoder, bytes);
        }
    }

    /// The instruction as it is.
    pub(super) fn copy_plain(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        let pc = pc_of(instruction);
        self.map_safe_point(pc);
        if uses_r15(instruction) && !self.has_app_r15 {
            self.require_app_r15();
            self.map_safe_point(pc);
        }
        if self.is_locked_arithmetic() {
            return self.copy_arithmetic(&SourceInstruction { instruction, decoder, bytes });
        }
        if !instruction.is_ip_rel_memory_operand() {
            self.out.bytes(bytes);
            return;
        }
        let offset = decoder.get_constant_offsets(instruction).displacement_offset();
        let address = instruction.ip_rel_memory_address();
        if !self.copy_relative(bytes, offset, address) {
            self.copy_far(instruction, bytes, offset, address);
        }
    }

    /// Copies with the displacement at `offset` changed to lead to `address`; false if that is too
    /// far.
    pub(super) fn copy_relative(&mut self, bytes: &[u8], offset: usize, address: u64) -> bool {
        let end = self.out.here() + bytes.len() as u64;
        let displacement = address.wrapping_sub(end.get()) as i64;
        let Ok(displacement) = i32::try_from(displacement) else { return false };
        self.out.bytes(&bytes[..offset]);
        self.out.bytes(&displacement.to_le_bytes());
        self.out.bytes(&bytes[offset + 4..]);
        true
    }

    /// Copies with `[rip + displacement]` replaced by `[register]`, the register holding the
    /// address.
    fn copy_far(&mut self, instruction: &Instruction, bytes: &[u8], offset: usize, address: u64) {
        let pc = pc_of(instruction);
        let register = free_register(instruction, self.spill.general);
        self.out.store_gs(crate::tcb::SCRATCH_THIRD, register);
        self.spill.third = register;
        self.map_safe_point(pc);
        self.out.load_constant(register, address);
        self.out.bytes(&bytes[..offset - 1]);
        self.out.bytes(&[bytes[offset - 1] & 0x38 | register]);
        self.out.bytes(&bytes[offset + 4..]);
        if self.locked.is_some() {
            // A locked instruction is not complete before its order is known.
            self.map_between_safe_points();
        } else {
            self.map_safe_point(pc_after(instruction));
        }
        self.out.load_gs(register, crate::tcb::SCRATCH_THIRD);
        self.spill.third = Spill::NONE;
    }

    /// Switches r15 to the application's value.
    pub(super) fn require_app_r15(&mut self) {
        if !self.has_app_r15 {
            self.out.load_app_r15();
            self.has_app_r15 = true;
        }
    }

    /// Switches r15 to the cursor.
    pub(super) fn require_cursor(&mut self) {
        if self.has_app_r15 {
            self.out.load_cursor();
            self.has_app_r15 = false;
        }
    }
}

/// Whether an instruction names r15 or a part of it.
pub(super) fn uses_r15(instruction: &Instruction) -> bool {
    let is_r15 = |register| matches!(register, Register::R15 | Register::R15D | Register::R15W | Register::R15L);
    (0..instruction.op_count()).any(|operand| match instruction.op_kind(operand) {
        OpKind::Register => is_r15(instruction.op_register(operand)),
        OpKind::Memory => is_r15(instruction.memory_base()) || is_r15(instruction.memory_index()),
        _ => false,
    })
}

/// A low register that the instruction does not use, not rsp or rbp or `but`.
pub(super) fn free_register(instruction: &Instruction, but: u8) -> u8 {
    const CANDIDATES: [(Register, u8); 6] = [
        (Register::RSI, 6),
        (Register::RDI, 7),
        (Register::RBX, 3),
        (Register::RCX, 1),
        (Register::RDX, 2),
        (Register::RAX, 0),
    ];
    let mut factory = iced_x86::InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    CANDIDATES
        .iter()
        .filter(|(_, number)| *number != but)
        .find(|(candidate, _)| used.iter().all(|used| used.register().full_register() != *candidate))
        .map_or(6, |(_, number)| *number)
}
