//! All threads of a trace in turns, as if each had a processor to itself and all were equally fast.
//!
//! Each thread's own order is exact, and no thread begins before another one creates it. There is
//! no other order between threads: a step before a synchronisation of one thread may come after a
//! step of another thread that follows that synchronisation.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::num::NonZeroU64;

use entity::ThreadId;

use crate::batch::{Batch, BatchPosition};
use crate::cursor::Cursor;
use crate::decode::DecodeBuffers;
use crate::error::ReadError;
use crate::model::{Event, Step, Terminator};
use crate::trace::Trace;

/// What is counted in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundRobinUnit {
    /// Conditional and indirect branches.
    Branches,
    /// Loads and stores. A turn ends with a block, so that it may have a few more.
    Accesses,
}

/// The threads of a trace in turns. Yields batches, each of one thread and of one turn.
#[derive(Debug)]
pub struct RoundRobin<'t> {
    threads: Vec<ScheduledThread<'t>>,
    /// Indexes of the running threads, in order.
    running: Vec<usize>,
    unit: RoundRobinUnit,
    count: NonZeroU64,
    /// Which of the running threads has the turn, and how much is left of it.
    turn: usize,
    left: u64,
    buffers: DecodeBuffers,
    batch: Batch,
}

/// Steps that are read at once: what is left of them is copied in every turn.
const READ_STEPS: usize = 64;

#[derive(Debug)]
struct ScheduledThread<'t> {
    number: ThreadId,
    parent: Option<ThreadId>,
    cursor: Cursor<'t>,
    /// The batch that was read, and how much of it was returned.
    read: Batch,
    position: BatchPosition,
    was_started: bool,
}

impl RoundRobin<'_> {
    /// Returns the next batch of the thread whose turn it is. An error concerns one damaged chunk;
    /// the next call continues behind that chunk.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        while let Some(place) = self.find_turn() {
            let Some(thread) = self.threads.get_mut(place) else { break };
            if !thread.read_more(&mut self.buffers)? {
                self.end(place);
                continue;
            }
            thread.read.take_part(&mut thread.position, &mut self.batch, |step, accesses| {
                let done = match self.unit {
                    RoundRobinUnit::Branches => u64::from(step.is_some_and(is_branch)),
                    RoundRobinUnit::Accesses => accesses,
                };
                self.left = self.left.saturating_sub(done);
                self.left == 0
            });
            self.start_created();
            if self.left == 0 {
                self.turn += 1;
                self.left = self.count.get();
            }
            return Ok(Some(&self.batch));
        }
        Ok(None)
    }

    /// Returns the index of the thread that has the turn; `None` at the end.
    fn find_turn(&mut self) -> Option<usize> {
        if self.running.is_empty() {
            // The creation of a thread may be in a damaged chunk, and its parent unknown.
            let waiting = self.threads.iter().position(|thread| !thread.was_started)?;
            self.start(waiting);
        }
        if self.turn >= self.running.len() {
            self.turn = 0;
        }
        self.running.get(self.turn).copied()
    }

    /// Removes the thread that has the turn, which is at its end. Those of its children whose
    /// creation was not seen take part from now on.
    fn end(&mut self, place: usize) {
        self.running.remove(self.turn);
        self.left = self.count.get();
        let Some(thread) = self.threads.get_mut(place) else { return };
        thread.read = Batch::default();
        thread.cursor.release();
        let number = thread.number;
        self.start_all(|thread| thread.parent == Some(number));
    }

    /// Threads that were created in the batch take part from now on.
    fn start_created(&mut self) {
        let created = |event: &Event| match *event {
            Event::Child { thread, .. } => Some(thread),
            _ => None,
        };
        let created: Vec<ThreadId> = self.batch.events().iter().filter_map(|(_, event)| created(event)).collect();
        if !created.is_empty() {
            self.start_all(|thread| created.contains(&thread.number));
        }
    }

    fn start_all(&mut self, is_meant: impl Fn(&ScheduledThread<'_>) -> bool) {
        for place in 0..self.threads.len() {
            if self.threads.get(place).is_some_and(|thread| !thread.was_started && is_meant(thread)) {
                self.start(place);
            }
        }
    }

    /// The thread with the turn keeps it.
    fn start(&mut self, place: usize) {
        if let Some(thread) = self.threads.get_mut(place) {
            thread.was_started = true;
        }
        let at = self.running.partition_point(|&running| running < place);
        self.running.insert(at, place);
        self.turn += usize::from(at <= self.turn && self.running.len() > 1);
    }
}

impl ScheduledThread<'_> {
    /// Reads a batch unless there is more of the last one; returns false at the end.
    fn read_more(&mut self, buffers: &mut DecodeBuffers) -> Result<bool, ReadError> {
        if self.position.is_at_end(&self.read) {
            self.position = BatchPosition::default();
            return self.cursor.next_batch(buffers, &mut self.read);
        }
        Ok(true)
    }
}

fn is_branch(step: &Step) -> bool {
    matches!(step.terminator(), Terminator::Taken | Terminator::NotTaken | Terminator::Indirect)
}

impl Trace {
    /// Returns all threads in turns of `count` branches or accesses. Accesses are decoded only if
    /// they are the unit.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # use trackway_trace::{RoundRobinUnit, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut turns = trace.round_robin(RoundRobinUnit::Branches, NonZeroU64::MIN)?;
    /// let mut threads = Vec::new();
    /// while let Some(batch) = turns.next_batch()? {
    ///     threads.push(batch.thread().get());
    /// }
    /// assert_eq!(threads[..4], [0, 1, 0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn round_robin(&self, unit: RoundRobinUnit, count: NonZeroU64) -> Result<RoundRobin<'_>, ReadError> {
        let mut threads = Vec::new();
        for info in self.threads().iter().map(|thread| &thread.info) {
            let cursor = Cursor::new(self, info.thread, false)?;
            let mut cursor = if unit == RoundRobinUnit::Accesses { cursor.with_accesses()? } else { cursor };
            cursor.set_slice(READ_STEPS);
            let (read, position) = (Batch::default(), BatchPosition::default());
            let (number, parent) = (info.thread, info.parent);
            threads.push(ScheduledThread { number, parent, cursor, read, position, was_started: parent.is_none() });
        }
        let running =
            (0..threads.len()).filter(|&place| threads.get(place).is_some_and(|own| own.was_started)).collect();
        let (buffers, batch) = (DecodeBuffers::default(), Batch::default());
        Ok(RoundRobin { threads, running, unit, count, turn: 0, left: count.get(), buffers, batch })
    }
}
