//! Progress and warnings of a running experiment.

use std::sync::atomic::{AtomicU64, Ordering};

/// Receives what an experiment reports while it runs. Several threads may call it.
pub trait Observer: Sync {
    /// A new stage begins; `describe` returns a line for it.
    fn stage(&self, describe: &dyn Fn() -> String);
    /// `done` of `total` instructions have been processed.
    fn progress(&self, done: u64, total: u64);
    /// Something was left out of the experiment; the message says what and why.
    fn warn(&self, message: &str);
}

/// Counts the instructions that several workers have processed, for an [`Observer`].
pub(crate) struct InstructionCounter<'o> {
    observer: &'o dyn Observer,
    done: AtomicU64,
    total: u64,
}

impl<'o> InstructionCounter<'o> {
    /// Starts at 0 of `total` instructions.
    pub(crate) fn new(observer: &'o dyn Observer, total: u64) -> Self {
        Self { observer, done: AtomicU64::new(0), total }
    }

    /// Adds what one worker has processed.
    pub(crate) fn add(&self, instructions: u64) {
        let done = self.done.fetch_add(instructions, Ordering::Relaxed) + instructions;
        self.observer.progress(done, self.total);
    }
}
