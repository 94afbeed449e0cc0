//! Visiting the accesses of threads as they are read: without lists of steps or accesses in
//! between, and with values in place.
//!
//! Most accesses of a path follow from one descriptor each, and [`PathVisit`] computes them in one
//! pass. Explicit accesses, and those whose number only the data says, go through an
//! [`AccessBuffer`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::words::{Word, Words};
use entity::{AppPc, PathId, Tsc};
use wire::word;

use crate::access::{AccessBuffer, AccessData};
use crate::data::{DataPosition, DataSource};
use crate::descriptors::{CompiledAccess, Form, PathAccesses};
use crate::event::{self, RawEvent};
use crate::model::Event;
use crate::open_chunk::OpenChunk;
use crate::program::Program;

/// Receives the instructions, accesses and events of a thread, in order.
pub trait AccessVisitor {
    /// Called for executed instructions, before their accesses.
    fn executed(&mut self, instructions: u64);

    fn operand(&mut self, operand: Operand<'_>);

    /// Called at the entry `pc` of a function for which the stack pointer was recorded, before the
    /// accesses of the function.
    fn stack_pointer(&mut self, pc: AppPc, stack_pointer: u64) {
        let _ = (pc, stack_pointer);
    }

    fn event(&mut self, event: &Event);
}

/// One memory access and its value.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'d> {
    /// Address of the instruction.
    pub pc: AppPc,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub size: u32,
    pub is_write: bool,
    /// Position of the value in `data`; behind its end if there is none.
    pub(crate) at: usize,
    pub(crate) data: &'d [u8],
}

impl<'d> Operand<'d> {
    /// Returns the bytes that were read or written, lowest address first; `None` if values were not
    /// recorded.
    #[must_use]
    #[inline]
    pub fn value(&self) -> Option<&'d [u8]> {
        self.data.get(self.at..)?.get(..self.size as usize)
    }

    /// Returns `N` bytes from the start of the value on, with whatever is behind it. Faster than
    /// [`Self::value`], but `None` near the end of the data even if there is a value.
    #[must_use]
    #[inline(always)]
    pub fn first_bytes<const N: usize>(&self) -> Option<&'d [u8; N]> {
        self.data.get(self.at..self.at.checked_add(N)?)?.as_array()
    }
}

impl OpenChunk {
    /// Visits what comes next, up to a timestamp that is not before `until`, or about `most` words.
    pub(crate) fn visit(
        &mut self,
        program: &Program,
        until: Tsc,
        most: usize,
        scratch: &mut AccessBuffer,
        visitor: &mut impl AccessVisitor,
    ) {
        scratch.clear();
        let source = DataSource { program, data: &self.data };
        let mut visit = PathVisit { source, place: self.data_position, scratch, visitor, instructions: 0 };
        let (from, limit) = (self.at, self.at.saturating_add(most));
        loop {
            // Explicit accesses need at least one word more.
            let end = limit.max(self.at + usize::from(visit.is_pending())).min(self.words.len());
            self.at += visit.paths(self.words.get(self.at..end).unwrap_or(&[]));
            let may_end = self.at > from && !visit.is_pending();
            let words = Words::new(self.words.get(self.at..).unwrap_or(&[]));
            let Some(word) = words.peek().filter(|_| self.at < limit || !may_end) else { break };
            let Word::Event(event) = word else { continue };
            let raw = event::read(event.words());
            let is_late = |tsc: Option<Tsc>| tsc.is_some_and(|tsc| tsc >= until);
            if may_end && is_late(raw.and_then(|raw| raw.begins())) {
                break;
            }
            self.tsc = raw.and_then(|raw| raw.tsc()).unwrap_or(self.tsc);
            self.at += event.length();
            visit.event(raw, event.words());
            if is_late(raw.and_then(|raw| raw.ends())) {
                break;
            }
        }
        // Explicit accesses that no path or signal followed in this chunk.
        visit.visit_buffered();
        self.data_position = visit.place.map(|place| DataPosition { pending: None, ..place });
        self.instruction += visit.instructions;
    }
}

/// A visit of a run of words.
struct PathVisit<'p, 's, W> {
    source: DataSource<'p>,
    /// How much of the data was read; `None` if there is no intact data.
    place: Option<DataPosition>,
    /// Explicit accesses that belong to the next path or signal; otherwise empty.
    scratch: &'s mut AccessBuffer,
    visitor: &'s mut W,
    instructions: u64,
}

impl<W: AccessVisitor> PathVisit<'_, '_, W> {
    /// Whether explicit accesses wait for the path or signal that they belong to.
    #[inline]
    fn is_pending(&self) -> bool {
        self.place.is_some_and(|place| place.pending.is_some())
    }

    #[inline]
    fn executed(&mut self, instructions: u64) {
        self.instructions += instructions;
        self.visitor.executed(instructions);
    }

    /// Visits the paths at the start of `words`, up to an event, and returns their number.
    fn paths(&mut self, words: &[u32]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the processor has the features that the function enables; they were detected
            // just now.
            return unsafe { self.paths_with_shifts(words) };
        }
        self.each_path(words)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2")]
    fn paths_with_shifts(&mut self, words: &[u32]) -> usize {
        self.each_path(words)
    }

    #[inline(always)]
    fn each_path(&mut self, words: &[u32]) -> usize {
        let paths = words.iter().map_while(|&word| word::path(word));
        if paths.clone().next().is_some() && self.is_pending() {
            self.visit_pending();
        }
        let mut count = 0;
        for path in paths {
            count += 1;
            match self.source.program.descriptors.path(path) {
                Some(accesses) => self.path(accesses),
                None => self.without_descriptors(path),
            }
        }
        count
    }

    /// Visits a path without access descriptors.
    #[cold]
    fn without_descriptors(&mut self, path: PathId) {
        match self.source.program.counts(path) {
            Some(counts) => self.executed(counts.instructions()),
            None => self.visitor.event(&Event::Lost),
        }
    }

    /// Visits the accesses of a path.
    #[inline(always)]
    fn path(&mut self, path: PathAccesses) {
        self.executed(path.instructions.into());
        let Self { source, place: Some(place), scratch, visitor, .. } = self else { return };
        let bytes = usize::from(path.span.bytes);
        // With the data behind it, so that visitors can read a few bytes more than a value has.
        let data = source.data.get(place.at..).filter(|data| data.len() >= bytes).unwrap_or(&[]);
        place.at += bytes;
        let access_data = AccessData::new(data, place.context());
        let row = data.get(..bytes).unwrap_or(&[]);
        let descriptors = &source.program.descriptors;
        let mut rest = descriptors.accesses(path);
        if descriptors.has_stack_pointers() {
            let mut done = 0;
            for pointer in descriptors.stack_pointers(path.span.descriptors, path.span.blocks) {
                let before = (pointer.accesses_before as usize).saturating_sub(done);
                let (callers, own) = rest.split_at_checked(before).unwrap_or((rest, &[]));
                visit_accesses(callers, &access_data, row, place, scratch, *visitor);
                (rest, done) = (own, done + before);
                if let Some(value) = pointer.value(data) {
                    visitor.stack_pointer(pointer.pc, value);
                }
            }
        }
        visit_accesses(rest, &access_data, row, place, scratch, *visitor);
    }

    /// Visits the event at the start of `words` and its accesses.
    #[cold]
    fn event(&mut self, raw: Option<RawEvent>, words: &[u32]) {
        let Some(raw) = raw else { return self.visitor.event(&Event::Lost) };
        let steps = raw.interrupted_steps(self.source.program);
        if let Some((whole, part)) = &steps {
            self.executed(whole.iter().chain(part).map(|step| u64::from(step.instructions())).sum());
        }
        if let Some(place) = &mut self.place {
            let count = steps.as_ref().map(|(whole, part)| (whole.len(), part.is_some()));
            place.event(self.source, words, &raw, count, self.scratch);
        }
        if !self.is_pending() {
            self.visit_buffered();
        }
        if steps.is_none() {
            self.visitor.event(&Event::Lost);
        }
        if let Some(event) = &raw.event {
            self.visitor.event(event);
        }
    }

    /// Visits the explicit accesses, which belong to the path that comes now.
    #[cold]
    fn visit_pending(&mut self) {
        if let Some(place) = &mut self.place {
            place.pending = None;
        }
        self.visit_buffered();
    }

    #[cold]
    fn visit_buffered(&mut self) {
        visit_all(self.scratch, self.visitor);
    }
}

/// Visits accesses of a path, whose data is `row`.
#[inline(always)]
fn visit_accesses(
    accesses: &[CompiledAccess],
    access_data: &AccessData<'_>,
    row: &[u8],
    place: &DataPosition,
    scratch: &mut AccessBuffer,
    visitor: &mut impl AccessVisitor,
) {
    let mut rest = accesses;
    while let Some((access, behind)) = rest.split_first() {
        let address = match access.form {
            Form::Based => access_data.based(access),
            Form::Absolute => Some(access.displacement),
            Form::Plain => access_data.address(access, 0),
            _ => {
                rest = complicated(rest, row, place, scratch, visitor);
                continue;
            }
        };
        rest = behind;
        let Some(address) = address else { continue };
        let (size, is_write) = (u32::from(access.size), access.writes());
        let (data, at) = access_data.value_in(access);
        visitor.operand(Operand { pc: access.pc, address, size, is_write, data, at });
    }
}

/// Visits the first of `accesses`, which is not a simple one, and returns the others.
#[cold]
#[inline(never)]
fn complicated<'p>(
    accesses: &'p [CompiledAccess],
    row: &[u8],
    place: &DataPosition,
    scratch: &mut AccessBuffer,
    visitor: &mut impl AccessVisitor,
) -> &'p [CompiledAccess] {
    let rest = scratch.push_first(accesses, row, place.context());
    visit_all(scratch, visitor);
    rest
}

/// Visits all accesses in the buffer, and clears it.
fn visit_all(buffer: &mut AccessBuffer, visitor: &mut impl AccessVisitor) {
    buffer.all().for_each(|access| visitor.operand(buffer.operand(&access)));
    buffer.clear();
}
