//! Batches of paths: what a thread executed as it was recorded, path by path instead of step by
//! step. There are several times fewer paths than steps, and an analysis can prepare what it needs
//! to know of each path once.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::words::{EventWords, Word, Words};
use entity::{AppPc, PathId, ThreadId};

use crate::block::Blocks;
use crate::event;
use crate::model::{Event, Step};
use crate::program::Program;

/// Words in a [`PathBatch`] at most.
pub(crate) const PATH_BATCH_WORDS: usize = 8192;

/// The paths of a recording, by number.
#[derive(Clone, Copy, Debug)]
pub struct PathTable<'t>(&'t Program);

impl<'t> PathTable<'t> {
    #[must_use]
    pub fn blocks(&self) -> &'t Blocks {
        &self.0.blocks
    }

    /// Returns the steps of a path and its last step. If the terminator of the last step is
    /// indirect, its target is where the next item begins.
    #[must_use]
    #[inline]
    pub fn get(&self, path: PathId) -> Option<(&'t [Step], Step)> {
        self.0.path(path).map(|path| (path.steps, path.last))
    }
}

/// A run of one thread's paths and events.
#[derive(Clone, Copy, Debug)]
pub struct PathBatch<'t> {
    thread: ThreadId,
    program: &'t Program,
    words: &'t [u32],
}

/// An item of a [`PathBatch`].
#[derive(Clone, Copy, Debug)]
pub enum PathItem<'t> {
    /// The path with this number was executed.
    Path(PathId),
    /// An event came.
    Event {
        event: Event,
        /// The steps of a path that the event interrupted: whole ones, and a part of one more.
        steps: &'t [Step],
        last: Option<Step>,
        /// Where the event found the thread: the target of an indirect transfer before it;
        /// [`AppPc::NONE`] if that is not known. `None` if the event carries no execution.
        at: Option<AppPc>,
    },
}

/// The items of a [`PathBatch`] in order, without timestamps.
#[derive(Clone, Debug)]
pub struct PathItems<'t> {
    program: &'t Program,
    words: Words<'t>,
}

impl<'t> PathBatch<'t> {
    pub(crate) fn new(thread: ThreadId, program: &'t Program, words: &'t [u32]) -> Self {
        Self { thread, program, words }
    }

    #[must_use]
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    #[must_use]
    pub fn paths(&self) -> PathTable<'t> {
        PathTable(self.program)
    }

    #[must_use]
    pub fn items(&self) -> PathItems<'t> {
        PathItems { program: self.program, words: Words::new(self.words) }
    }
}

impl<'t> PathItems<'t> {
    /// Passes over repetitions of `path` that come next, and returns their number.
    #[inline]
    pub fn repetitions(&mut self, path: PathId) -> u64 {
        let count = self.words.rest().iter().take_while(|&&word| word == path.get()).count();
        self.words.skip_words(count);
        count as u64
    }

    fn lost(&self) -> PathItem<'t> {
        PathItem::Event { event: Event::Lost, steps: &[], last: None, at: Some(AppPc::NONE) }
    }

    /// Passes over an event and returns its item; `None` if it has none of its own, because it
    /// records accesses of the next path.
    #[cold]
    fn event(&mut self, event: EventWords<'t>) -> Option<PathItem<'t>> {
        self.words.skip_words(event.length());
        let Some(raw) = event::read(event.words()) else {
            self.words = Words::default();
            return Some(self.lost());
        };
        let event = raw.event?;
        let Some((steps, last)) = raw.interrupted_steps(self.program) else { return Some(self.lost()) };
        Some(PathItem::Event { event, steps, last, at: raw.location(self.program).known_pc() })
    }
}

impl<'t> Iterator for PathItems<'t> {
    type Item = PathItem<'t>;

    #[inline]
    fn next(&mut self) -> Option<PathItem<'t>> {
        loop {
            match self.words.peek()? {
                Word::Path(path) => {
                    self.words.skip_words(1);
                    return Some(PathItem::Path(path));
                }
                // Threads that lock and unlock have more timestamps than anything else.
                Word::Event(event) => match event::time(event.words()) {
                    Some((_, behind)) => self.words = Words::new(behind),
                    None => {
                        if let Some(item) = self.event(event) {
                            return Some(item);
                        }
                    }
                },
            }
        }
    }
}
