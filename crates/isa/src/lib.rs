//! x86-64 instructions as this project sees them: where a block ends, how control leaves it.
//!
//! Knows nothing of processes or files; `no_std`, because the engine inside the target uses it too.
#![no_std]

use entity::AppPc;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

pub mod stack;

/// The directory of this crate's sources, from which `capture` builds the engine image.
pub const MANIFEST_DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");

/// Longest instruction in bytes.
pub const INSTRUCTION_BYTES_MAX: usize = 15;

/// How control leaves an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Goes to the next instruction.
    Next,
    /// Conditional branch (`jcc`, `loop`, `jrcxz`).
    Conditional {
        target: AppPc,
    },
    Jump {
        target: AppPc,
    },
    Call {
        target: AppPc,
    },
    IndirectJump,
    IndirectCall,
    Return,
    Syscall,
    /// Traps or faults by design (`int3`, `ud2`, `hlt`), or cannot be decoded.
    Trap,
}

impl Transfer {
    #[must_use]
    pub fn ends_block(self) -> bool {
        self != Self::Next
    }
}

/// Classifies a decoded instruction.
#[must_use]
pub fn transfer(instruction: &Instruction) -> Transfer {
    match instruction.flow_control() {
        FlowControl::Next => Transfer::Next,
        FlowControl::ConditionalBranch => Transfer::Conditional { target: near_target(instruction) },
        FlowControl::UnconditionalBranch => match instruction.op0_kind() {
            OpKind::NearBranch64 => Transfer::Jump { target: near_target(instruction) },
            _ => Transfer::Trap,
        },
        FlowControl::Call => match instruction.code() {
            Code::Syscall => Transfer::Syscall,
            Code::Call_rel32_64 => Transfer::Call { target: near_target(instruction) },
            _ => Transfer::Trap,
        },
        FlowControl::IndirectBranch => match instruction.code() {
            Code::Jmp_rm64 => Transfer::IndirectJump,
            _ => Transfer::Trap,
        },
        FlowControl::IndirectCall => match instruction.code() {
            Code::Call_rm64 => Transfer::IndirectCall,
            _ => Transfer::Trap,
        },
        FlowControl::Return => match instruction.code() {
            Code::Retnq | Code::Retnq_imm16 => Transfer::Return,
            _ => Transfer::Trap,
        },
        // A recorded transaction always aborts. Outside of one, `xabort` does nothing, and `xend`
        // faults.
        FlowControl::XbeginXabortXend => match instruction.mnemonic() {
            Mnemonic::Xbegin => Transfer::Jump { target: near_target(instruction) },
            _ => Transfer::Next,
        },
        FlowControl::Interrupt | FlowControl::Exception => Transfer::Trap,
    }
}

fn near_target(instruction: &Instruction) -> AppPc {
    AppPc::new(instruction.near_branch_target())
}

/// Whether an instruction orders memory between threads: locked, an exchange with memory, or a full
/// fence.
#[must_use]
pub fn is_locked(instruction: &Instruction) -> bool {
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg
        && (instruction.op0_kind() == OpKind::Memory || instruction.op1_kind() == OpKind::Memory);
    instruction.has_lock_prefix() || exchanges || instruction.mnemonic() == Mnemonic::Mfence
}

/// A decoder for 64-bit code at `address`.
#[must_use]
pub fn decoder(address: AppPc, bytes: &[u8]) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, address.get(), DecoderOptions::NONE)
}

/// Whether an instruction does nothing, like those that compilers fill gaps with.
#[must_use]
pub fn is_nop(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Nop
}

/// The instructions of a block, as one pass over its bytes finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub instruction_count: u32,
    /// Address of the last instruction.
    pub last: AppPc,
    /// Address after the last instruction.
    pub end: AppPc,
    /// How control leaves the last instruction; `Next` if the block was cut.
    pub transfer: Transfer,
}

/// Decodes all of `bytes` as one block at `address`. `None` if it is empty, ends in
/// mid-instruction, or has a transfer before its last instruction.
#[must_use]
pub fn shape(address: AppPc, bytes: &[u8]) -> Option<Shape> {
    let mut decoder = decoder(address, bytes);
    let mut shape = Shape { instruction_count: 0, last: address, end: address, transfer: Transfer::Next };
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        if shape.transfer.ends_block() {
            return None;
        }
        decoder.decode_out(&mut instruction);
        shape.last = AppPc::new(instruction.ip());
        shape.end = AppPc::new(instruction.next_ip());
        shape.instruction_count += 1;
        shape.transfer = if instruction.is_invalid() { Transfer::Trap } else { transfer(&instruction) };
    }
    let whole = shape.end - address == bytes.len() as u64;
    (shape.instruction_count > 0 && whole).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: Transfer) {
        let shape = shape(AppPc::new(0x1000), bytes).unwrap();
        assert_eq!(shape.transfer, expected);
        assert_eq!(shape.instruction_count, 1);
    }

    #[test]
    fn transfers() {
        check(&[0x90], Transfer::Next);
        check(&[0x74, 0x10], Transfer::Conditional { target: AppPc::new(0x1012) });
        check(&[0xe2, 0xfe], Transfer::Conditional { target: AppPc::new(0x1000) });
        check(&[0xe3, 0x00], Transfer::Conditional { target: AppPc::new(0x1002) });
        check(&[0xeb, 0x00], Transfer::Jump { target: AppPc::new(0x1002) });
        check(&[0xe8, 0, 0, 0, 0], Transfer::Call { target: AppPc::new(0x1005) });
        check(&[0xff, 0xe0], Transfer::IndirectJump);
        check(&[0xff, 0xd0], Transfer::IndirectCall);
        check(&[0xff, 0x25, 0, 0, 0, 0], Transfer::IndirectJump);
        check(&[0xc3], Transfer::Return);
        check(&[0xf3, 0xc3], Transfer::Return);
        check(&[0xc2, 8, 0], Transfer::Return);
        check(&[0x0f, 0x05], Transfer::Syscall);
        check(&[0xc7, 0xf8, 0x10, 0, 0, 0], Transfer::Jump { target: AppPc::new(0x1016) });
        check(&[0x0f, 0x01, 0xd5], Transfer::Next);
        check(&[0xc6, 0xf8, 5], Transfer::Next);
        check(&[0xcc], Transfer::Trap);
        check(&[0x0f, 0x0b], Transfer::Trap);
    }

    #[test]
    fn locked_instructions() {
        let check = |bytes: &[u8], expected| {
            assert_eq!(is_locked(&decoder(AppPc::NONE, bytes).decode()), expected, "{bytes:x?}")
        };
        check(&[0xf0, 0x0f, 0xb1, 0x0a], true); // lock cmpxchg [rdx], ecx
        check(&[0x87, 0x0a], true); // xchg [rdx], ecx
        check(&[0x87, 0xca], false); // xchg edx, ecx
        check(&[0x0f, 0xae, 0xf0], true); // mfence
        check(&[0x0f, 0xb1, 0x0a], false); // cmpxchg [rdx], ecx
    }

    #[test]
    fn a_transfer_in_the_middle_is_no_block() {
        assert_eq!(shape(AppPc::NONE, &[0xc3, 0x90]), None);
        assert_eq!(shape(AppPc::NONE, &[]), None);
    }
}
