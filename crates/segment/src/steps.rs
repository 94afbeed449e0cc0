//! Steps, prepared for any number of policies. A [`StepCollector`] fills a [`StepBuffer`] from
//! batches; segmenters read it thread by thread as [`ThreadSteps`].

use hashbrown::HashMap;
use trace::{AppPc, Batch, Block, BlockIndex, Blocks, Event, InstructionIndex, Terminator, ThreadId};

use crate::class::Class;

/// A step: a run of instructions, and the class of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStep {
    /// Address of the first instruction.
    pub first: AppPc,
    /// Address of the next instruction; [`AppPc::NONE`] if unknown.
    pub next: AppPc,
    pub instructions: u32,
    pub class: Class,
    pub block: BlockIndex,
    /// Index of the first instruction in the block.
    pub offset: u32,
}

/// Addresses of instructions.
pub trait CodeAddresses {
    /// Returns the address of an instruction, by its index in a block.
    fn address(&self, block: BlockIndex, index: u32) -> AppPc;
}

impl CodeAddresses for Blocks {
    fn address(&self, block: BlockIndex, index: u32) -> AppPc {
        let Some(block) = self.get(block) else { return AppPc::NONE };
        let before: u64 = block.lengths().iter().take(index as usize).map(|&length| u64::from(length)).sum();
        block.address() + before
    }
}

/// Static properties of a block.
#[derive(Clone, Copy, Debug)]
struct BlockInfo {
    address: AppPc,
    image: u32,
    instructions: u32,
    /// Class of a step that executes the block to the end, by terminator.
    classes: [Class; TERMINATORS.len()],
}

/// Terminators in the order of their numbers.
const TERMINATORS: [Terminator; 7] = [
    Terminator::NotTaken,
    Terminator::Taken,
    Terminator::Direct,
    Terminator::Indirect,
    Terminator::Syscall,
    Terminator::Next,
    Terminator::Interrupted,
];

impl BlockInfo {
    const UNKNOWN: Self =
        Self { address: AppPc::NONE, image: 0, instructions: 0, classes: [Class::None; TERMINATORS.len()] };

    fn of(block: Block<'_>) -> Self {
        let classes = TERMINATORS.map(|terminator| Class::of(terminator, block.transfer(), block.last()));
        Self { address: block.address(), image: block.image(), instructions: block.instruction_count(), classes }
    }
}

/// Converts batches to steps. The properties of each block are computed once.
#[derive(Clone, Debug, Default)]
pub struct StepCollector {
    infos: Vec<BlockInfo>,
    mix: InstructionMix,
    buffer: StepBuffer,
    /// The next instruction of each thread, unless something is missing.
    reached: HashMap<ThreadId, InstructionIndex>,
}

/// A buffer of many steps. A policy that processes them at once keeps its data in near caches.
#[derive(Clone, Debug, Default)]
pub struct StepBuffer {
    steps: Vec<SegmentStep>,
    /// Threads in turn; the steps of each begin at the end of the previous one's and go to `end`.
    threads: Vec<(ThreadSteps<'static>, usize)>,
}

/// Consecutive steps of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSteps<'m> {
    pub thread: ThreadId,
    /// The process image that it executed.
    pub image: u32,
    /// Whether they do not continue the thread's previous steps: the thread begins here, or
    /// something between was not recorded.
    pub begins: bool,
    pub steps: &'m [SegmentStep],
}

/// Executed control-flow instructions by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionMix([u64; Class::COUNT]);

impl InstructionMix {
    #[must_use]
    pub fn executed(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Returns the sum over all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        Class::ALL.into_iter().skip(1).map(|class| self.executed(class)).sum()
    }
}

/// Steps that are processed at once.
const FULL: usize = 1 << 18;

impl StepCollector {
    /// Adds the next batch of a thread.
    pub fn add(&mut self, blocks: &Blocks, batch: &Batch) {
        self.add_blocks(blocks);
        let (infos, StepBuffer { steps, threads }) = (&self.infos, &mut self.buffer);
        let before = steps.len();
        steps.extend(batch.steps().iter().map(|step| {
            let (block, offset, instructions) = (step.block(), step.first(), step.instructions());
            let info = infos.get(block.0 as usize).unwrap_or(&BlockInfo::UNKNOWN);
            let first = if offset == 0 { info.address } else { blocks.address(block, offset) };
            let terminator = step.terminator();
            // An interrupted step may not have reached the end of its block.
            let is_whole = terminator != Terminator::Interrupted || offset + instructions == info.instructions;
            let class = if is_whole { info.classes[terminator as usize] } else { Class::None };
            SegmentStep { first, next: step.next(), instructions, class, block, offset }
        }));
        steps[before..].iter().for_each(|step| self.mix.0[step.class as usize] += 1);
        let mut thread_steps = |from: usize, to: usize, begins: bool| {
            let info = batch.steps().get(from).and_then(|step| infos.get(step.block().0 as usize));
            let image = info.map_or(0, |info| info.image);
            threads.push((ThreadSteps { thread: batch.thread(), image, begins, steps: &[] }, before + to));
        };
        let reached = self.reached.entry(batch.thread()).or_default();
        let (mut from, mut begins) = (0, *reached != batch.first_instruction());
        *reached = batch.first_instruction() + batch.instructions();
        for &(index, _) in batch.events().iter().filter(|(_, event)| is_discontinuity(event)) {
            thread_steps(from, index, begins);
            (from, begins) = (index, true);
        }
        thread_steps(from, batch.steps().len(), begins);
    }

    /// Takes the buffer and continues with `next`.
    pub fn take(&mut self, next: StepBuffer) -> StepBuffer {
        std::mem::replace(&mut self.buffer, next)
    }

    /// Returns whether there are enough steps to process.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.buffer.steps.len() >= FULL
    }

    /// Returns the instruction mix so far.
    #[must_use]
    pub fn mix(&self) -> &InstructionMix {
        &self.mix
    }

    fn add_blocks(&mut self, blocks: &Blocks) {
        let known = self.infos.len();
        let new = (known..blocks.len()).filter_map(|index| blocks.get(BlockIndex(u32::try_from(index).ok()?)));
        self.infos.extend(new.map(BlockInfo::of));
    }
}

impl StepBuffer {
    /// Returns the steps of threads in turn.
    pub fn threads(&self) -> impl Iterator<Item = ThreadSteps<'_>> {
        self.threads.iter().scan(0, |first, &(thread_steps, end)| {
            let steps = &self.steps[*first..end];
            *first = end;
            Some(ThreadSteps { steps, ..thread_steps })
        })
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.threads.clear();
    }
}

/// Returns whether execution does not continue across this event.
fn is_discontinuity(event: &Event) -> bool {
    matches!(event, Event::Start { .. } | Event::End { .. } | Event::Detach { .. } | Event::Gap { .. } | Event::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_indices() {
        for (index, terminator) in TERMINATORS.into_iter().enumerate() {
            assert_eq!(terminator as usize, index);
        }
    }
}
