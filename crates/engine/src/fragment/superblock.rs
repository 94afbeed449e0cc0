//! Superblocks: fragments of several blocks along a hot path. [`crate::profile`] samples the ring;
//! a fragment with enough samples is replaced by a superblock along the path that most executions
//! took.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use entity::PathId;

use super::{BlockSpan, FragmentRef, FragmentStatus};
use crate::engine::Engine;
use crate::memory;
use crate::select::TranslationMode;
use crate::translate::{self, ExitKind, SUPERBLOCK_BLOCKS_MAX, SourceBlock};

/// The limits of one generation of superblocks. The hotter the code, the longer the superblocks: so
/// cold code is not copied.
struct Tier {
    /// Samples of the previous generation that it needs.
    samples: u16,
    blocks: usize,
    bytes: u32,
    /// Whether it may contain blocks of other superblocks.
    through_superblocks: bool,
    /// Whether it continues through indirect jumps and all returns.
    inline_indirect: bool,
    /// Executions of the fragment that vote for the path. Finding them takes time, so only hot code
    /// gets many.
    votes: usize,
}

const TIERS: [Tier; 4] = [
    Tier { samples: 3, blocks: 10, bytes: 256, through_superblocks: false, inline_indirect: false, votes: 1 },
    Tier { samples: 48, blocks: 32, bytes: 1024, through_superblocks: true, inline_indirect: true, votes: 64 },
    Tier {
        samples: 128,
        blocks: SUPERBLOCK_BLOCKS_MAX,
        bytes: 2048,
        through_superblocks: true,
        inline_indirect: true,
        votes: 64,
    },
    Tier {
        samples: 512,
        blocks: SUPERBLOCK_BLOCKS_MAX,
        bytes: 2048,
        through_superblocks: true,
        inline_indirect: true,
        votes: 64,
    },
];

/// Most instructions of a path. A superblock has no more bytes than its tier allows, and a single
/// block has fewer.
pub const PATH_INSTRUCTIONS_MAX: usize = {
    let (mut most, mut tier) = (wire::code::BLOCK_BYTES_MAX, 0);
    while tier < TIERS.len() {
        if TIERS[tier].bytes as usize > most {
            most = TIERS[tier].bytes as usize;
        }
        tier += 1;
    }
    most
};

/// Code within this distance is reachable from one region of the code cache.
const NEAR: u64 = 1 << 30;

/// Whether a block has operands whose values can be recorded only by code near them.
fn needs_near_cache(block: &BlockSpan) -> bool {
    let mut code = alloc::vec![0; block.length as usize];
    let length = memory::read_bytes(block.address.get(), &mut code);
    let mut instructions = isa::decoder(block.address, &code[..length]).into_iter();
    instructions.any(|instruction| translate::needs_near_cache(&instruction))
}

/// The blocks that a thread executed from a fragment on, as far as a superblock may follow.
struct Execution<'e> {
    engine: &'e Engine,
    tier: &'e Tier,
    /// The mode of all fragments on the path, and whether they are uninstrumented: a superblock
    /// does not mix them.
    kind: Option<(TranslationMode, bool)>,
    /// The remaining blocks of the current path, and the words behind it.
    blocks: &'e [BlockSpan],
    words: &'e [u32],
}

impl<'e> Execution<'e> {
    fn new(engine: &'e Engine, tier: &'e Tier, words: &'e [u32]) -> Self {
        Self { engine, tier, kind: None, blocks: &[], words }
    }

    /// Continues with the path of the next word. `None` if a superblock cannot follow.
    fn enter_path(&mut self) -> Option<()> {
        let (&word, words) = self.words.split_first()?;
        let (at, exit) = self.engine.path(PathId::new(word))?;
        let fragment = self.engine.fragment(at);
        let kind = (fragment.mode, fragment.uninstrumented);
        let is_first = self.kind.is_none();
        if fragment.status == FragmentStatus::Dropped
            || (!is_first && !self.tier.through_superblocks && fragment.block_count > 1)
            || *self.kind.get_or_insert(kind) != kind
            || fragment.unlinkable
            || exit.kind == ExitKind::Emulated
        {
            return None;
        }
        self.blocks = self.engine.blocks_of(at).get(..usize::from(exit.blocks))?;
        self.words = if exit.kind == ExitKind::Syscall { &[] } else { words };
        Some(())
    }
}

impl Iterator for Execution<'_> {
    type Item = BlockSpan;

    fn next(&mut self) -> Option<BlockSpan> {
        while self.blocks.is_empty() {
            self.enter_path()?;
        }
        let (&block, rest) = self.blocks.split_first()?;
        self.blocks = rest;
        Some(block)
    }
}

/// Returns the block that most executions continue with, and removes the other executions.
fn most_common_next(executions: &mut Vec<Execution<'_>>) -> Option<BlockSpan> {
    let mut nexts: Vec<(BlockSpan, u32)> = Vec::new();
    let mut chosen = Vec::with_capacity(executions.len());
    executions.retain_mut(|execution| {
        let Some(block) = execution.next() else { return false };
        let at = nexts.iter().position(|(other, _)| *other == block).unwrap_or(nexts.len());
        if at == nexts.len() {
            nexts.push((block, 0));
        }
        nexts[at].1 += 1;
        chosen.push(at);
        true
    });
    // The first of equals wins: the sampled path is the first one.
    let best = (0..nexts.len()).rev().max_by_key(|&at| nexts[at].1)?;
    let mut chosen = chosen.into_iter();
    executions.retain(|_| chosen.next() == Some(best));
    Some(nexts[best].0)
}

/// Making superblocks.
impl Engine {
    /// Counts a sample: the path at the beginning of `words`, which continue with what the thread
    /// executed next. Returns whether a superblock was made.
    pub fn sample(&mut self, words: &[u32]) -> bool {
        let Some((at, exit)) = words.first().and_then(|&word| self.path(PathId::new(word))) else { return false };
        let executed = exit.blocks;
        let fragment = self.fragment_mut(at);
        if fragment.status != FragmentStatus::Live || fragment.unlinkable {
            return false;
        }
        let Some(tier) = TIERS.get(usize::from(fragment.generation)) else { return false };
        fragment.samples += 1;
        if executed * 2 < fragment.block_count {
            fragment.early += 1;
        }
        if fragment.samples < tier.samples {
            return false;
        }
        if self.guard_again(at) {
            return false;
        }
        let fragment = self.fragment_mut(at);
        // A superblock of full length is replaced only if it is mostly left early.
        let is_full = usize::from(fragment.block_count) >= tier.blocks;
        let is_good = fragment.early * 2 < fragment.samples;
        fragment.samples = 0;
        fragment.early = 0;
        !(is_full && is_good) && self.build_superblock(at, words, tier)
    }

    /// Write-protects the page of a hot fragment that compares its code at every entry: perhaps the
    /// code does not change any more. True if the fragment was dropped for that.
    fn guard_again(&mut self, at: FragmentRef) -> bool {
        let fragment = self.fragment(at);
        let (address, is_hot) = (fragment.address, fragment.checked && fragment.generation > 0);
        is_hot && self.retry_guard(address)
    }

    /// Replaces a fragment by a superblock along the path that `words` show.
    fn build_superblock(&mut self, old: FragmentRef, words: &[u32], tier: &Tier) -> bool {
        let blocks = self.choose_blocks(old, words, tier);
        if blocks.len() < 2 {
            // Other superblocks begin right behind it: the next tier continues through them.
            self.fragment_mut(old).generation += 1;
            return false;
        }
        let mut code = Vec::new();
        for block in &blocks {
            self.pages.guard(block.memory().start);
            self.pages.guard(block.memory().end - 1);
            let start = code.len();
            code.resize(start + block.length as usize, 0);
            if memory::read_bytes(block.address.get(), &mut code[start..]) != block.length as usize {
                return false;
            }
        }
        let mut rest = code.as_slice();
        let mut source = Vec::with_capacity(blocks.len());
        for (index, block) in blocks.iter().enumerate() {
            let (bytes, after) = rest.split_at(block.length as usize);
            rest = after;
            let next = blocks.get(index + 1).map(|block| block.address);
            let check = self.pages.is_checked(block.memory().start, block.memory().end);
            let is_entry = self.selection.records_stack_pointer(block.address);
            source.push(SourceBlock { address: block.address, code: bytes, next, check, is_entry });
        }
        let before = self.fragment(old);
        let (mode, with_indirect_entry, id) = (before.mode, !before.indirect_entry.is_none(), before.id);
        let generation = before.generation + 1;
        let Ok((mut fragment, translation)) = self.emit(mode, &source, with_indirect_entry, tier.inline_indirect)
        else {
            return false;
        };
        fragment.generation = generation;
        // `emit` may have made room by dropping the fragment that is to be replaced.
        let is_live =
            |engine: &Self| engine.reference(id) == Some(old) && engine.fragment(old).status == FragmentStatus::Live;
        if !is_live(self) || self.reserve(&fragment, &translation).is_err() {
            return false;
        }
        let new = self.register(fragment, &translation, &source);
        self.replace(old, new);
        true
    }

    /// Chooses the blocks of a superblock that begins with a fragment. After each block, it follows
    /// the majority of those executions in `words` that have agreed so far.
    fn choose_blocks(&self, from: FragmentRef, words: &[u32], tier: &Tier) -> Vec<BlockSpan> {
        let mut executions = self.executions(from, words, tier);
        let mut blocks: Vec<BlockSpan> = Vec::new();
        let mut bytes = 0;
        while let Some(block) = most_common_next(&mut executions) {
            bytes += block.length;
            let closed = blocks.first().is_some_and(|first| first.address == block.address);
            let enough = blocks.len() * 2 >= tier.blocks;
            let mode = self.fragment(from).mode;
            let is_gate = || self.selection.is_gate(mode, block.address) || self.sections.contains(block.address);
            let gate = !blocks.is_empty() && is_gate();
            if blocks.len() >= tier.blocks || bytes > tier.bytes || (closed && enough) || gate {
                break;
            }
            if blocks.first().is_some_and(|first| self.would_lose_values(first, &block)) {
                break;
            }
            blocks.push(block);
        }
        blocks
    }

    /// The executions of a fragment that `words` show, each with what came next.
    fn executions<'e>(&'e self, of: FragmentRef, words: &'e [u32], tier: &'e Tier) -> Vec<Execution<'e>> {
        let fragment = self.fragment(of);
        let (id, count) = (fragment.id, u32::from(fragment.exit_count));
        let is_own = |word: u32| id.exit_of(PathId::new(word)) < count;
        let starts = self.record_starts(words).filter(|&at| is_own(words[at]));
        starts.take(tier.votes).map(|at| Execution::new(self, tier, &words[at..])).collect()
    }

    /// The positions in `words` where paths and events begin. The other words of an event look like
    /// paths.
    fn record_starts(&self, words: &[u32]) -> impl Iterator<Item = usize> {
        // If data is recorded, the profile has removed all but the first words.
        let has_data = self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE;
        let length = move |word: u32| if has_data { 1 } else { wire::word::length(word).unwrap_or(1) };
        let behind = move |&at: &usize| Some(at + length(words[at])).filter(|&next| next < words.len());
        core::iter::successors((!words.is_empty()).then_some(0), behind)
    }

    /// Whether values of `block` could not be recorded in a superblock that begins with `first`:
    /// its code will lie near `first`, and operands relative to rip would be out of reach.
    fn would_lose_values(&self, first: &BlockSpan, block: &BlockSpan) -> bool {
        let takes_values = self.control().data.load(Ordering::Relaxed) == wire::DATA_VALUES;
        takes_values && first.address.get().abs_diff(block.address.get()) > NEAR && needs_near_cache(block)
    }

    /// Redirects all links and the table slot of `old` to `new`, which has the same address.
    fn replace(&mut self, old: FragmentRef, new: FragmentRef) {
        let from = self.fragment_mut(old);
        let incoming = core::mem::take(&mut from.incoming);
        let (address, id, indirect_entry) = (from.address, from.id, from.indirect_entry);
        let to = self.fragment(new);
        let (mode, new_entry) = (to.mode, to.indirect_entry);
        self.by_address[mode as usize].insert(address, new.0);
        if !new_entry.is_none()
            && let Some(slot) = self.table_slot(mode, address)
        {
            let _ = slot.compare_exchange(indirect_entry.get(), new_entry.get(), Ordering::Release, Ordering::Relaxed);
        }
        self.unregister(old, FragmentStatus::Replaced);
        for path in incoming {
            if self.unlink(path, id) {
                self.link(path, new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::code::Definition;

    use super::*;
    use crate::testing::{BRANCH, JUMP_TO_ITSELF, engine, page, records};

    /// The word of the path to the first exit.
    fn first_word(engine: &Engine, at: FragmentRef) -> u32 {
        engine.fragment(at).id.first_path().get()
    }

    #[test]
    fn hot_blocks_become_a_superblock() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, true).unwrap();
        let second = engine.find(code + 0x40, false).unwrap();
        engine.add_to_table(first);
        let taken = engine.fragment(first).id.path(1).get();
        let history = [taken, first_word(&engine, second), wire::word::event(wire::word::TIME, 0), 1];
        let samples = usize::from(TIERS[0].samples);
        let made: Vec<bool> = (0..samples).map(|_| engine.sample(&history)).collect();
        assert_eq!(made.iter().position(|made| *made), Some(samples - 1));
        let superblock = engine.find(code, false).unwrap();
        assert_eq!(engine.fragment(first).status, FragmentStatus::Replaced);
        let new = engine.fragment(superblock);
        assert_eq!(
            engine.table_slot(TranslationMode::Instrumented, code).unwrap().load(Ordering::Relaxed),
            new.indirect_entry.get()
        );
        let Some(Definition::Fragment(record)) = records(&engine).pop() else { panic!("no fragment") };
        let is_taken: Vec<bool> = record.blocks.map(|block| block.is_taken()).collect();
        assert_eq!(is_taken, [true, false], "the branch is taken inside of the superblock");
        assert!(!engine.sample(&history), "the old fragment is not looked at any more");
        assert!(!engine.sample(&[wire::word::event(wire::word::TIME, 0), 1]));
    }

    #[test]
    fn a_superblock_follows_most_executions() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (BRANCH.len(), &JUMP_TO_ITSELF), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, true).unwrap();
        let not_taken = first_word(&engine, first);
        let taken = not_taken + 1;
        let mut path_at = |address| {
            let at = engine.find(address, false).unwrap();
            first_word(&engine, at)
        };
        let (fall, target) = (path_at(code + BRANCH.len() as u64), path_at(code + 0x40));
        // The sampled execution is the exception.
        let words = [not_taken, fall, taken, target, taken, target, not_taken, fall, taken, target];
        let second_block = |tier| engine.choose_blocks(first, &words, tier)[1].address;
        assert_eq!(second_block(&TIERS[0]), code + BRANCH.len() as u64, "cold code follows the sample");
        assert_eq!(second_block(&TIERS[1]), code + 0x40, "hot code follows the majority");
    }

    #[test]
    fn stale_history_makes_no_superblock() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let first = engine.find(code, false).unwrap();
        let second = engine.find(code + 0x40, false).unwrap();
        let history = [first_word(&engine, first) + 1, first_word(&engine, second)];
        engine.drop_fragment(second);
        assert!((0..100).all(|_| !engine.sample(&history)));
    }
}
