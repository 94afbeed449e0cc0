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
    /// The lowest of a set gives way.
    value: u64,
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
    /// Of each set, the value of the trace that gave way last. What comes in starts from there, so that uses of long ago do not count for ever.
    floors: Vec<u64>,
    now: u64,
}

impl TraceCache {
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let empty = Line { trace: NONE, uses: 0, value: 0 };
        Self { shape, lines: vec![empty; shape.traces], floors: vec![0; shape.traces / shape.ways], now: 0 }
    }

    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether a trace that begins at `start` is there; it is afterwards. `blocks` gives the uses of its blocks.
    pub fn look_up(&mut self, trace: u32, start: u64, blocks: impl FnOnce() -> u64) -> bool {
        self.now += 1;
        let sets = self.floors.len();
        let set = (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (sets - 1);
        let lines = &mut self.lines[set * self.shape.ways..][..self.shape.ways];
        let floor = &mut self.floors[set];
        let value = |uses: u32, floor: u64| match self.shape.replacement {
            Replacement::Lru => self.now,
            Replacement::Lfu => floor + u64::from(uses),
            Replacement::Blocks => floor + 3 * u64::from(uses.ilog2()) + u64::from(blocks().max(1).ilog2()),
        };
        if let Some(line) = lines.iter_mut().find(|line| line.trace == trace) {
            line.uses = line.uses.saturating_add(1);
            line.value = value(line.uses, *floor);
            return true;
        }
        if let Some(victim) = lines.iter_mut().min_by_key(|line| line.value) {
            *floor = victim.value;
            *victim = Line { trace, uses: 1, value: value(1, *floor) };
        }
        false
    }
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
        let mut is_there = |trace| cache.look_up(trace, 0, || 0);
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
        let mut is_there = |trace: u32, blocks: u64| cache.look_up(trace, 0, || blocks);
        assert!(!is_there(1, 1000) && !is_there(2, 10) && !is_there(3, 10));
        assert!(is_there(1, 1000) && !is_there(2, 10));
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
                prop_assert_eq!(cache.look_up(trace, trace.into(), || 0), expected);
            }
        }
    }
}
