//! The index of all digrams but the open one: a hash table of the first nodes.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::arena::Arena;

#[derive(Clone, Debug, Default)]
pub struct Digrams {
    first_nodes: HashTable<u32>,
}

impl Digrams {
    /// Adds the digram that begins at `node`. Returns the first node of an equal digram instead, if
    /// there is one; that is `node` itself if it is in the index already.
    #[inline]
    pub fn insert(&mut self, arena: &Arena, node: u32) -> Option<u32> {
        let is_equal = |&other: &u32| other == node || have_equal_runs(arena, other, node);
        match self.first_nodes.entry(hash(arena, node), is_equal, |&node| hash(arena, node)) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(node);
                None
            }
        }
    }

    /// Removes the digram that begins at `node`, if it is in the index. An equal digram elsewhere
    /// stays.
    #[inline]
    pub fn remove(&mut self, arena: &Arena, node: u32) {
        if let Ok(entry) = self.first_nodes.find_entry(hash(arena, node), |&other| other == node) {
            entry.remove();
        }
    }

    /// Returns the bytes that the table takes, which [`Self::clear`] keeps.
    pub fn memory(&self) -> usize {
        self.first_nodes.allocation_size()
    }

    pub fn clear(&mut self) {
        self.first_nodes.clear();
    }

    #[cfg(test)]
    pub fn first_nodes(&self) -> impl Iterator<Item = u32> {
        self.first_nodes.iter().copied()
    }
}

#[inline]
fn have_equal_runs(arena: &Arena, one: u32, other: u32) -> bool {
    let key = |node: u32| (arena.node(node).value, arena.node(node).count);
    key(one) == key(other) && key(arena.next(one)) == key(arena.next(other))
}

/// Two odd constants without structure (digits of pi).
const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345];

#[inline]
fn hash(arena: &Arena, node: u32) -> u64 {
    // Counts are small as a rule and take the bits above the symbols.
    let word = |node: u32| arena.node(node).value.bits() ^ arena.node(node).count.rotate_left(34);
    let (first, second) = (word(node) ^ KEYS[0], word(arena.next(node)) ^ KEYS[1]);
    let product = u128::from(first) * u128::from(second);
    (product >> 64) as u64 ^ product as u64
}
