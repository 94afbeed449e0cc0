//! The branches before, a few bits of each, and these folded: for each of several lengths, all branches of the history laid over
//! each other, so that a fixed number of bits says something of a history of any length (Michaud 2005; Seznec and Michaud
//! 2006).
//!
//! Knows nothing of what is looked up by it.

use crate::hash::scattered;

/// Bits of a folded history. A prime number, so that a history that repeats itself does not erase itself.
const WIDTH: u32 = 61;
const MASK: u64 = (1 << WIDTH) - 1;
/// Bits of a branch.
const BRANCH_BITS: u32 = 3;
const BRANCH_MASK: u64 = (1 << BRANCH_BITS) - 1;
/// Branches that are kept; a power of two, so that going round is cheap.
const KEPT: usize = 512;

#[derive(Clone, Debug)]
pub(crate) struct History<const N: usize> {
    /// A ring, backwards: behind each branch is the one before it.
    branches: Box<[u8; KEPT]>,
    /// The last one.
    last: usize,
    /// By lengths: branch number i, counted from the last one, is at place i times [`BRANCH_BITS`], modulo [`WIDTH`].
    folded: [u64; N],
    ends: [End; N],
}

/// Where a history of so many branches ends.
#[derive(Clone, Copy, Debug)]
struct End {
    length: usize,
    /// A one where the first branch behind it would be: multiplying is faster than shifting by a number that is not constant.
    unit: u64,
}

impl<const N: usize> History<N> {
    /// Folded in these lengths, each less than is kept and such that no branch is torn apart where it leaves.
    pub(crate) fn new(lengths: &[usize; N]) -> Self {
        let ends = lengths.map(|length| {
            assert!(length < KEPT, "{length} branches are not kept");
            let place = length as u32 * BRANCH_BITS % WIDTH;
            assert!(place + BRANCH_BITS <= WIDTH, "{length} branches end where one is torn apart");
            End { length, unit: 1 << place }
        });
        Self { branches: Box::new([0; KEPT]), last: 0, folded: [0; N], ends }
    }

    /// A conditional branch was taken or not.
    #[inline]
    pub(crate) fn outcome(&mut self, address: u64, taken: bool) {
        // Branches are not aligned: any of these bits may tell one from its neighbour.
        self.push(address ^ address >> 2 ^ address >> 5 ^ u64::from(taken));
    }

    /// Another branch went to `target`.
    #[inline]
    pub(crate) fn target(&mut self, address: u64, target: u64) {
        self.push(scattered(target ^ address << 1) >> (u64::BITS - BRANCH_BITS));
    }

    #[inline]
    fn push(&mut self, branch: u64) {
        let branch = branch & BRANCH_MASK;
        self.last = self.last.wrapping_sub(1) % KEPT;
        self.branches[self.last] = branch as u8;
        for (folded, end) in self.folded.iter_mut().zip(&self.ends) {
            let gone = u64::from(self.branches[(self.last + end.length) % KEPT]);
            *folded = rotated(*folded) ^ branch ^ (gone * end.unit);
        }
    }

    /// In the order of the lengths.
    #[inline]
    pub(crate) fn folded(&self) -> &[u64; N] {
        &self.folded
    }

    /// What a circuit needs: as many branches as the longest history has, and each folded one.
    pub(crate) fn storage_bits(&self) -> u64 {
        let longest = self.ends.iter().map(|end| end.length as u64).max().unwrap_or(0);
        longest * u64::from(BRANCH_BITS) + N as u64 * u64::from(WIDTH)
    }
}

/// Makes room for a branch: to the left, within [`WIDTH`] bits.
#[inline]
fn rotated(value: u64) -> u64 {
    (value << BRANCH_BITS | value >> (WIDTH - BRANCH_BITS)) & MASK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTHS: [usize; 6] = [0, 1, 21, 61, 200, 511];

    /// Folded from the beginning.
    fn naive(branches: &[u64], length: usize) -> u64 {
        let bits = branches.iter().rev().take(length).enumerate().flat_map(|(number, branch)| {
            (0..BRANCH_BITS as usize).map(move |bit| (number * BRANCH_BITS as usize + bit, branch >> bit & 1))
        });
        bits.fold(0, |folded, (place, bit)| folded ^ bit << (place % WIDTH as usize))
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
        History::new(&[KEPT]);
    }

    #[test]
    #[should_panic(expected = "torn apart")]
    fn a_history_that_ends_within_a_branch() {
        History::new(&[20]);
    }

    proptest! {
        #[test]
        fn it_is_folded_as_from_the_beginning(branches in proptest::collection::vec(0..=BRANCH_MASK, 0..1500)) {
            let mut history = History::new(&LENGTHS);
            for (place, &branch) in branches.iter().enumerate() {
                history.push(branch);
                // Each of them would take long.
                if place % 97 == 0 || place + 1 == branches.len() {
                    let expected = LENGTHS.map(|length| naive(&branches[..=place], length));
                    prop_assert_eq!(*history.folded(), expected);
                }
            }
        }
    }
}
