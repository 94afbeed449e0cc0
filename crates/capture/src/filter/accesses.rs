//! Counting memory accesses, to stop after a number of them.

use std::collections::HashMap;

use entity::{AppPc, FragmentId, PathId};
use trace::{AccessCounter, AccessDescriptors, Fragment};

/// The accesses that may still be recorded.
pub struct AccessLimit {
    remaining: u64,
    counter: AccessCounter,
    /// Of fragments without access descriptors so far: how many blocks each exit has executed.
    executed: HashMap<FragmentId, Vec<u16>>,
    /// The accesses of events that belong to the next path or signal.
    pending: u64,
}

impl AccessLimit {
    pub fn new(remaining: u64) -> Self {
        Self { remaining, counter: AccessCounter::default(), executed: HashMap::new(), pending: 0 }
    }

    /// Returns whether the last wanted access has been recorded.
    pub fn is_reached(&self) -> bool {
        self.remaining == 0
    }

    pub fn fragment(&mut self, fragment: &Fragment) {
        let executed = fragment.exits.iter().map(|exit| exit.block_count()).collect();
        self.executed.insert(fragment.fragment, executed);
    }

    pub fn access_descriptors(&mut self, descriptors: &AccessDescriptors) {
        if let Some(executed) = self.executed.remove(&descriptors.fragment) {
            self.counter.add(descriptors, &executed);
        }
    }

    /// Counts a path that is recorded.
    pub fn path(&mut self, path: PathId, data: &[u8]) {
        let made = self.counter.path(path, data);
        self.count(made);
    }

    /// Notes the accesses that an event records. They count with what they belong to.
    pub fn event(&mut self, words: &[u32]) {
        self.pending = self.pending.saturating_add(self.counter.event(words));
    }

    /// Counts a fragment that a signal has interrupted in its block with index `block`, which
    /// begins at `start`, before the instruction at `pc`.
    pub fn interrupted(&mut self, fragment: FragmentId, block: usize, start: AppPc, pc: AppPc, data: &[u8]) {
        let block = u16::try_from(block).unwrap_or(u16::MAX);
        let made = self.counter.interrupted(fragment, block, pc - start, data);
        self.count(made);
    }

    fn count(&mut self, made: u64) {
        let made = made.saturating_add(std::mem::take(&mut self.pending));
        self.remaining = self.remaining.saturating_sub(made);
    }
}
