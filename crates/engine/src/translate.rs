//! Translation: from blocks of application code to a fragment.
//!
//! The input is a superblock: blocks that follow each other, often only one. Each exit is the end
//! of a *path*, whose number it writes at the cursor; inside of the superblock nothing is written.
//! Instructions are copied. Only RIP-relative displacements are adjusted, control transfers are
//! replaced, and code that uses r15 saves the cursor for that time.
//!
//! Recorded data goes behind the path's word: see `data` and `value`.
//!
//! The translation map ([`MapEntry`]) gives, for every address of the fragment, the next
//! application instruction and where the application's registers are, so that signal handlers see
//! the exact state.

use alloc::vec::Vec;
use iced_x86::{Code, Decoder, Instruction, OpKind, Register};
use isa::Transfer;
use wire::code::{TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL, TERMINATOR_TAKEN};

use crate::emit::{EXIT_STUB_BYTES, Emitter, Table};

pub mod check;
mod data;
pub mod operand;
mod order;
mod segment;
mod symbol;
mod value;

pub use value::needs_near_cache;

use data::Data;
pub use data::IN_STRING;
use value::SourceInstruction;

/// Blocks are cut after this many instructions.
pub const BLOCK_INSTRUCTIONS_MAX: usize = 100;
/// Most blocks in a superblock.
pub const SUPERBLOCK_BLOCKS_MAX: usize = 64;

/// A block of application code to translate.
#[derive(Clone, Copy)]
pub struct SourceBlock<'a> {
    pub address: u64,
    /// Readable code from `address` on, at least to the end of the block or of readable memory.
    pub code: &'a [u8],
    /// Address of the next block of the superblock; `None` for the last one.
    pub next: Option<u64>,
    /// The code may change unnoticed, so the fragment compares it before it is executed.
    pub check: bool,
}

/// An entry of the translation map. It holds from `cache` (relative to the fragment's body) up to
/// the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub cache: u16,
    /// The next application instruction, relative to the start of its block.
    pub offset: u16,
    /// Bytes of data that the instructions before it have stored, and perhaps [`IN_STRING`].
    pub data: u16,
    /// Index of the block in the superblock.
    pub block: u8,
    pub state: RegisterState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterState {
    /// All registers are the application's, except r15, which is the cursor.
    Cursor,
    /// All registers are the application's.
    App,
    /// As `Cursor`, but rcx and rdx are in their scratch places.
    Scratch,
    /// As `App`, but rcx and rdx are in their scratch places.
    ScratchApp,
    /// These registers are spilled; r15 is the cursor or, if the flag is set, the application's.
    Spilled(Spill, bool),
    /// Between safe points: the application's state is exact again a few instructions later.
    BetweenSafePoints,
}

/// Registers of the application that the engine has spilled, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// In rcx's scratch place.
    pub general: u8,
    /// In the third scratch place.
    pub third: u8,
    /// In the scratch place for the base of an operand relative to gs.
    pub segment: u8,
    /// A vector register.
    pub vector: u8,
    /// The flags before the current instruction are in the thread control block.
    pub flags: bool,
}

impl Spill {
    pub const NONE: u8 = 0xff;
}

impl Default for Spill {
    fn default() -> Self {
        Self { general: Self::NONE, third: Self::NONE, segment: Self::NONE, vector: Self::NONE, flags: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// To `target`, through a jump that can be linked.
    Direct,
    /// Through the indirect-branch table.
    Indirect,
    /// A system call; `target` is the address of the instruction.
    Syscall,
    /// The engine executes the instruction at `target` and records its path.
    Emulated,
}

/// Set in an exit's number, beside the fragment's first path: the code at the fragment's entry has
/// changed, and nothing has been executed.
pub const ENTRY_CHANGED: u32 = wire::word::EVENT;

/// An exit of a new fragment. Its path is the fragment's first path plus its index.
#[derive(Clone, Copy, Debug)]
pub struct TranslatedExit {
    pub kind: ExitKind,
    pub target: u64,
    /// Address of the jump's displacement (direct exits).
    pub site: u64,
    /// Number of blocks executed.
    pub blocks: u16,
    /// Terminator of the last of them: one of `wire::code::TERMINATOR_*`.
    pub terminator: u32,
    /// Bytes of data behind the path's word.
    pub data: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct TranslatedBlock {
    pub length: u32,
    /// Whether the conditional branch at its end is taken on the way to the next block.
    pub taken: bool,
}

/// How locked instructions order threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Not at all: there is one thread.
    None,
    /// A timestamp follows every locked instruction.
    EveryTime,
    /// A timestamp follows those locked instructions that may follow another thread's on the same
    /// word.
    Contention,
}

/// Options and addresses for a translation.
pub struct TranslationOptions {
    pub table: Table,
    /// Whether the superblock continues through indirect jumps, and through returns from calls that
    /// it does not contain.
    pub inline_indirect: bool,
    /// How locked instructions order threads.
    pub order: Order,
    /// What is recorded beside the path: one of `wire::DATA_*`.
    pub data: u32,
    pub has_avx512: bool,
    /// Number of the first exit's path.
    pub first_path: u32,
    /// The exit stubs lie below this address.
    pub stubs_end: u64,
}

impl TranslationOptions {
    /// Address of the stub of the exit with this index in the fragment.
    pub fn stub(&self, index: usize) -> u64 {
        self.stubs_end - ((index + 1) * STUB_STRIDE) as u64
    }
}

pub const STUB_STRIDE: usize = EXIT_STUB_BYTES + 2;

pub struct Translation {
    pub blocks: Vec<TranslatedBlock>,
    pub exits: Vec<TranslatedExit>,
    pub map: Vec<MapEntry>,
    /// How the reader rebuilds memory accesses from the data.
    pub accesses: Vec<wire::code::AccessDescriptor>,
    /// Whether there is a locked instruction.
    pub has_locked: bool,
    /// Where descriptors of critical sections may be: see `crate::rseq`.
    pub descriptors: Vec<u64>,
}

/// The first instruction of a block cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

struct SideExit {
    /// Position of the displacement that jumps here.
    site: usize,
    has_app_r15: bool,
    blocks: u16,
    data: usize,
    target: SideTarget,
}

enum SideTarget {
    Direct {
        target: u64,
        terminator: u32,
    },
    /// An indirect transfer did not go to this expected address; rcx is the difference.
    Indirect(u64),
    /// A locked instruction may follow another thread's; rcx, rdx and rsi are spilled.
    Timed {
        target: u64,
    },
    /// The next block's code has changed; rcx and rdx are spilled. `terminator` is that of the
    /// block before.
    Changed {
        target: u64,
        terminator: u32,
    },
}

struct Translator<'e, 'b> {
    out: &'e mut Emitter<'b>,
    options: &'e TranslationOptions,
    result: Translation,
    start: usize,
    /// r15 holds the application's value here.
    has_app_r15: bool,
    literals: Vec<(usize, u64)>,
    /// Return addresses of the calls in the superblock that have not returned.
    calls: Vec<u64>,
    side_exits: Vec<SideExit>,
    block: u8,
    block_address: u64,
    data: Data,
    /// The current instruction.
    pc: u64,
    spill: Spill,
    /// The newest map entry is between safe points.
    is_between_safe_points: bool,
    /// An instruction that the translation needs cannot be encoded.
    failed: bool,
    /// Terminator of the block before the current one.
    terminator_before: u32,
    /// What the current instruction does, if it is locked and ordered.
    locked: Option<order::Locked>,
    owner_misses: Vec<order::OwnerMiss>,
}

/// Translates a superblock. Positions in the result are relative to the current position of `out`.
pub fn translate(
    source: &[SourceBlock],
    out: &mut Emitter,
    options: &TranslationOptions,
) -> Result<Translation, Unreadable> {
    let start = out.position();
    let mut translator = Translator {
        out,
        options,
        result: Translation {
            blocks: Vec::new(),
            exits: Vec::new(),
            map: Vec::new(),
            accesses: Vec::new(),
            has_locked: false,
            descriptors: Vec::new(),
        },
        start,
        has_app_r15: false,
        literals: Vec::new(),
        calls: Vec::new(),
        side_exits: Vec::new(),
        block: 0,
        block_address: 0,
        data: Data::new(options.data),
        pc: 0,
        spill: Spill::default(),
        is_between_safe_points: false,
        failed: false,
        terminator_before: TERMINATOR_DIRECT,
        locked: None,
        owner_misses: Vec::new(),
    };
    translator.open();
    for (index, block) in source.iter().enumerate() {
        translator.block = index as u8;
        if translator.block(block)? == BlockEnd::Stop {
            break;
        }
    }
    translator.finish();
    translator.result.accesses = translator.data.accesses;
    Ok(translator.result)
}

/// Whether the superblock continues after a block.
#[derive(PartialEq, Eq)]
enum BlockEnd {
    Continue,
    Stop,
}

impl Translator<'_, '_> {
    fn open(&mut self) {
        self.result.map.push(MapEntry { cache: 0, offset: 0, data: 0, block: 0, state: RegisterState::Cursor });
    }

    fn block(&mut self, block: &SourceBlock) -> Result<BlockEnd, Unreadable> {
        self.block_address = block.address;
        if block.check {
            self.check(block);
        }
        let mut decoder = isa::decoder(block.address, block.code);
        let mut instruction = Instruction::default();
        for _ in 0..BLOCK_INSTRUCTIONS_MAX {
            let start = decoder.position();
            decoder.decode_out(&mut instruction);
            let at_end = block.code.len() - start < isa::INSTRUCTION_BYTES_MAX;
            if instruction.is_invalid() && at_end && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes {
                // Readable memory (or the longest block) ends in mid-instruction.
                if start == 0 {
                    return Err(Unreadable);
                }
                return Ok(self.cut(block, start));
            }
            if start > 0 && self.is_full() {
                return Ok(self.cut(block, start));
            }
            let bytes = &block.code[start..decoder.position()];
            if self.is_for_the_engine(&instruction) {
                return self.end_emulated(&instruction, block, start);
            }
            let transfer = if instruction.is_invalid() { Transfer::Trap } else { isa::transfer(&instruction) };
            if transfer == Transfer::Next {
                self.result.descriptors.extend(crate::rseq::candidate(&instruction));
                let is_locked = isa::is_locked(&instruction);
                self.result.has_locked |= is_locked;
                match self.options.order {
                    Order::Contention if is_locked => {
                        if let Some(then) = self.copy_locked(&instruction, &decoder, bytes, block) {
                            return Ok(then);
                        }
                    }
                    Order::EveryTime if is_locked => {
                        self.copy(&instruction, &decoder, bytes);
                        self.end_locked(&decoder, block.address);
                        return Ok(BlockEnd::Stop);
                    }
                    _ => self.copy(&instruction, &decoder, bytes),
                }
                if block.check && check::writes(&instruction) {
                    return Ok(self.cut(block, decoder.position()));
                }
                continue;
            }
            self.result.blocks.push(TranslatedBlock { length: decoder.position() as u32, taken: false });
            if let Some(next) = block.next
                && self.continue_through(&instruction, &decoder, bytes, transfer, next).is_some()
            {
                let taken = self.result.blocks.last().is_some_and(|block| block.taken);
                self.terminator_before = check::terminator_of(transfer, taken);
                return Ok(BlockEnd::Continue);
            }
            self.end(&instruction, &decoder, bytes, transfer);
            return Ok(BlockEnd::Stop);
        }
        let length = decoder.position();
        Ok(self.cut(block, length))
    }

    /// Ends the block without a transfer, because it is too long or its code is not readable.
    fn cut(&mut self, block: &SourceBlock, length: usize) -> BlockEnd {
        self.data.complete = self.data.length;
        self.result.blocks.push(TranslatedBlock { length: length as u32, taken: false });
        let next = block.address + length as u64;
        if block.next == Some(next) {
            self.terminator_before = TERMINATOR_DIRECT;
            return BlockEnd::Continue;
        }
        self.map_safe_point(next);
        self.exit_to(next, TERMINATOR_DIRECT);
        BlockEnd::Stop
    }

    fn offset(&self) -> u16 {
        (self.out.position() - self.start) as u16
    }

    fn map(&mut self, pc: u64, state: RegisterState) {
        let offset = pc.wrapping_sub(self.block_address) as u16;
        let data = self.data.complete as u16;
        let entry = MapEntry { cache: self.offset(), offset, data, block: self.block, state };
        self.is_between_safe_points = state == RegisterState::BetweenSafePoints;
        self.result.map.push(entry);
    }

    /// Adds a safe point before the instruction at `pc` to the translation map.
    fn map_safe_point(&mut self, pc: u64) {
        let state = match (self.spill == Spill::default(), self.has_app_r15) {
            (true, true) => RegisterState::App,
            (true, false) => RegisterState::Cursor,
            (false, has_app_r15) => RegisterState::Spilled(self.spill, has_app_r15),
        };
        self.map(pc, state);
    }

    fn map_between_safe_points(&mut self) {
        self.map(self.block_address, RegisterState::BetweenSafePoints);
    }

    fn require_app_r15(&mut self) {
        if !self.has_app_r15 {
            self.out.load_app_r15();
            self.has_app_r15 = true;
        }
    }

    fn require_cursor(&mut self) {
        if self.has_app_r15 {
            self.out.load_cursor();
            self.has_app_r15 = false;
        }
    }

    /// An instruction without transfer.
    fn copy(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        if segment::is_relative(instruction) {
            self.copy_with_base(instruction, decoder);
        } else {
            self.copy_rebased(instruction, decoder, bytes);
        }
    }

    /// An instruction without transfer that is not relative to gs, or not any more.
    fn copy_rebased(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        if self.options.data == wire::DATA_NONE {
            self.copy_plain(instruction, decoder, bytes);
        } else {
            self.copy_recorded(instruction, decoder, bytes);
        }
    }

    /// The instruction as it is.
    fn copy_plain(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        let pc = instruction.ip();
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
    fn copy_relative(&mut self, bytes: &[u8], offset: usize, address: u64) -> bool {
        let end = self.out.here() + bytes.len() as u64;
        let displacement = address.wrapping_sub(end) as i64;
        let Ok(displacement) = i32::try_from(displacement) else { return false };
        self.out.bytes(&bytes[..offset]);
        self.out.bytes(&displacement.to_le_bytes());
        self.out.bytes(&bytes[offset + 4..]);
        true
    }

    /// Copies with `[rip + displacement]` replaced by `[register]`, the register holding the
    /// address.
    fn copy_far(&mut self, instruction: &Instruction, bytes: &[u8], offset: usize, address: u64) {
        let pc = instruction.ip();
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
            self.map_safe_point(instruction.next_ip());
        }
        self.out.load_gs(register, crate::tcb::SCRATCH_THIRD);
        self.spill.third = Spill::NONE;
    }

    /// Number of blocks executed up to here.
    fn blocks(&self) -> u16 {
        u16::from(self.block) + 1
    }

    /// Adds an exit after `blocks` blocks and records its path.
    fn record_exit(&mut self, kind: ExitKind, target: u64, blocks: u16, terminator: u32) {
        let path = self.options.first_path + self.result.exits.len() as u32;
        let data = self.data.length as u32;
        if kind != ExitKind::Emulated {
            self.out.record(path, data);
        }
        self.result.exits.push(TranslatedExit { kind, target, site: 0, blocks, terminator, data });
    }

    /// Exits after the current block through a linkable jump.
    fn exit_to(&mut self, target: u64, terminator: u32) {
        self.exit_after(self.blocks(), target, terminator);
    }

    fn exit_after(&mut self, blocks: u16, target: u64, terminator: u32) {
        self.require_cursor();
        self.map_between_safe_points();
        let stub = self.options.stub(self.result.exits.len());
        self.record_exit(ExitKind::Direct, target, blocks, terminator);
        self.jump_linkable(stub);
    }

    /// Emits the jump of the newest exit, to its stub at first.
    fn jump_linkable(&mut self, stub: u64) {
        let position = self.out.jump_patchable(stub);
        let site = self.out.here() - (self.out.position() - position) as u64;
        if let Some(exit) = self.result.exits.last_mut() {
            exit.site = site;
        }
    }

    /// Exits to the application address in rcx.
    fn exit_indirect(&mut self, blocks: u16) {
        self.record_exit(ExitKind::Indirect, 0, blocks, TERMINATOR_INDIRECT);
        self.out.jump_indirect(self.options.table);
    }

    fn push_return_address(&mut self, address: u64) {
        if let Some(position) = self.out.push_constant(address) {
            self.literals.push((position, address));
        }
    }

    /// Continues the superblock at `next`, behind this transfer. `None`, and nothing emitted, if it
    /// cannot.
    fn continue_through(
        &mut self,
        instruction: &Instruction,
        decoder: &Decoder,
        bytes: &[u8],
        transfer: Transfer,
        next: u64,
    ) -> Option<()> {
        let pc = instruction.ip();
        self.data.complete = self.data.length;
        self.map_safe_point(pc);
        match transfer {
            Transfer::Conditional { target } => {
                let condition = condition(bytes)?;
                let taken = next == target;
                let fall = instruction.next_ip();
                if !taken && next != fall {
                    return None;
                }
                let (condition, target, terminator) = match taken {
                    true => (condition ^ 1, fall, TERMINATOR_NOT_TAKEN),
                    false => (condition, target, TERMINATOR_TAKEN),
                };
                let site = self.out.jump_if(condition, 0);
                self.side_exit(site, SideTarget::Direct { target, terminator });
                if let Some(block) = self.result.blocks.last_mut() {
                    block.taken = taken;
                }
            }
            Transfer::Jump { target } | Transfer::Call { target } => {
                if next != target || (is_xbegin(instruction) && !has_transactions()) {
                    return None;
                }
                if is_xbegin(instruction) {
                    self.abort_transaction();
                }
                if matches!(transfer, Transfer::Call { .. }) {
                    self.describe_transfer(instruction);
                    self.push_return_address(instruction.next_ip());
                    self.calls.push(instruction.next_ip());
                }
            }
            Transfer::Return => {
                if self.calls.pop() != Some(next) && !self.options.inline_indirect {
                    return None;
                }
                self.pop_target(instruction);
                self.expect(next);
            }
            Transfer::IndirectJump | Transfer::IndirectCall => {
                if !self.options.inline_indirect {
                    return None;
                }
                self.read_target(instruction, decoder, bytes);
                if transfer == Transfer::IndirectCall {
                    let state = if self.has_app_r15 { RegisterState::ScratchApp } else { RegisterState::Scratch };
                    self.map(pc, state);
                    self.push_return_address(instruction.next_ip());
                    self.calls.push(instruction.next_ip());
                    self.map_between_safe_points();
                }
                self.expect(next);
            }
            _ => return None,
        }
        Some(())
    }

    fn side_exit(&mut self, site: usize, target: SideTarget) {
        let (has_app_r15, blocks, data) = (self.has_app_r15, self.blocks(), self.data.length);
        self.side_exits.push(SideExit { site, has_app_r15, blocks, data, target });
    }

    /// Continues if the target in rcx is `next`, else leaves by a side exit. rcx and rdx are
    /// spilled.
    fn expect(&mut self, next: u64) {
        self.out.load_constant(2, next.wrapping_neg());
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let site = self.out.jump(0);
        self.side_exit(site, SideTarget::Indirect(next));
        self.out.reload_scratch();
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
    fn read_target(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        let first = self.describe_transfer(instruction);
        if uses_r15(instruction) && !self.has_app_r15 {
            self.require_app_r15();
            self.map_safe_point(instruction.ip());
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

    /// Ends the superblock with this transfer.
    fn end(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8], transfer: Transfer) {
        let pc = instruction.ip();
        self.data.complete = self.data.length;
        self.map_safe_point(pc);
        match transfer {
            Transfer::Conditional { target } => self.end_conditional(instruction, bytes, target),
            Transfer::Jump { .. } if is_xbegin(instruction) && !has_transactions() => {
                self.out.bytes(&[0x0f, 0x0b]); // ud2
                self.exit_to(instruction.next_ip(), TERMINATOR_DIRECT);
            }
            Transfer::Jump { target } | Transfer::Call { target } => {
                if self.has_app_r15 {
                    self.require_cursor();
                    self.map_safe_point(pc);
                }
                if is_xbegin(instruction) {
                    self.abort_transaction();
                }
                if matches!(transfer, Transfer::Call { .. }) {
                    self.describe_transfer(instruction);
                    self.push_return_address(instruction.next_ip());
                }
                self.exit_to(target, TERMINATOR_DIRECT);
            }
            Transfer::Return => self.end_return(instruction),
            Transfer::IndirectJump | Transfer::IndirectCall => {
                self.end_indirect(instruction, decoder, bytes, transfer == Transfer::IndirectCall);
            }
            Transfer::Syscall => {
                self.require_cursor();
                self.map_between_safe_points();
                let number = self.options.first_path + self.result.exits.len() as u32;
                self.record_exit(ExitKind::Syscall, pc, self.blocks(), TERMINATOR_SYSCALL);
                self.out.exit_stub(number);
            }
            Transfer::Trap | Transfer::Next => {
                self.trap(instruction, bytes);
                self.data.complete = self.data.length;
                // `int3` reports its signal here, so this is a safe point of its own.
                self.map_safe_point(instruction.next_ip());
                self.out.bytes(&[0x90]);
                self.exit_to(instruction.next_ip(), TERMINATOR_DIRECT);
            }
        }
    }

    /// Aborts a transaction at once, with status 0. A transaction may abort at any time, and
    /// nothing can be recorded inside of one.
    fn abort_transaction(&mut self) {
        self.out.bytes(&[0xb8, 0, 0, 0, 0]); // mov eax, 0
        self.data.symbols.set(0, symbol::Symbol::Constant(0));
    }

    fn end_conditional(&mut self, instruction: &Instruction, bytes: &[u8], target: u64) {
        if self.has_app_r15 {
            self.require_cursor();
            self.map_safe_point(instruction.ip());
        }
        let site = match condition(bytes) {
            Some(condition) => self.out.jump_if(condition, 0),
            None => {
                // `loop` and `jrcxz` reach 127 bytes only, so they skip a long jump.
                let last = bytes.len() - 1;
                self.out.bytes(&bytes[..last]);
                self.out.bytes(&[2]);
                self.map_between_safe_points();
                self.out.bytes(&[0xeb, 5]);
                self.out.jump(0)
            }
        };
        self.exit_to(instruction.next_ip(), TERMINATOR_NOT_TAKEN);
        self.out.land(site);
        self.exit_to(target, TERMINATOR_TAKEN);
    }

    fn end_return(&mut self, instruction: &Instruction) {
        if self.has_app_r15 {
            self.require_cursor();
            self.map_safe_point(instruction.ip());
        }
        self.pop_target(instruction);
        self.exit_indirect(self.blocks());
    }

    fn end_indirect(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8], is_call: bool) {
        self.read_target(instruction, decoder, bytes);
        self.require_cursor();
        if is_call {
            self.map(instruction.ip(), RegisterState::Scratch);
            self.push_return_address(instruction.next_ip());
            self.map_between_safe_points();
        }
        self.exit_indirect(self.blocks());
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
            let state = if self.has_app_r15 { RegisterState::ScratchApp } else { RegisterState::Scratch };
            self.map(instruction.ip(), state);
            self.out.bytes(&[0x48, 0x8b, 0x09]); // mov rcx, [rcx]
        }
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

    fn finish(&mut self) {
        for miss in core::mem::take(&mut self.owner_misses) {
            self.emit_owner_miss(&miss);
        }
        for side_exit in core::mem::take(&mut self.side_exits) {
            self.map_between_safe_points();
            self.out.land(side_exit.site);
            self.has_app_r15 = side_exit.has_app_r15;
            self.data.length = side_exit.data;
            match side_exit.target {
                SideTarget::Direct { target, terminator } => self.exit_after(side_exit.blocks, target, terminator),
                SideTarget::Timed { target } => self.exit_timed(side_exit.blocks, target),
                SideTarget::Changed { target, terminator } => self.exit_changed(side_exit.blocks, target, terminator),
                SideTarget::Indirect(expected) => {
                    self.require_cursor();
                    self.out.load_constant(2, expected);
                    self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
                    self.exit_indirect(side_exit.blocks);
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

/// A low register that the instruction does not use, not rsp or rbp or `but`.
fn free_register(instruction: &Instruction, but: u8) -> u8 {
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

fn is_xbegin(instruction: &Instruction) -> bool {
    instruction.mnemonic() == iced_x86::Mnemonic::Xbegin
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
