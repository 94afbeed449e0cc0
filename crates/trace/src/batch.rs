//! Batches: decoded runs of one thread's steps.
//!
//! A [`Batch`] holds steps, events and accesses side by side; a [`BatchPosition`] says how much of
//! one has been read. `OpenChunk` fills batches, [`crate::Steps`], [`crate::MergedBatches`] and
//! [`crate::RoundRobin`] hand them out.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use entity::{AppPc, ThreadId, Tsc};

use crate::InstructionIndex;
use crate::access::{Access, AccessBuffer, Accesses};
use crate::block::Blocks;
use crate::model::{Event, Step};
use crate::visit::Operand;

/// Steps in a batch, about. Enough to make the work per batch cheap, few enough to stay in the
/// cache.
pub(crate) const BATCH_STEPS: usize = 2048;

/// A decoded run of one thread's steps, with its events and, if they were asked for, its accesses.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) thread: ThreadId,
    pub(crate) image: u32,
    pub(crate) first_instruction: InstructionIndex,
    pub(crate) tsc: Tsc,
    pub(crate) steps: Vec<Step>,
    /// Each event with the number of steps before it.
    pub(crate) events: Vec<(usize, Event)>,
    pub(crate) accesses: AccessBuffer,
}

/// A step or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Step(Step),
    Event(Event),
}

impl Batch {
    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    /// Returns the image of the process that the thread was in.
    #[must_use]
    pub fn image(&self) -> u32 {
        self.image
    }

    /// Returns the index of the batch's first instruction in its thread.
    #[must_use]
    pub fn first_instruction(&self) -> InstructionIndex {
        self.first_instruction
    }

    /// Returns the last timestamp at or before the start of the batch; [`Tsc::NONE`] if there
    /// is none.
    #[must_use]
    pub fn tsc(&self) -> Tsc {
        self.tsc
    }

    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the events, each with the number of steps of this batch that come before it.
    #[must_use]
    pub fn events(&self) -> &[(usize, Event)] {
        &self.events
    }

    /// Returns how many instructions the steps executed.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.instructions())).sum()
    }

    /// Iterates steps and events in order.
    pub fn items(&self) -> impl Iterator<Item = Item> + '_ {
        let mut position = BatchPosition::default();
        std::iter::from_fn(move || position.next(self))
    }

    /// Iterates all memory accesses of the batch in the order they happened. There are none unless
    /// they were asked for, see [`crate::Trace::steps_with_accesses`].
    #[must_use]
    pub fn accesses(&self) -> Accesses<'_> {
        self.accesses.all()
    }

    /// Iterates the memory accesses of one of [`Self::steps`].
    #[must_use]
    #[inline]
    pub fn accesses_of_step(&self, step: usize) -> Accesses<'_> {
        self.accesses.of_step(step)
    }

    /// Returns the stack pointer before the first instruction of one of [`Self::steps`], if that is
    /// the entry of a function for which it was recorded (`record --scopes`).
    #[must_use]
    pub fn stack_pointer_of_step(&self, step: usize) -> Option<u64> {
        self.accesses.stack_pointer(step)
    }

    /// Iterates the memory accesses that belong to one of [`Self::events`]: iterations of a string
    /// instruction that a signal interrupted.
    #[must_use]
    pub fn accesses_of_event(&self, event: usize) -> Accesses<'_> {
        self.accesses.of_event(event)
    }

    /// Returns the bytes that an access of this batch read or wrote, lowest address first; `None`
    /// if values were not recorded.
    #[must_use]
    #[inline]
    pub fn value(&self, access: &Access) -> Option<&[u8]> {
        self.accesses.value(access)
    }

    /// Returns an access of this batch together with its value.
    #[must_use]
    #[inline]
    pub fn operand(&self, access: &Access) -> Operand<'_> {
        self.accesses.operand(access)
    }

    /// Iterates steps and events in order, each with its memory accesses.
    pub fn items_with_accesses(&self) -> impl Iterator<Item = (Item, Accesses<'_>)> + '_ {
        let mut position = BatchPosition::default();
        std::iter::from_fn(move || {
            let before = position;
            let item = position.next(self)?;
            let accesses = match item {
                Item::Step(_) => self.accesses_of_step(before.step),
                Item::Event(_) => self.accesses_of_event(before.event),
            };
            Some((item, accesses))
        })
    }

    /// Copies a selection of the batch to `part`. `selected` returns the wanted instructions of
    /// each step, counted from the step's first. Of the events, those behind a step whose last
    /// instruction is selected are copied, and those at the start.
    ///
    /// ```
    /// # use trackway_trace::{Batch, ThreadId, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut steps = trace.steps(ThreadId::FIRST)?;
    /// let batch = steps.next_batch()?.expect("there is something");
    /// let mut part = Batch::default();
    /// batch.select(trace.blocks(), &mut part, |_| 0..1);
    /// assert_eq!(part.instructions(), batch.steps().len() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(&self, blocks: &Blocks, part: &mut Self, mut selected: impl FnMut(&Step) -> Range<u32>) {
        part.clear();
        (part.thread, part.image, part.tsc) = (self.thread, self.image, self.tsc);
        part.first_instruction = self.first_instruction;
        part.accesses.start_copy(&self.accesses);
        let (mut position, mut is_wanted) = (BatchPosition::default(), true);
        loop {
            let before = position;
            match position.next(self) {
                None => break,
                Some(Item::Event(event)) if is_wanted => {
                    part.events.push((part.steps.len(), event));
                    part.accesses.copy_event(&self.accesses, before.event);
                }
                Some(Item::Event(_)) => {}
                Some(Item::Step(step)) => {
                    let range = selected(&step);
                    is_wanted = range.end == step.instructions();
                    if part.steps.is_empty() {
                        let left_out = if range.is_empty() { step.instructions() } else { range.start };
                        part.first_instruction += u64::from(left_out);
                    }
                    part.add_part(blocks, self, before.step, range);
                }
            }
        }
    }

    /// Appends the instructions in `range` of a step of `other`.
    fn add_part(&mut self, blocks: &Blocks, other: &Self, number: usize, range: Range<u32>) {
        let Some(&step) = other.steps.get(number).filter(|_| !range.is_empty()) else { return };
        if range == (0..step.instructions()) {
            self.steps.push(step);
            return self.accesses.copy_step(&other.accesses, number, |_| true);
        }
        let address = |index: u32| blocks.instructions(&step).nth(index as usize).map(|found| found.address);
        let (from, to) = (address(range.start).unwrap_or(AppPc::NONE), address(range.end));
        self.accesses.copy_step(&other.accesses, number, |pc| from <= pc && to.is_none_or(|to| pc < to));
        let cut = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let rest = step.skip(cut(range.start));
        self.steps.push(match to {
            None => rest,
            Some(to) => rest.cut(cut(range.end - range.start), to),
        });
    }

    /// Moves on from `position` and copies what it passes to `part`, up to and with the step for
    /// which `is_last` returns true. `is_last` gets every step, or `None` for an event, where its
    /// answer has no effect. It also gets the number of their accesses, which may be too large to
    /// iterate them.
    pub(crate) fn take_part(
        &self,
        position: &mut BatchPosition,
        part: &mut Self,
        mut is_last: impl FnMut(Option<&Step>, u64) -> bool,
    ) {
        part.clear();
        (part.thread, part.image, part.tsc) = (self.thread, self.image, self.tsc);
        part.first_instruction = self.first_instruction + position.instructions;
        part.accesses.start_copy(&self.accesses);
        loop {
            let before = *position;
            match position.next(self) {
                None => break,
                Some(Item::Event(event)) => {
                    part.events.push((part.steps.len(), event));
                    part.accesses.copy_event(&self.accesses, before.event);
                    is_last(None, self.accesses_of_event(before.event).total());
                }
                Some(Item::Step(step)) => {
                    part.steps.push(step);
                    part.accesses.copy_step(&self.accesses, before.step, |_| true);
                    position.instructions += u64::from(step.instructions());
                    if is_last(Some(&step), self.accesses_of_step(before.step).total()) {
                        break;
                    }
                }
            }
        }
    }

    /// Sets the target of the last step, whose terminator is indirect.
    #[inline]
    pub(crate) fn set_last_target(&mut self, address: AppPc) {
        if let Some(last) = self.steps.last_mut() {
            *last = last.with_next(address);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.events.clear();
        self.accesses.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.events.is_empty()
    }

    /// Drops all that comes before an instruction of the thread.
    pub(crate) fn drop_before(&mut self, blocks: &Blocks, start: InstructionIndex) {
        let mut at = self.first_instruction;
        let mut dropped = 0;
        for step in &mut self.steps {
            let end = at + u64::from(step.instructions());
            if end > start {
                let skipped = u16::try_from(start - at).unwrap_or(0);
                *step = step.skip(skipped);
                at += u64::from(skipped);
                break;
            }
            at = end;
            dropped += 1;
        }
        self.steps.drain(..dropped.min(self.steps.len()));
        let first_pc = self.steps.first().and_then(|step| blocks.instructions(step).next());
        let events_dropped = self.events.iter().take_while(|(steps_before, _)| *steps_before < dropped).count();
        self.accesses.drop_before(dropped, events_dropped, first_pc.map_or(AppPc::NONE, |first| first.address));
        self.events.drain(..events_dropped);
        for (steps_before, _) in &mut self.events {
            *steps_before -= dropped;
        }
        self.first_instruction = at;
    }
}

/// A position in a batch: how much of it has been read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchPosition {
    pub(crate) step: usize,
    pub(crate) event: usize,
    /// Instructions of the steps that [`Batch::take_part`] has passed.
    instructions: u64,
}

impl BatchPosition {
    /// Returns the position behind the last step and event.
    pub(crate) fn end(batch: &Batch) -> Self {
        Self { step: batch.steps.len(), event: batch.events.len(), instructions: 0 }
    }

    /// Whether all of the batch has been read.
    pub(crate) fn is_at_end(&self, batch: &Batch) -> bool {
        self.step >= batch.steps.len() && self.event >= batch.events.len()
    }

    pub(crate) fn next(&mut self, batch: &Batch) -> Option<Item> {
        if let Some(&(before, event)) = batch.events.get(self.event)
            && before <= self.step
        {
            self.event += 1;
            return Some(Item::Event(event));
        }
        let step = *batch.steps.get(self.step)?;
        self.step += 1;
        Some(Item::Step(step))
    }
}
