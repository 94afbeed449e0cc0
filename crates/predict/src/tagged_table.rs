//! A table of tagged entries for [`crate::Tage`] and [`crate::Ittage`]. Each entry belongs to a
//! branch with a history of one of several lengths. All lengths share the entries, so that each
//! gets what it needs (Seznec 2016 shares banks between lengths; here there is one bank).
//!
//! The table does not know what an entry predicts.

use crate::hash::{mix, reduce, scatter};

/// Set in every tag, so that no tag equals that of an unused entry.
const IN_USE: u16 = 1 << 15;
const USEFUL_BITS: u32 = 2;
const USEFUL_MAX: u8 = (1 << USEFUL_BITS) - 1;
/// All entries age when failed allocations exceed successful ones by this number.
const PRESSURE_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct TaggedTable<C, const N: usize> {
    slots: Vec<Slot<C>>,
    tag_mask: u16,
    /// Failed allocations minus successful ones.
    pressure: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot<C> {
    tag: u16,
    useful: u8,
    content: C,
}

/// Indices and tags of a branch, by history length, shortest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagKeys<const N: usize> {
    indices: [u32; N],
    tags: [u16; N],
}

/// The longest histories with a tag match, as indices of lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagMatches {
    pub longest: Option<usize>,
    /// The next shorter match.
    pub alternate: Option<usize>,
}

impl TagMatches {
    /// From a bit mask with a bit for each length.
    #[inline]
    fn of(hits: u32) -> Self {
        let longest = hits.checked_ilog2();
        let alternate = longest.and_then(|longest| (hits ^ 1 << longest).checked_ilog2());
        Self { longest: longest.map(|length| length as usize), alternate: alternate.map(|length| length as usize) }
    }
}

impl<C: Copy + Default, const N: usize> TaggedTable<C, N> {
    /// Returns an empty table. Tags have at most 15 bits.
    pub(crate) fn new(entries: usize, tag_bits: u32) -> Self {
        Self { slots: vec![Slot::default(); entries], tag_mask: (1 << tag_bits) - 1, pressure: 0 }
    }

    pub(crate) fn storage_bits(&self, content_bits: u32) -> u64 {
        let pressure = u64::from(PRESSURE_MAX.ilog2() + 1);
        let tag_bits = self.tag_mask.count_ones() + IN_USE.count_ones();
        self.slots.len() as u64 * u64::from(tag_bits + USEFUL_BITS + content_bits) + pressure
    }

    /// Looks up the branch at `address` with these folded histories.
    #[inline]
    pub(crate) fn find(&self, address: u64, folded: &[u64; N]) -> (TagKeys<N>, TagMatches) {
        let mut keys = TagKeys { indices: [0; N], tags: [0; N] };
        let branch = scatter(address);
        // Checking all lengths without branches is faster than stopping at the second match.
        let mut hits = 0u32;
        for (length, folded) in folded.iter().enumerate() {
            // Two lengths may have the same folded history.
            let hash = mix((branch ^ folded).wrapping_add(length as u64));
            let (index, tag) = (reduce(hash, self.slots.len()), hash as u16 & self.tag_mask | IN_USE);
            hits |= u32::from(self.slots[index].tag == tag) << length;
            (keys.indices[length], keys.tags[length]) = (index as u32, tag);
        }
        (keys, TagMatches::of(hits))
    }

    #[inline]
    fn slot(&self, keys: &TagKeys<N>, length: usize) -> &Slot<C> {
        &self.slots[keys.indices[length] as usize]
    }

    #[inline]
    pub(crate) fn content(&self, keys: &TagKeys<N>, length: usize) -> C {
        self.slot(keys, length).content
    }

    #[inline]
    pub(crate) fn content_mut(&mut self, keys: &TagKeys<N>, length: usize) -> &mut C {
        &mut self.slots[keys.indices[length] as usize].content
    }

    /// Returns whether the entry has been better than the alternate.
    #[inline]
    pub(crate) fn is_useful(&self, keys: &TagKeys<N>, length: usize) -> bool {
        self.slot(keys, length).useful > 0
    }

    /// Records that the entry was better or worse than the alternate.
    #[inline]
    pub(crate) fn update_usefulness(&mut self, keys: &TagKeys<N>, length: usize, better: bool) {
        let useful = &mut self.slots[keys.indices[length] as usize].useful;
        *useful = if better { (*useful + 1).min(USEFUL_MAX) } else { useful.saturating_sub(1) };
    }

    /// Allocates at most `at_most` entries for the branch, with histories of length `first` or
    /// longer. More entries find a suitable length sooner. Useful entries stay.
    pub(crate) fn allocate(&mut self, keys: &TagKeys<N>, first: usize, at_most: usize, content: C) {
        let (mut allocated, mut in_use, mut length) = (0, 0, first);
        while length < N && allocated < at_most {
            let slot = &mut self.slots[keys.indices[length] as usize];
            if slot.useful == 0 {
                *slot = Slot { tag: keys.tags[length], useful: 0, content };
                allocated += 1;
                // Adjacent lengths carry much the same information.
                length += 1;
            } else {
                in_use += 1;
            }
            length += 1;
        }
        self.pressure = (self.pressure + in_use).saturating_sub(allocated);
        if self.pressure >= PRESSURE_MAX {
            self.pressure = 0;
            self.slots.iter_mut().for_each(|slot| slot.useful /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDED: [u64; 4] = [1, 2, 3, 4];

    fn matches(table: &TaggedTable<u8, 4>, address: u64) -> (Option<usize>, Option<usize>) {
        let (_, matches) = table.find(address, &FOLDED);
        (matches.longest, matches.alternate)
    }

    #[test]
    fn the_longest_histories_are_found() {
        let mut table = TaggedTable::<u8, 4>::new(100, 12);
        let (keys, _) = table.find(0x1234, &FOLDED);
        assert_eq!(matches(&table, 0x1234), (None, None));
        table.allocate(&keys, 1, 1, 7);
        assert_eq!(matches(&table, 0x1234), (Some(1), None));
        assert_eq!(table.content(&keys, 1), 7);
        table.allocate(&keys, 2, 2, 8);
        assert_eq!(matches(&table, 0x1234), (Some(2), Some(1)), "the next length is skipped");
        assert_eq!(matches(&table, 0x1235), (None, None));
    }

    #[test]
    fn useful_entries_stay_until_they_are_old() {
        let mut table = TaggedTable::<u8, 4>::new(100, 12);
        let (keys, _) = table.find(0x1234, &FOLDED);
        table.allocate(&keys, 3, 1, 7);
        table.update_usefulness(&keys, 3, true);
        assert!(table.is_useful(&keys, 3));
        (1..PRESSURE_MAX).for_each(|_| table.allocate(&keys, 3, 1, 8));
        assert_eq!(table.content(&keys, 3), 7);
        table.allocate(&keys, 3, 1, 8);
        assert!(!table.is_useful(&keys, 3));
        table.allocate(&keys, 3, 1, 8);
        assert_eq!(table.content(&keys, 3), 8);
    }

    #[test]
    fn storage() {
        assert_eq!(TaggedTable::<u8, 4>::new(100, 12).storage_bits(3), 100 * (1 + 12 + 2 + 3) + 11);
    }
}
