//! Iterating what one thread executed: a [`Steps`] is a cursor with buffers of its own.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::ThreadId;

use crate::InstructionIndex;
use crate::batch::{Batch, BatchPosition, Item};
use crate::cursor::Cursor;
use crate::decode::DecodeBuffers;
use crate::error::ReadError;
use crate::trace::Trace;

/// The steps and events of one thread, in order.
///
/// As an iterator it yields single [`Item`]s; [`Self::next_batch`] is faster. An error concerns one
/// damaged chunk; the next call continues behind that chunk.
#[derive(Debug)]
pub struct Steps<'t> {
    cursor: Cursor<'t>,
    buffers: DecodeBuffers,
    batch: Batch,
    position: BatchPosition,
    /// Whether the batch was filled but not returned.
    unseen: bool,
}

impl<'t> Steps<'t> {
    pub(crate) fn new(cursor: Cursor<'t>, buffers: DecodeBuffers) -> Self {
        Self { cursor, buffers, batch: Batch::default(), position: BatchPosition::default(), unseen: false }
    }

    pub(crate) fn into_buffers(self) -> DecodeBuffers {
        self.buffers
    }

    /// Returns the next batch; `None` at the end. Skips what [`Iterator::next`] has not yielded of
    /// the batch before.
    ///
    /// ```
    /// # use trackway_trace::{ThreadId, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let blocks = trace.blocks();
    /// let mut steps = trace.steps(ThreadId::FIRST)?;
    /// let mut addresses = Vec::new();
    /// while let Some(batch) = steps.next_batch()? {
    ///     for step in batch.steps() {
    ///         addresses.extend(blocks.instructions(step).map(|instruction| instruction.address));
    ///     }
    /// }
    /// assert_eq!(addresses.len() as u64, trace.threads()[0].counts.instructions);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        let more = std::mem::take(&mut self.unseen) || self.cursor.next_batch(&mut self.buffers, &mut self.batch)?;
        self.position = BatchPosition::end(&self.batch);
        Ok(more.then_some(&self.batch))
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<Item, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.unseen = false;
            if let Some(item) = self.position.next(&self.batch) {
                return Some(Ok(item));
            }
            match self.next_batch() {
                Err(error) => return Some(Err(error)),
                Ok(None) => return None,
                Ok(Some(_)) => self.position = BatchPosition::default(),
            }
        }
    }
}

impl Trace {
    /// Returns everything that `thread` executed.
    pub fn steps(&self, thread: ThreadId) -> Result<Steps<'_>, ReadError> {
        Ok(Steps::new(Cursor::new(self, thread, false)?, DecodeBuffers::default()))
    }

    /// Returns what `thread` executed from the instruction `start` on. The first step may be the
    /// rest of a block, see [`crate::Step::first`].
    ///
    /// ```
    /// # use trackway_trace::{InstructionIndex, ThreadId, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let start = InstructionIndex::new(5);
    /// let mut steps = trace.seek(ThreadId::FIRST, start)?;
    /// let batch = steps.next_batch()?.expect("there is more");
    /// assert_eq!(batch.first_instruction(), start);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&self, thread: ThreadId, start: InstructionIndex) -> Result<Steps<'_>, ReadError> {
        self.seek_from(self.steps(thread)?, start)
    }

    /// Returns everything that `thread` executed, with its memory accesses. If an error concerns
    /// damaged data only, the steps of its chunk follow without accesses.
    ///
    /// ```
    /// # use trackway_trace::{ThreadId, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut steps = trace.steps_with_accesses(ThreadId::FIRST)?;
    /// let mut written = Vec::new();
    /// while let Some(batch) = steps.next_batch()? {
    ///     for access in batch.accesses().filter(|access| access.is_write()) {
    ///         written.push((access.address(), batch.value(&access).map(<[u8]>::to_vec)));
    ///     }
    /// }
    /// assert_eq!(written.len() as u64, trace.threads()[0].counts.writes);
    /// assert_eq!(written[0], (0x7ff0, Some(vec![10, 0, 0, 0])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn steps_with_accesses(&self, thread: ThreadId) -> Result<Steps<'_>, ReadError> {
        Ok(Steps::new(Cursor::new(self, thread, false)?.with_accesses()?, DecodeBuffers::default()))
    }

    /// As [`Self::seek`], with memory accesses.
    pub fn seek_with_accesses(&self, thread: ThreadId, start: InstructionIndex) -> Result<Steps<'_>, ReadError> {
        self.seek_from(self.steps_with_accesses(thread)?, start)
    }

    fn seek_from<'t>(&'t self, mut steps: Steps<'t>, start: InstructionIndex) -> Result<Steps<'t>, ReadError> {
        steps.cursor.seek(&mut steps.buffers, start)?;
        while steps.cursor.next_batch(&mut steps.buffers, &mut steps.batch)? {
            steps.batch.drop_before(self.blocks(), start);
            if !steps.batch.steps.is_empty() {
                break;
            }
        }
        steps.unseen = true;
        Ok(steps)
    }
}
