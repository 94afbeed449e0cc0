//! Leaves out of a thread's words what is not to be recorded, and stops when enough instructions
//! or accesses have been.
//!
//! One [`wire::word::GAP`] replaces the words of uninstrumented fragments (see
//! `wire::code::UNINSTRUMENTED`) and the events between them. After a gap, the filter emits the
//! last timestamp that it saw in the gap, so that threads can still be ordered. It holds
//! definitions of blocks back until a recorded fragment needs them.
//!
//! If allocations are recorded, it keeps the call stack of every thread and names the stack in the
//! events (see [`crate::call_stack`]).
//!
//! Knows nothing of rings and sinks: words in, words out. The words come from the target and are
//! not checked.

use std::collections::{BTreeMap, HashMap};

use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId, Tsc};
use isa::stack::{BlockStack, follow_stack};
use trace::{AccessDescriptors, CallStackNode, Fragment};
use wire::word;

use crate::call_stack::{CallStack, CallStacks};
use crate::select::Selection;

use accesses::AccessLimit;

mod accesses;

/// The engine numbers paths one after the other. A number that is further than this beyond all
/// others is nonsense.
const PATH_GAP_MAX: usize = 1 << 20;

pub struct Filter {
    /// By path number.
    paths: Vec<FilterPath>,
    blocks: HashMap<BlockId, HeldBlock>,
    /// If instructions or accesses are counted: the blocks of recorded fragments.
    fragments: HashMap<FragmentId, Box<[BlockId]>>,
    threads: BTreeMap<ThreadId, FilteredThread>,
    /// Instructions that may still be recorded; `None` if there is no limit.
    remaining: Option<u64>,
    /// Accesses that may still be recorded; `None` if there is no limit.
    accesses: Option<AccessLimit>,
    /// The call stacks, if allocations are recorded.
    calls: Option<CallStacks>,
    /// The call stacks of threads that were running before, for their first word.
    older_calls: HashMap<ThreadId, CallStack>,
    /// The last timestamp seen in any thread.
    tsc: Tsc,
    out: Vec<u32>,
    is_empty: bool,
    /// If instructions or accesses are counted: words of data behind the words seen in this
    /// segment.
    data_words: usize,
}

/// What the filter needs to know of a path.
#[derive(Debug, Clone, Copy, Default)]
struct FilterPath {
    /// Where it begins.
    head: AppPc,
    fragment: FragmentId,
    instructions: u32,
    uninstrumented: bool,
}

/// A block, held back until a recorded fragment needs it.
#[derive(Debug)]
pub struct HeldBlock {
    pub address: AppPc,
    pub code: Box<[u8]>,
    is_delivered: bool,
    instructions: u32,
    stack: BlockStack,
}

/// A thread whose words pass the filter.
#[derive(Debug, Default)]
struct FilteredThread {
    in_gap: bool,
    /// The last timestamp in the gap.
    time: Option<Tsc>,
    has_ended: bool,
    calls: CallStack,
}

impl Filter {
    /// Makes a filter that passes what is selected.
    pub fn new(selection: &Selection) -> Self {
        Self {
            paths: Vec::new(),
            blocks: HashMap::new(),
            fragments: HashMap::new(),
            threads: BTreeMap::new(),
            remaining: selection.length,
            accesses: selection.accesses.map(AccessLimit::new),
            calls: selection.allocations.then(CallStacks::default),
            older_calls: HashMap::new(),
            tsc: Tsc::NONE,
            out: Vec::new(),
            is_empty: true,
            data_words: 0,
        }
    }

    /// Returns whether all wanted instructions or accesses have been recorded.
    pub fn is_full(&self) -> bool {
        self.remaining == Some(0) || self.accesses.as_ref().is_some_and(AccessLimit::is_reached)
    }

    /// Returns whether the call stacks of threads are recorded.
    pub fn follows_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// Sets the call stack that a thread has before its first word.
    pub fn set_older_calls(&mut self, thread: ThreadId, calls: CallStack) {
        self.older_calls.insert(thread, calls);
    }

    /// Returns the call stacks that the events since the last time name first.
    pub fn take_new_call_stacks(&mut self) -> Vec<CallStackNode> {
        self.calls.as_mut().map(CallStacks::take_new).unwrap_or_default()
    }

    /// Returns whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    pub fn block(&mut self, block: BlockId, address: AppPc, code: &[u8]) {
        let instructions = if self.remaining.is_some() { instructions(address, code).count() as u32 } else { 0 };
        let end = address + code.len() as u64;
        let stack = if self.calls.is_some() { follow_stack(address, code, end) } else { BlockStack::default() };
        self.blocks.insert(block, HeldBlock { address, code: code.into(), is_delivered: false, instructions, stack });
    }

    /// Adds a fragment. If it is to be recorded, returns the blocks that have to be delivered
    /// before it.
    pub fn fragment(&mut self, fragment: &Fragment, uninstrumented: bool) -> Option<Vec<(BlockId, &HeldBlock)>> {
        let numbers = fragment.blocks.iter().map(|block| block.block());
        let known: Vec<(AppPc, u32)> = numbers
            .clone()
            .map(|block| self.blocks.get(&block).map_or((AppPc::NONE, 0), |block| (block.address, block.instructions)))
            .collect();
        let first = fragment.fragment.first_path().get() as usize;
        let end = first + fragment.exits.len();
        if first <= self.paths.len() + PATH_GAP_MAX {
            self.paths.resize(self.paths.len().max(end), FilterPath::default());
            for (path, exit) in self.paths[first..end].iter_mut().zip(fragment.exits) {
                let executed = &known[..known.len().min(exit.block_count().into())];
                let instructions = executed.iter().map(|(_, instructions)| instructions).sum();
                let head = known.first().map_or(AppPc::NONE, |&(address, _)| address);
                *path = FilterPath { head, fragment: fragment.fragment, instructions, uninstrumented };
            }
        }
        if let Some(calls) = &mut self.calls {
            let stack = |block| self.blocks.get(&block).map(|block| (block.address, block.stack));
            let blocks: Vec<(AppPc, BlockStack)> = numbers.clone().map_while(stack).collect();
            calls.add(fragment.fragment, &blocks, fragment.exits.iter().map(|exit| exit.block_count()));
        }
        if uninstrumented {
            return None;
        }
        if let Some(accesses) = &mut self.accesses {
            accesses.fragment(fragment);
        }
        if self.counts() {
            self.fragments.insert(fragment.fragment, numbers.clone().collect());
        }
        let mut undelivered: Vec<BlockId> =
            numbers.filter(|block| self.blocks.get(block).is_some_and(|block| !block.is_delivered)).collect();
        undelivered.sort_unstable();
        undelivered.dedup();
        for block in &undelivered {
            if let Some(block) = self.blocks.get_mut(block) {
                block.is_delivered = true;
            }
        }
        Some(undelivered.into_iter().filter_map(|block| Some((block, self.blocks.get(&block)?))).collect())
    }

    /// Returns whether instructions or accesses are counted.
    fn counts(&self) -> bool {
        self.remaining.is_some() || self.accesses.is_some()
    }

    /// Adds access descriptors. Returns whether their fragment is recorded.
    pub fn access_descriptors(&mut self, descriptors: &AccessDescriptors) -> bool {
        if let Some(accesses) = &mut self.accesses {
            accesses.access_descriptors(descriptors);
        }
        let first = descriptors.fragment.first_path().get() as usize;
        !self.is_full() && self.paths.get(first).is_some_and(|path| !path.uninstrumented)
    }

    /// Begins another image of the process: all threads have ended.
    pub fn next_image(&mut self) {
        self.threads
            .values_mut()
            .for_each(|thread| *thread = FilteredThread { has_ended: true, ..FilteredThread::default() });
    }

    /// Leaves out of the words of a thread what is not to be recorded. `data_words` says how many
    /// words of data are behind a path. Returns the remaining data: all of it, because
    /// uninstrumented code has none, unless enough has been recorded.
    pub fn words<'d>(
        &mut self,
        thread: ThreadId,
        words: &mut Vec<u32>,
        data: &'d [u8],
        data_words: impl Fn(PathId) -> usize,
    ) -> &'d [u8] {
        self.out.clear();
        self.data_words = 0;
        let mut state = self.threads.remove(&thread).unwrap_or_default();
        let mut rest = words.as_slice();
        while let Some(&first) = rest.first() {
            if self.is_full() {
                break;
            }
            let Some((item, after)) = word::length(first).and_then(|length| rest.split_at_checked(length)) else {
                // Nonsense; the sink reports it.
                self.out.extend_from_slice(rest);
                break;
            };
            rest = after;
            match word::path(first) {
                Some(path) => self.path(&mut state, path, data_words(path), data),
                None => {
                    self.follow_calls(thread, &mut state, item);
                    self.event(&mut state, item, data);
                }
            }
        }
        self.threads.insert(thread, state);
        std::mem::swap(words, &mut self.out);
        if self.is_full() { data.get(..4 * self.data_words).unwrap_or(data) } else { data }
    }

    /// When enough has been recorded: returns the threads that go on unrecorded, each with the
    /// words that say so.
    pub fn detached_threads(&mut self) -> Vec<(ThreadId, Vec<u32>)> {
        let detach = timed(word::DETACH, self.tsc);
        let threads = self.threads.iter_mut().filter(|(_, state)| !state.has_ended);
        threads
            .map(|(&thread, state)| {
                state.has_ended = true;
                (thread, detach.to_vec())
            })
            .collect()
    }

    fn path(&mut self, state: &mut FilteredThread, number: PathId, data_words: usize, data: &[u8]) {
        let path = self.paths.get(number.get() as usize).copied().unwrap_or_default();
        if let Some(calls) = &self.calls {
            calls.path(&mut state.calls, number, path.head);
        }
        if path.uninstrumented {
            return self.open_gap(state, path.head);
        }
        self.close_gap(state);
        self.is_empty = false;
        let own = self.take_data(data_words, data);
        if let Some(accesses) = &mut self.accesses {
            accesses.path(number, own);
        }
        match self.remaining {
            Some(left) if left < u64::from(path.instructions) => self.cut(path.fragment, left, data_words),
            Some(left) => {
                self.out.push(number.get());
                self.remaining = Some(left - u64::from(path.instructions));
            }
            None => self.out.push(number.get()),
        }
    }

    /// Returns the next words of data.
    fn take_data<'d>(&mut self, words: usize, data: &'d [u8]) -> &'d [u8] {
        let at = 4 * self.data_words;
        self.data_words += words;
        data.get(at..4 * self.data_words).unwrap_or(&[])
    }

    fn event(&mut self, state: &mut FilteredThread, item: &[u32], data: &[u8]) {
        if let Some(tsc) = time(item) {
            self.tsc = self.tsc.max(tsc);
            if state.in_gap {
                state.time = Some(tsc);
            }
        }
        let data = self.take_data(word::data_words(item[0]), data);
        match word::kind(item[0]) {
            word::START => {
                *state = FilteredThread { calls: std::mem::take(&mut state.calls), ..FilteredThread::default() };
                self.out.extend_from_slice(item);
            }
            word::END | word::DETACH => {
                state.has_ended = true;
                self.out.extend_from_slice(item);
            }
            word::CHILD | word::FS_BASE => self.out.extend_from_slice(item),
            word::GAP => self.open_gap(state, AppPc::new(wide(item, 1))),
            word::SIGNAL => self.signal(state, item, data),
            // Belongs to the next path, which is recorded: uninstrumented paths have none.
            word::STRING | word::ACCESS => {
                self.close_gap(state);
                if let Some(accesses) = &mut self.accesses {
                    accesses.event(item);
                }
                self.out.extend_from_slice(item);
            }
            // Happens in code that is not recorded, too.
            word::ENTER | word::MAPPING => self.named(state, item),
            word::RETURN => self.out.extend_from_slice(item),
            word::STACK_POINTER => {}
            _ if state.in_gap => {}
            _ => self.out.extend_from_slice(item),
        }
    }

    /// Emits an event with the number of the thread's call stack.
    fn named(&mut self, state: &mut FilteredThread, item: &[u32]) {
        let is_enter = word::kind(item[0]) == word::ENTER;
        let place = if is_enter { word::ENTER_STACK } else { word::MAPPING_STACK };
        let number = self.calls.as_mut().map_or(0, |calls| calls.number(&mut state.calls).0);
        self.out.extend_from_slice(&item[..place]);
        self.out.push(number);
        self.out.extend_from_slice(&item[place + 1..]);
    }

    /// Follows the call stack of a thread through an event.
    fn follow_calls(&mut self, thread: ThreadId, state: &mut FilteredThread, item: &[u32]) {
        let (Some(tracker), calls) = (&self.calls, &mut state.calls) else { return };
        match word::kind(item[0]) {
            word::START => *calls = self.older_calls.remove(&thread).unwrap_or_default(),
            word::STACK_POINTER => calls.set_stack_pointer(wide(item, 1)),
            word::ENTER => calls.enter_routine(wide(item, 3), AppPc::new(wide(item, 11))),
            word::RESUME => calls.lose(),
            word::SIGNAL => {
                let (pc, handler) = (AppPc::new(wide(item, 3)), wide(item, 5));
                if item[1] != 0 {
                    let fragment = FragmentId::new(PathId::new(item[1]));
                    tracker.interrupted(calls, fragment, item[2] as usize);
                } else {
                    calls.arrive(pc);
                }
                match item[0] & 0xff {
                    0 => calls.lose(),
                    _ if handler != 0 => calls.enter_handler(pc),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn signal(&mut self, state: &mut FilteredThread, item: &[u32], data: &[u8]) {
        let fragment = self.paths.get(item[1] as usize).copied().filter(|_| item[1] != 0);
        match fragment {
            Some(FilterPath { uninstrumented: true, head, .. }) => self.open_gap(state, head),
            Some(FilterPath { uninstrumented: false, fragment, .. }) => {
                self.close_gap(state);
                let (blocks, pc) = (item[2] as usize, AppPc::new(wide(item, 3)));
                self.count_interrupted(fragment, blocks, pc, data);
                let executed =
                    if self.remaining.is_some() { self.instructions_before(fragment, blocks, pc) } else { 0 };
                match self.remaining {
                    Some(left) if left < executed => return self.cut(fragment, left, word::data_words(item[0])),
                    Some(left) => self.remaining = Some(left - executed),
                    None => {}
                }
                self.out.extend_from_slice(item);
            }
            None if state.in_gap => {}
            None => self.out.extend_from_slice(item),
        }
    }

    fn open_gap(&mut self, state: &mut FilteredThread, pc: AppPc) {
        if !state.in_gap {
            state.in_gap = true;
            let [low, high] = halves(pc.get());
            self.out.extend([word::event(word::GAP, 0), low, high]);
        }
    }

    fn close_gap(&mut self, state: &mut FilteredThread) {
        if std::mem::take(&mut state.in_gap)
            && let Some(tsc) = state.time.take()
        {
            self.out.extend(timed(word::TIME, tsc));
        }
    }

    fn count_interrupted(&mut self, fragment: FragmentId, blocks: usize, pc: AppPc, data: &[u8]) {
        let Some(accesses) = &mut self.accesses else { return };
        let number = self.fragments.get(&fragment).and_then(|numbers| numbers.get(blocks));
        if let Some(block) = number.and_then(|number| self.blocks.get(number)) {
            accesses.interrupted(fragment, blocks, block.address, pc, data);
        }
    }

    /// Counts the instructions of a fragment's first `blocks` blocks, and of the next one up to
    /// `pc`.
    fn instructions_before(&self, fragment: FragmentId, blocks: usize, pc: AppPc) -> u64 {
        let Some(numbers) = self.fragments.get(&fragment) else { return 0 };
        let mut parts = numbers.iter().filter_map(|number| self.blocks.get(number));
        let whole: u64 = parts.by_ref().take(blocks).map(|block| u64::from(block.instructions)).sum();
        let part =
            parts.next().map_or(0, |block| instructions(block.address, &block.code).filter(|&at| at < pc).count());
        whole + part as u64
    }

    /// Records only the first `left` instructions of a fragment, as if the engine had interrupted
    /// the thread there. Keeps all data of the fragment, of which these instructions use the
    /// beginning.
    fn cut(&mut self, fragment: FragmentId, left: u64, data_words: usize) {
        let numbers = self.fragments.get(&fragment).map_or(&[][..], |numbers| numbers);
        let (mut left, mut place) = (left, None);
        for (index, block) in numbers.iter().filter_map(|number| self.blocks.get(number)).enumerate() {
            if left < u64::from(block.instructions) {
                place = instructions(block.address, &block.code).nth(left as usize).map(|pc| (index as u32, pc));
                break;
            }
            left -= u64::from(block.instructions);
        }
        self.remaining = Some(0);
        if let Some((blocks, pc)) = place {
            let first = word::event(word::SIGNAL, (data_words as u32) << 8);
            self.out.extend([first, fragment.first_path().get(), blocks]);
            self.out.extend([pc.get(), pc.get(), self.tsc.get()].into_iter().flat_map(halves));
        }
    }
}

/// Returns the addresses of the instructions in `code`.
fn instructions(address: AppPc, code: &[u8]) -> impl Iterator<Item = AppPc> {
    isa::decoder(address, code).into_iter().map(|instruction| AppPc::new(instruction.ip()))
}

/// Returns the words of an event that has only a timestamp.
pub fn timed(kind: u8, tsc: Tsc) -> [u32; 3] {
    let [low, high] = halves(tsc.get());
    [word::event(kind, 0), low, high]
}

/// Returns the two words of a 64-bit value.
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn wide(item: &[u32], at: usize) -> u64 {
    u64::from(item[at]) | u64::from(item[at + 1]) << 32
}

/// Returns the timestamp of an event, which is in its last two words.
fn time(item: &[u32]) -> Option<Tsc> {
    match word::kind(item[0]) {
        word::START | word::TIME | word::SYSCALL | word::SIGNAL | word::RESUME | word::END | word::DETACH => {
            Some(Tsc::new(wide(item, item.len() - 2)))
        }
        word::ENTER | word::RETURN | word::MAPPING => Some(Tsc::new(wide(item, item.len() - 2))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
