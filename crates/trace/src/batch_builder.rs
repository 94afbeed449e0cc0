//! Filling a batch: a [`BatchBuilder`] turns paths and events into steps, events and accesses. Only
//! `OpenChunk` uses it.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::{AppPc, PathId};

use crate::batch::Batch;
use crate::data::{DataPosition, DataSource};
use crate::event::RawEvent;
use crate::model::{Event, Terminator};
use crate::program::Program;

/// A batch that is being filled.
pub(crate) struct BatchBuilder<'p, 'b, 'd> {
    pub program: &'p Program,
    pub batch: &'b mut Batch,
    /// Whether the target of the last step is not known yet, because its terminator is indirect.
    pub indirect: bool,
    /// The data that accesses are decoded from, if they are wanted, and how much of it was read.
    pub source: Option<(DataSource<'d>, DataPosition)>,
}

impl BatchBuilder<'_, '_, '_> {
    /// Appends the steps of a path.
    #[inline]
    pub(crate) fn path(&mut self, number: PathId) {
        let Some(path) = self.program.path(number) else { return self.lost() };
        if self.indirect {
            let next = path.steps.first().unwrap_or(&path.last).block().0;
            let address = self.program.blocks.node(next).map_or(AppPc::NONE, |node| node.address);
            self.batch.set_last_target(address);
        }
        self.batch.steps.extend_from_slice(path.steps);
        self.batch.steps.push(path.last);
        self.indirect = path.last.terminator() == Terminator::Indirect;
        if let Some((source, position)) = &mut self.source {
            position.path(*source, number, path.steps.len() + 1, &mut self.batch.accesses);
        }
    }

    /// Appends the event at the start of `words`, which `raw` is decoded from, and the steps that
    /// it interrupted.
    pub(crate) fn event(&mut self, raw: Option<RawEvent>, words: &[u32]) {
        let Some(raw) = raw else { return self.lost() };
        let steps = raw.interrupted_steps(self.program);
        if let Some((source, position)) = &mut self.source {
            let count = steps.as_ref().map(|(whole, part)| (whole.len(), part.is_some()));
            // A signal with impossible fields is preceded by a `Lost` event, which has no accesses.
            if steps.is_none() {
                self.batch.accesses.push_event(None);
            }
            position.event(*source, words, &raw, count, &mut self.batch.accesses);
        }
        let Some(event) = raw.event else { return };
        if self.indirect
            && let Some(pc) = raw.location(self.program).known_pc()
        {
            self.batch.set_last_target(pc);
            self.indirect = false;
        }
        match steps {
            Some((whole, part)) => self.batch.steps.extend(whole.iter().chain(&part)),
            None => self.push_event(Event::Lost),
        }
        self.push_event(event);
    }

    fn push_event(&mut self, event: Event) {
        self.batch.events.push((self.batch.steps.len(), event));
    }

    /// Whether explicit accesses wait for the path or signal that they belong to.
    pub(crate) fn is_pending(&self) -> bool {
        self.source.is_some_and(|(_, position)| position.pending.is_some())
    }

    /// Returns how much of the data was read. Explicit accesses that no path or signal followed in
    /// this chunk get an event of their own.
    pub(crate) fn finish_data(&mut self) -> Option<DataPosition> {
        let (_, position) = self.source?;
        if let Some(mark) = position.pending {
            self.batch.accesses.push_event(Some(mark));
            let pc = self.batch.accesses.pc_at(mark);
            self.push_event(Event::Unfinished { pc });
        }
        Some(DataPosition { pending: None, ..position })
    }

    fn lost(&mut self) {
        self.push_event(Event::Lost);
        self.batch.accesses.push_event(None);
    }
}
