//! Batches of what a recorder delivers, while it records and without a file.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use entity::{AppPc, BlockId, ThreadId, Tsc};
use hashbrown::HashMap;

use crate::access::AccessBuffer;
use crate::batch::{BATCH_STEPS, Batch};
use crate::block::Blocks;
use crate::data;
use crate::definition::Definition;
use crate::error::WriteError;
use crate::model::{AccessDescriptors, DataMode, Fragment};
use crate::open_chunk::OpenChunk;
use crate::path_batch::{PATH_BATCH_WORDS, PathBatch};
use crate::program::Program;
use crate::tally::{DISCONTINUOUS, start_pc};
use crate::visit::AccessVisitor;

/// Takes the same calls as a [`crate::Writer`] and emits the batches that [`crate::Trace::merged`]
/// of its file would return.
///
/// Threads deliver at different times. To merge them, it holds words back until so many wait that
/// hardly any earlier ones will come.
///
/// ```
/// use trackway_trace::{AppPc, BlockId, DataMode, Fragment, FragmentId, LiveTrace, PathId, ThreadId};
/// use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN};
/// use wire::word;
///
/// let mut live = LiveTrace::new(DataMode::None);
/// // dec ecx; jnz to itself
/// let (block, fragment) = (BlockId::new(1), FragmentId::new(PathId::new(1)));
/// live.block(0, block, AppPc::new(0x1000), &[0xff, 0xc9, 0x75, 0xfc])?;
/// let blocks = [FragmentBlock::new(block, false)];
/// let exits = [FragmentExit::new(1, TERMINATOR_TAKEN), FragmentExit::new(1, TERMINATOR_NOT_TAKEN)];
/// live.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits })?;
/// let mut instructions = 0;
/// let mut take = |_: &trackway_trace::Blocks, batch: &trackway_trace::Batch| {
///     instructions += batch.instructions();
///     Ok::<(), trackway_trace::WriteError>(())
/// };
/// let words = [word::event(word::START, 0), 0x1000, 0, 77, 0, 1, 1, 2];
/// live.path(0, ThreadId::FIRST, &words, &[], &mut take)?;
/// live.finish(&mut take)?;
/// assert_eq!(instructions, 6);
/// # Ok::<(), trackway_trace::WriteError>(())
/// ```
#[derive(Debug)]
pub struct LiveTrace {
    program: Program,
    mode: DataMode,
    /// Steps of a slice, see [`crate::MergedBatches::interleaved`].
    slice: Option<usize>,
    threads: HashMap<ThreadId, LiveThread>,
    /// Time and number of each thread with unread words.
    order: BinaryHeap<Reverse<(Tsc, ThreadId)>>,
    /// Bytes that wait, and the limit above which batches are emitted.
    waiting: usize,
    limit: usize,
    batch: Batch,
    scratch: AccessBuffer,
}

/// Limit of bytes that wait: some tenths of a second of busy threads.
const WAITING_MAX: usize = 32 << 20;

#[derive(Debug, Default)]
struct LiveThread {
    /// What has come and was not emitted.
    open: OpenChunk,
    /// A batch whose last step has an indirect terminator, until its target is known.
    held: Batch,
    /// Whether the thread is in the order of threads.
    is_queued: bool,
}

impl LiveTrace {
    /// `mode` says which data comes with the words.
    #[must_use]
    pub fn new(mode: DataMode) -> Self {
        Self {
            program: Program::default(),
            mode,
            slice: None,
            threads: HashMap::new(),
            order: BinaryHeap::new(),
            waiting: 0,
            limit: WAITING_MAX,
            batch: Batch::default(),
            scratch: AccessBuffer::default(),
        }
    }

    /// Changes threads every few steps, see [`crate::MergedBatches::interleaved`].
    #[must_use]
    pub fn interleaved(self, steps: usize) -> Self {
        Self { slice: Some(steps), ..self }
    }

    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.program.blocks
    }

    /// See [`crate::Writer::block`].
    pub fn block(&mut self, image: u32, id: BlockId, address: AppPc, code: &[u8]) -> Result<(), WriteError> {
        self.program.define(&Definition::Block { image, id, address, code }, 0)
    }

    /// See [`crate::Writer::fragment`].
    pub fn fragment(&mut self, image: u32, fragment: &Fragment<'_>) -> Result<(), WriteError> {
        self.program.define(&Definition::Fragment { image, fragment: *fragment }, 0)
    }

    /// See [`crate::Writer::access_descriptors`].
    pub fn access_descriptors(&mut self, descriptors: &AccessDescriptors<'_>) -> Result<(), WriteError> {
        self.program.define(&Definition::AccessDescriptors(*descriptors), 0)
    }

    /// See [`crate::Writer::path_with_data`]. Calls `each` for the batches that have waited long
    /// enough.
    pub fn path<E>(
        &mut self,
        image: u32,
        thread: ThreadId,
        words: &[u32],
        data: &[u8],
        mut each: impl FnMut(&Blocks, &Batch) -> Result<(), E>,
    ) -> Result<(), E> {
        self.add(image, thread, words, data);
        while self.waiting > self.limit && self.emit_next(false, &mut each)? {}
        Ok(())
    }

    /// Adds words and data that wait for [`Self::visit_next`].
    pub fn add(&mut self, image: u32, thread: ThreadId, words: &[u32], data: &[u8]) {
        let own = self.threads.entry(thread).or_default();
        own.open.append(image, words, data);
        if self.mode != DataMode::None {
            let keep_values = self.mode == DataMode::Values;
            own.open.data_position.get_or_insert(data::DataPosition { keep_values, ..data::DataPosition::default() });
        }
        self.waiting += size_of_val(words) + data.len();
        if !own.is_queued {
            own.queue(thread, self.slice.is_some(), &mut self.order);
        }
    }

    /// As [`Self::path`], path by path and without memory accesses.
    pub fn path_batch<E>(
        &mut self,
        image: u32,
        thread: ThreadId,
        words: &[u32],
        mut each: impl FnMut(&PathBatch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.add(image, thread, words, &[]);
        while self.waiting > self.limit && self.emit_path_batch(&mut each)? {}
        Ok(())
    }

    /// As [`Self::finish`], path by path.
    pub fn finish_path_batches<E>(&mut self, mut each: impl FnMut(&PathBatch<'_>) -> Result<(), E>) -> Result<(), E> {
        while self.emit_path_batch(&mut each)? {}
        Ok(())
    }

    fn emit_path_batch<E>(&mut self, mut each: impl FnMut(&PathBatch<'_>) -> Result<(), E>) -> Result<bool, E> {
        let Some(Reverse((_, thread))) = self.order.pop() else { return Ok(false) };
        let Some(own) = self.threads.get_mut(&thread) else { return Ok(true) };
        let until = self.order.peek().map_or(Tsc::MAX, |&Reverse((tsc, _))| tsc);
        let words = own.open.take_words(until, PATH_BATCH_WORDS);
        self.waiting = self.waiting.saturating_sub(words.len() * size_of::<u32>());
        own.queue(thread, false, &mut self.order);
        each(&PathBatch::new(thread, &self.program, own.open.words.get(words).unwrap_or(&[]))).map(|()| true)
    }

    /// Visits the accesses of the thread that is first, if enough words wait or if `all` is set.
    /// `visitor` makes the visitor for its thread. Returns false if there was nothing. Not for an
    /// interleaved order.
    pub fn visit_next<W: AccessVisitor>(&mut self, all: bool, visitor: impl FnOnce(ThreadId) -> W) -> bool {
        if self.waiting <= self.limit && !all {
            return false;
        }
        let Some(Reverse((_, thread))) = self.order.pop() else { return false };
        let Some(own) = self.threads.get_mut(&thread) else { return true };
        let until = self.order.peek().map_or(Tsc::MAX, |&Reverse((tsc, _))| tsc);
        let before = own.open.unread_bytes();
        own.open.visit(&self.program, until, PATH_BATCH_WORDS, &mut self.scratch, &mut visitor(thread));
        self.waiting = self.waiting.saturating_sub(before - own.open.unread_bytes());
        own.queue(thread, false, &mut self.order);
        true
    }

    /// Emits everything that waits.
    pub fn finish<E>(&mut self, mut each: impl FnMut(&Blocks, &Batch) -> Result<(), E>) -> Result<(), E> {
        for (&thread, own) in &mut self.threads {
            // The target that a batch waited for will not come.
            if !own.is_queued && !own.held.is_empty() {
                self.order.push(Reverse((own.held.tsc(), thread)));
            }
        }
        while self.emit_next(true, &mut each)? {}
        Ok(())
    }

    /// Emits a batch of the thread that is first. Returns whether there was one.
    fn emit_next<E>(
        &mut self,
        is_last: bool,
        mut each: impl FnMut(&Blocks, &Batch) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Some(Reverse((_, thread))) = self.order.pop() else { return Ok(false) };
        let Some(own) = self.threads.get_mut(&thread) else { return Ok(true) };
        own.is_queued = false;
        let before = own.open.unread_bytes();
        let (program, batch) = (&self.program, &mut self.batch);
        if !own.held.is_empty() {
            let Some(next) = own.next(program, is_last) else { return Ok(true) };
            own.held.set_last_target(next);
            let emitted = each(&program.blocks, &own.held);
            own.held.clear();
            emitted?;
        }
        batch.clear();
        batch.thread = thread;
        let steps = self.slice.unwrap_or(BATCH_STEPS);
        let is_open = own.open.fill(program, true, steps, batch);
        self.waiting = self.waiting.saturating_sub(before - own.open.unread_bytes());
        own.queue(thread, self.slice.is_some(), &mut self.order);
        if is_open {
            let Some(next) = own.next(program, is_last) else {
                std::mem::swap(batch, &mut own.held);
                return Ok(true);
            };
            batch.set_last_target(next);
        }
        if batch.is_empty() { Ok(true) } else { each(&program.blocks, batch).map(|()| true) }
    }
}

impl LiveThread {
    /// Puts the thread into the order of threads, if it has unread words.
    fn queue(&mut self, thread: ThreadId, is_estimated: bool, order: &mut BinaryHeap<Reverse<(Tsc, ThreadId)>>) {
        let next = self.open.next_tsc(is_estimated, None);
        self.is_queued = next.is_some();
        order.extend(next.map(|tsc| Reverse((tsc, thread))));
    }

    /// Returns the target of the last step emitted, whose terminator is indirect; `None` if it is
    /// not known yet, [`AppPc::NONE`] if it never will be.
    fn next(&self, program: &Program, is_last: bool) -> Option<AppPc> {
        match start_pc(program, self.open.unread_words()) {
            AppPc::NONE if !is_last => None,
            AppPc::NONE | DISCONTINUOUS => Some(AppPc::NONE),
            next => Some(next),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use entity::{FragmentId, PathId};
    use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_INDIRECT};
    use wire::word;

    use super::*;
    use crate::model::Event;

    /// A return, whose target only the next path says.
    fn live() -> LiveTrace {
        let mut live = LiveTrace::new(DataMode::None);
        for (number, address) in [(1, 0x1000), (2, 0x2000)] {
            live.block(0, BlockId::new(number), AppPc::new(address), &[0xc3]).unwrap();
            let blocks = [FragmentBlock::new(BlockId::new(number), false)];
            let exits = [FragmentExit::new(1, TERMINATOR_INDIRECT)];
            live.fragment(0, &Fragment { fragment: fragment(number), blocks: &blocks, exits: &exits }).unwrap();
        }
        live
    }

    fn fragment(first_path: u32) -> FragmentId {
        FragmentId::new(PathId::new(first_path))
    }

    fn take(emitted: &mut Vec<(u32, u64)>, batch: &Batch) -> Result<(), WriteError> {
        emitted.extend(batch.steps().iter().map(|step| (batch.thread().get(), step.next().get())));
        Ok(())
    }

    #[test]
    fn a_batch_waits_for_its_indirect_target() {
        let (mut live, mut emitted) = (LiveTrace { limit: 0, ..live() }, Vec::new());
        live.path(0, ThreadId::new(7), &[1, 2, 1], &[], |_, batch| take(&mut emitted, batch)).unwrap();
        assert!(emitted.is_empty());
        live.path(0, ThreadId::new(8), &[2], &[], |_, batch| take(&mut emitted, batch)).unwrap();
        live.path(0, ThreadId::new(7), &[word::event(word::TIME, 0), 5, 0], &[], |_, batch| take(&mut emitted, batch))
            .unwrap();
        assert!(emitted.is_empty());
        live.path(0, ThreadId::new(7), &[2], &[], |_, batch| take(&mut emitted, batch)).unwrap();
        assert_eq!(emitted, [(7, 0x2000), (7, 0x1000), (7, 0x2000)]);
        live.path(0, ThreadId::new(8), &[word::event(word::TIME, 0), 9, 0], &[], |_, batch| take(&mut emitted, batch))
            .unwrap();
        let mut events = Vec::new();
        live.finish(|_, batch| {
            events.extend(batch.events().iter().map(|&(_, event)| (batch.thread().get(), event)));
            take(&mut emitted, batch)
        })
        .unwrap();
        assert_eq!(emitted.split_off(3), [(8, 0), (7, 0)]);
        assert_eq!(events, [(8, Event::Time { tsc: Tsc::new(9) }), (7, Event::Time { tsc: Tsc::new(5) })]);
    }

    #[test]
    fn threads_are_merged_by_time() {
        let (mut live, mut emitted) = (live(), Vec::new());
        let at = |tsc: u32, path: u32| [word::event(word::TIME, 0), tsc, 0, path];
        let later = [at(20, 1), at(40, 2)].concat();
        live.path(0, ThreadId::new(1), &later, &[], |_, batch| take(&mut emitted, batch)).unwrap();
        live.path(0, ThreadId::new(2), &[at(10, 1), at(30, 1)].concat(), &[], |_, batch| take(&mut emitted, batch))
            .unwrap();
        live.finish(|_, batch| take(&mut emitted, batch)).unwrap();
        assert_eq!(emitted, [(2, 0x1000), (1, 0x2000), (2, 0), (1, 0)]);
    }

    #[test]
    fn bad_definitions_are_refused_and_unknown_words_are_lost() {
        let mut live = live();
        assert!(live.block(0, BlockId::new(1), AppPc::new(0x1000), &[0xc3]).is_err());
        let blocks = [FragmentBlock::new(BlockId::new(9), false)];
        assert!(live.fragment(0, &Fragment { fragment: fragment(1), blocks: &blocks, exits: &[] }).is_err());
        let mut lost = 0;
        let mut count = |batch: &Batch| {
            lost += batch.events().iter().filter(|(_, event)| *event == Event::Lost).count();
            Ok::<(), WriteError>(())
        };
        live.path(0, ThreadId::FIRST, &[77, u32::MAX], &[], |_, batch| count(batch)).unwrap();
        live.finish(|_, batch| count(batch)).unwrap();
        assert_eq!(lost, 2);
    }
}
