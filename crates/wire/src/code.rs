//! The records of the code ring.
//!
//! Each record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight. Records wrap around the end of
//! the ring byte by byte: positions are taken modulo [`crate::CODE_RING_BYTES`]. A record is visible once
//! `code_head` has moved past it, and `code_head` moves before any thread can execute the block it describes.

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`BLOCK`], [`MODULE`], [`UNMAP`] or [`FRAGMENT`].
    pub kind: u32,
    /// Bytes of payload, without padding.
    pub length: u32,
}

/// Payload: `address: u64, block: u32, reserved: u32`, then the block's code bytes. Blocks end after the first
/// instruction that can transfer control (or traps, or is a system call), or where the engine cut them.
pub const BLOCK: u32 = 1;
/// Payload: `address: u64, length: u64, file_offset: u64, tsc: u64`, then the path. A file was mapped executable.
pub const MODULE: u32 = 2;
/// Payload: `address: u64, length: u64, tsc: u64`. Code in this range is no longer there.
pub const UNMAP: u32 = 3;

/// Payload, in `u32`s: `first_path`, `block_count`, `exit_count`, 0; then the blocks in the order of execution, each its
/// number with [`TAKEN`] set if it is followed by the next one through a taken conditional branch; then the exits. Exit `i`
/// is the path `first_path + i`: it has executed the first `exit & 0xffff` blocks and left the last of them in the way
/// `exit >> 16`, one of the `LEAVE_*`.
pub const FRAGMENT: u32 = 4;

/// In the list of a fragment's blocks: the conditional branch at the end of the block was taken.
pub const TAKEN: u32 = 1 << 31;

/// The conditional branch was not taken.
pub const LEAVE_NOT_TAKEN: u32 = 0;
/// The conditional branch was taken.
pub const LEAVE_TAKEN: u32 = 1;
/// A direct jump or call, or the block simply ended.
pub const LEAVE_DIRECT: u32 = 2;
/// An indirect jump, indirect call or return: the next path or event tells where to.
pub const LEAVE_INDIRECT: u32 = 3;
/// A system call; its event follows.
pub const LEAVE_SYSCALL: u32 = 4;

pub const FRAGMENT_FIXED: usize = 16;
/// Most blocks in a fragment, and most exits.
pub const FRAGMENT_BLOCKS_MAX: usize = 255;

pub const BLOCK_FIXED: usize = 16;
pub const MODULE_FIXED: usize = 32;

/// Longest code of a block in bytes.
pub const BLOCK_BYTES_MAX: usize = 1024;
