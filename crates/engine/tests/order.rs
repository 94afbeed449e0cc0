//! A model of how threads are ordered (see "Order between threads" in docs/engine.md), executed in
//! every interleaving of a few threads that synchronise on one or two words.
//!
//! Each thread executes a short program of locked instructions and plain stores, in the steps of
//! the translated code. Time is the number of steps; only its order counts, so states that differ
//! in nothing else are visited once. After each locked instruction the thread's last timestamp has
//! to be later than the one to which anything belongs that another thread has done to the word
//! before. Plain stores count only if the instruction has read something else than what the thread
//! itself had left there: a value that no thread can distinguish orders nothing. The test has to
//! reject every protocol that lacks one of its parts.

use std::collections::{BTreeSet, HashSet};

/// What a thread does to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    /// A locked instruction that returns the old value and leaves the word as `change` says.
    Locked { word: usize, change: Change },
    /// A locked instruction whose old value is unknown; it leaves the word as it is.
    Opaque { word: usize },
    /// A plain store.
    Store { word: usize, value: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    /// `lock xadd`.
    Add,
    /// `xchg` with one: what a spin lock is taken with.
    SetToOne,
    /// `lock cmpxchg` from 0 to 1.
    Take,
}

/// Which parts of the protocol are there.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Protocol {
    /// The entry is looked at again after the instruction.
    looks_again: bool,
    /// An entry is the thread's only after its timestamp.
    is_pending_first: bool,
    compares_values: bool,
    /// Instructions whose old value is unknown take the entry away from others.
    marks_opaque: bool,
    /// An entry is made the thread's only if no other thread has taken it meanwhile.
    installs_if_pending: bool,
}

const WHOLE: Protocol = Protocol {
    looks_again: true,
    is_pending_first: true,
    compares_values: true,
    marks_opaque: true,
    installs_if_pending: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Entry {
    Unowned,
    /// Of a thread, for a word.
    Tag(u8, u8),
    Pending(u8, u8),
}

/// The next step of a thread's current operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Look,
    Exchange,
    Execute,
    LookAgain,
    TakeTime,
    LookForPending,
    Install,
    TakeBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    op: usize,
    step: Step,
    /// Its last timestamp.
    timestamp: u32,
    /// By entry, what its last locked instruction has left in the word.
    left: Vec<u8>,
    /// By word, the same.
    seen: Vec<Option<u8>>,
    /// The old value of the current operation is not what was left.
    differs: bool,
    /// The timestamp has to exceed this when the current operation is over.
    wanted: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    words: Vec<u8>,
    entries: Vec<Entry>,
    threads: Vec<Thread>,
    /// By word and thread: the latest timestamp that a locked instruction of the thread for the
    /// word belongs to; and a plain store.
    locked: Vec<Vec<u32>>,
    stored: Vec<Vec<u32>>,
    now: u32,
}

const STATES_MAX: usize = 3_000_000;

struct Model<'a> {
    protocol: Protocol,
    programs: &'a [Vec<Op>],
    /// The entry that belongs to each word.
    entry_of: &'a [usize],
}

impl Model<'_> {
    fn start(&self) -> State {
        let words = self.entry_of.len();
        let entries = self.entry_of.iter().max().unwrap() + 1;
        // Threads start one after the other, each with a timestamp.
        let thread = |number: usize| Thread {
            op: 0,
            step: Step::Look,
            timestamp: number as u32 + 1,
            left: vec![0; entries],
            seen: vec![None; words],
            differs: false,
            wanted: 0,
        };
        State {
            words: vec![0; words],
            entries: vec![Entry::Unowned; entries],
            threads: (0..self.programs.len()).map(thread).collect(),
            locked: vec![vec![0; self.programs.len()]; words],
            stored: vec![vec![0; self.programs.len()]; words],
            now: self.programs.len() as u32 + 1,
        }
    }

    /// Executes one step of a thread. False if its timestamp is not late enough at the end of an
    /// operation.
    fn step(&self, state: &mut State, number: usize) -> bool {
        state.now += 1;
        let thread = state.threads[number].clone();
        match self.programs[number][thread.op] {
            Op::Store { word, value } => {
                state.words[word] = value;
                state.stored[word][number] = thread.timestamp;
                state.threads[number].op += 1;
                true
            }
            Op::Locked { word, change } => self.locked(state, number, word, Some(change)),
            Op::Opaque { word } => self.locked(state, number, word, None),
        }
    }

    fn locked(&self, state: &mut State, number: usize, word: usize, change: Option<Change>) -> bool {
        let at = self.entry_of[word];
        let (tag, pending) = (Entry::Tag(number as u8, word as u8), Entry::Pending(number as u8, word as u8));
        let thread = &mut state.threads[number];
        let entry = &mut state.entries[at];
        match thread.step {
            Step::Look => {
                let is_marked = change.is_none() && !self.protocol.marks_opaque;
                let is_own = *entry == tag && change.is_some();
                thread.step = if is_own || is_marked { Step::Execute } else { Step::Exchange };
            }
            Step::Exchange => {
                *entry = match change {
                    None => Entry::Unowned,
                    Some(_) if self.protocol.is_pending_first => pending,
                    Some(_) => tag,
                };
                thread.step = Step::Execute;
            }
            Step::Execute => {
                let old = state.words[word];
                let new = match change {
                    Some(Change::Add) => old + 1,
                    None => old,
                    Some(Change::SetToOne) => 1,
                    Some(Change::Take) => {
                        if old == 0 {
                            1
                        } else {
                            old
                        }
                    }
                };
                state.words[word] = new;
                thread.differs = thread.left[at] != old;
                thread.left[at] = new;
                let sees_stores = thread.seen[word] != Some(old);
                thread.seen[word] = Some(new);
                state.locked[word][number] = thread.timestamp;
                let others = (0..self.programs.len()).filter(|other| *other != number);
                let done = |other: usize| match sees_stores {
                    true => state.locked[word][other].max(state.stored[word][other]),
                    false => state.locked[word][other],
                };
                thread.wanted = others.map(done).max().unwrap_or(0);
                thread.step = if change.is_none() { Step::TakeTime } else { Step::LookAgain };
            }
            Step::LookAgain => {
                let is_lost = self.protocol.looks_again && *entry != tag;
                if is_lost || self.protocol.compares_values && thread.differs {
                    thread.step = Step::TakeTime;
                } else {
                    return self.finish(thread);
                }
            }
            Step::TakeTime => {
                thread.timestamp = state.now;
                if change.is_none() {
                    return self.finish(thread);
                }
                thread.step = Step::LookForPending;
            }
            Step::LookForPending => {
                if *entry != pending && self.protocol.installs_if_pending {
                    return self.finish(thread);
                }
                thread.step = Step::Install;
            }
            Step::Install => {
                let before = std::mem::replace(entry, tag);
                if before == pending || !self.protocol.installs_if_pending {
                    return self.finish(thread);
                }
                thread.step = Step::TakeBack;
            }
            Step::TakeBack => {
                *entry = Entry::Unowned;
                return self.finish(thread);
            }
        }
        true
    }

    fn finish(&self, thread: &mut Thread) -> bool {
        thread.op += 1;
        thread.step = Step::Look;
        let is_late_enough = thread.timestamp > thread.wanted;
        thread.wanted = 0;
        is_late_enough
    }

    /// Whether the guarantee holds in all interleavings.
    fn holds(&self) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![self.start()];
        while let Some(state) = open.pop() {
            for number in 0..self.programs.len() {
                if state.threads[number].op == self.programs[number].len() {
                    continue;
                }
                let mut next = state.clone();
                if !self.step(&mut next, number) {
                    return false;
                }
                rank_times(&mut next);
                if seen.insert(next.clone()) {
                    assert!(seen.len() < STATES_MAX, "a case is too large");
                    open.push(next);
                }
            }
        }
        true
    }
}

/// Replaces times by their ranks, and those that every thread's timestamp exceeds by 0.
fn rank_times(state: &mut State) {
    let oldest = state.threads.iter().map(|thread| thread.timestamp).min().unwrap_or(0);
    let done = state.locked.iter_mut().chain(&mut state.stored).flatten();
    for time in done.chain(state.threads.iter_mut().map(|thread| &mut thread.wanted)) {
        if *time < oldest {
            *time = 0;
        }
    }
    let mut times = BTreeSet::from([0]);
    times.extend(state.threads.iter().flat_map(|thread| [thread.timestamp, thread.wanted]));
    times.extend(state.locked.iter().chain(&state.stored).flatten());
    let times: Vec<u32> = times.into_iter().collect();
    let rank = |time: &mut u32| *time = times.binary_search(time).unwrap() as u32;
    for thread in &mut state.threads {
        rank(&mut thread.timestamp);
        rank(&mut thread.wanted);
    }
    state.locked.iter_mut().chain(&mut state.stored).flatten().for_each(rank);
    state.now = times.len() as u32;
}

fn add(word: usize) -> Op {
    Op::Locked { word, change: Change::Add }
}

fn take(word: usize) -> Op {
    Op::Locked { word, change: Change::Take }
}

fn set(word: usize) -> Op {
    Op::Locked { word, change: Change::SetToOne }
}

fn release(word: usize) -> Op {
    Op::Store { word, value: 0 }
}

/// Programs, and the entries of their words.
fn cases() -> Vec<(Vec<Vec<Op>>, Vec<usize>)> {
    let opaque = |word| Op::Opaque { word };
    vec![
        (vec![vec![add(0); 3], vec![add(0); 3]], vec![0]),
        (vec![vec![add(0); 2], vec![add(0); 2], vec![add(0)]], vec![0]),
        // Two words with an entry each, and with one for both.
        (vec![vec![add(0), add(1), add(0)], vec![add(1), add(0), add(1)]], vec![0, 1]),
        (vec![vec![add(0), add(1), add(0)], vec![add(1), add(0), add(1)]], vec![0, 0]),
        (vec![vec![add(0), add(1)], vec![add(1), add(0)], vec![add(1)]], vec![0, 0]),
        // Timestamps for other reasons in between: a word that no other thread uses.
        (vec![vec![add(0), add(0), opaque(1), add(0), add(0)], vec![add(0), add(0), add(0)]], vec![0, 1]),
        // A spin lock that is released by a plain store.
        (vec![vec![take(0), opaque(1), release(0), take(0), release(0)], vec![take(0); 4]], vec![0, 1]),
        (vec![vec![set(0), opaque(1), release(0)], vec![set(0); 2], vec![set(0)]], vec![0, 1]),
        // A mailbox that is filled by plain stores.
        (vec![vec![opaque(1), Op::Store { word: 0, value: 5 }], vec![set(0), set(0), set(0)]], vec![0, 1]),
        // Instructions whose old value is unknown.
        (vec![vec![opaque(0), add(0), opaque(0)], vec![add(0), add(0), add(0)]], vec![0]),
        (vec![vec![opaque(0), opaque(1), opaque(0)], vec![add(0), add(0), add(0)]], vec![0, 1]),
    ]
}

fn holds(protocol: Protocol) -> bool {
    cases().iter().all(|(programs, entry_of)| Model { protocol, programs, entry_of }.holds())
}

#[test]
fn every_interleaving_is_ordered() {
    for (programs, entry_of) in cases() {
        assert!(Model { protocol: WHOLE, programs: &programs, entry_of: &entry_of }.holds(), "{programs:?}");
    }
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    assert!(!holds(Protocol { looks_again: false, ..WHOLE }));
    assert!(!holds(Protocol { is_pending_first: false, ..WHOLE }));
    assert!(!holds(Protocol { compares_values: false, ..WHOLE }));
    assert!(!holds(Protocol { marks_opaque: false, ..WHOLE }));
    assert!(!holds(Protocol { installs_if_pending: false, ..WHOLE }));
}
