//! Addresses of translated code. Those of the application's code are [`AppPc`](entity::AppPc)s.

use core::fmt;
use core::ops::{Add, Sub};

/// The address of an instruction in the code cache. The application has the same instruction
/// elsewhere: see [`crate::fragment::AppPosition`].
///
/// Addresses are printed in hexadecimal: `{:#x}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct CachePc(u64);

impl CachePc {
    /// What stands for no address: where there is no code, or not yet.
    pub const NONE: Self = Self(0);

    #[must_use]
    #[inline]
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the integer inside.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The address so many bytes behind.
impl Add<u64> for CachePc {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// The address so many bytes before.
impl Sub<u64> for CachePc {
    type Output = Self;

    #[inline]
    fn sub(self, bytes: u64) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// The number of bytes from one address to another.
impl Sub for CachePc {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0.wrapping_sub(start.0)
    }
}

impl fmt::LowerHex for CachePc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_in_bytes() {
        let pc = CachePc::new(0x40_1000);
        assert_eq!((pc + 2 - pc, pc - 2 + 2), (2, pc));
        assert_eq!(format!("{pc:#x}"), "0x401000");
        assert!(CachePc::NONE.is_none() && !pc.is_none());
    }
}
