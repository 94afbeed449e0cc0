//! Walks the part of a trace that the user selected (one thread or all, from one instruction to another), step by step.
//!
//! Damaged chunks are left out: each is told on standard error, and the walk goes on behind it.

use std::ops::Range;

use trace::{Batch, Event, ReadError, Step, Trace};

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
}

/// Opens the trace and makes sure that the selected thread is in it.
pub fn open(input: &Input) -> Result<Trace, Failure> {
    let trace = Trace::open(&input.file)?;
    match input.thread {
        Some(thread) if !trace.threads().iter().any(|summary| summary.info.thread == thread) => {
            Err(ReadError::NoThread { thread }.into())
        }
        _ => Ok(trace),
    }
}

/// Says so if the trace was never finished; counts as one damaged place.
pub fn tell_unfinished(trace: &Trace, input: &Input) -> u64 {
    if trace.is_finished() {
        return 0;
    }
    let file = input.file.display();
    eprintln!("trackway: {file} ends early (the recorder was killed or the file was cut); what is there was read");
    1
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
            let mut steps = match input.skip {
                0 => trace.steps(thread)?,
                skip => trace.seek(thread, skip)?,
            };
            Walk::new(Window { skip: 0, left: length }, available).run(|walk| walk.take(steps.next_batch(), visitor))
        }
        None => {
            let mut merged = trace.merged();
            let window = Window { skip: input.skip, left: length };
            let available = trace.summary().totals.instructions;
            Walk::new(window, available).run(|walk| walk.take(merged.next_batch(), visitor))
        }
    }
}

fn instructions_of(trace: &Trace, thread: u32) -> u64 {
    let found = trace.threads().iter().find(|summary| summary.info.thread == thread);
    found.map_or(0, |summary| summary.counts.instructions)
}

/// How far a walk has come.
struct Walk {
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

impl Walk {
    fn new(window: Window, available: u64) -> Self {
        Self { window, damaged: 0, done: 0, available, progress: Progress::new() }
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
        for &(steps_before, ref event) in batch.events() {
            self.show_steps(thread, batch.steps().get(shown..steps_before).unwrap_or(&[]), visitor)?;
            shown = steps_before;
            if self.window.is_open() {
                visitor.event(thread, event)?;
            }
        }
        self.show_steps(thread, batch.steps().get(shown..).unwrap_or(&[]), visitor)
    }

    fn show_steps(&mut self, thread: u32, steps: &[Step], visitor: &mut impl Visitor) -> Result<(), Stopped> {
        for step in steps {
            if let Some(part) = self.window.cut(step.instructions()) {
                visitor.step(thread, step, part)?;
            }
            if self.window.left == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// The instructions still to be skipped, and those still to be shown after them.
struct Window {
    skip: u64,
    left: u64,
}

impl Window {
    fn is_open(&self) -> bool {
        self.skip == 0 && self.left > 0
    }

    /// Skips `count` instructions at once, if all of them are to be skipped.
    fn passes_over(&mut self, count: u64) -> bool {
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
