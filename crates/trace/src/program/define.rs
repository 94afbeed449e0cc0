//! Adding definitions to a program: each is checked, and its blocks become steps and paths.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::predict::low_pc;
use entity::{AppPc, BlockId, PathId};
use isa::Transfer;
use wire::code::{
    FRAGMENT_BLOCKS_MAX, FragmentExit, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN,
    TERMINATOR_SYSCALL, TERMINATOR_TAKEN,
};
use wire::word::PATH_MAX;

use super::prediction::{PathInfo, link};
use super::{FragmentInfo, PackedCounts, PathEntry, Program};
use crate::block::{NONE, Node, Refusal};
use crate::definition::Definition;
use crate::descriptors::ExecutedPath;
use crate::error::WriteError;
use crate::model::{AccessDescriptors, Fragment, Step, Terminator};

impl Program {
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
    pub(super) fn add_fragment(&mut self, image: u32, fragment: &Fragment<'_>, sequence: u32) -> Result<(), Refusal> {
        self.check(fragment)?;
        let number = u32::try_from(self.fragments.len()).map_err(|_| Refusal::Full)?;
        let steps_at = u32::try_from(self.steps.len()).map_err(|_| Refusal::Full)?;
        u32::try_from(self.paths.len() + fragment.exits.len()).map_err(|_| Refusal::Full)?;
        let head = self.add_steps(fragment)?;
        for (path, &exit) in fragment.fragment.paths().zip(fragment.exits) {
            self.add_path(path, exit, number, steps_at)?;
        }
        let mut older = self.by_head.insert((image, low_pc(head)), number).unwrap_or(NONE);
        if let Some(same_head) = self.fragments.get_mut(older as usize) {
            same_head.superseded = true;
            if same_head.sequence == sequence {
                // All fragments of a chunk are equally new, so a lookup needs the newest one only.
                older = same_head.older;
            }
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
