//! The iterations of a string instruction, which stay together until a caller iterates them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::AppPc;

use super::{Access, NO_VALUE};

/// Iterations of a string instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StringRun {
    pub(super) count: u64,
    pub(super) first: StridedAccess,
    pub(super) second: Option<StridedAccess>,
}

/// An access that every iteration makes once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StridedAccess {
    pub(super) address: u64,
    /// Distance from one iteration's address to the next.
    pub(super) stride: u64,
    /// Size and direction, as in [`Access`].
    pub(super) size: u32,
    pub(super) value: u32,
    pub(super) value_stride: u32,
    /// Addresses are cut to these bits, relative to `origin`.
    pub(super) cut: u64,
    pub(super) origin: u64,
}

impl StridedAccess {
    fn access(&self, pc: AppPc, iteration: u64) -> Access {
        let address = self.address.wrapping_add(self.stride.wrapping_mul(iteration)) & self.cut;
        let value = match self.value {
            NO_VALUE => NO_VALUE,
            // A u32 holds any position of a value in a batch.
            value => value.wrapping_add(u32::try_from(iteration).unwrap_or(0).wrapping_mul(self.value_stride)),
        };
        Access { pc, address: address.wrapping_add(self.origin), size: self.size, value }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Iterations<'b> {
    run: &'b StringRun,
    pc: AppPc,
    done: u64,
    second: bool,
}

impl<'b> Iterations<'b> {
    pub(super) fn of(run: &'b StringRun, pc: AppPc) -> Self {
        Self { run, pc, done: 0, second: false }
    }
}

impl Iterator for Iterations<'_> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if self.done >= self.run.count {
            return None;
        }
        let iteration = self.done;
        let part = match self.run.second.filter(|_| self.second) {
            Some(second) => second,
            None => self.run.first,
        };
        self.second = !self.second && self.run.second.is_some();
        self.done += u64::from(!self.second);
        Some(part.access(self.pc, iteration))
    }
}
