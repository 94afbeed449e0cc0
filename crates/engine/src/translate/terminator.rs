//! Terminators: control transfers, which are replaced. The superblock continues behind a transfer
//! whose target is its next block; other transfers end it with exits.

use entity::AppPc;
use iced_x86::{Code, Decoder, Instruction, Mnemonic, OpKind};
use isa::Transfer;
use wire::code::{TERMINATOR_DIRECT, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL, TERMINATOR_TAKEN};

use super::copy::uses_r15;
use super::symbol::Symbol;
use super::value::SourceInstruction;
use super::{ExitKind, RegisterState, SideTarget, Translator, pc_after, pc_of, segment};

impl Translator<'_, '_> {
    /// Continues the superblock at `next`, behind this transfer. `None`, and nothing emitted, if it
    /// cannot.
    pub(super) fn continue_through(
        &mut self,
        source: &SourceInstruction,
        transfer: Transfer,
        next: AppPc,
    ) -> Option<()> {
        let instruction = source.instruction;
        self.data.complete = self.data.length;
        self.map_safe_point(pc_of(instruction));
        match transfer {
            Transfer::Conditional { target } => self.continue_conditional(source, target, next),
            Transfer::Jump { target } | Transfer::Call { target } if next == target => {
                self.continue_direct(instruction, matches!(transfer, Transfer::Call { .. }))
            }
            Transfer::Return => self.continue_return(instruction, next),
            Transfer::IndirectJump | Transfer::IndirectCall => {
                self.continue_indirect(source, transfer == Transfer::IndirectCall, next)
            }
            _ => None,
        }
    }

    fn continue_conditional(&mut self, source: &SourceInstruction, target: AppPc, next: AppPc) -> Option<()> {
        let condition = condition(source.bytes)?;
        let taken = next == target;
        let fall = pc_after(source.instruction);
        if !taken && next != fall {
            return None;
        }
        let (condition, target, terminator) = match taken {
            true => (condition ^ 1, fall, TERMINATOR_NOT_TAKEN),
            false => (condition, target, TERMINATOR_TAKEN),
        };
        let site = self.out.jump_ahead_if(condition);
        self.side_exit(site, SideTarget::Direct { target, terminator });
        if let Some(block) = self.result.blocks.last_mut() {
            block.taken = taken;
        }
        Some(())
    }

    fn continue_direct(&mut self, instruction: &Instruction, is_call: bool) -> Option<()> {
        if is_xbegin(instruction) {
            if !has_transactions() {
                return None;
            }
            self.abort_transaction();
        }
        if is_call {
            self.describe_transfer(instruction);
            self.push_return_address(pc_after(instruction));
            self.calls.push(pc_after(instruction));
        }
        Some(())
    }

    fn continue_return(&mut self, instruction: &Instruction, next: AppPc) -> Option<()> {
        if self.calls.pop() != Some(next) && !self.options.inline_indirect {
            return None;
        }
        self.pop_target(instruction);
        self.expect(next);
        Some(())
    }

    fn continue_indirect(&mut self, source: &SourceInstruction, is_call: bool, next: AppPc) -> Option<()> {
        if !self.options.inline_indirect {
            return None;
        }
        let instruction = source.instruction;
        self.read_target(source);
        if is_call {
            self.map_scratch(pc_of(instruction));
            self.push_return_address(pc_after(instruction));
            self.calls.push(pc_after(instruction));
            self.map_between_safe_points();
        }
        self.expect(next);
        Some(())
    }

    /// Continues if the target in rcx is `next`, else leaves by a side exit. rcx and rdx are
    /// spilled.
    fn expect(&mut self, next: AppPc) {
        self.out.load_constant(2, next.get().wrapping_neg());
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let site = self.out.jump_ahead();
        self.side_exit(site, SideTarget::Indirect(next));
        self.out.reload_scratch();
    }

    /// Ends the superblock with this transfer.
    pub(super) fn end(&mut self, source: &SourceInstruction, transfer: Transfer) {
        let instruction = source.instruction;
        self.data.complete = self.data.length;
        self.map_safe_point(pc_of(instruction));
        match transfer {
            Transfer::Conditional { target } => self.end_conditional(instruction, source.bytes, target),
            Transfer::Jump { .. } if is_xbegin(instruction) && !has_transactions() => {
                self.out.bytes(&[0x0f, 0x0b]); // ud2
                self.exit_to(pc_after(instruction), TERMINATOR_DIRECT);
            }
            Transfer::Jump { target } => self.end_direct(instruction, target, false),
            Transfer::Call { target } => self.end_direct(instruction, target, true),
            Transfer::Return => self.end_return(instruction),
            Transfer::IndirectJump => self.end_indirect(source, false),
            Transfer::IndirectCall => self.end_indirect(source, true),
            Transfer::Syscall => self.end_syscall(instruction),
            Transfer::Trap | Transfer::Next => self.end_trap(instruction, source.bytes),
        }
    }

    fn end_conditional(&mut self, instruction: &Instruction, bytes: &[u8], target: AppPc) {
        self.require_cursor_before(instruction);
        let site = match condition(bytes) {
            Some(condition) => self.out.jump_ahead_if(condition),
            None => {
                // `loop` and `jrcxz` reach 127 bytes only, so they skip a long jump.
                let last = bytes.len() - 1;
                self.out.bytes(&bytes[..last]);
                self.out.bytes(&[2]);
                self.map_between_safe_points();
                self.out.bytes(&[0xeb, 5]);
                self.out.jump_ahead()
            }
        };
        self.exit_to(pc_after(instruction), TERMINATOR_NOT_TAKEN);
        self.out.land(site);
        self.exit_to(target, TERMINATOR_TAKEN);
    }

    fn end_direct(&mut self, instruction: &Instruction, target: AppPc, is_call: bool) {
        self.require_cursor_before(instruction);
        if is_xbegin(instruction) {
            self.abort_transaction();
        }
        if is_call {
            self.describe_transfer(instruction);
            self.push_return_address(pc_after(instruction));
        }
        self.exit_to(target, TERMINATOR_DIRECT);
    }

    fn end_return(&mut self, instruction: &Instruction) {
        self.require_cursor_before(instruction);
        self.pop_target(instruction);
        self.exit_indirect(self.blocks());
    }

    fn end_indirect(&mut self, source: &SourceInstruction, is_call: bool) {
        let instruction = source.instruction;
        self.read_target(source);
        self.require_cursor();
        if is_call {
            self.map(pc_of(instruction), RegisterState::Scratch);
            self.push_return_address(pc_after(instruction));
            self.map_between_safe_points();
        }
        self.exit_indirect(self.blocks());
    }

    fn end_syscall(&mut self, instruction: &Instruction) {
        self.require_cursor();
        self.map_between_safe_points();
        let path = self.next_path();
        self.record_exit(ExitKind::Syscall, pc_of(instruction), self.blocks(), TERMINATOR_SYSCALL);
        self.out.exit_stub(path.get());
    }

    fn end_trap(&mut self, instruction: &Instruction, bytes: &[u8]) {
        self.trap(instruction, bytes);
        self.data.complete = self.data.length;
        // `int3` reports its signal here, so this is a safe point of its own.
        self.map_safe_point(pc_after(instruction));
        self.out.bytes(&[0x90]);
        self.exit_to(pc_after(instruction), TERMINATOR_DIRECT);
    }

    /// An instruction that traps, executed as it is; far transfers and unknown instructions become
    /// `ud2`.
    fn trap(&mut self, instruction: &Instruction, bytes: &[u8]) {
        let harmless = matches!(
            instruction.code(),
            Code::Int3 | Code::Int1 | Code::Ud2 | Code::Hlt | Code::Int_imm8 | Code::Ud0_r64_rm64 | Code::Ud1_r64_rm64
        );
        self.out.bytes(if harmless { bytes } else { &[0x0f, 0x0b] });
    }

    /// Switches r15 to the cursor before a transfer.
    fn require_cursor_before(&mut self, instruction: &Instruction) {
        if self.has_app_r15 {
            self.require_cursor();
            self.map_safe_point(pc_of(instruction));
        }
    }

    /// Adds a map entry before the instruction at `pc`, where rcx and rdx are spilled.
    fn map_scratch(&mut self, pc: AppPc) {
        let state = if self.has_app_r15 { RegisterState::ScratchApp } else { RegisterState::Scratch };
        self.map(pc, state);
    }

    /// Aborts a transaction at once, with status 0. A transaction may abort at any time, and
    /// nothing can be recorded inside of one.
    fn abort_transaction(&mut self) {
        self.out.bytes(&[0xb8, 0, 0, 0, 0]); // mov eax, 0
        self.data.symbols.set(0, Symbol::Constant(0));
    }

    fn push_return_address(&mut self, address: AppPc) {
        if let Some(position) = self.out.push_constant(address.get()) {
            self.literals.push((position, address.get()));
        }
    }

    /// Spills rcx and rdx and pops the target of a return into rcx.
    fn pop_target(&mut self, instruction: &Instruction) {
        let first = self.describe_transfer(instruction);
        self.out.spill_scratch();
        self.out.bytes(&[0x59]); // pop rcx
        self.map_between_safe_points();
        self.record_target(first);
        if instruction.code() == Code::Retnq_imm16 {
            self.out.bytes(&[0x48, 0x8d, 0xa4, 0x24]); // lea rsp, [rsp + disp32]
            self.out.bytes(&u32::from(instruction.immediate16()).to_le_bytes());
        }
    }

    /// Spills rcx and rdx and loads the target of an indirect jump or call into rcx.
    fn read_target(&mut self, source: &SourceInstruction) {
        let SourceInstruction { instruction, decoder, bytes } = *source;
        let first = self.describe_transfer(instruction);
        if uses_r15(instruction) && !self.has_app_r15 {
            self.require_app_r15();
            self.map_safe_point(pc_of(instruction));
        }
        self.out.spill_scratch();
        if segment::is_relative(instruction) {
            self.load_target_with_base(instruction, first);
        } else {
            self.load_target(instruction, decoder, bytes);
        }
        self.map_between_safe_points();
        if instruction.op0_kind() == OpKind::Memory {
            self.record_target(first);
        }
    }

    /// `mov rcx, operand` for the operand of an indirect jump or call: the same bytes with another
    /// opcode.
    fn load_target(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        let mut load = [0u8; 16];
        let mut length = 0;
        let mut push = |byte: u8| {
            load[length] = byte;
            length += 1;
        };
        let mut rex = 0x48;
        let mut index = 0;
        while bytes[index] != 0xff {
            match bytes[index] {
                prefix @ (0x64 | 0x65 | 0x67) => push(prefix),
                prefix @ 0x40..=0x4f => rex = 0x48 | prefix & 3,
                _ => {} // branch hints and the like mean nothing for a load
            }
            index += 1;
        }
        push(rex);
        push(0x8b);
        push(bytes[index + 1] & 0xc7 | 1 << 3);
        let tail = index + 2;
        for &byte in &bytes[tail..] {
            push(byte);
        }
        if !instruction.is_ip_rel_memory_operand() {
            self.out.bytes(&load[..length]);
            return;
        }
        let removed = bytes.len() as isize - length as isize;
        let offset = decoder.get_constant_offsets(instruction).displacement_offset() as isize - removed;
        let address = instruction.ip_rel_memory_address();
        if !self.copy_relative(&load[..length], offset as usize, address) {
            self.out.load_constant(1, address);
            self.map_scratch(pc_of(instruction));
            self.out.bytes(&[0x48, 0x8b, 0x09]); // mov rcx, [rcx]
        }
    }
}

fn is_xbegin(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Xbegin
}

/// Whether this processor has transactions (RTM). Where it has not, `xbegin` is an undefined
/// instruction.
fn has_transactions() -> bool {
    const RTM: u32 = 1 << 11;
    core::arch::x86_64::__cpuid(0).eax >= 7 && core::arch::x86_64::__cpuid_count(7, 0).ebx & RTM != 0
}

/// The condition of a `jcc`; `None` for `loop` and `jrcxz`.
fn condition(bytes: &[u8]) -> Option<u8> {
    let mut index = 0;
    while matches!(bytes[index], 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x66 | 0x67 | 0xf2 | 0xf3 | 0x40..=0x4f) {
        index += 1;
    }
    match bytes[index] {
        opcode @ 0x70..=0x7f => Some(opcode & 15),
        0x0f => Some(bytes[index + 1] & 15),
        _ => None,
    }
}
