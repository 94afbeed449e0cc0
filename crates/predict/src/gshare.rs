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

#[derive(Clone, Debug)]
pub struct Gshare {
    counters: Vec<u8>,
    /// Outcomes, the last one lowest; as many as choose an entry.
    history: usize,
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
