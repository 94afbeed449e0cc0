//! Counts memory accesses while they are recorded, so that a recorder can end a recording after a
//! number of them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::HashMap;

use entity::{FragmentId, PathId};
use wire::code::AccessDescriptor;

use crate::event::read_explicit_access;
use crate::model::AccessDescriptors;
use crate::span::{Spans, times};

/// Knows how many accesses every path makes.
#[derive(Debug, Default)]
pub struct AccessCounter {
    spans: Spans,
    descriptors: HashMap<FragmentId, Box<[AccessDescriptor]>>,
}

impl AccessCounter {
    /// Adds the access descriptors of a fragment whose exits have executed `executed` blocks.
    pub fn add(&mut self, descriptors: &AccessDescriptors<'_>, executed: &[u16]) {
        // Descriptors that make no sense count nothing; the writer reports them.
        if self.spans.add(descriptors, executed).is_ok() {
            self.descriptors.insert(descriptors.fragment, descriptors.accesses.into());
        }
    }

    /// Returns the number of accesses of a path with this data.
    #[must_use]
    pub fn path(&self, path: PathId, data: &[u8]) -> u64 {
        let Some(span) = self.spans.get(path) else { return 0 };
        let (reads, writes) =
            if span.varying == 0 { (0, 0) } else { self.spans.varying.count(&span, data).unwrap_or((0, 0)) };
        reads.saturating_add(writes).saturating_add(u64::from(span.reads)).saturating_add(u64::from(span.writes))
    }

    /// Returns the number of accesses that the event at the start of `words` records.
    #[must_use]
    pub fn event(&self, words: &[u32]) -> u64 {
        let (reads, writes) = read_explicit_access(words).map_or((0, 0), |access| access.counts());
        reads.saturating_add(writes)
    }

    /// Returns the number of accesses of a fragment that was interrupted in its block with index
    /// `block`, before the instruction at `offset`.
    #[must_use]
    pub fn interrupted(&self, fragment: FragmentId, block: u16, offset: u64, data: &[u8]) -> u64 {
        let descriptors = self.descriptors.get(&fragment).map_or(&[][..], |descriptors| descriptors);
        let is_before = |access: &&AccessDescriptor| (access.block, u64::from(access.offset)) < (block, offset);
        descriptors.iter().take_while(is_before).map(|access| times(access, data).unwrap_or(0)).sum()
    }
}
