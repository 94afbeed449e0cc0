//! Walks the part of a trace that the user selected (one thread or all, from one instruction to another), step by step.
//!
//! Damaged chunks are left out: each is told on standard error, and the walk goes on behind it.

use std::ops::Range;
use std::path::Path;

use trace::{Access, Batch, DataMode, Event, InstructionWindow, Merged, ReadError, Step, Trace};

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
    let available = input.excerpt().available(trace);
    if input.skip > 0 && input.skip >= available {
        let (start, available) = (grouped(input.skip), grouped(available));
        eprintln!("trackway: nothing is selected: there are {available} instructions, none from number {start} on");
    }
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

/// All threads of a trace.
pub fn merged(trace: &Trace, with_accesses: bool) -> Result<Merged<'_>, ReadError> {
    if with_accesses { trace.merged_with_accesses() } else { Ok(trace.merged()) }
}

/// Shows the selected part to `visitor` and gives the number of damaged places that were left out.
pub fn walk(trace: &Trace, input: &Input, visitor: &mut impl Visitor) -> Result<u64, Stopped> {
    let length = input.length.unwrap_or(u64::MAX);
    match input.thread {
        Some(thread) => {
            let available = input.excerpt().available(trace);
            if input.skip >= available {
                return Ok(0);
            }
            let mut steps = match (input.skip, visitor.wants_accesses()) {
                (0, false) => trace.steps(thread)?,
                (0, true) => trace.steps_with_accesses(thread)?,
                (skip, false) => trace.seek(thread, skip)?,
                (skip, true) => trace.seek_with_accesses(thread, skip)?,
            };
            let window = InstructionWindow { skip: 0, left: length };
            Walk::new(trace, window, 0, available).run(|walk| walk.take(steps.next_batch(), visitor))
        }
        None => {
            let mut merged = merged(trace, visitor.wants_accesses())?;
            let window = InstructionWindow { skip: merged.seek(input.skip), left: length };
            let available = trace.summary().totals.instructions;
            let done = input.skip.saturating_sub(window.skip);
            Walk::new(trace, window, done, available).run(|walk| walk.take(merged.next_batch(), visitor))
        }
    }
}

/// How far a walk has come.
struct Walk<'t> {
    trace: &'t Trace,
    window: InstructionWindow,
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
    fn new(trace: &'t Trace, window: InstructionWindow, done: u64, available: u64) -> Self {
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
        if self.window.skip_whole(batch.instructions()) {
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
