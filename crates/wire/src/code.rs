//! The records of the code ring: their layout, which the engine writes, and their reader.
//!
//! Each record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight.
//! Integers are little-endian. Records wrap around the end of the ring byte by byte: positions are
//! taken modulo [`crate::CODE_RING_BYTES`]. A record is visible once `code_head` has moved past it,
//! and `code_head` moves before any thread can execute the block that the record defines.
//!
//! The constants [`BLOCK`] to [`ACCESS_DESCRIPTORS`] describe the payloads, as the engine writes
//! them. The recorder copies the bytes out of the ring and reads them with [`Records`]: each
//! [`Record`] parses to a [`Definition`], or to `None` if the target has damaged it.

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`BLOCK`], [`MODULE`], [`UNMAP`], [`FRAGMENT`] or [`ACCESS_DESCRIPTORS`].
    pub kind: u32,
    /// Bytes of payload, without padding.
    pub length: u32,
}

/// A block. Payload: `address: u64, block: u32, reserved: u32`, then the block's code. A block ends
/// after the first instruction that can transfer control, trap or make a system call, or where the
/// engine has cut it.
pub const BLOCK: u32 = 1;
/// A file was mapped executable. Payload: `address: u64, length: u64, file_offset: u64, tsc: u64`,
/// then the file's path.
pub const MODULE: u32 = 2;
/// A range was unmapped. Payload: `address: u64, length: u64, tsc: u64`.
pub const UNMAP: u32 = 3;

/// Payload, in `u32`s: `first_path`, `block_count`, `exit_count`, flags ([`UNINSTRUMENTED`]); then
/// the blocks in the order of execution; then the exits. Each block is its number, with [`TAKEN`]
/// set if a taken conditional branch leads to the next one. Exit `i` is the path `first_path + i`:
/// it has executed the first `exit & 0xffff` blocks, and the last of them has ended with the
/// terminator `exit >> 16`, one of the `TERMINATOR_*`.
pub const FRAGMENT: u32 = 4;

/// Follows the [`FRAGMENT`] record of the same fragment, if data is recorded. Payload:
/// `first_path: u32`, `exit_count: u32`, `access_count: u32`, 0; for each exit the bytes of data
/// behind its word, a multiple of four, as `u32`; then the [`AccessDescriptor`]s in the order of
/// execution. A path to an exit makes the accesses of the blocks that it has executed.
pub const ACCESS_DESCRIPTORS: u32 = 5;

/// How to rebuild a memory access, or several, from the data behind a path's word. `base`, `index`,
/// `value` and `mask` are offsets into that data; registers there have eight bytes.
///
/// The address is `displacement`, plus the register `base` if [`HAS_BASE`], plus the register
/// `index`, shifted left by the scale in `flags`, if [`HAS_INDEX`]; cut to 32 bits if [`IS_SHORT`];
/// plus the thread's fs base if [`HAS_FS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessDescriptor {
    /// Index of the block in the fragment, and offset of the instruction in the block.
    pub block: u16,
    pub offset: u16,
    /// Bytes of one element.
    pub size: u16,
    /// [`PLAIN`], [`STRING`], [`MASKED`], [`PACKED`], [`INDEXED`], [`BIT`] or [`ANY`].
    pub kind: u8,
    pub flags: u8,
    pub base: u16,
    pub index: u16,
    /// If values are recorded: offset of the value, [`NO_VALUE`], or [`CONSTANT`].
    pub value: u16,
    pub mask: u16,
    /// Elements of a vector; of `BIT`: bytes of the register with the bit's number.
    pub count: u8,
    /// [`MASK_NONE`], [`MASK_BITS`] or [`MASK_SIGNS`].
    pub mask_kind: u8,
    /// Of `INDEXED`: bytes of one index, 4 or 8.
    pub index_bytes: u8,
    pub reserved: [u8; 5],
    pub displacement: i64,
    /// The value if `value` is [`CONSTANT`]. A value of more than eight bytes is sign-extended.
    pub constant: u64,
}

pub const ACCESS_DESCRIPTOR_BYTES: usize = size_of::<AccessDescriptor>();

/// One access.
pub const PLAIN: u8 = 0;
/// A repeated string instruction. At `index` is rcx before; at `mask` are rcx after and then the
/// address register after. The instruction made rcx before less rcx after iterations. The first is
/// at the address, the others go up or down from there, as the difference of address registers
/// says. Several accesses of one instruction take turns, iteration by iteration. The value, if any,
/// is that of every iteration.
pub const STRING: u8 = 1;
/// `count` elements side by side, of which those are accessed that the mask selects. Values stand
/// in `value` at the place of the element.
pub const MASKED: u8 = 2;
/// As many adjacent elements as the mask selects. The value of each is at the position of its mask
/// bit.
pub const PACKED: u8 = 3;
/// A gather or scatter: the address of element `i` is the address plus the `i`th index (signed, of
/// `index_bytes`, at `index`), shifted left by the scale; there is no index register. Values as for
/// `MASKED`.
pub const INDEXED: u8 = 4;
/// A bit test with a register. The operand lies behind the address by a number of operands of
/// `size` bytes. That number is the signed number in the low `count` bytes of the register at
/// `mask`, shifted right by the bits of an operand.
pub const BIT: u8 = 5;

/// One access, which is made if the mask selects any of `count` elements: a broadcast.
pub const ANY: u8 = 6;

/// In [`AccessDescriptor::flags`], beside the scale (0 to 3) in the low two bits.
pub const WRITES: u8 = 1 << 2;
pub const HAS_BASE: u8 = 1 << 3;
pub const HAS_INDEX: u8 = 1 << 4;
pub const HAS_FS: u8 = 1 << 5;
pub const IS_SHORT: u8 = 1 << 6;

pub const NO_VALUE: u16 = u16::MAX;
pub const CONSTANT: u16 = u16::MAX - 1;

/// All elements.
pub const MASK_NONE: u8 = 0;
/// Element `i` if bit `i` of the eight bytes at `mask` is set.
pub const MASK_BITS: u8 = 1;
/// Element `i` if the top bit of element `i` of the vector at `mask` (same element size) is set.
pub const MASK_SIGNS: u8 = 2;

/// The fragment is not recorded: its words only say what was executed meanwhile.
pub const UNINSTRUMENTED: u32 = 1;

/// In the list of a fragment's blocks: the conditional branch at the end of the block was taken.
pub const TAKEN: u32 = 1 << 31;

/// The conditional branch was not taken.
pub const TERMINATOR_NOT_TAKEN: u32 = 0;
/// The conditional branch was taken.
pub const TERMINATOR_TAKEN: u32 = 1;
/// A direct jump or call, or the end of a block that was cut.
pub const TERMINATOR_DIRECT: u32 = 2;
/// An indirect jump, indirect call or return: the next path or event has the target.
pub const TERMINATOR_INDIRECT: u32 = 3;
/// A system call; its event follows.
pub const TERMINATOR_SYSCALL: u32 = 4;

pub const FRAGMENT_FIXED: usize = 16;
/// Most blocks in a fragment, and most exits.
pub const FRAGMENT_BLOCKS_MAX: usize = 255;

pub const BLOCK_FIXED: usize = 16;
pub const MODULE_FIXED: usize = 32;

/// Most bytes of a block.
pub const BLOCK_BYTES_MAX: usize = 1024;

/// Iterates over the records in bytes that were taken out of the ring. The bytes are not trusted:
/// the iteration ends before a record that is not complete, which [`Self::rest`] then returns.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

/// A record whose payload is not parsed yet.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// One of [`BLOCK`], [`MODULE`], [`UNMAP`], [`FRAGMENT`] and [`ACCESS_DESCRIPTORS`], or
    /// nonsense.
    pub kind: u32,
    /// Without the padding.
    pub payload: &'a [u8],
}

/// The content of a record.
#[derive(Clone, Debug)]
pub enum Definition<'a> {
    Block(BlockRecord<'a>),
    Module(ModuleRecord<'a>),
    Unmap(UnmapRecord),
    Fragment(FragmentRecord<'a>),
    AccessDescriptors(AccessDescriptorsRecord<'a>),
}

/// See [`BLOCK`].
#[derive(Clone, Copy, Debug)]
pub struct BlockRecord<'a> {
    pub address: u64,
    pub block: u32,
    /// From 1 to [`BLOCK_BYTES_MAX`] bytes.
    pub code: &'a [u8],
}

/// See [`MODULE`].
#[derive(Clone, Copy, Debug)]
pub struct ModuleRecord<'a> {
    pub address: u64,
    pub length: u64,
    pub file_offset: u64,
    pub tsc: u64,
    pub path: &'a [u8],
}

/// See [`UNMAP`].
#[derive(Clone, Copy, Debug)]
pub struct UnmapRecord {
    pub address: u64,
    pub length: u64,
    pub tsc: u64,
}

/// See [`FRAGMENT`]. At most [`FRAGMENT_BLOCKS_MAX`] blocks, and as many exits.
#[derive(Clone, Copy, Debug)]
pub struct FragmentRecord<'a> {
    pub first_path: u32,
    pub flags: u32,
    pub blocks: Words<'a>,
    pub exits: Words<'a>,
}

/// See [`ACCESS_DESCRIPTORS`]. At most [`FRAGMENT_BLOCKS_MAX`] lengths.
#[derive(Clone, Copy, Debug)]
pub struct AccessDescriptorsRecord<'a> {
    pub first_path: u32,
    /// Bytes of data behind each exit's word.
    pub lengths: Words<'a>,
    pub accesses: Descriptors<'a>,
}

/// Iterates over `u32`s that may not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(&'a [[u8; 4]]);

/// Iterates over [`AccessDescriptor`]s that may not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors<'a>(&'a [[u8; ACCESS_DESCRIPTOR_BYTES]]);

impl<'a> Records<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the bytes that were not iterated over yet. At the end of the iteration, these are no
    /// record, or empty.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let mut fields = Fields(self.rest);
        let (kind, length) = (fields.u32()?, fields.u32()? as usize);
        let (padded, rest) = fields.0.split_at_checked(length.checked_next_multiple_of(8)?)?;
        self.rest = rest;
        Some(Record { kind, payload: padded.get(..length)? })
    }
}

impl<'a> Record<'a> {
    /// Parses the payload; `None` if it is not what its kind says, or if there is no such kind.
    #[must_use]
    pub fn parse(&self) -> Option<Definition<'a>> {
        let fields = Fields(self.payload);
        match self.kind {
            BLOCK => fields.block().map(Definition::Block),
            MODULE => fields.module().map(Definition::Module),
            UNMAP => fields.unmap().map(Definition::Unmap),
            FRAGMENT => fields.fragment().map(Definition::Fragment),
            ACCESS_DESCRIPTORS => fields.access_descriptors().map(Definition::AccessDescriptors),
            _ => None,
        }
    }
}

impl Iterator for Words<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for Words<'_> {}

impl Iterator for Descriptors<'_> {
    type Item = AccessDescriptor;

    fn next(&mut self) -> Option<AccessDescriptor> {
        let (descriptor, rest) = self.0.split_first()?;
        self.0 = rest;
        Fields(descriptor).access_descriptor()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for Descriptors<'_> {}

/// Little-endian fields at the start of untrusted bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Takes `count` arrays of `N` bytes.
    fn arrays<const N: usize>(&mut self, count: usize) -> Option<&'a [[u8; N]]> {
        let (arrays, rest) = self.0.split_at_checked(count.checked_mul(N)?)?;
        self.0 = rest;
        Some(arrays.as_chunks().0)
    }

    fn block(mut self) -> Option<BlockRecord<'a>> {
        let (address, block, _reserved) = (self.u64()?, self.u32()?, self.u32()?);
        let is_valid = !self.0.is_empty() && self.0.len() <= BLOCK_BYTES_MAX;
        is_valid.then_some(BlockRecord { address, block, code: self.0 })
    }

    fn module(mut self) -> Option<ModuleRecord<'a>> {
        let (address, length, file_offset, tsc) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        Some(ModuleRecord { address, length, file_offset, tsc, path: self.0 })
    }

    fn unmap(mut self) -> Option<UnmapRecord> {
        Some(UnmapRecord { address: self.u64()?, length: self.u64()?, tsc: self.u64()? })
    }

    fn fragment(mut self) -> Option<FragmentRecord<'a>> {
        let (first_path, block_count) = (self.u32()?, self.u32()? as usize);
        let (exit_count, flags) = (self.u32()? as usize, self.u32()?);
        if block_count.max(exit_count) > FRAGMENT_BLOCKS_MAX {
            return None;
        }
        let (blocks, exits) = (Words(self.arrays(block_count)?), Words(self.arrays(exit_count)?));
        Some(FragmentRecord { first_path, flags, blocks, exits })
    }

    fn access_descriptors(mut self) -> Option<AccessDescriptorsRecord<'a>> {
        let (first_path, exit_count) = (self.u32()?, self.u32()? as usize);
        let (access_count, _reserved) = (self.u32()? as usize, self.u32()?);
        if exit_count > FRAGMENT_BLOCKS_MAX {
            return None;
        }
        let (lengths, accesses) = (Words(self.arrays(exit_count)?), Descriptors(self.arrays(access_count)?));
        Some(AccessDescriptorsRecord { first_path, lengths, accesses })
    }

    /// In the order of the fields of [`AccessDescriptor`] in memory.
    fn access_descriptor(&mut self) -> Option<AccessDescriptor> {
        Some(AccessDescriptor {
            block: self.u16()?,
            offset: self.u16()?,
            size: self.u16()?,
            kind: self.u8()?,
            flags: self.u8()?,
            base: self.u16()?,
            index: self.u16()?,
            value: self.u16()?,
            mask: self.u16()?,
            count: self.u8()?,
            mask_kind: self.u8()?,
            index_bytes: self.u8()?,
            // Whatever stands there, readers see zeros.
            reserved: self.take::<5>().map(|_| [0; 5])?,
            displacement: self.u64()?.cast_signed(),
            constant: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests;
