//! The numbers and addresses by which engine, recorder and readers refer to the same things: an
//! instruction of the application, a block, a fragment, a path, a thread, a moment.
//!
//! Each is a type of its own, so that a path cannot be taken for a block, nor an address of
//! translated code for one of the application. All of them are as large as the integer inside and
//! cost nothing. `new` and `get` convert where a number enters or leaves this world: words of a
//! ring, bytes of a file, printed text, predictors and caches.
//!
//! Arithmetic wraps around, because the numbers may come from a damaged trace.
#![no_std]

use core::fmt;
use core::ops::{Add, Sub};

/// The directory of this crate's sources, from which `capture` builds the engine image.
pub const MANIFEST_DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");

/// Defines a type around an integer.
macro_rules! newtype {
    ($(#[$attribute:meta])* $name:ident($integer:ty)) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($integer);

        impl $name {
            #[must_use]
            #[inline]
            pub const fn new(number: $integer) -> Self {
                Self(number)
            }

            /// Returns the integer inside.
            #[must_use]
            #[inline]
            pub const fn get(self) -> $integer {
                self.0
            }
        }

        impl From<$name> for $integer {
            #[inline]
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

/// Prints a number as the integer inside.
macro_rules! display_as_integer {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )*};
}

newtype! {
    /// The address of an instruction of the application. In translated code, the same instruction
    /// is elsewhere.
    ///
    /// Addresses are printed in hexadecimal: `{:#x}`.
    AppPc(u64)
}

newtype! {
    /// The number of a basic block in a recording, as fragments name it.
    BlockId(u32)
}

newtype! {
    /// The number of a path in a recording: one way through a fragment, from its entry to an exit.
    /// Zero is no path.
    PathId(u32)
}

newtype! {
    /// The number of a thread in a recording. It is never used twice, unlike the kernel's.
    ThreadId(u32)
}

newtype! {
    /// A value of the processor's timestamp counter.
    Tsc(u64)
}

display_as_integer! { BlockId PathId ThreadId Tsc }

/// The number of a fragment in a recording: that of the path to its first exit. The paths to its
/// other exits follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct FragmentId(PathId);

impl AppPc {
    /// What stands for no address: where a thread ends, or where a trace does not say how it goes
    /// on.
    pub const NONE: Self = Self(0);

    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The address so many bytes behind.
impl Add<u64> for AppPc {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// The number of bytes from one address to another.
impl Sub for AppPc {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0.wrapping_sub(start.0)
    }
}

impl fmt::LowerHex for AppPc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl ThreadId {
    /// The thread that a recording began with.
    pub const FIRST: Self = Self(0);
}

impl Tsc {
    /// What stands for no timestamp.
    pub const NONE: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The number of ticks from one moment to another.
impl Sub for Tsc {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0.wrapping_sub(start.0)
    }
}

impl FragmentId {
    #[must_use]
    #[inline]
    pub const fn new(first_path: PathId) -> Self {
        Self(first_path)
    }

    /// Returns the path to the first exit.
    #[must_use]
    #[inline]
    pub const fn first_path(self) -> PathId {
        self.0
    }

    /// Returns the path to the exit with this index.
    #[must_use]
    #[inline]
    pub const fn path(self, exit: u32) -> PathId {
        PathId(self.0.0.wrapping_add(exit))
    }

    /// Iterates the paths to the exits in order, without an end.
    #[inline]
    pub fn paths(self) -> impl Iterator<Item = PathId> {
        (0..).map(move |exit| self.path(exit))
    }

    /// Returns the index of the exit that `path` leads to, if `path` is one of this fragment.
    #[must_use]
    #[inline]
    pub const fn exit_of(self, path: PathId) -> u32 {
        path.0.wrapping_sub(self.0.0)
    }
}

impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;

    use super::*;

    #[test]
    fn numbers_are_as_large_as_their_integers() {
        assert_eq!([size_of::<AppPc>(), size_of::<Tsc>()], [8, 8]);
        assert_eq!([size_of::<PathId>(), size_of::<FragmentId>(), size_of::<BlockId>(), size_of::<ThreadId>()], [4; 4]);
    }

    #[test]
    fn arithmetic_wraps_around() {
        let pc = AppPc::new(u64::MAX);
        assert_eq!(pc + 2, AppPc::new(1));
        assert_eq!(AppPc::new(1) - pc, 2);
        assert_eq!(Tsc::new(1) - Tsc::new(u64::MAX), 2);
        assert_eq!(FragmentId::new(PathId::new(u32::MAX)).path(1), PathId::new(0));
    }

    #[test]
    fn a_fragment_numbers_its_paths() {
        let fragment = FragmentId::new(PathId::new(7));
        assert_eq!((fragment.first_path(), fragment.path(2)), (PathId::new(7), PathId::new(9)));
        assert_eq!(fragment.exit_of(PathId::new(9)), 2);
        assert!(fragment.paths().take(2).eq([PathId::new(7), PathId::new(8)]));
    }

    #[test]
    fn numbers_are_printed() {
        assert_eq!(format!("{:#x} {}", AppPc::new(0x40_1000), FragmentId::new(PathId::new(7))), "0x401000 7");
        assert_eq!(format!("{:?}", AppPc::new(16)), "AppPc(16)");
    }
}
