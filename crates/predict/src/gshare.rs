//! Gshare: outcomes of conditional branches by two-bit counters, indexed by the branch's address
//! and the global history of outcomes (Myers 2014, Figure 4.29). A [`RowBranch`] prepares a branch
//! of a row that is always executed as a whole.

use crate::size::{IllegalSize, Structure, power_of_two};

/// Weakly not taken.
const START: u8 = 1;
const STRONGLY_TAKEN: u8 = 3;
/// Counters from here on predict taken.
const TAKEN: u8 = 2;
/// Low bits of an address that are ignored.
const ADDRESS_SHIFT: u32 = 4;
const ENTRIES_MAX: usize = 1 << 28;
/// Outcomes so far before a row no longer influence the index.
const SHIFT_MAX: u8 = 32;

#[derive(Clone, Debug)]
pub struct Gshare {
    counters: Vec<u8>,
    /// Global history, latest outcome in the lowest bit; as many bits as an index has.
    history: usize,
}

/// A prepared conditional branch of a row. The branches of a row follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBranch {
    /// Part of the index that does not depend on outcomes before the row.
    index_base: u32,
    /// Outcomes of the row up to this branch, the latest in the lowest bit. An index never has more
    /// bits.
    outcomes: u32,
    /// Shift of the history before the row.
    shift: u8,
    /// Value of a saturated counter for this outcome.
    saturated: u8,
}

impl RowBranch {
    /// Returns the branch after `previous` in the row.
    #[must_use]
    pub fn after(previous: Option<&Self>, address: u64, taken: bool) -> Self {
        // More distance makes no difference.
        let (outcomes, shift) =
            previous.map_or((0, 0), |previous| (previous.outcomes, (previous.shift + 1).min(SHIFT_MAX)));
        // Truncation keeps the low bits; an index never has more.
        let index_base = (address >> ADDRESS_SHIFT) as u32 ^ outcomes;
        let saturated = if taken { STRONGLY_TAKEN } else { 0 };
        Self { index_base, outcomes: outcomes << 1 | u32::from(taken), shift, saturated }
    }

    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.saturated == STRONGLY_TAKEN
    }
}

impl Gshare {
    /// Returns a predictor with a power of two of entries, or with 0 entries, which never predicts.
    pub fn new(entries: usize) -> Result<Self, IllegalSize> {
        let entries = power_of_two(Structure::Gshare, entries, 2, ENTRIES_MAX)?;
        Ok(Self { counters: vec![START; entries], history: 0 })
    }

    /// Sets the initial history, latest outcome in the lowest bit.
    #[must_use]
    pub fn with_history(mut self, history: usize) -> Self {
        self.history = history & self.mask();
        self
    }

    fn mask(&self) -> usize {
        self.counters.len().wrapping_sub(1)
    }

    /// Returns the index of the entry for the branch at `address`; 0 if there are no entries.
    #[must_use]
    #[inline]
    pub fn index(&self, address: u64) -> usize {
        // Truncation keeps the low bits.
        let address = (address >> ADDRESS_SHIFT) as usize;
        if self.counters.is_empty() { 0 } else { (address ^ self.history) & self.mask() }
    }

    /// Returns the counter of an entry, from 0 (strongly not taken) to 3 (strongly taken).
    #[must_use]
    pub fn counter(&self, index: usize) -> Option<u8> {
        self.counters.get(index).copied()
    }

    /// Updates counter and history with an executed branch. Returns whether it was predicted.
    #[inline]
    pub fn update(&mut self, address: u64, taken: bool) -> bool {
        let index = self.index(address);
        let Some(counter) = self.counters.get_mut(index) else { return false };
        let is_correct = (*counter >= TAKEN) == taken;
        *counter = if taken { (*counter + 1).min(STRONGLY_TAKEN) } else { counter.saturating_sub(1) };
        self.history = (self.history << 1 | usize::from(taken)) & self.mask();
        is_correct
    }

    /// Returns how many leading branches of a row have a saturated counter for their outcome, so
    /// that an update by them changes nothing.
    #[must_use]
    #[inline]
    pub fn saturated_prefix(&self, row: &[RowBranch]) -> usize {
        let is_saturated = |point: &RowBranch| self.counter(self.index_in(point)) == Some(point.saturated);
        row.iter().position(|point| !is_saturated(point)).unwrap_or(row.len())
    }

    /// Updates the counter of the next branch of a row, and returns whether it was predicted. The
    /// caller continues with the other branches and then calls [`Self::finish_row`].
    #[inline]
    pub fn update_in_row(&mut self, point: &RowBranch) -> bool {
        let index = self.index_in(point);
        let Some(counter) = self.counters.get_mut(index) else { return false };
        let before = *counter;
        // Skipping the store lets the next branch read the counter without waiting.
        if before == point.saturated {
            return true;
        }
        let taken = point.is_taken();
        *counter = if taken { before + 1 } else { before - 1 };
        (before >= TAKEN) == taken
    }

    #[inline]
    fn index_in(&self, point: &RowBranch) -> usize {
        (point.index_base as usize ^ self.history << point.shift) & self.mask()
    }

    /// Moves the history past a row whose counters are updated. Returns whether the history is the
    /// same as before.
    #[inline]
    pub fn finish_row(&mut self, row: &[RowBranch]) -> bool {
        let before = self.history;
        if let Some(last) = row.last() {
            self.history = (before << last.shift << 1 | last.outcomes as usize) & self.mask();
        }
        before == self.history
    }

    /// Returns the prediction for the branch at `address`; `None` without entries.
    #[must_use]
    #[inline]
    pub fn predict(&self, address: u64) -> Option<bool> {
        self.counter(self.index(address)).map(|counter| counter >= TAKEN)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns index, counter before, whether the prediction was correct, and counter after.
    fn run(gshare: &mut Gshare, address: u64, taken: bool) -> (usize, u8, bool, u8) {
        let index = gshare.index(address);
        let before = gshare.counter(index).unwrap();
        let is_correct = gshare.update(address, taken);
        (index, before, is_correct, gshare.counter(index).unwrap())
    }

    /// Myers 2014, Figure 4.31: the sixth to tenth iterations of a loop, and two branches after it.
    #[test]
    fn myers_figure_4_31() {
        let mut gshare = Gshare::new(256).unwrap().with_history(0x3f);
        let loop_branch = 0x40048f;
        let expected = [
            (119, 1, false, 2, true),
            (55, 1, false, 2, true),
            (183, 1, false, 2, true),
            (183, 2, true, 3, true),
            (183, 3, false, 2, false),
        ];
        for (index, before, is_correct, after, taken) in expected {
            assert_eq!(run(&mut gshare, loop_branch, taken), (index, before, is_correct, after));
        }
        assert_eq!(run(&mut gshare, 0x400491, false), (183, 2, false, 1));
        assert_eq!(run(&mut gshare, 0x400493, false), (181, 1, true, 0));
    }

    /// Tewar 2015, Figure 6.16: a loop of twenty iterations.
    #[test]
    fn tewar_figure_6_16() {
        let mut gshare = Gshare::new(256).unwrap().with_history(0x67);
        let address = 0x8048440;
        for index in [35, 139, 219, 123, 59, 187] {
            assert_eq!(run(&mut gshare, address, true), (index, 1, false, 2));
        }
        assert_eq!(run(&mut gshare, address, true), (187, 2, true, 3));
        for _ in 0..13 {
            assert_eq!(run(&mut gshare, address, true), (187, 3, true, 3));
        }
        assert_eq!(run(&mut gshare, address, false), (187, 3, false, 2));
    }

    #[test]
    fn without_entries_nothing_is_predicted() {
        let mut gshare = Gshare::new(0).unwrap();
        assert_eq!(gshare.predict(7), None);
        assert!(!gshare.update(7, true) && !gshare.update(7, false));
    }

    #[test]
    fn sizes() {
        assert!(Gshare::new(3).is_err() && Gshare::new(1).is_err());
        for power in 1..17 {
            assert!(Gshare::new(1 << power).is_ok());
        }
    }

    /// The equations of Figure 4.29, with the table as a map.
    fn model(branches: &[(u64, bool)], entries: u64) -> Vec<bool> {
        let mut table = std::collections::HashMap::new();
        let mut bhr = 0u64;
        let mut answers = Vec::new();
        for &(address, taken) in branches {
            let index = (address >> 4 & (entries - 1)) ^ bhr;
            let prev = *table.get(&index).unwrap_or(&1u8);
            answers.push((prev > 1) == taken);
            let (b1, b0, t) = (prev >> 1, prev & 1, u8::from(taken));
            let f1 = (b1 & b0) | (t & b1) | (t & b0);
            let f0 = (b1 & !b0) | (t & !b0) | (t & b1);
            table.insert(index, (f1 & 1) << 1 | f0 & 1);
            bhr = (bhr << 1 | u64::from(taken)) & (entries - 1);
        }
        answers
    }

    proptest! {
        /// A row gives the same result as its branches one by one.
        #[test]
        fn a_row_is_its_branches(
            rows in proptest::collection::vec(proptest::collection::vec((0u64..64, 0u8..8), 1..50), 1..40),
            power in 1u32..14,
        ) {
            let mut gshare = Gshare::new(1 << power).unwrap();
            for row in rows.iter().cycle().take(300) {
                let branches: Vec<(u64, bool)> = row.iter().map(|&(number, kind)| (number * 16, kind != 0)).collect();
                let mut points: Vec<RowBranch> = Vec::new();
                for &(address, taken) in &branches {
                    points.push(RowBranch::after(points.last(), address, taken));
                }
                let mut one_by_one = gshare.clone();
                let is_correct: Vec<bool> =
                    branches.iter().map(|&(address, taken)| one_by_one.update(address, taken)).collect();
                let (sure, before) = (gshare.saturated_prefix(&points), gshare.clone());
                for (number, point) in points.iter().enumerate() {
                    prop_assert_eq!(gshare.update_in_row(point), is_correct[number]);
                    prop_assert!(number >= sure || gshare.counters == before.counters);
                }
                prop_assert_eq!(gshare.finish_row(&points), one_by_one.history == before.history);
                prop_assert_eq!((&gshare.counters, gshare.history), (&one_by_one.counters, one_by_one.history));
                let is_unchanged = gshare.counters == before.counters;
                prop_assert_eq!(sure == points.len(), is_unchanged && is_correct.iter().all(|&is_correct| is_correct));
            }
        }

        #[test]
        fn predictions_follow_the_equations(
            branches in proptest::collection::vec((0u64..512, any::<bool>()), 0..400),
            power in 1u32..13,
        ) {
            let mut gshare = Gshare::new(1 << power).unwrap();
            for (&(address, taken), is_correct) in branches.iter().zip(model(&branches, 1 << power)) {
                prop_assert_eq!(gshare.predict(address), Some(taken == is_correct));
                prop_assert_eq!(gshare.update(address, taken), is_correct);
            }
        }
    }
}
