//! Trace cache: which traces it holds, and which trace is the victim of a miss.

use thiserror::Error;
use trace::AppPc;

/// Replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceReplacement {
    /// Least recently used.
    Lru,
    /// Least frequently used since it came in. Old uses count less.
    Lfu,
    /// Like `Lfu`, but uses of its blocks in any trace count as well (Hadjipavlou 2025, section
    /// 8.3): a trace with hot blocks stays, even though it shares their executions with overlapping
    /// traces. Both counts enter by order of magnitude.
    Blocks,
}

impl TraceReplacement {
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

/// Capacity of a cache in traces, and its associativity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceCacheShape {
    traces: usize,
    ways: usize,
    pub replacement: TraceReplacement,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "a cache of {traces} traces cannot have sets of {ways}: there have to be 1, 2, 4, 8 ... sets, \
     and at most {TRACES_MAX} traces"
)]
pub struct IllegalTraceCacheShape {
    traces: usize,
    ways: usize,
}

/// Maximum number of traces in a cache.
const TRACES_MAX: usize = 1 << 24;

impl TraceCacheShape {
    pub fn new(traces: usize, ways: usize, replacement: TraceReplacement) -> Result<Self, IllegalTraceCacheShape> {
        let is_legal = (1..=TRACES_MAX).contains(&traces) && ways > 0 && traces.is_multiple_of(ways);
        if is_legal && (traces / ways).is_power_of_two() {
            Ok(Self { traces, ways, replacement })
        } else {
            Err(IllegalTraceCacheShape { traces, ways })
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
    /// Time of its last use.
    last: u64,
    /// The floor of its set at that time.
    floor: u64,
}

/// Executions of each block; old executions count less.
#[derive(Clone, Debug, Default)]
pub struct BlockUses {
    uses: Vec<u32>,
    traces: u32,
}

impl BlockUses {
    /// Traces after which all uses are halved.
    const HALVING_PERIOD: u32 = 1 << 16;

    /// Counts an execution of these blocks.
    pub fn add_trace(&mut self, blocks: &[u32]) {
        for &block in blocks {
            let index = block as usize;
            if index >= self.uses.len() {
                self.uses.resize(index + 1, 0);
            }
            self.uses[index] += 1;
        }
        self.traces += 1;
        if self.traces == Self::HALVING_PERIOD {
            self.traces = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// Returns the average uses of these blocks.
    pub fn mean(&self, blocks: &[u32]) -> u64 {
        let uses = |&block: &u32| self.uses.get(block as usize).map_or(0, |&uses| u64::from(uses));
        blocks.iter().map(uses).sum::<u64>() / blocks.len().max(1) as u64
    }
}

/// A cache of trace numbers.
#[derive(Clone, Debug)]
pub struct TraceCache {
    shape: TraceCacheShape,
    lines: Vec<Line>,
    /// For each set, the value of the last victim. New uses start from it, so that old uses do not
    /// count forever.
    floors: Vec<u64>,
    now: u64,
}

impl TraceCache {
    #[must_use]
    pub fn new(shape: TraceCacheShape) -> Self {
        let empty = Line { trace: NONE, uses: 0, last: 0, floor: 0 };
        Self { shape, lines: vec![empty; shape.traces], floors: vec![0; shape.traces / shape.ways], now: 0 }
    }

    #[must_use]
    pub fn shape(&self) -> &TraceCacheShape {
        &self.shape
    }

    /// Accesses a trace that begins at `start`, and fills it on a miss. Returns whether it was a
    /// hit. `blocks` returns the uses of a trace's blocks.
    pub fn access(&mut self, trace: u32, start: AppPc, blocks: impl Fn(u32) -> u64) -> bool {
        self.now += 1;
        let set = (start.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.floors.len() - 1);
        let lines = &mut self.lines[set * self.shape.ways..][..self.shape.ways];
        let (floor, last) = (&mut self.floors[set], self.now);
        if let Some(line) = lines.iter_mut().find(|line| line.trace == trace) {
            *line = Line { uses: line.uses.saturating_add(1), last, floor: *floor, ..*line };
            return true;
        }
        // The victim has the lowest value; among equals, it is the least recently used one.
        let value = |line: &Line| match self.shape.replacement {
            _ if line.trace == NONE => 0,
            TraceReplacement::Lru => line.last,
            TraceReplacement::Lfu => line.floor + u64::from(line.uses),
            TraceReplacement::Blocks => {
                line.floor + 1 + 3 * magnitude(line.uses.into()) + magnitude(blocks(line.trace))
            }
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

    fn cache(traces: usize, ways: usize, replacement: TraceReplacement) -> TraceCache {
        TraceCache::new(TraceCacheShape::new(traces, ways, replacement).unwrap())
    }

    #[test]
    fn shapes() {
        for (traces, ways) in [(1, 1), (4, 4), (1024, 4), (12, 3), (1 << 24, 1)] {
            assert!(TraceCacheShape::new(traces, ways, TraceReplacement::Lru).is_ok(), "{traces} {ways}");
        }
        for (traces, ways) in [(0, 1), (4, 0), (4, 8), (12, 4), (10, 4), (1 << 25, 1)] {
            assert!(TraceCacheShape::new(traces, ways, TraceReplacement::Lru).is_err(), "{traces} {ways}");
        }
    }

    /// Trace 1 is used often, 2 and 3 in turn; then 1 is no longer used.
    #[test]
    fn a_frequent_trace_stays_for_a_while() {
        let mut cache = cache(2, 2, TraceReplacement::Lfu);
        let mut is_there = |trace| cache.access(trace, AppPc::NONE, |_| 0);
        assert!(!is_there(1) && (0..5).all(|_| is_there(1)));
        assert!(!is_there(2) && !is_there(3) && !is_there(2) && is_there(1), "2 and 3 throw each other out");
        // New traces start from the value of the last victim, and overtake the old one.
        assert!((0..20).map(|time| is_there(2 + time % 2)).collect::<Vec<_>>().ends_with(&[true, true]));
        assert!(!is_there(1));
    }

    /// With equal uses, the trace with the hotter blocks stays.
    #[test]
    fn blocks_count() {
        let mut cache = cache(2, 2, TraceReplacement::Blocks);
        let mut is_there = |trace: u32| cache.access(trace, AppPc::NONE, |trace| if trace == 1 { 1000 } else { 10 });
        assert!(!is_there(1) && !is_there(2) && !is_there(3));
        assert!(is_there(1) && !is_there(2));
    }

    /// New traces fill empty ways first.
    #[test]
    fn room_is_used_first() {
        for replacement in TraceReplacement::ALL {
            let mut cache = cache(4, 4, replacement);
            let mut is_there = |trace| cache.access(trace, AppPc::NONE, |_| 0);
            assert!((0..4).all(|trace| !is_there(trace)) && (0..4).all(is_there), "{replacement:?}");
        }
    }

    #[test]
    fn uses_of_blocks() {
        let mut uses = BlockUses::default();
        (0..10).for_each(|_| uses.add_trace(&[0, 2]));
        uses.add_trace(&[1]);
        assert_eq!([uses.mean(&[0, 1, 2]), uses.mean(&[7]), uses.mean(&[])], [7, 0, 0]);
        (0..BlockUses::HALVING_PERIOD).for_each(|_| uses.add_trace(&[]));
        assert_eq!(uses.mean(&[0]), 5);
    }

    proptest! {
        /// A trace hits if fewer others than ways were used since its last use.
        #[test]
        fn the_least_recently_used_is_the_victim(
            traces in proptest::collection::vec(0u32..12, 0..300), ways in 1usize..8,
        ) {
            let mut cache = cache(ways, ways, TraceReplacement::Lru);
            for (index, &trace) in traces.iter().enumerate() {
                let since = traces[..index].iter().rev().take_while(|&&other| other != trace);
                let others = since.collect::<std::collections::BTreeSet<_>>().len();
                let expected = others < ways && traces[..index].contains(&trace);
                prop_assert_eq!(cache.access(trace, AppPc::new(trace.into()), |_| 0), expected);
            }
        }

        /// The other policies agree with a model that recomputes all values.
        #[test]
        fn the_lowest_value_is_the_victim(
            traces in proptest::collection::vec(0u32..12, 0..300), ways in 1usize..6, by_blocks in any::<bool>(),
        ) {
            let mut cache = cache(ways, ways, if by_blocks { TraceReplacement::Blocks } else { TraceReplacement::Lfu });
            let blocks = |trace: u32| u64::from(trace * trace * trace);
            // Trace, uses, floor; most recently used last.
            let (mut held, mut floor): (Vec<(u32, u64, u64)>, u64) = (Vec::new(), 0);
            for &trace in &traces {
                let index = held.iter().position(|&(other, ..)| other == trace);
                prop_assert_eq!(cache.access(trace, AppPc::new(7), blocks), index.is_some());
                let uses = index.map_or(0, |index| held.remove(index).1);
                if index.is_none() && held.len() == ways {
                    let magnitude = |uses: u64| (uses.max(1) as f64).log2().floor() as u64;
                    let values: Vec<u64> = held.iter().map(|&(trace, uses, floor)| {
                        match by_blocks {
                            true => floor + 1 + 3 * magnitude(uses) + magnitude(blocks(trace)),
                            false => floor + uses,
                        }
                    }).collect();
                    floor = *values.iter().min().unwrap();
                    held.remove(values.iter().position(|&value| value == floor).unwrap());
                }
                held.push((trace, uses + 1, floor));
            }
        }
    }
}
