//! The records of the code ring.
//!
//! Each record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight.
//! Records wrap around the end of the ring byte by byte: positions are taken modulo
//! [`crate::CODE_RING_BYTES`]. A record is visible once `code_head` has moved past it, and
//! `code_head` moves before any thread can execute the block it describes.

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`BLOCK`], [`MODULE`], [`UNMAP`], [`FRAGMENT`] or [`ACCESS_DESCRIPTORS`].
    pub kind: u32,
    /// Bytes of payload, without padding.
    pub length: u32,
}

/// Payload: `address: u64, block: u32, reserved: u32`, then the block's code bytes. Blocks end
/// after the first instruction that can transfer control (or traps, or is a system call), or where
/// the engine cut them.
pub const BLOCK: u32 = 1;
/// Payload: `address: u64, length: u64, file_offset: u64, tsc: u64`, then the path. A file was
/// mapped executable.
pub const MODULE: u32 = 2;
/// Payload: `address: u64, length: u64, tsc: u64`. Code in this range is no longer there.
pub const UNMAP: u32 = 3;

/// Payload, in `u32`s: `first_path`, `block_count`, `exit_count`, flags ([`UNINSTRUMENTED`]); then
/// the blocks in the order of execution, each its number with [`TAKEN`] set if it is followed by
/// the next one through a taken conditional branch; then the exits. Exit `i` is the path
/// `first_path + i`: it has executed the first `exit & 0xffff` blocks and left the last of them in
/// the way `exit >> 16`, one of the `TERMINATOR_*`.
pub const FRAGMENT: u32 = 4;

/// Follows the [`FRAGMENT`] record of the same fragment, if data is recorded. Payload: `first_path:
/// u32`, `exit_count: u32`, `access_count: u32`, 0; for each exit the bytes of data behind its
/// word, a multiple of four, as `u32`; then the [`AccessDescriptor`]es in the order of execution.
/// Those of the first `blocks` blocks happen on the way to an exit.
pub const ACCESS_DESCRIPTORS: u32 = 5;

/// How to make a memory access, or several, of the data behind a path's word. `base`, `index`,
/// `value` and `mask` are offsets into that data; registers there have eight bytes.
///
/// The address is `displacement`, plus the register `base` if [`HAS_BASE`], plus the register
/// `index`, shifted left by the scale in `flags`, if [`HAS_INDEX`]; cut to 32 bits if [`IS_SHORT`];
/// plus the thread's fs base if [`HAS_FS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessDescriptor {
    /// Which block of the fragment, and where in that block the instruction begins.
    pub block: u16,
    pub offset: u16,
    /// Bytes of one element.
    pub size: u16,
    /// [`PLAIN`], [`STRING`], [`MASKED`], [`PACKED`], [`INDEXED`], [`BIT`] or [`ANY`].
    pub kind: u8,
    pub flags: u8,
    pub base: u16,
    pub index: u16,
    /// If values are recorded: where the value is, [`NO_VALUE`], or [`CONSTANT`].
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
    /// The value if `value` is [`CONSTANT`], for sizes up to eight; of a larger one, the low bytes,
    /// the others are its sign.
    pub constant: u64,
}

pub const ACCESS_DESCRIPTOR_BYTES: usize = size_of::<AccessDescriptor>();

/// One access.
pub const PLAIN: u8 = 0;
/// A repeated string instruction: at `index` is rcx before, at `mask` rcx after and then the
/// address register after; rcx before less rcx after iterations were made, the first at the
/// address, the others up or down from there as the difference of address registers says. Several
/// of one instruction take turns, iteration by iteration. The value, if any, is that of every
/// iteration.
pub const STRING: u8 = 1;
/// `count` elements side by side, of which those happen that the mask selects. Values stand in
/// `value` at the place of the element.
pub const MASKED: u8 = 2;
/// As many elements side by side as the mask selects; the value of each stands at the place of its
/// mask bit.
pub const PACKED: u8 = 3;
/// A gather or scatter: the address of element `i` is the address plus the `i`th index (signed, of
/// `index_bytes`, at `index`), shifted left by the scale; there is no index register. Values as for
/// `MASKED`.
pub const INDEXED: u8 = 4;
/// A bit test with a register: the operand lies as many times `size` bytes behind the address as
/// the signed number in the low `count` bytes of the register at `mask`, shifted right by the bits
/// of an operand, says.
pub const BIT: u8 = 5;

/// One access, which happens if the mask selects any of `count` elements: a broadcast.
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

/// The fragment is not to be recorded: its words only say what was executed meanwhile.
pub const UNINSTRUMENTED: u32 = 1;

/// In the list of a fragment's blocks: the conditional branch at the end of the block was taken.
pub const TAKEN: u32 = 1 << 31;

/// The conditional branch was not taken.
pub const TERMINATOR_NOT_TAKEN: u32 = 0;
/// The conditional branch was taken.
pub const TERMINATOR_TAKEN: u32 = 1;
/// A direct jump or call, or the block simply ended.
pub const TERMINATOR_DIRECT: u32 = 2;
/// An indirect jump, indirect call or return: the next path or event tells where to.
pub const TERMINATOR_INDIRECT: u32 = 3;
/// A system call; its event follows.
pub const TERMINATOR_SYSCALL: u32 = 4;

pub const FRAGMENT_FIXED: usize = 16;
/// Most blocks in a fragment, and most exits.
pub const FRAGMENT_BLOCKS_MAX: usize = 255;

pub const BLOCK_FIXED: usize = 16;
pub const MODULE_FIXED: usize = 32;

/// Longest code of a block in bytes.
pub const BLOCK_BYTES_MAX: usize = 1024;
