//! Calls of allocation routines, and system calls that map memory, as events have them.

use std::fmt;

use entity::AppPc;
use wire::routine;

use crate::model::CallStackId;

/// An allocation routine. All variants of `operator new` and `operator delete` count as one, apart
/// from those for arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RoutineKind {
    Malloc = routine::MALLOC,
    Calloc = routine::CALLOC,
    Realloc = routine::REALLOC,
    Free = routine::FREE,
    AlignedAlloc = routine::ALIGNED_ALLOC,
    PosixMemalign = routine::POSIX_MEMALIGN,
    Memalign = routine::MEMALIGN,
    Valloc = routine::VALLOC,
    Reallocarray = routine::REALLOCARRAY,
    New = routine::NEW,
    NewArray = routine::NEW_ARRAY,
    Delete = routine::DELETE,
    DeleteArray = routine::DELETE_ARRAY,
}

impl RoutineKind {
    const ALL: [Self; 13] = [
        Self::Malloc,
        Self::Calloc,
        Self::Realloc,
        Self::Free,
        Self::AlignedAlloc,
        Self::PosixMemalign,
        Self::Memalign,
        Self::Valloc,
        Self::Reallocarray,
        Self::New,
        Self::NewArray,
        Self::Delete,
        Self::DeleteArray,
    ];

    /// Returns the routine with this `wire::routine` number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|routine| *routine as u8 == number)
    }

    /// Returns the name in the source.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Realloc => "realloc",
            Self::Free => "free",
            Self::AlignedAlloc => "aligned_alloc",
            Self::PosixMemalign => "posix_memalign",
            Self::Memalign => "memalign",
            Self::Valloc => "valloc",
            Self::Reallocarray => "reallocarray",
            Self::New => "operator new",
            Self::NewArray => "operator new[]",
            Self::Delete => "operator delete",
            Self::DeleteArray => "operator delete[]",
        }
    }

    /// Returns whether the routine gives its first argument back and allocates nothing.
    #[must_use]
    pub fn only_frees(self) -> bool {
        matches!(self, Self::Free | Self::Delete | Self::DeleteArray)
    }
}

impl fmt::Display for RoutineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call of an allocation routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutineCall {
    pub routine: RoutineKind,
    /// The entry of the routine.
    pub pc: AppPc,
    /// The stack pointer at the entry.
    pub stack_pointer: u64,
    /// The first three integer arguments.
    pub arguments: [u64; 3],
    /// Where the routine returns to.
    pub caller: AppPc,
    /// The return addresses of the calls that have led here, `caller` included.
    pub stack: CallStackId,
}

impl RoutineCall {
    /// Returns the number of bytes asked for; `None` if the routine allocates nothing.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        let [first, second, third] = self.arguments;
        Some(match self.routine {
            RoutineKind::Malloc | RoutineKind::Valloc | RoutineKind::New | RoutineKind::NewArray => first,
            RoutineKind::Calloc => first.saturating_mul(second),
            RoutineKind::Realloc | RoutineKind::AlignedAlloc | RoutineKind::Memalign => second,
            RoutineKind::PosixMemalign => third,
            RoutineKind::Reallocarray => second.saturating_mul(third),
            RoutineKind::Free | RoutineKind::Delete | RoutineKind::DeleteArray => return None,
        })
    }

    /// Returns the block that the routine gives back or resizes, if it was given one.
    #[must_use]
    pub fn old_block(&self) -> Option<u64> {
        let [first, ..] = self.arguments;
        let is_given =
            self.routine.only_frees() || matches!(self.routine, RoutineKind::Realloc | RoutineKind::Reallocarray);
        (is_given && first != 0).then_some(first)
    }
}

/// A system call that has mapped, unmapped or moved memory: mmap, munmap, mremap or brk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingCall {
    pub number: u32,
    /// The first three arguments.
    pub arguments: [u64; 3],
    /// What the kernel has returned: an address, 0, or an error as a negative number.
    pub result: u64,
    /// Whether an allocation routine has made the call.
    pub is_nested: bool,
    /// The return addresses of the calls that have led here.
    pub stack: CallStackId,
}

impl MappingCall {
    /// Returns the name of the system call.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.number {
            9 => "mmap",
            11 => "munmap",
            12 => "brk",
            25 => "mremap",
            _ => "unknown",
        }
    }

    /// Returns whether the kernel has refused the call.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        const ERROR_MAX: u64 = 4095;
        self.result.wrapping_neg().wrapping_sub(1) < ERROR_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(routine: RoutineKind) -> RoutineCall {
        let stack = CallStackId::EMPTY;
        RoutineCall { routine, pc: AppPc::NONE, stack_pointer: 0, arguments: [2, 3, 5], caller: AppPc::NONE, stack }
    }

    #[test]
    fn routines_have_numbers() {
        for routine in RoutineKind::ALL {
            assert_eq!(RoutineKind::from_number(routine as u8), Some(routine));
        }
        assert_eq!(RoutineKind::from_number(0), None);
        assert_eq!(RoutineKind::from_number(99), None);
    }

    #[test]
    fn sizes_and_blocks() {
        let of = |routine| (call(routine).size(), call(routine).old_block());
        assert_eq!(of(RoutineKind::Malloc), (Some(2), None));
        assert_eq!(of(RoutineKind::Calloc), (Some(6), None));
        assert_eq!(of(RoutineKind::Realloc), (Some(3), Some(2)));
        assert_eq!(of(RoutineKind::Reallocarray), (Some(15), Some(2)));
        assert_eq!(of(RoutineKind::PosixMemalign), (Some(5), None));
        assert_eq!(of(RoutineKind::Delete), (None, Some(2)));
        let huge = RoutineCall { arguments: [u64::MAX, 2, 0], ..call(RoutineKind::Calloc) };
        assert_eq!(huge.size(), Some(u64::MAX));
    }

    #[test]
    fn failed_calls() {
        let of = |result: i64| {
            let result = result.cast_unsigned();
            MappingCall { number: 9, arguments: [0; 3], result, is_nested: false, stack: CallStackId::EMPTY }
        };
        assert!(of(-12).has_failed() && of(-4095).has_failed());
        assert!(!of(0).has_failed() && !of(0x7fff_0000_0000).has_failed() && !of(-4096).has_failed());
    }
}
