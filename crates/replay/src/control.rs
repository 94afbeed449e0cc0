//! Control flow, step by step: a [`Walk`] tells it to whoever makes messages of it, and an [`DecodedFlow`] asks whoever reads them
//! where execution goes, and compares.

use filter::traptor::{BranchOutcome, BranchSite};
use hashbrown::HashMap;
use isa::Transfer;
use trace::{Batch, Blocks, Event, Step, Terminator};

use crate::block_end::{BlockEnd, BlockEnds, StepVisitor};
use crate::check::CheckReport;

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// With no branch.
    FallThrough,
    /// With an indirect branch of which the trace does not tell where it went.
    UnknownTarget,
    /// With a direct jump.
    Jump,
    Branch(BranchSite, BranchOutcome),
}

impl StepEnd {
    #[inline]
    fn of(step: &Step, block_end: &BlockEnd) -> Self {
        match (block_end.branch(step), step.terminator()) {
            (Some((site, outcome)), _) => Self::Branch(site, outcome),
            (None, Terminator::Direct) => Self::Jump,
            (None, Terminator::Indirect) => Self::UnknownTarget,
            (None, _) => Self::FallThrough,
        }
    }
}

/// Receives what threads have executed.
pub trait FlowEncoder {
    /// What follows was executed by this thread.
    fn switch_thread(&mut self, thread: u32);
    /// Execution goes on at `target`, which neither a branch nor the program said.
    fn encode_discontinuity(&mut self, target: u64);
    /// So many instructions were executed, a branch as the last of them included.
    fn encode_step(&mut self, instructions: u64, end: &StepEnd);
}

/// Says what threads execute: the mirror image of [`FlowEncoder`].
pub trait FlowDecoder {
    type Thread<'s>: ThreadFlowDecoder
    where
        Self: 's;
    /// What this thread executes next.
    fn thread(&mut self, thread: u32) -> Self::Thread<'_>;
}

/// Says what a thread executes, one step after the other.
pub trait ThreadFlowDecoder {
    /// Where execution goes on, if it is not where the program or a branch said.
    fn decode_discontinuity(&mut self) -> Option<u64>;
    /// So many more instructions are executed, a branch as the last of them included.
    fn add_instructions(&mut self, count: u64);
    /// The last of them is a direct jump.
    fn decode_jump(&mut self) {}
    /// The last of them is this branch: where it goes. `None` of a direct call, or if that is not known.
    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome>;
}

/// In place of an address: whoever follows is told where a thread begins.
const NOT_BEGUN: u64 = u64::MAX;

/// Where a thread is.
#[derive(Clone, Copy, Debug)]
pub struct ThreadPosition {
    /// The instruction that comes next, as far as the program and the branches before say; 0 if they do not, or [`NOT_BEGUN`].
    pub next: u64,
    /// Where a signal, or the return from its handler, has led; 0 if there was none.
    interruption: u64,
}

/// What made execution go on where neither a branch nor the program said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discontinuity {
    /// A signal, or the return from its handler.
    Exception,
    /// Something was left out.
    Gap,
}

impl ThreadPosition {
    pub const NOT_BEGUN: Self = Self { next: NOT_BEGUN, interruption: 0 };

    /// Something has happened to the thread.
    pub fn event(&mut self, event: &Event) {
        match *event {
            Event::Start { pc, .. } => self.next = pc,
            Event::Signal { handler, .. } => self.interruption = handler,
            Event::Resume { pc, .. } => self.interruption = pc,
            _ => {}
        }
    }

    /// Execution goes on at `first`, which is not what comes next: why, unless the thread begins there.
    #[cold]
    pub fn discontinuity_at(&mut self, first: u64) -> Option<Discontinuity> {
        if self.next == NOT_BEGUN {
            return None;
        }
        let is_interruption = std::mem::take(&mut self.interruption) == first;
        Some(if is_interruption { Discontinuity::Exception } else { Discontinuity::Gap })
    }
}

/// A way through a trace on which everything is told.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    block_ends: BlockEnds,
    positions: HashMap<u32, ThreadPosition>,
    pub instructions: u64,
}

impl Walk {
    /// Tells what a thread has executed next.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, encoder: &mut (impl FlowEncoder + ?Sized)) {
        let position = self.positions.entry(batch.thread()).or_insert(ThreadPosition::NOT_BEGUN);
        self.instructions += batch.instructions();
        encoder.switch_thread(batch.thread());
        self.block_ends.walk(blocks, batch, &mut EncodingVisitor { position, encoder });
    }
}

struct EncodingVisitor<'t, T: ?Sized> {
    position: &'t mut ThreadPosition,
    encoder: &'t mut T,
}

impl<T: FlowEncoder + ?Sized> StepVisitor for EncodingVisitor<'_, T> {
    fn event(&mut self, event: &Event) {
        self.position.event(event);
    }

    #[inline]
    fn step(&mut self, step: &Step, first: u64, block_end: &BlockEnd) {
        if self.position.next != first && self.position.discontinuity_at(first).is_some() {
            self.encoder.encode_discontinuity(first);
        }
        self.position.next = step.next();
        self.encoder.encode_step(step.instructions().into(), &StepEnd::of(step, block_end));
    }
}

/// A trace as somebody shows it, compared with what was executed.
#[derive(Debug)]
pub struct DecodedFlow<D> {
    pub decoder: D,
    /// Where each thread is, as it is shown; `None` before it has begun, which nobody has to tell.
    positions: HashMap<u32, Option<u64>>,
    block_ends: BlockEnds,
}

impl<D: FlowDecoder> DecodedFlow<D> {
    pub fn new(decoder: D) -> Self {
        Self { decoder, positions: HashMap::new(), block_ends: BlockEnds::default() }
    }

    /// Goes on with a thread: the program says what is executed, and what is shown where branches go. What was really executed is only
    /// compared.
    pub fn compare_batch<C>(&mut self, blocks: &Blocks, batch: &Batch, report: &mut CheckReport<C>) {
        let thread = batch.thread();
        let next = self.positions.entry(thread).or_insert(None);
        let decoder = self.decoder.thread(thread);
        self.block_ends.walk(blocks, batch, &mut ComparingVisitor { thread, blocks, next, decoder, report });
    }
}

struct ComparingVisitor<'f, D, C> {
    thread: u32,
    blocks: &'f Blocks,
    next: &'f mut Option<u64>,
    decoder: D,
    report: &'f mut CheckReport<C>,
}

impl<D: ThreadFlowDecoder, C> StepVisitor for ComparingVisitor<'_, D, C> {
    fn event(&mut self, event: &Event) {
        if let Event::Start { pc, .. } = *event {
            *self.next = Some(pc);
        }
    }

    fn step(&mut self, step: &Step, first: u64, block_end: &BlockEnd) {
        if let Some(next) = self.next
            && let Some(target) = self.decoder.decode_discontinuity()
        {
            *next = target;
        }
        let decoded = self.next.unwrap_or(first);
        if decoded == first {
            self.report.matches += 1;
        } else {
            let thread = self.thread;
            self.report
                .add_problem(|| format!("thread {thread}: goes on at {first:#x}, the decoder says {decoded:#x}"));
        }
        self.decoder.add_instructions(step.instructions().into());
        let next = match StepEnd::of(step, block_end) {
            StepEnd::FallThrough | StepEnd::UnknownTarget => self.static_successor(step, block_end),
            StepEnd::Jump => {
                self.decoder.decode_jump();
                self.static_successor(step, block_end)
            }
            StepEnd::Branch(site, _) => match (self.decoder.decode_branch(&site), block_end.transfer) {
                (Some(BranchOutcome::Taken(true)), Transfer::Conditional { target }) => target,
                (Some(BranchOutcome::Taken(false)), _) => site.fall_through,
                (Some(BranchOutcome::Target(target)), _) | (None, Transfer::Call { target }) => target,
                _ => 0,
            },
        };
        *self.next = Some(next);
    }
}

impl<D, C> ComparingVisitor<'_, D, C> {
    /// Where a step goes that has no branch that makes a difference, by the program alone.
    fn static_successor(&self, step: &Step, block_end: &BlockEnd) -> u64 {
        match (step.terminator(), block_end.transfer) {
            (Terminator::Direct, Transfer::Jump { target } | Transfer::Call { target }) => target,
            // The next instruction of the block, or the one behind it.
            (Terminator::Interrupted, _) => {
                let executed = (step.first() + step.instructions()) as usize;
                let block = self.blocks.get(step.block());
                let next = block.and_then(|block| block.instructions().nth(executed).map(|next| next.address));
                next.unwrap_or(block_end.end)
            }
            (Terminator::Indirect, _) => 0,
            _ => block_end.end,
        }
    }
}
