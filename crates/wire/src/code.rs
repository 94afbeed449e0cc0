//! The records of the code ring: their layout, their writer and their reader.
//!
//! Each record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight.
//! Integers are little-endian. Records wrap around the end of the ring byte by byte: positions are
//! taken modulo [`crate::CODE_RING_BYTES`]. A record is visible once `code_head` has moved past it,
//! and `code_head` moves before any thread can execute the block that the record defines.
//!
//! The constants [`BLOCK`] to [`ACCESS_DESCRIPTORS`] describe the payloads. The engine writes a
//! record through [`Payload`]. The recorder copies the bytes out of the ring and reads them with
//! [`Records`]: each [`Record`] parses to a [`Definition`], or to `None` if the target has damaged
//! it. Writer and reader use the same structures, such as [`FragmentRecord`].

use core::marker::PhantomData;

use entity::{AppPc, BlockId, FragmentId, PathId, Tsc};

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
    /// [`PLAIN`], [`STRING`], [`MASKED`], [`PACKED`], [`INDEXED`], [`BIT`], [`ANY`] or
    /// [`STACK_POINTER`].
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
/// `mask`, shifted right by the logarithm of the bits of an operand.
pub const BIT: u8 = 5;

/// One access, which is made if the mask selects any of `count` elements: a broadcast.
pub const ANY: u8 = 6;

/// No access, but the stack pointer at the entry of a function, which is the block's first
/// instruction: the register `base` plus the displacement.
pub const STACK_POINTER: u8 = 7;

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
pub const UNMAP_BYTES: usize = 24;

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

/// The content of a record, as a reader gets it.
#[derive(Clone, Debug)]
pub enum Definition<'a> {
    Block(BlockRecord<'a>),
    Module(ModuleRecord<'a>),
    Unmap(UnmapRecord),
    Fragment(FragmentRecord<List<'a, FragmentBlock>, List<'a, FragmentExit>>),
    AccessDescriptors(AccessDescriptorsRecord<List<'a, u32>, List<'a, AccessDescriptor>>),
}

/// See [`BLOCK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord<'a> {
    pub address: AppPc,
    pub block: BlockId,
    /// From 1 to [`BLOCK_BYTES_MAX`] bytes.
    pub code: &'a [u8],
}

/// See [`MODULE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleRecord<'a> {
    pub address: u64,
    pub length: u64,
    pub file_offset: u64,
    pub tsc: Tsc,
    pub path: &'a [u8],
}

/// See [`UNMAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapRecord {
    pub address: u64,
    pub length: u64,
    pub tsc: Tsc,
}

/// See [`FRAGMENT`]. `blocks` and `exits` iterate over at most [`FRAGMENT_BLOCKS_MAX`]
/// [`FragmentBlock`]s and [`FragmentExit`]s.
#[derive(Clone, Copy, Debug)]
pub struct FragmentRecord<B, E> {
    pub fragment: FragmentId,
    /// See [`UNINSTRUMENTED`].
    pub is_uninstrumented: bool,
    pub blocks: B,
    pub exits: E,
}

/// See [`ACCESS_DESCRIPTORS`]. `lengths` iterates over the bytes of data behind each exit's word,
/// `accesses` over [`AccessDescriptor`]s.
#[derive(Clone, Copy, Debug)]
pub struct AccessDescriptorsRecord<L, A> {
    pub fragment: FragmentId,
    pub lengths: L,
    pub accesses: A,
}

/// A block of a fragment: its number, and whether a taken conditional branch at its end leads to
/// the next block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct FragmentBlock(u32);

impl FragmentBlock {
    /// Largest number of a block.
    pub const BLOCK_MAX: u32 = TAKEN - 1;

    #[must_use]
    pub const fn new(block: BlockId, is_taken: bool) -> Self {
        Self(block.get() & Self::BLOCK_MAX | if is_taken { TAKEN } else { 0 })
    }

    /// As it stands in a record.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn block(self) -> BlockId {
        BlockId::new(self.0 & Self::BLOCK_MAX)
    }

    #[must_use]
    pub const fn is_taken(self) -> bool {
        self.0 & TAKEN != 0
    }
}

/// An exit of a fragment: how many blocks a path to it has executed, and how the last of them has
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct FragmentExit(u32);

impl FragmentExit {
    /// `terminator` is one of the `TERMINATOR_*`.
    #[must_use]
    pub const fn new(block_count: u16, terminator: u32) -> Self {
        Self(block_count as u32 | terminator << 16)
    }

    /// As it stands in a record.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    #[must_use]
    pub const fn block_count(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// One of the `TERMINATOR_*`, or nonsense from a damaged record.
    #[must_use]
    pub const fn terminator(self) -> u32 {
        self.0 >> 16
    }
}

/// Something of a fixed size in a record.
pub trait RecordField: Copy {
    const BYTES: usize;

    /// Reads it from as many bytes. Every value of the bytes is valid.
    fn read(bytes: &[u8]) -> Option<Self>;

    /// Passes its bytes to `put`.
    fn write(self, put: &mut impl FnMut(&[u8]));
}

impl RecordField for u32 {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(u32::from_le_bytes)
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        put(&self.to_le_bytes());
    }
}

impl RecordField for FragmentBlock {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> Option<Self> {
        u32::read(bytes).map(Self::from_word)
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        self.0.write(put);
    }
}

impl RecordField for FragmentExit {
    const BYTES: usize = 4;

    fn read(bytes: &[u8]) -> Option<Self> {
        u32::read(bytes).map(Self::from_word)
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        self.0.write(put);
    }
}

impl RecordField for AccessDescriptor {
    const BYTES: usize = ACCESS_DESCRIPTOR_BYTES;

    fn read(bytes: &[u8]) -> Option<Self> {
        Fields(bytes).access_descriptor()
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        for field in [self.block, self.offset, self.size] {
            put(&field.to_le_bytes());
        }
        put(&[self.kind, self.flags]);
        for field in [self.base, self.index, self.value, self.mask] {
            put(&field.to_le_bytes());
        }
        put(&[self.count, self.mask_kind, self.index_bytes]);
        put(&[0; 5]);
        put(&self.displacement.to_le_bytes());
        put(&self.constant.to_le_bytes());
    }
}

/// Iterates over [`RecordField`]s in the bytes of a record, which may not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct List<'a, F> {
    bytes: &'a [u8],
    fields: PhantomData<F>,
}

impl<F: RecordField> Iterator for List<'_, F> {
    type Item = F;

    fn next(&mut self) -> Option<F> {
        let (field, rest) = self.bytes.split_at_checked(F::BYTES)?;
        self.bytes = rest;
        F::read(field)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let length = self.bytes.len() / F::BYTES;
        (length, Some(length))
    }
}

impl<F: RecordField> ExactSizeIterator for List<'_, F> {}

/// What the engine appends to the code ring.
pub trait Payload {
    const KIND: u32;

    /// Returns the number of bytes that [`Self::write`] passes on.
    fn length(&self) -> usize;

    /// Passes the payload to `put`, piece by piece.
    fn write(self, put: &mut impl FnMut(&[u8]));
}

impl Payload for BlockRecord<'_> {
    const KIND: u32 = BLOCK;

    fn length(&self) -> usize {
        BLOCK_FIXED + self.code.len()
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        put(&self.address.get().to_le_bytes());
        put(&self.block.get().to_le_bytes());
        put(&[0; 4]);
        put(self.code);
    }
}

impl Payload for ModuleRecord<'_> {
    const KIND: u32 = MODULE;

    fn length(&self) -> usize {
        MODULE_FIXED + self.path.len()
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        for field in [self.address, self.length, self.file_offset, self.tsc.get()] {
            put(&field.to_le_bytes());
        }
        put(self.path);
    }
}

impl Payload for UnmapRecord {
    const KIND: u32 = UNMAP;

    fn length(&self) -> usize {
        UNMAP_BYTES
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        for field in [self.address, self.length, self.tsc.get()] {
            put(&field.to_le_bytes());
        }
    }
}

impl<B, E> Payload for FragmentRecord<B, E>
where
    B: ExactSizeIterator<Item = FragmentBlock>,
    E: ExactSizeIterator<Item = FragmentExit>,
{
    const KIND: u32 = FRAGMENT;

    fn length(&self) -> usize {
        FRAGMENT_FIXED + self.blocks.len() * FragmentBlock::BYTES + self.exits.len() * FragmentExit::BYTES
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        let flags = if self.is_uninstrumented { UNINSTRUMENTED } else { 0 };
        let (block_count, exit_count) = (self.blocks.len() as u32, self.exits.len() as u32);
        for field in [self.fragment.first_path().get(), block_count, exit_count, flags] {
            field.write(put);
        }
        self.blocks.for_each(|block| block.write(put));
        self.exits.for_each(|exit| exit.write(put));
    }
}

impl<L, A> Payload for AccessDescriptorsRecord<L, A>
where
    L: ExactSizeIterator<Item = u32>,
    A: ExactSizeIterator<Item = AccessDescriptor>,
{
    const KIND: u32 = ACCESS_DESCRIPTORS;

    fn length(&self) -> usize {
        FRAGMENT_FIXED + self.lengths.len() * u32::BYTES + self.accesses.len() * ACCESS_DESCRIPTOR_BYTES
    }

    fn write(self, put: &mut impl FnMut(&[u8])) {
        let (exit_count, access_count) = (self.lengths.len() as u32, self.accesses.len() as u32);
        for field in [self.fragment.first_path().get(), exit_count, access_count, 0] {
            field.write(put);
        }
        self.lengths.for_each(|length| length.write(put));
        self.accesses.for_each(|access| access.write(put));
    }
}

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

    /// Takes a list of `count` fields.
    fn list<F: RecordField>(&mut self, count: usize) -> Option<List<'a, F>> {
        let (bytes, rest) = self.0.split_at_checked(count.checked_mul(F::BYTES)?)?;
        self.0 = rest;
        Some(List { bytes, fields: PhantomData })
    }

    fn address(&mut self) -> Option<AppPc> {
        self.u64().map(AppPc::new)
    }

    fn tsc(&mut self) -> Option<Tsc> {
        self.u64().map(Tsc::new)
    }

    fn fragment_id(&mut self) -> Option<FragmentId> {
        self.u32().map(|first_path| FragmentId::new(PathId::new(first_path)))
    }

    fn block(mut self) -> Option<BlockRecord<'a>> {
        let (address, block, _reserved) = (self.address()?, BlockId::new(self.u32()?), self.u32()?);
        let is_valid = !self.0.is_empty() && self.0.len() <= BLOCK_BYTES_MAX;
        is_valid.then_some(BlockRecord { address, block, code: self.0 })
    }

    fn module(mut self) -> Option<ModuleRecord<'a>> {
        let (address, length, file_offset, tsc) = (self.u64()?, self.u64()?, self.u64()?, self.tsc()?);
        Some(ModuleRecord { address, length, file_offset, tsc, path: self.0 })
    }

    fn unmap(mut self) -> Option<UnmapRecord> {
        Some(UnmapRecord { address: self.u64()?, length: self.u64()?, tsc: self.tsc()? })
    }

    fn fragment(mut self) -> Option<FragmentRecord<List<'a, FragmentBlock>, List<'a, FragmentExit>>> {
        let (fragment, block_count) = (self.fragment_id()?, self.u32()? as usize);
        let (exit_count, flags) = (self.u32()? as usize, self.u32()?);
        if block_count.max(exit_count) > FRAGMENT_BLOCKS_MAX {
            return None;
        }
        let is_uninstrumented = flags & UNINSTRUMENTED != 0;
        let (blocks, exits) = (self.list(block_count)?, self.list(exit_count)?);
        Some(FragmentRecord { fragment, is_uninstrumented, blocks, exits })
    }

    fn access_descriptors(mut self) -> Option<AccessDescriptorsRecord<List<'a, u32>, List<'a, AccessDescriptor>>> {
        let (fragment, exit_count) = (self.fragment_id()?, self.u32()? as usize);
        let (access_count, _reserved) = (self.u32()? as usize, self.u32()?);
        if exit_count > FRAGMENT_BLOCKS_MAX {
            return None;
        }
        let (lengths, accesses) = (self.list(exit_count)?, self.list(access_count)?);
        Some(AccessDescriptorsRecord { fragment, lengths, accesses })
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
