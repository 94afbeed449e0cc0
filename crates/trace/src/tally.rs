//! Counting what words execute: a [`Tally`] makes the totals in the header of a path chunk. The
//! writer tallies while it encodes, `verify` to compare.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::event::{NextPc, next_pc};
use codec::predict::WordCounter;
use codec::words::{Word, Words};
use entity::{AppPc, Tsc};
use wire::word::{self, EVENT};

use crate::event::{self, Location, RawEvent};
use crate::model::{Counts, Event, Step, Terminator};
use crate::program::{CountSum, PathInfo, Program};

/// The totals of a path chunk's words, as its header has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathTotal {
    pub counts: Counts,
    /// Smallest and greatest timestamp; both [`Tsc::NONE`] if there is none.
    pub first_tsc: Tsc,
    pub last_tsc: Tsc,
    /// Address at which the first word begins (see [`start_pc`]) and to which the last one leads;
    /// [`AppPc::NONE`] if the words do not say.
    pub start_pc: AppPc,
    pub end_pc: AppPc,
}

/// Totals while they are counted.
#[derive(Debug)]
pub(crate) struct Tally<'p> {
    program: &'p Program,
    sum: CountSum,
    events: Counts,
    times: Option<(Tsc, Tsc)>,
    /// Address of the thread behind the last event.
    pc: AppPc,
}

impl<'p> Tally<'p> {
    pub(crate) fn new(program: &'p Program) -> Self {
        Self { program, sum: CountSum::default(), events: Counts::default(), times: None, pc: AppPc::NONE }
    }

    /// Returns the address of the thread behind the word `before`.
    fn next_pc(&self, before: u32) -> AppPc {
        word::path(before).map_or(self.pc, |path| self.program.target(path).unwrap_or(AppPc::NONE))
    }

    /// Counts the known paths at the start of `words`, and returns their number.
    fn paths(&mut self, words: &[u32]) -> usize {
        let program = self.program;
        let paths = words.iter().map_while(|&word| word::path(word));
        self.sum.add_all(paths.map_while(|path| program.counts(path)))
    }

    /// Counts the event at the start of `words`, which comes after the word `before`. Returns its
    /// length in words; `None` if there is no whole event.
    fn event(&mut self, before: u32, words: &[u32]) -> Option<usize> {
        let raw = event::read(words)?;
        let length = word::length(*words.first()?)?;
        self.pc = match next_pc(words)? {
            NextPc::Unchanged => self.next_pc(before),
            NextPc::At(pc) => pc,
        };
        if let Some(tsc) = raw.tsc() {
            let (first, last) = self.times.unwrap_or((tsc, tsc));
            self.times = Some((first.min(tsc), last.max(tsc)));
        }
        match raw.event {
            Some(Event::Syscall { .. }) => self.events.system_calls += 1,
            Some(Event::Signal { signal, .. }) => {
                // The engine itself records interruptions as signal 0.
                self.events.signals += u64::from(signal != 0);
                self.add_interrupted(&raw);
            }
            _ => {}
        }
        Some(length)
    }

    fn add_interrupted(&mut self, raw: &RawEvent) {
        match raw.interrupted_steps(self.program) {
            Some((whole, part)) => whole.iter().chain(&part).for_each(|step| count_step(&mut self.events, step)),
            None => self.events.lost += 1,
        }
    }

    /// Returns the totals of `words`. The last of them, or the first word of the event that they
    /// end with, is `before`.
    fn total(mut self, words: &[u32], before: u32) -> PathTotal {
        let mut counts = self.sum.finish();
        counts.add(&self.events);
        let (first_tsc, last_tsc) = self.times.unwrap_or_default();
        PathTotal { counts, first_tsc, last_tsc, start_pc: start_pc(self.program, words), end_pc: self.next_pc(before) }
    }

    /// Counts all of `words`. The error is the number of words before the one that is unknown.
    pub(crate) fn words(mut self, words: &[u32]) -> Result<PathTotal, usize> {
        let (mut rest, mut before) = (Words::new(words), EVENT);
        while let Some(word) = rest.peek() {
            let at = words.len() - rest.rest().len();
            let length = match word {
                Word::Path(_) => {
                    let count = self.paths(rest.rest());
                    before = *count.checked_sub(1).and_then(|last| rest.rest().get(last)).ok_or(at)?;
                    count
                }
                Word::Event(event) => {
                    let length = self.event(before, event.words()).ok_or(at)?;
                    before = event.first();
                    length
                }
            };
            rest.skip_words(length);
        }
        Ok(self.total(words, before))
    }
}

impl WordCounter<PathInfo> for Tally<'_> {
    type Total = PathTotal;

    #[inline]
    fn add_path(&mut self, path: &PathInfo) {
        self.sum.add(path.counts());
    }

    fn add_repeated(&mut self, path: &PathInfo, times: u64) {
        self.sum.add_times(path.counts(), times);
    }

    fn add_event(&mut self, before: u32, words: &[u32]) -> Option<usize> {
        self.event(before, words)
    }

    fn finish(self, words: &[u32], last: u32) -> PathTotal {
        self.total(words, last)
    }

    fn count(self, words: &[u32]) -> Result<PathTotal, usize> {
        self.words(words)
    }
}

/// Adds one step.
pub(crate) fn count_step(counts: &mut Counts, step: &Step) {
    counts.instructions += u64::from(step.instructions());
    counts.steps += 1;
    match step.terminator() {
        Terminator::Taken => counts.conditional_taken += 1,
        Terminator::NotTaken => counts.conditional_not_taken += 1,
        Terminator::Direct => counts.unconditional_direct += 1,
        Terminator::Indirect => counts.unconditional_indirect += 1,
        Terminator::Syscall | Terminator::Next | Terminator::Interrupted => {}
    }
}

/// In place of an address: the thread does not continue where it was.
pub(crate) const DISCONTINUOUS: AppPc = AppPc::new(u64::MAX);

/// Returns where the thread is at the start of `words`, from the first path or event that says so:
/// an address, [`AppPc::NONE`] if none does, or [`DISCONTINUOUS`].
pub(crate) fn start_pc(program: &Program, words: &[u32]) -> AppPc {
    for word in Words::new(words) {
        let location = match word {
            Word::Path(path) => return program.head(path).unwrap_or(AppPc::NONE),
            Word::Event(event) => event::read(event.words()).map(|raw| raw.location(program)),
        };
        match location {
            None => return AppPc::NONE,
            Some(Location::Unchanged) => {}
            Some(Location::At(pc)) => return pc,
            Some(Location::Elsewhere) => return DISCONTINUOUS,
        }
    }
    AppPc::NONE
}
