//! Chains of hot blocks: when one is made, how long it gets, and what it replaces.

use super::*;
use crate::translate::CHAIN_BLOCKS_MAX;

/// What a generation of chains costs and may have: the hotter the code, the longer the chains, so that the cache grows
/// with the time spent in it and cold code is not copied about.
pub(super) struct Tier {
    /// Samples of the previous generation that it takes.
    pub(super) samples: u16,
    blocks: usize,
    bytes: u32,
    /// Whether it goes on through the first blocks of other chains.
    through_chains: bool,
    /// Whether it goes on through indirect jumps and all returns.
    guess: bool,
    /// Executions of the fragment that have a say in what the chain becomes. Finding them takes time, so only hot code is worth it.
    votes: usize,
}

pub(super) const TIERS: [Tier; 4] = [
    Tier { samples: 3, blocks: 10, bytes: 256, through_chains: false, guess: false, votes: 1 },
    Tier { samples: 48, blocks: 32, bytes: 1024, through_chains: true, guess: true, votes: 64 },
    Tier { samples: 128, blocks: CHAIN_BLOCKS_MAX, bytes: 2048, through_chains: true, guess: true, votes: 64 },
    Tier { samples: 512, blocks: CHAIN_BLOCKS_MAX, bytes: 2048, through_chains: true, guess: true, votes: 64 },
];

/// Most instructions of a path: a chain has no more bytes than its tier allows, a single block has fewer.
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

/// Code this close to each other has cache regions that reach both.
const NEAR: u64 = 1 << 30;

/// Whether the code of a block has operands whose values can be taken only near them.
fn needs_nearness(part: &Part) -> bool {
    let mut code = alloc::vec![0; part.length as usize];
    let length = memory::read_bytes(part.address, &mut code);
    let mut instructions = isa::decoder(part.address, &code[..length]).into_iter();
    instructions.any(|instruction| translate::needs_nearness(&instruction))
}

/// What a thread executed from a fragment on, block by block, as far as a chain may follow.
struct Execution<'e> {
    engine: &'e Engine,
    tier: &'e Tier,
    /// What every fragment on the way has to be: a chain stays in its world, and is silent as a whole or not at all.
    kind: Option<(World, bool)>,
    /// The blocks of the current path that are still to come, and the words behind it.
    parts: &'e [Part],
    words: &'e [u32],
}

impl<'e> Execution<'e> {
    fn new(engine: &'e Engine, tier: &'e Tier, words: &'e [u32]) -> Self {
        Self { engine, tier, kind: None, parts: &[], words }
    }

    /// Goes on with the path of the next word. `None` if a chain cannot.
    fn enter_path(&mut self) -> Option<()> {
        let (&word, words) = self.words.split_first()?;
        let (at, exit) = self.engine.path(word)?;
        let fragment = self.engine.fragment(at);
        let kind = (fragment.world, fragment.silent);
        let is_first = self.kind.is_none();
        if fragment.life == Life::Dropped
            || (!is_first && !self.tier.through_chains && fragment.block_count > 1)
            || *self.kind.get_or_insert(kind) != kind
            || fragment.restless
            || exit.kind == ExitKind::Emulated
        {
            return None;
        }
        self.parts = self.engine.parts(at).get(..usize::from(exit.blocks))?;
        self.words = if exit.kind == ExitKind::Syscall { &[] } else { words };
        Some(())
    }
}

impl Iterator for Execution<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        while self.parts.is_empty() {
            self.enter_path()?;
        }
        let (&part, rest) = self.parts.split_first()?;
        self.parts = rest;
        Some(part)
    }
}

/// The block that most executions go on with; the others are left out from then on.
fn most_common_next(executions: &mut Vec<Execution<'_>>) -> Option<Part> {
    let mut nexts: Vec<(Part, u32)> = Vec::new();
    let mut chosen = Vec::with_capacity(executions.len());
    executions.retain_mut(|execution| {
        let Some(part) = execution.next() else { return false };
        let at = nexts.iter().position(|(other, _)| *other == part).unwrap_or(nexts.len());
        if at == nexts.len() {
            nexts.push((part, 0));
        }
        nexts[at].1 += 1;
        chosen.push(at);
        true
    });
    // The first of equals: the path that was sampled is the first one.
    let best = (0..nexts.len()).rev().max_by_key(|&at| nexts[at].1)?;
    let mut chosen = chosen.into_iter();
    executions.retain(|_| chosen.next() == Some(best));
    Some(nexts[best].0)
}

/// Chains of hot blocks.
impl Engine {
    /// The profile has met a path at the beginning of `words`, which go on with what the thread executed next.
    /// Returns whether a chain was made of it.
    pub fn sample(&mut self, words: &[u32]) -> bool {
        let Some((at, exit)) = words.first().and_then(|&word| self.path(word)) else { return false };
        let executed = exit.blocks;
        let fragment = self.fragment_mut(at);
        if fragment.life != Life::Live || fragment.restless {
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
        if self.calm_down(at) {
            return false;
        }
        let fragment = self.fragment_mut(at);
        // A chain that has grown to its full length is made anew only if it is mostly left early.
        let is_full = usize::from(fragment.block_count) >= tier.blocks;
        let is_good = fragment.early * 2 < fragment.samples;
        fragment.samples = 0;
        fragment.early = 0;
        !(is_full && is_good) && self.chain(at, words, tier)
    }

    /// A hot fragment that compares its code at every entry: perhaps it does not change any more. True if it was dropped, to be
    /// made anew without.
    fn calm_down(&mut self, at: FragmentRef) -> bool {
        let fragment = self.fragment(at);
        let (address, is_hot) = (fragment.address, fragment.checked && fragment.generation > 0);
        is_hot && self.try_to_guard_again(address)
    }

    /// Words of data behind the word of a path.
    pub fn data_words(&self, word: u32) -> Option<u16> {
        self.paths.data_words(word)
    }

    /// Whether the accesses on a path are recorded.
    pub fn records_data(&self, path: u32) -> bool {
        let is_silent = self.paths.fragment(path).is_some_and(|at| self.fragment(at).silent);
        self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE && !is_silent
    }

    /// The fragment and exit of a path.
    pub(super) fn path(&self, word: u32) -> Option<(FragmentRef, Exit)> {
        Some((self.paths.fragment(word)?, self.exit(word)?))
    }

    /// Replaces a fragment by the chain of blocks that `words` show.
    fn chain(&mut self, old: FragmentRef, words: &[u32], tier: &Tier) -> bool {
        let parts = self.gather(old, words, tier);
        if parts.len() < 2 {
            // Where other chains begin right behind it, the next tier goes on through them.
            self.fragment_mut(old).generation += 1;
            return false;
        }
        let mut code = Vec::new();
        for part in &parts {
            self.pages.guard(part.address);
            self.pages.guard(part.address + u64::from(part.length) - 1);
            let start = code.len();
            code.resize(start + part.length as usize, 0);
            if memory::read_bytes(part.address, &mut code[start..]) != part.length as usize {
                return false;
            }
        }
        let mut rest = code.as_slice();
        let mut chain = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let (bytes, after) = rest.split_at(part.length as usize);
            rest = after;
            let next = parts.get(index + 1).map(|part| part.address);
            let check = self.pages.is_checked(part.address, part.address + u64::from(part.length));
            chain.push(ChainBlock { address: part.address, code: bytes, next, check });
        }
        let before = self.fragment(old);
        let (world, by_arrival, first_path) = (before.world, before.arrival != 0, before.first_path);
        let generation = before.generation + 1;
        let Ok((mut fragment, translation)) = self.emit(world, &chain, by_arrival, tier.guess) else { return false };
        fragment.generation = generation;
        // Room for the chain may have been made by giving up what it replaces.
        let is_live =
            |engine: &Self| engine.paths.fragment(first_path) == Some(old) && engine.fragment(old).life == Life::Live;
        if !is_live(self) || self.reserve(&fragment, &translation).is_err() {
            return false;
        }
        let new = self.register(fragment, &translation, &chain);
        self.replace(old, new);
        true
    }

    /// The blocks of a chain from a fragment on: at each of them, the chain goes where most executions in `words` went that have
    /// agreed so far.
    pub(super) fn gather(&self, from: FragmentRef, words: &[u32], tier: &Tier) -> Vec<Part> {
        let mut executions = self.executions(from, words, tier);
        let mut parts: Vec<Part> = Vec::new();
        let mut bytes = 0;
        while let Some(part) = most_common_next(&mut executions) {
            bytes += part.length;
            let closed = parts.first().is_some_and(|first| first.address == part.address);
            let enough = parts.len() * 2 >= tier.blocks;
            let world = self.fragment(from).world;
            let is_gate = || self.selection.is_gate(world, part.address) || self.sections.contains(part.address);
            let gate = !parts.is_empty() && is_gate();
            if parts.len() >= tier.blocks || bytes > tier.bytes || (closed && enough) || gate {
                break;
            }
            if parts.first().is_some_and(|first| self.would_lose_values(first, &part)) {
                break;
            }
            parts.push(part);
        }
        parts
    }

    /// Where `words` show that the fragment was executed, and what came then.
    fn executions<'e>(&'e self, of: FragmentRef, words: &'e [u32], tier: &'e Tier) -> Vec<Execution<'e>> {
        let fragment = self.fragment(of);
        let (first, count) = (fragment.first_path, u32::from(fragment.exit_count));
        let is_own = |word: u32| word.wrapping_sub(first) < count;
        let places = self.items(words).filter(|&at| is_own(words[at]));
        places.take(tier.votes).map(|at| Execution::new(self, tier, &words[at..])).collect()
    }

    /// Where paths and events begin in `words`. What stands behind the first word of an event looks like any path.
    fn items(&self, words: &[u32]) -> impl Iterator<Item = usize> {
        // With data, only first words have been left.
        let has_data = self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE;
        let length = move |word: u32| if has_data { 1 } else { wire::word::length(word).unwrap_or(1) };
        let behind = move |&at: &usize| Some(at + length(words[at])).filter(|&next| next < words.len());
        core::iter::successors((!words.is_empty()).then_some(0), behind)
    }

    /// Whether values of `part` could not be taken in a chain that begins with `first`: the chain will be near that, and operands
    /// relative to rip would be out of reach.
    fn would_lose_values(&self, first: &Part, part: &Part) -> bool {
        let takes_values = self.control().data.load(Ordering::Relaxed) == wire::DATA_VALUES;
        takes_values && first.address.abs_diff(part.address) > NEAR && needs_nearness(part)
    }

    /// Leads everything that goes to `old` to `new`, which is for the same address.
    fn replace(&mut self, old: FragmentRef, new: FragmentRef) {
        let from = self.fragment_mut(old);
        let incoming = core::mem::take(&mut from.incoming);
        let (address, first_path, arrival) = (from.address, from.first_path, from.arrival);
        let to = self.fragment(new);
        let (world, new_arrival) = (to.world, to.arrival);
        self.by_address[world as usize].insert(address, new.0);
        if new_arrival != 0
            && let Some(slot) = self.table_slot(world, address)
        {
            let _ = slot.compare_exchange(arrival, new_arrival, Ordering::Release, Ordering::Relaxed);
        }
        self.kill(old, Life::Replaced);
        for path in incoming {
            if self.unlink(path, first_path) {
                self.link(path, new);
            }
        }
    }
}
