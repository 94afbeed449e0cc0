//! The static side of a recording: blocks, fragments, and the paths through each fragment.
//!
//! Writer and reader build the same tables from the same definitions: the writer to count, the
//! reader to return steps, and both for the predicting codec, which asks through [`PathModel`]
//! where a path leads.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::{DenseMap, Sentinel};
use codec::predict::{FragmentExits, LowPc, PathModel, StackEffect, low_pc};
use hashbrown::HashMap;
use isa::Transfer;
use wire::code::{
    FRAGMENT_BLOCKS_MAX, TAKEN, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL,
    TERMINATOR_TAKEN,
};
use wire::word::PATH_MAX;

use crate::block::{Blocks, NONE, Node, Refusal};
use crate::definition::Definition;
use crate::descriptors::{DescriptorTable, ExecutedPath};
use crate::error::WriteError;
use crate::model::{AccessDescriptors, Counts, Fragment, Step, Terminator};

/// A fragment in the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentInfo {
    pub first_path: u32,
    pub exit_count: u16,
    block_count: u16,
    steps_at: u32,
    /// Sequence number of the code chunk that defines it.
    pub sequence: u32,
    /// The fragment with the same head that was defined before.
    older: u32,
    /// Whether a newer fragment has the same head.
    superseded: bool,
    pub image: u32,
    /// Address of its first block.
    pub head: u64,
}

/// All definitions.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub blocks: Blocks,
    fragments: Vec<FragmentInfo>,
    /// The steps of every fragment, from each block to the next. The last block's step is a
    /// placeholder.
    steps: Vec<Step>,
    /// The newest fragment by image and [`LowPc`] of its head.
    by_head: HashMap<(u32, LowPc), u32>,
    paths: Vec<PathEntry>,
    /// Index in `paths` of every path number.
    path_of: DenseMap<u32>,
    /// What counting and predicting need of every path number, in one place.
    infos: DenseMap<PathInfo>,
    /// Stack effects that do not fit into a [`PathInfo`], see [`StackEffect`].
    effects: Vec<u32>,
    /// How to decode accesses from the data behind paths.
    pub descriptors: DescriptorTable,
}

/// What counting and predicting need of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathInfo {
    /// Counts, and in the two top bits of its 24-bit field the kind of `link`.
    packed: u64,
    fragment: u32,
    link: u32,
}

impl Sentinel for PathInfo {
    const NONE: Self = Self { packed: 0, fragment: 0, link: 0 };

    #[inline]
    fn is_none(&self) -> bool {
        self.packed == 0
    }
}

const KIND: u64 = 3 << 22;
const KIND_RETURNS: u64 = 1 << 22;
const KIND_CALLS: u64 = 2 << 22;

impl PathInfo {
    #[inline]
    pub(crate) fn counts(&self) -> PackedCounts {
        PackedCounts(self.packed & !KIND)
    }
}

/// A path in the tables.
#[derive(Clone, Copy, Debug)]
struct PathEntry {
    last: Step,
    /// Position and number of the steps before the last.
    steps_at: u32,
    fragment: u32,
    count: u16,
}

/// Counts of a path in one word: instructions in 24 bits (two of which are never used), steps in 8,
/// then 8 bits each of conditional taken, not taken, direct, indirect. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedCounts(pub u64);

/// The steps of a path: those to its last block, and the last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSteps<'a> {
    pub steps: &'a [Step],
    pub last: Step,
}

impl Program {
    pub(crate) fn without_code() -> Self {
        Self { blocks: Blocks::without_code(), ..Self::default() }
    }

    /// Returns what counting and predicting need of a path.
    #[inline]
    pub(crate) fn info(&self, path: u32) -> Option<PathInfo> {
        self.infos.get(path)
    }

    /// Returns the counts of a path.
    #[inline]
    pub(crate) fn counts(&self, path: u32) -> Option<PackedCounts> {
        self.infos.find(path).map(PathInfo::counts)
    }

    fn stored_effect(&self, at: u32) -> Option<StackEffect<'_>> {
        let (&[header, target], rest) = self.effects.get(at as usize..)?.split_first_chunk::<2>()?;
        let pushes = rest.get(..(header >> 16) as usize)?;
        Some(StackEffect::Calls { pops: header & 0xff, returns: header & 0x100 != 0, target, pushes })
    }

    #[inline]
    fn exit(&self, path: u32) -> Option<&PathEntry> {
        self.paths.get(self.path_of.get(path)? as usize)
    }

    pub(crate) fn fragment_of(&self, path: u32) -> Option<&FragmentInfo> {
        self.fragments.get(self.exit(path)?.fragment as usize)
    }

    /// Returns the newest fragment with its head at `target` that was defined before chunk
    /// `sequence`.
    fn fragment_at(&self, image: u32, target: LowPc, sequence: u32) -> Option<&FragmentInfo> {
        if target == 0 {
            return None;
        }
        let mut fragment = self.fragments.get(*self.by_head.get(&(image, target))? as usize)?;
        while fragment.sequence >= sequence {
            fragment = self.fragments.get(fragment.older as usize)?;
        }
        Some(fragment)
    }

    /// Returns the steps of a path.
    #[inline]
    pub(crate) fn path(&self, path: u32) -> Option<PathSteps<'_>> {
        let exit = self.exit(path)?;
        let at = exit.steps_at as usize;
        Some(PathSteps { steps: self.steps.get(at..at + usize::from(exit.count))?, last: exit.last })
    }

    /// Returns the address that a path leads to, if its terminator is direct.
    pub(crate) fn target(&self, path: u32) -> Option<u64> {
        self.exit(path).map(|exit| exit.last.next()).filter(|&next| next != 0)
    }

    /// Returns the address of the first block of a path.
    pub(crate) fn head(&self, path: u32) -> Option<u64> {
        self.fragment_of(path).map(|fragment| fragment.head)
    }

    /// Returns the steps that were executed of the fragment with this first path when a signal
    /// came: its first `blocks` blocks and the next one up to `pc`. `None` if that is impossible.
    pub(crate) fn interrupted(&self, first_path: u32, blocks: u32, pc: u64) -> Option<(&[Step], Option<Step>)> {
        let fragment = self.fragment_of(first_path).filter(|fragment| fragment.first_path == first_path)?;
        let steps = self.steps_of(fragment);
        let (whole, rest) = steps.split_at_checked(usize::try_from(blocks).ok()?)?;
        let index = rest.first()?.block().0;
        let node = self.blocks.node(index)?;
        let count = self.blocks.instructions_before(node, pc)?;
        Some((whole, (count > 0).then(|| Step::new(index, count, Terminator::Interrupted, pc))))
    }

    /// Returns all fragments in the order of their definition.
    pub(crate) fn fragments(&self) -> &[FragmentInfo] {
        &self.fragments
    }

    /// Returns the steps from each block of a fragment to the next. The last one is a placeholder.
    pub(crate) fn steps_of(&self, fragment: &FragmentInfo) -> &[Step] {
        let at = fragment.steps_at as usize;
        self.steps.get(at..at + usize::from(fragment.block_count)).unwrap_or(&[])
    }

    /// Adds a definition from code chunk `sequence`.
    pub(crate) fn add(&mut self, definition: &Definition<'_>, sequence: u32) -> Result<(), Refusal> {
        match definition {
            &Definition::Block { image, id, address, code } => self.blocks.add(image, id, address, code),
            Definition::Fragment { image, fragment } => self.add_fragment(*image, fragment, sequence),
            Definition::AccessDescriptors(descriptors) => self.add_descriptors(descriptors),
        }
    }

    /// As [`Self::add`], with an error that names the definition.
    pub(crate) fn define(&mut self, definition: &Definition<'_>, sequence: u32) -> Result<(), WriteError> {
        self.add(definition, sequence).map_err(|refusal| write_error(definition, refusal))
    }

    /// Adds a fragment from code chunk `sequence`.
    fn add_fragment(&mut self, image: u32, fragment: &Fragment<'_>, sequence: u32) -> Result<(), Refusal> {
        self.check(fragment)?;
        let number = u32::try_from(self.fragments.len()).map_err(|_| Refusal::Full)?;
        let steps_at = u32::try_from(self.steps.len()).map_err(|_| Refusal::Full)?;
        u32::try_from(self.paths.len() + fragment.exits.len()).map_err(|_| Refusal::Full)?;
        let head = self.add_steps(fragment)?;
        for (path, &exit) in (fragment.first_path..).zip(fragment.exits) {
            self.add_path(path, exit, number, steps_at)?;
        }
        let older = self.by_head.insert((image, low_pc(head)), number).unwrap_or(NONE);
        if let Some(older) = self.fragments.get_mut(older as usize) {
            older.superseded = true;
        }
        self.fragments.push(FragmentInfo {
            first_path: fragment.first_path,
            exit_count: u16::try_from(fragment.exits.len()).unwrap_or(0),
            block_count: u16::try_from(fragment.blocks.len()).unwrap_or(0),
            steps_at,
            sequence,
            older,
            superseded: false,
            image,
            head,
        });
        Ok(())
    }

    /// Adds the access descriptors of a fragment.
    fn add_descriptors(&mut self, descriptors: &AccessDescriptors<'_>) -> Result<(), Refusal> {
        let fragment =
            self.fragment_of(descriptors.first_path).filter(|fragment| fragment.first_path == descriptors.first_path);
        let fragment = *fragment.ok_or(Refusal::UnknownPath)?;
        let exits = (fragment.first_path..).take(usize::from(fragment.exit_count));
        let executed: Vec<ExecutedPath> = exits.filter_map(|path| self.executed(path)).collect();
        let at = fragment.steps_at as usize;
        let steps = self.steps.get(at..at + usize::from(fragment.block_count)).unwrap_or(&[]);
        self.descriptors.add(descriptors, &self.blocks, steps, &executed)
    }

    fn executed(&self, path: u32) -> Option<ExecutedPath> {
        let instructions = u32::try_from(self.counts(path)?.instructions()).ok()?;
        Some(ExecutedPath { blocks: self.exit(path)?.count + 1, instructions })
    }

    /// Refuses a fragment that could not be added as a whole.
    fn check(&self, fragment: &Fragment<'_>) -> Result<(), Refusal> {
        let (blocks, exits) = (fragment.blocks.len(), fragment.exits.len());
        let sizes = 1..=FRAGMENT_BLOCKS_MAX;
        let end = u32::try_from(exits).ok().and_then(|exits| fragment.first_path.checked_add(exits));
        let plausible = sizes.contains(&blocks)
            && sizes.contains(&exits)
            && fragment.first_path > 0
            && end.is_some_and(|end| end <= PATH_MAX + 1)
            && fragment.exits.iter().all(|&exit| is_exit(exit, blocks));
        if !plausible {
            return Err(Refusal::Fragment);
        }
        let unknown = fragment.blocks.iter().find(|&&block| self.blocks.by_id(block & !TAKEN).is_none());
        if let Some(&block) = unknown {
            return Err(Refusal::UnknownBlock(block & !TAKEN));
        }
        let mut paths = (fragment.first_path..).take(exits);
        if paths.any(|path| self.path_of.get(path).is_some()) { Err(Refusal::Twice) } else { Ok(()) }
    }

    /// Appends a step for every block and returns the address of the first.
    fn add_steps(&mut self, fragment: &Fragment<'_>) -> Result<u64, Refusal> {
        let mut head = None;
        let start = self.steps.len();
        for &word in fragment.blocks {
            let (index, node) = self.node(word & !TAKEN)?;
            head.get_or_insert(node.address);
            let step = Step::new(index, node.instructions, inner_terminator(node.transfer, word & TAKEN != 0), 0);
            if let Some(before) = self.steps.get_mut(start..).and_then(<[Step]>::last_mut) {
                *before = before.with_next(node.address);
            }
            self.steps.push(step);
        }
        head.ok_or(Refusal::Fragment)
    }

    fn node(&self, id: u32) -> Result<(u32, Node), Refusal> {
        let index = self.blocks.by_id(id).ok_or(Refusal::UnknownBlock(id))?;
        Ok((index, *self.blocks.node(index).ok_or(Refusal::UnknownBlock(id))?))
    }

    fn add_path(&mut self, path: u32, exit: u32, fragment: u32, steps_at: u32) -> Result<(), Refusal> {
        let count = u16::try_from((exit & 0xffff) - 1).map_err(|_| Refusal::Fragment)?;
        let at = steps_at as usize;
        let place = at + usize::from(count);
        let block = self.steps.get(place).ok_or(Refusal::Fragment)?.block().0;
        let node = *self.blocks.node(block).ok_or(Refusal::Fragment)?;
        let (leave, next) = outer_terminator(&node, exit >> 16);
        let last = Step::new(block, node.instructions, leave, next);
        let steps = self.steps.get(at..place).unwrap_or(&[]);
        let PackedCounts(packed) = PackedCounts::of(steps.iter().chain([&last]));
        let (kind, link) = link(&self.blocks, steps, &last, &mut self.effects).ok_or(Refusal::Full)?;
        self.infos.insert(path, PathInfo { packed: packed | kind, fragment, link });
        self.path_of.insert(path, u32::try_from(self.paths.len()).map_err(|_| Refusal::Full)?);
        self.paths.push(PathEntry { last, steps_at, fragment, count });
        Ok(())
    }
}

impl PathModel for Program {
    type Path = PathInfo;

    #[inline]
    fn path_info(&self, word: u32) -> Option<PathInfo> {
        self.info(word)
    }

    #[inline]
    fn stack_effect(&self, info: &PathInfo) -> StackEffect<'_> {
        match info.packed & KIND {
            0 => StackEffect::Jumps(info.link),
            KIND_RETURNS => StackEffect::Returns,
            _ => self.stored_effect(info.link).unwrap_or(StackEffect::Jumps(0)),
        }
    }

    fn expected_exit(&self, image: u32, target: LowPc, info: &PathInfo, path: u32) -> Option<u8> {
        let fragment = self.fragments.get(info.fragment as usize)?;
        if fragment.superseded || fragment.image != image || low_pc(fragment.head) != target || target == 0 {
            return None;
        }
        u8::try_from(u32::from(fragment.exit_count) - 1 - (path - fragment.first_path)).ok()
    }

    fn exits_at(&self, image: u32, target: LowPc, sequence: u32) -> Option<FragmentExits> {
        let fragment = self.fragment_at(image, target, sequence)?;
        Some(FragmentExits { first_path: fragment.first_path, count: fragment.exit_count })
    }
}

/// Returns kind and link of the path through `steps` and `last`. Appends to `effects` what does not
/// fit into them.
fn link(blocks: &Blocks, steps: &[Step], last: &Step, effects: &mut Vec<u32>) -> Option<(u64, u32)> {
    let mut pushes: Vec<LowPc> = Vec::new();
    let (mut pops, mut popped) = (0u32, None);
    for step in steps.iter().chain([last]) {
        let node = blocks.node(step.block().0)?;
        match node.transfer {
            Transfer::Call { .. } | Transfer::IndirectCall => pushes.push(low_pc(node.end)),
            Transfer::Return => {
                popped = pushes.pop();
                pops += u32::from(popped.is_none());
            }
            _ => {}
        }
    }
    let returns = blocks.node(last.block().0)?.transfer == Transfer::Return;
    let goes_to = if returns { popped.unwrap_or(0) } else { low_pc(last.next()) };
    let from_outside = returns && popped.is_none();
    match (pops, from_outside, pushes.is_empty()) {
        (0, _, true) => Some((0, goes_to)),
        (1, true, true) => Some((KIND_RETURNS, 0)),
        _ => {
            let at = u32::try_from(effects.len()).ok()?;
            let count = u32::try_from(pushes.len()).ok()?;
            effects.extend([pops | u32::from(from_outside) << 8 | count << 16, goes_to]);
            effects.extend(pushes);
            Some((KIND_CALLS, at))
        }
    }
}

fn write_error(definition: &Definition<'_>, refusal: Refusal) -> WriteError {
    match (definition, refusal) {
        (_, Refusal::Full) => WriteError::Full,
        (&Definition::Block { id, .. }, Refusal::Twice) => WriteError::BlockTwice { id },
        (&Definition::Block { id, address, code, .. }, _) => WriteError::Block { id, address, length: code.len() },
        (Definition::Fragment { fragment: Fragment { first_path, .. }, .. }, Refusal::UnknownBlock(block)) => {
            WriteError::UnknownBlock { first_path: *first_path, block }
        }
        (
            &Definition::Fragment { fragment: Fragment { first_path, .. }, .. }
            | &Definition::AccessDescriptors(AccessDescriptors { first_path, .. }),
            Refusal::Twice,
        ) => WriteError::PathTwice { first_path },
        (Definition::Fragment { fragment, .. }, _) => WriteError::Fragment { first_path: fragment.first_path },
        (Definition::AccessDescriptors(descriptors), _) => {
            WriteError::AccessDescriptors { first_path: descriptors.first_path }
        }
    }
}

fn is_exit(exit: u32, blocks: usize) -> bool {
    let executed = (exit & 0xffff) as usize;
    (1..=blocks).contains(&executed) && exit >> 16 <= TERMINATOR_SYSCALL
}

/// Returns the terminator of a block that is followed by the next one of its fragment.
fn inner_terminator(transfer: Transfer, taken: bool) -> Terminator {
    match transfer {
        Transfer::Conditional { .. } if taken => Terminator::Taken,
        Transfer::Conditional { .. } => Terminator::NotTaken,
        Transfer::Jump { .. } | Transfer::Call { .. } => Terminator::Direct,
        Transfer::IndirectJump | Transfer::IndirectCall | Transfer::Return => Terminator::Indirect,
        Transfer::Syscall => Terminator::Syscall,
        Transfer::Next | Transfer::Trap => Terminator::Next,
    }
}

/// Returns the terminator of a block at the exit `way` of its fragment, and the target; 0 if that
/// is indirect.
fn outer_terminator(node: &Node, way: u32) -> (Terminator, u64) {
    let target = match node.transfer {
        Transfer::Conditional { target } | Transfer::Jump { target } | Transfer::Call { target } => target,
        _ => node.end,
    };
    match (way, node.transfer) {
        (TERMINATOR_NOT_TAKEN, _) => (Terminator::NotTaken, node.end),
        (TERMINATOR_TAKEN, _) => (Terminator::Taken, target),
        (TERMINATOR_DIRECT, Transfer::Jump { .. } | Transfer::Call { .. }) => (Terminator::Direct, target),
        (TERMINATOR_INDIRECT, _) => (Terminator::Indirect, 0),
        (TERMINATOR_SYSCALL, _) => (Terminator::Syscall, node.end),
        _ => (Terminator::Next, node.end),
    }
}

impl PackedCounts {
    fn of<'a>(steps: impl Iterator<Item = &'a Step>) -> Self {
        Self(steps.fold(0, |packed, step| {
            let branch = match step.terminator() {
                Terminator::Taken => 1 << 32,
                Terminator::NotTaken => 1 << 40,
                Terminator::Direct => 1 << 48,
                Terminator::Indirect => 1 << 56,
                Terminator::Syscall | Terminator::Next | Terminator::Interrupted => 0,
            };
            packed + u64::from(step.instructions()) + (1 << 24) + branch
        }))
    }

    #[inline]
    pub(crate) fn instructions(self) -> u64 {
        self.0 & 0xff_ffff
    }

    #[inline]
    pub(crate) fn steps(self) -> usize {
        usize::from(self.0.to_le_bytes()[3])
    }

    /// Whether there is an indirect jump or call, or a return.
    #[inline]
    pub(crate) fn has_indirect(self) -> bool {
        self.0 >> 56 != 0
    }
}

/// A sum of at most [`SumLanes::ROOM`] [`PackedCounts`], in lanes that are wide enough for it.
#[derive(Clone, Copy, Debug, Default)]
struct SumLanes {
    even: u64,
    odd: u64,
    instructions: u64,
    count: u32,
}

impl SumLanes {
    /// Additions of 8 bits that a lane of 16 bits has room for.
    const ROOM: u32 = 256;

    #[inline]
    fn add(&mut self, PackedCounts(packed): PackedCounts) {
        const EVEN: u64 = 0x00ff_00ff_0000_0000;
        self.instructions += packed & 0xff_ffff;
        self.even += (packed & EVEN) >> 32;
        // Steps lie at bit 24, not taken at 40, indirect at 56.
        self.odd += packed >> 24 & 0x0000_00ff_00ff_00ff;
        self.count += 1;
    }
}

/// A sum of any number of [`PackedCounts`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountSum {
    counts: Counts,
    lanes: SumLanes,
}

impl CountSum {
    #[inline]
    pub(crate) fn add(&mut self, packed: PackedCounts) {
        self.lanes.add(packed);
        if self.lanes.count == SumLanes::ROOM {
            self.flush(1);
        }
    }

    /// Adds all, and returns how many there were.
    #[inline]
    pub(crate) fn add_all(&mut self, packed: impl IntoIterator<Item = PackedCounts>) -> usize {
        let (mut packed, mut count) = (packed.into_iter(), 0);
        loop {
            // In registers: in memory, each addition would wait for the one before.
            let mut lanes = self.lanes;
            while lanes.count < SumLanes::ROOM {
                let Some(packed) = packed.next() else {
                    self.lanes = lanes;
                    return count;
                };
                lanes.add(packed);
                count += 1;
            }
            self.lanes = lanes;
            self.flush(1);
        }
    }

    pub(crate) fn add_times(&mut self, packed: PackedCounts, times: u64) {
        self.flush(1);
        self.add(packed);
        self.flush(times);
    }

    fn flush(&mut self, times: u64) {
        let lane = |lanes: u64, place: u32| (lanes >> place & 0xffff) * times;
        let SumLanes { even, odd, instructions, .. } = std::mem::take(&mut self.lanes);
        self.counts.instructions += instructions * times;
        self.counts.steps += lane(odd, 0);
        self.counts.conditional_taken += lane(even, 0);
        self.counts.conditional_not_taken += lane(odd, 16);
        self.counts.unconditional_direct += lane(even, 16);
        self.counts.unconditional_indirect += lane(odd, 32);
    }

    pub(crate) fn finish(&mut self) -> Counts {
        self.flush(1);
        self.counts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn program() -> Program {
        let mut program = Program::default();
        // nop; jz +0x10 — jmp +0 — ret — syscall
        program.blocks.add(0, 1, 0x1000, &[0x90, 0x74, 0x10]).unwrap();
        program.blocks.add(0, 2, 0x1003, &[0xeb, 0x00]).unwrap();
        program.blocks.add(0, 3, 0x1005, &[0xc3]).unwrap();
        program.blocks.add(0, 4, 0x1013, &[0x90, 0x0f, 0x05]).unwrap();
        program
    }

    #[test]
    fn paths_have_steps_and_counts() {
        let mut program = program();
        let exits = [1 | TERMINATOR_TAKEN << 16, 3 | TERMINATOR_INDIRECT << 16];
        program.add_fragment(0, &Fragment { first_path: 1, blocks: &[1, 2, 3], exits: &exits }, 5).unwrap();
        program
            .add_fragment(
                0,
                &Fragment { first_path: 3, blocks: &[1 | TAKEN, 4], exits: &[2 | TERMINATOR_SYSCALL << 16] },
                6,
            )
            .unwrap();
        let path = program.path(1).unwrap();
        assert_eq!((path.steps, path.last), (&[][..], Step::new(0, 2, Terminator::Taken, 0x1013)));
        let path = program.path(2).unwrap();
        assert_eq!(
            path.steps,
            [Step::new(0, 2, Terminator::NotTaken, 0x1003), Step::new(1, 1, Terminator::Direct, 0x1005)]
        );
        assert_eq!(path.last, Step::new(2, 1, Terminator::Indirect, 0));
        assert_eq!((program.target(1), program.target(2)), (Some(0x1013), None));
        let path = program.path(3).unwrap();
        assert_eq!(path.steps, [Step::new(0, 2, Terminator::Taken, 0x1013)]);
        assert_eq!(path.last, Step::new(3, 2, Terminator::Syscall, 0x1016));
        assert!(program.path(0).is_none() && program.path(4).is_none());

        let heads = [5, 6, 7]
            .map(|sequence| program.fragment_at(0, low_pc(0x1000), sequence).map(|fragment| fragment.first_path));
        assert_eq!(heads, [None, Some(1), Some(3)]);

        let mut sum = CountSum::default();
        sum.add_times(program.counts(2).unwrap(), 1000);
        sum.add(program.counts(1).unwrap());
        (0..500).for_each(|_| sum.add(program.counts(2).unwrap()));
        assert_eq!(sum.add_all((0..500).map(|_| program.counts(2).unwrap())), 500);
        let counts = sum.finish();
        assert_eq!((counts.instructions, counts.steps), (4 * 2000 + 2, 3 * 2000 + 1));
        assert_eq!((counts.conditional_taken, counts.conditional_not_taken), (1, 2000));
        assert_eq!((counts.unconditional_direct, counts.unconditional_indirect), (2000, 2000));
    }

    #[test]
    fn an_interrupted_fragment_ends_at_its_instruction() {
        let mut program = program();
        let exits = [3 | TERMINATOR_INDIRECT << 16];
        program.add_fragment(0, &Fragment { first_path: 1, blocks: &[1, 2, 3], exits: &exits }, 0).unwrap();
        let (whole, part) = program.interrupted(1, 0, 0x1001).unwrap();
        assert_eq!((whole.len(), part), (0, Some(Step::new(0, 1, Terminator::Interrupted, 0x1001))));
        let (whole, part) = program.interrupted(1, 2, 0x1005).unwrap();
        assert_eq!((whole.len(), part), (2, None));
        assert!(program.interrupted(1, 0, 0x1002).is_none());
        assert!(program.interrupted(1, 3, 0x1005).is_none());
        assert!(program.interrupted(2, 0, 0x1000).is_none());
    }

    #[test]
    fn calls_and_returns_have_an_effect() {
        let mut program = Program::default();
        // call 0x2000 — ret — ret at the callee — jmp to itself
        program.blocks.add(0, 1, 0x1000, &[0xe8, 0xfb, 0x0f, 0, 0]).unwrap();
        program.blocks.add(0, 2, 0x1005, &[0xc3]).unwrap();
        program.blocks.add(0, 3, 0x2000, &[0xc3]).unwrap();
        program.blocks.add(0, 4, 0x3000, &[0xeb, 0xfe]).unwrap();
        let exits = [1 | TERMINATOR_DIRECT << 16, 2 | TERMINATOR_INDIRECT << 16, 3 | TERMINATOR_INDIRECT << 16];
        program.add_fragment(0, &Fragment { first_path: 1, blocks: &[1, 3, 2], exits: &exits }, 0).unwrap();
        let exits = [1 | TERMINATOR_DIRECT << 16];
        program.add_fragment(0, &Fragment { first_path: 4, blocks: &[4], exits: &exits }, 0).unwrap();
        let effect = |path| program.stack_effect(&program.info(path).unwrap());
        assert_eq!(effect(1), StackEffect::Calls { pops: 0, returns: false, target: 0x2000, pushes: &[0x1005] });
        assert_eq!(effect(2), StackEffect::Jumps(0x1005));
        assert_eq!(effect(3), StackEffect::Returns);
        assert_eq!(effect(4), StackEffect::Jumps(0x3000));
        let expected = |target, path| program.expected_exit(0, target, &program.info(path).unwrap(), path);
        assert_eq!([expected(0x1000, 1), expected(0x1000, 3), expected(0x3000, 4)], [Some(2), Some(0), Some(0)]);
        assert_eq!([expected(0x1005, 2), expected(0, 2)], [None, None]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut program = program();
        let mut add = |first_path, blocks: &[u32], exits: &[u32]| {
            program.add_fragment(0, &Fragment { first_path, blocks, exits }, 0)
        };
        let exit = 1 | TERMINATOR_TAKEN << 16;
        assert_eq!(add(0, &[1], &[exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[], &[exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[2]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[0]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[1 | 5 << 16]), Err(Refusal::Fragment));
        assert_eq!(add(PATH_MAX, &[1], &[exit, exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[9], &[exit]), Err(Refusal::UnknownBlock(9)));
        assert_eq!(add(7, &[1], &[exit, exit]), Ok(()));
        assert_eq!(add(6, &[1], &[exit, exit]), Err(Refusal::Twice));
    }
}
