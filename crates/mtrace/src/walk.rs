//! Steps, each with what its block ends with.

use filter::traptor::{Kind, Site, Went};
use isa::Transfer;
use trace::{Batch, Block, BlockIndex, Blocks, Event, Step, Terminator};

/// Receives what a thread has executed.
pub(crate) trait Walker {
    fn event(&mut self, event: &Event);
    /// `first` is the first instruction that the step executes.
    fn step(&mut self, step: &Step, first: u64, tail: &Tail);
}

/// The end of a static block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub head: u64,
    /// Address of the last instruction.
    last: u64,
    /// Address behind it.
    pub end: u64,
    pub transfer: Transfer,
}

impl Tail {
    fn of(block: &Block) -> Self {
        Self { head: block.address(), last: block.last(), end: block.end(), transfer: block.transfer() }
    }

    /// The branch that a step ends with, if it makes a difference, and where it went.
    #[inline]
    pub(crate) fn branch(&self, step: &Step) -> Option<(Site, Went)> {
        let (kind, went) = match (step.terminator(), self.transfer) {
            (Terminator::Taken, _) => (Kind::Conditional, Went::Taken(true)),
            (Terminator::NotTaken, _) => (Kind::Conditional, Went::Taken(false)),
            (Terminator::Direct, Transfer::Call { .. }) => (Kind::Call, Went::To(step.next())),
            // The trace does not tell where it went.
            (Terminator::Indirect, _) if step.next() == 0 => return None,
            (Terminator::Indirect, Transfer::IndirectCall) => (Kind::IndirectCall, Went::To(step.next())),
            (Terminator::Indirect, Transfer::Return) => (Kind::Return, Went::To(step.next())),
            (Terminator::Indirect, _) => (Kind::IndirectJump, Went::To(step.next())),
            _ => return None,
        };
        Some((Site { kind, address: self.last, behind: self.end }, went))
    }
}

/// The ends of all blocks, so that the block itself is looked at once only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tails(Vec<Tail>);

impl Tails {
    /// Shows all that is in `batch`.
    pub(crate) fn walk(&mut self, blocks: &Blocks, batch: &Batch, walker: &mut impl Walker) {
        self.extend(blocks);
        let mut shown = 0;
        for (steps_before, event) in batch.events() {
            self.steps(blocks, batch.steps().get(shown..*steps_before).unwrap_or(&[]), walker);
            walker.event(event);
            shown = *steps_before;
        }
        self.steps(blocks, batch.steps().get(shown..).unwrap_or(&[]), walker);
    }

    /// Learns of blocks that are new.
    pub(crate) fn extend(&mut self, blocks: &Blocks) {
        self.0.extend((self.0.len()..blocks.len()).filter_map(|index| {
            let index = BlockIndex(u32::try_from(index).ok()?);
            blocks.get(index).map(|block| Tail::of(&block))
        }));
    }

    /// Of the step's block.
    #[inline]
    pub(crate) fn of(&self, step: &Step) -> Option<&Tail> {
        self.0.get(step.block().0 as usize)
    }

    #[inline]
    fn steps(&self, blocks: &Blocks, steps: &[Step], walker: &mut impl Walker) {
        for step in steps {
            let Some(tail) = self.of(step) else { continue };
            let first = if step.first() == 0 { tail.head } else { cut_head(blocks, step) };
            walker.step(step, first, tail);
        }
    }
}

#[cold]
fn cut_head(blocks: &Blocks, step: &Step) -> u64 {
    blocks.instructions(step).next().map_or(0, |first| first.address)
}
