//! TAGE: outcomes of conditional branches by histories of several lengths; the longest history with
//! a tag match decides (Seznec and Michaud 2006; with a loop predictor and a statistical corrector,
//! Seznec 2011 and 2014).
//!
//! A [`Tage`] asks in this order: base counters, indexed by the branch alone; tagged counters,
//! indexed by branch and history; the [`LoopPredictor`]; and the [`StatisticalCorrector`], which
//! sees what the others predict.

use crate::budget::Budget;
use crate::corrector::{BasePrediction, CorrectedPrediction, StatisticalCorrector};
use crate::counter::{step_saturating, step_two_bits};
use crate::history::History;
use crate::loops::{self, LoopPredictor};
use crate::tagged_table::{TagKeys, TagMatches, TaggedTable};

/// Branches of each history; each length is about 1.5 times the previous one.
const LENGTHS: [usize; 10] = [7, 11, 17, 26, 39, 58, 88, 132, 200, 300];
const N: usize = LENGTHS.len();
const COUNTER_BITS: u32 = 3;
const TAG_BITS: u32 = 11;
const BASE_BITS: u32 = 2;
/// Base counters start weakly not taken, and from here on predict taken.
const BASE_START: u8 = 1;
const BASE_TAKEN: u8 = 2;
const BASE_MAX: u8 = 3;
const USE_ALTERNATE_BITS: u32 = 4;
const LOOP_TRUST_BITS: u32 = 7;
/// History lengths that form one class for the corrector.
const LENGTHS_PER_CLASS: usize = 3;

#[derive(Clone, Debug)]
pub struct Tage {
    /// Counters indexed by the branch alone; a power of two of them.
    base: Vec<u8>,
    /// From 0 on they predict taken.
    tagged: TaggedTable<i8, N>,
    history: History<N>,
    /// From 0 on, the alternate prediction is better than that of a newly allocated entry.
    use_alternate: i8,
    loops: LoopPredictor,
    /// From 0 on, the loop predictor is better than the others when they disagree.
    loop_trust: i8,
    corrector: StatisticalCorrector,
    /// Entries that are allocated after a mispredict.
    allocations: usize,
}

/// Result of looking up a branch.
struct Lookup {
    base: usize,
    keys: TagKeys<N>,
    matches: TagMatches,
    /// Predictions of the longest matching history and of the next shorter one.
    longest: bool,
    alternate: bool,
    /// Whether the entry of the longest history is newly allocated.
    is_new: bool,
    /// Prediction of the tagged tables.
    tagged: bool,
    loop_key: loops::Key,
    loops: Option<bool>,
    correction: CorrectedPrediction,
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
            tagged: TaggedTable::new(tagged, TAG_BITS),
            history: History::new(&LENGTHS),
            use_alternate: 0,
            loops: LoopPredictor::new(loops),
            loop_trust: 0,
            corrector: StatisticalCorrector::new(counters, locals),
            allocations,
        }
    }

    /// Returns the bits of all tables and registers.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        let base = self.base.len() as u64 * u64::from(BASE_BITS);
        let registers = u64::from(USE_ALTERNATE_BITS + LOOP_TRUST_BITS);
        let tables = base + self.tagged.storage_bits(COUNTER_BITS) + self.loops.storage_bits();
        tables + self.corrector.storage_bits() + self.history.storage_bits() + registers
    }

    /// Returns the prediction for the branch at `address`.
    #[must_use]
    #[inline]
    pub fn predict(&self, address: u64) -> bool {
        self.lookup(address).correction.taken
    }

    /// Updates the predictor with an executed branch. Returns whether it was predicted.
    #[inline]
    pub fn update(&mut self, address: u64, taken: bool) -> bool {
        let lookup = self.lookup(address);
        self.corrector.update(address, &lookup.correction, taken);
        self.update_loop(&lookup, taken);
        self.update_tagged(&lookup, taken);
        self.history.push_outcome(address, taken);
        lookup.correction.taken == taken
    }

    /// Records a transfer that is not conditional, from `address` to `target`, in the history.
    #[inline]
    pub fn record_transfer(&mut self, address: u64, target: u64) {
        self.history.push_target(address, target);
    }

    #[inline]
    fn lookup(&self, address: u64) -> Lookup {
        let base = self.base_index(address);
        let (keys, matches) = self.tagged.find(address, self.history.folded());
        let by_base = self.base[base] >= BASE_TAKEN;
        let entry = |length| self.tagged.content(&keys, length);
        let alternate = matches.alternate.map_or(by_base, |length| entry(length) >= 0);
        let counter = matches.longest.map(entry);
        let longest = counter.map_or(by_base, |counter| counter >= 0);
        let is_new = counter.is_some_and(|counter| distance(counter) == 0);
        let tagged = if is_new && self.use_alternate >= 0 { alternate } else { longest };
        let loop_key = self.loops.key(address);
        let loops = self.loops.predict(&loop_key);
        let prior = BasePrediction {
            taken: loops.filter(|_| self.loop_trust >= 0).unwrap_or(tagged),
            confidence: counter.map_or_else(|| base_distance(self.base[base]), distance),
            class: matches.longest.map_or(0, |length| (length + 1) / LENGTHS_PER_CLASS) as u8,
        };
        let correction = self.corrector.lookup(address, prior);
        Lookup { base, keys, matches, longest, alternate, is_new, tagged, loop_key, loops, correction }
    }

    #[inline]
    fn base_index(&self, address: u64) -> usize {
        // Truncation keeps the low bits.
        (address ^ address >> self.base.len().ilog2()) as usize & (self.base.len() - 1)
    }

    #[inline]
    fn update_loop(&mut self, lookup: &Lookup, taken: bool) {
        if let Some(loops) = lookup.loops.filter(|&loops| loops != lookup.tagged) {
            self.loop_trust = step_saturating(self.loop_trust, loops == taken, LOOP_TRUST_BITS);
        }
        self.loops.update(&lookup.loop_key, taken, lookup.tagged == taken);
    }

    #[inline]
    fn update_tagged(&mut self, lookup: &Lookup, taken: bool) {
        // A new entry gets time to prove that its length is right.
        let is_on_trial = lookup.is_new && lookup.longest == taken;
        if lookup.tagged != taken && !is_on_trial {
            let first = lookup.matches.longest.map_or(0, |length| length + 1);
            self.tagged.allocate(&lookup.keys, first, self.allocations, if taken { 0 } else { -1 });
        }
        match lookup.matches.longest {
            None => self.update_base(lookup, taken),
            Some(length) => self.update_longest(lookup, length, taken),
        }
    }

    #[inline]
    fn update_longest(&mut self, lookup: &Lookup, length: usize, taken: bool) {
        let was_useful = self.tagged.is_useful(&lookup.keys, length);
        if lookup.longest != lookup.alternate {
            self.tagged.update_usefulness(&lookup.keys, length, lookup.longest == taken);
            if lookup.is_new {
                self.use_alternate = step_saturating(self.use_alternate, lookup.alternate == taken, USE_ALTERNATE_BITS);
            }
        }
        self.update_entry(lookup, length, taken);
        // The new entry may soon be replaced.
        if lookup.is_new && !was_useful {
            match lookup.matches.alternate {
                None => self.update_base(lookup, taken),
                Some(alternate) => self.update_entry(lookup, alternate, taken),
            }
        }
    }

    #[inline]
    fn update_entry(&mut self, lookup: &Lookup, length: usize, taken: bool) {
        let counter = self.tagged.content_mut(&lookup.keys, length);
        *counter = step_saturating(*counter, taken, COUNTER_BITS);
    }

    #[inline]
    fn update_base(&mut self, lookup: &Lookup, taken: bool) {
        let counter = &mut self.base[lookup.base];
        *counter = step_two_bits(*counter, taken);
    }
}

/// Returns how many steps a counter is from its weak state.
#[inline]
fn distance(counter: i8) -> u8 {
    (if counter >= 0 { counter } else { -1 - counter }) as u8
}

/// Confidence of a base counter; a saturated one counts like a saturated tagged counter.
#[inline]
fn base_distance(counter: u8) -> u8 {
    if counter == 0 || counter == BASE_MAX { 3 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGETS: [Budget; 3] = [Budget::Small, Budget::Medium, Budget::Large];

    /// Returns those of the last quarter of branches that were mispredicted.
    fn missed(tage: &mut Tage, branches: impl Iterator<Item = (u64, bool)>) -> Vec<u64> {
        let mut branches: Vec<_> = branches.map(|(address, taken)| (address, tage.update(address, taken))).collect();
        let late = branches.split_off(branches.len() / 4 * 3);
        late.into_iter().filter(|&(_, is_correct)| !is_correct).map(|(address, _)| address).collect()
    }

    /// Independent random bits (Marsaglia 2003).
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
    fn a_loop_of_a_constant_trip_count_is_learnt() {
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
            // The last branch goes as the first one did; only the history shows it.
            let branches = random().take(8_000).flat_map(|bit| [(0x1000, bit), (0x2000, true), (0x3000, bit)]);
            let missed = missed(&mut Tage::new(budget), branches);
            let known = missed.iter().filter(|&&address| address != 0x1000).count();
            assert!(known < 20, "{budget:?}: {known} of 4000 were not predicted");
        }
    }

    #[test]
    fn the_path_to_a_branch_is_remembered() {
        let mut tage = Tage::new(Budget::Medium);
        let mut call = |from_first| {
            tage.record_transfer(if from_first { 0x1000 } else { 0x2000 }, 0x3000);
            tage.update(0x3010, from_first)
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
        // Base, tagged, loop predictor, corrector counters, local histories.
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
        fn an_update_reports_whether_the_prediction_was_right(
            branches in proptest::collection::vec((0u64..64, any::<bool>(), 0u8..4), 0..1000),
            budget in proptest::sample::select(&BUDGETS[..]),
        ) {
            let mut tage = Tage::new(budget);
            let mut twin = tage.clone();
            for (place, taken, kind) in branches {
                let address = 0x40_0000 + place * 7;
                if kind == 0 {
                    tage.record_transfer(address, place * 16);
                    twin.record_transfer(address, place * 16);
                } else {
                    let predicted = tage.predict(address);
                    let is_correct = tage.update(address, taken);
                    prop_assert_eq!(is_correct, predicted == taken);
                    prop_assert_eq!(is_correct, twin.update(address, taken));
                }
            }
        }
    }
}
