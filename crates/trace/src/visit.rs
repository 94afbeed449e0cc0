//! What threads do to memory, shown as it is read: no list of steps or accesses in between, and values stay where they were decoded.
//!
//! A path's accesses are those of its plan, in a row. What is not so simple, because an event tells it or because only the data says how many accesses
//! there are, takes the way over a [`Gathered`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word::{self, EVENT};

use crate::access::{Gathered, Making};
use crate::data::{Place, Source};
use crate::event::{self, Recorded};
use crate::model::Event;
use crate::plan::{Compiled, Form, Row};
use crate::program::Program;
use crate::steps::{Open, interrupted};

/// Receives what a thread does to memory, in order.
pub trait AccessVisitor {
    /// So many instructions were executed; their accesses come next.
    fn executed(&mut self, instructions: u64);

    fn operand(&mut self, operand: Operand<'_>);

    fn event(&mut self, event: &Event);
}

/// One memory access and its value.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'d> {
    /// Address of the instruction.
    pub pc: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub size: u32,
    pub is_write: bool,
    /// Where the value is in `data`, unless that ends before.
    pub(crate) at: usize,
    pub(crate) data: &'d [u8],
}

impl<'d> Operand<'d> {
    /// The bytes that were read or written, lowest address first; `None` if values were not recorded.
    #[must_use]
    #[inline]
    pub fn value(&self) -> Option<&'d [u8]> {
        self.data.get(self.at..)?.get(..self.size as usize)
    }

    /// The first `N` bytes of the value and of what is behind it, for those who are in a hurry. `None` if there is no value, and now and then if there is
    /// one.
    #[must_use]
    #[inline(always)]
    pub fn first_bytes<const N: usize>(&self) -> Option<&'d [u8; N]> {
        self.data.get(self.at..self.at.checked_add(N)?)?.as_array()
    }
}

impl Open {
    /// Shows what comes next: up to a time stamp that is not before `until`, or to `most` words, about.
    pub(crate) fn watch(
        &mut self,
        program: &Program,
        until: u64,
        most: usize,
        scratch: &mut Gathered,
        watcher: &mut impl AccessVisitor,
    ) {
        scratch.clear();
        let source = Source { program, data: &self.data };
        let mut watching = Watching { source, place: self.data_place, scratch, watcher, instructions: 0 };
        let (from, limit) = (self.at, self.at.saturating_add(most));
        loop {
            // Accesses that were told belong to at least one word more.
            let end = limit.max(self.at + usize::from(watching.is_pending())).min(self.words.len());
            self.at += watching.paths(self.words.get(self.at..end).unwrap_or(&[]));
            let may_end = self.at > from && !watching.is_pending();
            let Some(&word) = self.words.get(self.at).filter(|_| self.at < limit || !may_end) else { break };
            if word & EVENT == 0 {
                continue;
            }
            let rest = self.words.get(self.at..).unwrap_or(&[]);
            let recorded = event::read(rest);
            let is_late = |tsc: Option<u64>| tsc.is_some_and(|tsc| tsc >= until);
            if may_end && is_late(recorded.and_then(|recorded| recorded.begins())) {
                break;
            }
            self.tsc = recorded.and_then(|recorded| recorded.tsc()).unwrap_or(self.tsc);
            self.at += word::length(word).unwrap_or(rest.len()).min(rest.len());
            watching.event(recorded, rest);
            if is_late(recorded.and_then(|recorded| recorded.ends())) {
                break;
            }
        }
        // Accesses that nothing in this chunk followed.
        watching.show_gathered();
        self.data_place = watching.place.map(|place| Place { pending: None, ..place });
        self.instruction += watching.instructions;
    }
}

/// A stretch that is being shown.
struct Watching<'p, 's, W> {
    source: Source<'p>,
    /// How far the data was read, if there is any that can be read.
    place: Option<Place>,
    /// Accesses that were told and belong to what comes next; at other times nothing.
    scratch: &'s mut Gathered,
    watcher: &'s mut W,
    instructions: u64,
}

impl<W: AccessVisitor> Watching<'_, '_, W> {
    /// Whether accesses were told that belong to what comes next.
    #[inline]
    fn is_pending(&self) -> bool {
        self.place.is_some_and(|place| place.pending.is_some())
    }

    #[inline]
    fn executed(&mut self, instructions: u64) {
        self.instructions += instructions;
        self.watcher.executed(instructions);
    }

    /// The paths at the start of `words`, up to an event; gives their number.
    fn paths(&mut self, words: &[u32]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            // SAFETY: the processor has what it needs.
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
        let is_path = |&&word: &&u32| word & EVENT == 0;
        if words.first().filter(is_path).is_some() && self.is_pending() {
            self.show_pending();
        }
        let mut count = 0;
        for &word in words.iter().take_while(is_path) {
            count += 1;
            match self.source.program.plans.row(word) {
                Some(row) => self.row(row),
                None => self.unplanned(word),
            }
        }
        count
    }

    /// A path without accesses.
    #[cold]
    fn unplanned(&mut self, word: u32) {
        match self.source.program.counts(word) {
            Some(counts) => self.executed(counts.instructions()),
            None => self.watcher.event(&Event::Lost),
        }
    }

    /// The accesses of a path.
    #[inline(always)]
    fn row(&mut self, row: Row) {
        self.executed(row.instructions.into());
        let Self { source, place: Some(place), scratch, watcher, .. } = self else { return };
        let bytes = usize::from(row.bytes);
        // With what is behind it, so that values can be read with a few bytes more than they have.
        let data = source.data.get(place.at..).filter(|data| data.len() >= bytes).unwrap_or(&[]);
        place.at += bytes;
        let making = Making::new(data, place.context());
        let mut rest = source.program.plans.accesses(row);
        while let Some((access, behind)) = rest.split_first() {
            let address = match access.form {
                Form::Based => making.based(access),
                Form::Absolute => Some(access.displacement),
                Form::Plain => making.address(access, 0),
                _ => {
                    rest = complicated(rest, data.get(..bytes).unwrap_or(&[]), place, scratch, *watcher);
                    continue;
                }
            };
            rest = behind;
            let Some(address) = address else { continue };
            let (size, is_write) = (u32::from(access.size), access.writes());
            let (data, at) = making.value_in(access);
            watcher.operand(Operand { pc: access.pc, address, size, is_write, data, at });
        }
    }

    /// The event at the start of `words`.
    #[cold]
    fn event(&mut self, recorded: Option<Recorded>, words: &[u32]) {
        let Some(recorded) = recorded else { return self.watcher.event(&Event::Lost) };
        let steps = interrupted(self.source.program, &recorded);
        if let Some((whole, part)) = &steps {
            self.executed(whole.iter().chain(part).map(|step| u64::from(step.instructions())).sum());
        }
        if let Some(place) = &mut self.place {
            let count = steps.as_ref().map(|(whole, part)| (whole.len(), part.is_some()));
            place.event(self.source, words, &recorded, count, self.scratch);
        }
        if !self.is_pending() {
            self.show_gathered();
        }
        if steps.is_none() {
            self.watcher.event(&Event::Lost);
        }
        if let Some(event) = &recorded.event {
            self.watcher.event(event);
        }
    }

    /// Accesses that were told belong to the path that comes now.
    #[cold]
    fn show_pending(&mut self) {
        if let Some(place) = &mut self.place {
            place.pending = None;
        }
        self.show_gathered();
    }

    #[cold]
    fn show_gathered(&mut self) {
        show(self.scratch, self.watcher);
    }
}

/// The first of `accesses`, which is not a simple one; gives the others.
#[cold]
#[inline(never)]
fn complicated<'p>(
    accesses: &'p [Compiled],
    row: &[u8],
    place: &Place,
    scratch: &mut Gathered,
    watcher: &mut impl AccessVisitor,
) -> &'p [Compiled] {
    let rest = scratch.first(accesses, row, place.context());
    show(scratch, watcher);
    rest
}

/// Shows what was gathered, and forgets it.
fn show(gathered: &mut Gathered, watcher: &mut impl AccessVisitor) {
    gathered.all().for_each(|access| watcher.operand(gathered.operand(&access)));
    gathered.clear();
}
