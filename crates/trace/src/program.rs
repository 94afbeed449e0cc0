//! The static side of a recording: blocks, fragments, and the paths through each fragment.
//!
//! Writer and reader build the same tables from the same definitions: the writer to count, the
//! reader to return steps, and both for the predicting codec, which asks through `PathModel` where
//! a path leads.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod counts;
mod define;
mod prediction;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use codec::dense_map::DenseMap;
use codec::predict::LowPc;
use entity::{AppPc, FragmentId, PathId};
use hashbrown::HashMap;

use crate::block::Blocks;
use crate::descriptors::DescriptorTable;
use crate::model::{Step, Terminator};

pub(crate) use counts::{CountSum, PackedCounts};
pub(crate) use prediction::PathInfo;

/// A fragment in the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentInfo {
    pub id: FragmentId,
    pub exit_count: u16,
    block_count: u16,
    steps_at: u32,
    /// Sequence number of the code chunk that defines it.
    pub sequence: u32,
    /// The fragment with the same head that was defined before, in an earlier chunk.
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

/// A path in the tables.
#[derive(Clone, Copy, Debug)]
struct PathEntry {
    last: Step,
    /// Position and number of the steps before the last.
    steps_at: u32,
    fragment: u32,
    count: u16,
}

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
}
