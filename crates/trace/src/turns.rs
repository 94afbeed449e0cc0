//! All threads of a trace in turns, as if each had a processor to itself and all were equally fast.
//!
//! Each thread's own order is exact, and no thread begins before the one that creates it has done so. There is no
//! other order between threads: what one thread does before it synchronises may come behind what another does after
//! it.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::num::NonZeroU64;

use crate::error::ReadError;
use crate::model::{Event, Leave, Step};
use crate::steps::{Batch, Cursor, Place, Workshop};
use crate::trace::Trace;

/// What is counted in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnUnit {
    /// Conditional and indirect branches.
    Branches,
    /// Loads and stores. A turn ends with a block, so that it may have a few more.
    Accesses,
}

/// The threads of a trace in turns. Yields batches, each of one thread and of one turn.
#[derive(Debug)]
pub struct InTurns<'t> {
    threads: Vec<Thread<'t>>,
    unit: TurnUnit,
    count: NonZeroU64,
    /// The thread that has the turn, and how much is left of it.
    turn: usize,
    left: u64,
    workshop: Workshop,
    batch: Batch,
}

/// Steps that are read at once: what is left of them is copied in every turn.
const READ_STEPS: usize = 64;

#[derive(Debug)]
struct Thread<'t> {
    number: u32,
    cursor: Cursor<'t>,
    /// What was read, and how much of it was given.
    read: Batch,
    place: Place,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The thread that creates it has not come so far.
    NotCreated,
    Running,
    Ended,
}

impl InTurns<'_> {
    /// What the thread whose turn it is does next. After an error, which concerns one damaged chunk, it goes on
    /// behind that.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        while self.find_running() {
            let Some(thread) = self.threads.get_mut(self.turn) else { break };
            if !thread.read_more(&mut self.workshop)? {
                self.pass_on();
                continue;
            }
            thread.read.take_part(&mut thread.place, &mut self.batch, |step, accesses| {
                let done = match self.unit {
                    TurnUnit::Branches => u64::from(step.is_some_and(is_branch)),
                    TurnUnit::Accesses => accesses as u64,
                };
                self.left = self.left.saturating_sub(done);
                self.left == 0
            });
            self.start_created();
            if self.left == 0 {
                self.pass_on();
            }
            return Ok(Some(&self.batch));
        }
        Ok(None)
    }

    /// The turn goes to the next thread.
    fn pass_on(&mut self) {
        self.turn += 1;
        self.left = self.count.get();
    }

    /// Passes the turn on until a thread has it that is running; false if there is none any more.
    fn find_running(&mut self) -> bool {
        let state = |thread: &Thread<'_>| thread.state;
        if !self.threads.iter().any(|thread| thread.state == State::Running) {
            // The creation of a thread may be in a damaged chunk.
            let waiting = self.threads.iter_mut().find(|thread| thread.state == State::NotCreated);
            let Some(waiting) = waiting else { return false };
            waiting.state = State::Running;
        }
        while self.threads.get(self.turn).map(state) != Some(State::Running) {
            self.pass_on();
            if self.turn >= self.threads.len() {
                self.turn = 0;
            }
        }
        true
    }

    /// Threads that were created in the batch take part from now on.
    fn start_created(&mut self) {
        for (_, event) in self.batch.events() {
            if let Event::Child { thread, .. } = *event {
                let created = self.threads.iter_mut().find(|own| own.number == thread);
                created.into_iter().for_each(Thread::start);
            }
        }
    }
}

impl Thread<'_> {
    fn start(&mut self) {
        if self.state == State::NotCreated {
            self.state = State::Running;
        }
    }

    /// Makes sure that there is something to give; false at the end.
    fn read_more(&mut self, workshop: &mut Workshop) -> Result<bool, ReadError> {
        if self.place.is_behind(&self.read) {
            self.place = Place::default();
            if !self.cursor.next_batch(workshop, &mut self.read)? {
                self.state = State::Ended;
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_branch(step: &Step) -> bool {
    matches!(step.leave(), Leave::Taken | Leave::NotTaken | Leave::Indirect)
}

impl Trace {
    /// All threads in turns of so many branches, or of so many accesses, which are read then.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # use trace::{TurnUnit, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trace::Trace::open(&path)?;
    /// let mut turns = trace.in_turns(TurnUnit::Branches, NonZeroU64::MIN)?;
    /// let mut threads = Vec::new();
    /// while let Some(batch) = turns.next_batch()? {
    ///     threads.push(batch.thread());
    /// }
    /// assert_eq!(threads[..4], [0, 1, 0, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_turns(&self, unit: TurnUnit, count: NonZeroU64) -> Result<InTurns<'_>, ReadError> {
        let mut threads = Vec::new();
        for info in self.threads().iter().map(|thread| &thread.info) {
            let cursor = Cursor::new(self, info.thread, false)?;
            let mut cursor = if unit == TurnUnit::Accesses { cursor.with_accesses()? } else { cursor };
            cursor.set_slice(READ_STEPS);
            let state = if info.parent.is_some() { State::NotCreated } else { State::Running };
            let (read, place) = (Batch::default(), Place::default());
            threads.push(Thread { number: info.thread, cursor, read, place, state });
        }
        let (workshop, batch) = (Workshop::default(), Batch::default());
        Ok(InTurns { threads, unit, count, turn: 0, left: count.get(), workshop, batch })
    }
}
