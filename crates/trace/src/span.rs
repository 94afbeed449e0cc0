//! How much data is behind each path, and how many accesses it holds.
//!
//! Spans follow from the access descriptors of fragments alone, without the code. So a writer can
//! split words and data, compress and count them as they come: it has [`Spans`].
//! [`crate::descriptors`] keeps the spans with the accesses themselves.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::dense_map::{DenseMap, Sentinel};
use codec::lanes::{DataLayout, DataLayouts};
use entity::PathId;
use wire::RECORD_BYTES_MAX;
use wire::code::{self, AccessDescriptor, CONSTANT, HAS_BASE, HAS_INDEX, IS_SHORT, MASK_BITS, MASK_SIGNS, WRITES};

use crate::block::Refusal;
use crate::model::AccessDescriptors;

/// Elements of a vector at most.
const ELEMENTS_MAX: u8 = 64;
/// More iterations than any string instruction can make.
const ITERATIONS_MAX: u64 = 1 << 48;

/// The data behind a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of its fragment's access descriptors.
    pub descriptors: u32,
    /// Bytes of data, and of the longest data of its fragment.
    pub bytes: u16,
    pub most: u16,
    /// Accesses that every execution makes.
    pub reads: u16,
    pub writes: u16,
    /// How many of the fragment's [`VaryingAccess`]es the path makes.
    pub varying: u16,
    /// Blocks executed.
    pub blocks: u16,
}

impl Span {
    /// No data.
    pub(crate) const NOTHING: Self =
        Self { descriptors: u32::MAX, bytes: 0, most: 0, reads: 0, writes: 0, varying: 0, blocks: 0 };

    /// The span of a path that has executed `blocks` blocks and has `length` bytes of data.
    fn new(descriptors: &AccessDescriptors<'_>, blocks: u16, length: u32) -> Self {
        let mut span = Self { blocks, bytes: u16::try_from(length).unwrap_or(0), ..Self::NOTHING };
        for access in
            descriptors.accesses.iter().take_while(|access| access.block < blocks).filter(|&access| is_access(access))
        {
            let sum = match (happens_once(access), access.flags & WRITES != 0) {
                (false, _) => &mut span.varying,
                (true, false) => &mut span.reads,
                (true, true) => &mut span.writes,
            };
            *sum += 1;
        }
        span
    }

    /// Returns the number of descriptors that apply to the path.
    #[inline]
    pub(crate) fn access_count(&self) -> usize {
        usize::from(self.reads) + usize::from(self.writes) + usize::from(self.varying)
    }
}

impl Sentinel for Span {
    const NONE: Self = Self::NOTHING;

    #[inline]
    fn is_none(&self) -> bool {
        self.descriptors == u32::MAX
    }
}

impl DataLayout for Span {
    const EMPTY: Self = Self::NOTHING;

    #[inline]
    fn fragment(&self) -> u32 {
        self.descriptors
    }

    #[inline]
    fn bytes(&self) -> u16 {
        self.bytes
    }

    #[inline]
    fn longest(&self) -> u16 {
        self.most
    }
}

const _: () = assert!(RECORD_BYTES_MAX <= u16::MAX as usize);

/// The spans of all paths.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    spans: DenseMap<PathId, Span>,
    pub varying: VaryingAccesses,
}

/// The varying accesses of all fragments, by the number of their access descriptors.
#[derive(Debug, Default)]
pub(crate) struct VaryingAccesses {
    /// Of each fragment, where its varying accesses begin.
    starts: Vec<u32>,
    accesses: Vec<VaryingAccess>,
}

/// An access whose data says how often it happens.
#[derive(Clone, Copy, Debug)]
struct VaryingAccess {
    writes: bool,
    times: Times,
}

#[derive(Clone, Copy, Debug)]
enum Times {
    Always(u8),
    /// As often as the difference of these registers says, in their low 32 bits if short.
    Difference {
        before: u16,
        after: u16,
        short: bool,
    },
    /// Once for each of so many bits.
    Bits {
        at: u16,
        count: u8,
    },
    /// Once if any of so many bits is set.
    Once {
        at: u16,
        count: u8,
    },
    /// Once for each of so many elements whose top bit is set.
    Signs {
        at: u16,
        size: u16,
        count: u8,
    },
}

impl DataLayouts for Spans {
    type Layout = Span;

    #[inline]
    fn layout(&self, path: PathId) -> Option<Span> {
        self.get(path)
    }
}

impl Spans {
    /// Returns the span of a path; `None` if its fragment has no descriptors and so no data.
    #[inline]
    pub(crate) fn get(&self, path: PathId) -> Option<Span> {
        self.spans.get(path)
    }

    /// Adds the descriptors of a fragment whose exits have executed `executed` blocks.
    pub(crate) fn add(&mut self, descriptors: &AccessDescriptors<'_>, executed: &[u16]) -> Result<(), Refusal> {
        check(descriptors, executed, &self.spans)?;
        for (path, span) in self.varying.add(descriptors, executed)? {
            self.spans.insert(path, span);
        }
        Ok(())
    }
}

impl VaryingAccesses {
    /// Adds the descriptors of a fragment whose exits have executed `executed` blocks, and returns
    /// its paths and their spans. [`check`] has accepted the descriptors.
    pub(crate) fn add<'a>(
        &mut self,
        descriptors: &'a AccessDescriptors<'_>,
        executed: &'a [u16],
    ) -> Result<impl Iterator<Item = (PathId, Span)> + use<'a>, Refusal> {
        let number = u32::try_from(self.starts.len()).map_err(|_| Refusal::Full)?;
        self.starts.push(u32::try_from(self.accesses.len()).map_err(|_| Refusal::Full)?);
        let varying = descriptors.accesses.iter().filter(|access| is_access(access) && !happens_once(access));
        self.accesses.extend(varying.map(VaryingAccess::new));
        let most = descriptors.lengths.iter().copied().max().and_then(|most| u16::try_from(most).ok()).unwrap_or(0);
        let paths = descriptors.fragment.paths().zip(descriptors.lengths).zip(executed);
        Ok(paths.map(move |((path, &length), &blocks)| {
            (path, Span { descriptors: number, most, ..Span::new(descriptors, blocks, length) })
        }))
    }

    /// Counts the varying reads and writes of a path. `None` if the data is impossible.
    pub(crate) fn count(&self, span: &Span, data: &[u8]) -> Option<(u64, u64)> {
        let at = *self.starts.get(span.descriptors as usize)? as usize;
        let (mut reads, mut writes) = (0u64, 0u64);
        for varying in self.accesses.get(at..at + usize::from(span.varying))? {
            let sum = if varying.writes { &mut writes } else { &mut reads };
            *sum = sum.saturating_add(varying.times.count(data)?);
        }
        Some((reads, writes))
    }
}

impl VaryingAccess {
    fn new(access: &AccessDescriptor) -> Self {
        let times = match (access.kind, access.mask_kind) {
            (code::STRING, _) => {
                Times::Difference { before: access.index, after: access.mask, short: access.flags & IS_SHORT != 0 }
            }
            (code::ANY, _) => Times::Once { at: access.mask, count: access.count },
            (_, MASK_BITS) => Times::Bits { at: access.mask, count: access.count },
            (_, MASK_SIGNS) => Times::Signs { at: access.mask, size: access.size, count: access.count },
            _ => Times::Always(access.count),
        };
        Self { writes: access.flags & WRITES != 0, times }
    }
}

impl Times {
    fn count(self, data: &[u8]) -> Option<u64> {
        match self {
            Self::Always(count) => Some(u64::from(count)),
            Self::Difference { before, after, short } => {
                iterations(register(data, before)?, register(data, after)?, short)
            }
            Self::Bits { at, count } => {
                let unused = 64u32.checked_sub(u32::from(count))?;
                Some(u64::from((register(data, at)? << unused).count_ones()))
            }
            Self::Once { at, count } => {
                let unused = 64u32.checked_sub(u32::from(count))?;
                Some(u64::from(register(data, at)? << unused != 0))
            }
            Self::Signs { at, size, count } => {
                let elements = data.get(usize::from(at)..)?.chunks_exact(usize::from(size)).take(usize::from(count));
                let set = elements.filter(|element| element.last().is_some_and(|top| top & 0x80 != 0));
                Some(set.count() as u64)
            }
        }
    }
}

/// Iterations that a string instruction has made, from rcx before and after.
pub(crate) fn iterations(before: u64, after: u64, short: bool) -> Option<u64> {
    let made = before.wrapping_sub(after) & if short { u64::from(u32::MAX) } else { u64::MAX };
    (made <= ITERATIONS_MAX).then_some(made)
}

/// The eight bytes at `at`.
#[inline]
pub(crate) fn register(data: &[u8], at: u16) -> Option<u64> {
    let at = usize::from(at);
    data.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Returns whether a descriptor is one of an access, not of a stack pointer.
pub(crate) fn is_access(access: &AccessDescriptor) -> bool {
    access.kind != code::STACK_POINTER
}

/// Returns how often an access happens, given the data of its path; `None` if the data is
/// impossible.
pub(crate) fn times(access: &AccessDescriptor, data: &[u8]) -> Option<u64> {
    if !is_access(access) {
        return Some(0);
    }
    if happens_once(access) { Some(1) } else { VaryingAccess::new(access).times.count(data) }
}

fn happens_once(access: &AccessDescriptor) -> bool {
    matches!(access.kind, code::PLAIN | code::BIT)
}

/// Refuses descriptors that refer to slots outside of the data, and those of a path in `known`.
pub(crate) fn check<T: Sentinel>(
    descriptors: &AccessDescriptors<'_>,
    executed: &[u16],
    known: &DenseMap<PathId, T>,
) -> Result<(), Refusal> {
    let lengths =
        descriptors.lengths.iter().all(|&length| length.is_multiple_of(4) && length as usize <= RECORD_BYTES_MAX);
    let in_order = descriptors.accesses.is_sorted_by_key(|access| (access.block, access.offset));
    let few = descriptors.accesses.len() < usize::from(u16::MAX);
    if descriptors.lengths.len() != executed.len()
        || !lengths
        || !in_order
        || !few
        || !descriptors.accesses.iter().all(is_sound)
    {
        return Err(Refusal::AccessDescriptors);
    }
    for (&length, &blocks) in descriptors.lengths.iter().zip(executed) {
        let mut happen = descriptors.accesses.iter().take_while(|access| access.block < blocks);
        if happen.any(|access| slots(access).any(|(at, bytes)| at + bytes > length)) {
            return Err(Refusal::AccessDescriptors);
        }
    }
    let mut paths = descriptors.fragment.paths().zip(descriptors.lengths);
    if paths.any(|(path, _)| known.find(path).is_some()) { Err(Refusal::Twice) } else { Ok(()) }
}

fn is_sound(access: &AccessDescriptor) -> bool {
    let vector = (1..=ELEMENTS_MAX).contains(&access.count) && access.mask_kind <= MASK_SIGNS;
    access.size > 0
        && match access.kind {
            code::PLAIN | code::STRING => true,
            code::STACK_POINTER => access.flags == HAS_BASE,
            code::MASKED | code::PACKED => vector,
            code::ANY => vector && access.mask_kind == MASK_BITS,
            code::INDEXED => vector && matches!(access.index_bytes, 4 | 8),
            code::BIT => matches!(access.count, 1 | 2 | 4 | 8) && matches!(access.size, 2 | 4 | 8),
            _ => false,
        }
}

/// Returns offset and bytes of each slot that an access refers to: registers or vectors, and the
/// value.
fn slots(access: &AccessDescriptor) -> impl Iterator<Item = (u32, u32)> + use<> {
    let count = u32::from(access.count);
    let size = u32::from(access.size);
    let is_vector = matches!(access.kind, code::MASKED | code::PACKED | code::INDEXED);
    let base = (access.flags & HAS_BASE != 0).then_some((access.base, 8));
    let index = match access.kind {
        code::INDEXED => Some((access.index, count * u32::from(access.index_bytes))),
        code::STRING => Some((access.index, 8)),
        _ => (access.flags & HAS_INDEX != 0).then_some((access.index, 8)),
    };
    let mask = match (access.kind, access.mask_kind) {
        (code::STRING, _) => Some((access.mask, 16)),
        (code::BIT | code::ANY, _) => Some((access.mask, 8)),
        (_, MASK_BITS) if is_vector => Some((access.mask, 8)),
        (_, MASK_SIGNS) if is_vector => Some((access.mask, count * size)),
        _ => None,
    };
    let value = (access.value < CONSTANT).then_some((access.value, if is_vector { count * size } else { size }));
    [base, index, mask, value].into_iter().flatten().map(|(at, bytes)| (u32::from(at), bytes))
}
