//! Steps with the ends of their blocks. [`BlockEnds::walk`] calls a [`StepVisitor`] for each step
//! and event of a batch; a [`BlockEnd`] says which branch a step ends with.

use filter::traptor::{BranchKind, BranchOutcome, BranchSite};
use isa::Transfer;
use trace::{AppPc, Batch, Block, BlockIndex, Blocks, Event, Step, Terminator};

/// Visitor of the steps and events of a thread.
pub trait StepVisitor {
    fn event(&mut self, event: &Event);
    /// `first` is the address of the first executed instruction of the step.
    fn step(&mut self, step: &Step, first: AppPc, block_end: &BlockEnd);
}

/// The end of a static block.
#[derive(Clone, Copy, Debug)]
pub struct BlockEnd {
    pub start: AppPc,
    /// Address of the last instruction.
    last: AppPc,
    /// Address after the last instruction.
    pub end: AppPc,
    pub transfer: Transfer,
}

impl BlockEnd {
    fn of(block: &Block) -> Self {
        Self { start: block.address(), last: block.last(), end: block.end(), transfer: block.transfer() }
    }

    /// Returns the branch at the end of a step and its outcome; `None` if there is no branch that
    /// predictors see.
    #[inline]
    pub fn branch(&self, step: &Step) -> Option<(BranchSite, BranchOutcome)> {
        let target = BranchOutcome::Target(step.next().get());
        let (kind, outcome) = match (step.terminator(), self.transfer) {
            (Terminator::Taken, _) => (BranchKind::Conditional, BranchOutcome::Taken(true)),
            (Terminator::NotTaken, _) => (BranchKind::Conditional, BranchOutcome::Taken(false)),
            (Terminator::Direct, Transfer::Call { .. }) => (BranchKind::Call, target),
            // The trace does not contain the target.
            (Terminator::Indirect, _) if step.next().is_none() => return None,
            (Terminator::Indirect, Transfer::IndirectCall) => (BranchKind::IndirectCall, target),
            (Terminator::Indirect, Transfer::Return) => (BranchKind::Return, target),
            (Terminator::Indirect, _) => (BranchKind::IndirectJump, target),
            _ => return None,
        };
        Some((BranchSite { kind, address: self.last.get(), fall_through: self.end.get() }, outcome))
    }
}

/// The ends of all blocks, cached so that each block is read once.
#[derive(Clone, Debug, Default)]
pub struct BlockEnds(Vec<BlockEnd>);

impl BlockEnds {
    /// Calls the visitor for all steps and events of `batch`.
    pub fn walk(&mut self, blocks: &Blocks, batch: &Batch, visitor: &mut impl StepVisitor) {
        self.extend(blocks);
        let mut visited = 0;
        for (steps_before, event) in batch.events() {
            self.steps(blocks, batch.steps().get(visited..*steps_before).unwrap_or(&[]), visitor);
            visitor.event(event);
            visited = *steps_before;
        }
        self.steps(blocks, batch.steps().get(visited..).unwrap_or(&[]), visitor);
    }

    /// Adds the ends of new blocks.
    pub fn extend(&mut self, blocks: &Blocks) {
        self.0.extend((self.0.len()..blocks.len()).filter_map(|index| {
            let index = BlockIndex(u32::try_from(index).ok()?);
            blocks.get(index).map(|block| BlockEnd::of(&block))
        }));
    }

    /// Returns the end of the step's block.
    #[inline]
    pub fn of(&self, step: &Step) -> Option<&BlockEnd> {
        self.0.get(step.block().0 as usize)
    }

    #[inline]
    fn steps(&self, blocks: &Blocks, steps: &[Step], visitor: &mut impl StepVisitor) {
        for step in steps {
            let Some(block_end) = self.of(step) else { continue };
            let first = if step.first() == 0 { block_end.start } else { first_executed(blocks, step) };
            visitor.step(step, first, block_end);
        }
    }
}

#[cold]
fn first_executed(blocks: &Blocks, step: &Step) -> AppPc {
    blocks.instructions(step).next().map_or(AppPc::NONE, |first| first.address)
}
