//! A cache of traces: which of them it holds.

use thiserror::Error;

/// Which trace of a full set gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replacement {
    /// The one that was not used for the longest time.
    Lru,
    /// The one that was used least often since it came in. Uses of long ago count less.
    Lfu,
    /// The same, but the uses of its blocks in any trace count as well (Hadjipavlou 2025, section 8.3): a trace whose blocks are hot stays although it shares their
    /// executions with traces that overlap it. Of both, the order of magnitude counts.
    Blocks,
}

impl Replacement {
    pub const ALL: [Self; 3] = [Self::Lru, Self::Lfu, Self::Blocks];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Blocks => "blocks",
        }
    }
}

/// How many traces a cache holds, in sets of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    traces: usize,
    ways: usize,
    pub replacement: Replacement,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a cache of {traces} traces cannot have sets of {ways}: there have to be 1, 2, 4, 8 ... sets, and at most {MOST} traces"
)]
pub struct IllegalShape {
    traces: usize,
    ways: usize,
}

/// Most traces in a cache.
const MOST: usize = 1 << 24;

impl Shape {
    pub fn new(traces: usize, ways: usize, replacement: Replacement) -> Result<Self, IllegalShape> {
        let is_legal = (1..=MOST).contains(&traces) && ways > 0 && traces.is_multiple_of(ways);
        if is_legal && (traces / ways).is_power_of_two() {
            Ok(Self { traces, ways, replacement })
        } else {
            Err(IllegalShape { traces, ways })
        }
    }

    #[must_use]
    pub fn traces(&self) -> usize {
        self.traces
    }

    #[must_use]
    pub fn ways(&self) -> usize {
        self.ways
    }
}

/// No trace.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Line {
    trace: u32,
    uses: u32,
    /// When it was used last.
    last: u64,
    /// The set's floor at that time.
    floor: u64,
}

/// How often each block was executed, with old executions counting less and less.
#[derive(Clone, Debug, Default)]
pub struct BlockUses {
    uses: Vec<u32>,
    traces: u32,
}

impl BlockUses {
    /// Uses are halved after so many traces.
    const HALVED: u32 = 1 << 16;

    /// A trace of these blocks was executed.
    pub fn trace(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let place = block as usize;
            if place >= self.uses.len() {
                self.uses.resize(place + 1, 0);
            }
            self.uses[place] += 1;
        }
        self.traces += 1;
        if self.traces == Self::HALVED {
            self.traces = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// On average over these blocks.
    pub fn mean(&self, blocks: &[u32]) -> u64 {
        let uses = |&block: &u32| self.uses.get(block as usize).map_or(0, |&uses| u64::from(uses));
        blocks.iter().map(uses).sum::<u64>() / blocks.len().max(1) as u64
    }
}

/// Holds traces, by their numbers.
#[derive(Clone, Debug)]
pub struct TraceCache {
    shape: Shape,
    lines: Vec<Line>,
    /// Of each set, the value of the trace that gave way last. What is used starts from there, so that uses of long ago do not count for ever.
    floors: Vec<u64>,
    now: u64,
}

impl TraceCache {
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let empty = Line { trace: NONE, uses: 0, last: 0, floor: 0 };
        Self { shape, lines: vec![empty; shape.traces], floors: vec![0; shape.traces / shape.ways], now: 0 }
    }

    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether a trace that begins at `start` is there; it is afterwards. `blocks` gives the uses of a trace's blocks.
    pub fn look_up(&mut self, trace: u32, start: u64, blocks: impl Fn(u32) -> u64) -> bool {
        self.now += 1;
        let set = (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.floors.len() - 1);
        let lines = &mut self.lines[set * self.shape.ways..][..self.shape.ways];
        let (floor, last) = (&mut self.floors[set], self.now);
        if let Some(line) = lines.iter_mut().find(|line| line.trace == trace) {
            *line = Line { uses: line.uses.saturating_add(1), last, floor: *floor, ..*line };
            return true;
        }
        // The lowest gives way; of equal ones, that which was not used for the longest time.
        let value = |line: &Line| match self.shape.replacement {
            _ if line.trace == NONE => 0,
            Replacement::Lru => line.last,
            Replacement::Lfu => line.floor + u64::from(line.uses),
            Replacement::Blocks => line.floor + 1 + 3 * magnitude(line.uses.into()) + magnitude(blocks(line.trace)),
        };
        if let Some(victim) = lines.iter_mut().min_by_key(|line| (value(line), line.last)) {
            *floor = value(victim);
            *victim = Line { trace, uses: 1, last, floor: *floor };
        }
        false
    }
}

fn magnitude(uses: u64) -> u64 {
    uses.max(1).ilog2().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(traces: usize, ways: usize, replacement: Replacement) -> TraceCache {
        TraceCache::new(Shape::new(traces, ways, replacement).unwrap())
    }

    #[test]
    fn shapes() {
        for (traces, ways) in [(1, 1), (4, 4), (1024, 4), (12, 3), (1 << 24, 1)] {
            assert!(Shape::new(traces, ways, Replacement::Lru).is_ok(), "{traces} {ways}");
        }
        for (traces, ways) in [(0, 1), (4, 0), (4, 8), (12, 4), (10, 4), (1 << 25, 1)] {
            assert!(Shape::new(traces, ways, Replacement::Lru).is_err(), "{traces} {ways}");
        }
    }

    /// Trace 1 is used often, 2 and 3 in turn; then 1 is not used any more.
    #[test]
    fn what_was_used_often_stays_for_a_while() {
        let mut cache = cache(2, 2, Replacement::Lfu);
        let mut is_there = |trace| cache.look_up(trace, 0, |_| 0);
        assert!(!is_there(1) && (0..5).all(|_| is_there(1)));
        assert!(!is_there(2) && !is_there(3) && !is_there(2) && is_there(1), "2 and 3 throw each other out");
        // Those that come later start from the value of the last one that gave way, and pass by the old one.
        assert!((0..20).map(|time| is_there(2 + time % 2)).collect::<Vec<_>>().ends_with(&[true, true]));
        assert!(!is_there(1));
    }

    /// With equal uses, the trace with the hotter blocks stays.
    #[test]
    fn blocks_count() {
        let mut cache = cache(2, 2, Replacement::Blocks);
        let mut is_there = |trace: u32| cache.look_up(trace, 0, |trace| if trace == 1 { 1000 } else { 10 });
        assert!(!is_there(1) && !is_there(2) && !is_there(3));
        assert!(is_there(1) && !is_there(2));
    }

    /// What is new does not throw out what is new as long as there is room.
    #[test]
    fn room_is_used_first() {
        for replacement in Replacement::ALL {
            let mut cache = cache(4, 4, replacement);
            let mut is_there = |trace| cache.look_up(trace, 0, |_| 0);
            assert!((0..4).all(|trace| !is_there(trace)) && (0..4).all(is_there), "{replacement:?}");
        }
    }

    #[test]
    fn uses_of_blocks() {
        let mut uses = BlockUses::default();
        (0..10).for_each(|_| uses.trace(&[0, 2]));
        uses.trace(&[1]);
        assert_eq!([uses.mean(&[0, 1, 2]), uses.mean(&[7]), uses.mean(&[])], [7, 0, 0]);
        (0..BlockUses::HALVED).for_each(|_| uses.trace(&[]));
        assert_eq!(uses.mean(&[0]), 5);
    }

    proptest! {
        /// A trace is there if fewer others were used since its last use than there are ways.
        #[test]
        fn the_least_recently_used_gives_way(traces in proptest::collection::vec(0u32..12, 0..300), ways in 1usize..8) {
            let mut cache = cache(ways, ways, Replacement::Lru);
            for (place, &trace) in traces.iter().enumerate() {
                let since = traces[..place].iter().rev().take_while(|&&other| other != trace);
                let others = since.collect::<std::collections::BTreeSet<_>>().len();
                let expected = others < ways && traces[..place].contains(&trace);
                prop_assert_eq!(cache.look_up(trace, trace.into(), |_| 0), expected);
            }
        }

        /// The others against a model that keeps everything and works out values anew.
        #[test]
        fn the_lowest_value_gives_way(traces in proptest::collection::vec(0u32..12, 0..300), ways in 1usize..6, by_blocks in any::<bool>()) {
            let mut cache = cache(ways, ways, if by_blocks { Replacement::Blocks } else { Replacement::Lfu });
            let blocks = |trace: u32| u64::from(trace * trace * trace);
            // Trace, uses, floor; the one used last is last.
            let (mut held, mut floor): (Vec<(u32, u64, u64)>, u64) = (Vec::new(), 0);
            for &trace in &traces {
                let place = held.iter().position(|&(other, ..)| other == trace);
                prop_assert_eq!(cache.look_up(trace, 7, blocks), place.is_some());
                let uses = place.map_or(0, |place| held.remove(place).1);
                if place.is_none() && held.len() == ways {
                    let magnitude = |uses: u64| (uses.max(1) as f64).log2().floor() as u64;
                    let values: Vec<u64> = held.iter().map(|&(trace, uses, floor)| {
                        if by_blocks { floor + 1 + 3 * magnitude(uses) + magnitude(blocks(trace)) } else { floor + uses }
                    }).collect();
                    floor = *values.iter().min().unwrap();
                    held.remove(values.iter().position(|&value| value == floor).unwrap());
                }
                held.push((trace, uses + 1, floor));
            }
        }
    }
}
