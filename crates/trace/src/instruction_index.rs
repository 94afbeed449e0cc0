//! The position of an instruction in an execution.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// The number of an instruction, counted from 0: in what one thread executed, or in the merged
/// order of all threads.
///
/// ```
/// use trackway_trace::InstructionIndex;
///
/// let (start, end) = (InstructionIndex::new(5), InstructionIndex::new(7));
/// assert_eq!((start + 2, end - start), (end, 2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct InstructionIndex(u64);

impl InstructionIndex {
    pub const FIRST: Self = Self(0);

    #[must_use]
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number, which is that of the instructions before this one.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The index so many instructions later. Saturates, because headers of a damaged file may hold
/// anything.
impl Add<u64> for InstructionIndex {
    type Output = Self;

    #[inline]
    fn add(self, instructions: u64) -> Self {
        Self(self.0.saturating_add(instructions))
    }
}

impl AddAssign<u64> for InstructionIndex {
    #[inline]
    fn add_assign(&mut self, instructions: u64) {
        *self = *self + instructions;
    }
}

/// The number of instructions from one index to another; 0 if the other is not later.
impl Sub for InstructionIndex {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0.saturating_sub(start.0)
    }
}

impl fmt::Display for InstructionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let (first, last) = (InstructionIndex::FIRST, InstructionIndex::new(u64::MAX));
        assert_eq!((last + 1, last - first, first - last), (last, u64::MAX, 0));
    }
}
