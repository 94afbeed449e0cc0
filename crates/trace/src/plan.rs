//! How memory accesses are made of the data behind paths: the plans of fragments, checked once and brought into a form that
//! is quick to follow.
//!
//! A plan belongs to a fragment. The data behind a path is a string of slots, registers and values, that grows block by
//! block; the accesses of the blocks that the path has executed refer to slots in it. See `wire::code::PLAN`.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::RECORD_BYTES_MAX;
use wire::code::{self, Access, CONSTANT, HAS_BASE, HAS_FS, HAS_INDEX, IS_SHORT, NO_VALUE, WRITES};

use crate::block::{Blocks, Refused};
use crate::model::{Plan, Step};
use crate::numbers::{Absent, Numbers};

/// Elements of a vector at most.
pub(crate) const ELEMENTS_MAX: u8 = 64;

/// All plans of a recording.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    ways: Numbers<Way>,
    plans: Vec<Node>,
    accesses: Vec<Compiled>,
    /// Of every plan, for each block, the end of its accesses in `accesses`.
    ends: Vec<u32>,
}

/// What a path's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub plan: u32,
    /// Bytes of data.
    pub length: u32,
    /// Accesses that happen in any case.
    pub reads: u16,
    pub writes: u16,
    /// Blocks executed.
    pub blocks: u16,
    /// How many accesses there are depends on the data.
    pub varies: bool,
}

impl Absent for Way {
    const ABSENT: Self = Self { plan: u32::MAX, length: 0, reads: 0, writes: 0, blocks: 0, varies: false };
}

#[derive(Clone, Copy, Debug)]
struct Node {
    ends_at: u32,
    accesses_at: u32,
    block_count: u16,
}

/// How the address and number of accesses are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A register plus a constant.
    Based,
    /// A constant.
    Absolute,
    /// One access with a more complicated address.
    Plain,
    Bit,
    String,
    Masked,
    Packed,
    Indexed,
    Any,
}

/// An access of a plan, ready for use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiled {
    pub pc: u64,
    pub displacement: u64,
    pub constant: u64,
    pub base: u16,
    pub index: u16,
    pub value: u16,
    pub mask: u16,
    pub size: u16,
    pub form: Form,
    pub flags: u8,
    pub count: u8,
    pub mask_kind: u8,
    pub index_bytes: u8,
}

impl Plans {
    /// What the data behind the path is; `None` if nobody said, which means that there is none.
    #[inline]
    pub(crate) fn way(&self, path: u32) -> Option<Way> {
        self.ways.get(path)
    }

    /// The accesses of the first `blocks` blocks of a plan, block by block.
    #[inline]
    pub(crate) fn blocks(&self, plan: u32, blocks: u16) -> impl Iterator<Item = &[Compiled]> {
        let node = self.plans.get(plan as usize).copied();
        let ends_at = node.map_or(0, |node| node.ends_at as usize);
        let blocks = node.map_or(0, |node| node.block_count.min(blocks));
        let ends = self.ends.get(ends_at..ends_at + usize::from(blocks)).unwrap_or(&[]);
        let mut start = node.map_or(0, |node| node.accesses_at as usize);
        ends.iter().map(move |&end| {
            let accesses = self.accesses.get(start..end as usize).unwrap_or(&[]);
            start = end as usize;
            accesses
        })
    }

    /// Enters the plan of a fragment with these blocks, whose exits have executed so many of them.
    pub(crate) fn add(
        &mut self,
        plan: &Plan<'_>,
        blocks: &Blocks,
        steps: &[Step],
        executed: &[u16],
    ) -> Result<(), Refused> {
        check(plan, blocks, steps, executed)?;
        if (plan.first_path..).zip(plan.lengths).any(|(path, _)| self.ways.get(path).is_some()) {
            return Err(Refused::Twice);
        }
        let number = u32::try_from(self.plans.len()).map_err(|_| Refused::Full)?;
        let ends_at = u32::try_from(self.ends.len()).map_err(|_| Refused::Full)?;
        let accesses_at = u32::try_from(self.accesses.len()).map_err(|_| Refused::Full)?;
        u32::try_from(self.accesses.len() + plan.accesses.len()).map_err(|_| Refused::Full)?;
        let mut rest = plan.accesses;
        for (place, step) in steps.iter().enumerate() {
            let address = blocks.node(step.block().0).map_or(0, |node| node.address);
            let here = rest.iter().take_while(|access| usize::from(access.block) == place).count();
            let (own, others) = rest.split_at_checked(here).unwrap_or((rest, &[]));
            self.accesses.extend(own.iter().map(|access| Compiled::new(access, address)));
            self.ends.push(u32::try_from(self.accesses.len()).unwrap_or(u32::MAX));
            rest = others;
        }
        self.plans.push(Node { ends_at, block_count: u16::try_from(steps.len()).unwrap_or(0), accesses_at });
        for ((path, &length), &blocks) in (plan.first_path..).zip(plan.lengths).zip(executed) {
            let happen = plan.accesses.iter().take_while(|access| access.block < blocks);
            let count = |writes: bool| {
                let sure = |access: &&Access| happens_once(access) && (access.flags & WRITES != 0) == writes;
                u16::try_from(happen.clone().filter(sure).count()).unwrap_or(u16::MAX)
            };
            let varies = happen.clone().any(|access| !happens_once(access));
            let way = Way { plan: number, length, reads: count(false), writes: count(true), blocks, varies };
            self.ways.insert(path, way);
        }
        Ok(())
    }
}

fn happens_once(access: &Access) -> bool {
    matches!(access.kind, code::PLAIN | code::BIT)
}

/// Refuses a plan that does not fit its fragment.
fn check(plan: &Plan<'_>, blocks: &Blocks, steps: &[Step], executed: &[u16]) -> Result<(), Refused> {
    let lengths = plan.lengths.iter().all(|&length| length.is_multiple_of(4) && length as usize <= RECORD_BYTES_MAX);
    let in_order = plan.accesses.is_sorted_by_key(|access| (access.block, access.offset));
    if plan.lengths.len() != executed.len() || !lengths || !in_order || plan.accesses.len() > usize::from(u16::MAX) {
        return Err(Refused::Plan);
    }
    for access in plan.accesses {
        let node = steps.get(usize::from(access.block)).and_then(|step| blocks.node(step.block().0));
        let node = node.ok_or(Refused::Plan)?;
        let pc = node.address.wrapping_add(u64::from(access.offset));
        let is_instruction = blocks.instructions_before(node, pc).is_some_and(|before| before < node.instructions);
        if !is_instruction || !is_sound(access) {
            return Err(Refused::Plan);
        }
    }
    for (&length, &blocks) in plan.lengths.iter().zip(executed) {
        let happen = plan.accesses.iter().take_while(|access| access.block < blocks);
        if happen.clone().any(|access| slots(access).any(|(at, bytes)| at + bytes > length)) {
            return Err(Refused::Plan);
        }
    }
    Ok(())
}

fn is_sound(access: &Access) -> bool {
    let vector = (1..=ELEMENTS_MAX).contains(&access.count) && access.mask_kind <= code::MASK_SIGNS;
    access.size > 0
        && match access.kind {
            code::PLAIN | code::STRING => true,
            code::MASKED | code::PACKED => vector,
            code::ANY => vector && access.mask_kind == code::MASK_BITS,
            code::INDEXED => vector && matches!(access.index_bytes, 4 | 8),
            code::BIT => matches!(access.count, 1 | 2 | 4 | 8) && matches!(access.size, 2 | 4 | 8),
            _ => false,
        }
}

/// A piece of a path's data: where it is, and its bytes.
type Piece = (u32, u32);

/// What an access needs of the data: each register or vector, and the value.
pub(crate) fn slots(access: &Access) -> impl Iterator<Item = Piece> + use<> {
    let count = u32::from(access.count);
    let size = u32::from(access.size);
    let elements = match access.kind {
        code::MASKED | code::PACKED | code::INDEXED => count * size,
        _ => size,
    };
    let base = (access.flags & HAS_BASE != 0).then_some((access.base, 8));
    let index = match access.kind {
        code::INDEXED => Some((access.index, count * u32::from(access.index_bytes))),
        code::STRING => Some((access.index, 8)),
        _ => (access.flags & HAS_INDEX != 0).then_some((access.index, 8)),
    };
    let mask = match (access.kind, access.mask_kind) {
        (code::STRING, _) => Some((access.mask, 16)),
        (code::BIT | code::ANY, _) => Some((access.mask, 8)),
        (code::MASKED | code::PACKED | code::INDEXED, code::MASK_BITS) => Some((access.mask, 8)),
        (code::MASKED | code::PACKED | code::INDEXED, code::MASK_SIGNS) => Some((access.mask, count * size)),
        _ => None,
    };
    let value = (access.value < CONSTANT).then_some((access.value, elements));
    [base, index, mask, value].into_iter().flatten().map(|(at, bytes)| (u32::from(at), bytes))
}

impl Compiled {
    fn new(access: &Access, block: u64) -> Self {
        const COMPLICATED: u8 = HAS_INDEX | HAS_FS | IS_SHORT;
        let form = match access.kind {
            code::PLAIN if access.flags & COMPLICATED != 0 => Form::Plain,
            code::PLAIN if access.flags & HAS_BASE != 0 => Form::Based,
            code::PLAIN => Form::Absolute,
            code::BIT => Form::Bit,
            code::STRING => Form::String,
            code::MASKED => Form::Masked,
            code::PACKED => Form::Packed,
            code::ANY => Form::Any,
            _ => Form::Indexed,
        };
        Self {
            pc: block.wrapping_add(u64::from(access.offset)),
            displacement: access.displacement.cast_unsigned(),
            constant: access.constant,
            base: access.base,
            index: access.index,
            value: access.value,
            mask: access.mask,
            size: access.size,
            form,
            flags: access.flags,
            count: access.count,
            mask_kind: access.mask_kind,
            index_bytes: access.index_bytes,
        }
    }

    pub(crate) fn writes(&self) -> bool {
        self.flags & WRITES != 0
    }

    pub(crate) fn scale(&self) -> u32 {
        u32::from(self.flags & 3)
    }

    /// Where the value is in the data, if it is there.
    pub(crate) fn value_at(&self) -> Option<u16> {
        (self.value < CONSTANT).then_some(self.value)
    }

    pub(crate) fn has_constant(&self) -> bool {
        self.value == CONSTANT
    }
}

const _: () = assert!(CONSTANT < NO_VALUE);
