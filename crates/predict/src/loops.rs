//! Branches that go one way a constant number of times and then the other way once, as those of loops do (Gochman et al. 2003;
//! Seznec 2007): histories that are long enough to count a long loop would be too many.

use crate::hash::{place, scattered};

const WAYS: usize = 4;
const TAG_BITS: u32 = 14;
const TRIP_BITS: u32 = 10;
const TRIPS_MAX: u16 = (1 << TRIP_BITS) - 1;
/// So many times in succession the number was the same.
const SURE: u8 = 3;
const CONFIDENCE_BITS: u32 = 2;
const AGE_BITS: u32 = 5;
/// A new entry is kept although so many others would like to have its place.
const AGE_MAX: u8 = (1 << AGE_BITS) - 1;
/// Not being a loop after all makes it so much older.
const DISAPPOINTMENT: u8 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Loops {
    entries: Vec<Loop>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Loop {
    /// 0 of nothing.
    tag: u16,
    /// How many times it goes round, the last one included; 0 if that is not known.
    trips: u16,
    /// How many times it went round since it was left.
    count: u16,
    confidence: u8,
    /// Goes down; at 0 others may have the place.
    age: u8,
    /// The way that goes round.
    round: bool,
}

/// Where a branch is kept or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    first_way: usize,
    tag: u16,
    /// Where it is, if it is.
    entry: Option<usize>,
}

impl Loop {
    fn next(&self) -> Option<bool> {
        let is_last = self.count + 1 == self.trips;
        (self.confidence >= SURE).then_some(self.round != is_last)
    }

    fn branch(&mut self, taken: bool) {
        if taken == self.round { self.went_round() } else { self.left() }
    }

    fn went_round(&mut self) {
        self.count += 1;
        if self.count == TRIPS_MAX {
            *self = Self::default();
        } else if self.count == self.trips {
            (self.trips, self.confidence) = (0, 0);
        }
    }

    fn left(&mut self) {
        let trips = self.count + 1;
        if trips == 1 && self.trips == 0 {
            // It was the other way that goes round.
            (self.round, self.confidence) = (!self.round, 0);
            self.age = self.age.saturating_sub(1);
        } else if trips == self.trips {
            self.confidence = (self.confidence + 1).min(SURE);
        } else {
            (self.trips, self.confidence) = (trips, 0);
            self.age = self.age.saturating_sub(DISAPPOINTMENT);
        }
        self.count = 0;
    }
}

impl Loops {
    /// A multiple of the ways.
    pub(crate) fn new(entries: usize) -> Self {
        Self { entries: vec![Loop::default(); entries] }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        let direction = 1;
        self.entries.len() as u64 * u64::from(TAG_BITS + 2 * TRIP_BITS + CONFIDENCE_BITS + AGE_BITS + direction)
    }

    #[inline]
    pub(crate) fn key(&self, address: u64) -> Key {
        let hash = scattered(address);
        let tag = ((hash >> 24 & ((1 << TAG_BITS) - 1)) as u16).max(1);
        let first_way = place(hash, self.entries.len() / WAYS) * WAYS;
        let ways = &self.entries[first_way..first_way + WAYS];
        let way = ways.iter().position(|way| way.tag == tag);
        Key { first_way, tag, entry: way.map(|way| first_way + way) }
    }

    /// Where the branch goes, if it is known to be that of a loop.
    #[inline]
    pub(crate) fn prediction(&self, key: &Key) -> Option<bool> {
        self.entries[key.entry?].next()
    }

    /// The branch was taken or not, as others knew or did not. Only what others do not know is worth a new entry.
    #[inline]
    pub(crate) fn learn(&mut self, key: &Key, taken: bool, others_knew: bool) {
        match key.entry {
            Some(entry) => {
                let entry = &mut self.entries[entry];
                if !others_knew && entry.next() == Some(taken) {
                    entry.age = (entry.age + 1).min(AGE_MAX);
                }
                entry.branch(taken);
            }
            None if others_knew => {}
            None => self.allocate(key, !taken),
        }
    }

    fn allocate(&mut self, key: &Key, round: bool) {
        let ways = &mut self.entries[key.first_way..key.first_way + WAYS];
        match ways.iter_mut().find(|way| way.age == 0) {
            Some(way) => *way = Loop { tag: key.tag, age: AGE_MAX, round, ..Loop::default() },
            None => ways.iter_mut().for_each(|way| way.age -= 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes round so many times, the last one included. Says what was predicted each time.
    fn run(loops: &mut Loops, address: u64, trips: usize) -> Vec<Option<bool>> {
        let branch = |trip| {
            let key = loops.key(address);
            let predicted = loops.prediction(&key);
            loops.learn(&key, trip < trips, trip < trips);
            predicted
        };
        (1..=trips).map(branch).collect()
    }

    #[test]
    fn a_constant_number_is_known_after_some_rounds() {
        let mut loops = Loops::new(8);
        (0..5).for_each(|_| assert_eq!(run(&mut loops, 0x1000, 300), [None; 300]));
        let known = run(&mut loops, 0x1000, 300);
        assert!(known[..299].iter().all(|&taken| taken == Some(true)));
        assert_eq!(known[299], Some(false));
        // It ends sooner: one has to begin again.
        assert!(run(&mut loops, 0x1000, 200).iter().all(|&taken| taken == Some(true)));
        assert_eq!(run(&mut loops, 0x1000, 200), [None; 200]);
    }

    #[test]
    fn a_loop_that_is_too_long_is_given_up() {
        let mut loops = Loops::new(8);
        let trips = usize::from(TRIPS_MAX) + 1;
        (0..9).for_each(|_| assert!(run(&mut loops, 0x1000, trips).iter().all(Option::is_none)));
    }

    #[test]
    fn an_entry_that_is_no_loop_gives_its_place() {
        let mut loops = Loops::new(WAYS);
        for way in 0..WAYS as u64 {
            (1..40).for_each(|trips| drop(run(&mut loops, way, trips)));
        }
        (0..9).for_each(|_| drop(run(&mut loops, 0x1000, 20)));
        assert_eq!(loops.prediction(&loops.key(0x1000)), Some(true));
    }

    #[test]
    fn storage() {
        assert_eq!(Loops::new(16).storage_bits(), 16 * 42);
    }
}
