//! Visits the part of a trace that the user selected (one thread or all, from one instruction to
//! another), step by step.
//!
//! Damaged chunks are left out: each is reported on standard error, and the walk continues behind
//! it. The verbs implement [`Visitor`] and call [`walk`].

use std::ops::Range;
use std::path::Path;

use trace::{
    Access, AppPc, Batch, DataMode, Event, InstructionIndex, InstructionWindow, MergedBatches, ReadError, Step,
    ThreadId, Trace,
};

use crate::arguments::Input;
use crate::digits::grouped;
use crate::failure::Failure;
use crate::output::Stopped;
use crate::progress::Progress;

/// Receives the steps, events and accesses of a walk, thread by thread.
pub trait Visitor {
    /// Takes a step. `part` are its instructions that are selected, which usually are all.
    fn step(&mut self, thread: ThreadId, step: &Step, part: Range<u32>) -> Result<(), Stopped>;
    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped>;
    /// Returns whether memory accesses are read. Then [`Self::access`] is called for each, after
    /// its step or event.
    fn wants_accesses(&self) -> bool {
        false
    }
    /// Takes an access of `step`, or of an event if there is no step.
    fn access(&mut self, batch: &Batch, access: &Access, step: Option<&Step>) -> Result<(), Stopped> {
        let _ = (batch, access, step);
        Ok(())
    }
}

/// Opens the trace and checks that the selected thread is in it.
pub fn open(input: &Input) -> Result<Trace, Failure> {
    let trace = Trace::open(&input.file)?;
    if let Some(thread) = input.thread.filter(|thread| trace.threads().iter().all(|own| own.info.thread != *thread)) {
        return Err(ReadError::NoThread { thread }.into());
    }
    Ok(trace)
}

/// Warns if nothing is selected, because all results will be zero.
pub fn warn_if_nothing_is_selected(trace: &Trace, input: &Input) {
    let available = input.excerpt().available(trace);
    if input.skip > 0 && input.skip >= available {
        let (start, available) = (grouped(input.skip), grouped(available));
        eprintln!("trackway: nothing is selected: there are {available} instructions, none from number {start} on");
    }
}

/// Fails if the trace has no memory accesses.
pub fn require_data(trace: &Trace) -> Result<(), Failure> {
    match trace.data() {
        DataMode::None => Err(ReadError::NoData.into()),
        DataMode::Addresses | DataMode::Values => Ok(()),
    }
}

/// Fails if the trace has no values of memory accesses.
pub fn require_values(trace: &Trace) -> Result<(), Failure> {
    require_data(trace)?;
    match trace.data() {
        DataMode::Values => Ok(()),
        _ => Err(Failure::new("the values of memory accesses were not recorded in this trace")
            .hint("record with --data values to have them")),
    }
}

/// Warns if the trace was never finished, and returns 1 for a damaged place, or 0.
pub fn warn_if_unfinished(trace: &Trace, file: &Path) -> u64 {
    if trace.is_finished() {
        return 0;
    }
    let file = file.display();
    eprintln!("trackway: {file} ends early (the recorder was killed or the file was cut); what is there was read");
    1
}

/// Returns a reader of all threads.
pub fn merged(trace: &Trace, with_accesses: bool) -> Result<MergedBatches<'_>, ReadError> {
    if with_accesses { trace.merged_with_accesses() } else { Ok(trace.merged()) }
}

/// Passes the selected part to `visitor` and returns the number of damaged places that were left
/// out.
pub fn walk(trace: &Trace, input: &Input, visitor: &mut impl Visitor) -> Result<u64, Stopped> {
    let length = input.length.unwrap_or(u64::MAX);
    match input.thread {
        Some(thread) => {
            let available = input.excerpt().available(trace);
            if input.skip >= available {
                return Ok(0);
            }
            let mut steps = match (input.excerpt().start, visitor.wants_accesses()) {
                (InstructionIndex::FIRST, false) => trace.steps(thread)?,
                (InstructionIndex::FIRST, true) => trace.steps_with_accesses(thread)?,
                (start, false) => trace.seek(thread, start)?,
                (start, true) => trace.seek_with_accesses(thread, start)?,
            };
            let window = InstructionWindow { skip: 0, left: length };
            Walk::new(trace, window, 0, available).run(|walk| walk.take(steps.next_batch(), visitor))
        }
        None => {
            let mut merged = merged(trace, visitor.wants_accesses())?;
            let window = InstructionWindow { skip: merged.seek(input.excerpt().start), left: length };
            let available = trace.summary().totals.instructions;
            let done = input.skip.saturating_sub(window.skip);
            Walk::new(trace, window, done, available).run(|walk| walk.take(merged.next_batch(), visitor))
        }
    }
}

/// The state of a walk.
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
                self.visit_batch(batch, visitor)?;
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

    fn visit_batch(&mut self, batch: &Batch, visitor: &mut impl Visitor) -> Result<(), Stopped> {
        if self.window.skip_whole(batch.instructions()) {
            return Ok(());
        }
        let thread = batch.thread();
        let mut visited = 0;
        for (number, &(steps_before, ref event)) in batch.events().iter().enumerate() {
            self.visit_steps(batch, visited..steps_before, visitor)?;
            visited = steps_before;
            if self.window.is_open() {
                visitor.event(thread, event)?;
                if visitor.wants_accesses() {
                    batch.accesses_of_event(number).try_for_each(|access| visitor.access(batch, &access, None))?;
                }
            }
        }
        self.visit_steps(batch, visited..batch.steps().len(), visitor)
    }

    fn visit_steps(&mut self, batch: &Batch, steps: Range<usize>, visitor: &mut impl Visitor) -> Result<(), Stopped> {
        let first = steps.start;
        for (step, number) in batch.steps().get(steps).unwrap_or(&[]).iter().zip(first..) {
            if let Some(part) = self.window.cut(step.instructions()) {
                visitor.step(batch.thread(), step, part.clone())?;
                if visitor.wants_accesses() {
                    self.visit_accesses(batch, number, step, part, visitor)?;
                }
            }
            if self.window.left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Passes the accesses of those instructions of a step that are in `part`.
    fn visit_accesses(
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
        let addresses: Vec<AppPc> = instructions.map(|instruction| instruction.address).collect();
        accesses
            .filter(|access| addresses.contains(&access.pc()))
            .try_for_each(|access| visitor.access(batch, &access, Some(step)))
    }
}
