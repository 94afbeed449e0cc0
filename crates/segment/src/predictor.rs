//! Predicts the next trace from the path of traces that led here (Jacobson, Rotenberg and Smith 1997).
//!
//! A large table is looked up by a hash of the last traces, recent ones with more bits; a small one by the last trace alone, for paths that were not met yet. Where the
//! small one is always right, the large one is not bothered. Behind a return, the path before the call is what counts, so it is kept on a stack.

/// Bits of a table's index.
const PATHS: u32 = 16;
const LASTS: u32 = 14;
/// The deepest stack of paths.
const DEEPEST: usize = 64;
/// When an entry of the small table is always right.
const SURE: u8 = 15;
/// When an entry of the large table is as sure as it gets, and what a wrong one loses.
const FIRM: u8 = 3;
const LOSS: u8 = 2;

/// No trace.
const NONE: u32 = u32::MAX;

/// The most traces that a path can have.
pub const LONGEST_PATH: usize = 15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u32,
    tag: u16,
    sure: u8,
}

const EMPTY: Entry = Entry { next: NONE, tag: 0, sure: 0 };

/// The last traces of a thread, the newest first.
type Path = [u32; LONGEST_PATH];

/// Where a thread is.
#[derive(Clone, Debug)]
pub struct History {
    path: Path,
    /// Paths before calls.
    stack: Vec<Path>,
}

impl Default for History {
    fn default() -> Self {
        Self { path: [NONE; LONGEST_PATH], stack: Vec::new() }
    }
}

impl History {
    /// A trace was executed that calls so many times more than it returns.
    fn add(&mut self, trace: u32, calls: i32) {
        self.path.rotate_right(1);
        self.path[0] = trace;
        for _ in 0..calls {
            if self.stack.len() == DEEPEST {
                self.stack.remove(0);
            }
            self.stack.push(self.path);
        }
        for _ in calls..0 {
            if let Some(path) = self.stack.pop() {
                // The last trace says what was called.
                self.path[1..].copy_from_slice(&path[..LONGEST_PATH - 1]);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct Predictor {
    length: usize,
    paths: Vec<Entry>,
    lasts: Vec<Entry>,
}

impl Predictor {
    /// With paths of so many traces, of at most [`LONGEST_PATH`].
    #[must_use]
    pub fn new(length: usize) -> Self {
        let length = length.clamp(1, LONGEST_PATH);
        Self { length, paths: vec![EMPTY; 1 << PATHS], lasts: vec![EMPTY; 1 << LASTS] }
    }

    /// Whether the next trace would have been known; learns, and goes on.
    pub fn next(&mut self, history: &mut History, trace: u32, calls: i32) -> bool {
        let path = &history.path[..self.length];
        let (place, tag) = (index(path), mixed(path[0]) as u16);
        let long = &mut self.paths[place];
        let short = &mut self.lasts[(mixed(path[0]) >> 16) as usize & ((1 << LASTS) - 1)];
        let is_sure = short.sure == SURE;
        let guess = if is_sure || long.tag != tag || long.next == NONE { short.next } else { long.next };
        if !(is_sure && short.next == trace) {
            teach(long, trace, tag);
        }
        if short.next == trace {
            short.sure = (short.sure + 1).min(SURE);
        } else if short.sure == 0 {
            *short = Entry { next: trace, ..EMPTY };
        } else {
            // Who was sure is no longer.
            short.sure /= 2;
        }
        history.add(trace, calls);
        guess == trace
    }
}

fn teach(entry: &mut Entry, trace: u32, tag: u16) {
    if entry.tag == tag && entry.next == trace {
        entry.sure = (entry.sure + 1).min(FIRM);
    } else if entry.sure < LOSS {
        *entry = Entry { next: trace, tag, sure: 0 };
    } else {
        entry.sure -= LOSS;
    }
}

fn mixed(trace: u32) -> u64 {
    (u64::from(trace) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

/// Twelve bits of the last trace, nine of the one before it, six of each older one, folded.
fn index(path: &[u32]) -> usize {
    let (mut bits, mut at) = (0_u64, 0);
    for (age, &trace) in path.iter().enumerate() {
        let width = [12, 9].get(age).copied().unwrap_or(6);
        bits ^= (mixed(trace) & ((1 << width) - 1)).rotate_left(at);
        at = (at + width) % 64;
    }
    (bits ^ bits >> PATHS ^ bits >> (2 * PATHS) ^ bits >> (3 * PATHS)) as usize & ((1 << PATHS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(length: usize, traces: impl Iterator<Item = (u32, i32)>) -> usize {
        let (mut predictor, mut history) = (Predictor::new(length), History::default());
        traces.filter(|&(trace, calls)| !predictor.next(&mut history, trace, calls)).count()
    }

    #[test]
    fn what_repeats_is_known() {
        let cycle = |length: u32| (0..length * 1000).map(move |time| (time % length, 0));
        assert_eq!(wrong(1, cycle(1)), 1 + 1);
        assert!(wrong(1, cycle(100)) < 250);
        assert!(wrong(7, cycle(100)) < 250);
    }

    /// 1 is followed by 2 or by 3, in turn: the last trace alone does not tell.
    #[test]
    fn paths_tell_more_than_the_last_trace() {
        let turns = || (0..10_000).map(|time| ([1, 2, 1, 3][time % 4], 0));
        assert!(wrong(1, turns()) > 2000);
        assert!(wrong(3, turns()) < 50);
    }

    /// What is called in between is long, and never the same.
    #[test]
    fn behind_a_return_the_path_before_the_call_counts() {
        let mut traces = Vec::new();
        for time in 0..2000_u32 {
            traces.push((10 + time % 2, 1));
            traces.extend((0..6).map(|inner| (1000 + 6 * time + inner, 0)));
            traces.extend([(20, -1), (30 + time % 2, 0)]);
        }
        let behind = |length| {
            let (mut predictor, mut history) = (Predictor::new(length), History::default());
            let wrong = |&&(trace, calls): &&(u32, i32)| {
                !predictor.next(&mut history, trace, calls) && (30..32).contains(&trace)
            };
            traces.iter().filter(wrong).count()
        };
        assert!(behind(3) < 50, "{}", behind(3));
    }
}
