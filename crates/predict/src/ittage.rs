//! ITTAGE: targets of indirect jumps and calls by histories of several lengths; the longest history
//! with a tag match decides (Seznec and Michaud 2006, Seznec 2011). The shortest history is empty
//! and gives the branch's last target.

use crate::budget::Budget;
use crate::counter::step_saturating;
use crate::history::History;
use crate::tagged_table::{TagKeys, TagMatches, TaggedTable};

/// Branches of each history.
const LENGTHS: [usize; 7] = [0, 2, 4, 8, 16, 32, 64];
const N: usize = LENGTHS.len();
const TAG_BITS: u32 = 11;
const TARGET_BITS: u32 = 64;
const CONFIDENCE_BITS: u32 = 2;
const CONFIDENCE_MAX: u8 = (1 << CONFIDENCE_BITS) - 1;
const USE_ALTERNATE_BITS: u32 = 4;
/// Entries that are allocated after a mispredict.
const ALLOCATIONS: usize = 1;

#[derive(Clone, Debug)]
pub struct Ittage {
    tagged: TaggedTable<Entry, N>,
    history: History<N>,
    /// From 0 on, the alternate prediction is better than that of a newly allocated entry.
    use_alternate: i8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    target: u64,
    confidence: u8,
}

/// Result of looking up a branch.
struct Lookup {
    keys: TagKeys<N>,
    matches: TagMatches,
    longest: Option<Entry>,
    alternate: Option<Entry>,
}

impl Entry {
    fn update(&mut self, target: u64) {
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
        Self { tagged: TaggedTable::new(entries, TAG_BITS), history: History::new(&LENGTHS), use_alternate: 0 }
    }

    /// Returns the bits of all tables and registers.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        let tagged = self.tagged.storage_bits(TARGET_BITS + CONFIDENCE_BITS);
        tagged + self.history.storage_bits() + u64::from(USE_ALTERNATE_BITS)
    }

    /// Returns the predicted target of the branch at `address`; `None` if there is no entry.
    #[must_use]
    #[inline]
    pub fn predict(&self, address: u64) -> Option<u64> {
        self.select(&self.lookup(address))
    }

    /// Updates the predictor with an executed branch. Returns whether it was predicted.
    #[inline]
    pub fn update(&mut self, address: u64, target: u64) -> bool {
        let lookup = self.lookup(address);
        let is_correct = self.select(&lookup) == Some(target);
        self.update_entries(&lookup, target, is_correct);
        self.history.push_target(address, target);
        is_correct
    }

    /// Records the outcome of a conditional branch in the history.
    #[inline]
    pub fn record_outcome(&mut self, address: u64, taken: bool) {
        self.history.push_outcome(address, taken);
    }

    /// Records a direct call or a return from `address` to `target` in the history.
    #[inline]
    pub fn record_transfer(&mut self, address: u64, target: u64) {
        self.history.push_target(address, target);
    }

    fn lookup(&self, address: u64) -> Lookup {
        let (keys, matches) = self.tagged.find(address, self.history.folded());
        let entry = |length| self.tagged.content(&keys, length);
        Lookup { keys, matches, longest: matches.longest.map(entry), alternate: matches.alternate.map(entry) }
    }

    fn select(&self, lookup: &Lookup) -> Option<u64> {
        let longest = lookup.longest?;
        let trusted = lookup.alternate.filter(|_| longest.is_new() && self.use_alternate >= 0).unwrap_or(longest);
        Some(trusted.target)
    }

    fn update_entries(&mut self, lookup: &Lookup, target: u64, is_correct: bool) {
        if let (Some(length), Some(longest)) = (lookup.matches.longest, lookup.longest) {
            self.update_usefulness(lookup, length, longest, target);
            self.tagged.content_mut(&lookup.keys, length).update(target);
        }
        if !is_correct {
            let first = lookup.matches.longest.map_or(0, |length| length + 1);
            self.tagged.allocate(&lookup.keys, first, ALLOCATIONS, Entry { target, confidence: 0 });
        }
    }

    /// Updates the usefulness of the longest match, if the alternate differs.
    fn update_usefulness(&mut self, lookup: &Lookup, length: usize, longest: Entry, target: u64) {
        let is_correct = longest.target == target;
        match lookup.alternate {
            Some(alternate) if alternate.target != longest.target => {
                self.tagged.update_usefulness(&lookup.keys, length, is_correct);
                if longest.is_new() && (is_correct || alternate.target == target) {
                    self.use_alternate = step_saturating(self.use_alternate, !is_correct, USE_ALTERNATE_BITS);
                }
            }
            Some(_) => {}
            None => self.tagged.update_usefulness(&lookup.keys, length, is_correct),
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
        assert_eq!(ittage.predict(0x1000), None);
        assert!(!ittage.update(0x1000, 0x5000));
        assert_eq!(ittage.predict(0x1000), Some(0x5000));
        (0..1000).for_each(|_| assert!(ittage.update(0x1000, 0x5000)));
    }

    #[test]
    fn targets_that_depend_on_outcomes_are_learnt() {
        for budget in BUDGETS {
            let mut ittage = Ittage::new(budget);
            let branch = |number: u64| {
                let taken = number * number % 7 < 3;
                ittage.record_outcome(0x1000, taken);
                ittage.update(0x2000, if taken { 0x5000 } else { 0x6000 })
            };
            let is_correct: Vec<bool> = (0..1000).map(branch).collect();
            assert!(is_correct[500..].iter().all(|&is_correct| is_correct), "{budget:?}");
        }
    }

    #[test]
    fn targets_that_depend_on_the_path_are_learnt() {
        for budget in BUDGETS {
            let mut ittage = Ittage::new(budget);
            let branch = |number: u64| {
                let caller = 0x1000 + number % 5 * 0x100;
                ittage.record_transfer(caller, 0x8000);
                ittage.update(0x8010, caller + 5)
            };
            let is_correct: Vec<bool> = (0..1000).map(branch).collect();
            assert!(is_correct[500..].iter().all(|&is_correct| is_correct), "{budget:?}");
        }
    }

    #[test]
    fn a_target_that_comes_once_does_not_displace_the_usual_one() {
        let mut ittage = Ittage::new(Budget::Small);
        assert!(!ittage.update(0x1000, 0x5000));
        (0..9).for_each(|_| assert!(ittage.update(0x1000, 0x5000)));
        assert!(!ittage.update(0x1000, 0x6000));
        assert!(ittage.update(0x1000, 0x5000));
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
        fn an_update_reports_whether_the_prediction_was_right(
            branches in proptest::collection::vec((0u64..32, 1u64..5, 0u8..4), 0..1000),
            budget in proptest::sample::select(&BUDGETS[..]),
        ) {
            let mut ittage = Ittage::new(budget);
            let mut twin = ittage.clone();
            for (place, target, kind) in branches {
                let address = 0x40_0000 + place * 7;
                match kind {
                    0 => [&mut ittage, &mut twin].into_iter().for_each(|each| each.record_outcome(address, target > 2)),
                    1 => [&mut ittage, &mut twin].into_iter().for_each(|each| each.record_transfer(address, target)),
                    _ => {
                        let predicted = ittage.predict(address);
                        let is_correct = ittage.update(address, target);
                        prop_assert_eq!(is_correct, predicted == Some(target));
                        prop_assert_eq!(is_correct, twin.update(address, target));
                    }
                }
            }
        }
    }
}
