//! What belongs to a thread, and what to all of them.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use hashbrown::HashMap;
use trace::{Batch, Live, Merged, ReadError, RoundRobin, RoundRobinUnit, Trace};

/// Whose the predictors or the cache are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Every thread has its own.
    #[default]
    Private,
    /// There is one for all threads, which get at it in turns.
    Shared(Interleaving),
}

/// In which turns threads get at what they share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interleaving {
    /// Of a few steps, by the times at which they were executed, estimated between two timestamps.
    #[default]
    ByTime,
    /// Of so many branches or accesses, one thread after the other, as if each had a processor to itself.
    RoundRobin(NonZeroU64),
}

/// Steps of a thread in a turn by time, about.
const STEPS_PER_TURN: usize = 16;

impl Sharing {
    /// Shared, in turns of so many branches or accesses, or else by time.
    #[must_use]
    pub fn shared(interleave: Option<NonZeroU64>) -> Self {
        Self::Shared(interleave.map_or(Interleaving::ByTime, Interleaving::RoundRobin))
    }

    /// All threads of a trace in the order in which they get at what they share; the same every time. `unit` is what
    /// a round robin counts; accesses are read if they count.
    pub fn order(self, trace: &Trace, unit: RoundRobinUnit) -> Result<OrderedBatches<'_>, ReadError> {
        let merged = || match unit {
            RoundRobinUnit::Branches => Ok(trace.merged()),
            RoundRobinUnit::Accesses => trace.merged_with_accesses(),
        };
        Ok(match self {
            Self::Private => OrderedBatches::ByTime(Box::new(merged()?)),
            Self::Shared(Interleaving::ByTime) => {
                OrderedBatches::ByTime(Box::new(merged()?.interleaved(STEPS_PER_TURN)))
            }
            Self::Shared(Interleaving::RoundRobin(count)) => {
                OrderedBatches::RoundRobin(Box::new(trace.round_robin(unit, count)?))
            }
        })
    }

    /// The same while a program is recorded, which has no round robin: nobody knows yet what the other threads do.
    #[must_use]
    pub fn order_live(self, live: Live) -> Live {
        match self {
            Self::Private => live,
            Self::Shared(_) => live.interleaved(STEPS_PER_TURN),
        }
    }
}

/// All threads of a trace in one order. Yields batches, each of one thread.
#[derive(Debug)]
pub enum OrderedBatches<'t> {
    ByTime(Box<Merged<'t>>),
    RoundRobin(Box<RoundRobin<'t>>),
}

impl OrderedBatches<'_> {
    /// Goes to instruction `number` of this order, or as near before it as the index tells; gives how many instructions come
    /// before it from there on. Turns of branches or accesses have to be counted from the start.
    pub fn seek(&mut self, number: u64) -> u64 {
        match self {
            Self::ByTime(merged) => merged.seek(number),
            Self::RoundRobin(_) => number,
        }
    }

    /// What comes next; `None` at the end. After an error, which concerns one damaged chunk, it goes on behind that.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        match self {
            Self::ByTime(merged) => merged.next_batch(),
            Self::RoundRobin(turns) => turns.next_batch(),
        }
    }
}

/// Where the mirror images of all threads get their messages from.
pub trait MessageSources {
    type Messages;
    /// Those of a thread.
    fn of(&mut self, thread: u32) -> &mut Self::Messages;
}

/// Messages that were told and not used yet, by thread.
#[derive(Debug)]
pub struct MessageQueues<M>(HashMap<u32, VecDeque<M>>);

impl<M> MessageQueues<M> {
    pub fn new() -> Self {
        Self(HashMap::new())
    }

    /// Threads whose messages were not all used.
    pub fn unfinished_threads(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().filter(|(_, messages)| !messages.is_empty()).map(|(&thread, _)| thread)
    }
}

impl<M> MessageSources for MessageQueues<M> {
    type Messages = VecDeque<M>;

    fn of(&mut self, thread: u32) -> &mut VecDeque<M> {
        self.0.entry(thread).or_default()
    }
}

/// Structures by thread, made when they are first needed.
#[derive(Clone, Debug)]
pub struct PerThread<T> {
    sharing: Sharing,
    fresh: T,
    /// Where the structure of each thread is.
    indices: HashMap<u32, usize>,
    all: Vec<T>,
}

impl<T: Clone> PerThread<T> {
    pub fn new(sharing: Sharing, fresh: T) -> Self {
        Self { sharing, fresh, indices: HashMap::new(), all: Vec::new() }
    }

    pub fn are_shared(&self) -> bool {
        self.sharing != Sharing::Private
    }

    pub fn of(&mut self, thread: u32) -> &mut T {
        self.own_and_others(thread).0
    }

    /// That of a thread, and those of all other threads, which come in two pieces.
    pub fn own_and_others(&mut self, thread: u32) -> (&mut T, [&mut [T]; 2]) {
        let owner = match self.sharing {
            Sharing::Private => thread,
            Sharing::Shared(_) => 0,
        };
        let index = *self.indices.entry(owner).or_insert(self.all.len());
        if index == self.all.len() {
            self.all.push(self.fresh.clone());
        }
        let (before, rest) = self.all.split_at_mut(index);
        let (own, after) = rest.split_first_mut().expect("it was just made");
        (own, [before, after])
    }
}
