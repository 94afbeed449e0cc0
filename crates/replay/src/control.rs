//! Control flow, step by step. A [`Walk`] passes the steps of a trace to a [`FlowEncoder`], which
//! makes messages of them. A [`DecodedFlow`] asks a [`FlowDecoder`] where execution continues and
//! compares the answer with the trace. A [`ThreadPosition`] tracks the expected next instruction of
//! a thread.

use filter::traptor::{BranchOutcome, BranchSite};
use hashbrown::HashMap;
use isa::Transfer;
use trace::{AppPc, Batch, Blocks, Event, Step, Terminator, ThreadId};

use crate::block_end::{BlockEnd, BlockEnds, StepVisitor};
use crate::check::CheckReport;

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// No branch.
    FallThrough,
    /// An indirect branch whose target the trace does not contain.
    UnknownTarget,
    /// A direct jump.
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

/// An encoder of control flow: receives the executed steps of all threads.
pub trait FlowEncoder {
    /// Selects the thread of the following calls.
    fn switch_thread(&mut self, thread: ThreadId);
    /// Encodes that execution continues at `target`, although neither a branch nor the program
    /// leads there.
    fn encode_discontinuity(&mut self, target: AppPc);
    /// Encodes a step of `instructions` instructions, including a branch at its end.
    fn encode_step(&mut self, instructions: u64, end: &StepEnd);
}

/// A decoder of control flow, the inverse of [`FlowEncoder`].
pub trait FlowDecoder {
    type Thread<'s>: ThreadFlowDecoder
    where
        Self: 's;
    /// Returns the decoder of a thread.
    fn thread(&mut self, thread: ThreadId) -> Self::Thread<'_>;
}

/// The decoder of one thread, which advances step by step.
pub trait ThreadFlowDecoder {
    /// Returns where execution continues, if neither a branch nor the program leads there.
    fn decode_discontinuity(&mut self) -> Option<AppPc>;
    /// Counts executed instructions, including a branch at their end.
    fn add_instructions(&mut self, count: u64);
    /// Passes a direct jump, the last of the counted instructions.
    fn decode_jump(&mut self) {}
    /// Returns the outcome of this branch, the last of the counted instructions. Returns `None` for
    /// a direct call, or if the outcome is unknown.
    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome>;
}

/// Stands for the next address of a thread that has not begun. The decoder knows where threads
/// begin.
const NOT_BEGUN: AppPc = AppPc::new(u64::MAX);

/// Position of a thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadPosition {
    /// The next instruction according to the program and the last branch; [`AppPc::NONE`] if they
    /// do not determine it, or `NOT_BEGUN`.
    pub next: AppPc,
    /// Where a signal or the return from its handler led; [`AppPc::NONE`] if there was none.
    interruption: AppPc,
}

/// Reason why execution continued where neither a branch nor the program leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discontinuity {
    /// A signal or the return from its handler.
    Exception,
    /// Something is missing from the trace.
    Gap,
}

impl ThreadPosition {
    pub const NOT_BEGUN: Self = Self { next: NOT_BEGUN, interruption: AppPc::NONE };

    /// Takes note of an event of the thread.
    pub fn event(&mut self, event: &Event) {
        match *event {
            Event::Start { pc, .. } => self.next = pc,
            Event::Signal { handler, .. } => self.interruption = handler,
            Event::Resume { pc, .. } => self.interruption = pc,
            _ => {}
        }
    }

    /// Returns why execution continues at `first` instead of the expected instruction; `None` if
    /// the thread begins there.
    #[cold]
    pub fn discontinuity_at(&mut self, first: AppPc) -> Option<Discontinuity> {
        if self.next == NOT_BEGUN {
            return None;
        }
        let is_interruption = std::mem::take(&mut self.interruption) == first;
        Some(if is_interruption { Discontinuity::Exception } else { Discontinuity::Gap })
    }
}

/// Passes all steps of a trace to an encoder.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    block_ends: BlockEnds,
    positions: HashMap<ThreadId, ThreadPosition>,
    pub instructions: u64,
}

impl Walk {
    /// Passes the next batch of a thread to the encoder.
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
    fn step(&mut self, step: &Step, first: AppPc, block_end: &BlockEnd) {
        if self.position.next != first && self.position.discontinuity_at(first).is_some() {
            self.encoder.encode_discontinuity(first);
        }
        self.position.next = step.next();
        self.encoder.encode_step(step.instructions().into(), &StepEnd::of(step, block_end));
    }
}

/// Decoded control flow, compared with the trace.
#[derive(Debug)]
pub struct DecodedFlow<D> {
    pub decoder: D,
    /// Decoded position of each thread; `None` before it has begun.
    positions: HashMap<ThreadId, Option<AppPc>>,
    block_ends: BlockEnds,
}

impl<D: FlowDecoder> DecodedFlow<D> {
    pub fn new(decoder: D) -> Self {
        Self { decoder, positions: HashMap::new(), block_ends: BlockEnds::default() }
    }

    /// Decodes the next batch of a thread and compares it with the trace. The program provides the
    /// instructions, and the decoder the outcomes of branches. The trace itself is only compared.
    pub fn compare_batch<C>(&mut self, blocks: &Blocks, batch: &Batch, report: &mut CheckReport<C>) {
        let thread = batch.thread();
        let next = self.positions.entry(thread).or_insert(None);
        let decoder = self.decoder.thread(thread);
        self.block_ends.walk(blocks, batch, &mut ComparingVisitor { thread, blocks, next, decoder, report });
    }
}

struct ComparingVisitor<'f, D, C> {
    thread: ThreadId,
    blocks: &'f Blocks,
    next: &'f mut Option<AppPc>,
    decoder: D,
    report: &'f mut CheckReport<C>,
}

impl<D: ThreadFlowDecoder, C> StepVisitor for ComparingVisitor<'_, D, C> {
    fn event(&mut self, event: &Event) {
        if let Event::Start { pc, .. } = *event {
            *self.next = Some(pc);
        }
    }

    fn step(&mut self, step: &Step, first: AppPc, block_end: &BlockEnd) {
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
                (Some(BranchOutcome::Taken(false)), _) => AppPc::new(site.fall_through),
                (Some(BranchOutcome::Target(target)), _) => AppPc::new(target),
                (None, Transfer::Call { target }) => target,
                _ => AppPc::NONE,
            },
        };
        *self.next = Some(next);
    }
}

impl<D, C> ComparingVisitor<'_, D, C> {
    /// Returns the successor of a step without a predicted branch, from the program alone.
    fn static_successor(&self, step: &Step, block_end: &BlockEnd) -> AppPc {
        match (step.terminator(), block_end.transfer) {
            (Terminator::Direct, Transfer::Jump { target } | Transfer::Call { target }) => target,
            // The next instruction of the block, or the first one after it.
            (Terminator::Interrupted, _) => {
                let executed = (step.first() + step.instructions()) as usize;
                let block = self.blocks.get(step.block());
                let next = block.and_then(|block| block.instructions().nth(executed).map(|next| next.address));
                next.unwrap_or(block_end.end)
            }
            (Terminator::Indirect, _) => AppPc::NONE,
            _ => block_end.end,
        }
    }
}
