//! A cursor over the chunks of one thread.
//!
//! A [`Cursor`] opens one chunk after the other and hands out what is in them: batches, ranges of
//! words or visits of accesses. [`crate::Steps`] owns one cursor; [`crate::MergedBatches`] and
//! [`crate::RoundRobin`] own one for each thread.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use entity::{AppPc, ThreadId, Tsc};

use crate::InstructionIndex;
use crate::batch::{BATCH_STEPS, Batch};
use crate::container::PathHeader;
use crate::data::DataPosition;
use crate::decode::{DecodeBuffers, decode};
use crate::error::{Problem, ReadError};
use crate::model::DataMode;
use crate::open_chunk::OpenChunk;
use crate::path_batch::{PATH_BATCH_WORDS, PathBatch};
use crate::program::Program;
use crate::tally::{DISCONTINUOUS, start_pc};
use crate::trace::{Chunk, Trace};
use crate::visit::AccessVisitor;

/// A position in the words of one thread, chunk by chunk.
#[derive(Debug)]
pub(crate) struct Cursor<'t> {
    trace: &'t Trace,
    thread: ThreadId,
    /// Indexes of the chunks still to come, and of those behind them, which are not read but may
    /// hold the target of the last indirect transfer.
    ahead: &'t [usize],
    behind: &'t [usize],
    open: OpenChunk,
    /// Whether batches end at timestamps.
    by_time: bool,
    /// If set, batches have about so many steps, and the time between two timestamps is estimated.
    slice: Option<usize>,
    /// Whether memory accesses are wanted.
    accesses: bool,
    /// Whether chunks are decoded without their data, because they are passed over.
    omits_data: bool,
    /// Whether the open chunk has intact data that was not decoded.
    has_omitted_data: bool,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(trace: &'t Trace, thread: ThreadId, by_time: bool) -> Result<Self, ReadError> {
        let ahead = trace.paths_of(thread)?;
        let open = OpenChunk::default();
        let (slice, accesses, omits_data, has_omitted_data) = (None, false, false, false);
        Ok(Self { trace, thread, ahead, behind: &[], open, by_time, slice, accesses, omits_data, has_omitted_data })
    }

    /// Returns the same cursor with memory accesses.
    pub(crate) fn with_accesses(self) -> Result<Self, ReadError> {
        match self.trace.data() {
            DataMode::None => Err(ReadError::NoData),
            DataMode::Addresses | DataMode::Values => Ok(Self { accesses: true, ..self }),
        }
    }

    /// Returns a cursor over the path chunk with this index in its thread alone.
    pub(crate) fn at_chunk(trace: &'t Trace, thread: ThreadId, place: usize) -> Result<Self, ReadError> {
        let mut cursor = Self::new(trace, thread, false)?;
        let (_, from) = cursor.ahead.split_at_checked(place).unwrap_or_default();
        (cursor.ahead, cursor.behind) = from.split_at_checked(1).unwrap_or_default();
        Ok(cursor)
    }

    /// Cuts batches into slices of about `steps` steps, each with an estimate of its time.
    pub(crate) fn set_slice(&mut self, steps: usize) {
        self.slice = Some(steps.clamp(1, BATCH_STEPS));
    }

    /// Frees the memory of the open chunk, at the end of the thread.
    pub(crate) fn release(&mut self) {
        self.open = OpenChunk::default();
    }

    pub(crate) fn is_sliced(&self) -> bool {
        self.slice.is_some()
    }

    /// Returns the indexes of all path chunks of the thread.
    fn places(&self) -> &'t [usize] {
        self.trace.paths_of(self.thread).unwrap_or_default()
    }

    /// Returns the headers of all path chunks of the thread.
    pub(crate) fn headers(&self) -> Vec<&'t PathHeader> {
        self.places().iter().filter_map(|&place| self.trace.chunks().get(place)?.path()).collect()
    }

    /// Moves to the start of the thread's path chunk `number`. The time up to there is `tsc`.
    pub(crate) fn go_to(&mut self, number: usize, tsc: Tsc) {
        (_, self.ahead) = self.places().split_at_checked(number).unwrap_or_default();
        self.open = OpenChunk::starting_at(tsc);
    }

    /// Decodes chunks without their data from now on, until [`Self::resume_data`].
    pub(crate) fn omit_data(&mut self) {
        self.omits_data = true;
    }

    /// Decodes the omitted data of the open chunk, and chunks with their data from now on.
    pub(crate) fn resume_data(&mut self, buffers: &mut DecodeBuffers) -> Result<(), ReadError> {
        (self.omits_data, self.has_omitted_data) = (false, false);
        let opened = self.places().len().checked_sub(self.ahead.len() + 1);
        let place = opened.and_then(|opened| self.places().get(opened)).filter(|_| self.open.has_more());
        let Some(&place) = place.filter(|_| self.accesses) else { return Ok(()) };
        let Some(chunk) = self.trace.chunks().get(place) else { return Ok(()) };
        self.decode_data(buffers, chunk, place)?;
        self.open.skip_data(self.trace.program());
        Ok(())
    }

    /// Whether the path chunk at `place` has data with the right checksum.
    fn has_data(&self, place: usize) -> bool {
        self.trace.data_chunk(place).is_some_and(|chunk| self.trace.payload(chunk).is_ok())
    }

    /// Passes over the batch that [`Self::next_batch`] would return and returns its instructions.
    /// If it has more than `most`, returns `None` and stays. Data must be omitted.
    pub(crate) fn pass_over(&mut self, buffers: &mut DecodeBuffers, most: u64) -> Result<Option<u64>, ReadError> {
        while self.open_next(buffers)? {
            let steps = self.slice.unwrap_or(BATCH_STEPS);
            let extent = self.open.extent(self.trace.program(), steps, self.has_omitted_data);
            if extent.instructions > most {
                return Ok(None);
            }
            (self.open.at, self.open.tsc) = (extent.end, extent.tsc);
            self.open.instruction += extent.instructions;
            if !extent.is_empty {
                return Ok(Some(extent.instructions));
            }
        }
        Ok(Some(0))
    }

    /// Returns the time at which the next batch begins; `None` at the end. While the next chunk is
    /// not open, the time is a lower bound.
    pub(crate) fn tsc(&mut self) -> Option<Tsc> {
        let next = self.ahead.first().and_then(|&place| self.trace.chunks().get(place)?.path());
        let behind = next.map(|path| path.first_tsc.max(self.open.tsc));
        let estimated = self.slice.is_some();
        // A chunk may go on where the one before it ended, before its first timestamp.
        self.open
            .next_tsc(estimated, behind)
            .or(behind.map(|first| if self.open.tsc.is_none() { first } else { self.open.tsc }))
    }

    /// Opens the next chunk unless one is open, and returns whether it did. After an error the
    /// cursor is behind the chunk that caused it.
    pub(crate) fn prepare(&mut self, buffers: &mut DecodeBuffers) -> Result<bool, ReadError> {
        let was_open = self.open.has_more();
        self.open_next(buffers).map(|_| !was_open)
    }

    /// Fills `batch` with what comes next; returns false at the end. After an error the cursor is
    /// behind the chunk that caused it.
    pub(crate) fn next_batch(&mut self, buffers: &mut DecodeBuffers, batch: &mut Batch) -> Result<bool, ReadError> {
        batch.clear();
        while batch.is_empty() {
            if !self.open_next(buffers)? {
                return Ok(false);
            }
            self.fill(batch);
        }
        Ok(true)
    }

    /// Passes over words up to the time `until` and returns their range, for [`Self::path_batch`];
    /// `None` at the end. After an error the cursor is behind the chunk that caused it.
    pub(crate) fn next_words(
        &mut self,
        buffers: &mut DecodeBuffers,
        until: Tsc,
    ) -> Result<Option<Range<usize>>, ReadError> {
        let is_open = self.open_next(buffers)?;
        Ok(is_open.then(|| self.open.take_words(until, PATH_BATCH_WORDS)))
    }

    /// Makes a visitor for the thread and calls it for what comes next, up to the time `until`;
    /// returns false at the end. After an error the cursor is behind the chunk that caused it.
    pub(crate) fn visit<W: AccessVisitor>(
        &mut self,
        buffers: &mut DecodeBuffers,
        until: Tsc,
        visitor: impl FnOnce(ThreadId) -> W,
    ) -> Result<bool, ReadError> {
        if !self.open_next(buffers)? {
            return Ok(false);
        }
        let (program, scratch) = (self.trace.program(), &mut buffers.accesses);
        self.open.visit(program, until, PATH_BATCH_WORDS, scratch, &mut visitor(self.thread));
        Ok(true)
    }

    /// Decodes chunks until there are words; returns false at the end.
    fn open_next(&mut self, buffers: &mut DecodeBuffers) -> Result<bool, ReadError> {
        while !self.open.has_more() {
            let Some((&place, ahead)) = self.ahead.split_first() else { return Ok(false) };
            self.ahead = ahead;
            self.decode(buffers, place)?;
        }
        Ok(true)
    }

    /// Returns these words of the open chunk as a batch of paths.
    pub(crate) fn path_batch(&self, words: Range<usize>) -> PathBatch<'_> {
        PathBatch::new(self.thread, self.trace.program(), self.open.words.get(words).unwrap_or(&[]))
    }

    fn decode(&mut self, buffers: &mut DecodeBuffers, place: usize) -> Result<(), ReadError> {
        self.open.restart();
        let Some(chunk) = self.trace.chunks().get(place) else { return Ok(()) };
        let decoded = decode(self.trace, chunk, buffers, &mut self.open.words);
        buffers.chunks += 1;
        if let Err(problem) = decoded {
            self.open.words.clear();
            // What follows is not earlier than the lost chunk.
            let end = chunk.path().map(|path| path.last_tsc).filter(|tsc| !tsc.is_none());
            self.open.tsc = end.unwrap_or(self.open.tsc);
            return Err(chunk.error(problem));
        }
        if let Some(path) = chunk.path() {
            self.open.image = path.image;
            self.open.instruction = path.first_instruction;
            // A chunk that begins without a timestamp continues at the time of the one before it.
            if self.open.tsc.is_none() {
                self.open.tsc = path.first_tsc;
            }
        }
        self.has_omitted_data = self.accesses && self.omits_data && self.has_data(place);
        if self.accesses && !self.omits_data { self.decode_data(buffers, chunk, place) } else { Ok(()) }
    }

    /// Decodes the data behind the open words. After an error the steps of the chunk are still
    /// there, without their accesses.
    fn decode_data(&mut self, buffers: &mut DecodeBuffers, path: &Chunk, place: usize) -> Result<(), ReadError> {
        let trace = self.trace;
        let chunk = trace.data_chunk(place).ok_or_else(|| path.error(Problem::DataMissing))?;
        let header = chunk.data().ok_or_else(|| chunk.error(Problem::Header))?;
        let OpenChunk { words, data, .. } = &mut self.open;
        let payload = trace.payload(chunk);
        let mut read = |payload| buffers.data.read(trace.program(), words, &chunk.header, payload, data);
        let read = payload.and_then(&mut read);
        read.map_err(|problem| chunk.error(problem))?;
        let keep_values = trace.data() == DataMode::Values;
        self.open.data_position =
            Some(DataPosition { fs_base: header.fs_base, keep_values, ..DataPosition::default() });
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch) {
        let program = self.trace.program();
        batch.thread = self.thread;
        if self.open.fill(program, self.by_time, self.slice.unwrap_or(BATCH_STEPS), batch) {
            batch.set_last_target(self.peek(program));
        }
    }

    /// Returns where the thread is next, see [`start_pc`].
    fn peek_ahead(&self, program: &Program) -> AppPc {
        let here = start_pc(program, self.open.unread_words());
        if !here.is_none() {
            return here;
        }
        let later = self.ahead.iter().chain(self.behind).filter_map(|&place| self.trace.chunks().get(place)?.path());
        later.map(|path| path.start_pc).find(|pc| !pc.is_none()).unwrap_or(AppPc::NONE)
    }

    /// Returns the target of an indirect transfer that was executed last; [`AppPc::NONE`] if it is
    /// not known.
    fn peek(&self, program: &Program) -> AppPc {
        match self.peek_ahead(program) {
            DISCONTINUOUS => AppPc::NONE,
            pc => pc,
        }
    }

    /// Moves to a word before the instruction `wanted`, in the chunk that holds it.
    pub(crate) fn seek(&mut self, buffers: &mut DecodeBuffers, wanted: InstructionIndex) -> Result<(), ReadError> {
        let chunks = self.trace.chunks();
        let path = |place: &usize| chunks.get(*place).and_then(Chunk::path);
        let place = self.ahead.partition_point(|place| path(place).is_none_or(|path| path.first_instruction <= wanted));
        let thread = self.thread;
        let before = place.checked_sub(1).ok_or(ReadError::Missing { thread, wanted })?;
        // A chunk without instructions begins at the same number as the chunk behind it.
        let holds = self.ahead.get(before).and_then(path).is_some_and(|path| path.instructions().contains(&wanted));
        if !holds {
            let last = self.ahead.last().and_then(path);
            let available = last.map_or(InstructionIndex::FIRST, |path| path.instructions().end);
            return Err(if wanted < available {
                ReadError::Missing { thread, wanted }
            } else {
                ReadError::PastEnd { thread, wanted, available: available.get() }
            });
        }
        let (_, from) = self.ahead.split_at_checked(before).unwrap_or_default();
        let Some((&place, ahead)) = from.split_first() else { return Ok(()) };
        self.ahead = ahead;
        self.decode(buffers, place)?;
        self.open.skip_to(self.trace.program(), wanted);
        Ok(())
    }
}
