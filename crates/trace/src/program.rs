//! The static side of a recording: blocks, fragments, and the paths through each fragment.
//!
//! Writer and reader build the same tables from the same definitions: the writer to count, the
//! reader to return steps, and both for the predicting codec, which asks through [`PathModel`]
//! where a path leads.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::{DenseMap, Sentinel};
use codec::predict::{FragmentExits, LowPc, PathModel, StackEffect, low_pc};
use entity::{AppPc, BlockId, FragmentId, PathId};
use hashbrown::HashMap;
use isa::Transfer;
use wire::code::{
    FRAGMENT_BLOCKS_MAX, FragmentExit, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN,
    TERMINATOR_SYSCALL, TERMINATOR_TAKEN,
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
    pub id: FragmentId,
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
    pub head: AppPc,
}

impl FragmentInfo {
    /// Iterates the paths to all exits.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathId> + use<> {
        self.id.paths().take(usize::from(self.exit_count))
    }
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
    path_of: DenseMap<PathId, u32>,
    /// What counting and predicting need of every path number, in one place.
    infos: DenseMap<PathId, PathInfo>,
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
    pub(crate) fn info(&self, path: PathId) -> Option<PathInfo> {
        self.infos.get(path)
    }

    /// Returns the counts of a path.
    #[inline]
    pub(crate) fn counts(&self, path: PathId) -> Option<PackedCounts> {
        self.infos.find(path).map(PathInfo::counts)
    }

    fn stored_effect(&self, at: u32) -> Option<StackEffect<'_>> {
        let (&[header, target], rest) = self.effects.get(at as usize..)?.split_first_chunk::<2>()?;
        let pushes = rest.get(..(header >> 16) as usize)?;
        Some(StackEffect::Calls { pops: header & 0xff, returns: header & 0x100 != 0, target, pushes })
    }

    #[inline]
    fn exit(&self, path: PathId) -> Option<&PathEntry> {
        self.paths.get(self.path_of.get(path)? as usize)
    }

    pub(crate) fn fragment_of(&self, path: PathId) -> Option<&FragmentInfo> {
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
    pub(crate) fn path(&self, path: PathId) -> Option<PathSteps<'_>> {
        let exit = self.exit(path)?;
        let at = exit.steps_at as usize;
        Some(PathSteps { steps: self.steps.get(at..at + usize::from(exit.count))?, last: exit.last })
    }

    /// Returns the address that a path leads to, if its terminator is direct.
    pub(crate) fn target(&self, path: PathId) -> Option<AppPc> {
        self.exit(path).map(|exit| exit.last.next()).filter(|next| !next.is_none())
    }

    /// Returns the address of the first block of a path.
    pub(crate) fn head(&self, path: PathId) -> Option<AppPc> {
        self.fragment_of(path).map(|fragment| fragment.head)
    }

    /// Returns the fragment with this number.
    fn fragment(&self, id: FragmentId) -> Option<&FragmentInfo> {
        self.fragment_of(id.first_path()).filter(|fragment| fragment.id == id)
    }

    /// Returns the steps that were executed of a fragment when a signal came: its first `blocks`
    /// blocks and the next one up to `pc`. `None` if that is impossible.
    pub(crate) fn interrupted(&self, id: FragmentId, blocks: u32, pc: AppPc) -> Option<(&[Step], Option<Step>)> {
        let fragment = self.fragment(id)?;
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
        for (path, &exit) in fragment.fragment.paths().zip(fragment.exits) {
            self.add_path(path, exit, number, steps_at)?;
        }
        let older = self.by_head.insert((image, low_pc(head)), number).unwrap_or(NONE);
        if let Some(older) = self.fragments.get_mut(older as usize) {
            older.superseded = true;
        }
        self.fragments.push(FragmentInfo {
            id: fragment.fragment,
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
        let fragment = *self.fragment(descriptors.fragment).ok_or(Refusal::UnknownPath)?;
        let executed: Vec<ExecutedPath> = fragment.paths().filter_map(|path| self.executed(path)).collect();
        let at = fragment.steps_at as usize;
        let steps = self.steps.get(at..at + usize::from(fragment.block_count)).unwrap_or(&[]);
        self.descriptors.add(descriptors, &self.blocks, steps, &executed)
    }

    fn executed(&self, path: PathId) -> Option<ExecutedPath> {
        let instructions = u32::try_from(self.counts(path)?.instructions()).ok()?;
        Some(ExecutedPath { blocks: self.exit(path)?.count + 1, instructions })
    }

    /// Refuses a fragment that could not be added as a whole.
    fn check(&self, fragment: &Fragment<'_>) -> Result<(), Refusal> {
        let (blocks, exits) = (fragment.blocks.len(), fragment.exits.len());
        let sizes = 1..=FRAGMENT_BLOCKS_MAX;
        let first_path = fragment.fragment.first_path().get();
        let end = u32::try_from(exits).ok().and_then(|exits| first_path.checked_add(exits));
        let plausible = sizes.contains(&blocks)
            && sizes.contains(&exits)
            && first_path > 0
            && end.is_some_and(|end| end <= PATH_MAX + 1)
            && fragment.exits.iter().all(|&exit| is_exit(exit, blocks));
        if !plausible {
            return Err(Refusal::Fragment);
        }
        let mut blocks = fragment.blocks.iter().map(|block| block.block());
        if let Some(unknown) = blocks.find(|&block| self.blocks.by_id(block).is_none()) {
            return Err(Refusal::UnknownBlock(unknown));
        }
        let mut paths = fragment.fragment.paths().take(exits);
        if paths.any(|path| self.path_of.get(path).is_some()) { Err(Refusal::Twice) } else { Ok(()) }
    }

    /// Appends a step for every block and returns the address of the first.
    fn add_steps(&mut self, fragment: &Fragment<'_>) -> Result<AppPc, Refusal> {
        let mut head = None;
        let start = self.steps.len();
        for block in fragment.blocks {
            let (index, node) = self.node(block.block())?;
            head.get_or_insert(node.address);
            let terminator = inner_terminator(node.transfer, block.is_taken());
            let step = Step::new(index, node.instructions, terminator, AppPc::NONE);
            if let Some(before) = self.steps.get_mut(start..).and_then(<[Step]>::last_mut) {
                *before = before.with_next(node.address);
            }
            self.steps.push(step);
        }
        head.ok_or(Refusal::Fragment)
    }

    fn node(&self, id: BlockId) -> Result<(u32, Node), Refusal> {
        let index = self.blocks.by_id(id).ok_or(Refusal::UnknownBlock(id))?;
        Ok((index, *self.blocks.node(index).ok_or(Refusal::UnknownBlock(id))?))
    }

    fn add_path(&mut self, path: PathId, exit: FragmentExit, fragment: u32, steps_at: u32) -> Result<(), Refusal> {
        let count = exit.block_count().checked_sub(1).ok_or(Refusal::Fragment)?;
        let at = steps_at as usize;
        let place = at + usize::from(count);
        let block = self.steps.get(place).ok_or(Refusal::Fragment)?.block().0;
        let node = *self.blocks.node(block).ok_or(Refusal::Fragment)?;
        let (terminator, next) = outer_terminator(&node, exit.terminator());
        let last = Step::new(block, node.instructions, terminator, next);
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
    fn path_info(&self, path: PathId) -> Option<PathInfo> {
        self.info(path)
    }

    #[inline]
    fn stack_effect(&self, info: &PathInfo) -> StackEffect<'_> {
        match info.packed & KIND {
            0 => StackEffect::Jumps(info.link),
            KIND_RETURNS => StackEffect::Returns,
            _ => self.stored_effect(info.link).unwrap_or(StackEffect::Jumps(0)),
        }
    }

    fn expected_exit(&self, image: u32, target: LowPc, info: &PathInfo, path: PathId) -> Option<u8> {
        let fragment = self.fragments.get(info.fragment as usize)?;
        if fragment.superseded || fragment.image != image || low_pc(fragment.head) != target || target == 0 {
            return None;
        }
        u8::try_from(u32::from(fragment.exit_count) - 1 - fragment.id.exit_of(path)).ok()
    }

    fn exits_at(&self, image: u32, target: LowPc, sequence: u32) -> Option<FragmentExits> {
        let fragment = self.fragment_at(image, target, sequence)?;
        Some(FragmentExits { fragment: fragment.id, count: fragment.exit_count })
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
        (&Definition::Fragment { fragment: Fragment { fragment, .. }, .. }, Refusal::UnknownBlock(block)) => {
            WriteError::UnknownBlock { fragment, block }
        }
        (
            &Definition::Fragment { fragment: Fragment { fragment, .. }, .. }
            | &Definition::AccessDescriptors(AccessDescriptors { fragment, .. }),
            Refusal::Twice,
        ) => WriteError::PathTwice { path: fragment.first_path() },
        (&Definition::Fragment { fragment: Fragment { fragment, .. }, .. }, _) => WriteError::Fragment { fragment },
        (&Definition::AccessDescriptors(AccessDescriptors { fragment, .. }), _) => {
            WriteError::AccessDescriptors { fragment }
        }
    }
}

fn is_exit(exit: FragmentExit, blocks: usize) -> bool {
    (1..=blocks).contains(&usize::from(exit.block_count())) && exit.terminator() <= TERMINATOR_SYSCALL
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

/// Returns the terminator of a block at an exit with `terminator`, and the target;
/// [`AppPc::NONE`] if that is indirect.
fn outer_terminator(node: &Node, terminator: u32) -> (Terminator, AppPc) {
    let target = match node.transfer {
        Transfer::Conditional { target } | Transfer::Jump { target } | Transfer::Call { target } => target,
        _ => node.end,
    };
    match (terminator, node.transfer) {
        (TERMINATOR_NOT_TAKEN, _) => (Terminator::NotTaken, node.end),
        (TERMINATOR_TAKEN, _) => (Terminator::Taken, target),
        (TERMINATOR_DIRECT, Transfer::Jump { .. } | Transfer::Call { .. }) => (Terminator::Direct, target),
        (TERMINATOR_INDIRECT, _) => (Terminator::Indirect, AppPc::NONE),
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
    use wire::code::{FragmentBlock, TAKEN};

    use super::*;

    fn pc(address: u64) -> AppPc {
        AppPc::new(address)
    }

    fn path(number: u32) -> PathId {
        PathId::new(number)
    }

    fn add_block(program: &mut Program, id: u32, address: u64, code: &[u8]) {
        program.blocks.add(0, BlockId::new(id), pc(address), code).unwrap();
    }

    /// Adds a fragment of these blocks, where the bit `TAKEN` marks taken branches, and of exits
    /// with a number of blocks and a terminator each.
    fn add_fragment(
        program: &mut Program,
        first_path: u32,
        blocks: &[u32],
        exits: &[(u16, u32)],
        sequence: u32,
    ) -> Result<(), Refusal> {
        let blocks: Vec<FragmentBlock> = blocks.iter().map(|&word| FragmentBlock::from_word(word)).collect();
        let exits: Vec<FragmentExit> = exits.iter().map(|&(count, end)| FragmentExit::new(count, end)).collect();
        let fragment = Fragment { fragment: FragmentId::new(path(first_path)), blocks: &blocks, exits: &exits };
        program.add_fragment(0, &fragment, sequence)
    }

    fn program() -> Program {
        let mut program = Program::default();
        // nop; jz +0x10 — jmp +0 — ret — syscall
        add_block(&mut program, 1, 0x1000, &[0x90, 0x74, 0x10]);
        add_block(&mut program, 2, 0x1003, &[0xeb, 0x00]);
        add_block(&mut program, 3, 0x1005, &[0xc3]);
        add_block(&mut program, 4, 0x1013, &[0x90, 0x0f, 0x05]);
        program
    }

    #[test]
    fn paths_have_steps_and_counts() {
        let mut program = program();
        let exits = [(1, TERMINATOR_TAKEN), (3, TERMINATOR_INDIRECT)];
        add_fragment(&mut program, 1, &[1, 2, 3], &exits, 5).unwrap();
        add_fragment(&mut program, 3, &[1 | TAKEN, 4], &[(2, TERMINATOR_SYSCALL)], 6).unwrap();
        let first = program.path(path(1)).unwrap();
        assert_eq!((first.steps, first.last), (&[][..], Step::new(0, 2, Terminator::Taken, pc(0x1013))));
        let second = program.path(path(2)).unwrap();
        assert_eq!(
            second.steps,
            [Step::new(0, 2, Terminator::NotTaken, pc(0x1003)), Step::new(1, 1, Terminator::Direct, pc(0x1005))]
        );
        assert_eq!(second.last, Step::new(2, 1, Terminator::Indirect, AppPc::NONE));
        assert_eq!((program.target(path(1)), program.target(path(2))), (Some(pc(0x1013)), None));
        let third = program.path(path(3)).unwrap();
        assert_eq!(third.steps, [Step::new(0, 2, Terminator::Taken, pc(0x1013))]);
        assert_eq!(third.last, Step::new(3, 2, Terminator::Syscall, pc(0x1016)));
        assert!(program.path(path(0)).is_none() && program.path(path(4)).is_none());

        let at = |sequence| program.fragment_at(0, low_pc(pc(0x1000)), sequence);
        let heads = [5, 6, 7].map(|sequence| at(sequence).map(|fragment| fragment.id.first_path().get()));
        assert_eq!(heads, [None, Some(1), Some(3)]);

        let mut sum = CountSum::default();
        let counts = |number| program.counts(path(number)).unwrap();
        sum.add_times(counts(2), 1000);
        sum.add(counts(1));
        (0..500).for_each(|_| sum.add(counts(2)));
        assert_eq!(sum.add_all((0..500).map(|_| counts(2))), 500);
        let counts = sum.finish();
        assert_eq!((counts.instructions, counts.steps), (4 * 2000 + 2, 3 * 2000 + 1));
        assert_eq!((counts.conditional_taken, counts.conditional_not_taken), (1, 2000));
        assert_eq!((counts.unconditional_direct, counts.unconditional_indirect), (2000, 2000));
    }

    #[test]
    fn an_interrupted_fragment_ends_at_its_instruction() {
        let mut program = program();
        add_fragment(&mut program, 1, &[1, 2, 3], &[(3, TERMINATOR_INDIRECT)], 0).unwrap();
        let interrupted =
            |first_path, blocks, at| program.interrupted(FragmentId::new(path(first_path)), blocks, pc(at));
        let (whole, part) = interrupted(1, 0, 0x1001).unwrap();
        assert_eq!((whole.len(), part), (0, Some(Step::new(0, 1, Terminator::Interrupted, pc(0x1001)))));
        let (whole, part) = interrupted(1, 2, 0x1005).unwrap();
        assert_eq!((whole.len(), part), (2, None));
        assert!(interrupted(1, 0, 0x1002).is_none());
        assert!(interrupted(1, 3, 0x1005).is_none());
        assert!(interrupted(2, 0, 0x1000).is_none());
    }

    #[test]
    fn calls_and_returns_have_an_effect() {
        let mut program = Program::default();
        // call 0x2000 — ret — ret at the callee — jmp to itself
        add_block(&mut program, 1, 0x1000, &[0xe8, 0xfb, 0x0f, 0, 0]);
        add_block(&mut program, 2, 0x1005, &[0xc3]);
        add_block(&mut program, 3, 0x2000, &[0xc3]);
        add_block(&mut program, 4, 0x3000, &[0xeb, 0xfe]);
        let exits = [(1, TERMINATOR_DIRECT), (2, TERMINATOR_INDIRECT), (3, TERMINATOR_INDIRECT)];
        add_fragment(&mut program, 1, &[1, 3, 2], &exits, 0).unwrap();
        add_fragment(&mut program, 4, &[4], &[(1, TERMINATOR_DIRECT)], 0).unwrap();
        let info = |number| program.info(path(number)).unwrap();
        let effect = |number| program.stack_effect(&info(number));
        assert_eq!(effect(1), StackEffect::Calls { pops: 0, returns: false, target: 0x2000, pushes: &[0x1005] });
        assert_eq!(effect(2), StackEffect::Jumps(0x1005));
        assert_eq!(effect(3), StackEffect::Returns);
        assert_eq!(effect(4), StackEffect::Jumps(0x3000));
        let expected = |target, number| program.expected_exit(0, target, &info(number), path(number));
        assert_eq!([expected(0x1000, 1), expected(0x1000, 3), expected(0x3000, 4)], [Some(2), Some(0), Some(0)]);
        assert_eq!([expected(0x1005, 2), expected(0, 2)], [None, None]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut program = program();
        let mut add =
            |first_path, blocks: &[u32], exits: &[(u16, u32)]| add_fragment(&mut program, first_path, blocks, exits, 0);
        let exit = (1, TERMINATOR_TAKEN);
        assert_eq!(add(0, &[1], &[exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[], &[exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[(2, TERMINATOR_TAKEN)]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[(0, TERMINATOR_TAKEN)]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[1], &[(1, 5)]), Err(Refusal::Fragment));
        assert_eq!(add(PATH_MAX, &[1], &[exit, exit]), Err(Refusal::Fragment));
        assert_eq!(add(1, &[9], &[exit]), Err(Refusal::UnknownBlock(BlockId::new(9))));
        assert_eq!(add(7, &[1], &[exit, exit]), Ok(()));
        assert_eq!(add(6, &[1], &[exit, exit]), Err(Refusal::Twice));
    }
}
