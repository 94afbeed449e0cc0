//! The records of the code ring.
//!
//! A record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight. Records
//! wrap around the end of the ring byte by byte: positions are taken modulo
//! [`crate::CODE_RING_BYTES`]. A record is visible once `code_head` has moved past it, which is
//! before any thread can execute the code.

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

/// A fragment. Payload, in `u32`s: `first_path`, `block_count`, `exit_count`, flags
/// ([`UNINSTRUMENTED`]); then the block numbers in the order of execution, with [`TAKEN`] set if a
/// taken conditional branch leads to the next block; then the exits. Exit `i` ends the path
/// `first_path + i`: the first `exit & 0xffff` blocks were executed, and `exit >> 16` is the
/// terminator of the last one, one of the `TERMINATOR_*`.
pub const FRAGMENT: u32 = 4;

/// The access descriptors of a fragment; follows its [`FRAGMENT`] record if data is recorded.
/// Payload: `first_path: u32`, `exit_count: u32`, `access_count: u32`, 0; for each exit the bytes
/// of data behind its word, a multiple of four, as `u32`; then the [`AccessDescriptor`]s in the
/// order of execution. A path has those of its own blocks.
pub const ACCESS_DESCRIPTORS: u32 = 5;

/// How to rebuild one or more memory accesses from the data behind a path's word. `base`, `index`,
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
/// A repeated string instruction. At `index` is rcx before it; at `mask` are rcx and the address
/// register after it. The difference of rcx is the number of iterations. The first one is at the
/// address, the others lie above or below, depending on the difference of address registers. The
/// accesses of one instruction alternate, iteration by iteration. The value, if any, is that of
/// every iteration.
pub const STRING: u8 = 1;
/// `count` adjacent elements, of which the mask selects those that are accessed. The value of an
/// element is at its position in `value`.
pub const MASKED: u8 = 2;
/// As many adjacent elements as the mask selects. The value of each is at the position of its mask
/// bit.
pub const PACKED: u8 = 3;
/// A gather or scatter: the address of element `i` is the address plus the `i`th index (signed, of
/// `index_bytes`, at `index`), shifted left by the scale; there is no index register. Values as for
/// `MASKED`.
pub const INDEXED: u8 = 4;
/// A bit test with a register. The register at `mask`, of which the low `count` bytes are a signed
/// bit number, selects the operand: the bit number divided by the operand's bits, rounded down,
/// times `size`, is added to the address.
pub const BIT: u8 = 5;

/// A broadcast: one access, which happens if the mask selects any of `count` elements.
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

/// The fragment is not selected for recording: readers leave its paths out.
pub const UNINSTRUMENTED: u32 = 1;

/// In the list of a fragment's blocks: the conditional branch at the end of the block was taken.
pub const TAKEN: u32 = 1 << 31;

/// The conditional branch was not taken.
pub const TERMINATOR_NOT_TAKEN: u32 = 0;
/// The conditional branch was taken.
pub const TERMINATOR_TAKEN: u32 = 1;
/// A direct jump or call, or the end of a block that was cut.
pub const TERMINATOR_DIRECT: u32 = 2;
/// An indirect jump, indirect call or return. The next path or event gives the target.
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
