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
        let Some((index, exit)) = self.path(history[0]) else { return false };
        let executed = exit.blocks;
        let fragment = &mut self.fragments[index as usize];
        if self.by_address[fragment.world as usize].get(fragment.address) != Some(index) || fragment.restless {
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
        if self.calm_down(index) {
            return false;
        }
        let fragment = &mut self.fragments[index as usize];
        // A chain that has grown to its full length is made anew only if it is mostly left early.
        let is_full = usize::from(fragment.block_count) >= tier.blocks;
        let is_good = fragment.early * 2 < fragment.samples;
        fragment.samples = 0;
        fragment.early = 0;
        !(is_full && is_good) && self.chain(index, history, tier)
    }

    /// A hot fragment that compares its code at every entry: perhaps it does not change any more. True if it was dropped, to be
    /// made anew without.
    fn calm_down(&mut self, index: u32) -> bool {
        let fragment = &self.fragments[index as usize];
        let (address, is_hot) = (fragment.address, fragment.checked && fragment.generation > 0);
        is_hot && self.try_to_guard_again(address)
    }

    /// Words of data behind the word of a path.
    pub fn data_words(&self, word: u32) -> Option<u16> {
        self.data_words.get(word.checked_sub(self.path_base)? as usize).copied()
    }

    /// Whether the accesses on a path are recorded.
    pub fn records_data(&self, path: u32) -> bool {
        let is_silent = self.path(path).is_some_and(|(index, _)| self.fragments[index as usize].silent);
        self.control().data.load(Ordering::Relaxed) != wire::DATA_NONE && !is_silent
    }

    /// The fragment and exit of a path.
    pub(super) fn path(&self, word: u32) -> Option<(u32, &Exit)> {
        let index = *self.by_path.get(word.checked_sub(self.path_base)? as usize)?;
        let fragment = &self.fragments[index as usize];
        let exit = fragment.first_exit + (word - fragment.first_path);
        Some((index, &self.exits[exit as usize]))
    }

    /// Replaces a fragment by the chain of blocks that `history` shows.
    fn chain(&mut self, old: u32, history: &[u32], tier: &Tier) -> bool {
        let parts = self.gather(history, tier);
        if parts.len() < 2 {
            // Where other chains begin right behind it, the next tier goes on through them.
            self.fragments[old as usize].generation += 1;
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
        let world = self.fragments[old as usize].world;
        let by_arrival = self.fragments[old as usize].arrival != 0;
        let Ok((mut fragment, translation)) = self.emit(world, &chain, by_arrival, tier.guess) else { return false };
        fragment.generation = self.fragments[old as usize].generation + 1;
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
            let Some((index, exit)) = self.path(word) else { break };
            let fragment = &self.fragments[index as usize];
            if fragment.dropped || (!parts.is_empty() && !tier.through_chains && fragment.block_count > 1) {
                break;
            }
            // A chain stays in its world, and is silent as a whole or not at all.
            let kind = (fragment.world, fragment.silent);
            if *first.get_or_insert(kind) != kind || fragment.restless || exit.kind == ExitKind::Emulated {
                break;
            }
            let executed = &self.parts[fragment.blocks as usize..][..usize::from(exit.blocks)];
            for part in executed {
                bytes += part.length;
                let closed = parts.first().is_some_and(|first| first.address == part.address);
                let enough = parts.len() * 2 >= tier.blocks;
                let gate = !parts.is_empty() && self.selection.is_gate(fragment.world, part.address);
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
    fn replace(&mut self, old: u32, new: u32) {
        let [from, to] = [old, new].map(|index| self.fragments[index as usize]);
        self.by_address[from.world as usize].insert(from.address, new);
        if to.arrival != 0
            && let Some(slot) = self.table_slot(from.world, from.address)
        {
            let _ = slot.compare_exchange(from.arrival, to.arrival, Ordering::Release, Ordering::Relaxed);
        }
        patch_entry(&from, to.body);
        let mut exit = core::mem::replace(&mut self.fragments[old as usize].incoming, NO_EXIT);
        while exit != NO_EXIT {
            let next = self.exits[exit as usize].next_incoming;
            self.link(exit, new);
            exit = next;
        }
    }
}
