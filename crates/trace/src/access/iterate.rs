//! Handing out accesses: an [`Accesses`] iterates the entries of an `AccessBuffer`.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use super::string_run::{Iterations, StringRun};
use super::{Access, RUN, WRITE};

/// The accesses of a step, of an event or of a batch, in order.
#[derive(Clone, Debug)]
pub struct Accesses<'b> {
    pub(super) entries: std::slice::Iter<'b, Access>,
    pub(super) runs: &'b [StringRun],
    pub(super) current: Option<Iterations<'b>>,
}

impl Iterator for Accesses<'_> {
    type Item = Access;

    #[inline]
    fn next(&mut self) -> Option<Access> {
        if self.current.is_none() {
            let entry = self.entries.next()?;
            if entry.size != RUN {
                return Some(*entry);
            }
            self.current = self.runs.get(entry.value as usize).map(|run| Iterations::of(run, entry.pc));
        }
        self.iterate()
    }
}

impl Accesses<'_> {
    #[cold]
    fn iterate(&mut self) -> Option<Access> {
        match self.current.as_mut().and_then(Iterator::next) {
            Some(access) => Some(access),
            None => {
                self.current = None;
                self.next()
            }
        }
    }

    /// Counts the accesses without iterating them.
    pub(crate) fn total(&self) -> u64 {
        let (reads, writes) = self.counts();
        reads.saturating_add(writes)
    }

    /// Counts reads and writes without iterating them.
    #[must_use]
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (mut reads, mut writes) = (0u64, 0u64);
        let mut add = |size: u32, count: u64| {
            let sum = if size & WRITE == 0 { &mut reads } else { &mut writes };
            *sum = sum.saturating_add(count);
        };
        for entry in self.entries.as_slice() {
            match self.runs.get(entry.value as usize).filter(|_| entry.size == RUN) {
                None => add(entry.size, 1),
                Some(run) => {
                    for part in [Some(run.first), run.second].into_iter().flatten() {
                        add(part.size, run.count);
                    }
                }
            }
        }
        (reads, writes)
    }
}
