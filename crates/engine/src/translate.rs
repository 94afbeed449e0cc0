//! Translation: from blocks of application code to a fragment.
//!
//! The input is a superblock: blocks that follow each other, often only one. Each exit is the end
//! of a *path*, whose number it writes at the cursor; inside of the superblock nothing is written.
//! Instructions are copied. Only RIP-relative displacements are adjusted, control transfers are
//! replaced, and code that uses r15 saves the cursor for that time.
//!
//! This module decodes the blocks. `copy` translates instructions without transfer, `terminator`
//! the others, and `exit` the ends of paths. Recorded data goes behind the path's word: see `data`
//! and `value`.
//!
//! The translation map ([`MapEntry`]) gives, for every address of the fragment, the next
//! application instruction and where the application's registers are, so that signal handlers see
//! the exact state.

use alloc::vec::Vec;
use entity::{AppPc, FragmentId};
use iced_x86::{Decoder, DecoderError, Instruction};
use isa::Transfer;
use wire::code::TERMINATOR_DIRECT;

use crate::cache_pc::CachePc;
use crate::emit::{Emitter, IndirectTable};

pub mod check;
mod copy;
mod data;
mod exit;
mod map;
pub mod operand;
mod order;
mod segment;
mod symbol;
mod terminator;
mod value;

pub use data::IN_STRING;
pub use exit::{ENTRY_CHANGED, ExitKind, STUB_STRIDE, TranslatedExit};
pub use map::{MapEntry, RegisterState, Spill};
pub use value::needs_near_cache;

use data::Data;
use exit::{SideExit, SideTarget};
use value::SourceInstruction;

/// Blocks are cut after this many instructions.
pub const BLOCK_INSTRUCTIONS_MAX: usize = 100;
/// Most blocks in a superblock.
pub const SUPERBLOCK_BLOCKS_MAX: usize = 64;

/// A block of application code to translate.
#[derive(Clone, Copy)]
pub struct SourceBlock<'a> {
    pub address: AppPc,
    /// Readable code from `address` on, at least to the end of the block or of readable memory.
    pub code: &'a [u8],
    /// Address of the next block of the superblock; `None` for the last one.
    pub next: Option<AppPc>,
    /// The code may change unnoticed, so the fragment compares it before it is executed.
    pub check: bool,
    /// It is the entry of a function at which the stack pointer is recorded, if data is.
    pub is_entry: bool,
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
    pub table: IndirectTable,
    /// Whether the superblock continues through indirect jumps, and through returns from calls that
    /// it does not contain.
    pub inline_indirect: bool,
    /// How locked instructions order threads.
    pub order: Order,
    /// What is recorded beside the path: one of `wire::DATA_*`.
    pub data: u32,
    pub has_avx512: bool,
    pub fragment: FragmentId,
    /// The exit stubs lie below this address.
    pub stubs_end: CachePc,
}

impl TranslationOptions {
    /// Address of the stub of the exit with this index in the fragment.
    pub fn stub(&self, index: usize) -> CachePc {
        self.stubs_end - ((index + 1) * STUB_STRIDE) as u64
    }
}

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

struct Translator<'e, 'b> {
    out: &'e mut Emitter<'b>,
    options: &'e TranslationOptions,
    result: Translation,
    start: usize,
    /// r15 holds the application's value here.
    has_app_r15: bool,
    literals: Vec<(usize, u64)>,
    /// Return addresses of the calls in the superblock that have not returned.
    calls: Vec<AppPc>,
    side_exits: Vec<SideExit>,
    block: u8,
    block_address: AppPc,
    data: Data,
    /// The current instruction.
    pc: AppPc,
    spill: Spill,
    /// The newest map entry is between safe points.
    is_between_safe_points: bool,
    /// An instruction that the translation needs cannot be encoded.
    failed: bool,
    /// Terminator of the block before the current one.
    terminator_before: u32,
    /// What the current instruction does, if it is locked and ordered.
    locked: Option<order::LockedClass>,
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
        block_address: AppPc::NONE,
        data: Data::new(options.data),
        pc: AppPc::NONE,
        spill: Spill::default(),
        is_between_safe_points: false,
        failed: false,
        terminator_before: TERMINATOR_DIRECT,
        locked: None,
        owner_misses: Vec::new(),
    };
    translator.open_map();
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
            let is_unreadable = is_unreadable(block, start, &instruction, &decoder);
            if is_unreadable && start == 0 {
                return Err(Unreadable);
            }
            if is_unreadable || start > 0 && self.is_full() {
                return Ok(self.cut(block, start));
            }
            if self.is_for_the_engine(&instruction) {
                return self.end_emulated(&instruction, block, start);
            }
            if start == 0 && block.is_entry {
                self.record_stack_pointer();
            }
            let bytes = &block.code[start..decoder.position()];
            let source = SourceInstruction { instruction: &instruction, decoder: &decoder, bytes };
            let transfer = if instruction.is_invalid() { Transfer::Trap } else { isa::transfer(&instruction) };
            if transfer != Transfer::Next {
                return Ok(self.transfer(block, &source, transfer));
            }
            if let Some(end) = self.copy_ordered(block, &source) {
                return Ok(end);
            }
        }
        let length = decoder.position();
        Ok(self.cut(block, length))
    }

    /// Copies an instruction without transfer, and orders it if it is locked. `None` if the block
    /// continues behind it.
    fn copy_ordered(&mut self, block: &SourceBlock, source: &SourceInstruction) -> Option<BlockEnd> {
        let SourceInstruction { instruction, decoder, bytes } = *source;
        self.result.descriptors.extend(crate::rseq::candidate(instruction));
        let is_locked = isa::is_locked(instruction);
        self.result.has_locked |= is_locked;
        match self.options.order {
            Order::Contention if is_locked => {
                if let Some(end) = self.copy_locked(instruction, decoder, bytes, block) {
                    return Some(end);
                }
            }
            Order::EveryTime if is_locked => {
                self.copy(instruction, decoder, bytes);
                self.end_locked(decoder, block.address);
                return Some(BlockEnd::Stop);
            }
            _ => self.copy(instruction, decoder, bytes),
        }
        (block.check && check::writes(instruction)).then(|| self.cut(block, decoder.position()))
    }

    /// Ends the block with a transfer, and continues the superblock if it can.
    fn transfer(&mut self, block: &SourceBlock, source: &SourceInstruction, transfer: Transfer) -> BlockEnd {
        self.result.blocks.push(TranslatedBlock { length: source.decoder.position() as u32, taken: false });
        if let Some(next) = block.next
            && self.continue_through(source, transfer, next).is_some()
        {
            let taken = self.result.blocks.last().is_some_and(|block| block.taken);
            self.terminator_before = check::terminator_of(transfer, taken);
            return BlockEnd::Continue;
        }
        self.end(source, transfer);
        BlockEnd::Stop
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
}

/// The address of an instruction of the application.
fn pc_of(instruction: &Instruction) -> AppPc {
    AppPc::new(instruction.ip())
}

/// The address behind an instruction of the application.
fn pc_after(instruction: &Instruction) -> AppPc {
    AppPc::new(instruction.next_ip())
}

/// Whether readable memory (or the longest block) ends in the middle of the instruction at `start`.
fn is_unreadable(block: &SourceBlock, start: usize, instruction: &Instruction, decoder: &Decoder) -> bool {
    let at_end = block.code.len() - start < isa::INSTRUCTION_BYTES_MAX;
    instruction.is_invalid() && at_end && decoder.last_error() == DecoderError::NoMoreBytes
}
