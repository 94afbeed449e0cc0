//! What belongs to a thread, and what to all of them.

use std::collections::VecDeque;

use hashbrown::HashMap;
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

/// Where the mirror images of all threads get their messages from.
pub trait Source {
    type Messages;
    /// Those of a thread.
    fn of(&mut self, thread: u32) -> &mut Self::Messages;
}

/// Messages that were told and not used yet, by thread.
#[derive(Debug)]
pub(crate) struct Queues<M>(HashMap<u32, VecDeque<M>>);

impl<M> Queues<M> {
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Threads whose messages were not all used.
    pub(crate) fn left(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().filter(|(_, messages)| !messages.is_empty()).map(|(&thread, _)| thread)
    }
}

impl<M> Source for Queues<M> {
    type Messages = VecDeque<M>;

    fn of(&mut self, thread: u32) -> &mut VecDeque<M> {
        self.0.entry(thread).or_default()
    }
}

/// Structures by thread, made when they are first needed.
#[derive(Clone, Debug)]
pub(crate) struct Structures<T> {
    sharing: Sharing,
    fresh: T,
    /// Where the structure of each thread is.
    places: HashMap<u32, usize>,
    all: Vec<T>,
}

impl<T: Clone> Structures<T> {
    pub(crate) fn new(sharing: Sharing, fresh: T) -> Self {
        Self { sharing, fresh, places: HashMap::new(), all: Vec::new() }
    }

    pub(crate) fn are_shared(&self) -> bool {
        self.sharing == Sharing::Shared
    }

    pub(crate) fn of(&mut self, thread: u32) -> &mut T {
        self.split(thread).0
    }

    /// That of a thread, and those of all other threads, which come in two pieces.
    pub(crate) fn split(&mut self, thread: u32) -> (&mut T, [&mut [T]; 2]) {
        let owner = match self.sharing {
            Sharing::Private => thread,
            Sharing::Shared => 0,
        };
        let place = *self.places.entry(owner).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push(self.fresh.clone());
        }
        let (before, rest) = self.all.split_at_mut(place);
        let (own, behind) = rest.split_first_mut().expect("it was just made");
        (own, [before, behind])
    }
}
