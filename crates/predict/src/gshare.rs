//! The outcome of conditional branches: two-bit counters, chosen by the branch's address and the outcomes before it
//! (Myers 2014, Figure 4.29).

use crate::size::{IllegalSize, Structure, power_of_two};

/// Weakly not taken.
const START: u8 = 1;
const STRONGLY_TAKEN: u8 = 3;
/// Counters from here on say "taken".
const TAKEN: u8 = 2;
/// Low bits of an address that are not looked at.
const ADDRESS_SHIFT: u32 = 4;
const ENTRIES_MAX: usize = 1 << 28;
/// Outcomes before a row that are so far away choose no entry any more.
const SHIFT_MAX: u8 = 32;

#[derive(Clone, Debug)]
pub struct Gshare {
    counters: Vec<u8>,
    /// Outcomes, the last one lowest; as many as choose an entry.
    history: usize,
}

/// One of a row of branches that are met one after the other, prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// What chooses the entry, but for the outcomes before the row.
    constant: u32,
    /// Of the row up to this branch, the last one lowest; there are never so many entries that more of them matter.
    outcomes: u32,
    /// How far outcomes before the row are away.
    shift: u8,
    /// The counter of an entry that could not be more certain.
    sure: u8,
}

impl Point {
    /// The branch behind `before` in the row.
    #[must_use]
    pub fn behind(before: Option<&Self>, address: u64, taken: bool) -> Self {
        // Far enough is far enough.
        let (outcomes, shift) = before.map_or((0, 0), |before| (before.outcomes, (before.shift + 1).min(SHIFT_MAX)));
        // The low bits are what counts, and there are never so many entries that more do.
        let constant = (address >> ADDRESS_SHIFT) as u32 ^ outcomes;
        let sure = if taken { STRONGLY_TAKEN } else { 0 };
        Self { constant, outcomes: outcomes << 1 | u32::from(taken), shift, sure }
    }

    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.sure == STRONGLY_TAKEN
    }
}

impl Gshare {
    /// With 0 entries nothing is ever predicted; otherwise their number is a power of two.
    pub fn new(entries: usize) -> Result<Self, IllegalSize> {
        let entries = power_of_two(Structure::Gshare, entries, 2, ENTRIES_MAX)?;
        Ok(Self { counters: vec![START; entries], history: 0 })
    }

    /// Begins with these outcomes before the first, the last one lowest.
    #[must_use]
    pub fn with_history(mut self, history: usize) -> Self {
        self.history = history & self.mask();
        self
    }

    fn mask(&self) -> usize {
        self.counters.len().wrapping_sub(1)
    }

    /// The entry that is asked about the branch at `address`; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn index(&self, address: u64) -> usize {
        // The low bits are what counts.
        let address = (address >> ADDRESS_SHIFT) as usize;
        if self.counters.is_empty() { 0 } else { (address ^ self.history) & self.mask() }
    }

    /// The counter of an entry, from 0, strongly not taken, to 3, strongly taken.
    #[must_use]
    pub fn counter(&self, index: usize) -> Option<u8> {
        self.counters.get(index).copied()
    }

    /// The branch at `address` was taken or not: learns, and says whether it was predicted.
    #[inline]
    pub fn branch(&mut self, address: u64, taken: bool) -> bool {
        let index = self.index(address);
        let Some(counter) = self.counters.get_mut(index) else { return false };
        let right = (*counter >= TAKEN) == taken;
        *counter = if taken { (*counter + 1).min(STRONGLY_TAKEN) } else { counter.saturating_sub(1) };
        self.history = (self.history << 1 | usize::from(taken)) & self.mask();
        right
    }

    /// How many branches of a row are predicted with so much certainty that nothing is learnt by them.
    #[must_use]
    #[inline]
    pub fn sure_of(&self, row: &[Point]) -> usize {
        let is_sure = |point: &Point| self.counter(self.index_in(point)) == Some(point.sure);
        row.iter().position(|point| !is_sure(point)).unwrap_or(row.len())
    }

    /// The next branch of a row went as it says: learns, and says whether it was predicted. To be followed by the others and by
    /// [`Self::pass`].
    #[inline]
    pub fn branch_in(&mut self, point: &Point) -> bool {
        let index = self.index_in(point);
        let Some(counter) = self.counters.get_mut(index) else { return false };
        let before = *counter;
        // Not writing it again lets the next branch go ahead that looks at it.
        if before == point.sure {
            return true;
        }
        let taken = point.is_taken();
        *counter = if taken { before + 1 } else { before - 1 };
        (before >= TAKEN) == taken
    }

    #[inline]
    fn index_in(&self, point: &Point) -> usize {
        (point.constant as usize ^ self.history << point.shift) & self.mask()
    }

    /// Goes on behind a row, of which all was learnt that is to be learnt. Returns whether it stands where it stood.
    #[inline]
    pub fn pass(&mut self, row: &[Point]) -> bool {
        let before = self.history;
        if let Some(last) = row.last() {
            self.history = (before << last.shift << 1 | last.outcomes as usize) & self.mask();
        }
        before == self.history
    }

    /// What would be predicted for the branch at `address`; `None` without entries.
    #[must_use]
    #[inline]
    pub fn prediction(&self, address: u64) -> Option<bool> {
        self.counter(self.index(address)).map(|counter| counter >= TAKEN)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Index, counter before, whether it was right, counter after.
    fn run(gshare: &mut Gshare, address: u64, taken: bool) -> (usize, u8, bool, u8) {
        let index = gshare.index(address);
        let before = gshare.counter(index).unwrap();
        let right = gshare.branch(address, taken);
        (index, before, right, gshare.counter(index).unwrap())
    }

    /// Myers 2014, Figure 4.31: the sixth to tenth iterations of a loop, and two branches behind it.
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
        for (index, before, right, after, taken) in expected {
            assert_eq!(run(&mut gshare, loop_branch, taken), (index, before, right, after));
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
        assert_eq!(gshare.prediction(7), None);
        assert!(!gshare.branch(7, true) && !gshare.branch(7, false));
    }

    #[test]
    fn sizes() {
        assert!(Gshare::new(3).is_err() && Gshare::new(1).is_err());
        for power in 1..17 {
            assert!(Gshare::new(1 << power).is_ok());
        }
    }

    /// The equations of Figure 4.29 as they stand there, in a map.
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
        /// A row is its branches, one by one.
        #[test]
        fn a_row_is_its_branches(
            rows in proptest::collection::vec(proptest::collection::vec((0u64..64, 0u8..8), 1..50), 1..40),
            power in 1u32..14,
        ) {
            let mut gshare = Gshare::new(1 << power).unwrap();
            for row in rows.iter().cycle().take(300) {
                let branches: Vec<(u64, bool)> = row.iter().map(|&(place, kind)| (place * 16, kind != 0)).collect();
                let mut points: Vec<Point> = Vec::new();
                for &(address, taken) in &branches {
                    points.push(Point::behind(points.last(), address, taken));
                }
                let mut one_by_one = gshare.clone();
                let right: Vec<bool> =
                    branches.iter().map(|&(address, taken)| one_by_one.branch(address, taken)).collect();
                let (sure, before) = (gshare.sure_of(&points), gshare.clone());
                for (place, point) in points.iter().enumerate() {
                    prop_assert_eq!(gshare.branch_in(point), right[place]);
                    prop_assert!(place >= sure || gshare.counters == before.counters);
                }
                prop_assert_eq!(gshare.pass(&points), one_by_one.history == before.history);
                prop_assert_eq!((&gshare.counters, gshare.history), (&one_by_one.counters, one_by_one.history));
                prop_assert_eq!(sure == points.len(), gshare.counters == before.counters && right.iter().all(|&right| right));
            }
        }

        #[test]
        fn it_is_what_the_equations_say(
            branches in proptest::collection::vec((0u64..512, any::<bool>()), 0..400),
            power in 1u32..13,
        ) {
            let mut gshare = Gshare::new(1 << power).unwrap();
            for (&(address, taken), right) in branches.iter().zip(model(&branches, 1 << power)) {
                prop_assert_eq!(gshare.prediction(address), Some(taken == right));
                prop_assert_eq!(gshare.branch(address, taken), right);
            }
        }
    }
}
