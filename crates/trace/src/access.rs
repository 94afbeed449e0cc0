//! Memory accesses, and how the reader decodes them from the data behind a path.
//!
//! An [`AccessBuffer`] collects the accesses of a batch, step by step and event by event. The
//! descriptors of the path say how to decode them ([`crate::descriptors`]); an [`AccessData`]
//! computes their addresses. The iterations of a string instruction stay together in a `StringRun`
//! until a caller iterates them ([`Accesses`]), because a file could claim any number of them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod buffer;
mod data;
mod iterate;
mod string_run;

use entity::AppPc;

pub(crate) use buffer::{AccessBuffer, Interruption};
pub(crate) use data::{AccessContext, AccessData};
pub use iterate::Accesses;

/// Whether memory was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    Read,
    Write,
}

/// One memory access of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pc: AppPc,
    address: u64,
    /// Bytes; the top bit is set for a write.
    size: u32,
    /// Position of its value among those of the batch.
    value: u32,
}

/// In [`Access::size`].
const WRITE: u32 = 1 << 31;
/// In [`Access::size`]: the entry is not an access but a [`StringRun`], whose index is in `value`.
const RUN: u32 = WRITE - 1;
const NO_VALUE: u32 = u32::MAX;

impl Access {
    /// Returns the address of the instruction.
    #[must_use]
    #[inline]
    pub fn pc(&self) -> AppPc {
        self.pc
    }

    /// Returns the address of the first byte.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u32 {
        self.size & !WRITE
    }

    #[must_use]
    #[inline]
    pub fn kind(&self) -> AccessKind {
        if self.is_write() { AccessKind::Write } else { AccessKind::Read }
    }

    #[must_use]
    #[inline]
    pub fn is_write(&self) -> bool {
        self.size & WRITE != 0
    }
}

fn size_of_access(size: u32, writes: bool) -> u32 {
    size.min(RUN - 1) | if writes { WRITE } else { 0 }
}
