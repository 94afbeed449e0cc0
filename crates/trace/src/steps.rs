//! Iterating what a thread executed.
//!
//! A [`Cursor`] stands somewhere in a thread's chunks and fills one [`Batch`] after the other; a [`Workshop`] holds the memory
//! that decoding needs and is shared by cursors that take turns. [`Steps`] is a cursor with a workshop of its own.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use wire::word::{self, EVENT};

use crate::access::{Access, Accesses, Gathered};
use crate::block::Blocks;
use crate::container::{PathHeader, crc};
use crate::data::{self, DataCoder};
use crate::error::{Problem, ReadError};
use crate::event::{self, Recorded};
use crate::model::{DataMode, Event, Step, Terminator};
use crate::path::{self, PathCoder, Source};
use crate::path_batch::PathBatch;
use crate::program::{Packed, Program};
use crate::tally::{ELSEWHERE, start_pc};
use crate::trace::{Chunk, Trace};
use crate::visit::{AccessVisitor, Operand};

/// Steps in a batch, about: enough to make what happens per batch cheap, few enough to stay in the cache.
pub(crate) const BATCH_STEPS: usize = 2048;

/// Words in a [`PathBatch`] at most.
pub(crate) const PATH_BATCH_WORDS: usize = 8192;

/// A stretch of one thread's execution.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) thread: u32,
    image: u32,
    first_instruction: u64,
    tsc: u64,
    steps: Vec<Step>,
    events: Vec<(usize, Event)>,
    gathered: Gathered,
}

/// A step or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Step(Step),
    Event(Event),
}

impl Batch {
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The image of the process that the thread was in.
    #[must_use]
    pub fn image(&self) -> u32 {
        self.image
    }

    /// Number, from 0, of the batch's first instruction in its thread.
    #[must_use]
    pub fn first_instruction(&self) -> u64 {
        self.first_instruction
    }

    /// The last time stamp at or before the start of the batch; 0 if there is none.
    #[must_use]
    pub fn tsc(&self) -> u64 {
        self.tsc
    }

    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The events, each with the number of steps of this batch that come before it.
    #[must_use]
    pub fn events(&self) -> &[(usize, Event)] {
        &self.events
    }

    /// How many instructions the steps executed.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.steps.iter().map(|step| u64::from(step.instructions())).sum()
    }

    /// Steps and events in order.
    pub fn items(&self) -> impl Iterator<Item = Item> + '_ {
        let mut place = Place::default();
        std::iter::from_fn(move || place.next(self))
    }

    /// All memory accesses of the batch in the order they happened; none unless they were asked for, see
    /// [`Trace::steps_with_accesses`].
    #[must_use]
    pub fn accesses(&self) -> Accesses<'_> {
        self.gathered.all()
    }

    /// The memory accesses of one of [`Self::steps`].
    #[must_use]
    #[inline]
    pub fn accesses_of_step(&self, step: usize) -> Accesses<'_> {
        self.gathered.of_step(step)
    }

    /// The memory accesses that belong to one of [`Self::events`]: iterations of a string instruction that was interrupted
    /// by a signal, and is not complete.
    #[must_use]
    pub fn accesses_of_event(&self, event: usize) -> Accesses<'_> {
        self.gathered.of_event(event)
    }

    /// The bytes that an access of this batch read or wrote, lowest address first; `None` if values were not recorded.
    #[must_use]
    #[inline]
    pub fn value(&self, access: &Access) -> Option<&[u8]> {
        self.gathered.value(access)
    }

    /// An access of this batch together with its value.
    #[must_use]
    #[inline]
    pub fn operand(&self, access: &Access) -> Operand<'_> {
        self.gathered.operand(access)
    }

    /// Steps and events in order, each with its memory accesses.
    pub fn items_with_accesses(&self) -> impl Iterator<Item = (Item, Accesses<'_>)> + '_ {
        let mut place = Place::default();
        std::iter::from_fn(move || {
            let before = place;
            let item = place.next(self)?;
            let accesses = match item {
                Item::Step(_) => self.accesses_of_step(before.step),
                Item::Event(_) => self.accesses_of_event(before.event),
            };
            Some((item, accesses))
        })
    }

    /// Makes `part` of those instructions of each step that `selected` gives, counted from the step's first; of events, those behind a
    /// step whose last instruction is selected, and those at the start.
    ///
    /// ```
    /// # use trackway_trace::{Batch, example};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut steps = trace.steps(0)?;
    /// let batch = steps.next_batch()?.expect("there is something");
    /// let mut part = Batch::default();
    /// batch.select(trace.blocks(), &mut part, |_| 0..1);
    /// assert_eq!(part.instructions(), batch.steps().len() as u64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(&self, blocks: &Blocks, part: &mut Self, mut selected: impl FnMut(&Step) -> Range<u32>) {
        part.clear();
        (part.thread, part.image, part.tsc) = (self.thread, self.image, self.tsc);
        part.first_instruction = self.first_instruction;
        part.gathered.start_copy(&self.gathered);
        let (mut place, mut is_wanted) = (Place::default(), true);
        loop {
            let before = place;
            match place.next(self) {
                None => break,
                Some(Item::Event(event)) if is_wanted => {
                    part.events.push((part.steps.len(), event));
                    part.gathered.copy_event(&self.gathered, before.event);
                }
                Some(Item::Event(_)) => {}
                Some(Item::Step(step)) => {
                    let range = selected(&step);
                    is_wanted = range.end == step.instructions();
                    if part.steps.is_empty() {
                        let left_out = if range.is_empty() { step.instructions() } else { range.start };
                        part.first_instruction += u64::from(left_out);
                    }
                    part.add_part(blocks, self, before.step, range);
                }
            }
        }
    }

    /// Appends these instructions of a step of `other`.
    fn add_part(&mut self, blocks: &Blocks, other: &Self, number: usize, range: Range<u32>) {
        let Some(&step) = other.steps.get(number).filter(|_| !range.is_empty()) else { return };
        if range == (0..step.instructions()) {
            self.steps.push(step);
            return self.gathered.copy_step(&other.gathered, number, |_| true);
        }
        let address = |place: u32| blocks.instructions(&step).nth(place as usize).map(|found| found.address);
        let (from, to) = (address(range.start).unwrap_or(0), address(range.end));
        self.gathered.copy_step(&other.gathered, number, |pc| from <= pc && to.is_none_or(|to| pc < to));
        let cut = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let rest = step.skip(cut(range.start));
        self.steps.push(match to {
            None => rest,
            Some(to) => rest.cut(cut(range.end - range.start), to),
        });
    }

    /// Makes `part` of what comes at `place`, up to the step for which `is_last` says so, and goes there. `is_last`
    /// is asked about every step and, in vain, about every event; it gets the number of accesses that belong to them, which
    /// may be more than anybody could go through.
    pub(crate) fn take_part(
        &self,
        place: &mut Place,
        part: &mut Self,
        mut is_last: impl FnMut(Option<&Step>, u64) -> bool,
    ) {
        part.clear();
        (part.thread, part.image, part.tsc) = (self.thread, self.image, self.tsc);
        part.first_instruction = self.first_instruction.saturating_add(place.instructions);
        part.gathered.start_copy(&self.gathered);
        loop {
            let before = *place;
            match place.next(self) {
                None => break,
                Some(Item::Event(event)) => {
                    part.events.push((part.steps.len(), event));
                    part.gathered.copy_event(&self.gathered, before.event);
                    is_last(None, self.accesses_of_event(before.event).total());
                }
                Some(Item::Step(step)) => {
                    part.steps.push(step);
                    part.gathered.copy_step(&self.gathered, before.step, |_| true);
                    place.instructions += u64::from(step.instructions());
                    if is_last(Some(&step), self.accesses_of_step(before.step).total()) {
                        break;
                    }
                }
            }
        }
    }

    /// The last step, which left indirectly, went to `address`.
    #[inline]
    pub(crate) fn went_to(&mut self, address: u64) {
        if let Some(last) = self.steps.last_mut() {
            *last = last.with_next(address);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.events.clear();
        self.gathered.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.events.is_empty()
    }

    /// Drops all that comes before instruction `number` of the thread.
    fn drop_before(&mut self, blocks: &Blocks, number: u64) {
        let mut at = self.first_instruction;
        let mut dropped = 0;
        for step in &mut self.steps {
            let end = at + u64::from(step.instructions());
            if end > number {
                let skipped = u16::try_from(number.saturating_sub(at)).unwrap_or(0);
                *step = step.skip(skipped);
                at += u64::from(skipped);
                break;
            }
            at = end;
            dropped += 1;
        }
        self.steps.drain(..dropped.min(self.steps.len()));
        let first_pc = self.steps.first().and_then(|step| blocks.instructions(step).next());
        let events_dropped = self.events.iter().take_while(|(place, _)| *place < dropped).count();
        self.gathered.drop_before(dropped, events_dropped, first_pc.map_or(0, |first| first.address));
        self.events.drain(..events_dropped);
        for (place, _) in &mut self.events {
            *place -= dropped;
        }
        self.first_instruction = at;
    }
}

/// How far a batch has been read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    step: usize,
    event: usize,
    /// Instructions of the steps before, so far as [`Batch::take_part`] has passed them.
    instructions: u64,
}

impl Place {
    /// Whether all of the batch has been read.
    pub(crate) fn is_behind(&self, batch: &Batch) -> bool {
        self.step >= batch.steps.len() && self.event >= batch.events.len()
    }

    fn next(&mut self, batch: &Batch) -> Option<Item> {
        if let Some(&(before, event)) = batch.events.get(self.event)
            && before <= self.step
        {
            self.event += 1;
            return Some(Item::Event(event));
        }
        let step = *batch.steps.get(self.step)?;
        self.step += 1;
        Some(Item::Step(step))
    }
}

/// Memory for decoding.
#[derive(Debug, Default)]
pub(crate) struct Workshop {
    coder: PathCoder,
    pub data: DataCoder,
    scratch: Gathered,
    /// How many path chunks cursors have decoded.
    pub chunks: u64,
}

/// A decoded chunk and how far it has been read.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub words: Vec<u32>,
    pub at: usize,
    pub image: u32,
    pub instruction: u64,
    pub tsc: u64,
    pub data: Vec<u8>,
    /// How far the data has been read, if there is any that can be read.
    pub data_place: Option<data::Place>,
    stamps: Stamps,
    /// The latest time that was estimated.
    reached: u64,
}

/// Two time stamps that follow each other, and where they are among the words.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    from: (usize, u64),
    to: (usize, u64),
}

impl Stamps {
    fn time_at(&self, at: usize) -> u64 {
        let (from, to) = (self.from.1, self.to.1.max(self.from.1));
        let (words, passed) = (self.to.0.saturating_sub(self.from.0), at.saturating_sub(self.from.0));
        let time = u128::from(to - from) * passed.min(words) as u128 / words.max(1) as u128;
        from + u64::try_from(time).unwrap_or(0)
    }
}

/// A place in the path of one thread.
#[derive(Debug)]
pub(crate) struct Cursor<'t> {
    trace: &'t Trace,
    thread: u32,
    /// Places of the chunks still to come, and of those behind them, which only tell where an indirect transfer went.
    ahead: &'t [usize],
    behind: &'t [usize],
    open: Open,
    /// Batches end where the time is known.
    by_time: bool,
    /// Batches have so many steps, about, and the time between two stamps is estimated.
    slice: Option<usize>,
    /// Whether memory accesses are wanted.
    accesses: bool,
    /// Whether data is left out of chunks that are decoded, as they are passed over.
    without_data: bool,
    /// Whether the open chunk has intact data that was left out.
    has_more_data: bool,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(trace: &'t Trace, thread: u32, by_time: bool) -> Result<Self, ReadError> {
        let ahead = trace.paths_of(thread)?;
        let open = Open::default();
        let (slice, accesses, without_data, has_more_data) = (None, false, false, false);
        Ok(Self { trace, thread, ahead, behind: &[], open, by_time, slice, accesses, without_data, has_more_data })
    }

    /// The same with memory accesses.
    pub(crate) fn with_accesses(self) -> Result<Self, ReadError> {
        match self.trace.data() {
            DataMode::None => Err(ReadError::NoData),
            DataMode::Addresses | DataMode::Values => Ok(Self { accesses: true, ..self }),
        }
    }

    /// A cursor that sees the `place`th path chunk of the thread only.
    pub(crate) fn at_chunk(trace: &'t Trace, thread: u32, place: usize) -> Result<Self, ReadError> {
        let mut cursor = Self::new(trace, thread, false)?;
        let (_, from) = cursor.ahead.split_at_checked(place).unwrap_or_default();
        (cursor.ahead, cursor.behind) = from.split_at_checked(1).unwrap_or_default();
        Ok(cursor)
    }

    /// Cuts batches into slices of so many steps, about, each with an estimate of its time.
    pub(crate) fn set_slice(&mut self, steps: usize) {
        self.slice = Some(steps.clamp(1, BATCH_STEPS));
    }

    /// Gives memory back at the end of the thread.
    pub(crate) fn forget(&mut self) {
        self.open = Open::default();
    }

    pub(crate) fn is_sliced(&self) -> bool {
        self.slice.is_some()
    }

    /// The places of all path chunks of the thread.
    fn places(&self) -> &'t [usize] {
        self.trace.paths_of(self.thread).unwrap_or_default()
    }

    /// The headers of all path chunks of the thread.
    pub(crate) fn headers(&self) -> Vec<&'t PathHeader> {
        self.places().iter().filter_map(|&place| self.trace.chunks().get(place)?.path()).collect()
    }

    /// Goes to the start of the `number`th path chunk, up to which the time is `tsc`.
    pub(crate) fn go_to(&mut self, number: usize, tsc: u64) {
        (_, self.ahead) = self.places().split_at_checked(number).unwrap_or_default();
        self.open = Open { tsc, ..Open::default() };
    }

    /// Decodes chunks without their data until [`Self::take_data_in`].
    pub(crate) fn leave_data_out(&mut self) {
        self.without_data = true;
    }

    /// Decodes the data that was left out of the chunk that is open, and goes on with that of further chunks.
    pub(crate) fn take_data_in(&mut self, workshop: &mut Workshop) -> Result<(), ReadError> {
        (self.without_data, self.has_more_data) = (false, false);
        let opened = self.places().len().checked_sub(self.ahead.len() + 1);
        let place = opened.and_then(|opened| self.places().get(opened)).filter(|_| self.open.has_more());
        let Some(&place) = place.filter(|_| self.accesses) else { return Ok(()) };
        let Some(chunk) = self.trace.chunks().get(place) else { return Ok(()) };
        self.decode_data(workshop, chunk, place)?;
        self.open.skip_data(self.trace.program());
        Ok(())
    }

    /// Whether the path chunk at `place` has data with the right checksum.
    fn has_data(&self, place: usize) -> bool {
        self.trace.data_chunk(place).is_some_and(|chunk| self.trace.payload(chunk).is_ok())
    }

    /// Passes over what [`Self::next_batch`] would give, unless it has more than `most` instructions; gives how many it has. `None` if it has
    /// more. Data has to be left out.
    pub(crate) fn pass_over(&mut self, workshop: &mut Workshop, most: u64) -> Result<Option<u64>, ReadError> {
        while self.open_next(workshop)? {
            let steps = self.slice.unwrap_or(BATCH_STEPS);
            let extent = self.open.extent(self.trace.program(), steps, self.has_more_data);
            if extent.instructions > most {
                return Ok(None);
            }
            (self.open.at, self.open.tsc) = (extent.end, extent.tsc);
            self.open.instruction = self.open.instruction.saturating_add(extent.instructions);
            if !extent.is_empty {
                return Ok(Some(extent.instructions));
            }
        }
        Ok(Some(0))
    }

    /// The time at which what comes next begins; `None` at the end. If a chunk has to be opened first, it may be later.
    pub(crate) fn tsc(&mut self) -> Option<u64> {
        let next = self.ahead.first().and_then(|&place| self.trace.chunks().get(place)?.path());
        let behind = next.map(|path| path.first_tsc.max(self.open.tsc));
        let estimated = self.slice.is_some();
        // A chunk may go on where the one before it ended, before its first stamp.
        self.open
            .next_tsc(estimated, behind)
            .or(behind.map(|first| if self.open.tsc == 0 { first } else { self.open.tsc }))
    }

    /// Whether the chunk that comes next had to be opened. After an error the cursor stands behind the chunk that caused it.
    pub(crate) fn prepare(&mut self, workshop: &mut Workshop) -> Result<bool, ReadError> {
        let was_open = self.open.has_more();
        self.open_next(workshop).map(|_| !was_open)
    }

    /// Fills `batch` with what comes next; false at the end. After an error the cursor stands behind the chunk that caused it.
    pub(crate) fn next_batch(&mut self, workshop: &mut Workshop, batch: &mut Batch) -> Result<bool, ReadError> {
        batch.clear();
        while batch.is_empty() {
            if !self.open_next(workshop)? {
                return Ok(false);
            }
            self.fill(batch);
        }
        Ok(true)
    }

    /// Where what comes next is among the words, up to the time `until`; `None` at the end. After an error the cursor stands behind the chunk that caused it.
    pub(crate) fn next_words(
        &mut self,
        workshop: &mut Workshop,
        until: u64,
    ) -> Result<Option<Range<usize>>, ReadError> {
        let is_open = self.open_next(workshop)?;
        Ok(is_open.then(|| self.open.take_words(until, PATH_BATCH_WORDS)))
    }

    /// Shows what comes next to what `watcher` gives, up to the time `until`; false at the end. After an error the cursor stands behind the chunk that
    /// caused it.
    pub(crate) fn watch<W: AccessVisitor>(
        &mut self,
        workshop: &mut Workshop,
        until: u64,
        watcher: impl FnOnce(u32) -> W,
    ) -> Result<bool, ReadError> {
        if !self.open_next(workshop)? {
            return Ok(false);
        }
        let (program, scratch) = (self.trace.program(), &mut workshop.scratch);
        self.open.watch(program, until, PATH_BATCH_WORDS, scratch, &mut watcher(self.thread));
        Ok(true)
    }

    /// Makes sure that there are words; false at the end.
    fn open_next(&mut self, workshop: &mut Workshop) -> Result<bool, ReadError> {
        while !self.open.has_more() {
            let Some((&place, ahead)) = self.ahead.split_first() else { return Ok(false) };
            self.ahead = ahead;
            self.decode(workshop, place)?;
        }
        Ok(true)
    }

    /// The same, path by path.
    pub(crate) fn path_batch(&self, words: Range<usize>) -> PathBatch<'_> {
        PathBatch::new(self.thread, self.trace.program(), self.open.words.get(words).unwrap_or(&[]))
    }

    fn decode(&mut self, workshop: &mut Workshop, place: usize) -> Result<(), ReadError> {
        self.open.words.clear();
        self.open.at = 0;
        self.open.data_place = None;
        self.open.stamps = Stamps::default();
        let Some(chunk) = self.trace.chunks().get(place) else { return Ok(()) };
        let decoded = decode(self.trace, chunk, workshop, &mut self.open.words);
        workshop.chunks += 1;
        if let Err(problem) = decoded {
            self.open.words.clear();
            // What follows is not earlier than what is lost.
            let end = chunk.path().map(|path| path.last_tsc).filter(|&tsc| tsc != 0);
            self.open.tsc = end.unwrap_or(self.open.tsc);
            return Err(chunk.error(problem));
        }
        if let Some(path) = chunk.path() {
            self.open.image = path.image;
            self.open.instruction = path.first_instruction;
            // A chunk that begins without a time goes on from the one before it, if that is known.
            if self.open.tsc == 0 {
                self.open.tsc = path.first_tsc;
            }
        }
        self.has_more_data = self.accesses && self.without_data && self.has_data(place);
        if self.accesses && !self.without_data { self.decode_data(workshop, chunk, place) } else { Ok(()) }
    }

    /// After an error the steps of the chunk are there, without their accesses.
    fn decode_data(&mut self, workshop: &mut Workshop, path: &Chunk, place: usize) -> Result<(), ReadError> {
        let trace = self.trace;
        let chunk = trace.data_chunk(place).ok_or_else(|| path.error(Problem::DataMissing))?;
        let header = chunk.data().ok_or_else(|| chunk.error(Problem::Header))?;
        let Open { words, data, .. } = &mut self.open;
        let payload = trace.payload(chunk);
        let mut read = |payload| workshop.data.read(trace.program(), words, &chunk.header, payload, data);
        let read = payload.and_then(&mut read);
        read.map_err(|problem| chunk.error(problem))?;
        let keep_values = trace.data() == DataMode::Values;
        self.open.data_place = Some(data::Place { fs_base: header.fs_base, keep_values, ..data::Place::default() });
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch) {
        let program = self.trace.program();
        batch.thread = self.thread;
        if self.open.fill(program, self.by_time, self.slice.unwrap_or(BATCH_STEPS), batch) {
            batch.went_to(self.peek(program));
        }
    }

    /// Where the thread is next, see [`start_pc`].
    fn peek_ahead(&self, program: &Program) -> u64 {
        let here = start_pc(program, self.open.words.get(self.open.at..).unwrap_or(&[]));
        if here != 0 {
            return here;
        }
        let later = self.ahead.iter().chain(self.behind).filter_map(|&place| self.trace.chunks().get(place)?.path());
        later.map(|path| path.start_pc).find(|&pc| pc != 0).unwrap_or(0)
    }

    /// Where an indirect transfer that was the last thing executed went to; 0 if nothing says so.
    fn peek(&self, program: &Program) -> u64 {
        match self.peek_ahead(program) {
            ELSEWHERE => 0,
            pc => pc,
        }
    }

    /// Goes to the chunk with instruction `number`, and in it to a word before it.
    fn seek(&mut self, workshop: &mut Workshop, number: u64) -> Result<(), ReadError> {
        let chunks = self.trace.chunks();
        let path = |place: &usize| chunks.get(*place).and_then(Chunk::path);
        let place = self.ahead.partition_point(|place| path(place).is_none_or(|path| path.first_instruction <= number));
        let thread = self.thread;
        let before = place.checked_sub(1).ok_or(ReadError::Missing { thread, wanted: number })?;
        // Chunks without instructions begin at the same number as the one behind them.
        let holds = self
            .ahead
            .get(before)
            .and_then(path)
            .is_some_and(|path| number - path.first_instruction < path.counts.instructions);
        if !holds {
            let last = self.ahead.last().and_then(path);
            let available = last.map_or(0, |path| path.first_instruction.saturating_add(path.counts.instructions));
            return Err(if number < available {
                ReadError::Missing { thread, wanted: number }
            } else {
                ReadError::PastEnd { thread, wanted: number, available }
            });
        }
        let (_, from) = self.ahead.split_at_checked(before).unwrap_or_default();
        let Some((&place, ahead)) = from.split_first() else { return Ok(()) };
        self.ahead = ahead;
        self.decode(workshop, place)?;
        self.open.skip_to(self.trace.program(), number);
        Ok(())
    }
}

impl Open {
    /// The time at which what comes next begins; `None` at the end. Between two stamps it is an estimate, if that is wanted: as much has
    /// passed since the first of them as words have. The words end at the time `end`, if that is known.
    pub(crate) fn next_tsc(&mut self, is_estimated: bool, end: Option<u64>) -> Option<u64> {
        let rest = self.words.get(self.at..).filter(|rest| !rest.is_empty())?;
        if let Some(tsc) = event::read(rest).and_then(|recorded| recorded.begins()) {
            return Some(tsc);
        }
        if !is_estimated {
            return Some(self.tsc);
        }
        // Behind the end of a chunk there may be no stamp for a while.
        self.reached = self.reached.max(self.stamps_around(end).time_at(self.at));
        Some(self.reached)
    }

    /// The stamps around the place that has been reached.
    fn stamps_around(&mut self, end: Option<u64>) -> Stamps {
        // A word that is not known ends the search, too, as nothing behind it can be read.
        if self.at >= self.stamps.to.0 || self.stamps.from.1 != self.tsc {
            let mut at = self.at;
            let found = loop {
                let Some(rest) = self.words.get(at..).filter(|rest| !rest.is_empty()) else { break None };
                let tsc = event::read(rest).and_then(|recorded| recorded.tsc());
                let Some(length) = rest.first().and_then(|&first| word::length(first)) else { break None };
                match tsc {
                    Some(tsc) => break Some((at, tsc)),
                    None => at += length,
                }
            };
            let to = found.unwrap_or((self.words.len(), end.unwrap_or(self.tsc)));
            self.stamps = Stamps { from: (self.at, self.tsc), to };
        }
        self.stamps
    }

    /// More has come; what was read before is forgotten.
    pub(crate) fn append(&mut self, image: u32, words: &[u32], data: &[u8]) {
        self.image = image;
        // Moving what is left costs, too.
        if self.at > self.words.len() / 2 {
            self.words.drain(..self.at.min(self.words.len()));
            self.at = 0;
            self.stamps = Stamps::default();
        }
        self.words.extend_from_slice(words);
        if let Some(place) = self.data_place.as_mut().filter(|place| place.at > self.data.len() / 2) {
            self.data.drain(..place.at.min(self.data.len()));
            place.at = 0;
        }
        self.data.extend_from_slice(data);
    }

    /// Where the words are that come next: up to a time stamp that is not before `until`, or to `most`.
    pub(crate) fn take_words(&mut self, until: u64, most: usize) -> Range<usize> {
        let from = self.at;
        while let Some(&word) = self.words.get(self.at).filter(|_| self.at < from + most) {
            if word & EVENT == 0 {
                self.at += 1;
                continue;
            }
            let rest = self.words.get(self.at..).unwrap_or(&[]);
            let (begins, ends) = match event::time(rest) {
                Some((tsc, _)) => (Some(tsc), None),
                None => event::read(rest).map_or((None, None), |recorded| (recorded.begins(), recorded.ends())),
            };
            let is_late = |tsc: Option<u64>| tsc.is_some_and(|tsc| tsc >= until);
            if self.at > from && is_late(begins) {
                break;
            }
            self.tsc = begins.or(ends).unwrap_or(self.tsc);
            self.at += word::length(word).unwrap_or(rest.len()).min(rest.len());
            if is_late(ends) {
                break;
            }
        }
        from..self.at
    }

    /// Bytes that were not read.
    pub(crate) fn unread(&self) -> usize {
        let data = self.data_place.map_or(0, |place| self.data.len().saturating_sub(place.at));
        self.words.len().saturating_sub(self.at) * size_of::<u32>() + data
    }

    /// Fills `batch` with what comes next, about `most` steps at most. Returns whether its last step left indirectly, and it is not known where to.
    pub(crate) fn fill(&mut self, program: &Program, by_time: bool, most: usize, batch: &mut Batch) -> bool {
        batch.image = self.image;
        (batch.first_instruction, batch.tsc) = (self.instruction, self.tsc);
        let source = data::Source { program, data: &self.data };
        let source = self.data_place.map(|place| (source, place));
        let mut filling = Filling { program, batch, indirect: false, source };
        while let Some(&word) = self.words.get(self.at) {
            if word & EVENT == 0 {
                filling.path(word);
                self.at += 1;
            } else {
                let rest = self.words.get(self.at..).unwrap_or(&[]);
                let recorded = event::read(rest);
                let begins = recorded.and_then(|recorded| recorded.begins());
                let ends = recorded.and_then(|recorded| recorded.ends());
                let first = filling.batch.is_empty();
                // What an event told of accesses stays together with what they belong to.
                if by_time && begins.is_some() && !first && !filling.is_pending() {
                    break;
                }
                self.at += word::length(word).unwrap_or(rest.len());
                filling.event(recorded, rest);
                self.tsc = begins.or(ends).unwrap_or(self.tsc);
                if first {
                    filling.batch.tsc = begins.unwrap_or(filling.batch.tsc);
                }
                if by_time && ends.is_some() {
                    break;
                }
            }
            if filling.batch.steps.len() >= most {
                break;
            }
        }
        let indirect = filling.indirect;
        self.data_place = filling.leave_data();
        self.instruction = self.instruction.saturating_add(batch.instructions());
        indirect
    }

    fn has_more(&self) -> bool {
        self.at < self.words.len()
    }

    /// What [`Self::fill`] would make a batch of that ends by time. `has_data` says whether it would gather accesses.
    fn extent(&self, program: &Program, most: usize, has_data: bool) -> Extent {
        let mut extent = Extent { end: self.at, instructions: 0, tsc: self.tsc, is_empty: true };
        let (mut steps, mut is_pending) = (0, false);
        while let Some(&word) = self.words.get(extent.end).filter(|_| steps < most) {
            if word & EVENT == 0 {
                let counts = program.counts(word);
                steps += counts.map_or(0, Packed::steps);
                extent.add(1, counts.map_or(0, Packed::instructions));
                is_pending &= counts.is_none();
                continue;
            }
            let rest = self.words.get(extent.end..).unwrap_or(&[]);
            let recorded = event::read(rest);
            let begins = recorded.and_then(|recorded| recorded.begins());
            if begins.is_some() && !extent.is_empty && !is_pending {
                break;
            }
            let length = word::length(word).unwrap_or(rest.len());
            if event::is_told(word) && recorded.is_some() {
                is_pending = has_data;
                extent.end += length;
                continue;
            }
            let (whole, part) = recorded.and_then(|recorded| interrupted(program, &recorded)).unwrap_or_default();
            steps += whole.len() + usize::from(part.is_some());
            extent.add(length, whole.iter().chain(&part).map(|step| u64::from(step.instructions())).sum());
            is_pending &= word::kind(word) != word::SIGNAL;
            let ends = recorded.and_then(|recorded| recorded.ends());
            extent.tsc = begins.or(ends).unwrap_or(extent.tsc);
            if ends.is_some() {
                break;
            }
        }
        extent.is_empty &= !is_pending;
        extent
    }

    /// Passes over the data of the words that were read.
    fn skip_data(&mut self, program: &Program) {
        let Some(place) = &mut self.data_place else { return };
        let mut at = 0;
        while let Some(&word) = self.words.get(at).filter(|_| at < self.at) {
            let event = event::read(self.words.get(at..).unwrap_or(&[]));
            place.skip(program, word, event.and_then(|recorded| recorded.event));
            at += word::length(word).unwrap_or(1);
        }
    }

    /// Skips words as long as all they execute comes before instruction `number`.
    fn skip_to(&mut self, program: &Program, number: u64) {
        // Where accesses are told that belong to the next path or signal.
        let mut told = None;
        while let Some(&word) = self.words.get(self.at) {
            if event::is_told(word) {
                told.get_or_insert((self.at, self.data_place));
            }
            let executed = if word & EVENT == 0 {
                program.counts(word).map_or(0, |counts| counts.instructions())
            } else {
                let rest = self.words.get(self.at..).unwrap_or(&[]);
                let Some(recorded) = event::read(rest) else { return };
                let steps = interrupted(program, &recorded);
                steps.map_or(0, |(whole, part)| {
                    whole.iter().chain(&part).map(|step| u64::from(step.instructions())).sum()
                })
            };
            if self.instruction + executed > number {
                (self.at, self.data_place) = told.unwrap_or((self.at, self.data_place));
                return;
            }
            let event = event::read(self.words.get(self.at..).unwrap_or(&[]));
            self.tsc = event.and_then(|recorded| recorded.tsc()).unwrap_or(self.tsc);
            if word & EVENT == 0 || event.is_some_and(|recorded| recorded.interrupted.0 != 0) {
                told = None;
            }
            if let Some(place) = &mut self.data_place {
                place.skip(program, word, event.and_then(|recorded| recorded.event));
            }
            self.instruction = self.instruction.saturating_add(executed);
            self.at += word::length(word).unwrap_or(1);
        }
    }
}

/// A batch that is not made.
struct Extent {
    /// Where the words behind it begin.
    end: usize,
    instructions: u64,
    /// The last timestamp up to its end.
    tsc: u64,
    /// Whether it has neither steps nor events.
    is_empty: bool,
}

impl Extent {
    fn add(&mut self, words: usize, instructions: u64) {
        self.end += words;
        self.instructions += instructions;
        self.is_empty = false;
    }
}

/// The steps that a signal interrupted.
pub(crate) fn interrupted<'p>(program: &'p Program, recorded: &Recorded) -> Option<(&'p [Step], Option<Step>)> {
    match recorded.event {
        Some(Event::Signal { pc, .. }) if recorded.interrupted.0 != 0 => {
            program.interrupted(recorded.interrupted.0, recorded.interrupted.1, pc)
        }
        _ => Some((&[], None)),
    }
}

/// A batch that is being filled.
struct Filling<'p, 'b, 'd> {
    program: &'p Program,
    batch: &'b mut Batch,
    /// The last step left indirectly and it is not known yet where to.
    indirect: bool,
    /// Where memory accesses come from, and how far that was read.
    source: Option<(data::Source<'d>, data::Place)>,
}

impl Filling<'_, '_, '_> {
    #[inline]
    fn path(&mut self, word: u32) {
        let Some(path) = self.program.path(word) else { return self.lost() };
        if self.indirect {
            let next = path.steps.first().unwrap_or(&path.last).block().0;
            let address = self.program.blocks.node(next).map_or(0, |node| node.address);
            self.batch.went_to(address);
        }
        self.batch.steps.extend_from_slice(path.steps);
        self.batch.steps.push(path.last);
        self.indirect = path.last.terminator() == Terminator::Indirect;
        if let Some((source, place)) = &mut self.source {
            place.path(*source, word, path.steps.len() + 1, &mut self.batch.gathered);
        }
    }

    /// The event at the start of `words`.
    fn event(&mut self, recorded: Option<Recorded>, words: &[u32]) {
        let Some(recorded) = recorded else { return self.lost() };
        let steps = interrupted(self.program, &recorded);
        if let Some((source, place)) = &mut self.source {
            let count = steps.as_ref().map(|(whole, part)| (whole.len(), part.is_some()));
            // A signal that makes no sense is told by an event of its own, which has no accesses.
            if steps.is_none() {
                self.batch.gathered.event(None);
            }
            place.event(*source, words, &recorded, count, &mut self.batch.gathered);
        }
        let Some(event) = recorded.event else { return };
        let says_nothing =
            matches!(event, Event::Time { .. } | Event::Child { .. } | Event::Syscall { .. } | Event::FsBase { .. });
        if self.indirect && !says_nothing {
            self.batch.went_to(match event {
                Event::Signal { pc, .. } => self.program.head(recorded.interrupted.0).unwrap_or(pc),
                Event::Gap { pc } => pc,
                _ => 0,
            });
            self.indirect = false;
        }
        match steps {
            Some((whole, part)) => self.batch.steps.extend(whole.iter().chain(&part)),
            None => self.push_event(Event::Lost),
        }
        self.push_event(event);
    }

    fn push_event(&mut self, event: Event) {
        self.batch.events.push((self.batch.steps.len(), event));
    }

    /// Whether accesses were told that belong to what comes next.
    fn is_pending(&self) -> bool {
        self.source.is_some_and(|(_, place)| place.pending.is_some())
    }

    /// How far the data was read. Accesses that nothing in this chunk followed get an event of their own.
    fn leave_data(&mut self) -> Option<data::Place> {
        let (_, place) = self.source?;
        if let Some(mark) = place.pending {
            self.batch.gathered.event(Some(mark));
            let pc = self.batch.gathered.pc_at(mark);
            self.push_event(Event::Unfinished { pc });
        }
        Some(data::Place { pending: None, ..place })
    }

    fn lost(&mut self) {
        self.push_event(Event::Lost);
        self.batch.gathered.event(None);
    }
}

/// The words of a path chunk, all checksums compared.
pub(crate) fn decode(
    trace: &Trace,
    chunk: &Chunk,
    workshop: &mut Workshop,
    words: &mut Vec<u32>,
) -> Result<(), Problem> {
    decode_unchecked(trace, chunk, workshop, words)?;
    if crc(&[path::bytes(words)]) == chunk.header.raw_crc { Ok(()) } else { Err(Problem::RawChecksum) }
}

/// The same, whatever the checksum of the words.
pub(crate) fn decode_unchecked(
    trace: &Trace,
    chunk: &Chunk,
    workshop: &mut Workshop,
    words: &mut Vec<u32>,
) -> Result<(), Problem> {
    let Some(header) = chunk.path() else { return Err(Problem::Header) };
    let source = Source {
        program: trace.program(),
        image: header.image,
        sequence: chunk.header.sequence,
        codec: chunk.header.codec,
        payload: trace.payload(chunk)?,
        length: chunk.header.raw_length as usize,
    };
    workshop.coder.decode(&source, words)
}

/// The steps and events of one thread, in order.
///
/// As an iterator it yields single [`Item`]s; [`Self::next_batch`] is faster. After an error, which concerns one damaged
/// chunk, it goes on behind that.
#[derive(Debug)]
pub struct Steps<'t> {
    cursor: Cursor<'t>,
    workshop: Workshop,
    batch: Batch,
    place: Place,
    /// The batch is there but nobody has seen it.
    unseen: bool,
}

impl<'t> Steps<'t> {
    pub(crate) fn new(cursor: Cursor<'t>, workshop: Workshop) -> Self {
        Self { cursor, workshop, batch: Batch::default(), place: Place::default(), unseen: false }
    }

    pub(crate) fn into_workshop(self) -> Workshop {
        self.workshop
    }

    /// The next stretch; `None` at the end. What [`Iterator::next`] has not yielded of the one before is skipped.
    ///
    /// ```
    /// # use trackway_trace::example;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let blocks = trace.blocks();
    /// let mut steps = trace.steps(0)?;
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
        let more = std::mem::take(&mut self.unseen) || self.cursor.next_batch(&mut self.workshop, &mut self.batch)?;
        self.place = Place { step: self.batch.steps.len(), event: self.batch.events.len(), instructions: 0 };
        Ok(more.then_some(&self.batch))
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<Item, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.unseen = false;
            if let Some(item) = self.place.next(&self.batch) {
                return Some(Ok(item));
            }
            match self.next_batch() {
                Err(error) => return Some(Err(error)),
                Ok(None) => return None,
                Ok(Some(_)) => self.place = Place::default(),
            }
        }
    }
}

impl Trace {
    /// Everything that `thread` executed.
    pub fn steps(&self, thread: u32) -> Result<Steps<'_>, ReadError> {
        Ok(Steps::new(Cursor::new(self, thread, false)?, Workshop::default()))
    }

    /// What `thread` executed from instruction `number` on, counted from 0. The first step may be the rest of a block, see
    /// [`Step::first`].
    ///
    /// ```
    /// # use trackway_trace::example;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut steps = trace.seek(0, 5)?;
    /// let batch = steps.next_batch()?.expect("there is more");
    /// assert_eq!(batch.first_instruction(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&self, thread: u32, number: u64) -> Result<Steps<'_>, ReadError> {
        self.seek_from(self.steps(thread)?, number)
    }

    /// Everything that `thread` executed, with its memory accesses. An error may concern damaged data only: then steps
    /// follow that have none.
    ///
    /// ```
    /// # use trackway_trace::example;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let mut steps = trace.steps_with_accesses(0)?;
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
    pub fn steps_with_accesses(&self, thread: u32) -> Result<Steps<'_>, ReadError> {
        Ok(Steps::new(Cursor::new(self, thread, false)?.with_accesses()?, Workshop::default()))
    }

    /// As [`Self::seek`], with memory accesses.
    pub fn seek_with_accesses(&self, thread: u32, number: u64) -> Result<Steps<'_>, ReadError> {
        self.seek_from(self.steps_with_accesses(thread)?, number)
    }

    fn seek_from<'t>(&'t self, mut steps: Steps<'t>, number: u64) -> Result<Steps<'t>, ReadError> {
        steps.cursor.seek(&mut steps.workshop, number)?;
        while steps.cursor.next_batch(&mut steps.workshop, &mut steps.batch)? {
            steps.batch.drop_before(self.blocks(), number);
            if !steps.batch.steps.is_empty() {
                break;
            }
        }
        steps.unseen = true;
        Ok(steps)
    }
}
