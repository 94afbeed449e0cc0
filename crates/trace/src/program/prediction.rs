//! What the predicting codec asks of a program: where each path leads, what it does to the call
//! stack, and which fragment comes next.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::Sentinel;
use codec::predict::{FragmentExits, LowPc, PathModel, StackEffect, low_pc};
use entity::PathId;
use isa::Transfer;

use super::{PackedCounts, Program};
use crate::block::Blocks;
use crate::model::Step;

/// What counting and predicting need of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathInfo {
    /// Counts, and in the two top bits of its 24-bit field the kind of `link`.
    pub(super) packed: u64,
    pub(super) fragment: u32,
    pub(super) link: u32,
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

impl Program {
    fn stored_effect(&self, at: u32) -> Option<StackEffect<'_>> {
        let (&[header, target], rest) = self.effects.get(at as usize..)?.split_first_chunk::<2>()?;
        let pushes = rest.get(..(header >> 16) as usize)?;
        Some(StackEffect::Calls { pops: header & 0xff, returns: header & 0x100 != 0, target, pushes })
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
pub(super) fn link(blocks: &Blocks, steps: &[Step], last: &Step, effects: &mut Vec<u32>) -> Option<(u64, u32)> {
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
