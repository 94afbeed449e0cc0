//! Steps, prepared for any number of policies.

use isa::Transfer;
use trace::{Batch, BlockIndex, Blocks};

use crate::class::Class;

/// A step: so many instructions in a row, and what the last of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Address of the first instruction.
    pub first: u64,
    /// Address of what comes behind it; 0 if nobody knows.
    pub next: u64,
    pub instructions: u32,
    pub class: Class,
    /// Where the code is, see [`Code`].
    pub block: u32,
    /// The first instruction's place in the block.
    pub offset: u32,
}

/// Where instructions are.
pub trait Code {
    /// The address of an instruction, by its place in a block.
    fn address(&self, block: u32, place: u32) -> u64;
}

impl Code for Blocks {
    fn address(&self, block: u32, place: u32) -> u64 {
        let Some(block) = self.get(BlockIndex(block)) else { return 0 };
        let before: u64 = block.lengths().iter().take(place as usize).map(|&length| u64::from(length)).sum();
        block.address().wrapping_add(before)
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct Tail {
    address: u64,
    instructions: u32,
    /// Address of the last instruction, and what it does.
    last: u64,
    transfer: Transfer,
}

/// Makes moves of batches; what is known of a block is found out once.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    tails: Vec<Tail>,
    moves: Vec<Move>,
    /// Moves by what they ended with.
    classes: [u64; Class::COUNT],
}

impl Moves {
    /// What a thread has executed next.
    pub fn of(&mut self, blocks: &Blocks, batch: &Batch) -> &[Move] {
        self.learn(blocks);
        self.moves.clear();
        let tails = &self.tails;
        self.moves.extend(batch.steps().iter().filter_map(|step| {
            let tail = tails.get(step.block().0 as usize)?;
            let (block, offset) = (step.block().0, step.first());
            let first = if offset == 0 { tail.address } else { blocks.address(block, offset) };
            let was_executed = offset + step.instructions() == tail.instructions;
            let class = Class::of(step, tail.transfer, tail.last, was_executed);
            Some(Move { first, next: step.next(), instructions: step.instructions(), class, block, offset })
        }));
        self.moves.iter().for_each(|step| self.classes[step.class as usize] += 1);
        &self.moves
    }

    /// Control-flow instructions that were executed so far, by class.
    #[must_use]
    pub fn executed(&self, class: Class) -> u64 {
        self.classes[class as usize]
    }

    fn learn(&mut self, blocks: &Blocks) {
        let known = self.tails.len();
        let new = (known..blocks.len()).filter_map(|index| blocks.get(BlockIndex(u32::try_from(index).ok()?)));
        self.tails.extend(new.map(|block| Tail {
            address: block.address(),
            instructions: block.instruction_count(),
            last: block.last(),
            transfer: block.transfer(),
        }));
    }
}
