//! The access descriptors of all fragments, checked once and compiled into a form that is quick to
//! follow.
//!
//! The data behind a path is a sequence of slots for registers and values, which grows block by
//! block. The descriptors of the blocks that the path has executed refer to slots in it. See
//! `wire::code::ACCESS_DESCRIPTORS`. [`crate::access`] and [`crate::visit`] decode accesses by
//! them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::{DenseMap, Sentinel};
use codec::lanes::DataLayouts;
use entity::{AppPc, PathId};
use hashbrown::HashMap;
use wire::code::{self, AccessDescriptor, CONSTANT, HAS_BASE, HAS_FS, HAS_INDEX, IS_SHORT, NO_VALUE, WRITES};

use crate::block::{Blocks, Refusal};
use crate::model::{AccessDescriptors, Step};
use crate::span::{self, Span, VaryingAccesses, is_access, register};

/// The access descriptors of a recording.
#[derive(Debug, Default)]
pub(crate) struct DescriptorTable {
    pub varying: VaryingAccesses,
    fragments: Vec<FragmentAccesses>,
    accesses: Vec<CompiledAccess>,
    /// Of every fragment, for each block, the end of its accesses in `accesses`.
    ends: Vec<u32>,
    /// By the number of a fragment's descriptors; only if any fragment has some.
    stack_pointers: HashMap<u32, Box<[StackPointer]>>,
    paths: DenseMap<PathId, PathAccesses>,
}

/// What decoding, counting and visiting a path's accesses need, in one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathAccesses {
    pub span: Span,
    accesses_at: u32,
    pub instructions: u32,
}

impl Sentinel for PathAccesses {
    const NONE: Self = Self { span: Span::NOTHING, accesses_at: 0, instructions: 0 };

    #[inline]
    fn is_none(&self) -> bool {
        self.span.is_none()
    }
}

impl DataLayouts for DescriptorTable {
    type Layout = Span;

    #[inline]
    fn layout(&self, path: PathId) -> Option<Span> {
        self.span(path)
    }
}

/// A path as it is known before its access descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutedPath {
    pub blocks: u16,
    pub instructions: u32,
}

#[derive(Clone, Copy, Debug)]
struct FragmentAccesses {
    ends_at: u32,
    accesses_at: u32,
    block_count: u16,
}

/// Bytes of a constant that is written, at most.
const CONSTANT_BYTES: usize = size_of::<u64>();

/// How the address and the number of accesses are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A register plus a constant.
    Based,
    /// A constant.
    Absolute,
    /// One access with a more complicated address.
    Plain,
    /// The same with a constant of more than [`CONSTANT_BYTES`], which no instruction has.
    Long,
    Bit,
    String,
    Masked,
    Packed,
    Indexed,
    Any,
}

/// An access of a fragment, ready for use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledAccess {
    pub pc: AppPc,
    pub displacement: u64,
    /// The value that is written, if it is always the same, lowest byte first.
    pub constant: [u8; CONSTANT_BYTES],
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

/// The stack pointer at the entry of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackPointer {
    /// The entry, which is where this block of the fragment begins.
    pub pc: AppPc,
    pub block: u16,
    /// How many of the fragment's accesses come before it.
    pub accesses_before: u32,
    base: u16,
    displacement: u64,
}

impl StackPointer {
    /// Returns the value, given the data of the path; `None` if the data is too short.
    pub(crate) fn value(&self, data: &[u8]) -> Option<u64> {
        register(data, self.base).map(|base| base.wrapping_add(self.displacement))
    }
}

impl DescriptorTable {
    /// Iterates the stack pointers in the first `blocks` blocks of a fragment.
    #[inline]
    pub(crate) fn stack_pointers(&self, descriptors: u32, blocks: u16) -> impl Iterator<Item = &StackPointer> {
        let all = if self.stack_pointers.is_empty() { None } else { self.stack_pointers.get(&descriptors) };
        all.map_or(&[][..], |all| all).iter().take_while(move |pointer| pointer.block < blocks)
    }

    /// Returns whether any fragment has stack pointers.
    #[inline]
    pub(crate) fn has_stack_pointers(&self) -> bool {
        !self.stack_pointers.is_empty()
    }

    /// Returns the span of a path; `None` if its fragment has no descriptors and so no data.
    #[inline]
    pub(crate) fn span(&self, path: PathId) -> Option<Span> {
        self.paths.find(path).map(|path| path.span)
    }

    /// Iterates the accesses of the first `blocks` blocks of a fragment, block by block.
    #[inline]
    pub(crate) fn blocks(&self, descriptors: u32, blocks: u16) -> impl Iterator<Item = &[CompiledAccess]> {
        let node = self.fragments.get(descriptors as usize).copied();
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

    /// Returns the accesses of a path; `None` if its fragment has no descriptors.
    #[inline]
    pub(crate) fn path(&self, path: PathId) -> Option<PathAccesses> {
        self.paths.get(path)
    }

    /// Returns the compiled accesses of a path.
    #[inline]
    pub(crate) fn accesses(&self, path: PathAccesses) -> &[CompiledAccess] {
        let at = path.accesses_at as usize;
        self.accesses.get(at..at + path.span.access_count()).unwrap_or(&[])
    }

    /// Adds the descriptors of a fragment whose blocks are those of `steps`. `executed` says how
    /// much of it each exit has executed.
    pub(crate) fn add(
        &mut self,
        descriptors: &AccessDescriptors<'_>,
        blocks: &Blocks,
        steps: &[Step],
        executed: &[ExecutedPath],
    ) -> Result<(), Refusal> {
        check(descriptors, blocks, steps)?;
        let ends_at = u32::try_from(self.ends.len()).map_err(|_| Refusal::Full)?;
        let accesses_at = u32::try_from(self.accesses.len()).map_err(|_| Refusal::Full)?;
        u32::try_from(self.accesses.len() + descriptors.accesses.len()).map_err(|_| Refusal::Full)?;
        let block_counts: Vec<u16> = executed.iter().map(|path| path.blocks).collect();
        span::check(descriptors, &block_counts, &self.paths)?;
        for ((path, span), executed) in self.varying.add(descriptors, &block_counts)?.zip(executed) {
            self.paths.insert(path, PathAccesses { span, accesses_at, instructions: executed.instructions });
        }
        let mut rest = descriptors.accesses;
        let mut stack_pointers = Vec::new();
        for (place, step) in steps.iter().enumerate() {
            let address = blocks.node(step.block().0).map_or(AppPc::NONE, |node| node.address);
            let here = rest.iter().take_while(|access| usize::from(access.block) == place).count();
            let (own, others) = rest.split_at_checked(here).unwrap_or((rest, &[]));
            stack_pointers.extend(own.iter().filter(|access| !is_access(access)).map(|access| StackPointer {
                pc: address + u64::from(access.offset),
                block: access.block,
                accesses_before: u32::try_from(self.accesses.len()).unwrap_or(u32::MAX) - accesses_at,
                base: access.base,
                displacement: access.displacement.cast_unsigned(),
            }));
            let own = own.iter().filter(|&access| is_access(access));
            self.accesses.extend(own.map(|access| CompiledAccess::new(access, address)));
            self.ends.push(u32::try_from(self.accesses.len()).unwrap_or(u32::MAX));
            rest = others;
        }
        if !stack_pointers.is_empty() {
            let number = u32::try_from(self.fragments.len()).map_err(|_| Refusal::Full)?;
            self.stack_pointers.insert(number, stack_pointers.into());
        }
        self.fragments.push(FragmentAccesses {
            ends_at,
            accesses_at,
            block_count: u16::try_from(steps.len()).unwrap_or(0),
        });
        Ok(())
    }
}

/// Refuses descriptors whose accesses are not those of instructions.
fn check(descriptors: &AccessDescriptors<'_>, blocks: &Blocks, steps: &[Step]) -> Result<(), Refusal> {
    for access in descriptors.accesses {
        let node = steps.get(usize::from(access.block)).and_then(|step| blocks.node(step.block().0));
        let node = node.ok_or(Refusal::AccessDescriptors)?;
        let pc = node.address + u64::from(access.offset);
        if blocks.instructions_before(node, pc).is_none_or(|before| before >= node.instructions) {
            return Err(Refusal::AccessDescriptors);
        }
    }
    Ok(())
}

impl CompiledAccess {
    fn new(access: &AccessDescriptor, block: AppPc) -> Self {
        const COMPLICATED: u8 = HAS_INDEX | HAS_FS | IS_SHORT;
        let is_long = access.value == CONSTANT && usize::from(access.size) > CONSTANT_BYTES;
        let form = match access.kind {
            code::PLAIN if is_long => Form::Long,
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
            pc: block + u64::from(access.offset),
            displacement: access.displacement.cast_unsigned(),
            constant: access.constant.to_le_bytes(),
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

    #[inline]
    pub(crate) fn writes(&self) -> bool {
        self.flags & WRITES != 0
    }

    #[inline]
    pub(crate) fn scale(&self) -> u32 {
        u32::from(self.flags & 3)
    }

    /// Returns the position of the value in the data, if it is there.
    #[inline]
    pub(crate) fn value_at(&self) -> Option<u16> {
        (self.value < CONSTANT).then_some(self.value)
    }

    #[inline]
    pub(crate) fn has_constant(&self) -> bool {
        self.value == CONSTANT
    }
}

const _: () = assert!(CONSTANT < NO_VALUE);
