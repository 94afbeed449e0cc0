//! Has the last word: counters chosen by the branch together with one thing or another are added up, and if the sum is against what
//! was predicted, and clearly so, then the branch goes the other way. This is for branches that depend on a history only by tendency, or
//! on something else than the branches before (the statistical corrector of Seznec 2011 and 2014, whose sum is that of O-GEHL, Seznec
//! 2005; the number of turns is that of Seznec, San Miguel and Albericio 2015).

use crate::counter::moved;
use crate::hash::{place, scattered};

const COUNTER_BITS: u32 = 6;
/// What was predicted; that and how surely; global outcomes; four lengths of the branch's own outcomes; turns.
const FEATURES: usize = 8;
const GLOBAL_BITS: u32 = 8;
const LOCAL_BITS: [u32; 4] = [4, 8, 12, 20];
const LOCAL_LONGEST: u32 = 20;
const TURN_BITS: u32 = 10;
const TURNS_MAX: u64 = (1 << TURN_BITS) - 1;
/// What a prediction weighs, for each step that its counter is away from the middle.
const PREDICTION_WEIGHT: i32 = 8;
/// A smaller sum is not clear.
const CLEAR: i32 = 10;
/// Below this sum the counters learn from what is right, too. Adapts itself, as in O-GEHL.
const THRESHOLD_START: i32 = 20;
const THRESHOLD_LEAST: i32 = 4;
const THRESHOLD_BITS: u32 = 10;
const BALANCE_BITS: u32 = 6;

#[derive(Clone, Debug)]
pub(crate) struct Corrector {
    /// Of all features, one after the other.
    counters: Vec<i8>,
    /// The last one lowest.
    global: u64,
    /// Outcomes of single branches, the last one lowest.
    locals: Vec<u32>,
    turns: Turns,
    threshold: i32,
    /// Goes up when the sum is wrong, down when it is right but small.
    balance: i8,
}

/// How many times in succession the innermost loop went round. That a branch goes back is seen by the next one, which is not behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    count: u64,
    /// The branch that goes back.
    end: u64,
    /// The last branch, if it was taken.
    taken: Option<u64>,
}

/// What others predict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposal {
    pub taken: bool,
    /// How far the counter is away from the middle, from 0 to 3.
    pub confidence: u8,
    /// A few sorts of predictions that differ in how often they are right, below 8.
    pub sort: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Correction {
    pub taken: bool,
    sum: i32,
    places: [u32; FEATURES],
    local: u32,
    turns: Turns,
}

impl Turns {
    /// Once the branch at `address` is met.
    #[inline]
    fn met(mut self, address: u64) -> Self {
        if let Some(end) = self.taken.filter(|&last| address <= last) {
            self.count = if end == self.end { (self.count + 1).min(TURNS_MAX) } else { 1 };
            self.end = end;
        }
        self
    }
}

impl Corrector {
    /// So many counters for each feature, and so many branches whose own outcomes are kept.
    pub(crate) fn new(counters: usize, locals: usize) -> Self {
        Self {
            counters: vec![0; FEATURES * counters],
            global: 0,
            locals: vec![0; locals],
            turns: Turns::default(),
            threshold: THRESHOLD_START,
            balance: 0,
        }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        let turns = u64::from(TURN_BITS) + 64 + 65;
        let registers = u64::from(GLOBAL_BITS + THRESHOLD_BITS + BALANCE_BITS) + turns;
        let counters = self.counters.len() as u64 * u64::from(COUNTER_BITS);
        counters + self.locals.len() as u64 * u64::from(LOCAL_LONGEST) + registers
    }

    #[inline]
    pub(crate) fn lookup(&self, address: u64, proposal: Proposal) -> Correction {
        let branch = scattered(address);
        let (local, turns) = (place(branch, self.locals.len()), self.turns.met(address));
        let places = self.places(branch, self.features(proposal, self.locals[local], turns.count));
        let weight = PREDICTION_WEIGHT * (2 * i32::from(proposal.confidence) + 1);
        let start = if proposal.taken { weight } else { -weight };
        let sum = places.iter().fold(start, |sum, &place| sum + 2 * i32::from(self.counters[place as usize]) + 1);
        let taken = if sum.abs() >= CLEAR { sum >= 0 } else { proposal.taken };
        Correction { taken, sum, places, local: local as u32, turns }
    }

    #[inline]
    fn features(&self, proposal: Proposal, local: u32, turns: u64) -> [u64; FEATURES] {
        let predicted = u64::from(proposal.taken);
        let surely = predicted | u64::from(proposal.confidence) << 1 | u64::from(proposal.sort) << 3;
        let [a, b, c, d] = LOCAL_BITS.map(|bits| u64::from(local) & ((1 << bits) - 1));
        [predicted, surely, self.global & ((1 << GLOBAL_BITS) - 1), a, b, c, d, turns]
    }

    #[inline]
    fn places(&self, branch: u64, features: [u64; FEATURES]) -> [u32; FEATURES] {
        let each = self.counters.len() / FEATURES;
        let mut places = [0; FEATURES];
        for (number, feature) in features.into_iter().enumerate() {
            let hash = scattered(branch ^ (feature << 3 | number as u64));
            places[number] = (number * each + place(hash, each)) as u32;
        }
        places
    }

    #[inline]
    pub(crate) fn learn(&mut self, address: u64, correction: &Correction, taken: bool) {
        let right = (correction.sum >= 0) == taken;
        if !right || correction.sum.abs() < self.threshold {
            self.adapt(right);
            for &place in &correction.places {
                let counter = &mut self.counters[place as usize];
                *counter = moved(*counter, taken, COUNTER_BITS);
            }
        }
        self.global = self.global << 1 | u64::from(taken);
        let local = &mut self.locals[correction.local as usize];
        *local = *local << 1 | u32::from(taken);
        self.turns = Turns { taken: taken.then_some(address), ..correction.turns };
    }

    fn adapt(&mut self, right: bool) {
        let before = self.balance;
        self.balance = moved(before, !right, BALANCE_BITS);
        if self.balance == before {
            self.balance = 0;
            let most = (1 << THRESHOLD_BITS) - 1;
            self.threshold = (self.threshold + if right { -1 } else { 1 }).clamp(THRESHOLD_LEAST, most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSURE: Proposal = Proposal { taken: true, confidence: 0, sort: 0 };

    /// How many of the last hundred of a thousand were wrong.
    fn wrong(outcome: impl Fn(u64) -> bool) -> usize {
        let mut corrector = Corrector::new(256, 16);
        let branch = |number| {
            let (correction, taken) = (corrector.lookup(0x1000, UNSURE), outcome(number));
            corrector.learn(0x1000, &correction, taken);
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
    fn turns_are_counted() {
        let mut turns = Turns::default();
        for (address, taken, expected) in
            [(8, true, 0), (8, true, 1), (8, false, 2), (9, true, 2), (4, true, 1), (9, true, 1), (4, true, 2)]
        {
            turns = turns.met(address);
            assert_eq!(turns.count, expected, "at {address}");
            turns.taken = taken.then_some(address);
        }
    }

    #[test]
    fn storage() {
        assert_eq!(Corrector::new(256, 16).storage_bits(), 8 * 256 * 6 + 16 * 20 + 8 + 10 + 6 + 139);
    }
}
