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
}

pub(super) const TIERS: [Tier; 4] = [
    Tier { samples: 3, blocks: 10, bytes: 256, through_chains: false, guess: false },
    Tier { samples: 48, blocks: 32, bytes: 1024, through_chains: true, guess: true },
    Tier { samples: 128, blocks: CHAIN_BLOCKS_MAX, bytes: 2048, through_chains: true, guess: true },
    Tier { samples: 512, blocks: CHAIN_BLOCKS_MAX, bytes: 2048, through_chains: true, guess: true },
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

/// Chains of hot blocks.
impl Engine {
    /// The profile has met a path at the beginning of `history`, which goes on with what the thread executed next.
    /// Returns whether a chain was made of it.
    pub fn sample(&mut self, history: &[u32]) -> bool {
        let Some((at, exit)) = self.path(history[0]) else { return false };
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
        !(is_full && is_good) && self.chain(at, history, tier)
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

    /// Replaces a fragment by the chain of blocks that `history` shows.
    fn chain(&mut self, old: FragmentRef, history: &[u32], tier: &Tier) -> bool {
        let parts = self.gather(history, tier);
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

    /// The blocks that `history` shows, up to the limits of a chain.
    fn gather(&self, history: &[u32], tier: &Tier) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut bytes = 0;
        let mut first = None;
        for &word in history {
            let Some((at, exit)) = self.path(word) else { break };
            let fragment = self.fragment(at);
            if fragment.life == Life::Dropped || (!parts.is_empty() && !tier.through_chains && fragment.block_count > 1)
            {
                break;
            }
            // A chain stays in its world, and is silent as a whole or not at all.
            let kind = (fragment.world, fragment.silent);
            if *first.get_or_insert(kind) != kind || fragment.restless || exit.kind == ExitKind::Emulated {
                break;
            }
            for part in self.parts(at).iter().take(usize::from(exit.blocks)) {
                bytes += part.length;
                let closed = parts.first().is_some_and(|first| first.address == part.address);
                let enough = parts.len() * 2 >= tier.blocks;
                let is_gate =
                    || self.selection.is_gate(fragment.world, part.address) || self.sections.contains(part.address);
                let gate = !parts.is_empty() && is_gate();
                if parts.len() >= tier.blocks || bytes > tier.bytes || (closed && enough) || gate {
                    return parts;
                }
                if parts.first().is_some_and(|first| self.would_lose_values(first, part)) {
                    return parts;
                }
                parts.push(*part);
            }
            if exit.kind == ExitKind::Syscall {
                break;
            }
        }
        parts
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
