//! The records of the code ring.
//!
//! Each record is a [`Header`] and `length` bytes of payload, padded to a multiple of eight. Records wrap around the end of
//! the ring byte by byte: positions are taken modulo [`crate::CODE_RING_BYTES`]. A record is visible once
//! `code_head` has moved past it, and `code_head` moves before any thread can execute the block it describes.

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`BLOCK`] or [`MODULE`].
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

pub const BLOCK_FIXED: usize = 16;
pub const MODULE_FIXED: usize = 32;

/// Longest code of a block in bytes.
pub const BLOCK_BYTES_MAX: usize = 1024;
