//! Trace predictor: predicts the next trace from the path of previous traces (Jacobson, Rotenberg
//! and Smith 1997).
//!
//! A large table is indexed by a hash of the last traces, with more bits of recent ones. A small
//! table is indexed by the last trace alone, for paths that are new. While the small table is
//! always right, the large one is not updated. After a return, the path before the call counts, so
//! a stack keeps it.

/// Index bits of the two tables.
const PATH_INDEX_BITS: u32 = 16;
const LAST_INDEX_BITS: u32 = 14;
/// Entries of the stack of paths.
const STACK_DEPTH: usize = 64;
/// Confidence from which on the small table decides alone.
const SATURATED: u8 = 15;
/// Maximum confidence of the large table, and the penalty of a wrong prediction.
const CONFIDENCE_MAX: u8 = 3;
const PENALTY: u8 = 2;

/// No trace.
const NONE: u32 = u32::MAX;

/// Maximum length of a path.
pub const LONGEST_PATH: usize = 15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u32,
    tag: u16,
    confidence: u8,
}

const EMPTY: Entry = Entry { next: NONE, tag: 0, confidence: 0 };

/// The last traces of a thread, newest first.
type Path = [u32; LONGEST_PATH];

/// History of a thread.
#[derive(Clone, Debug)]
pub struct TraceHistory {
    path: Path,
    /// Paths before calls.
    stack: Vec<Path>,
}

impl Default for TraceHistory {
    fn default() -> Self {
        Self { path: [NONE; LONGEST_PATH], stack: Vec::new() }
    }
}

impl TraceHistory {
    /// Adds a trace; `calls` is its number of calls minus its number of returns.
    fn add(&mut self, trace: u32, calls: i32) {
        self.path.rotate_right(1);
        self.path[0] = trace;
        for _ in 0..calls {
            if self.stack.len() == STACK_DEPTH {
                self.stack.remove(0);
            }
            self.stack.push(self.path);
        }
        for _ in calls..0 {
            if let Some(path) = self.stack.pop() {
                // The last trace identifies the callee.
                self.path[1..].copy_from_slice(&path[..LONGEST_PATH - 1]);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct TracePredictor {
    length: usize,
    by_path: Vec<Entry>,
    by_last: Vec<Entry>,
}

impl TracePredictor {
    /// `length` is the length of paths, at most [`LONGEST_PATH`].
    #[must_use]
    pub fn new(length: usize) -> Self {
        let length = length.clamp(1, LONGEST_PATH);
        Self { length, by_path: vec![EMPTY; 1 << PATH_INDEX_BITS], by_last: vec![EMPTY; 1 << LAST_INDEX_BITS] }
    }

    /// Returns whether the next trace was predicted; then updates tables and history.
    pub fn predict_and_update(&mut self, history: &mut TraceHistory, trace: u32, calls: i32) -> bool {
        let path = &history.path[..self.length];
        let (position, tag) = (index(path), hash(path[0]) as u16);
        let long = &mut self.by_path[position];
        let short = &mut self.by_last[(hash(path[0]) >> 16) as usize & ((1 << LAST_INDEX_BITS) - 1)];
        let is_saturated = short.confidence == SATURATED;
        let prediction = if is_saturated || long.tag != tag || long.next == NONE { short.next } else { long.next };
        if !(is_saturated && short.next == trace) {
            update_entry(long, trace, tag);
        }
        if short.next == trace {
            short.confidence = (short.confidence + 1).min(SATURATED);
        } else if short.confidence == 0 {
            *short = Entry { next: trace, ..EMPTY };
        } else {
            // The entry loses its saturation.
            short.confidence /= 2;
        }
        history.add(trace, calls);
        prediction == trace
    }
}

fn update_entry(entry: &mut Entry, trace: u32, tag: u16) {
    if entry.tag == tag && entry.next == trace {
        entry.confidence = (entry.confidence + 1).min(CONFIDENCE_MAX);
    } else if entry.confidence < PENALTY {
        *entry = Entry { next: trace, tag, confidence: 0 };
    } else {
        entry.confidence -= PENALTY;
    }
}

fn hash(trace: u32) -> u64 {
    (u64::from(trace) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

/// Returns an index of twelve bits of the last trace, nine of the previous one and six of each
/// older one, folded.
fn index(path: &[u32]) -> usize {
    let (mut bits, mut at) = (0_u64, 0);
    for (age, &trace) in path.iter().enumerate() {
        let width = [12, 9].get(age).copied().unwrap_or(6);
        bits ^= (hash(trace) & ((1 << width) - 1)).rotate_left(at);
        at = (at + width) % 64;
    }
    (bits ^ bits >> PATH_INDEX_BITS ^ bits >> (2 * PATH_INDEX_BITS) ^ bits >> (3 * PATH_INDEX_BITS)) as usize
        & ((1 << PATH_INDEX_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(length: usize, traces: impl Iterator<Item = (u32, i32)>) -> usize {
        let (mut predictor, mut history) = (TracePredictor::new(length), TraceHistory::default());
        traces.filter(|&(trace, calls)| !predictor.predict_and_update(&mut history, trace, calls)).count()
    }

    #[test]
    fn a_repeated_sequence_is_predicted() {
        let cycle = |length: u32| (0..length * 1000).map(move |time| (time % length, 0));
        assert_eq!(wrong(1, cycle(1)), 1 + 1);
        assert!(wrong(1, cycle(100)) < 250);
        assert!(wrong(7, cycle(100)) < 250);
    }

    /// 1 is followed by 2 or by 3 in turn; the last trace alone does not decide.
    #[test]
    fn a_path_predicts_better_than_the_last_trace() {
        let turns = || (0..10_000).map(|time| ([1, 2, 1, 3][time % 4], 0));
        assert!(wrong(1, turns()) > 2000);
        assert!(wrong(3, turns()) < 50);
    }

    /// The callee is long and never the same.
    #[test]
    fn after_a_return_the_path_before_the_call_counts() {
        let mut traces = Vec::new();
        for time in 0..2000_u32 {
            traces.push((10 + time % 2, 1));
            traces.extend((0..6).map(|inner| (1000 + 6 * time + inner, 0)));
            traces.extend([(20, -1), (30 + time % 2, 0)]);
        }
        let mispredicted_after = |length| {
            let (mut predictor, mut history) = (TracePredictor::new(length), TraceHistory::default());
            let wrong = |&&(trace, calls): &&(u32, i32)| {
                !predictor.predict_and_update(&mut history, trace, calls) && (30..32).contains(&trace)
            };
            traces.iter().filter(wrong).count()
        };
        assert!(mispredicted_after(3) < 50, "{}", mispredicted_after(3));
    }
}
