//! All threads of a trace in one order, by time.
//!
//! Each thread's own order is exact. Between threads, what follows a timestamp (a system call, a
//! signal, the start of a segment) comes after everything that other threads did before an earlier
//! timestamp. What lies between two timestamps of a thread stays in one piece, unless the order is
//! [`MergedBatches::interleaved`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod seek;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use entity::{ThreadId, Tsc};

use crate::InstructionIndex;
use crate::batch::Batch;
use crate::cursor::Cursor;
use crate::decode::DecodeBuffers;
use crate::error::ReadError;
use crate::model::DataMode;
use crate::path_batch::PathBatch;
use crate::trace::{Chunk, Trace};
use crate::visit::AccessVisitor;

/// The threads of a trace, merged. Yields batches, each of one thread.
#[derive(Debug)]
pub struct MergedBatches<'t> {
    trace: &'t Trace,
    cursors: Vec<Cursor<'t>>,
    /// Time and index in `cursors` of every thread that has more.
    order: BinaryHeap<Reverse<(Tsc, usize)>>,
    buffers: DecodeBuffers,
    batch: Batch,
    /// Errors that a seek found in the chunks that come next.
    problems: Vec<ReadError>,
}

impl MergedBatches<'_> {
    /// Changes threads every few steps, as processors that share a resource would. What lies
    /// between two timestamps is cut into slices of about `steps` steps, and the time is divided
    /// among them in proportion.
    #[must_use]
    pub fn interleaved(mut self, steps: usize) -> Self {
        self.cursors.iter_mut().for_each(|cursor| cursor.set_slice(steps));
        self
    }

    /// Moves to an instruction of the merged order, and returns how many instructions of the next
    /// batch come before it. The next batch with instructions holds it;
    /// events directly before it may come first, in batches of their own. The batches are those
    /// that counting from the start would give, but only a few chunks of each thread are decoded.
    /// There are none beyond the end.
    ///
    /// A damaged chunk before the instruction counts as many instructions as its header says. If
    /// definitions of code may be missing, headers and batches count differently; the reader then
    /// stays at the start and returns the number of all instructions before.
    ///
    /// ```
    /// # use trackway_trace::{InstructionIndex, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut merged = trace.merged();
    /// let before = merged.seek(InstructionIndex::new(5));
    /// let batch = merged.next_batch()?.expect("there is more");
    /// assert!(before < batch.instructions());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, index: InstructionIndex) -> u64 {
        let number = index.get();
        self.problems.clear();
        if !self.trace.has_all_code() {
            self.go_to_chunks(0);
            return number;
        }
        self.cursors.iter_mut().for_each(Cursor::omit_data);
        let passed_over = self.go_to_chunks(number);
        let left = self.pass_over(number.saturating_sub(passed_over));
        for cursor in &mut self.cursors {
            self.problems.extend(cursor.resume_data(&mut self.buffers).err());
        }
        left
    }

    /// Returns how many path chunks were decoded so far.
    #[must_use]
    pub fn chunks_decoded(&self) -> u64 {
        self.buffers.chunks
    }

    /// Moves each thread to the start of a chunk, so that everything before these chunks comes
    /// before instruction `number`. Returns how many instructions that is.
    fn go_to_chunks(&mut self, number: u64) -> u64 {
        let threads: Vec<_> = self.cursors.iter().map(|cursor| seek::bounds(&cursor.headers())).collect();
        let time = seek::time_before(&threads, number).unwrap_or(Tsc::MAX);
        let mut instructions = 0u64;
        for (cursor, chunks) in self.cursors.iter_mut().zip(&threads) {
            let count = seek::passed_over(chunks, time, cursor.is_sliced());
            let (passed, _) = chunks.split_at_checked(count).unwrap_or_default();
            instructions = passed.iter().fold(instructions, |sum, chunk| sum.saturating_add(chunk.instructions));
            cursor.go_to(count, passed.last().map_or(Tsc::NONE, |chunk| chunk.latest));
        }
        self.order.clear();
        (0..self.cursors.len()).for_each(|place| self.queue(place));
        instructions
    }

    /// Passes over batches that have no more than `left` instructions together, and returns how
    /// many are left.
    fn pass_over(&mut self, mut left: u64) -> u64 {
        while left > 0 {
            match self.pass_over_batch(left) {
                Ok(None) => break,
                Ok(Some(instructions)) => left -= instructions,
                Err(error) => {
                    let lost = self.instructions_of(&error);
                    if lost > left {
                        self.problems.push(error);
                    }
                    left = left.saturating_sub(lost);
                }
            }
        }
        left
    }

    /// Passes over the next batch and returns its instructions. Returns `None` at the end, or if
    /// the batch has more than `most`.
    fn pass_over_batch(&mut self, most: u64) -> Result<Option<u64>, ReadError> {
        let Some(place) = self.first()? else { return Ok(None) };
        let Some(cursor) = self.cursors.get_mut(place) else { return Ok(None) };
        let passed = cursor.pass_over(&mut self.buffers, most);
        self.queue(place);
        passed
    }

    /// Returns the number of instructions of the chunk that an error concerns.
    fn instructions_of(&self, error: &ReadError) -> u64 {
        let ReadError::Chunk { offset, .. } = *error else { return 0 };
        let chunks = self.trace.chunks();
        let place = chunks.binary_search_by_key(&offset, |chunk| chunk.offset).ok();
        place.and_then(|place| chunks.get(place)).and_then(Chunk::path).map_or(0, |path| path.counts.instructions)
    }

    /// Returns the next batch of the thread that is first. An error concerns one damaged chunk; the
    /// next call continues behind that chunk.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, ReadError> {
        while let Some(place) = self.first()? {
            let Some(cursor) = self.cursors.get_mut(place) else { continue };
            let result = cursor.next_batch(&mut self.buffers, &mut self.batch);
            self.queue(place);
            if result? {
                return Ok(Some(&self.batch));
            }
        }
        Ok(None)
    }

    /// Removes the thread that is first from the order and returns its index; `None` at the end.
    fn first(&mut self) -> Result<Option<usize>, ReadError> {
        if let Some(problem) = self.problems.pop() {
            return Err(problem);
        }
        while let Some(Reverse((time, place))) = self.order.pop() {
            let Some(cursor) = self.cursors.get_mut(place) else { continue };
            match cursor.prepare(&mut self.buffers) {
                Ok(false) => return Ok(Some(place)),
                // The chunk may begin later than its header said.
                Ok(true) if cursor.tsc().is_some_and(|tsc| tsc <= time) => return Ok(Some(place)),
                Ok(true) => self.queue(place),
                Err(error) => {
                    self.queue(place);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Puts a thread into the order, unless it is at its end.
    fn queue(&mut self, place: usize) {
        let tsc = self.cursors.get_mut(place).and_then(Cursor::tsc);
        self.order.extend(tsc.map(|tsc| Reverse((tsc, place))));
    }

    /// As [`Self::next_batch`], with accesses and events only. `visitor` makes the visitor for the
    /// thread. Returns false at the end. Not for an interleaved order.
    pub fn visit_next<W: AccessVisitor>(&mut self, visitor: impl FnOnce(ThreadId) -> W) -> Result<bool, ReadError> {
        let Some(place) = self.first()? else { return Ok(false) };
        let Some(cursor) = self.cursors.get_mut(place) else { return Ok(true) };
        let until = self.order.peek().map_or(Tsc::MAX, |&Reverse((tsc, _))| tsc);
        let result = cursor.visit(&mut self.buffers, until, visitor);
        self.queue(place);
        result.map(|_| true)
    }

    /// As [`Self::next_batch`], path by path and without memory accesses. The next batch of the
    /// same thread says where an indirect transfer at the end of a batch went.
    pub fn next_path_batch(&mut self) -> Result<Option<PathBatch<'_>>, ReadError> {
        loop {
            let Some(place) = self.first()? else { return Ok(None) };
            let Some(cursor) = self.cursors.get_mut(place) else { continue };
            let until = self.order.peek().map_or(Tsc::MAX, |&Reverse((tsc, _))| tsc);
            let result = cursor.next_words(&mut self.buffers, until);
            self.queue(place);
            if let Some(words) = result? {
                return Ok(self.cursors.get(place).map(|cursor| cursor.path_batch(words)));
            }
        }
    }
}

impl Trace {
    /// All threads in one order, by time.
    ///
    /// ```
    /// # use trackway_trace::example;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut merged = trace.merged();
    /// let mut order = Vec::new();
    /// while let Some(batch) = merged.next_batch()? {
    ///     order.push((batch.tsc(), batch.thread()));
    /// }
    /// assert!(order.is_sorted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn merged(&self) -> MergedBatches<'_> {
        self.merge(|thread| Cursor::new(self, thread, true))
    }

    /// As [`Self::merged`], with memory accesses.
    pub fn merged_with_accesses(&self) -> Result<MergedBatches<'_>, ReadError> {
        match self.data() {
            DataMode::None => Err(ReadError::NoData),
            _ => Ok(self.merge(|thread| Cursor::new(self, thread, true)?.with_accesses())),
        }
    }

    fn merge<'t>(&'t self, cursor: impl Fn(ThreadId) -> Result<Cursor<'t>, ReadError>) -> MergedBatches<'t> {
        let threads = self.threads().iter().map(|thread| thread.info.thread);
        let mut cursors: Vec<_> = threads.filter_map(|thread| cursor(thread).ok()).collect();
        let order = cursors.iter_mut().enumerate().filter_map(|(place, cursor)| Some(Reverse((cursor.tsc()?, place))));
        let order = order.collect();
        MergedBatches {
            trace: self,
            order,
            cursors,
            buffers: DecodeBuffers::default(),
            batch: Batch::default(),
            problems: Vec::new(),
        }
    }
}
