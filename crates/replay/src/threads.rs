//! Threads: which structures they share ([`Sharing`], [`PerThread`]), in which order their batches
//! come ([`OrderedBatches`]), and where their messages are kept ([`MessageQueues`]).

use std::collections::VecDeque;
use std::num::NonZeroU64;

use hashbrown::HashMap;
use trace::{
    Batch, InstructionIndex, LiveTrace, MergedBatches, ReadError, RoundRobin, RoundRobinUnit, ThreadId, Trace,
};

/// Sharing of predictors or caches between threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each thread has its own structure.
    #[default]
    Private,
    /// All threads use one structure in turns.
    Shared(Interleaving),
}

/// Order in which threads use a shared structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interleaving {
    /// By time, in turns of a few steps. Times between two timestamps are estimated.
    #[default]
    ByTime,
    /// Round robin in turns of this number of branches or accesses, as if each thread had a
    /// processor to itself.
    RoundRobin(NonZeroU64),
}

/// Approximate steps of a thread in a turn by time.
const STEPS_PER_TURN: usize = 16;

impl Sharing {
    /// Shared in turns of `interleave` branches or accesses; by time if it is `None`.
    #[must_use]
    pub fn shared(interleave: Option<NonZeroU64>) -> Self {
        Self::Shared(interleave.map_or(Interleaving::ByTime, Interleaving::RoundRobin))
    }

    /// Returns the batches of all threads in the order in which they use the shared structure. The
    /// order is the same in every run. `unit` is what a round robin counts; with
    /// [`RoundRobinUnit::Accesses`], batches contain accesses.
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

    /// Orders the threads of a live recording. There is no round robin, because it would need the
    /// future of the other threads.
    #[must_use]
    pub fn order_live(self, live: LiveTrace) -> LiveTrace {
        match self {
            Self::Private => live,
            Self::Shared(_) => live.interleaved(STEPS_PER_TURN),
        }
    }
}

/// The batches of all threads of a trace in one order. Each batch belongs to one thread.
#[derive(Debug)]
pub enum OrderedBatches<'t> {
    ByTime(Box<MergedBatches<'t>>),
    RoundRobin(Box<RoundRobin<'t>>),
}

impl OrderedBatches<'_> {
    /// Seeks to an instruction of this order, or as near before it as the index of the file allows.
    /// Returns how many instructions remain to be skipped. A round robin has to be counted from the
    /// start.
    pub fn seek(&mut self, index: InstructionIndex) -> u64 {
        match self {
            Self::ByTime(merged) => merged.seek(index),
            Self::RoundRobin(_) => index.get(),
        }
    }

    /// Returns the next batch; `None` at the end. After an error, which concerns one damaged chunk,
    /// the next call continues after that chunk.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        match self {
            Self::ByTime(merged) => merged.next_batch(),
            Self::RoundRobin(turns) => turns.next_batch(),
        }
    }
}

/// Sources of messages for the decoders of all threads.
pub trait MessageSources {
    type Messages;
    /// Returns the source of a thread.
    fn of(&mut self, thread: ThreadId) -> &mut Self::Messages;
}

/// Emitted messages that are not decoded yet, by thread.
#[derive(Debug)]
pub struct MessageQueues<M>(HashMap<ThreadId, VecDeque<M>>);

impl<M> Default for MessageQueues<M> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<M> MessageQueues<M> {
    /// Returns the threads with unused messages.
    pub fn unfinished_threads(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.0.iter().filter(|(_, messages)| !messages.is_empty()).map(|(&thread, _)| thread)
    }
}

impl<M> MessageSources for MessageQueues<M> {
    type Messages = VecDeque<M>;

    fn of(&mut self, thread: ThreadId) -> &mut VecDeque<M> {
        self.0.entry(thread).or_default()
    }
}

/// One structure per thread, or one for all; created on first use.
#[derive(Clone, Debug)]
pub struct PerThread<T> {
    sharing: Sharing,
    fresh: T,
    /// Index of each thread's structure.
    indices: HashMap<ThreadId, usize>,
    all: Vec<T>,
}

impl<T: Clone> PerThread<T> {
    pub fn new(sharing: Sharing, fresh: T) -> Self {
        Self { sharing, fresh, indices: HashMap::new(), all: Vec::new() }
    }

    pub fn are_shared(&self) -> bool {
        self.sharing != Sharing::Private
    }

    pub fn of(&mut self, thread: ThreadId) -> &mut T {
        self.own_and_others(thread).0
    }

    /// Returns the structure of a thread, and those of all other threads in two slices.
    pub fn own_and_others(&mut self, thread: ThreadId) -> (&mut T, [&mut [T]; 2]) {
        let owner = match self.sharing {
            Sharing::Private => thread,
            Sharing::Shared(_) => ThreadId::FIRST,
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
