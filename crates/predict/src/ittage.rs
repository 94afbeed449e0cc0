//! The targets of indirect jumps and calls, by histories of several lengths at once: the longest one that is known decides (ITTAGE,
//! Seznec and Michaud 2006, Seznec 2011). The shortest has no branch at all: the target that the branch had before.

use crate::budget::Budget;
use crate::counter::moved;
use crate::history::History;
use crate::pool::{Found, Keys, Pool};

/// Branches of each history.
const LENGTHS: [usize; 7] = [0, 2, 4, 8, 16, 32, 64];
const N: usize = LENGTHS.len();
const TAG_BITS: u32 = 11;
const TARGET_BITS: u32 = 64;
const CONFIDENCE_BITS: u32 = 2;
const CONFIDENCE_MAX: u8 = (1 << CONFIDENCE_BITS) - 1;
const NEWCOMERS_BITS: u32 = 4;
/// Entries that are made after a wrong prediction.
const ALLOCATIONS: usize = 1;

#[derive(Clone, Debug)]
pub struct Ittage {
    tagged: Pool<Entry, N>,
    history: History<N>,
    /// From 0 on, an entry that has just been made is less often right than the one with a shorter history.
    newcomers: i8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    target: u64,
    confidence: u8,
}

/// All that is found out about a branch before it is executed.
struct Lookup {
    keys: Keys<N>,
    found: Found,
    longest: Option<Entry>,
    other: Option<Entry>,
}

impl Entry {
    fn learn(&mut self, target: u64) {
        if self.target == target {
            self.confidence = (self.confidence + 1).min(CONFIDENCE_MAX);
        } else if self.confidence > 0 {
            self.confidence -= 1;
        } else {
            self.target = target;
        }
    }

    fn is_new(&self) -> bool {
        self.confidence == 0
    }
}

impl Ittage {
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let entries = match budget {
            Budget::Small => 94,
            Budget::Medium => 400,
            Budget::Large => 1600,
        };
        Self { tagged: Pool::new(entries, TAG_BITS), history: History::new(&LENGTHS), newcomers: 0 }
    }

    /// Bits of all tables and registers.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        let tagged = self.tagged.storage_bits(TARGET_BITS + CONFIDENCE_BITS);
        tagged + self.history.storage_bits() + u64::from(NEWCOMERS_BITS)
    }

    /// The target that is predicted for the branch at `address`; `None` if it is not known.
    #[must_use]
    #[inline]
    pub fn prediction(&self, address: u64) -> Option<u64> {
        self.predicted(&self.lookup(address))
    }

    /// The branch at `address` went to `target`: learns, and says whether it was predicted.
    #[inline]
    pub fn branch(&mut self, address: u64, target: u64) -> bool {
        let lookup = self.lookup(address);
        let right = self.predicted(&lookup) == Some(target);
        self.learn(&lookup, target, right);
        self.history.target(address, target);
        right
    }

    /// The conditional branch at `address` was taken or not: targets depend on that, too.
    #[inline]
    pub fn note(&mut self, address: u64, taken: bool) {
        self.history.outcome(address, taken);
    }

    /// A branch that somebody else predicts, a direct call or a return, went from `address` to `target`.
    #[inline]
    pub fn pass(&mut self, address: u64, target: u64) {
        self.history.target(address, target);
    }

    fn lookup(&self, address: u64) -> Lookup {
        let (keys, found) = self.tagged.find(address, self.history.folded());
        let entry = |length| self.tagged.content(&keys, length);
        Lookup { keys, found, longest: found.longest.map(entry), other: found.other.map(entry) }
    }

    fn predicted(&self, lookup: &Lookup) -> Option<u64> {
        let longest = lookup.longest?;
        let trusted = lookup.other.filter(|_| longest.is_new() && self.newcomers >= 0).unwrap_or(longest);
        Some(trusted.target)
    }

    fn learn(&mut self, lookup: &Lookup, target: u64, right: bool) {
        if let (Some(length), Some(longest)) = (lookup.found.longest, lookup.longest) {
            self.judge(lookup, length, longest, target);
            self.tagged.content_mut(&lookup.keys, length).learn(target);
        }
        if !right {
            let first = lookup.found.longest.map_or(0, |length| length + 1);
            self.tagged.allocate(&lookup.keys, first, ALLOCATIONS, Entry { target, confidence: 0 });
        }
    }

    /// Which of the two longest histories was right, if they differ.
    fn judge(&mut self, lookup: &Lookup, length: usize, longest: Entry, target: u64) {
        let right = longest.target == target;
        match lookup.other {
            Some(other) if other.target != longest.target => {
                self.tagged.judge(&lookup.keys, length, right);
                if longest.is_new() && (right || other.target == target) {
                    self.newcomers = moved(self.newcomers, !right, NEWCOMERS_BITS);
                }
            }
            Some(_) => {}
            None => self.tagged.judge(&lookup.keys, length, right),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGETS: [Budget; 3] = [Budget::Small, Budget::Medium, Budget::Large];

    #[test]
    fn a_target_is_known_the_second_time() {
        let mut ittage = Ittage::new(Budget::Small);
        assert_eq!(ittage.prediction(0x1000), None);
        assert!(!ittage.branch(0x1000, 0x5000));
        assert_eq!(ittage.prediction(0x1000), Some(0x5000));
        (0..1000).for_each(|_| assert!(ittage.branch(0x1000, 0x5000)));
    }

    #[test]
    fn targets_that_depend_on_outcomes_are_learnt() {
        for budget in BUDGETS {
            let mut ittage = Ittage::new(budget);
            let branch = |number: u64| {
                let taken = number * number % 7 < 3;
                ittage.note(0x1000, taken);
                ittage.branch(0x2000, if taken { 0x5000 } else { 0x6000 })
            };
            let right: Vec<bool> = (0..1000).map(branch).collect();
            assert!(right[500..].iter().all(|&right| right), "{budget:?}");
        }
    }

    #[test]
    fn targets_that_depend_on_the_path_are_learnt() {
        for budget in BUDGETS {
            let mut ittage = Ittage::new(budget);
            let branch = |number: u64| {
                let caller = 0x1000 + number % 5 * 0x100;
                ittage.pass(caller, 0x8000);
                ittage.branch(0x8010, caller + 5)
            };
            let right: Vec<bool> = (0..1000).map(branch).collect();
            assert!(right[500..].iter().all(|&right| right), "{budget:?}");
        }
    }

    #[test]
    fn a_target_that_comes_once_does_not_displace_the_usual_one() {
        let mut ittage = Ittage::new(Budget::Small);
        assert!(!ittage.branch(0x1000, 0x5000));
        (0..9).for_each(|_| assert!(ittage.branch(0x1000, 0x5000)));
        assert!(!ittage.branch(0x1000, 0x6000));
        assert!(ittage.branch(0x1000, 0x5000));
    }

    #[test]
    fn storage() {
        let bits = BUDGETS.map(|budget| Ittage::new(budget).storage_bits());
        let entry = (1 + 11) + 2 + (64 + 2);
        let registers = 4 + 11 + 64 * 3 + 7 * 61;
        assert_eq!(bits, [94, 400, 1600].map(|entries| entries * entry + registers));
        assert!(bits.into_iter().zip([1, 4, 16]).all(|(bits, kilobytes)| bits <= kilobytes * 8 * 1024));
    }

    proptest! {
        #[test]
        fn it_was_right_if_its_prediction_was(
            branches in proptest::collection::vec((0u64..32, 1u64..5, 0u8..4), 0..1000),
            budget in proptest::sample::select(&BUDGETS[..]),
        ) {
            let mut ittage = Ittage::new(budget);
            let mut image = ittage.clone();
            for (place, target, kind) in branches {
                let address = 0x40_0000 + place * 7;
                match kind {
                    0 => [&mut ittage, &mut image].into_iter().for_each(|each| each.note(address, target > 2)),
                    1 => [&mut ittage, &mut image].into_iter().for_each(|each| each.pass(address, target)),
                    _ => {
                        let predicted = ittage.prediction(address);
                        let right = ittage.branch(address, target);
                        prop_assert_eq!(right, predicted == Some(target));
                        prop_assert_eq!(right, image.branch(address, target));
                    }
                }
            }
        }
    }
}
