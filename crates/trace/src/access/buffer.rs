//! The accesses of a batch, step by step and event by event. [`decode`] appends what access
//! descriptors say, [`explicit`] what events record.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod decode;
mod explicit;

use entity::AppPc;

use super::iterate::Accesses;
use super::string_run::StringRun;
use super::{Access, NO_VALUE};
use crate::descriptors::{DescriptorTable, StackPointer};
use crate::visit::Operand;

pub(crate) use decode::Interruption;

/// The accesses of a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessBuffer {
    entries: Vec<Access>,
    runs: Vec<StringRun>,
    values: Vec<u8>,
    /// The range in `entries` of each step.
    steps: Vec<[u32; 2]>,
    /// The range in `entries` of each event.
    events: Vec<[u32; 2]>,
    /// The stack pointers at the entries of functions, by step.
    stack_pointers: Vec<StepStackPointer>,
    /// Accesses that could not be decoded.
    pub lost: u64,
}

/// The stack pointer at the start of a step, which is the entry of a function.
#[derive(Clone, Copy, Debug)]
struct StepStackPointer {
    /// Index of the step.
    step: u32,
    pc: AppPc,
    value: u64,
}

impl AccessBuffer {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.runs.clear();
        self.values.clear();
        self.steps.clear();
        self.events.clear();
        self.stack_pointers.clear();
        self.lost = 0;
    }

    fn entry_count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn of_step(&self, step: usize) -> Accesses<'_> {
        self.part(self.steps.get(step))
    }

    /// Returns the stack pointer at the start of a step, if it was recorded.
    pub(crate) fn stack_pointer(&self, step: usize) -> Option<u64> {
        let step = u32::try_from(step).ok()?;
        let at = self.stack_pointers.binary_search_by_key(&step, |pointer| pointer.step).ok()?;
        self.stack_pointers.get(at).map(|pointer| pointer.value)
    }

    /// Notes the stack pointers of a fragment whose first block is the next step and which executes
    /// `blocks` blocks.
    fn push_stack_pointers(&mut self, descriptors: &DescriptorTable, number: u32, blocks: u16, data: &[u8]) {
        if !descriptors.has_stack_pointers() {
            return;
        }
        let Ok(first) = u32::try_from(self.steps.len()) else { return };
        let of_step = |pointer: &StackPointer| {
            let step = first.checked_add(u32::from(pointer.block))?;
            Some(StepStackPointer { step, pc: pointer.pc, value: pointer.value(data)? })
        };
        self.stack_pointers.extend(descriptors.stack_pointers(number, blocks).filter_map(of_step));
    }

    pub(crate) fn of_event(&self, event: usize) -> Accesses<'_> {
        self.part(self.events.get(event))
    }

    pub(crate) fn all(&self) -> Accesses<'_> {
        Accesses { entries: self.entries.iter(), runs: &self.runs, current: None }
    }

    fn part(&self, range: Option<&[u32; 2]>) -> Accesses<'_> {
        let &[start, end] = range.unwrap_or(&[0, 0]);
        let entries = self.entries.get(start as usize..end as usize).unwrap_or(&[]);
        Accesses { entries: entries.iter(), runs: &self.runs, current: None }
    }

    /// Returns the bytes that were read or written.
    pub(crate) fn value(&self, access: &Access) -> Option<&[u8]> {
        if access.value == NO_VALUE {
            return None;
        }
        let at = access.value as usize;
        self.values.get(at..at.checked_add(access.size() as usize)?)
    }

    /// Returns the position at which explicit accesses begin, for [`Self::push_path`] or
    /// [`Self::push_event`].
    pub(crate) fn mark(&self) -> u32 {
        self.entry_count()
    }

    /// Returns the address of the instruction whose accesses begin at `mark`.
    pub(crate) fn pc_at(&self, mark: u32) -> AppPc {
        self.entries.get(mark as usize).map_or(AppPc::NONE, |entry| entry.pc)
    }

    fn keep(&mut self, data: &[u8], keep_values: bool) -> Option<u32> {
        let at = u32::try_from(self.values.len()).ok().filter(|_| keep_values)?;
        self.values.extend_from_slice(data);
        Some(at)
    }

    /// Appends `count` steps without accesses of their own. Accesses from `mark` on belong to the
    /// first.
    pub(crate) fn push_empty_steps(&mut self, count: usize, mark: Option<u32>) {
        let end = self.entry_count();
        let mut start = mark.unwrap_or(end);
        for _ in 0..count {
            self.steps.push([start, end]);
            start = end;
        }
    }

    /// Appends an event. The accesses from `mark` on belong to it.
    pub(crate) fn push_event(&mut self, mark: Option<u32>) {
        let end = self.entry_count();
        self.events.push([mark.unwrap_or(end), end]);
    }

    /// Moves the accesses from `mark` to `end` behind all others and returns their new position.
    pub(crate) fn move_to_end(&mut self, mark: u32, end: u32) -> u32 {
        let count = end.saturating_sub(mark);
        if let Some(tail) = self.entries.get_mut(mark as usize..)
            && count as usize <= tail.len()
        {
            tail.rotate_left(count as usize);
        }
        for step in self.steps.iter_mut().rev().take_while(|step| step[0] >= end) {
            *step = step.map(|place| place - count);
        }
        self.entry_count().saturating_sub(count)
    }

    /// Drops the first `steps` steps and `events` events, and the accesses before `pc` of the step
    /// that is first then.
    pub(crate) fn drop_before(&mut self, steps: usize, events: usize, pc: AppPc) {
        self.steps.drain(..steps.min(self.steps.len()));
        let dropped = u32::try_from(steps).unwrap_or(u32::MAX);
        let is_left =
            |pointer: &StepStackPointer| pointer.step > dropped || pointer.step == dropped && pointer.pc >= pc;
        self.stack_pointers.retain(is_left);
        self.stack_pointers.iter_mut().for_each(|pointer| pointer.step -= dropped);
        self.events.drain(..events.min(self.events.len()));
        let place = self.entry_count();
        let &[start, end] = self.steps.first().unwrap_or(&[place, place]);
        let entries = self.entries.get(start as usize..end as usize).unwrap_or(&[]);
        let skipped = entries.iter().take_while(|access| access.pc < pc).count();
        self.remove(start, u32::try_from(skipped).unwrap_or(0));
        let before = self.events.first().map_or(start, |event| event[0].min(start));
        self.remove(0, before);
    }

    /// Returns an access together with its value.
    #[inline]
    pub(crate) fn operand(&self, access: &Access) -> Operand<'_> {
        // Without a value the position is behind all bytes, and the operand has none.
        let (data, at) = (&*self.values, access.value as usize);
        let Access { pc, address, .. } = *access;
        Operand { pc, address, size: access.size(), is_write: access.is_write(), data, at }
    }

    /// Starts a copy of `other`: takes over the runs and values that its entries refer to.
    pub(crate) fn start_copy(&mut self, other: &Self) {
        self.clear();
        self.runs.clone_from(&other.runs);
        self.values.clone_from(&other.values);
        self.lost = other.lost;
    }

    /// Copies the accesses of a step of `other` whose instructions are wanted.
    pub(crate) fn copy_step(&mut self, other: &Self, step: usize, is_wanted: impl Fn(AppPc) -> bool) {
        let start = self.entry_count();
        let entries = other.entries_in(other.steps.get(step));
        self.entries.extend(entries.iter().filter(|entry| is_wanted(entry.pc)));
        let place = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        let is_own = |pointer: &&StepStackPointer| pointer.step as usize == step && is_wanted(pointer.pc);
        let own = other.stack_pointers.iter().find(is_own);
        self.stack_pointers.extend(own.map(|pointer| StepStackPointer { step: place, ..*pointer }));
        self.steps.push([start, self.entry_count()]);
    }

    /// Copies the accesses of an event of `other`.
    pub(crate) fn copy_event(&mut self, other: &Self, event: usize) {
        let start = self.entry_count();
        self.entries.extend_from_slice(other.entries_in(other.events.get(event)));
        self.events.push([start, self.entry_count()]);
    }

    fn entries_in(&self, range: Option<&[u32; 2]>) -> &[Access] {
        let &[start, end] = range.unwrap_or(&[0, 0]);
        self.entries.get(start as usize..end as usize).unwrap_or(&[])
    }

    /// Removes `count` entries from `start` on.
    fn remove(&mut self, start: u32, count: u32) {
        let end = (start as usize).saturating_add(count as usize).min(self.entries.len());
        self.entries.drain((start as usize).min(end)..end);
        for range in self.steps.iter_mut().chain(&mut self.events) {
            *range = range.map(|place| if place > start { place.saturating_sub(count).max(start) } else { place });
        }
    }
}
