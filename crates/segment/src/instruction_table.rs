//! The instructions of a program, each with one number, found by address. [`crate::Overlap`] and
//! [`crate::EdgeProbabilities`] walk traces with it.

use hashbrown::HashMap;
use trace::{AppPc, BlockIndex, Blocks};

use crate::set::{InstructionRun, SegmentTrace};

/// An instruction, by block and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionRef {
    pub block: BlockIndex,
    /// Index of the instruction in the block.
    pub index: u32,
}

/// All instructions of a program. An instruction has one number even if several blocks contain it.
/// Where code was modified, the code that was executed first counts.
#[derive(Clone, Debug)]
pub struct InstructionTable<'b> {
    blocks: &'b Blocks,
    /// By image and address.
    by_address: HashMap<(u32, AppPc), InstructionRef>,
    /// Number of every instruction of every block.
    numbers: Vec<u32>,
    /// Index of the first number of each block.
    firsts: Vec<usize>,
}

impl<'b> InstructionTable<'b> {
    #[must_use]
    pub fn new(blocks: &'b Blocks) -> Self {
        let mut table = Self { blocks, by_address: HashMap::new(), numbers: Vec::new(), firsts: Vec::new() };
        for (block_index, block) in (0..).zip(blocks.iter()) {
            table.firsts.push(table.numbers.len());
            for (index, decoded) in (0..).zip(block.instructions()) {
                let instruction = InstructionRef { block: BlockIndex(block_index), index };
                let first = *table.by_address.entry((block.image(), decoded.address)).or_insert(instruction);
                let number = if first == instruction { table.numbers.len() as u32 } else { table.number(first) };
                table.numbers.push(number);
            }
        }
        table
    }

    #[must_use]
    pub fn blocks(&self) -> &'b Blocks {
        self.blocks
    }

    /// Returns an upper bound of the numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the number of an instruction, which is the same in all blocks.
    #[must_use]
    pub fn number(&self, instruction: InstructionRef) -> u32 {
        self.numbers[self.firsts[instruction.block.0 as usize] + instruction.index as usize]
    }

    /// Returns the instructions of a run; fewer if the code is unknown.
    pub fn walk(&self, image: u32, run: InstructionRun) -> impl Iterator<Item = InstructionRef> + '_ {
        let mut at = self.by_address.get(&(image, run.address)).copied();
        (0..run.instructions).map_while(move |_| {
            let instruction = at?;
            let block = self.blocks.get(instruction.block)?;
            let next = InstructionRef { index: instruction.index + 1, ..instruction };
            let is_inside = next.index < block.instruction_count();
            at = if is_inside { Some(next) } else { self.by_address.get(&(image, block.end())).copied() };
            Some(instruction)
        })
    }

    /// Returns the instructions of a trace.
    pub fn path<'l>(&'l self, trace: &'l SegmentTrace) -> impl Iterator<Item = InstructionRef> + 'l {
        trace.runs.iter().flat_map(|&run| self.walk(trace.image, run))
    }
}
