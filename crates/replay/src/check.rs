//! The result of a check: an encoder and its decoder process a trace, and a [`CheckReport`] counts
//! where the decoded events match the trace.

use cache::IllegalGeometry;
use predict::IllegalSize;
use thiserror::Error;
use trace::{Batch, ReadError};

use crate::threads::{MessageQueues, OrderedBatches};

/// Maximum number of problems that are described in words.
const PROBLEMS_MAX: usize = 20;

/// Result of comparing decoded events with the trace.
#[derive(Clone, Debug, Default)]
pub struct CheckReport<S> {
    pub statistics: S,
    /// Messages that the filter has emitted.
    pub messages: u64,
    /// Steps or loads that were decoded correctly.
    pub matches: u64,
    /// Steps or loads that were decoded wrongly, threads with unused messages, and damaged chunks.
    /// [`Self::problems`] describes the first of them.
    pub mismatches: u64,
    /// Loads that flags alone called known, and whose cached value differs from memory. Another
    /// thread or the kernel has changed memory, or a flag covers more bytes than were accessed.
    /// They count neither as matches nor as mismatches, because the messages contain no more.
    pub stale: u64,
    pub problems: Vec<String>,
}

impl<S> CheckReport<S> {
    /// Counts a mismatch and describes it.
    #[cold]
    pub fn add_problem(&mut self, problem: impl FnOnce() -> String) {
        self.mismatches += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem());
        }
    }

    /// Counts a problem for each thread with unused messages.
    pub fn check_all_used<M>(&mut self, queues: &MessageQueues<M>) {
        for thread in queues.unfinished_threads() {
            self.add_problem(|| format!("thread {thread}: there are messages left at its end"));
        }
    }

    /// Calls `each` for all batches. Encoder and decoder both skip damaged chunks.
    pub fn for_each_batch(&mut self, mut order: OrderedBatches<'_>, mut each: impl FnMut(&Batch, &mut Self)) {
        loop {
            match order.next_batch() {
                Ok(None) => return,
                Ok(Some(batch)) => each(batch, self),
                Err(error) => self.add_problem(|| error.to_string()),
            }
        }
    }
}

/// Error that prevents a check.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error(transparent)]
    Size(#[from] IllegalSize),
    #[error(transparent)]
    Geometry(#[from] IllegalGeometry),
    #[error(transparent)]
    Read(#[from] ReadError),
}
