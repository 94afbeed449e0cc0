//! Statistical corrector. It sums counters that are indexed by the branch together with one feature
//! each. If the sum clearly contradicts the prediction, the corrector inverts it. This helps with
//! branches that depend on a history only by tendency, or on something else (Seznec 2011 and 2014;
//! the sum is that of O-GEHL, Seznec 2005; the count of loop iterations follows Seznec, San Miguel
//! and Albericio 2015).

use crate::counter::step_saturating;
use crate::hash::{reduce, scatter};

const COUNTER_BITS: u32 = 6;
/// Features: the prediction; the prediction with its confidence; global outcomes; four lengths of
/// local outcomes; loop iterations.
const FEATURES: usize = 8;
const GLOBAL_BITS: u32 = 8;
const LOCAL_BITS: [u32; 4] = [4, 8, 12, 20];
const LOCAL_LONGEST: u32 = 20;
const ITERATION_BITS: u32 = 10;
const ITERATIONS_MAX: u64 = (1 << ITERATION_BITS) - 1;
/// Weight of the prediction, for each step of its counter from the middle.
const PREDICTION_WEIGHT: i32 = 8;
/// A smaller sum does not invert the prediction.
const CERTAIN_SUM: i32 = 10;
/// Below this sum the counters are updated even if the sum was correct. The threshold adapts, as in
/// O-GEHL.
const THRESHOLD_START: i32 = 20;
const THRESHOLD_LEAST: i32 = 4;
const THRESHOLD_BITS: u32 = 10;
const BALANCE_BITS: u32 = 6;

#[derive(Clone, Debug)]
pub(crate) struct StatisticalCorrector {
    /// Counters of all features, one feature after the other.
    counters: Vec<i8>,
    /// Global outcomes, latest in the lowest bit.
    global: u64,
    /// Local outcomes of branches, latest in the lowest bit.
    locals: Vec<u32>,
    iterations: LoopIterations,
    threshold: i32,
    /// Goes up when the sum is wrong, and down when it is correct but small.
    balance: i8,
}

/// Iterations of the innermost loop in succession. The next branch reveals a backward branch,
/// because its address is not larger.
#[derive(Clone, Copy, Debug, Default)]
struct LoopIterations {
    count: u64,
    /// The backward branch of the loop.
    end: u64,
    /// The last branch, if it was taken.
    taken: Option<u64>,
}

/// Prediction of the other components.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BasePrediction {
    pub taken: bool,
    /// Distance of the counter from the middle, from 0 to 3.
    pub confidence: u8,
    /// Class of predictions with similar accuracy, below 8.
    pub class: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CorrectedPrediction {
    pub taken: bool,
    sum: i32,
    indices: [u32; FEATURES],
    local: u32,
    iterations: LoopIterations,
}

impl LoopIterations {
    /// Returns the iterations at the branch at `address`.
    #[inline]
    fn at_branch(mut self, address: u64) -> Self {
        if let Some(end) = self.taken.filter(|&last| address <= last) {
            self.count = if end == self.end { (self.count + 1).min(ITERATIONS_MAX) } else { 1 };
            self.end = end;
        }
        self
    }
}

impl StatisticalCorrector {
    /// `counters` per feature, and local histories of `locals` branches.
    pub(crate) fn new(counters: usize, locals: usize) -> Self {
        Self {
            counters: vec![0; FEATURES * counters],
            global: 0,
            locals: vec![0; locals],
            iterations: LoopIterations::default(),
            threshold: THRESHOLD_START,
            balance: 0,
        }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        let iterations = u64::from(ITERATION_BITS) + 64 + 65;
        let registers = u64::from(GLOBAL_BITS + THRESHOLD_BITS + BALANCE_BITS) + iterations;
        let counters = self.counters.len() as u64 * u64::from(COUNTER_BITS);
        counters + self.locals.len() as u64 * u64::from(LOCAL_LONGEST) + registers
    }

    #[inline]
    pub(crate) fn lookup(&self, address: u64, base: BasePrediction) -> CorrectedPrediction {
        let branch = scatter(address);
        let (local, iterations) = (reduce(branch, self.locals.len()), self.iterations.at_branch(address));
        let indices = self.indices(branch, self.features(base, self.locals[local], iterations.count));
        let weight = PREDICTION_WEIGHT * (2 * i32::from(base.confidence) + 1);
        let start = if base.taken { weight } else { -weight };
        let sum = indices.iter().fold(start, |sum, &index| sum + 2 * i32::from(self.counters[index as usize]) + 1);
        let taken = if sum.abs() >= CERTAIN_SUM { sum >= 0 } else { base.taken };
        CorrectedPrediction { taken, sum, indices, local: local as u32, iterations }
    }

    #[inline]
    fn features(&self, base: BasePrediction, local: u32, iterations: u64) -> [u64; FEATURES] {
        let predicted = u64::from(base.taken);
        let with_confidence = predicted | u64::from(base.confidence) << 1 | u64::from(base.class) << 3;
        let [a, b, c, d] = LOCAL_BITS.map(|bits| u64::from(local) & ((1 << bits) - 1));
        [predicted, with_confidence, self.global & ((1 << GLOBAL_BITS) - 1), a, b, c, d, iterations]
    }

    #[inline]
    fn indices(&self, branch: u64, features: [u64; FEATURES]) -> [u32; FEATURES] {
        let each = self.counters.len() / FEATURES;
        let mut indices = [0; FEATURES];
        for (number, feature) in features.into_iter().enumerate() {
            let hash = scatter(branch ^ (feature << 3 | number as u64));
            indices[number] = (number * each + reduce(hash, each)) as u32;
        }
        indices
    }

    #[inline]
    pub(crate) fn update(&mut self, address: u64, correction: &CorrectedPrediction, taken: bool) {
        let is_correct = (correction.sum >= 0) == taken;
        if !is_correct || correction.sum.abs() < self.threshold {
            self.adapt(is_correct);
            for &index in &correction.indices {
                let counter = &mut self.counters[index as usize];
                *counter = step_saturating(*counter, taken, COUNTER_BITS);
            }
        }
        self.global = self.global << 1 | u64::from(taken);
        let local = &mut self.locals[correction.local as usize];
        *local = *local << 1 | u32::from(taken);
        self.iterations = LoopIterations { taken: taken.then_some(address), ..correction.iterations };
    }

    fn adapt(&mut self, is_correct: bool) {
        let before = self.balance;
        self.balance = step_saturating(before, !is_correct, BALANCE_BITS);
        if self.balance == before {
            self.balance = 0;
            let most = (1 << THRESHOLD_BITS) - 1;
            self.threshold = (self.threshold + if is_correct { -1 } else { 1 }).clamp(THRESHOLD_LEAST, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSURE: BasePrediction = BasePrediction { taken: true, confidence: 0, class: 0 };

    /// Returns how many of the last hundred of a thousand branches were wrong.
    fn wrong(outcome: impl Fn(u64) -> bool) -> usize {
        let mut corrector = StatisticalCorrector::new(256, 16);
        let branch = |number| {
            let (correction, taken) = (corrector.lookup(0x1000, UNSURE), outcome(number));
            corrector.update(0x1000, &correction, taken);
            correction.taken != taken
        };
        (0..1000).map(branch).skip(900).filter(|&wrong| wrong).count()
    }

    #[test]
    fn a_prediction_that_is_always_wrong_is_turned_round() {
        assert_eq!(wrong(|_| true), 0);
        assert_eq!(wrong(|_| false), 0);
    }

    #[test]
    fn own_outcomes_are_learnt() {
        assert_eq!(wrong(|number| number % 5 == 0), 0);
    }

    #[test]
    fn iterations_are_counted() {
        let mut iterations = LoopIterations::default();
        for (address, taken, expected) in
            [(8, true, 0), (8, true, 1), (8, false, 2), (9, true, 2), (4, true, 1), (9, true, 1), (4, true, 2)]
        {
            iterations = iterations.at_branch(address);
            assert_eq!(iterations.count, expected, "at {address}");
            iterations.taken = taken.then_some(address);
        }
    }

    #[test]
    fn storage() {
        assert_eq!(StatisticalCorrector::new(256, 16).storage_bits(), 8 * 256 * 6 + 16 * 20 + 8 + 10 + 6 + 139);
    }
}
