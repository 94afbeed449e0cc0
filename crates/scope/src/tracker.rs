//! Following one thread through functions and loops.
//!
//! A [`Tracker`] keeps the thread's *activations*: calls of functions that have not returned. A
//! call begins one, a return ends one, and so does what takes their place: jumps to another
//! function (tail calls), longjmp and exceptions, which continue in an activation further out. A
//! call does not leave a loop, nor does a gap in the recording. Behind a gap, the address says
//! where the thread is: where a call returns to, at the entry of a function, or inside of one.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::VecDeque;

use entity::AppPc;
use isa::Transfer;
use trace::{Blocks, Event, Step};

use crate::flow::FlowGraph;
use crate::loops::NodeLoop;
use crate::scopes::{BlockScope, FunctionId, Scopes};

/// What happened to the scopes of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScopeEvent {
    /// A function was entered. `recursion` counts the activations of the same function that it is
    /// inside of.
    Enter { function: FunctionId, recursion: u32 },
    /// An activation has ended.
    Exit { function: FunctionId, recursion: u32 },
    /// A loop was entered: its first iteration begins.
    EnterLoop { function: FunctionId, index: u32 },
    /// A further iteration begins.
    Iterate { function: FunctionId, index: u32 },
    /// A loop has ended. `trips` counts its iterations: how often its entry was executed.
    ExitLoop { function: FunctionId, index: u32, trips: u64 },
}

/// Follows one thread.
#[derive(Clone, Debug)]
pub struct Tracker<'s> {
    scopes: &'s Scopes,
    activations: VecDeque<Activation>,
    /// By function: how many of the activations are of it.
    active: Vec<u32>,
    origin: StepOrigin,
    /// The last call that was left by an exception: where it ends, and where its function went on.
    landing: Option<(AppPc, AppPc)>,
}

/// A call that has not returned.
#[derive(Clone, Debug, Default)]
struct Activation {
    /// `None` in code of no selected function.
    function: Option<FunctionId>,
    recursion: u32,
    /// The loops that it is in, from the outermost on, each with its iterations.
    loops: Vec<(u32, u64)>,
    /// Where it goes on when what it has called returns, or when a signal's handler does.
    resume: Option<AppPc>,
    /// A signal has begun it.
    is_handler: bool,
}

/// How a thread comes to its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepOrigin {
    /// By a jump, or by going on.
    Jump,
    /// By a call, or as a signal's handler.
    Call,
    Return,
    /// There is something between that was not recorded.
    Unknown,
}

/// Activations that are kept at most; the outermost ones are given up. A stack of eight megabytes,
/// which is the default, has no room for more return addresses.
const ACTIVATIONS_MAX: usize = 1 << 20;

impl<'s> Tracker<'s> {
    /// Begins to follow a thread of which nothing is known.
    #[must_use]
    pub fn new(scopes: &'s Scopes) -> Self {
        let active = vec![0; scopes.functions().len()];
        Self { scopes, activations: VecDeque::new(), active, origin: StepOrigin::Unknown, landing: None }
    }

    /// Returns the number of activations that have not ended.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.activations.len()
    }

    /// Returns the end of a call that was left by an exception since the last time, and where its
    /// function went on.
    pub(crate) fn take_landing(&mut self) -> Option<(AppPc, AppPc)> {
        self.landing.take()
    }

    /// Follows a step. Calls `each` for what it enters and leaves.
    #[inline]
    pub fn step(&mut self, step: &Step, blocks: &Blocks, mut each: impl FnMut(ScopeEvent)) {
        let Some(block) = self.scopes.block(step.block()) else { return };
        let top = self.activations.back().map(|top| top.function);
        if self.origin != StepOrigin::Jump || top != Some(block.function) {
            self.enter_block(block, &mut each);
        }
        if block.function.is_some() {
            self.visit(block, step, blocks, &mut each);
        }
        self.origin = StepOrigin::Jump;
        if step.first() + step.instructions() == blocks.get(step.block()).map_or(0, |block| block.instruction_count()) {
            self.transfer(block, &mut each);
        }
    }

    /// Follows an event.
    pub fn event(&mut self, event: &Event, mut each: impl FnMut(ScopeEvent)) {
        match *event {
            Event::Start { .. } | Event::End { .. } | Event::Detach { .. } => {
                self.end_all(&mut each);
                self.origin = StepOrigin::Unknown;
            }
            Event::Gap { .. } | Event::Lost => self.origin = StepOrigin::Unknown,
            Event::Signal { pc, handler, .. } if handler.is_none() || handler == pc => {}
            Event::Signal { pc, .. } => {
                if let Some(top) = self.activations.back_mut() {
                    top.resume = Some(pc);
                }
                self.push(Activation { is_handler: true, ..Activation::default() });
                self.origin = StepOrigin::Call;
            }
            Event::Resume { pc, .. } => self.resume(pc, &mut each),
            _ => {}
        }
    }

    /// Ends everything that has not ended, for example where reading stops.
    pub fn end_all(&mut self, each: &mut impl FnMut(ScopeEvent)) {
        self.end_down_to(0, each);
    }

    /// What the terminator of an executed block does to the activations.
    #[inline]
    fn transfer(&mut self, block: &BlockScope, each: &mut impl FnMut(ScopeEvent)) {
        match block.transfer {
            Transfer::Call { target } if target == block.end => {}
            Transfer::Call { .. } | Transfer::IndirectCall => {
                if let Some(top) = self.activations.back_mut() {
                    top.resume = Some(block.end);
                }
                self.push(Activation::default());
                self.origin = StepOrigin::Call;
            }
            Transfer::Return => {
                // The handler of a signal ends with the return of its activation to the code that
                // calls rt_sigreturn.
                if !self.activations.back().is_some_and(|top| top.is_handler) {
                    self.end_down_to(self.activations.len().saturating_sub(1), each);
                }
                self.origin = StepOrigin::Return;
            }
            _ => {}
        }
    }

    fn push(&mut self, activation: Activation) {
        if self.activations.len() == ACTIVATIONS_MAX
            && let Some(outermost) = self.activations.pop_front()
        {
            self.count_end(outermost.function);
        }
        self.activations.push_back(activation);
    }

    /// Finds the activation that the thread is in when it arrives at a block.
    fn enter_block(&mut self, block: &BlockScope, each: &mut impl FnMut(ScopeEvent)) {
        match self.origin {
            StepOrigin::Call => self.begin(block, each),
            StepOrigin::Jump if self.is_tail_call(block) => {
                if let Some(top) = self.activations.len().checked_sub(1) {
                    self.end_scopes(top, each);
                }
                self.begin(block, each);
            }
            StepOrigin::Return => {
                if !self.returned(block) {
                    self.search(block, each);
                }
            }
            StepOrigin::Jump | StepOrigin::Unknown => self.search(block, each),
        }
    }

    /// Whether a jump has left the function for another one, as a tail call does.
    fn is_tail_call(&self, block: &BlockScope) -> bool {
        let is_other = self.activations.back().is_some_and(|top| top.function != block.function);
        is_other && (block.is_entry || block.function.is_none())
    }

    /// Whether the innermost activation is the one that a return leads to.
    fn returned(&mut self, block: &BlockScope) -> bool {
        let Some(top) = self.activations.back_mut() else { return false };
        let is_there = top.function == block.function && top.resume.is_none_or(|resume| resume == block.address);
        if is_there {
            top.resume = None;
        }
        is_there
    }

    /// Searches the activations for the one that continues at a block, from the innermost on.
    fn search(&mut self, block: &BlockScope, each: &mut impl FnMut(ScopeEvent)) {
        let continues =
            |activation: &Activation| activation.resume == Some(block.address) && activation.function == block.function;
        let is_of_function =
            |activation: &Activation| block.function.is_some() && activation.function == block.function;
        // Nothing goes on at a function's entry.
        let found = if block.is_entry {
            None
        } else {
            let inside = || self.activations.iter().rposition(is_of_function);
            self.activations.iter().rposition(continues).or_else(inside)
        };
        match found {
            Some(index) => {
                self.end_down_to(index + 1, each);
                let resume = self.activations.back_mut().and_then(|top| top.resume.take());
                self.landing = resume.filter(|&end| end != block.address).map(|end| (end, block.address));
            }
            // One activation is enough for code of no selected function.
            None if block.function.is_none() && self.activations.back().is_some_and(|top| top.function.is_none()) => {}
            None => {
                self.push(Activation::default());
                self.begin(block, each);
            }
        }
    }

    /// Makes the innermost activation one of the function that a block belongs to.
    fn begin(&mut self, block: &BlockScope, each: &mut impl FnMut(ScopeEvent)) {
        if self.activations.is_empty() {
            self.activations.push_back(Activation::default());
        }
        let active = block.function.and_then(|FunctionId(id)| self.active.get_mut(id as usize));
        let recursion = active.map_or(0, |active| {
            *active += 1;
            *active - 1
        });
        if let Some(top) = self.activations.back_mut() {
            top.function = block.function;
            top.recursion = recursion;
        }
        if let Some(function) = block.function {
            each(ScopeEvent::Enter { function, recursion });
        }
    }

    /// Ends activations until `count` are left.
    fn end_down_to(&mut self, count: usize, each: &mut impl FnMut(ScopeEvent)) {
        while self.activations.len() > count {
            self.end_scopes(self.activations.len() - 1, each);
            self.activations.pop_back();
        }
    }

    /// Ends the loops and the function of an activation.
    fn end_scopes(&mut self, index: usize, each: &mut impl FnMut(ScopeEvent)) {
        let Some(activation) = self.activations.get_mut(index) else { return };
        let Some(function) = activation.function.take() else { return };
        while let Some((index, trips)) = activation.loops.pop() {
            each(ScopeEvent::ExitLoop { function, index, trips });
        }
        each(ScopeEvent::Exit { function, recursion: activation.recursion });
        self.count_end(Some(function));
    }

    /// Notes that an activation has ended.
    fn count_end(&mut self, function: Option<FunctionId>) {
        if let Some(active) = function.and_then(|FunctionId(id)| self.active.get_mut(id as usize)) {
            *active = active.saturating_sub(1);
        }
    }

    /// A signal's handler has returned.
    fn resume(&mut self, pc: AppPc, each: &mut impl FnMut(ScopeEvent)) {
        if let Some(handler) = self.activations.iter().rposition(|activation| activation.is_handler) {
            self.end_down_to(handler, each);
        }
        let is_there = self.activations.back().is_some_and(|top| top.resume == Some(pc));
        if let Some(top) = self.activations.back_mut().filter(|_| is_there) {
            top.resume = None;
        }
        self.origin = if is_there { StepOrigin::Jump } else { StepOrigin::Unknown };
    }

    /// Follows the nodes of a step through the loops of the innermost activation.
    #[inline]
    fn visit(&mut self, block: &BlockScope, step: &Step, blocks: &Blocks, each: &mut impl FnMut(ScopeEvent)) {
        let scopes = self.scopes;
        let (Some(function), Some(top)) = (block.function, self.activations.back_mut()) else { return };
        let Some(flow) = scopes.flow(function) else { return };
        for &node in scopes.nodes_of(block, step, blocks) {
            let innermost = flow.forest.innermost(node);
            match (innermost, top.loops.last_mut()) {
                (None, None) => {}
                (Some(NodeLoop { index, is_entry, .. }), Some((last, trips))) if index == *last => {
                    if is_entry {
                        *trips += 1;
                        each(ScopeEvent::Iterate { function, index });
                    }
                }
                _ => top.change_loops(function, flow, node, each),
            }
        }
    }
}

impl Activation {
    /// Leaves the loops that do not contain a node, counts an iteration, and enters loops.
    #[inline(never)]
    fn change_loops(&mut self, function: FunctionId, flow: &FlowGraph, node: u32, each: &mut impl FnMut(ScopeEvent)) {
        let loops = flow.forest.loops();
        let contains = |index: u32| loops.get(index as usize).is_some_and(|found| found.contains(node));
        while let Some(&(index, trips)) = self.loops.last().filter(|(index, _)| !contains(*index)) {
            self.loops.pop();
            each(ScopeEvent::ExitLoop { function, index, trips });
        }
        let innermost = flow.forest.innermost(node);
        if let Some((index, trips)) = self.loops.last_mut()
            && innermost.is_some_and(|innermost| innermost.index == *index && innermost.is_entry)
        {
            *trips += 1;
            each(ScopeEvent::Iterate { function, index: *index });
        }
        let around: Vec<u32> = flow.forest.around(node).collect();
        for &index in around.iter().rev().skip(self.loops.len()) {
            self.loops.push((index, 1));
            each(ScopeEvent::EnterLoop { function, index });
        }
    }
}
