//! Loop predictor: branches that go one way a constant number of times and then the other way once
//! (Gochman et al. 2003; Seznec 2007). Histories long enough to count a long loop would be too
//! many.

use crate::hash::{reduce, scatter};

const WAYS: usize = 4;
const TAG_BITS: u32 = 14;
const TRIP_BITS: u32 = 10;
const TRIPS_MAX: u16 = (1 << TRIP_BITS) - 1;
/// Confidence from which on it predicts: the number of times in succession that the trip count was
/// the same.
const CONFIDENT: u8 = 3;
const CONFIDENCE_BITS: u32 = 2;
const AGE_BITS: u32 = 5;
/// Initial age of an entry: the number of requests for its way that it survives.
const AGE_MAX: u8 = (1 << AGE_BITS) - 1;
/// Age that an entry loses when its trip count changes.
const AGE_PENALTY: u8 = 4;

#[derive(Clone, Debug)]
pub(crate) struct LoopPredictor {
    entries: Vec<LoopEntry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LoopEntry {
    /// 0 in an empty entry.
    tag: u16,
    /// Trip count, including the last iteration; 0 if unknown.
    trips: u16,
    /// Iterations since the last exit.
    count: u16,
    confidence: u8,
    /// Counts down; at 0 the entry can be replaced.
    age: u8,
    /// Direction that stays in the loop.
    body: bool,
}

/// Set, tag and entry of a branch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    first_way: usize,
    tag: u16,
    /// Index of its entry, if it has one.
    entry: Option<usize>,
}

impl LoopEntry {
    fn predict(&self) -> Option<bool> {
        let is_last = self.count + 1 == self.trips;
        (self.confidence >= CONFIDENT).then_some(self.body != is_last)
    }

    fn update(&mut self, taken: bool) {
        if taken == self.body { self.iterate() } else { self.exit() }
    }

    fn iterate(&mut self) {
        self.count += 1;
        if self.count == TRIPS_MAX {
            *self = Self::default();
        } else if self.count == self.trips {
            (self.trips, self.confidence) = (0, 0);
        }
    }

    fn exit(&mut self) {
        let trips = self.count + 1;
        if trips == 1 && self.trips == 0 {
            // The other direction stays in the loop.
            (self.body, self.confidence) = (!self.body, 0);
            self.age = self.age.saturating_sub(1);
        } else if trips == self.trips {
            self.confidence = (self.confidence + 1).min(CONFIDENT);
        } else {
            (self.trips, self.confidence) = (trips, 0);
            self.age = self.age.saturating_sub(AGE_PENALTY);
        }
        self.count = 0;
    }
}

impl LoopPredictor {
    /// `entries` is a multiple of the ways.
    pub(crate) fn new(entries: usize) -> Self {
        Self { entries: vec![LoopEntry::default(); entries] }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        let direction = 1;
        self.entries.len() as u64 * u64::from(TAG_BITS + 2 * TRIP_BITS + CONFIDENCE_BITS + AGE_BITS + direction)
    }

    #[inline]
    pub(crate) fn key(&self, address: u64) -> Key {
        let hash = scatter(address);
        let tag = ((hash >> 24 & ((1 << TAG_BITS) - 1)) as u16).max(1);
        let first_way = reduce(hash, self.entries.len() / WAYS) * WAYS;
        let ways = &self.entries[first_way..first_way + WAYS];
        let way = ways.iter().position(|way| way.tag == tag);
        Key { first_way, tag, entry: way.map(|way| first_way + way) }
    }

    /// Returns the prediction, if the branch is known to be that of a loop.
    #[inline]
    pub(crate) fn predict(&self, key: &Key) -> Option<bool> {
        self.entries[key.entry?].predict()
    }

    /// Updates the predictor with an executed branch. Only a branch that the others mispredicted
    /// gets a new entry.
    #[inline]
    pub(crate) fn update(&mut self, key: &Key, taken: bool, was_predicted: bool) {
        match key.entry {
            Some(entry) => {
                let entry = &mut self.entries[entry];
                if !was_predicted && entry.predict() == Some(taken) {
                    entry.age = (entry.age + 1).min(AGE_MAX);
                }
                entry.update(taken);
            }
            None if was_predicted => {}
            None => self.allocate(key, !taken),
        }
    }

    fn allocate(&mut self, key: &Key, body: bool) {
        let ways = &mut self.entries[key.first_way..key.first_way + WAYS];
        match ways.iter_mut().find(|way| way.age == 0) {
            Some(way) => *way = LoopEntry { tag: key.tag, age: AGE_MAX, body, ..LoopEntry::default() },
            None => ways.iter_mut().for_each(|way| way.age -= 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a loop with this trip count. Returns the prediction of each iteration.
    fn run(loops: &mut LoopPredictor, address: u64, trips: usize) -> Vec<Option<bool>> {
        let branch = |trip| {
            let key = loops.key(address);
            let predicted = loops.predict(&key);
            loops.update(&key, trip < trips, trip < trips);
            predicted
        };
        (1..=trips).map(branch).collect()
    }

    #[test]
    fn a_constant_number_is_known_after_some_rounds() {
        let mut loops = LoopPredictor::new(8);
        (0..5).for_each(|_| assert_eq!(run(&mut loops, 0x1000, 300), [None; 300]));
        let known = run(&mut loops, 0x1000, 300);
        assert!(known[..299].iter().all(|&taken| taken == Some(true)));
        assert_eq!(known[299], Some(false));
        // It exits sooner: learning begins again.
        assert!(run(&mut loops, 0x1000, 200).iter().all(|&taken| taken == Some(true)));
        assert_eq!(run(&mut loops, 0x1000, 200), [None; 200]);
    }

    #[test]
    fn a_loop_that_is_too_long_is_given_up() {
        let mut loops = LoopPredictor::new(8);
        let trips = usize::from(TRIPS_MAX) + 1;
        (0..9).for_each(|_| assert!(run(&mut loops, 0x1000, trips).iter().all(Option::is_none)));
    }

    #[test]
    fn an_entry_that_is_no_loop_gives_its_place() {
        let mut loops = LoopPredictor::new(WAYS);
        for way in 0..WAYS as u64 {
            (1..40).for_each(|trips| drop(run(&mut loops, way, trips)));
        }
        (0..9).for_each(|_| drop(run(&mut loops, 0x1000, 20)));
        assert_eq!(loops.predict(&loops.key(0x1000)), Some(true));
    }

    #[test]
    fn storage() {
        assert_eq!(LoopPredictor::new(16).storage_bits(), 16 * 42);
    }
}
