//! From application code to code for the cache.
//!
//! The unit is a *path*: one or more blocks that follow each other. Inside it nothing is recorded; each way out writes the
//! outcomes of all branches it has passed, as one store of one to four symbol bytes, and moves the cursor. Instructions
//! are copied as they are; only RIP-relative displacements are adjusted, control transfers are replaced, and blocks that
//! use r15 swap the cursor out for as long as they need.
//!
//! [`Mark`]s say, for every place in the result, which application instruction comes next there and where its registers
//! are, so that signals see the exact state.

use alloc::vec::Vec;
use iced_x86::{Code, Decoder, Instruction, OpKind, Register};
use isa::Transfer;
use wire::symbol;

use crate::emit::{Emitter, LEAVE_BYTES};

/// Blocks are cut after this many instructions.
pub const BLOCK_INSTRUCTIONS_MAX: usize = 100;
/// Outcomes that one path can hold: four symbols of six.
pub const OUTCOMES_MAX: u8 = 24;
/// Most blocks in a path.
pub const PATH_BLOCKS_MAX: usize = 40;

/// A block of a path.
#[derive(Clone, Copy)]
pub struct PathBlock<'a> {
    pub address: u64,
    /// Readable code from `address` on; at least the block, if need be cut at the end of readable memory.
    pub code: &'a [u8],
    /// Where the path goes on; `None` for its last block.
    pub next: Option<u64>,
}

/// Outcomes since the start of a path, the newest in the lowest bit.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Outcomes {
    bits: u32,
    count: u8,
}

impl Outcomes {
    #[must_use]
    pub fn with(self, outcome: bool) -> Self {
        Self { bits: self.bits << 1 | u32::from(outcome), count: self.count + 1 }
    }

    pub fn count(self) -> u8 {
        self.count
    }

    /// The symbols for these outcomes.
    pub fn symbols(self) -> Symbols {
        let mut symbols = Symbols { bytes: [0; 4], count: 0 };
        let mut left = u32::from(self.count);
        while left > 0 {
            let take = left.min(symbol::OUTCOMES_MAX);
            left -= take;
            let bits = (self.bits >> left) & ((1 << take) - 1);
            symbols.bytes[symbols.count] = symbol::outcomes(bits as u8, take);
            symbols.count += 1;
        }
        symbols
    }
}

pub struct Symbols {
    bytes: [u8; 4],
    count: usize,
}

impl core::ops::Deref for Symbols {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// What holds from `cache` (relative to the start of the fragment) up to the next mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub cache: u16,
    /// The next application instruction, relative to the start of its block.
    pub offset: u16,
    /// Which block of the path.
    pub block: u8,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All registers are the application's, except r15, which is the cursor.
    Cursor,
    /// All registers are the application's.
    Own,
    /// As `Cursor`, but rcx and rdx are in their scratch places.
    Scratch,
    /// This low register is in rcx's scratch place; r15 is the cursor or, if the flag is set, the application's.
    Spilled(u8, bool),
    /// In between: only going on a few instructions leads to a clean point.
    Dirty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// To `target`, through a jump that can be linked.
    Direct,
    /// A system call; `target` is the address of the instruction.
    Syscall,
}

#[derive(Clone, Copy, Debug)]
pub struct NewExit {
    pub kind: ExitKind,
    pub target: u64,
    /// Address of the jump's displacement (direct exits).
    pub site: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct BlockResult {
    pub length: u32,
    /// Outcomes of the path before this block.
    pub before: Outcomes,
}

/// Where the surroundings of the new code are.
pub struct Surroundings {
    /// Table of indirect targets, below 2 GiB.
    pub table: u32,
    /// Number of the first exit; further ones count up.
    pub first_exit: u32,
    /// Stubs of the exits are stacked downwards from here.
    pub stubs_end: u64,
}

impl Surroundings {
    /// Address of the stub of the exit with this index in the fragment.
    pub fn stub(&self, index: usize) -> u64 {
        self.stubs_end - ((index + 1) * STUB_STRIDE) as u64
    }
}

pub const STUB_STRIDE: usize = LEAVE_BYTES + 2;

pub struct Translation {
    pub blocks: Vec<BlockResult>,
    pub exits: Vec<NewExit>,
    pub marks: Vec<Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The first instruction of this block cannot be read.
    Unreadable(u64),
    /// The path cannot be followed beyond this block index; try again with fewer blocks.
    Unfit(usize),
}

struct SideExit {
    /// Position of the displacement that leads here.
    site: usize,
    own_r15: bool,
    outcomes: Outcomes,
    target: SideTarget,
}

enum SideTarget {
    Direct(u64),
    /// A return that was expected to go to this address did not.
    Return(u64),
}

struct Translator<'e, 'b> {
    out: &'e mut Emitter<'b>,
    surroundings: &'e Surroundings,
    result: Translation,
    start: usize,
    /// r15 holds the application's value here.
    own_r15: bool,
    outcomes: Outcomes,
    calls: Vec<u64>,
    literals: Vec<(usize, u64)>,
    side_exits: Vec<SideExit>,
    block: u8,
    block_address: u64,
}

/// Translates a path. Positions in the result are relative to where `out` stands now.
pub fn translate(path: &[PathBlock], out: &mut Emitter, surroundings: &Surroundings) -> Result<Translation, Error> {
    let start = out.position();
    let mut translator = Translator {
        out,
        surroundings,
        result: Translation { blocks: Vec::new(), exits: Vec::new(), marks: Vec::new() },
        start,
        own_r15: false,
        outcomes: Outcomes::default(),
        calls: Vec::new(),
        literals: Vec::new(),
        side_exits: Vec::new(),
        block: 0,
        block_address: 0,
    };
    for (index, block) in path.iter().enumerate() {
        translator.block = index as u8;
        translator.block(block, index)?;
    }
    translator.finish();
    Ok(translator.result)
}

impl Translator<'_, '_> {
    fn block(&mut self, block: &PathBlock, index: usize) -> Result<(), Error> {
        self.block_address = block.address;
        let before = self.outcomes;
        let mut decoder = isa::decoder(block.address, block.code);
        let mut instruction = Instruction::default();
        for _ in 0..BLOCK_INSTRUCTIONS_MAX {
            let start = decoder.position();
            decoder.decode_out(&mut instruction);
            let at_end = block.code.len() - start < isa::INSTRUCTION_BYTES_MAX;
            if instruction.is_invalid() && at_end && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes {
                // Readable memory (or the longest block) ends in mid-instruction.
                if start == 0 {
                    return Err(Error::Unreadable(block.address));
                }
                return self.cut(block, index, start, before);
            }
            let bytes = &block.code[start..decoder.position()];
            let transfer = if instruction.is_invalid() { Transfer::Trap } else { isa::transfer(&instruction) };
            if transfer == Transfer::Next {
                self.copy(&instruction, &decoder, bytes);
                continue;
            }
            self.result.blocks.push(BlockResult { length: decoder.position() as u32, before });
            return match block.next {
                Some(next) => self.pass(&instruction, &decoder, bytes, transfer, next).ok_or(Error::Unfit(index)),
                None => {
                    self.end(&instruction, &decoder, bytes, transfer);
                    Ok(())
                }
            };
        }
        let length = decoder.position();
        self.cut(block, index, length, before)
    }

    /// The block ends here although no transfer does.
    fn cut(&mut self, block: &PathBlock, index: usize, length: usize, before: Outcomes) -> Result<(), Error> {
        self.result.blocks.push(BlockResult { length: length as u32, before });
        let next = block.address + length as u64;
        match block.next {
            Some(expected) if expected == next => Ok(()),
            Some(_) => Err(Error::Unfit(index)),
            None => {
                self.mark_at(next);
                self.leave_to(next, self.outcomes);
                Ok(())
            }
        }
    }

    fn offset(&self) -> u16 {
        (self.out.position() - self.start) as u16
    }

    fn mark(&mut self, pc: u64, state: State) {
        let offset = pc.wrapping_sub(self.block_address) as u16;
        let mark = Mark { cache: self.offset(), offset, block: self.block, state };
        self.result.marks.push(mark);
    }

    /// Marks a clean point before the instruction at `pc`.
    fn mark_at(&mut self, pc: u64) {
        let state = if self.own_r15 { State::Own } else { State::Cursor };
        self.mark(pc, state);
    }

    fn dirty(&mut self) {
        self.mark(self.block_address, State::Dirty);
    }

    fn want_own_r15(&mut self) {
        if !self.own_r15 {
            self.out.take_r15();
            self.own_r15 = true;
        }
    }

    fn want_cursor(&mut self) {
        if self.own_r15 {
            self.out.give_r15();
            self.own_r15 = false;
        }
    }

    /// An instruction without transfer.
    fn copy(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        let pc = instruction.ip();
        self.mark_at(pc);
        if uses_r15(instruction) && !self.own_r15 {
            self.want_own_r15();
            self.mark_at(pc);
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

    /// Copies with the displacement at `offset` changed to lead to `address`; false if that is too far.
    fn copy_relative(&mut self, bytes: &[u8], offset: usize, address: u64) -> bool {
        let end = self.out.here() + bytes.len() as u64;
        let displacement = address.wrapping_sub(end) as i64;
        let Ok(displacement) = i32::try_from(displacement) else { return false };
        self.out.bytes(&bytes[..offset]);
        self.out.bytes(&displacement.to_le_bytes());
        self.out.bytes(&bytes[offset + 4..]);
        true
    }

    /// Copies with `[rip + displacement]` replaced by `[register]`, the register holding the address.
    fn copy_far(&mut self, instruction: &Instruction, bytes: &[u8], offset: usize, address: u64) {
        let pc = instruction.ip();
        let register = free_register(instruction);
        self.out.store_gs(crate::tcb::SCRATCH_RCX, register);
        self.mark(pc, State::Spilled(register, self.own_r15));
        self.out.load_constant(register, address);
        self.out.bytes(&bytes[..offset - 1]);
        self.out.bytes(&[bytes[offset - 1] & 0x38 | register]);
        self.out.bytes(&bytes[offset + 4..]);
        self.mark(instruction.next_ip(), State::Spilled(register, self.own_r15));
        self.out.load_gs(register, crate::tcb::SCRATCH_RCX);
    }

    /// Records `outcomes` and leaves through a linkable jump.
    fn leave_to(&mut self, target: u64, outcomes: Outcomes) {
        self.want_cursor();
        self.dirty();
        self.out.record(&outcomes.symbols());
        let stub = self.surroundings.stub(self.result.exits.len());
        let site = self.out.jump_patchable(stub);
        let site = self.out.here() - (self.out.position() - site) as u64;
        self.result.exits.push(NewExit { kind: ExitKind::Direct, target, site });
    }

    fn push_return_address(&mut self, address: u64) {
        if let Some(position) = self.out.push_constant(address) {
            self.literals.push((position, address));
        }
    }

    /// The path goes on beyond this transfer, at `next`. `None` if it cannot.
    fn pass(
        &mut self,
        instruction: &Instruction,
        _decoder: &Decoder,
        bytes: &[u8],
        transfer: Transfer,
        next: u64,
    ) -> Option<()> {
        let pc = instruction.ip();
        self.mark_at(pc);
        if self.outcomes.count >= OUTCOMES_MAX {
            return None;
        }
        match transfer {
            Transfer::Conditional { target } => {
                let condition = condition(bytes)?;
                let taken = next == target;
                let fall = instruction.next_ip();
                if !taken && next != fall {
                    return None;
                }
                let (condition, other) = if taken { (condition ^ 1, fall) } else { (condition, target) };
                let site = self.out.jump_if(condition, 0);
                self.side_exit(site, self.outcomes.with(!taken), SideTarget::Direct(other));
                self.outcomes = self.outcomes.with(taken);
            }
            Transfer::Jump { target } | Transfer::Call { target } => {
                if next != target {
                    return None;
                }
                if matches!(transfer, Transfer::Call { .. }) {
                    self.push_return_address(instruction.next_ip());
                    self.calls.push(instruction.next_ip());
                }
                if transfer.needs_outcome(pc) {
                    self.outcomes = self.outcomes.with(true);
                }
            }
            Transfer::Return => {
                if self.calls.pop()? != next || instruction.code() != Code::Retnq {
                    return None;
                }
                self.expect_return(next);
            }
            _ => return None,
        }
        Some(())
    }

    fn side_exit(&mut self, site: usize, outcomes: Outcomes, target: SideTarget) {
        self.side_exits.push(SideExit { site, own_r15: self.own_r15, outcomes, target });
    }

    /// A return inside the path, to the instruction after the call that the path made.
    fn expect_return(&mut self, next: u64) {
        self.out.spill_scratch();
        self.out.bytes(&[0x59]); // pop rcx
        self.dirty();
        self.out.load_constant(2, next.wrapping_neg());
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let site = self.out.jump(0);
        self.side_exit(site, self.outcomes.with(false), SideTarget::Return(next));
        self.out.reload_scratch();
        self.outcomes = self.outcomes.with(true);
    }

    /// The path ends with this transfer.
    fn end(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8], transfer: Transfer) {
        let pc = instruction.ip();
        self.mark_at(pc);
        match transfer {
            Transfer::Conditional { target } => self.end_conditional(instruction, bytes, target),
            Transfer::Jump { target } | Transfer::Call { target } => {
                if self.own_r15 {
                    self.want_cursor();
                    self.mark_at(pc);
                }
                if matches!(transfer, Transfer::Call { .. }) {
                    self.push_return_address(instruction.next_ip());
                }
                let outcomes = if transfer.needs_outcome(pc) { self.outcomes.with(true) } else { self.outcomes };
                self.leave_to(target, outcomes);
            }
            Transfer::Return => self.end_return(instruction),
            Transfer::IndirectJump | Transfer::IndirectCall => {
                self.end_indirect(instruction, decoder, bytes, transfer == Transfer::IndirectCall);
            }
            Transfer::Syscall => {
                self.want_cursor();
                self.dirty();
                self.out.record(&self.outcomes.symbols());
                let exit = self.surroundings.first_exit + self.result.exits.len() as u32;
                self.out.leave(exit);
                self.result.exits.push(NewExit { kind: ExitKind::Syscall, target: pc, site: 0 });
            }
            Transfer::Trap | Transfer::Next => {
                self.trap(instruction, bytes);
                self.mark_at(instruction.next_ip());
                self.leave_to(instruction.next_ip(), self.outcomes);
            }
        }
    }

    fn end_conditional(&mut self, instruction: &Instruction, bytes: &[u8], target: u64) {
        if self.own_r15 {
            self.want_cursor();
            self.mark_at(instruction.ip());
        }
        let site = match condition(bytes) {
            Some(condition) => self.out.jump_if(condition, 0),
            None => {
                // loop and jrcxz reach 127 bytes only: over a jump to the far side.
                let last = bytes.len() - 1;
                self.out.bytes(&bytes[..last]);
                self.out.bytes(&[2, 0xeb, 5]);
                self.out.jump(0)
            }
        };
        let taken = self.outcomes.with(true);
        self.leave_to(instruction.next_ip(), self.outcomes.with(false));
        self.out.land(site);
        self.leave_to(target, taken);
    }

    fn end_return(&mut self, instruction: &Instruction) {
        if self.own_r15 {
            self.want_cursor();
            self.mark_at(instruction.ip());
        }
        self.out.spill_scratch();
        self.out.bytes(&[0x59]); // pop rcx
        self.dirty();
        if instruction.code() == Code::Retnq_imm16 {
            self.out.bytes(&[0x48, 0x8d, 0xa4, 0x24]); // lea rsp, [rsp + disp32]
            self.out.bytes(&u32::from(instruction.immediate16()).to_le_bytes());
        }
        self.out.record(&self.outcomes.symbols());
        self.out.jump_indirect(self.surroundings.table);
    }

    fn end_indirect(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8], is_call: bool) {
        let pc = instruction.ip();
        if uses_r15(instruction) && !self.own_r15 {
            self.want_own_r15();
            self.mark_at(pc);
        }
        self.out.spill_scratch();
        self.load_target(instruction, decoder, bytes);
        self.dirty();
        self.want_cursor();
        if is_call {
            self.mark(pc, State::Scratch);
            self.push_return_address(instruction.next_ip());
            self.dirty();
        }
        self.out.record(&self.outcomes.symbols());
        self.out.jump_indirect(self.surroundings.table);
    }

    /// `mov rcx, operand` for the operand of an indirect jump or call: the same bytes with another opcode.
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
            self.out.bytes(&[0x48, 0x8b, 0x09]); // mov rcx, [rcx]
        }
    }

    /// An instruction that traps, executed as it is; far transfers and unknown instructions become `ud2`.
    fn trap(&mut self, instruction: &Instruction, bytes: &[u8]) {
        let harmless = matches!(
            instruction.code(),
            Code::Int3 | Code::Int1 | Code::Ud2 | Code::Hlt | Code::Int_imm8 | Code::Ud0_r64_rm64 | Code::Ud1_r64_rm64
        );
        self.out.bytes(if harmless { bytes } else { &[0x0f, 0x0b] });
    }

    fn finish(&mut self) {
        for side_exit in core::mem::take(&mut self.side_exits) {
            self.dirty();
            self.out.land(side_exit.site);
            self.own_r15 = side_exit.own_r15;
            match side_exit.target {
                SideTarget::Direct(target) => self.leave_to(target, side_exit.outcomes),
                SideTarget::Return(expected) => {
                    self.want_cursor();
                    self.out.load_constant(2, expected);
                    self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
                    self.out.record(&side_exit.outcomes.symbols());
                    self.out.jump_indirect(self.surroundings.table);
                }
            }
        }
        if !self.literals.is_empty() {
            self.out.align(8);
        }
        for (position, value) in core::mem::take(&mut self.literals) {
            self.out.land(position);
            self.out.bytes(&value.to_le_bytes());
        }
    }
}

fn uses_r15(instruction: &Instruction) -> bool {
    let is_r15 = |register| matches!(register, Register::R15 | Register::R15D | Register::R15W | Register::R15L);
    (0..instruction.op_count()).any(|operand| match instruction.op_kind(operand) {
        OpKind::Register => is_r15(instruction.op_register(operand)),
        OpKind::Memory => is_r15(instruction.memory_base()) || is_r15(instruction.memory_index()),
        _ => false,
    })
}

/// A low register that the instruction does not use, not rsp or rbp.
fn free_register(instruction: &Instruction) -> u8 {
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
        .find(|(candidate, _)| used.iter().all(|used| used.register().full_register() != *candidate))
        .map_or(6, |(_, number)| *number)
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
