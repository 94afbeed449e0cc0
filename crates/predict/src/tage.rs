//! The outcome of conditional branches, by histories of several lengths at once: the longest one that is known decides (TAGE, Seznec
//! and Michaud 2006; with a loop predictor and a statistical corrector, Seznec 2011 and 2014).
//!
//! A [`Tage`] asks, in this order: counters that know the branch alone, tagged counters that know it behind a history, [`Loops`],
//! and the [`Corrector`], which is told what the others think.

use crate::budget::Budget;
use crate::corrector::{Correction, Corrector, Proposal};
use crate::counter::{moved, moved_in_two_bits};
use crate::history::History;
use crate::loops::{self, Loops};
use crate::pool::{Found, Keys, Pool};

/// Branches of each history: each about half as much again as the one before.
const LENGTHS: [usize; 10] = [7, 11, 17, 26, 39, 58, 88, 132, 200, 300];
const N: usize = LENGTHS.len();
const COUNTER_BITS: u32 = 3;
const TAG_BITS: u32 = 11;
const BASE_BITS: u32 = 2;
/// Base counters start weakly not taken, and from here on say "taken".
const BASE_START: u8 = 1;
const BASE_TAKEN: u8 = 2;
const BASE_MAX: u8 = 3;
const NEWCOMERS_BITS: u32 = 4;
const LOOPS_TRUSTED_BITS: u32 = 7;
/// Lengths that the corrector takes for one sort.
const LENGTHS_OF_A_SORT: usize = 3;

#[derive(Clone, Debug)]
pub struct Tage {
    /// Of branches alone; their number is a power of two.
    base: Vec<u8>,
    /// From 0 on they say "taken".
    tagged: Pool<i8, N>,
    history: History<N>,
    /// From 0 on, an entry that has just been made is less often right than the one with a shorter history.
    newcomers: i8,
    loops: Loops,
    /// From 0 on, loops are right more often than the others when they disagree.
    loops_trusted: i8,
    corrector: Corrector,
    /// Entries that are made after a wrong prediction.
    allocations: usize,
}

/// All that is found out about a branch before it is executed.
struct Lookup {
    base: usize,
    keys: Keys<N>,
    found: Found,
    /// What the longest history says; what the next one says.
    longest: bool,
    other: bool,
    /// The longest history's entry has hardly learnt anything.
    is_new: bool,
    /// What histories say together.
    tagged: bool,
    loop_key: loops::Key,
    loops: Option<bool>,
    correction: Correction,
}

impl Tage {
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        let (base, tagged, allocations) = match budget {
            Budget::Small => (2048, 1280, 2),
            Budget::Medium => (4096, 6144, 3),
            Budget::Large => (8192, 26_000, 4),
        };
        let (loops, counters, locals) = match budget {
            Budget::Small => (16, 64, 64),
            Budget::Medium => (32, 256, 128),
            Budget::Large => (64, 1024, 256),
        };
        Self {
            base: vec![BASE_START; base],
            tagged: Pool::new(tagged, TAG_BITS),
            history: History::new(&LENGTHS),
            newcomers: 0,
            loops: Loops::new(loops),
            loops_trusted: 0,
            corrector: Corrector::new(counters, locals),
            allocations,
        }
    }

    /// Bits of all tables and registers.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        let base = self.base.len() as u64 * u64::from(BASE_BITS);
        let registers = u64::from(NEWCOMERS_BITS + LOOPS_TRUSTED_BITS);
        let tables = base + self.tagged.storage_bits(COUNTER_BITS) + self.loops.storage_bits();
        tables + self.corrector.storage_bits() + self.history.storage_bits() + registers
    }

    /// What would be predicted for the branch at `address`.
    #[must_use]
    #[inline]
    pub fn prediction(&self, address: u64) -> bool {
        self.lookup(address).correction.taken
    }

    /// The branch at `address` was taken or not: learns, and says whether it was predicted.
    #[inline]
    pub fn branch(&mut self, address: u64, taken: bool) -> bool {
        let lookup = self.lookup(address);
        self.corrector.learn(address, &lookup.correction, taken);
        self.learn_loop(&lookup, taken);
        self.learn_tagged(&lookup, taken);
        self.history.outcome(address, taken);
        lookup.correction.taken == taken
    }

    /// A branch that is not conditional went from `address` to `target`: what comes is known by the way to it, too.
    #[inline]
    pub fn pass(&mut self, address: u64, target: u64) {
        self.history.target(address, target);
    }

    #[inline]
    fn lookup(&self, address: u64) -> Lookup {
        let base = self.base_index(address);
        let (keys, found) = self.tagged.find(address, self.history.folded());
        let by_base = self.base[base] >= BASE_TAKEN;
        let entry = |length| self.tagged.content(&keys, length);
        let other = found.other.map_or(by_base, |length| entry(length) >= 0);
        let counter = found.longest.map(entry);
        let longest = counter.map_or(by_base, |counter| counter >= 0);
        let is_new = counter.is_some_and(|counter| distance(counter) == 0);
        let tagged = if is_new && self.newcomers >= 0 { other } else { longest };
        let loop_key = self.loops.key(address);
        let loops = self.loops.prediction(&loop_key);
        let proposal = Proposal {
            taken: loops.filter(|_| self.loops_trusted >= 0).unwrap_or(tagged),
            confidence: counter.map_or_else(|| base_distance(self.base[base]), distance),
            sort: found.longest.map_or(0, |length| (length + 1) / LENGTHS_OF_A_SORT) as u8,
        };
        let correction = self.corrector.lookup(address, proposal);
        Lookup { base, keys, found, longest, other, is_new, tagged, loop_key, loops, correction }
    }

    #[inline]
    fn base_index(&self, address: u64) -> usize {
        // The low bits are what counts.
        (address ^ address >> self.base.len().ilog2()) as usize & (self.base.len() - 1)
    }

    #[inline]
    fn learn_loop(&mut self, lookup: &Lookup, taken: bool) {
        if let Some(loops) = lookup.loops.filter(|&loops| loops != lookup.tagged) {
            self.loops_trusted = moved(self.loops_trusted, loops == taken, LOOPS_TRUSTED_BITS);
        }
        self.loops.learn(&lookup.loop_key, taken, lookup.tagged == taken);
    }

    #[inline]
    fn learn_tagged(&mut self, lookup: &Lookup, taken: bool) {
        // What has just been made is given the time to show that it was the right length.
        let has_time = lookup.is_new && lookup.longest == taken;
        if lookup.tagged != taken && !has_time {
            let first = lookup.found.longest.map_or(0, |length| length + 1);
            self.tagged.allocate(&lookup.keys, first, self.allocations, if taken { 0 } else { -1 });
        }
        match lookup.found.longest {
            None => self.learn_base(lookup, taken),
            Some(length) => self.learn_longest(lookup, length, taken),
        }
    }

    #[inline]
    fn learn_longest(&mut self, lookup: &Lookup, length: usize, taken: bool) {
        let was_useful = self.tagged.is_useful(&lookup.keys, length);
        if lookup.longest != lookup.other {
            self.tagged.judge(&lookup.keys, length, lookup.longest == taken);
            if lookup.is_new {
                self.newcomers = moved(self.newcomers, lookup.other == taken, NEWCOMERS_BITS);
            }
        }
        self.learn_entry(lookup, length, taken);
        // It may soon be gone.
        if lookup.is_new && !was_useful {
            match lookup.found.other {
                None => self.learn_base(lookup, taken),
                Some(other) => self.learn_entry(lookup, other, taken),
            }
        }
    }

    #[inline]
    fn learn_entry(&mut self, lookup: &Lookup, length: usize, taken: bool) {
        let counter = self.tagged.content_mut(&lookup.keys, length);
        *counter = moved(*counter, taken, COUNTER_BITS);
    }

    #[inline]
    fn learn_base(&mut self, lookup: &Lookup, taken: bool) {
        let counter = &mut self.base[lookup.base];
        *counter = moved_in_two_bits(*counter, taken);
    }
}

/// How many steps a counter is away from saying the opposite by one step.
#[inline]
fn distance(counter: i8) -> u8 {
    (if counter >= 0 { counter } else { -1 - counter }) as u8
}

/// The same of a base counter, which is as certain as a tagged one at its two ends.
#[inline]
fn base_distance(counter: u8) -> u8 {
    if counter == 0 || counter == BASE_MAX { 3 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGETS: [Budget; 3] = [Budget::Small, Budget::Medium, Budget::Large];

    /// Of the last quarter of these branches, those that were not predicted.
    fn missed(tage: &mut Tage, branches: impl Iterator<Item = (u64, bool)>) -> Vec<u64> {
        let mut branches: Vec<_> = branches.map(|(address, taken)| (address, tage.branch(address, taken))).collect();
        let late = branches.split_off(branches.len() / 4 * 3);
        late.into_iter().filter(|&(_, right)| !right).map(|(address, _)| address).collect()
    }

    /// Bits that do not depend on each other (Marsaglia 2003).
    fn random() -> impl Iterator<Item = bool> {
        let mut state = 88_172_645_463_325_252u64;
        std::iter::from_fn(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            Some(state >> 32 & 1 == 1)
        })
    }

    #[test]
    fn a_loop_of_a_constant_number_of_turns_is_learnt() {
        for (budget, turns) in BUDGETS.into_iter().zip([5, 40, 600]) {
            let branches = (0..40 * turns).map(|number| (0x1000, (number + 1) % turns != 0));
            assert_eq!(missed(&mut Tage::new(budget), branches), [], "{budget:?} with {turns} turns");
        }
    }

    #[test]
    fn a_loop_with_noise_in_it_is_learnt() {
        let noise = random().take(12_000);
        let branches = noise.enumerate().flat_map(|(number, bit)| [(0x1000, bit), (0x2000, (number + 1) % 30 != 0)]);
        let missed = missed(&mut Tage::new(Budget::Large), branches);
        let ends = missed.iter().filter(|&&address| address == 0x2000).count();
        assert!(ends < 10, "{ends} of 100 ends were not predicted");
    }

    #[test]
    fn an_outcome_before_is_remembered() {
        for budget in BUDGETS {
            // The last one goes as the first one did, which nothing else tells.
            let branches = random().take(8_000).flat_map(|bit| [(0x1000, bit), (0x2000, true), (0x3000, bit)]);
            let missed = missed(&mut Tage::new(budget), branches);
            let known = missed.iter().filter(|&&address| address != 0x1000).count();
            assert!(known < 20, "{budget:?}: {known} of 4000 were not predicted");
        }
    }

    #[test]
    fn the_way_to_a_branch_is_remembered() {
        let mut tage = Tage::new(Budget::Medium);
        let mut call = |from_first| {
            tage.pass(if from_first { 0x1000 } else { 0x2000 }, 0x3000);
            tage.branch(0x3010, from_first)
        };
        let missed = random().take(4_000).map(|from_first| !call(from_first)).skip(3_000);
        assert!(missed.filter(|&missed| missed).count() < 20);
    }

    #[test]
    fn storage() {
        let bits = BUDGETS.map(|budget| Tage::new(budget).storage_bits());
        let tagged = 1 + TAG_BITS as u64 + 2 + 3;
        let history = 300 * 3 + 10 * 61;
        let registers = 4 + 7 + 11 + 163;
        // Base, tagged, loops, corrector's counters, outcomes of single branches.
        let expected = [
            2 * 2048 + 1280 * tagged + 16 * 42 + 8 * 64 * 6 + 64 * 20,
            2 * 4096 + 6144 * tagged + 32 * 42 + 8 * 256 * 6 + 128 * 20,
            2 * 8192 + 26_000 * tagged + 64 * 42 + 8 * 1024 * 6 + 256 * 20,
        ];
        assert_eq!(bits, expected.map(|tables| tables + history + registers));
        assert!(bits.into_iter().zip([4, 16, 64]).all(|(bits, kilobytes)| bits <= kilobytes * 8 * 1024));
    }

    proptest! {
        #[test]
        fn it_was_right_if_its_prediction_was(
            branches in proptest::collection::vec((0u64..64, any::<bool>(), 0u8..4), 0..1000),
            budget in proptest::sample::select(&BUDGETS[..]),
        ) {
            let mut tage = Tage::new(budget);
            let mut image = tage.clone();
            for (place, taken, kind) in branches {
                let address = 0x40_0000 + place * 7;
                if kind == 0 {
                    tage.pass(address, place * 16);
                    image.pass(address, place * 16);
                } else {
                    let predicted = tage.prediction(address);
                    let right = tage.branch(address, taken);
                    prop_assert_eq!(right, predicted == taken);
                    prop_assert_eq!(right, image.branch(address, taken));
                }
            }
        }
    }
}
