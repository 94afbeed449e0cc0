//! Walks the part of a trace that the user selected (one thread or all, from one instruction to another), step by step.
//!
//! Damaged chunks are left out: each is told on standard error, and the walk goes on behind it.

use std::ops::Range;
use std::path::Path;

use trace::{Access, Batch, Blocks, DataMode, Event, Merged, ReadError, Step, Steps, Trace};

use crate::arguments::Input;
use crate::digits::grouped;
use crate::failure::Failure;
use crate::output::Stopped;
use crate::progress::Progress;

/// Receives what the walk meets, thread by thread.
pub trait Visitor {
    /// `part` are those of the step's instructions that are selected; mostly all.
    fn step(&mut self, thread: u32, step: &Step, part: Range<u32>) -> Result<(), Stopped>;
    fn event(&mut self, thread: u32, event: &Event) -> Result<(), Stopped>;
    /// Whether memory accesses are read; then [`Self::access`] is called for each, behind the step or event it belongs to.
    fn wants_accesses(&self) -> bool {
        false
    }
    /// `step` is what the access belongs to, unless that is an event.
    fn access(&mut self, batch: &Batch, access: &Access, step: Option<&Step>) -> Result<(), Stopped> {
        let _ = (batch, access, step);
        Ok(())
    }
}

/// Opens the trace and makes sure that the selected thread is in it.
pub fn open(input: &Input) -> Result<Trace, Failure> {
    let trace = Trace::open(&input.file)?;
    if let Some(thread) = input.thread.filter(|thread| trace.threads().iter().all(|own| own.info.thread != *thread)) {
        return Err(ReadError::NoThread { thread }.into());
    }
    Ok(trace)
}

/// Says so if nothing is selected, to those who would wonder why everything is zero.
pub fn tell_nothing(trace: &Trace, input: &Input) {
    let available = available(trace, input);
    if input.skip > 0 && input.skip >= available {
        let (start, available) = (grouped(input.skip), grouped(available));
        eprintln!("trackway: nothing is selected: there are {available} instructions, none from number {start} on");
    }
}

/// How many instructions the selected threads have executed.
fn available(trace: &Trace, input: &Input) -> u64 {
    input.thread.map_or(trace.totals().instructions, |thread| instructions_of(trace, thread))
}

/// Makes sure that memory accesses are in the trace.
pub fn need_data(trace: &Trace) -> Result<(), Failure> {
    match trace.data() {
        DataMode::None => Err(ReadError::NoData.into()),
        DataMode::Addresses | DataMode::Values => Ok(()),
    }
}

/// Makes sure that the values of memory accesses are in the trace.
pub fn need_values(trace: &Trace) -> Result<(), Failure> {
    need_data(trace)?;
    match trace.data() {
        DataMode::Values => Ok(()),
        _ => Err(Failure::new("the values of memory accesses were not recorded in this trace")
            .hint("record with --data values to have them")),
    }
}

/// Says so if the trace was never finished; counts as one damaged place.
pub fn tell_unfinished(trace: &Trace, file: &Path) -> u64 {
    if trace.is_finished() {
        return 0;
    }
    let file = file.display();
    eprintln!("trackway: {file} ends early (the recorder was killed or the file was cut); what is there was read");
    1
}

/// The threads that are selected, in order.
pub fn threads(trace: &Trace, input: &Input) -> Vec<u32> {
    let all = trace.threads().iter().map(|summary| summary.info.thread);
    all.filter(|&thread| input.thread.is_none_or(|own| own == thread)).collect()
}

/// How many instructions are selected.
pub fn instructions(trace: &Trace, input: &Input) -> u64 {
    available(trace, input).saturating_sub(input.skip).min(input.length.unwrap_or(u64::MAX))
}

/// Shows the selected part batch by batch, with accesses if they are wanted, and gives what was damaged and left out.
pub fn batches(
    trace: &Trace,
    input: &Input,
    with_accesses: bool,
    mut show: impl FnMut(&Batch),
) -> Result<Vec<String>, ReadError> {
    let (mut reader, skip) = Reader::open(trace, input, with_accesses)?;
    let mut window = Window { skip, left: input.length.unwrap_or(u64::MAX) };
    let (mut part, mut damage) = (Batch::default(), Vec::new());
    while window.left > 0 {
        match reader.next_batch() {
            Ok(None) => break,
            Ok(Some(batch)) => {
                if window.takes_whole(batch.instructions()) {
                    show(batch);
                } else if let Some(part) = window.part(trace.blocks(), batch, &mut part, |_| true) {
                    show(part);
                }
            }
            Err(error) => damage.push(error.to_string()),
        }
    }
    Ok(damage)
}

/// One thread, or all.
enum Reader<'t> {
    One(Box<Steps<'t>>),
    All(Box<Merged<'t>>),
    Nothing,
}

impl<'t> Reader<'t> {
    /// Opens what is selected at its start; gives how many instructions of the first batch come before it.
    fn open(trace: &'t Trace, input: &Input, with_accesses: bool) -> Result<(Self, u64), ReadError> {
        let reader = match (input.thread, with_accesses) {
            (None, with_accesses) => {
                let mut merged = merged(trace, with_accesses)?;
                let skip = merged.seek(input.skip);
                return Ok((Self::All(Box::new(merged)), skip));
            }
            (Some(thread), _) if input.skip >= instructions_of(trace, thread) => Self::Nothing,
            (Some(thread), false) => Self::One(Box::new(trace.seek(thread, input.skip)?)),
            (Some(thread), true) => Self::One(Box::new(trace.seek_with_accesses(thread, input.skip)?)),
        };
        Ok((reader, 0))
    }

    fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        match self {
            Self::One(steps) => steps.next_batch(),
            Self::All(merged) => merged.next_batch(),
            Self::Nothing => Ok(None),
        }
    }
}

/// All threads of a trace.
pub fn merged(trace: &Trace, with_accesses: bool) -> Result<Merged<'_>, ReadError> {
    if with_accesses { trace.merged_with_accesses() } else { Ok(trace.merged()) }
}

/// Shows the selected part to `visitor` and gives the number of damaged places that were left out.
pub fn walk(trace: &Trace, input: &Input, visitor: &mut impl Visitor) -> Result<u64, Stopped> {
    let length = input.length.unwrap_or(u64::MAX);
    match input.thread {
        Some(thread) => {
            let available = instructions_of(trace, thread);
            if input.skip >= available {
                return Ok(0);
            }
            let mut steps = match (input.skip, visitor.wants_accesses()) {
                (0, false) => trace.steps(thread)?,
                (0, true) => trace.steps_with_accesses(thread)?,
                (skip, false) => trace.seek(thread, skip)?,
                (skip, true) => trace.seek_with_accesses(thread, skip)?,
            };
            let window = Window { skip: 0, left: length };
            Walk::new(trace, window, 0, available).run(|walk| walk.take(steps.next_batch(), visitor))
        }
        None => {
            let mut merged = merged(trace, visitor.wants_accesses())?;
            let window = Window { skip: merged.seek(input.skip), left: length };
            let available = trace.summary().totals.instructions;
            let done = input.skip.saturating_sub(window.skip);
            Walk::new(trace, window, done, available).run(|walk| walk.take(merged.next_batch(), visitor))
        }
    }
}

fn instructions_of(trace: &Trace, thread: u32) -> u64 {
    let found = trace.threads().iter().find(|summary| summary.info.thread == thread);
    found.map_or(0, |summary| summary.counts.instructions)
}

/// How far a walk has come.
struct Walk<'t> {
    trace: &'t Trace,
    window: Window,
    damaged: u64,
    done: u64,
    available: u64,
    progress: Progress,
}

enum Next {
    More,
    End,
}

impl<'t> Walk<'t> {
    fn new(trace: &'t Trace, window: Window, done: u64, available: u64) -> Self {
        Self { trace, window, damaged: 0, done, available, progress: Progress::new() }
    }

    fn run(mut self, mut turn: impl FnMut(&mut Self) -> Result<Next, Stopped>) -> Result<u64, Stopped> {
        while let Next::More = turn(&mut self)? {}
        Ok(self.damaged)
    }

    fn take(&mut self, batch: Result<Option<&Batch>, ReadError>, visitor: &mut impl Visitor) -> Result<Next, Stopped> {
        match batch {
            Ok(None) => return Ok(Next::End),
            Ok(Some(batch)) => {
                self.show(batch, visitor)?;
                self.done += batch.instructions();
                let (done, available) = (self.done, self.available);
                self.progress.tick(|| format!("{} of {} instructions", grouped(done), grouped(available)));
            }
            Err(error) => {
                eprintln!("trackway: left out: {error}");
                self.damaged += 1;
            }
        }
        Ok(if self.window.left == 0 { Next::End } else { Next::More })
    }

    fn show(&mut self, batch: &Batch, visitor: &mut impl Visitor) -> Result<(), Stopped> {
        if self.window.passes_over(batch.instructions()) {
            return Ok(());
        }
        let thread = batch.thread();
        let mut shown = 0;
        for (number, &(steps_before, ref event)) in batch.events().iter().enumerate() {
            self.show_steps(batch, shown..steps_before, visitor)?;
            shown = steps_before;
            if self.window.is_open() {
                visitor.event(thread, event)?;
                if visitor.wants_accesses() {
                    batch.accesses_of_event(number).try_for_each(|access| visitor.access(batch, &access, None))?;
                }
            }
        }
        self.show_steps(batch, shown..batch.steps().len(), visitor)
    }

    fn show_steps(&mut self, batch: &Batch, steps: Range<usize>, visitor: &mut impl Visitor) -> Result<(), Stopped> {
        let first = steps.start;
        for (step, number) in batch.steps().get(steps).unwrap_or(&[]).iter().zip(first..) {
            if let Some(part) = self.window.cut(step.instructions()) {
                visitor.step(batch.thread(), step, part.clone())?;
                if visitor.wants_accesses() {
                    self.show_accesses(batch, number, step, part, visitor)?;
                }
            }
            if self.window.left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Shows the accesses of those instructions of a step that are in `part`.
    fn show_accesses(
        &self,
        batch: &Batch,
        number: usize,
        step: &Step,
        part: Range<u32>,
        visitor: &mut impl Visitor,
    ) -> Result<(), Stopped> {
        let mut accesses = batch.accesses_of_step(number);
        if part == (0..step.instructions()) {
            return accesses.try_for_each(|access| visitor.access(batch, &access, Some(step)));
        }
        let instructions = self.trace.blocks().instructions(step).skip(part.start as usize).take(part.len());
        let shown: Vec<u64> = instructions.map(|instruction| instruction.address).collect();
        accesses
            .filter(|access| shown.contains(&access.pc()))
            .try_for_each(|access| visitor.access(batch, &access, Some(step)))
    }
}

/// The instructions still to be skipped, and those still to be shown after them.
pub struct Window {
    pub skip: u64,
    pub left: u64,
}

impl Window {
    /// Takes `count` instructions at once, if all of them are to be shown.
    pub fn takes_whole(&mut self, count: u64) -> bool {
        let whole = self.skip == 0 && self.left >= count;
        if whole {
            self.left -= count;
        }
        whole
    }

    /// What is to be shown of `batch`, made into `part`; `None` if nothing is.
    pub fn part<'b>(
        &mut self,
        blocks: &Blocks,
        batch: &Batch,
        part: &'b mut Batch,
        wanted: impl Fn(&Step) -> bool,
    ) -> Option<&'b Batch> {
        if self.passes_over(batch.instructions()) {
            return None;
        }
        batch.select(blocks, part, |step| self.cut_wanted(step.instructions(), wanted(step)).unwrap_or(0..0));
        Some(part)
    }

    fn is_open(&self) -> bool {
        self.skip == 0 && self.left > 0
    }

    /// Skips `count` instructions at once, if all of them are to be skipped.
    pub fn passes_over(&mut self, count: u64) -> bool {
        let whole = self.skip > 0 && self.skip >= count;
        if whole {
            self.skip -= count;
        }
        whole
    }

    /// Those of the next `count` instructions that are to be shown.
    #[inline]
    fn cut(&mut self, count: u32) -> Option<Range<u32>> {
        if self.skip == 0 && self.left > u64::from(count) {
            self.left -= u64::from(count);
            return Some(0..count);
        }
        self.cut_carefully(count)
    }

    /// As [`Self::cut`]; those that are not wanted are not shown, and do not count among those that are.
    pub fn cut_wanted(&mut self, count: u32, wanted: bool) -> Option<Range<u32>> {
        if wanted {
            return self.cut(count);
        }
        self.skip = self.skip.saturating_sub(u64::from(count));
        None
    }

    fn cut_carefully(&mut self, count: u32) -> Option<Range<u32>> {
        let skipped = u32::try_from(self.skip).unwrap_or(u32::MAX).min(count);
        self.skip -= u64::from(skipped);
        let shown = u32::try_from(self.left).unwrap_or(u32::MAX).min(count - skipped);
        self.left -= u64::from(shown);
        (shown > 0).then(|| skipped..skipped + shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_cuts_steps() {
        let mut window = Window { skip: 5, left: 6 };
        assert_eq!(window.cut(3), None);
        assert_eq!(window.cut(4), Some(2..4));
        assert_eq!(window.cut(3), Some(0..3));
        assert_eq!(window.cut(3), Some(0..1));
        assert_eq!((window.skip, window.left), (0, 0));
        assert_eq!(window.cut(1), None);
    }

    #[test]
    fn whole_batches_are_passed_over() {
        let mut window = Window { skip: 10, left: 1 };
        assert!(window.passes_over(10));
        assert!(!window.passes_over(1));
        assert!(!window.passes_over(0));
        let mut window = Window { skip: 10, left: 1 };
        assert!(!window.passes_over(11));
        assert_eq!(window.skip, 10);
    }
}
