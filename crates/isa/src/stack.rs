//! What code does to the stack pointer, as far as the code alone says.

use entity::AppPc;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::{Transfer, decoder, transfer};

/// What an instruction does to the stack pointer. A transfer counts with what it pushes or pops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StackMove {
    By(i64),
    /// Takes it from the frame pointer, as at the end of a function.
    ToFrame,
    /// Gives it a value that the code does not say.
    Unknown,
}

/// What a block, or its beginning, does to the stack pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStack {
    /// The sum of all changes by constants, or of those since the code gave it an unknown value.
    /// Leaves out what the call or return at the end of the block does.
    pub change: i64,
    /// The code gave it an unknown value.
    pub is_unknown: bool,
    /// How the block ends, as far as the stack is concerned.
    pub end: StackEnd,
}

/// The end of a block, as far as the stack is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackEnd {
    #[default]
    Other,
    /// A call, which pushes this return address.
    Call(AppPc),
    /// A return, which pops as many bytes.
    Return(u16),
}

/// Follows the stack pointer through the block at `address`, up to the instruction at `until`.
#[must_use]
pub fn follow_stack(address: AppPc, code: &[u8], until: AppPc) -> BlockStack {
    let mut stack = BlockStack::default();
    for instruction in decoder(address, code).iter().take_while(|instruction| instruction.ip() < until.get()) {
        match transfer(&instruction) {
            Transfer::Call { .. } | Transfer::IndirectCall => {
                stack.end = StackEnd::Call(AppPc::new(instruction.next_ip()));
            }
            Transfer::Return => {
                let operand = if instruction.op_count() == 0 { 0 } else { instruction.immediate16() };
                stack.end = StackEnd::Return(8_u16.wrapping_add(operand));
            }
            _ => match stack_move(&instruction) {
                StackMove::By(change) => stack.change = stack.change.wrapping_add(change),
                StackMove::ToFrame | StackMove::Unknown => {
                    stack = BlockStack { change: 0, is_unknown: true, end: StackEnd::Other };
                }
            },
        }
    }
    stack
}

/// Whether the code of a block does not say where the stack pointer is behind it. A function that
/// takes it from its frame pointer and returns at once puts it where it was at the call.
#[must_use]
pub fn loses_stack(address: AppPc, code: &[u8]) -> bool {
    let mut is_lost = false;
    for instruction in decoder(address, code).iter() {
        match (transfer(&instruction), stack_move(&instruction)) {
            (Transfer::Return, _) => return is_lost && has_unknown_move(address, code),
            (Transfer::Next, StackMove::ToFrame | StackMove::Unknown) => is_lost = true,
            (Transfer::Next, StackMove::By(_)) => {}
            _ => return is_lost,
        }
    }
    is_lost
}

fn has_unknown_move(address: AppPc, code: &[u8]) -> bool {
    decoder(address, code).iter().any(|instruction| stack_move(&instruction) == StackMove::Unknown)
}

fn stack_move(instruction: &Instruction) -> StackMove {
    match instruction.mnemonic() {
        Mnemonic::Leave => StackMove::ToFrame,
        Mnemonic::Enter => StackMove::Unknown,
        Mnemonic::Xchg | Mnemonic::Xadd if is_stack_pointer(instruction, 1) => StackMove::Unknown,
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt => push_move(instruction),
        _ if is_stack_pointer(instruction, 0) => assignment_move(instruction),
        _ => push_move(instruction),
    }
}

/// What an instruction pushes and pops.
fn push_move(instruction: &Instruction) -> StackMove {
    StackMove::By(i64::from(instruction.stack_pointer_increment()))
}

/// What an instruction does whose first operand is the stack pointer.
fn assignment_move(instruction: &Instruction) -> StackMove {
    let is_whole = instruction.op0_register() == Register::RSP;
    let is_immediate = instruction.op_count() == 2
        && matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    match instruction.mnemonic() {
        Mnemonic::Add if is_whole && is_immediate => StackMove::By(instruction.immediate(1).cast_signed()),
        Mnemonic::Sub if is_whole && is_immediate => {
            StackMove::By(instruction.immediate(1).cast_signed().wrapping_neg())
        }
        Mnemonic::Lea if is_whole && instruction.memory_index() == Register::None => {
            let displacement = instruction.memory_displacement64().cast_signed();
            match instruction.memory_base() {
                Register::RSP => StackMove::By(displacement),
                Register::RBP => StackMove::ToFrame,
                _ => StackMove::Unknown,
            }
        }
        Mnemonic::Mov if is_whole && instruction.op1_kind() == OpKind::Register => match instruction.op1_register() {
            Register::RBP => StackMove::ToFrame,
            Register::RSP => StackMove::By(0),
            _ => StackMove::Unknown,
        },
        _ => StackMove::Unknown,
    }
}

fn is_stack_pointer(instruction: &Instruction, operand: u32) -> bool {
    operand < instruction.op_count()
        && instruction.op_kind(operand) == OpKind::Register
        && instruction.op_register(operand).full_register() == Register::RSP
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: AppPc = AppPc::new(0x1000);

    fn check(code: &[u8], change: i64, is_unknown: bool, end: StackEnd, is_lost: bool) {
        let stack = follow_stack(HERE, code, HERE + code.len() as u64);
        assert_eq!(stack, BlockStack { change, is_unknown, end }, "{code:02x?}");
        assert_eq!(loses_stack(HERE, code), is_lost, "{code:02x?}");
    }

    #[test]
    fn constants_are_added_up() {
        // push rbp; mov rbp, rsp; sub rsp, 0x20; cmp rsp, rax
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0x48, 0x39, 0xc4];
        check(&code, -0x28, false, StackEnd::Other, false);
        // add rsp, 8; pop rbx; lea rsp, [rsp - 8]; ret
        let code = [0x48, 0x83, 0xc4, 8, 0x5b, 0x48, 0x8d, 0x64, 0x24, 0xf8, 0xc3];
        check(&code, 8, false, StackEnd::Return(8), false);
        // pushf; call $+5
        let code = [0x9c, 0xe8, 0, 0, 0, 0];
        check(&code, -8, false, StackEnd::Call(HERE + 6), false);
        // ret 16
        check(&[0xc2, 16, 0], 0, false, StackEnd::Return(24), false);
        // syscall
        check(&[0x0f, 0x05], 0, false, StackEnd::Other, false);
    }

    #[test]
    fn the_end_of_a_function_with_a_frame_pointer() {
        // leave; ret
        check(&[0xc9, 0xc3], 0, true, StackEnd::Return(8), false);
        // lea rsp, [rbp - 8]; pop rbx; pop rbp; ret
        check(&[0x48, 0x8d, 0x65, 0xf8, 0x5b, 0x5d, 0xc3], 16, true, StackEnd::Return(8), false);
        // leave; jmp rax: a tail call
        check(&[0xc9, 0xff, 0xe0], 0, true, StackEnd::Other, true);
    }

    #[test]
    fn values_that_the_code_does_not_say() {
        // and rsp, -64; push rax
        check(&[0x48, 0x83, 0xe4, 0xc0, 0x50], -8, true, StackEnd::Other, true);
        // mov rsp, rcx; ret: how an unwinder ends
        check(&[0x48, 0x89, 0xcc, 0xc3], 0, true, StackEnd::Return(8), true);
        // sub rsp, rax; call rbx
        check(&[0x48, 0x29, 0xc4, 0xff, 0xd3], 0, true, StackEnd::Call(HERE + 5), true);
        for code in [&[0x5c][..], &[0x48, 0x94], &[0xc8, 8, 0, 0], &[0x89, 0xec], &[0x48, 0x8b, 0x20]] {
            check(code, 0, true, StackEnd::Other, true);
        }
    }

    #[test]
    fn a_part_of_a_block() {
        // push rax; push rbx; ret
        let code = [0x50, 0x53, 0xc3];
        assert_eq!(follow_stack(HERE, &code, HERE + 1).change, -8);
        assert_eq!(follow_stack(HERE, &code, HERE + 2).end, StackEnd::Other);
    }
}
