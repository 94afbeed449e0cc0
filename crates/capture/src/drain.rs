//! Takes events out of the shared memory and delivers them to a [`Sink`], each after the
//! definitions that it refers to.
//!
//! The target is not trusted: positions and lengths are checked, and nonsense is left out with a
//! warning. If the sink fails, the drain asks the target to go back to native code and discards
//! everything that still comes, so that no thread waits for room. Knows nothing of ptrace.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use entity::{PathId, ThreadId, Tsc};
use wire::code::{
    AccessDescriptor, BlockRecord, Definition, FragmentBlock, FragmentExit, ModuleRecord, Records, UnmapRecord,
};
use wire::{SEGMENT_COUNT, SLOT_ABANDONED, SLOT_COUNT, SLOT_ENDED, SLOT_FREE, SLOT_LIVE, Slot, code, word};

use crate::call_stack::{CallStack, OlderFrame};
use crate::filter::{Filter, timed};
use crate::segment_time;
use crate::select::{Selection, Selector};
use crate::shared::{self, SEGMENT_WORDS, Shared};
use crate::sink::{AccessDescriptors, Fragment, Module, Sink, ThreadInfo};
use crate::split::{SegmentWords, SplitEnd, Splitter};
use crate::{host, maps, task};

/// Slots beyond the highest one in use that every pass looks at. The drain looks at all others
/// before it sleeps.
const LOOK_AHEAD: usize = 32;
/// Warnings that are kept; a broken target could cause any number.
const WARNINGS_MAX: usize = 20;

/// Statistics of the rings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub path_words: u64,
    pub data_bytes: u64,
    pub code_bytes: u64,
    pub segments: u64,
    /// Wake-ups of a thread that waited for room in its ring, or for the code ring to be read. A
    /// thread that is slow to go on is counted again.
    pub stalls: u64,
    /// Sleeps of the recorder, for want of events.
    pub sleeps: u64,
}

/// The reader of all rings of one process.
pub struct Drain<'a, S: Sink> {
    shared: &'a Shared,
    sink: S,
    failure: Option<S::Error>,
    image: u32,
    /// Leaves out what is not selected; `None` if everything is.
    filter: Option<Filter>,
    selector: Option<Selector>,
    /// Instructions to skip before anything is recorded.
    skip: u64,
    /// The number of the process; 0 if it is not known.
    process: i32,
    /// For each slot, the thread that was delivered to the sink.
    delivered_threads: Vec<Option<ThreadId>>,
    /// One more than the highest slot that was in use.
    high_water: usize,
    path: Vec<u32>,
    /// Separates words and data, if data is recorded.
    splitter: Option<Splitter>,
    code: Vec<u8>,
    /// By address, the paths of modules that `code` announces without one.
    paths: Vec<(u64, String)>,
    counters: Counters,
    warnings: Vec<String>,
}

impl<'a, S: Sink> Drain<'a, S> {
    pub fn new(shared: &'a Shared, sink: S) -> Self {
        let records_data = shared.control().data.load(Relaxed) != wire::DATA_NONE;
        Self {
            shared,
            sink,
            failure: None,
            image: 0,
            filter: None,
            selector: None,
            skip: 0,
            process: 0,
            delivered_threads: vec![None; SLOT_COUNT],
            high_water: 0,
            path: Vec::with_capacity(SEGMENT_WORDS),
            splitter: records_data.then(Splitter::default),
            code: Vec::new(),
            paths: Vec::new(),
            counters: Counters::default(),
            warnings: Vec::new(),
        }
    }

    /// Sets up the filter and the selector of the process.
    pub fn select(&mut self, selection: &Selection, process: i32) {
        selection.announce(self.shared);
        self.skip = selection.skip;
        self.process = process;
        self.filter = selection.needs_filter().then(|| Filter::new(selection));
        self.selector = Selector::new(selection, process);
    }

    /// Returns whether the call stacks of threads are recorded.
    pub fn follows_calls(&self) -> bool {
        self.filter.as_ref().is_some_and(Filter::follows_calls)
    }

    /// Sets the frames of a thread that was running before, the innermost first.
    pub fn set_older_calls(&mut self, thread: ThreadId, frames: &[OlderFrame]) {
        if let Some(filter) = &mut self.filter {
            filter.set_older_calls(thread, CallStack::of_frames(frames));
        }
    }

    /// Returns whether as many instructions as wanted have been recorded.
    fn is_full(&self) -> bool {
        self.filter.as_ref().is_some_and(Filter::is_full)
    }

    /// Takes all complete segments and records. Returns whether there were any.
    pub fn drain_once(&mut self) -> bool {
        self.drain_slots((self.high_water + LOOK_AHEAD).min(SLOT_COUNT))
    }

    /// Sleeps until a thread rings the doorbell or the time is over, unless there is something to
    /// take already.
    pub fn sleep(&mut self, timeout: Duration, has_other_work: impl FnOnce() -> bool) {
        let control = self.shared.control();
        let doorbell = control.doorbell.load(SeqCst);
        control.recorder_sleeping.store(1, SeqCst);
        if !self.drain_slots(SLOT_COUNT) && !has_other_work() {
            self.counters.sleeps += 1;
            self.deliver(S::tick);
            shared::wait(&control.doorbell, doorbell, timeout);
        }
        control.recorder_sleeping.store(0, SeqCst);
    }

    /// Takes everything, unfinished segments included, and frees all slots: the image is gone.
    pub fn finish_image(&mut self) {
        for index in 0..SLOT_COUNT {
            if self.slot(index).state.load(Acquire) != SLOT_FREE {
                self.take_completed(index);
                self.take_unfinished(index);
                self.shared.clear_slot(index);
                self.free_slot(index);
            }
        }
        self.drain_code();
        self.shared.control().code_waiting.store(0, SeqCst);
        self.high_water = 0;
    }

    /// Takes what a detached thread has written. It has written `bytes` to the segment that it did
    /// not complete.
    pub fn take_detached(&mut self, index: u32, bytes: u32, tsc: Tsc) {
        let index = index as usize;
        if index >= SLOT_COUNT || self.slot(index).state.load(Acquire) != SLOT_LIVE {
            return;
        }
        self.take_completed(index);
        let segment = self.slot(index).head.load(SeqCst) as usize % SEGMENT_COUNT;
        let words = (bytes as usize / size_of::<u32>()).min(SEGMENT_WORDS);
        self.shared.take_segment(index, segment, words, &mut self.path);
        self.drop_uninstrumented(index);
        self.path.extend(timed(word::DETACH, tsc));
        self.drain_code();
        self.deliver_thread(index);
        self.deliver_segment(index, false);
        self.shared.clear_slot(index);
        self.free_slot(index);
    }

    /// Returns whether the sink has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the number of bytes that the sink has written so far.
    pub fn bytes(&self) -> u64 {
        self.sink.bytes()
    }

    /// Begins another image of the process.
    pub fn next_image(&mut self) {
        self.image += 1;
        self.shared.control().image.store(self.image, SeqCst);
        // The threads that were skipping instructions are gone.
        self.shared.control().skippers.store(0, SeqCst);
        self.filter.iter_mut().for_each(Filter::next_image);
    }

    /// Delivers the modules of an image, before its first instruction is executed.
    pub fn start_image(&mut self, modules: impl Iterator<Item = Module>) {
        if let Some(selector) = &mut self.selector {
            selector.next_image(self.shared);
        }
        for module in modules {
            if let Some(selector) = &mut self.selector {
                selector.mapped(&module, self.shared);
            }
            self.deliver_module(&module);
        }
    }

    fn deliver_module(&mut self, module: &Module) {
        let image = self.image;
        self.deliver(|sink| sink.module(image, module));
    }

    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if self.warnings.len() < WARNINGS_MAX && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Returns the statistics, the warnings, and the sink's error if it failed.
    pub fn finish(mut self) -> (Counters, Vec<String>, Option<S::Error>) {
        for warning in self.selector.iter().flat_map(Selector::warnings).collect::<Vec<_>>() {
            self.warn(warning);
        }
        if self.skip > 0 && self.filter.as_ref().is_some_and(Filter::is_empty) {
            let skip = self.skip;
            self.warn(format!(
                "nothing was recorded: --skip {skip} instructions were not over when the recording ended"
            ));
        }
        (self.counters, self.warnings, self.failure)
    }

    fn drain_slots(&mut self, limit: usize) -> bool {
        let mut progress = self.drain_code();
        for index in 0..limit {
            // Read before the head: the head of an ended thread is final.
            let state = self.slot(index).state.load(Acquire);
            if state == SLOT_FREE {
                continue;
            }
            self.high_water = self.high_water.max(index + 1);
            progress |= self.take_completed(index);
            if state == SLOT_ENDED {
                if Shared::is_worth_clearing(index) {
                    self.shared.clear_slot(index);
                }
                self.free_slot(index);
                progress = true;
            } else if state == SLOT_ABANDONED {
                self.take_abandoned(index);
                progress = true;
            }
        }
        progress
    }

    fn slot(&self, index: usize) -> &'a Slot {
        &self.shared.control().slots[index]
    }

    fn take_completed(&mut self, index: usize) -> bool {
        let slot = self.slot(index);
        let head = slot.head.load(SeqCst);
        let mut tail = slot.tail.load(Relaxed);
        // A detaching thread takes its last segment back. If the recorder has consumed that, the
        // tail is ahead by one.
        let mut waiting = head.wrapping_sub(tail) as i32;
        if waiting <= 0 {
            return false;
        }
        if waiting as usize > SEGMENT_COUNT {
            self.warn(format!("the ring in slot {index} was damaged by the target; a part of its path is lost"));
            tail = head.wrapping_sub(SEGMENT_COUNT as u32);
            waiting = SEGMENT_COUNT as i32;
        }
        // Records come before the segments that refer to them, hence are in the code ring now.
        self.drain_code();
        self.deliver_thread(index);
        for _ in 0..waiting {
            let segment = tail as usize % SEGMENT_COUNT;
            let count = (slot.used[segment].load(Relaxed) as usize / size_of::<u32>()).min(SEGMENT_WORDS);
            let thread = ThreadId::new(slot.thread.load(Relaxed));
            if self.splitter.is_some() {
                let content = self.shared.segment(index, segment, count);
                self.deliver_with_data(thread, &content, false);
                content.clear();
            } else {
                self.shared.take_segment(index, segment, count, &mut self.path);
            }
            tail = tail.wrapping_add(1);
            slot.tail.store(tail, SeqCst);
            let waits = slot.waiting.load(SeqCst) != 0;
            // Waking is expensive: wait until the thread has room for more than one segment.
            if waits && head.wrapping_sub(tail) as usize <= SEGMENT_COUNT / 4 {
                self.counters.stalls += 1;
                shared::wake(&slot.tail);
            }
            self.sink.waited(waits);
            self.counters.segments += 1;
            if self.splitter.is_none() {
                self.deliver_words(thread);
            }
        }
        true
    }

    /// Takes what an exited thread has written to the segment that it did not complete: everything
    /// before the first zero.
    fn take_unfinished(&mut self, index: usize) {
        let slot = self.slot(index);
        let segment = slot.head.load(SeqCst) as usize % SEGMENT_COUNT;
        self.shared.take_segment(index, segment, SEGMENT_WORDS, &mut self.path);
        self.drop_uninstrumented(index);
        if self.splitter.is_none() {
            self.path.truncate(written_words(&self.path));
        }
        if self.path.first().is_some_and(|&first| first != 0) {
            self.drain_code();
            self.deliver_thread(index);
            self.deliver_segment(index, true);
        }
    }

    /// Takes what a process has written that shared the target's memory and was killed.
    fn take_abandoned(&mut self, index: usize) {
        self.take_unfinished(index);
        if self.delivered_threads[index].is_some() {
            self.path.clear();
            self.path.extend(timed(word::END, host::tsc()));
            self.deliver_segment(index, false);
        }
        self.shared.clear_slot(index);
        self.free_slot(index);
    }

    /// Truncates an incomplete segment, which is in `self.path`, to the words that the thread would
    /// not have overwritten.
    fn drop_uninstrumented(&mut self, index: usize) {
        if let Some(bytes) = self.slot(index).uninstrumented_from.load(Relaxed).checked_sub(1) {
            self.path.truncate(bytes as usize / size_of::<u32>());
        }
    }

    /// Delivers the content of a segment, which is in `self.path`.
    fn deliver_segment(&mut self, index: usize, unfinished: bool) {
        let thread = ThreadId::new(self.slot(index).thread.load(Relaxed));
        if self.splitter.is_none() {
            return self.deliver_words(thread);
        }
        let path = std::mem::take(&mut self.path);
        self.deliver_with_data(thread, &path[..], unfinished);
        self.path = path;
    }

    /// Separates words and data, and delivers both.
    fn deliver_with_data(&mut self, thread: ThreadId, segment: &(impl SegmentWords + ?Sized), unfinished: bool) {
        let mut from = 0;
        while let Some(splitter) = &mut self.splitter {
            let is_first = from == 0;
            let end = splitter.split(segment, &mut from);
            if is_first {
                segment_time::move_opening_time(splitter.words_mut());
            }
            self.deliver_piece(thread);
            let fine = match end {
                SplitEnd::PieceFull => continue,
                SplitEnd::SegmentEnd => true,
                SplitEnd::Unwritten | SplitEnd::Truncated => unfinished,
                SplitEnd::Unknown => false,
            };
            if !fine {
                self.warn(format!(
                    "thread {thread} has written something that makes no sense; a part of its path is lost"
                ));
            }
            break;
        }
    }

    /// Delivers what the splitter has separated.
    fn deliver_piece(&mut self, thread: ThreadId) {
        let Some(splitter) = self.splitter.take() else { return };
        let (words, data) = splitter.content();
        self.counters.path_words += words.len() as u64;
        self.counters.data_bytes += data.len() as u64;
        if self.filter.is_some() {
            self.path.clear();
            self.path.extend_from_slice(words);
            self.deliver_selected(thread, data, |path| splitter.data_words(path));
        } else if !words.is_empty() {
            let image = self.image;
            self.deliver(|sink| sink.path(image, thread, words, data));
        }
        self.splitter = Some(splitter);
    }

    /// Delivers `self.path`. The drain does not look at the words unless some are left out: that
    /// would take longer than everything else here, and a sink has to look at them anyway.
    fn deliver_words(&mut self, thread: ThreadId) {
        segment_time::move_opening_time(&mut self.path);
        self.counters.path_words += self.path.len() as u64;
        if self.filter.is_some() {
            return self.deliver_selected(thread, &[], |_| 0);
        }
        let (path, image) = (std::mem::take(&mut self.path), self.image);
        self.deliver(|sink| sink.path(image, thread, &path, &[]));
        self.path = path;
    }

    /// Delivers the selected ones of the words in `self.path`, and their data. `data_words` says
    /// how many words of data are behind a path.
    fn deliver_selected(&mut self, thread: ThreadId, data: &[u8], data_words: impl Fn(PathId) -> usize) {
        let Some(filter) = self.filter.as_mut().filter(|filter| !filter.is_full()) else { return };
        let data = filter.words(thread, &mut self.path, data, data_words);
        let (is_full, call_stacks) = (filter.is_full(), filter.take_new_call_stacks());
        for node in call_stacks {
            self.deliver(|sink| sink.call_stack(&node));
        }
        let (path, image) = (std::mem::take(&mut self.path), self.image);
        if !path.is_empty() {
            self.deliver(|sink| sink.path(image, thread, &path, data));
        }
        self.path = path;
        if is_full {
            self.stop_recording();
        }
    }

    /// Ends the recording, because enough instructions have been recorded.
    fn stop_recording(&mut self) {
        let image = self.image;
        for (thread, words) in self.filter.iter_mut().flat_map(Filter::detached_threads).collect::<Vec<_>>() {
            self.deliver(|sink| sink.path(image, thread, &words, &[]));
        }
        self.shared.control().detach.store(wire::DETACH_TOGETHER, SeqCst);
    }

    fn deliver_thread(&mut self, index: usize) {
        let slot = self.slot(index);
        let thread = ThreadId::new(slot.thread.load(Relaxed));
        if self.delivered_threads[index] == Some(thread) {
            return;
        }
        self.delivered_threads[index] = Some(thread);
        if self.is_full() {
            return;
        }
        if thread == ThreadId::FIRST && self.image > 0 {
            // The first thread goes on in every image.
            return;
        }
        let parent = slot.parent.load(Relaxed);
        let parent = (parent != u32::MAX).then_some(ThreadId::new(parent));
        let info = ThreadInfo { thread, os_tid: slot.os_tid.load(Relaxed), parent, image: self.image };
        self.deliver(|sink| sink.thread(&info));
    }

    fn free_slot(&mut self, index: usize) {
        let slot = self.slot(index);
        self.delivered_threads[index] = None;
        for word in slot.used.iter().chain([&slot.os_tid, &slot.thread, &slot.waiting, &slot.head, &slot.tail]) {
            word.store(0, Relaxed);
        }
        slot.uninstrumented_from.store(0, Relaxed);
        slot.parent.store(u32::MAX, Relaxed);
        slot.state.store(SLOT_FREE, Release);
    }

    /// Takes all records out of the code ring. Returns whether there were any.
    fn drain_code(&mut self) -> bool {
        let control = self.shared.control();
        let head = control.code_head.load(SeqCst);
        let tail = control.code_tail.load(Relaxed);
        let length = head.wrapping_sub(tail);
        if length == 0 {
            return false;
        }
        self.code.clear();
        if length <= wire::CODE_RING_BYTES as u64 {
            self.shared.copy_code(tail, length as usize, &mut self.code);
        } else {
            self.warn("the code ring was damaged by the target; blocks are lost");
        }
        // The engine waits until the recorder knows what of a new module is selected.
        self.select_modules();
        control.code_tail.store(head, SeqCst);
        if control.code_waiting.load(SeqCst) != 0 {
            self.counters.stalls += 1;
            shared::wake_low_half(&control.code_tail);
        }
        self.counters.code_bytes += self.code.len() as u64;
        self.deliver_code();
        true
    }

    /// Passes the modules that `self.code` announces to the selector, while the threads that have
    /// mapped them wait.
    fn select_modules(&mut self) {
        self.paths.clear();
        for record in Records::new(&self.code) {
            if !matches!(record.kind, code::MODULE | code::UNMAP) {
                continue;
            }
            match record.parse() {
                Some(Definition::Module(record)) => {
                    let mut module = as_module(&record);
                    if module.path.is_empty() {
                        module.path = mapped_path(self.process, module.address);
                        self.paths.push((module.address, module.path.clone()));
                    }
                    if let Some(selector) = &mut self.selector {
                        selector.mapped(&module, self.shared);
                    }
                }
                Some(Definition::Unmap(record)) => {
                    if let Some(selector) = &mut self.selector {
                        selector.unmapped(record.address, record.length, self.shared);
                    }
                }
                _ => {}
            }
        }
    }

    /// Delivers the records in `self.code`.
    fn deliver_code(&mut self) {
        let bytes = std::mem::take(&mut self.code);
        let mut records = Records::new(&bytes);
        for record in records.by_ref() {
            if record.parse().and_then(|definition| self.deliver_definition(&definition)).is_none() {
                let kind = record.kind;
                self.warn(format!("the code ring holds a record of kind {kind} that makes no sense"));
            }
        }
        if !records.rest().is_empty() {
            self.warn("the code ring holds something that is no record; blocks are lost");
        }
        self.code = bytes;
    }

    /// Delivers one definition; `None` if it contradicts the earlier ones.
    fn deliver_definition(&mut self, definition: &Definition) -> Option<()> {
        let image = self.image;
        match definition {
            Definition::Block(record) => {
                let &BlockRecord { address, block, code } = record;
                match &mut self.filter {
                    Some(filter) => filter.block(block, address, code),
                    None => self.deliver(|sink| sink.block(image, block, address, code)),
                }
            }
            Definition::Module(record) => {
                let mut module = as_module(record);
                if module.path.is_empty()
                    && let Some(at) = self.paths.iter().position(|(address, _)| *address == module.address)
                {
                    module.path = self.paths.remove(at).1;
                }
                self.deliver_module(&module);
            }
            Definition::Unmap(record) => {
                let &UnmapRecord { address, length, tsc } = record;
                self.deliver(|sink| sink.unmapped(image, address, length, tsc));
            }
            Definition::Fragment(record) => {
                let blocks: Vec<FragmentBlock> = record.blocks.collect();
                let exits: Vec<FragmentExit> = record.exits.collect();
                let fragment = Fragment { fragment: record.fragment, blocks: &blocks, exits: &exits };
                if let Some(splitter) = &mut self.splitter {
                    // Access descriptors may give other lengths later.
                    splitter.set_lengths(record.fragment, exits.iter().map(|_| 0))?;
                }
                self.deliver_fragment(&fragment, record.is_uninstrumented);
            }
            Definition::AccessDescriptors(record) => {
                let lengths: Vec<u32> = record.lengths.collect();
                let accesses: Vec<AccessDescriptor> = record.accesses.collect();
                if let Some(splitter) = &mut self.splitter {
                    splitter.set_lengths(record.fragment, lengths.iter().copied())?;
                }
                let descriptors =
                    AccessDescriptors { fragment: record.fragment, lengths: &lengths, accesses: &accesses };
                if self.filter.as_mut().is_none_or(|filter| filter.access_descriptors(&descriptors)) {
                    self.deliver(|sink| sink.access_descriptors(image, &descriptors));
                }
            }
        }
        Some(())
    }

    /// Delivers a fragment, with those of its blocks that were held back, unless it is left out.
    fn deliver_fragment(&mut self, fragment: &Fragment, uninstrumented: bool) {
        let image = self.image;
        let Some(mut filter) = self.filter.take() else {
            return self.deliver(|sink| sink.fragment(image, fragment));
        };
        if !filter.is_full()
            && let Some(blocks) = filter.fragment(fragment, uninstrumented)
        {
            for (number, block) in blocks {
                self.deliver(|sink| sink.block(image, number, block.address, &block.code));
            }
            self.deliver(|sink| sink.fragment(image, fragment));
        }
        self.filter = Some(filter);
    }

    fn deliver(&mut self, event: impl FnOnce(&mut S) -> Result<(), S::Error>) {
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = event(&mut self.sink) {
            self.failure = Some(error);
            self.shared.control().detach.store(wire::DETACH_TOGETHER, SeqCst);
        }
    }
}

/// Returns the file that is mapped at `address`, if there still is one. A target that does not see
/// /proc cannot say so itself.
fn mapped_path(process: i32, address: u64) -> String {
    let mappings = maps::of_process(task::any(process)).unwrap_or_default();
    let found = mappings.into_iter().find(|mapping| mapping.range.contains(&address));
    found.map_or(String::new(), |mapping| mapping.path)
}

fn as_module(record: &ModuleRecord) -> Module {
    let &ModuleRecord { address, length, file_offset, tsc, path } = record;
    Module { address, length, file_offset, path: String::from_utf8_lossy(path).into_owned(), tsc }
}

/// Returns the number of words at the start of a segment that are whole paths and events. The
/// engine writes an event's first word last.
fn written_words(segment: &[u32]) -> usize {
    let mut at = 0;
    while let Some(length) = segment.get(at).and_then(|&first| word::length(first)) {
        if at + length > segment.len() {
            break;
        }
        at += length;
    }
    at
}

#[cfg(test)]
mod tests;
