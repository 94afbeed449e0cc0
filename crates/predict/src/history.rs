//! Global branch history with a few bits per branch, and its foldings: for each of several lengths,
//! all branches of the history are XORed into a fixed number of bits (Michaud 2005; Seznec and
//! Michaud 2006).
//!
//! The history does not know what is looked up with it.

use crate::hash::scatter;

/// Bits of a folded history. The width is prime, so that a periodic history does not cancel itself.
const WIDTH: u32 = 61;
const MASK: u64 = (1 << WIDTH) - 1;
/// Bits of one branch.
const BRANCH_BITS: u32 = 3;
const BRANCH_MASK: u64 = (1 << BRANCH_BITS) - 1;
/// Capacity in branches; a power of two makes the ring cheap.
const CAPACITY: usize = 512;

#[derive(Clone, Debug)]
pub(crate) struct History<const N: usize> {
    /// Ring of branches in reverse order: the next index holds the previous branch.
    branches: Box<[u8; CAPACITY]>,
    /// Index of the latest branch.
    last: usize,
    /// Folded histories by length: branch i, counted from the latest, is at bit i × [`BRANCH_BITS`]
    /// modulo [`WIDTH`].
    folded: [u64; N],
    ends: [HistoryEnd; N],
}

/// End of a history of some length.
#[derive(Clone, Copy, Debug)]
struct HistoryEnd {
    length: usize,
    /// A one at the bit of the first branch after the end: multiplying is faster than a variable
    /// shift.
    unit: u64,
}

impl<const N: usize> History<N> {
    /// Returns an empty history, folded in these lengths. Each must be below the capacity, and no
    /// branch may straddle the end of the folded bits where it leaves.
    pub(crate) fn new(lengths: &[usize; N]) -> Self {
        let ends = lengths.map(|length| {
            assert!(length < CAPACITY, "{length} branches are not kept");
            let position = length as u32 * BRANCH_BITS % WIDTH;
            assert!(position + BRANCH_BITS <= WIDTH, "{length} branches end where one is torn apart");
            HistoryEnd { length, unit: 1 << position }
        });
        Self { branches: Box::new([0; CAPACITY]), last: 0, folded: [0; N], ends }
    }

    /// Pushes a conditional branch.
    #[inline]
    pub(crate) fn push_outcome(&mut self, address: u64, taken: bool) {
        // Branches are not aligned: any of these bits may distinguish neighbours.
        self.push(address ^ address >> 2 ^ address >> 5 ^ u64::from(taken));
    }

    /// Pushes another branch to `target`.
    #[inline]
    pub(crate) fn push_target(&mut self, address: u64, target: u64) {
        self.push(scatter(target ^ address << 1) >> (u64::BITS - BRANCH_BITS));
    }

    #[inline]
    fn push(&mut self, branch: u64) {
        let branch = branch & BRANCH_MASK;
        self.last = self.last.wrapping_sub(1) % CAPACITY;
        self.branches[self.last] = branch as u8;
        for (folded, end) in self.folded.iter_mut().zip(&self.ends) {
            let gone = u64::from(self.branches[(self.last + end.length) % CAPACITY]);
            *folded = rotate(*folded) ^ branch ^ (gone * end.unit);
        }
    }

    /// Returns the folded histories in the order of the lengths.
    #[inline]
    pub(crate) fn folded(&self) -> &[u64; N] {
        &self.folded
    }

    /// Returns the storage of a circuit: as many branches as the longest history has, and each
    /// folded history.
    pub(crate) fn storage_bits(&self) -> u64 {
        let longest = self.ends.iter().map(|end| end.length as u64).max().unwrap_or(0);
        longest * u64::from(BRANCH_BITS) + N as u64 * u64::from(WIDTH)
    }
}

/// Rotates left by one branch within [`WIDTH`] bits.
#[inline]
fn rotate(value: u64) -> u64 {
    (value << BRANCH_BITS | value >> (WIDTH - BRANCH_BITS)) & MASK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTHS: [usize; 6] = [0, 1, 21, 61, 200, 511];

    /// Folds from scratch.
    fn naive(branches: &[u64], length: usize) -> u64 {
        let bits = branches.iter().rev().take(length).enumerate().flat_map(|(number, branch)| {
            (0..BRANCH_BITS as usize).map(move |bit| (number * BRANCH_BITS as usize + bit, branch >> bit & 1))
        });
        bits.fold(0, |folded, (position, bit)| folded ^ bit << (position % WIDTH as usize))
    }

    #[test]
    fn a_history_is_forgotten_at_its_length() {
        let mut history = History::new(&[2]);
        (0..2).for_each(|_| history.push(5));
        let before = *history.folded();
        history.push(7);
        assert_ne!(*history.folded(), before);
        (0..2).for_each(|_| history.push(5));
        assert_eq!(*history.folded(), before);
    }

    #[test]
    #[should_panic(expected = "not kept")]
    fn a_history_that_is_too_long() {
        History::new(&[CAPACITY]);
    }

    #[test]
    #[should_panic(expected = "torn apart")]
    fn a_history_that_ends_within_a_branch() {
        History::new(&[20]);
    }

    proptest! {
        #[test]
        fn a_folded_history_equals_one_folded_anew(branches in proptest::collection::vec(0..=BRANCH_MASK, 0..1500)) {
            let mut history = History::new(&LENGTHS);
            for (position, &branch) in branches.iter().enumerate() {
                history.push(branch);
                // Checking every branch would take too long.
                if position % 97 == 0 || position + 1 == branches.len() {
                    let expected = LENGTHS.map(|length| naive(&branches[..=position], length));
                    prop_assert_eq!(*history.folded(), expected);
                }
            }
        }
    }
}
