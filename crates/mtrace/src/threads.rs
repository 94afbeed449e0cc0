//! What belongs to a thread, and what to all of them.

use std::collections::HashMap;

use trace::{Live, Merged};

/// Whose the predictors or the cache are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Every thread has its own.
    #[default]
    Private,
    /// There is one for all threads.
    Shared,
}

/// Steps of a thread that what is shared sees in one piece, about: threads that run at the same time get at it in turns.
const INTERLEAVED: usize = 16;

impl Sharing {
    /// The order in which threads get at what they share; the same every time.
    #[must_use]
    pub fn order(self, merged: Merged<'_>) -> Merged<'_> {
        match self {
            Self::Private => merged,
            Self::Shared => merged.interleaved(INTERLEAVED),
        }
    }

    /// The same, while it is recorded.
    #[must_use]
    pub fn order_live(self, live: Live) -> Live {
        match self {
            Self::Private => live,
            Self::Shared => live.interleaved(INTERLEAVED),
        }
    }
}

/// Structures by thread, made when they are first needed.
#[derive(Clone, Debug)]
pub(crate) struct Structures<T> {
    sharing: Sharing,
    fresh: T,
    of: HashMap<u32, T>,
}

impl<T: Clone> Structures<T> {
    pub(crate) fn new(sharing: Sharing, fresh: T) -> Self {
        Self { sharing, fresh, of: HashMap::new() }
    }

    pub(crate) fn of(&mut self, thread: u32) -> &mut T {
        let owner = match self.sharing {
            Sharing::Private => thread,
            Sharing::Shared => 0,
        };
        self.of.entry(owner).or_insert_with(|| self.fresh.clone())
    }

    /// Those of all threads.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.of.values_mut()
    }

    /// Those of all other threads.
    pub(crate) fn of_others(&mut self, thread: u32) -> impl Iterator<Item = &mut T> {
        let private = self.sharing == Sharing::Private;
        self.of.iter_mut().filter(move |&(&owner, _)| private && owner != thread).map(|(_, own)| own)
    }
}
