//! Operands that are read through a vector register.

use iced_x86::{Code, EncodingKind, IcedError, Instruction, MemoryOperand, Mnemonic, Register};
use wire::code;

use super::SourceInstruction;
use super::memory::memory;
use crate::tcb;
use crate::translate::operand::{Mask, OperandForm};
use crate::translate::{Spill, Translator};

impl Translator<'_, '_> {
    /// A vector register that the instruction does not use, by number.
    pub(super) fn free_vector(&self) -> u8 {
        let is_free = |number: u8| {
            let full = Register::ZMM0 + u32::from(number);
            self.data.used.iter().all(|used| used.register().full_register() != full)
        };
        (0..16).rev().find(|number| is_free(*number)).unwrap_or(15)
    }

    pub(super) fn read_vector(
        &mut self,
        source: &SourceInstruction,
        operand: &OperandForm,
        register: Register,
        replaced: Instruction,
        first: usize,
    ) {
        let bytes = if operand.kind == code::ANY { usize::from(operand.size) } else { usize::from(operand.bytes()) };
        let number = register.number() as u8;
        self.spill_vector(number, bytes);
        self.encode_app(load_vector(source.instruction, operand, register));
        let offset = self.allocate(bytes);
        self.store_value(offset, register, bytes);
        self.data.accesses[first].value = offset;
        self.encode_app(Ok(replaced));
        self.map_between_safe_points();
        self.reload_vector(number, bytes);
    }

    fn spill_vector(&mut self, number: u8, bytes: usize) {
        let saved = self.saved_bytes(bytes);
        self.encode(move_vector(vector_of(number, saved), saved, true));
        self.spill.vector = number;
        self.map_again();
    }

    fn reload_vector(&mut self, number: u8, bytes: usize) {
        let saved = self.saved_bytes(bytes);
        self.encode(move_vector(vector_of(number, saved), saved, false));
        self.spill.vector = Spill::NONE;
        self.map_again();
    }

    /// Bytes to save of a vector register whose low bytes are used. VEX and EVEX instructions clear
    /// the bytes above.
    fn saved_bytes(&self, bytes: usize) -> usize {
        match bytes {
            ..=16 => 16,
            _ if self.options.has_avx512 => 64,
            _ => 32,
        }
    }
}

/// The vector register with this number that has at least so many bytes.
pub(super) fn vector_of(number: u8, bytes: usize) -> Register {
    let first = match bytes {
        ..=16 => Register::XMM0,
        32 => Register::YMM0,
        _ => Register::ZMM0,
    };
    first + u32::from(number)
}

/// Saves a vector register in the thread's state, or restores it.
fn move_vector(register: Register, bytes: usize, save: bool) -> Result<Instruction, IcedError> {
    let place =
        MemoryOperand::new(Register::None, Register::None, 1, i64::from(tcb::SCRATCH_VECTOR), 4, false, Register::GS);
    let (store, load) = match bytes {
        16 => (Code::Movups_xmmm128_xmm, Code::Movups_xmm_xmmm128),
        32 => (Code::VEX_Vmovups_ymmm256_ymm, Code::VEX_Vmovups_ymm_ymmm256),
        _ => (Code::EVEX_Vmovups_zmmm512_k1z_zmm, Code::EVEX_Vmovups_zmm_k1z_zmmm512),
    };
    if save { Instruction::with2(store, place, register) } else { Instruction::with2(load, register, place) }
}

/// Loads the memory operand of an instruction into a vector register, with the faults that the
/// instruction would have.
fn load_vector(instruction: &Instruction, operand: &OperandForm, register: Register) -> Result<Instruction, IcedError> {
    let bytes = if operand.kind == code::ANY { usize::from(operand.size) } else { usize::from(operand.bytes()) };
    let place = memory(instruction, 0);
    if let Mask::Bits(mask) = operand.mask
        && operand.kind != code::ANY
    {
        let mut load = Instruction::with2(masked_load(operand, bytes), register, place)?;
        load.set_op_mask(mask);
        load.set_zeroing_masking(true);
        return Ok(load);
    }
    let is_legacy = instruction.encoding() == EncodingKind::Legacy;
    let tolerates = matches!(
        instruction.mnemonic(),
        Mnemonic::Pcmpestri | Mnemonic::Pcmpestrm | Mnemonic::Pcmpistri | Mnemonic::Pcmpistrm
    );
    let code = match bytes {
        4 => Code::Movss_xmm_xmmm32,
        8 => Code::Movsd_xmm_xmmm64,
        16 if is_legacy && !tolerates => Code::Movaps_xmm_xmmm128,
        16 => Code::Movups_xmm_xmmm128,
        32 => Code::VEX_Vmovups_ymm_ymmm256,
        _ => Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    };
    Instruction::with2(code, register, place)
}

fn masked_load(operand: &OperandForm, bytes: usize) -> Code {
    match (operand.size, bytes, operand.count) {
        (4, _, 1) => Code::EVEX_Vmovss_xmm_k1z_m32,
        (8, _, 1) => Code::EVEX_Vmovsd_xmm_k1z_m64,
        (1, ..=16, _) => Code::EVEX_Vmovdqu8_xmm_k1z_xmmm128,
        (1, 32, _) => Code::EVEX_Vmovdqu8_ymm_k1z_ymmm256,
        (1, ..) => Code::EVEX_Vmovdqu8_zmm_k1z_zmmm512,
        (2, ..=16, _) => Code::EVEX_Vmovdqu16_xmm_k1z_xmmm128,
        (2, 32, _) => Code::EVEX_Vmovdqu16_ymm_k1z_ymmm256,
        (2, ..) => Code::EVEX_Vmovdqu16_zmm_k1z_zmmm512,
        (4, ..=16, _) => Code::EVEX_Vmovdqu32_xmm_k1z_xmmm128,
        (4, 32, _) => Code::EVEX_Vmovdqu32_ymm_k1z_ymmm256,
        (4, ..) => Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512,
        (_, ..=16, _) => Code::EVEX_Vmovdqu64_xmm_k1z_xmmm128,
        (_, 32, _) => Code::EVEX_Vmovdqu64_ymm_k1z_ymmm256,
        _ => Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512,
    }
}
