//! Checked code: code that may change unnoticed, because its memory is written to often or mapped a
//! second time. A checked block begins with a comparison of its bytes in memory with those that it
//! was translated from. It ends after an instruction that writes to memory, which may have changed
//! the next one.

use entity::AppPc;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess};
use isa::Transfer;
use wire::code::{TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN};

use super::{BLOCK_INSTRUCTIONS_MAX, ENTRY_CHANGED, RegisterState, SideExit, SideTarget, SourceBlock, Translator};

const RCX: u8 = 1;
const RDX: u8 = 2;

/// Whether a checked block ends after this instruction. Writes to the stack do not count.
pub(super) fn writes(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let writes = |access| {
        matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    };
    !instruction.is_stack_instruction()
        && factory.info(instruction).used_memory().iter().any(|memory| writes(memory.access()))
}

/// The length of a checked block, if nothing else ends it earlier.
pub fn length(address: AppPc, code: &[u8]) -> usize {
    let mut decoder = isa::decoder(address, code);
    let mut instruction = Instruction::default();
    let mut end = 0;
    for _ in 0..BLOCK_INSTRUCTIONS_MAX {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes {
            break;
        }
        end = decoder.position();
        if instruction.is_invalid() || isa::transfer(&instruction) != Transfer::Next || writes(&instruction) {
            break;
        }
    }
    end
}

/// The terminator of a block that is followed by another one in a superblock.
pub(super) fn terminator_of(transfer: Transfer, taken: bool) -> u32 {
    match transfer {
        Transfer::Conditional { .. } if taken => TERMINATOR_TAKEN,
        Transfer::Conditional { .. } => TERMINATOR_NOT_TAKEN,
        Transfer::Jump { .. } | Transfer::Call { .. } => TERMINATOR_DIRECT,
        _ => TERMINATOR_INDIRECT,
    }
}

impl Translator<'_, '_> {
    /// Emits the comparison of a block's bytes; a side exit is taken if they have changed.
    pub(super) fn check(&mut self, block: &SourceBlock) {
        let state = if self.has_app_r15 { RegisterState::ScratchApp } else { RegisterState::Scratch };
        self.map_safe_point(block.address);
        self.out.spill_scratch();
        self.map(block.address, state);
        let code = &block.code[..length(block.address, block.code)];
        let mut exit_jump = None;
        for (offset, size) in pieces(code.len()) {
            let mut expected = [0; 8];
            expected[..size].copy_from_slice(&code[offset..offset + size]);
            self.load_code(block.address + offset as u64, size);
            self.out.load_constant(RDX, u64::from_le_bytes(expected).wrapping_neg());
            self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
            self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
            match exit_jump {
                Some(address) => drop(self.out.jump(address)),
                None => {
                    exit_jump = Some(self.out.here());
                    let site = self.out.jump_ahead();
                    let target = SideTarget::Changed { target: block.address, terminator: self.terminator_before };
                    let (has_app_r15, blocks, data) = (self.has_app_r15, u16::from(self.block), self.data.length);
                    self.side_exits.push(SideExit { site, has_app_r15, blocks, data, target });
                }
            }
        }
        self.out.reload_scratch();
    }

    /// `mov rcx, [address]`, zero-extended from `size` bytes.
    fn load_code(&mut self, address: AppPc, size: usize) {
        let opcode: &[u8] = match size {
            8 => &[0x48, 0x8b],
            4 => &[0x8b],
            2 => &[0x0f, 0xb7],
            _ => &[0x0f, 0xb6],
        };
        let end = self.out.here() + opcode.len() as u64 + 5;
        match i32::try_from(address.get().wrapping_sub(end.get()) as i64) {
            Ok(displacement) => {
                self.out.bytes(opcode);
                self.out.bytes(&[0x0d]); // rcx, [rip + displacement]
                self.out.bytes(&displacement.to_le_bytes());
            }
            Err(_) => {
                self.out.load_constant(RCX, address.get());
                self.out.bytes(opcode);
                self.out.bytes(&[0x09]); // rcx, [rcx]
            }
        }
    }

    /// Emits the exit for changed code of the block at `target`, after `blocks` blocks.
    pub(super) fn exit_changed(&mut self, blocks: u16, target: AppPc, terminator: u32) {
        self.out.reload_scratch();
        if blocks > 0 {
            return self.exit_after(blocks, target, terminator);
        }
        // Nothing has been executed, so there is no path to record.
        self.out.exit_stub(self.options.fragment.first_path().get() | ENTRY_CHANGED);
    }
}

/// Offsets and sizes of the pieces that one load can compare. The last may overlap the one before.
fn pieces(length: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let rest = length - at;
        let piece = match rest {
            0 => return None,
            1..8 if length >= 8 => (length - 8, 8),
            _ => {
                let size = [8, 4, 2, 1].into_iter().find(|size| *size <= rest)?;
                (at, size)
            }
        };
        at = piece.0 + piece.1;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_compared() {
        for length in 0..100 {
            let mut seen = vec![false; length];
            for (offset, size) in pieces(length) {
                assert!([1, 2, 4, 8].contains(&size));
                seen[offset..offset + size].fill(true);
            }
            assert!(seen.iter().all(|seen| *seen), "{length}");
        }
    }

    #[test]
    fn checked_blocks_end_after_a_write() {
        let length = |code: &[u8]| length(AppPc::new(0x1000), code);
        assert_eq!(length(&[0x90, 0x90, 0xc3, 0x90]), 3);
        assert_eq!(length(&[0x90, 0x89, 0x08, 0x90, 0xc3]), 3, "mov [rax], ecx");
        assert_eq!(length(&[0x8b, 0x08, 0x39, 0x08, 0x50, 0xc3]), 6, "loads, comparisons and pushes do not");
        assert_eq!(length(&[0x90, 0xf3, 0xaa, 0xc3]), 3, "rep stosb");
        assert_eq!(length(&[0x90, 0x48]), 1, "memory ends in mid-instruction");
    }
}
