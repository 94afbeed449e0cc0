//! Call stacks of threads, kept from the paths that they execute, recorded or not.
//!
//! The code of a path says what it pushes and pops. A [`CallStack`] follows that and keeps the
//! return addresses, each with its place on the stack. Where the code does not say what becomes of
//! the stack pointer (longjmp, an unwinder, alloca), the engine does, in an event: whatever lies
//! below is gone. A [`CallStacks`] numbers the stacks as nodes of a tree.
//!
//! Knows nothing of rings and sinks. The words come from the target and are not checked.

use std::collections::HashMap;

use entity::{AppPc, FragmentId, PathId};
use isa::stack::{BlockStack, StackEnd};
use trace::{CallStackId, CallStackNode};

/// The engine numbers paths one after the other. A number that is further than this beyond all
/// others is nonsense.
const PATH_GAP_MAX: usize = 1 << 20;
/// Stacks of a thread that it may come back to: those of its coroutines.
const PARKED_MAX: usize = 256;
/// A stack pointer this far above the oldest frame, or this far below the newest one, is on another
/// stack.
const FAR_ABOVE: u64 = 64 << 10;
const FAR_BELOW: u64 = 1 << 20;

/// What a path does to the stack, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Change(i64),
    Unknown,
    Call(AppPc),
    /// A return to this address; `None` if it is where the next path begins.
    Return(u16, Option<AppPc>),
}

/// Where the moves of a path are.
#[derive(Debug, Clone, Copy, Default)]
struct PathMoves {
    start: u32,
    count: u32,
}

/// What all paths do to the stack, and the tree of call stacks.
#[derive(Default)]
pub struct CallStacks {
    /// By path number.
    paths: Vec<PathMoves>,
    moves: Vec<Move>,
    /// The blocks of each fragment: address, effect on the stack.
    fragments: HashMap<FragmentId, Box<[(AppPc, BlockStack)]>>,
    nodes: HashMap<(CallStackId, AppPc), CallStackId>,
    last: CallStackId,
    new: Vec<CallStackNode>,
}

/// A return address that was on the stack before the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OlderFrame {
    pub slot: u64,
    pub address: AppPc,
    /// A signal has interrupted the function there; `slot` is in the frame of the handler.
    pub is_interrupted: bool,
}

/// A return address on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// Its place; `None` until an event says where the stack pointer is.
    slot: Option<u64>,
    address: AppPc,
    /// The node of the stack up to here, if it was needed.
    node: Option<CallStackId>,
    kind: FrameKind,
}

/// What has made a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Call,
    /// A signal: the address is where the thread was.
    Signal,
    /// A signal whose handler runs on another stack.
    FarSignal,
}

/// The call stack of a thread, the innermost frame last.
#[derive(Debug, Default)]
pub struct CallStack {
    frames: Vec<Frame>,
    stack_pointer: Option<u64>,
    /// The last path ended in a return, which pops so many bytes. Where it leads to, the next word
    /// says.
    returning: Option<u16>,
    parked: Vec<ParkedStack>,
}

#[derive(Debug)]
struct ParkedStack {
    frames: Vec<Frame>,
    stack_pointer: u64,
}

impl CallStacks {
    /// Adds a fragment, given its blocks and how many of them each path executes.
    pub fn add(
        &mut self,
        fragment: FragmentId,
        blocks: &[(AppPc, BlockStack)],
        executed: impl ExactSizeIterator<Item = u16>,
    ) {
        let first = fragment.first_path().get() as usize;
        if first > self.paths.len() + PATH_GAP_MAX {
            return;
        }
        self.fragments.insert(fragment, blocks.into());
        self.paths.resize(self.paths.len().max(first + executed.len()), PathMoves::default());
        for (path, count) in (first..).zip(executed) {
            let start = self.moves.len();
            let executed = &blocks[..blocks.len().min(count.into())];
            self.moves.extend(moves(executed, None));
            self.paths[path] = PathMoves { start: start as u32, count: (self.moves.len() - start) as u32 };
        }
    }

    /// Follows a thread through a path, which begins at `head`.
    pub fn path(&self, stack: &mut CallStack, path: PathId, head: AppPc) {
        stack.arrive(head);
        let PathMoves { start, count } = self.paths.get(path.get() as usize).copied().unwrap_or_default();
        let moves = &self.moves[start as usize..][..count as usize];
        moves.iter().for_each(|&step| stack.apply(step));
    }

    /// Follows a thread through the first `count` blocks of a fragment. The engine says where the
    /// stack pointer is behind the interruption.
    pub fn interrupted(&self, stack: &mut CallStack, fragment: FragmentId, count: usize) {
        let Some(blocks) = self.fragments.get(&fragment) else { return };
        if let Some(&(head, _)) = blocks.first() {
            stack.arrive(head);
        }
        let (executed, rest) = blocks.split_at(count.min(blocks.len()));
        for step in moves(executed, rest.first().map(|&(address, _)| address)) {
            stack.apply(step);
        }
    }

    /// Returns the number of a thread's call stack.
    pub fn number(&mut self, stack: &mut CallStack) -> CallStackId {
        let known = stack.frames.iter().rposition(|frame| frame.node.is_some());
        let mut node = known.and_then(|at| stack.frames[at].node).unwrap_or(CallStackId::EMPTY);
        for frame in &mut stack.frames[known.map_or(0, |at| at + 1)..] {
            node = self.node(node, frame.address);
            frame.node = Some(node);
        }
        node
    }

    fn node(&mut self, below: CallStackId, address: AppPc) -> CallStackId {
        if let Some(&id) = self.nodes.get(&(below, address)) {
            return id;
        }
        self.last = CallStackId(self.last.0 + 1);
        self.nodes.insert((below, address), self.last);
        self.new.push(CallStackNode { id: self.last, below, address });
        self.last
    }

    /// Returns the nodes that are new since the last time.
    pub fn take_new(&mut self) -> Vec<CallStackNode> {
        std::mem::take(&mut self.new)
    }
}

/// Returns the moves of blocks that follow each other, the last of which leads to `next`.
fn moves(blocks: &[(AppPc, BlockStack)], next: Option<AppPc>) -> Vec<Move> {
    let mut moves = Vec::new();
    for (at, (_, stack)) in blocks.iter().enumerate() {
        if stack.is_unknown {
            moves.push(Move::Unknown);
        }
        if stack.change != 0 {
            match moves.last_mut() {
                Some(Move::Change(sum)) => *sum = sum.wrapping_add(stack.change),
                _ => moves.push(Move::Change(stack.change)),
            }
        }
        let next = blocks.get(at + 1).map(|&(address, _)| address).or(next);
        match stack.end {
            StackEnd::Call(address) => moves.push(Move::Call(address)),
            StackEnd::Return(bytes) => moves.push(Move::Return(bytes, next)),
            StackEnd::Other => {}
        }
    }
    moves
}

impl CallStack {
    /// Makes the stack of a thread from its frames, the innermost first.
    pub fn of_frames(older: &[OlderFrame]) -> Self {
        let mut frames: Vec<Frame> = Vec::with_capacity(older.len());
        for &OlderFrame { slot, address, is_interrupted } in older.iter().rev() {
            let is_far = frames.last().and_then(|below| below.slot).is_some_and(|below| is_far(below, slot));
            let kind = match (is_interrupted, is_far) {
                (false, _) => FrameKind::Call,
                (true, false) => FrameKind::Signal,
                (true, true) => FrameKind::FarSignal,
            };
            frames.push(Frame { kind, ..Frame::new(Some(slot), address) });
        }
        Self { frames, ..Self::default() }
    }

    fn apply(&mut self, step: Move) {
        match step {
            Move::Change(change) => {
                self.stack_pointer = self.stack_pointer.map(|pointer| pointer.wrapping_add_signed(change));
            }
            Move::Unknown => self.stack_pointer = None,
            Move::Call(address) => {
                self.stack_pointer = self.stack_pointer.map(|pointer| pointer.wrapping_sub(8));
                self.frames.push(Frame::new(self.stack_pointer, address));
            }
            Move::Return(bytes, Some(target)) => self.return_to(target, bytes),
            Move::Return(bytes, None) => self.returning = Some(bytes),
        }
    }

    /// The thread is at `pc`, where its last path has led to.
    pub fn arrive(&mut self, pc: AppPc) {
        if let Some(bytes) = self.returning.take() {
            self.return_to(pc, bytes);
        }
    }

    /// The thread continues elsewhere. The engine says where its stack pointer is.
    pub fn lose(&mut self) {
        (self.stack_pointer, self.returning) = (None, None);
    }

    fn return_to(&mut self, pc: AppPc, bytes: u16) {
        match self.stack_pointer {
            Some(pointer) => {
                self.forget_below(pointer);
                if self
                    .frames
                    .last()
                    .is_some_and(|frame| frame.slot.map_or(frame.address == pc, |slot| slot == pointer))
                {
                    self.frames.pop();
                }
                self.stack_pointer = Some(pointer.wrapping_add(bytes.into()));
            }
            None => {
                let Some(at) = self.frames.iter().rposition(|frame| frame.address == pc) else { return };
                self.stack_pointer = self.frames[at].slot.map(|slot| slot.wrapping_add(bytes.into()));
                self.frames.truncate(at);
            }
        }
    }

    fn forget_below(&mut self, pointer: u64) {
        while self.frames.last().is_some_and(|frame| frame.slot.is_some_and(|slot| slot < pointer)) {
            self.frames.pop();
        }
    }

    /// The engine says where the stack pointer is.
    pub fn set_stack_pointer(&mut self, pointer: u64) {
        self.returning = None;
        if self.stack_pointer == Some(pointer) {
            return;
        }
        if self.is_on_another_stack(pointer) {
            self.switch(pointer);
        }
        self.stack_pointer = Some(pointer);
        self.forget_far_handlers(pointer);
        self.locate_last(pointer);
        self.forget_below(pointer);
    }

    /// Gives a place to a frame that was pushed when the stack pointer was not known.
    fn locate_last(&mut self, pointer: u64) {
        let below = self.frames.iter().rev().nth(1).and_then(|frame| frame.slot);
        if let Some(frame) = self.frames.last_mut().filter(|frame| frame.slot.is_none()) {
            frame.slot = Some(pointer);
            if frame.kind == FrameKind::Signal && below.is_some_and(|below| is_far(below, pointer)) {
                frame.kind = FrameKind::FarSignal;
            }
        }
    }

    /// Forgets handlers on other stacks, and what they have called, if the thread is not there any
    /// more.
    fn forget_far_handlers(&mut self, pointer: u64) {
        let is_far_signal = |frame: &Frame| frame.kind == FrameKind::FarSignal;
        while let Some(at) = self.frames.iter().rposition(is_far_signal)
            && self.frames[at].slot.is_some_and(|slot| is_far(slot, pointer))
        {
            self.frames.truncate(at);
        }
    }

    fn is_on_another_stack(&self, pointer: u64) -> bool {
        let slots = |mut frames: std::slice::Iter<'_, Frame>| frames.find_map(|frame| frame.slot);
        let has_handler = self.frames.iter().any(|frame| frame.kind != FrameKind::Call);
        let (oldest, newest) = (slots(self.frames.iter()), self.frames.iter().rev().find_map(|frame| frame.slot));
        let (Some(oldest), Some(newest)) = (oldest, newest) else { return false };
        !has_handler && (pointer > oldest.saturating_add(FAR_ABOVE) || pointer < newest.saturating_sub(FAR_BELOW))
    }

    /// Parks the frames of a stack that the thread leaves, and takes those of the stack that it is
    /// on, if it was there before.
    fn switch(&mut self, pointer: u64) {
        let newest = self.frames.iter().rev().find_map(|frame| frame.slot).unwrap_or(0);
        let stack_pointer = self.stack_pointer.unwrap_or(newest);
        let frames = std::mem::take(&mut self.frames);
        let is_here = |parked: &ParkedStack| {
            let oldest = parked.frames.iter().find_map(|frame| frame.slot).unwrap_or(0);
            (parked.stack_pointer.saturating_sub(FAR_ABOVE)..=oldest.saturating_add(FAR_ABOVE)).contains(&pointer)
        };
        if let Some(at) = self.parked.iter().position(is_here) {
            self.frames = self.parked.remove(at).frames;
        }
        if self.parked.len() == PARKED_MAX {
            self.parked.remove(0);
        }
        self.parked.push(ParkedStack { frames, stack_pointer });
    }

    /// A signal interrupts the thread at `pc` and calls a handler.
    pub fn enter_handler(&mut self, pc: AppPc) {
        self.lose();
        self.frames.push(Frame { kind: FrameKind::Signal, ..Frame::new(None, pc) });
    }

    /// The thread is at the entry of a routine that will return to `caller`, with this stack
    /// pointer.
    pub fn enter_routine(&mut self, pointer: u64, caller: AppPc) {
        self.set_stack_pointer(pointer);
        match self.frames.last_mut() {
            Some(frame) if frame.slot == Some(pointer) && frame.address == caller => {}
            Some(frame) if frame.slot == Some(pointer) => *frame = Frame::new(Some(pointer), caller),
            _ => self.frames.push(Frame::new(Some(pointer), caller)),
        }
    }
}

/// Whether two addresses are on different stacks, the second one being the newer.
fn is_far(older: u64, newer: u64) -> bool {
    newer > older || older - newer > FAR_ABOVE
}

impl Frame {
    fn new(slot: Option<u64>, address: AppPc) -> Self {
        Self { slot, address, node: None, kind: FrameKind::Call }
    }
}

#[cfg(test)]
mod tests;
