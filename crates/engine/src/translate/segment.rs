//! Operands relative to gs. The processor's gs is the engine's, so an unused register is loaded
//! with the application's base, and the instruction gets an operand relative to that register. Its
//! data is recorded as for any operand with a base register.

use alloc::vec::Vec;
use iced_x86::{Code, Decoder, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, OpKind, Register};
use wire::code;

use super::copy::uses_r15;
use super::operand::{general, wide};
use super::symbol::Symbol;
use super::{RegisterState, Spill, Translator, pc_of};
use crate::tcb;

const RCX: u8 = 1;
const RDX: u8 = 2;
const RDI: u8 = 7;

/// Registers that may take the base. The first ones need no REX prefix, which instructions with
/// `ah` cannot have.
const CANDIDATES: [u8; 11] = [6, 7, 3, 2, 1, 0, 8, 9, 10, 11, 12];
const LEGACY: usize = 6;

/// Whether an instruction has a memory operand relative to gs that can get another base.
pub(super) fn is_relative(instruction: &Instruction) -> bool {
    if instruction.segment_prefix() != Register::GS {
        return false;
    }
    // `lea` computes an offset, `nop` nothing.
    !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
        && (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory || is_by_rdi(instruction, at))
}

/// Whether an operand is that of a masked move: at rdi, in the instruction's segment.
fn is_by_rdi(instruction: &Instruction, at: u32) -> bool {
    matches!(instruction.op_kind(at), OpKind::MemorySegRDI | OpKind::MemorySegEDI)
}

/// Whether the engine has to emulate an instruction: it reads or writes gs itself, or its operand
/// has no other encoding.
pub(super) fn is_for_the_engine(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Wrgsbase | Mnemonic::Rdgsbase | Mnemonic::Lgs => true,
        Mnemonic::Mov | Mnemonic::Pop => {
            instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::GS
        }
        Mnemonic::Xlatb => instruction.segment_prefix() == Register::GS,
        _ => {
            instruction.segment_prefix() == Register::GS
                && (0..instruction.op_count())
                    .any(|at| matches!(instruction.op_kind(at), OpKind::MemorySegRSI | OpKind::MemorySegESI))
        }
    }
}

/// A register that the instruction does not use.
fn free_register(instruction: &Instruction) -> u8 {
    let is_high = |register| matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let names_high = (0..instruction.op_count())
        .any(|at| instruction.op_kind(at) == OpKind::Register && is_high(instruction.op_register(at)));
    let candidates = if names_high { &CANDIDATES[..LEGACY] } else { &CANDIDATES[..] };
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers();
    let is_free = |number: &&u8| used.iter().all(|used| general(used.register()) != Some(**number));
    candidates.iter().find(is_free).copied().unwrap_or(CANDIDATES[0])
}

/// The same move with an operand that can have a register.
fn without_moffs(code: Code) -> Code {
    match code {
        Code::Mov_AL_moffs8 => Code::Mov_r8_rm8,
        Code::Mov_AX_moffs16 => Code::Mov_r16_rm16,
        Code::Mov_EAX_moffs32 => Code::Mov_r32_rm32,
        Code::Mov_RAX_moffs64 => Code::Mov_r64_rm64,
        Code::Mov_moffs8_AL => Code::Mov_rm8_r8,
        Code::Mov_moffs16_AX => Code::Mov_rm16_r16,
        Code::Mov_moffs32_EAX => Code::Mov_rm32_r32,
        Code::Mov_moffs64_RAX => Code::Mov_rm64_r64,
        code => code,
    }
}

/// Whether the address has to be computed before the base is added: it is truncated to 32 bits, or
/// too large for a displacement.
fn is_apart(instruction: &Instruction) -> bool {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let is_constant = (base, index) == (Register::None, Register::None);
    base.is_gpr32()
        || index.is_gpr32()
        || instruction.is_ip_rel_memory_operand()
        || is_constant && i32::try_from(instruction.memory_displacement64() as i64).is_err()
}

/// The amount that `pop` adds to the stack pointer before it is used in an address.
fn moved(instruction: &Instruction) -> i64 {
    let by_stack = matches!(instruction.memory_base(), Register::RSP | Register::ESP);
    if by_stack && instruction.mnemonic() == Mnemonic::Pop {
        i64::from(instruction.stack_pointer_increment())
    } else {
        0
    }
}

fn operand(base: Register, index: Register, scale: u32, displacement: i64) -> MemoryOperand {
    let size = u32::from(displacement != 0);
    MemoryOperand::new(base, index, scale, displacement, size, false, Register::None)
}

impl Translator<'_, '_> {
    /// An instruction without transfer with an operand relative to gs.
    pub(super) fn copy_with_base(&mut self, instruction: &Instruction, decoder: &Decoder) {
        self.pc = pc_of(instruction);
        self.data.complete = self.data.length;
        self.map_safe_point(self.pc);
        if uses_r15(instruction) && !self.has_app_r15 {
            self.require_app_r15();
            self.map_safe_point(self.pc);
        }
        let by_rdi = (0..instruction.op_count()).any(|at| is_by_rdi(instruction, at));
        let number = if by_rdi { RDI } else { free_register(instruction) };
        self.out.store_gs(tcb::SCRATCH_SEGMENT, number);
        self.spill.segment = number;
        self.map_safe_point(self.pc);
        let before = self.data.symbols.get(number);
        self.data.symbols.set(number, Symbol::Unknown);
        self.failed = false;
        let rebased = if by_rdi { self.rebase_rdi(instruction) } else { self.rebase(instruction, number) };
        match self.encoded(&rebased) {
            Some(bytes) => self.copy_rebased(&rebased, decoder, &bytes),
            // Indices in a vector of addresses of 32 bits.
            None => self.out.bytes(&[0x0f, 0x0b]),
        }
        self.map_between_safe_points();
        self.out.load_gs(number, tcb::SCRATCH_SEGMENT);
        self.spill.segment = Spill::NONE;
        self.data.symbols.set(number, before);
    }

    /// The bytes of an instruction, if there is an encoding.
    fn encoded(&mut self, instruction: &Instruction) -> Option<Vec<u8>> {
        let here = self.out.here();
        let encoder = self.data.encoder();
        let is_encoded = encoder.encode(instruction, here.get()).is_ok();
        let bytes = encoder.take_buffer();
        (is_encoded && !self.failed).then_some(bytes)
    }

    /// The instruction with an operand that is relative to a register, and the register filled.
    fn rebase(&mut self, instruction: &Instruction, number: u8) -> Instruction {
        let register = wide(number);
        let mut changed = *instruction;
        changed.set_segment_prefix(Register::None);
        changed.set_code(without_moffs(instruction.code()));
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let mut displacement = (instruction.memory_displacement64() as i64).wrapping_add(moved(instruction));
        let mut rest = index;
        if is_apart(instruction) {
            // A vector of indices with a base of 32 bits has no other encoding.
            self.failed |= instruction.is_vsib();
            self.load_effective_address(instruction, number);
            self.add_base(number);
            (rest, displacement) = (Register::None, 0);
        } else {
            self.out.load_gs(number, tcb::GS_BASE);
            if base != Register::None && (index != Register::None || base == Register::RSP) {
                let sum = operand(base, register, 1, 0);
                self.encode(Instruction::with2(Code::Lea_r64_m, register, sum));
            } else if base != Register::None {
                rest = base;
            }
        }
        let scale = if rest == index { instruction.memory_index_scale() } else { 1 };
        changed.set_memory_base(register);
        changed.set_memory_index(rest);
        changed.set_memory_index_scale(scale);
        changed.set_memory_displacement64(displacement as u64);
        changed.set_memory_displ_size(u32::from(displacement != 0));
        changed
    }

    /// Sets a register to the address that an operand has without its segment.
    fn load_effective_address(&mut self, instruction: &Instruction, number: u8) {
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let displacement = (instruction.memory_displacement64() as i64).wrapping_add(moved(instruction));
        let load = if instruction.is_ip_rel_memory_operand() {
            Instruction::with2(Code::Mov_r64_imm64, wide(number), instruction.ip_rel_memory_address())
        } else if (base, index) == (Register::None, Register::None) {
            Instruction::with2(Code::Mov_r64_imm64, wide(number), displacement as u64)
        } else {
            let place = operand(base, index, instruction.memory_index_scale(), displacement);
            Instruction::with2(Code::Lea_r64_m, wide(number), place)
        };
        self.encode(load);
    }

    /// Adds the base to a register.
    fn add_base(&mut self, number: u8) {
        let other = if number == RCX { RDX } else { RCX };
        self.spill_third(other);
        self.out.load_gs(other, tcb::GS_BASE);
        self.encode(Instruction::with2(Code::Lea_r64_m, wide(number), operand(wide(number), wide(other), 1, 0)));
        self.reload_third();
    }

    /// The instruction with the base added to rdi.
    fn rebase_rdi(&mut self, instruction: &Instruction) -> Instruction {
        let mut changed = *instruction;
        changed.set_segment_prefix(Register::None);
        for at in 0..instruction.op_count() {
            if instruction.op_kind(at) == OpKind::MemorySegEDI {
                changed.set_op_kind(at, OpKind::MemorySegRDI);
                self.encode(Instruction::with2(Code::Mov_r32_rm32, Register::EDI, Register::EDI));
            }
        }
        self.add_base(RDI);
        changed
    }

    /// Loads the target of an indirect jump or call, whose operand is relative to gs, into rcx. rcx
    /// and rdx are spilled. `access` is the index of its access descriptor.
    pub(super) fn load_target_with_base(&mut self, instruction: &Instruction, access: usize) {
        let pc = pc_of(instruction);
        let state = |has_app_r15| if has_app_r15 { RegisterState::ScratchApp } else { RegisterState::Scratch };
        self.map(pc, state(self.has_app_r15));
        self.failed = false;
        self.load_effective_address(instruction, RCX);
        self.out.load_gs(RDX, tcb::GS_BASE);
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        if self.data.mode != wire::DATA_NONE {
            self.map_between_safe_points();
            let offset = self.allocate(8);
            self.store_general(offset, RCX);
            self.data.accesses[access].base = offset;
            self.data.accesses[access].flags |= code::HAS_BASE;
            self.map(pc, state(self.has_app_r15));
        }
        self.out.bytes(&[0x48, 0x8b, 0x09]); // mov rcx, [rcx]
    }
}
