//! Tagged entries, each for a branch behind a history of one of several lengths. All lengths share the entries, so that no length
//! has more than it needs (Seznec 2016 shares banks between lengths; here all is one bank).
//!
//! Knows nothing of what an entry says.

use crate::hash::{mixed, place, scattered};

/// In every tag, so that it is not that of an entry that was never used.
const IN_USE: u16 = 1 << 15;
const USEFUL_BITS: u32 = 2;
const USEFUL_MAX: u8 = (1 << USEFUL_BITS) - 1;
/// When entries that were found in use exceed those that were had by so many, all age.
const PRESSURE_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Pool<C, const N: usize> {
    slots: Vec<Slot<C>>,
    tag_mask: u16,
    /// By how much entries that were found in use exceed those that were had.
    pressure: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot<C> {
    tag: u16,
    useful: u8,
    content: C,
}

/// Where a branch is looked for, length by length, the shortest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<const N: usize> {
    places: [u32; N],
    tags: [u16; N],
}

/// The longest histories with an entry, as numbers of lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub longest: Option<usize>,
    /// The next one.
    pub other: Option<usize>,
}

impl Found {
    /// By a bit for each length.
    #[inline]
    fn of(hits: u32) -> Self {
        let longest = hits.checked_ilog2();
        let other = longest.and_then(|longest| (hits ^ 1 << longest).checked_ilog2());
        Self { longest: longest.map(|length| length as usize), other: other.map(|length| length as usize) }
    }
}

impl<C: Copy + Default, const N: usize> Pool<C, N> {
    /// Tags have at most 15 bits.
    pub(crate) fn new(entries: usize, tag_bits: u32) -> Self {
        Self { slots: vec![Slot::default(); entries], tag_mask: (1 << tag_bits) - 1, pressure: 0 }
    }

    pub(crate) fn storage_bits(&self, content_bits: u32) -> u64 {
        let pressure = u64::from(PRESSURE_MAX.ilog2() + 1);
        let tag_bits = self.tag_mask.count_ones() + IN_USE.count_ones();
        self.slots.len() as u64 * u64::from(tag_bits + USEFUL_BITS + content_bits) + pressure
    }

    /// Looks for the branch at `address` behind these folded histories.
    #[inline]
    pub(crate) fn find(&self, address: u64, folded: &[u64; N]) -> (Keys<N>, Found) {
        let mut keys = Keys { places: [0; N], tags: [0; N] };
        let branch = scattered(address);
        // Looking at all of them without a decision in between is faster than stopping at the second one.
        let mut hits = 0u32;
        for (length, folded) in folded.iter().enumerate() {
            // Two lengths may have the same history.
            let hash = mixed((branch ^ folded).wrapping_add(length as u64));
            let (place, tag) = (place(hash, self.slots.len()), hash as u16 & self.tag_mask | IN_USE);
            hits |= u32::from(self.slots[place].tag == tag) << length;
            (keys.places[length], keys.tags[length]) = (place as u32, tag);
        }
        (keys, Found::of(hits))
    }

    #[inline]
    fn slot(&self, keys: &Keys<N>, length: usize) -> &Slot<C> {
        &self.slots[keys.places[length] as usize]
    }

    #[inline]
    pub(crate) fn content(&self, keys: &Keys<N>, length: usize) -> C {
        self.slot(keys, length).content
    }

    #[inline]
    pub(crate) fn content_mut(&mut self, keys: &Keys<N>, length: usize) -> &mut C {
        &mut self.slots[keys.places[length] as usize].content
    }

    /// Whether the entry has been better than the one with a shorter history.
    #[inline]
    pub(crate) fn is_useful(&self, keys: &Keys<N>, length: usize) -> bool {
        self.slot(keys, length).useful > 0
    }

    /// The entry was better than the one with a shorter history, or worse.
    #[inline]
    pub(crate) fn judge(&mut self, keys: &Keys<N>, length: usize, better: bool) {
        let useful = &mut self.slots[keys.places[length] as usize].useful;
        *useful = if better { (*useful + 1).min(USEFUL_MAX) } else { useful.saturating_sub(1) };
    }

    /// New entries for the branch, behind histories of length `first` or longer, at most so many: the more there are, the sooner one is
    /// found that has what the outcome depends on. Useful ones stay.
    pub(crate) fn allocate(&mut self, keys: &Keys<N>, first: usize, at_most: usize, content: C) {
        let (mut allocated, mut in_use, mut length) = (0, 0, first);
        while length < N && allocated < at_most {
            let slot = &mut self.slots[keys.places[length] as usize];
            if slot.useful == 0 {
                *slot = Slot { tag: keys.tags[length], useful: 0, content };
                allocated += 1;
                // Neighbours know much the same.
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

    fn found(pool: &Pool<u8, 4>, address: u64) -> (Option<usize>, Option<usize>) {
        let (_, found) = pool.find(address, &FOLDED);
        (found.longest, found.other)
    }

    #[test]
    fn the_longest_histories_are_found() {
        let mut pool = Pool::<u8, 4>::new(100, 12);
        let (keys, _) = pool.find(0x1234, &FOLDED);
        assert_eq!(found(&pool, 0x1234), (None, None));
        pool.allocate(&keys, 1, 1, 7);
        assert_eq!(found(&pool, 0x1234), (Some(1), None));
        assert_eq!(pool.content(&keys, 1), 7);
        pool.allocate(&keys, 2, 2, 8);
        assert_eq!(found(&pool, 0x1234), (Some(2), Some(1)), "the one behind it is a neighbour");
        assert_eq!(found(&pool, 0x1235), (None, None));
    }

    #[test]
    fn useful_entries_stay_until_they_are_old() {
        let mut pool = Pool::<u8, 4>::new(100, 12);
        let (keys, _) = pool.find(0x1234, &FOLDED);
        pool.allocate(&keys, 3, 1, 7);
        pool.judge(&keys, 3, true);
        assert!(pool.is_useful(&keys, 3));
        (1..PRESSURE_MAX).for_each(|_| pool.allocate(&keys, 3, 1, 8));
        assert_eq!(pool.content(&keys, 3), 7);
        pool.allocate(&keys, 3, 1, 8);
        assert!(!pool.is_useful(&keys, 3));
        pool.allocate(&keys, 3, 1, 8);
        assert_eq!(pool.content(&keys, 3), 8);
    }

    #[test]
    fn storage() {
        assert_eq!(Pool::<u8, 4>::new(100, 12).storage_bits(3), 100 * (1 + 12 + 2 + 3) + 11);
    }
}
