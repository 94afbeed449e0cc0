//! What comes out when a filter is followed by its mirror image.

use cache::IllegalGeometry;
use predict::IllegalSize;
use thiserror::Error;
use trace::ReadError;

/// Problems that are told in words.
const PROBLEMS_MAX: usize = 20;

/// What the mirror image found.
#[derive(Clone, Debug)]
pub struct Checked<S> {
    pub statistics: S,
    /// Messages that the filter has sent.
    pub messages: u64,
    /// Steps or loads that were shown as they happened.
    pub right: u64,
    /// Those that were not, and threads whose messages were not used up; the first of them in words.
    pub wrong: u64,
    pub problems: Vec<String>,
}

impl<S> Checked<S> {
    pub(crate) fn new(statistics: S, messages: u64) -> Self {
        Self { statistics, messages, right: 0, wrong: 0, problems: Vec::new() }
    }

    #[cold]
    pub(crate) fn wrong(&mut self, problem: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem());
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
