//! The allocation routines that a recorder looks for, as the engine and the trace number them.

pub const MALLOC: u8 = 1;
pub const CALLOC: u8 = 2;
pub const REALLOC: u8 = 3;
pub const FREE: u8 = 4;
pub const ALIGNED_ALLOC: u8 = 5;
/// Stores its result at its first argument.
pub const POSIX_MEMALIGN: u8 = 6;
pub const MEMALIGN: u8 = 7;
pub const VALLOC: u8 = 8;
pub const REALLOCARRAY: u8 = 9;
/// `operator new` and `operator new[]`, with and without an alignment.
pub const NEW: u8 = 10;
pub const NEW_ARRAY: u8 = 11;
/// `operator delete` and `operator delete[]`.
pub const DELETE: u8 = 12;
pub const DELETE_ARRAY: u8 = 13;
