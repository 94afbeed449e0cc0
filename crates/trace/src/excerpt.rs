//! A part of a trace: one thread or all, from one instruction to another.
//!
//! An [`Excerpt`] says which part. [`Excerpt::for_each_batch`] reads it batch by batch; an
//! [`InstructionWindow`] cuts batches and steps at its ends for readers that iterate themselves.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use entity::ThreadId;

use crate::{Batch, Blocks, InstructionIndex, MergedBatches, ReadError, Step, Steps, Trace};

/// The part of a trace that an analysis reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// One thread; all threads, merged by time, if there is none.
    pub thread: Option<ThreadId>,
    /// The first instruction: of the thread, or of the merged order.
    pub start: InstructionIndex,
    /// The number of instructions in the part; all that follow if there is none.
    pub length: Option<u64>,
}

impl Excerpt {
    /// Returns the selected threads in the order of the trace.
    pub fn threads(&self, trace: &Trace) -> Vec<ThreadId> {
        let all = trace.threads().iter().map(|summary| summary.info.thread);
        all.filter(|&thread| self.thread.is_none_or(|own| own == thread)).collect()
    }

    /// Returns the number of instructions that the selected threads executed, before and after the
    /// part included.
    pub fn available(&self, trace: &Trace) -> u64 {
        self.thread.map_or(trace.totals().instructions, |thread| instructions_of(trace, thread))
    }

    /// Returns the number of instructions in the part.
    pub fn instructions(&self, trace: &Trace) -> u64 {
        self.available(trace).saturating_sub(self.start.get()).min(self.length.unwrap_or(u64::MAX))
    }

    /// Passes the part to `visit` batch by batch. Leaves out damaged chunks and returns their
    /// errors.
    pub fn for_each_batch(
        &self,
        trace: &Trace,
        with_accesses: bool,
        mut visit: impl FnMut(&Batch),
    ) -> Result<Vec<ReadError>, ReadError> {
        let (mut reader, skip) = Reader::open(trace, self, with_accesses)?;
        let mut window = InstructionWindow { skip, left: self.length.unwrap_or(u64::MAX) };
        let (mut part, mut damage) = (Batch::default(), Vec::new());
        while window.left > 0 {
            match reader.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => {
                    if window.take_whole(batch.instructions()) {
                        visit(batch);
                    } else if let Some(part) = window.cut_batch(trace.blocks(), batch, &mut part, |_| true) {
                        visit(part);
                    }
                }
                Err(error) => damage.push(error),
            }
        }
        Ok(damage)
    }
}

fn instructions_of(trace: &Trace, thread: ThreadId) -> u64 {
    let found = trace.threads().iter().find(|summary| summary.info.thread == thread);
    found.map_or(0, |summary| summary.counts.instructions)
}

/// The batches of one thread, or of all.
enum Reader<'t> {
    One(Box<Steps<'t>>),
    All(Box<MergedBatches<'t>>),
    Empty,
}

impl<'t> Reader<'t> {
    /// Opens the excerpt at its start. Returns how many instructions of the first batch come before
    /// it, too.
    fn open(trace: &'t Trace, excerpt: &Excerpt, with_accesses: bool) -> Result<(Self, u64), ReadError> {
        let reader = match (excerpt.thread, with_accesses) {
            (None, with_accesses) => {
                let mut merged = if with_accesses { trace.merged_with_accesses()? } else { trace.merged() };
                let skip = merged.seek(excerpt.start);
                return Ok((Self::All(Box::new(merged)), skip));
            }
            (Some(thread), _) if excerpt.start.get() >= instructions_of(trace, thread) => Self::Empty,
            (Some(thread), false) => Self::One(Box::new(trace.seek(thread, excerpt.start)?)),
            (Some(thread), true) => Self::One(Box::new(trace.seek_with_accesses(thread, excerpt.start)?)),
        };
        Ok((reader, 0))
    }

    fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        match self {
            Self::One(steps) => steps.next_batch(),
            Self::All(merged) => merged.next_batch(),
            Self::Empty => Ok(None),
        }
    }
}

/// The number of instructions to skip, and the number to take after them.
#[derive(Debug)]
pub struct InstructionWindow {
    pub skip: u64,
    pub left: u64,
}

impl InstructionWindow {
    /// Takes `count` instructions if all of them are in the window, and returns whether they are.
    pub fn take_whole(&mut self, count: u64) -> bool {
        let whole = self.skip == 0 && self.left >= count;
        if whole {
            self.left -= count;
        }
        whole
    }

    /// Makes `part` the part of `batch` that is in the window. Returns `None` if nothing is.
    pub fn cut_batch<'b>(
        &mut self,
        blocks: &Blocks,
        batch: &Batch,
        part: &'b mut Batch,
        is_wanted: impl Fn(&Step) -> bool,
    ) -> Option<&'b Batch> {
        if self.skip_whole(batch.instructions()) {
            return None;
        }
        batch.select(blocks, part, |step| self.cut_wanted(step.instructions(), is_wanted(step)).unwrap_or(0..0));
        Some(part)
    }

    /// Returns whether the next instruction is in the window.
    pub fn is_open(&self) -> bool {
        self.skip == 0 && self.left > 0
    }

    /// Skips `count` instructions if all of them come before the window, and returns whether they
    /// do.
    pub fn skip_whole(&mut self, count: u64) -> bool {
        let whole = self.skip > 0 && self.skip >= count;
        if whole {
            self.skip -= count;
        }
        whole
    }

    /// Returns those of the next `count` instructions that are in the window.
    #[inline]
    pub fn cut(&mut self, count: u32) -> Option<Range<u32>> {
        if self.skip == 0 && self.left > u64::from(count) {
            self.left -= u64::from(count);
            return Some(0..count);
        }
        self.cut_at_ends(count)
    }

    /// As [`Self::cut`]. Instructions that are not wanted are not returned and do not use up the
    /// window.
    fn cut_wanted(&mut self, count: u32, is_wanted: bool) -> Option<Range<u32>> {
        if is_wanted {
            return self.cut(count);
        }
        self.skip = self.skip.saturating_sub(u64::from(count));
        None
    }

    fn cut_at_ends(&mut self, count: u32) -> Option<Range<u32>> {
        let skipped = u32::try_from(self.skip).unwrap_or(u32::MAX).min(count);
        self.skip -= u64::from(skipped);
        let taken = u32::try_from(self.left).unwrap_or(u32::MAX).min(count - skipped);
        self.left -= u64::from(taken);
        (taken > 0).then(|| skipped..skipped + taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_cuts_steps_at_its_ends() {
        let mut window = InstructionWindow { skip: 5, left: 6 };
        assert_eq!(window.cut(3), None);
        assert_eq!(window.cut(4), Some(2..4));
        assert_eq!(window.cut(3), Some(0..3));
        assert_eq!(window.cut(3), Some(0..1));
        assert_eq!((window.skip, window.left), (0, 0));
        assert_eq!(window.cut(1), None);
    }

    #[test]
    fn batches_before_the_window_are_skipped_whole() {
        let mut window = InstructionWindow { skip: 10, left: 1 };
        assert!(window.skip_whole(10));
        assert!(!window.skip_whole(1));
        assert!(!window.skip_whole(0));
        let mut window = InstructionWindow { skip: 10, left: 1 };
        assert!(!window.skip_whole(11));
        assert_eq!(window.skip, 10);
    }
}
