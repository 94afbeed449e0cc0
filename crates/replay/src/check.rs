//! What comes out when a filter is followed by its mirror image.

use cache::IllegalGeometry;
use predict::IllegalSize;
use thiserror::Error;
use trace::{Batch, ReadError};

use crate::threads::{MessageQueues, OrderedBatches};

/// Problems that are told in words.
const PROBLEMS_MAX: usize = 20;

/// What the mirror image found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport<S> {
    pub statistics: S,
    /// Messages that the filter has sent.
    pub messages: u64,
    /// Steps or loads that were shown as they happened.
    pub matches: u64,
    /// Those that were not, threads whose messages were not used up, and damaged places; the first of them in words.
    pub mismatches: u64,
    /// Loads whose value was taken from the cache, because flags alone said that it was known, and that had another
    /// value: somebody else has changed memory since, or a flag stands for more bytes than were accessed. They count
    /// neither as right nor as wrong: the messages do not tell more.
    pub stale: u64,
    pub problems: Vec<String>,
}

impl<S> CheckReport<S> {
    /// Counts a problem.
    #[cold]
    pub fn add_problem(&mut self, problem: impl FnOnce() -> String) {
        self.mismatches += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem());
        }
    }

    /// Makes sure that all messages were used.
    pub fn check_all_used<M>(&mut self, queues: &MessageQueues<M>) {
        for thread in queues.unfinished_threads() {
            self.add_problem(|| format!("thread {thread}: there are messages left at its end"));
        }
    }

    /// Shows all batches to `each`. What is damaged is left out, by filter and mirror image alike.
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

/// Why a check could not be made.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error(transparent)]
    Size(#[from] IllegalSize),
    #[error(transparent)]
    Geometry(#[from] IllegalGeometry),
    #[error(transparent)]
    Read(#[from] ReadError),
}
