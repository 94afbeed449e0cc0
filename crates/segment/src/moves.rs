//! Steps, prepared for any number of policies.

use hashbrown::HashMap;
use trace::{Batch, Block, BlockIndex, Blocks, Event, Terminator};

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
    image: u32,
    instructions: u32,
    /// What a step ends with that executes the block to the end, by how it is left.
    classes: [Class; TERMINATORS.len()],
}

/// By their numbers.
const TERMINATORS: [Terminator; 7] = [
    Terminator::NotTaken,
    Terminator::Taken,
    Terminator::Direct,
    Terminator::Indirect,
    Terminator::Syscall,
    Terminator::Next,
    Terminator::Interrupted,
];

impl Tail {
    const UNKNOWN: Self = Self { address: 0, image: 0, instructions: 0, classes: [Class::None; TERMINATORS.len()] };

    fn of(block: Block<'_>) -> Self {
        let classes = TERMINATORS.map(|terminator| Class::of(terminator, block.transfer(), block.last()));
        Self { address: block.address(), image: block.image(), instructions: block.instruction_count(), classes }
    }
}

/// Makes moves of batches; what is known of a block is found out once.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    tails: Vec<Tail>,
    mix: Mix,
    collected: Collected,
    /// By thread: the number of the instruction that comes next, unless something is missing.
    reached: HashMap<u32, u64>,
}

/// Many moves: a policy that goes through them at once finds what it needs in near caches, and what others need is not in its way.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    moves: Vec<Move>,
    /// Threads in turn; moves go from the end of the part before it to `end`.
    parts: Vec<(Part<'static>, usize)>,
}

/// What a thread has executed in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'m> {
    pub thread: u32,
    /// The image of the process that it executed.
    pub image: u32,
    /// It does not go on where the thread was: it begins here, or something in between was not recorded.
    pub begins: bool,
    pub moves: &'m [Move],
}

/// Control-flow instructions that were executed, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix([u64; Class::COUNT]);

impl Mix {
    #[must_use]
    pub fn executed(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        Class::ALL.into_iter().skip(1).map(|class| self.executed(class)).sum()
    }
}

/// As many moves are gone through at once.
const MANY: usize = 1 << 18;

impl Moves {
    /// What a thread has executed next.
    pub fn add(&mut self, blocks: &Blocks, batch: &Batch) {
        self.learn(blocks);
        let (tails, Collected { moves, parts }) = (&self.tails, &mut self.collected);
        let before = moves.len();
        moves.extend(batch.steps().iter().map(|step| {
            let (block, offset, instructions) = (step.block().0, step.first(), step.instructions());
            let tail = tails.get(block as usize).unwrap_or(&Tail::UNKNOWN);
            let first = if offset == 0 { tail.address } else { blocks.address(block, offset) };
            let terminator = step.terminator();
            // Whoever is interrupted may not have come to the end.
            let is_whole = terminator != Terminator::Interrupted || offset + instructions == tail.instructions;
            let class = if is_whole { tail.classes[terminator as usize] } else { Class::None };
            Move { first, next: step.next(), instructions, class, block, offset }
        }));
        moves[before..].iter().for_each(|step| self.mix.0[step.class as usize] += 1);
        let mut part = |from: usize, to: usize, begins: bool| {
            let tail = batch.steps().get(from).and_then(|step| tails.get(step.block().0 as usize));
            let image = tail.map_or(0, |tail| tail.image);
            parts.push((Part { thread: batch.thread(), image, begins, moves: &[] }, before + to));
        };
        let reached = self.reached.entry(batch.thread()).or_default();
        let (mut from, mut begins) = (0, *reached != batch.first_instruction());
        *reached = batch.first_instruction().wrapping_add(batch.instructions());
        for &(place, _) in batch.events().iter().filter(|(_, event)| is_break(event)) {
            part(from, place, begins);
            (from, begins) = (place, true);
        }
        part(from, batch.steps().len(), begins);
    }

    /// What was collected. It is complete: `instead` is filled next.
    pub fn take(&mut self, instead: Collected) -> Collected {
        std::mem::replace(&mut self.collected, instead)
    }

    /// Whether there are enough to go through.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.collected.moves.len() >= MANY
    }

    /// What was executed so far.
    #[must_use]
    pub fn mix(&self) -> &Mix {
        &self.mix
    }

    fn learn(&mut self, blocks: &Blocks) {
        let known = self.tails.len();
        let new = (known..blocks.len()).filter_map(|index| blocks.get(BlockIndex(u32::try_from(index).ok()?)));
        self.tails.extend(new.map(Tail::of));
    }
}

impl Collected {
    /// What threads have executed, in turn.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.parts.iter().scan(0, |first, &(part, end)| {
            let moves = &self.moves[*first..end];
            *first = end;
            Some(Part { moves, ..part })
        })
    }

    /// All have gone through it, and there is room for more.
    pub fn clear(&mut self) {
        self.moves.clear();
        self.parts.clear();
    }
}

/// Whether what comes behind an event does not go on where the thread was.
fn is_break(event: &Event) -> bool {
    matches!(event, Event::Start { .. } | Event::End { .. } | Event::Detach { .. } | Event::Gap { .. } | Event::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places() {
        for (place, terminator) in TERMINATORS.into_iter().enumerate() {
            assert_eq!(terminator as usize, place);
        }
    }
}
