//! A decoded chunk that is being read.
//!
//! An [`OpenChunk`] holds words, their data and a position in both. It fills batches, passes over
//! words for batches of paths, and skips. `Cursor` opens one chunk of a file after the other;
//! `LiveTrace` appends what a thread delivers to one that never ends. [`crate::visit`] adds the
//! visit of accesses.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use codec::words::{Word, Words};
use entity::Tsc;
use wire::word;

use crate::InstructionIndex;
use crate::batch::Batch;
use crate::batch_builder::BatchBuilder;
use crate::data::{DataPosition, DataSource};
use crate::event;
use crate::model::Step;
use crate::program::{PackedCounts, Program};

/// A decoded chunk, or the words that a live thread has delivered, and how much of it has been
/// read.
#[derive(Debug, Default)]
pub(crate) struct OpenChunk {
    pub words: Vec<u32>,
    /// How many words have been read.
    pub at: usize,
    pub image: u32,
    /// The next instruction of the thread.
    pub instruction: InstructionIndex,
    /// The last timestamp that was read.
    pub tsc: Tsc,
    pub data: Vec<u8>,
    /// How much of the data has been read; `None` if there is no intact data.
    pub data_position: Option<DataPosition>,
    timestamps: TimestampPair,
    /// The latest time that was estimated.
    latest_estimate: Tsc,
}

/// Two timestamps that follow each other, each with its position among the words.
#[derive(Clone, Copy, Debug, Default)]
struct TimestampPair {
    from: (usize, Tsc),
    to: (usize, Tsc),
}

impl TimestampPair {
    /// Estimates the time at a word: as large a part of it has passed as of the words.
    fn time_at(&self, at: usize) -> Tsc {
        let (from, to) = (self.from.1, self.to.1.max(self.from.1));
        let (words, passed) = (self.to.0.saturating_sub(self.from.0), at.saturating_sub(self.from.0));
        let time = u128::from(to - from) * passed.min(words) as u128 / words.max(1) as u128;
        Tsc::new(from.get() + u64::try_from(time).unwrap_or(0))
    }
}

impl OpenChunk {
    /// Returns an empty one, for what begins at the time `tsc`.
    pub(crate) fn starting_at(tsc: Tsc) -> Self {
        Self { tsc, ..Self::default() }
    }

    /// Forgets the words and the data. Keeps the time.
    pub(crate) fn restart(&mut self) {
        self.words.clear();
        self.at = 0;
        self.data_position = None;
        self.timestamps = TimestampPair::default();
    }

    pub(crate) fn has_more(&self) -> bool {
        self.at < self.words.len()
    }

    /// Returns the words that were not read.
    #[inline]
    pub(crate) fn unread_words(&self) -> &[u32] {
        self.words.get(self.at..).unwrap_or(&[])
    }

    /// Returns the number of bytes that were not read.
    pub(crate) fn unread_bytes(&self) -> usize {
        let data = self.data_position.map_or(0, |position| self.data.len().saturating_sub(position.at));
        size_of_val(self.unread_words()) + data
    }

    /// Returns the time at which the next word begins; `None` at the end. Between two timestamps
    /// the time is estimated, if `is_estimated`. `end` is the time at the end of the words, if it
    /// is known.
    pub(crate) fn next_tsc(&mut self, is_estimated: bool, end: Option<Tsc>) -> Option<Tsc> {
        let rest = Some(self.unread_words()).filter(|rest| !rest.is_empty())?;
        if let Some(tsc) = event::read(rest).and_then(|raw| raw.begins()) {
            return Some(tsc);
        }
        if !is_estimated {
            return Some(self.tsc);
        }
        // Behind the end of a chunk there may be no timestamp for a while.
        self.latest_estimate = self.latest_estimate.max(self.timestamps_around(end).time_at(self.at));
        Some(self.latest_estimate)
    }

    /// Returns the timestamps before and behind the position.
    fn timestamps_around(&mut self, end: Option<Tsc>) -> TimestampPair {
        if self.at >= self.timestamps.to.0 || self.timestamps.from.1 != self.tsc {
            let to = self.next_timestamp().unwrap_or((self.words.len(), end.unwrap_or(self.tsc)));
            self.timestamps = TimestampPair { from: (self.at, self.tsc), to };
        }
        self.timestamps
    }

    /// Returns the next timestamp and its position. An unknown word ends the search, because
    /// nothing behind it can be read.
    fn next_timestamp(&self) -> Option<(usize, Tsc)> {
        let mut words = Words::new(self.unread_words());
        loop {
            let at = self.words.len() - words.rest().len();
            let rest = words.rest();
            word::length(*rest.first()?)?;
            if let Some(tsc) = event::read(rest).and_then(|raw| raw.tsc()) {
                return Some((at, tsc));
            }
            words.next();
        }
    }

    /// Appends words and data, and forgets what was read.
    pub(crate) fn append(&mut self, image: u32, words: &[u32], data: &[u8]) {
        self.image = image;
        // Moving what is left takes time, too.
        if self.at > self.words.len() / 2 {
            self.words.drain(..self.at.min(self.words.len()));
            self.at = 0;
            self.timestamps = TimestampPair::default();
        }
        self.words.extend_from_slice(words);
        if let Some(position) = self.data_position.as_mut().filter(|position| position.at > self.data.len() / 2) {
            self.data.drain(..position.at.min(self.data.len()));
            position.at = 0;
        }
        self.data.extend_from_slice(data);
    }

    /// Passes over words, up to a timestamp that is not before `until` or to `most`, and returns
    /// their range.
    pub(crate) fn take_words(&mut self, until: Tsc, most: usize) -> Range<usize> {
        let from = self.at;
        let mut words = Words::new(self.unread_words());
        let (mut at, mut tsc) = (from, self.tsc);
        while let Some(word) = words.peek().filter(|_| at < from + most) {
            let Word::Event(event) = word else {
                words.skip_words(1);
                at += 1;
                continue;
            };
            let (begins, ends) = match event::time(event.words()) {
                Some((tsc, _)) => (Some(tsc), None),
                None => event::read(event.words()).map_or((None, None), |raw| (raw.begins(), raw.ends())),
            };
            let is_late = |tsc: Option<Tsc>| tsc.is_some_and(|tsc| tsc >= until);
            if at > from && is_late(begins) {
                break;
            }
            tsc = begins.or(ends).unwrap_or(tsc);
            at += event.length();
            words.skip_words(event.length());
            if is_late(ends) {
                break;
            }
        }
        (self.at, self.tsc) = (at, tsc);
        from..at
    }

    /// Fills `batch` with what comes next, about `most` steps at most. Returns whether the target
    /// of its last step is not known, because the terminator is indirect.
    pub(crate) fn fill(&mut self, program: &Program, by_time: bool, most: usize, batch: &mut Batch) -> bool {
        batch.image = self.image;
        (batch.first_instruction, batch.tsc) = (self.instruction, self.tsc);
        let source = DataSource { program, data: &self.data };
        let source = self.data_position.map(|position| (source, position));
        let mut builder = BatchBuilder { program, batch, indirect: false, source };
        let mut words = Words::new(self.words.get(self.at..).unwrap_or(&[]));
        while let Some(word) = words.peek() {
            match word {
                Word::Path(path) => {
                    builder.path(path);
                    words.skip_words(1);
                }
                Word::Event(event) => {
                    let raw = event::read(event.words());
                    let begins = raw.and_then(|raw| raw.begins());
                    let ends = raw.and_then(|raw| raw.ends());
                    let first = builder.batch.is_empty();
                    // Explicit accesses stay in one batch with the path or signal that they belong
                    // to.
                    if by_time && begins.is_some() && !first && !builder.is_pending() {
                        break;
                    }
                    words.skip_words(event.length());
                    builder.event(raw, event.words());
                    self.tsc = begins.or(ends).unwrap_or(self.tsc);
                    if first {
                        builder.batch.tsc = begins.unwrap_or(builder.batch.tsc);
                    }
                    if by_time && ends.is_some() {
                        break;
                    }
                }
            }
            if builder.batch.steps.len() >= most {
                break;
            }
        }
        self.at = self.words.len() - words.rest().len();
        let indirect = builder.indirect;
        self.data_position = builder.finish_data();
        self.instruction += batch.instructions();
        indirect
    }

    /// Returns the extent of the batch that [`Self::fill`] would fill by time. `has_data` says
    /// whether it would decode accesses.
    pub(crate) fn extent(&self, program: &Program, most: usize, has_data: bool) -> BatchExtent {
        let mut extent = BatchExtent { end: self.at, instructions: 0, tsc: self.tsc, is_empty: true };
        let (mut steps, mut is_pending) = (0, false);
        let mut words = Words::new(self.unread_words());
        while let Some(word) = words.peek().filter(|_| steps < most) {
            let event = match word {
                Word::Event(event) => event,
                Word::Path(path) => {
                    let counts = program.counts(path);
                    steps += counts.map_or(0, PackedCounts::steps);
                    extent.add(1, counts.map_or(0, PackedCounts::instructions));
                    is_pending &= counts.is_none();
                    words.skip_words(1);
                    continue;
                }
            };
            let raw = event::read(event.words());
            let begins = raw.and_then(|raw| raw.begins());
            if begins.is_some() && !extent.is_empty && !is_pending {
                break;
            }
            words.skip_words(event.length());
            if event::is_explicit_access(event.first()) && raw.is_some() {
                is_pending = has_data;
                extent.end += event.length();
                continue;
            }
            let (whole, part) = raw.and_then(|raw| raw.interrupted_steps(program)).unwrap_or_default();
            steps += whole.len() + usize::from(part.is_some());
            extent.add(event.length(), instructions(whole, part));
            is_pending &= word::kind(event.first()) != word::SIGNAL;
            let ends = raw.and_then(|raw| raw.ends());
            extent.tsc = begins.or(ends).unwrap_or(extent.tsc);
            if ends.is_some() {
                break;
            }
        }
        extent.is_empty &= !is_pending;
        extent
    }

    /// Passes over the data of the words that were read.
    pub(crate) fn skip_data(&mut self, program: &Program) {
        let Some(position) = &mut self.data_position else { return };
        for word in Words::new(self.words.get(..self.at).unwrap_or(&self.words)) {
            position.skip(program, word);
        }
    }

    /// Skips words as long as all they execute comes before the instruction `wanted`.
    pub(crate) fn skip_to(&mut self, program: &Program, wanted: InstructionIndex) {
        // Position of the explicit accesses that belong to the next path or signal.
        let mut explicit = None;
        for word in Words::new(self.words.get(self.at..).unwrap_or(&[])) {
            let (executed, length, raw) = match word {
                Word::Path(path) => (program.counts(path).map_or(0, PackedCounts::instructions), 1, None),
                Word::Event(event) => {
                    if event::is_explicit_access(event.first()) {
                        explicit.get_or_insert((self.at, self.data_position));
                    }
                    let Some(raw) = event::read(event.words()) else { return };
                    let (whole, part) = raw.interrupted_steps(program).unwrap_or_default();
                    (instructions(whole, part), event.length(), Some(raw))
                }
            };
            if self.instruction + executed > wanted {
                (self.at, self.data_position) = explicit.unwrap_or((self.at, self.data_position));
                return;
            }
            self.tsc = raw.and_then(|raw| raw.tsc()).unwrap_or(self.tsc);
            if raw.is_none_or(|raw| raw.interrupted.is_some()) {
                explicit = None;
            }
            if let Some(position) = &mut self.data_position {
                position.skip(program, word);
            }
            self.instruction += executed;
            self.at += length;
        }
    }
}

/// Returns the number of instructions in interrupted steps.
fn instructions(whole: &[Step], part: Option<Step>) -> u64 {
    whole.iter().chain(&part).map(|step| u64::from(step.instructions())).sum()
}

/// The extent of the batch that [`OpenChunk::fill`] would fill.
pub(crate) struct BatchExtent {
    /// Where the words behind it begin.
    pub end: usize,
    pub instructions: u64,
    /// The last timestamp up to its end.
    pub tsc: Tsc,
    /// Whether it has neither steps nor events.
    pub is_empty: bool,
}

impl BatchExtent {
    fn add(&mut self, words: usize, instructions: u64) {
        self.end += words;
        self.instructions += instructions;
        self.is_empty = false;
    }
}
