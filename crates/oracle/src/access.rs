//! Accesses to memory, and how their values are found: those of reads before the step, those of
//! writes after it.
//!
//! [`crate::operand`] knows which accesses an instruction makes.

use crate::tracee::Tracee;

/// One read or write of memory by an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// How many instructions the thread had executed before this one.
    pub instruction: u64,
    pub pc: u64,
    pub address: u64,
    pub writes: bool,
    /// The value, in memory order, as long as the operand.
    pub value: Vec<u8>,
}

/// An access that the next instruction will make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAccess {
    pub address: u64,
    pub size: usize,
    pub writes: bool,
    /// The value, once it is known.
    pub value: Option<Vec<u8>>,
}

impl PlannedAccess {
    pub fn read(address: u64, size: usize) -> Self {
        Self { address, size, writes: false, value: None }
    }

    pub fn write(address: u64, size: usize) -> Self {
        Self { address, size, writes: true, value: None }
    }

    /// A write of a known value: another write of the same instruction may go to the same place.
    pub fn write_of(address: u64, value: Vec<u8>) -> Self {
        Self { address, size: value.len(), writes: true, value: Some(value) }
    }

    pub fn covers(&self, address: u64) -> bool {
        self.writes && address.wrapping_sub(self.address) < self.size as u64
    }

    /// Reads the value from memory: before the step for reads, after it for writes. A value that
    /// cannot be read stays unknown; that matters only if the instruction does not fault.
    pub fn read_value(&mut self, tracee: Tracee) {
        if self.value.is_none() {
            let mut bytes = vec![0; self.size];
            let is_whole = tracee.read(self.address, &mut bytes) == self.size;
            self.value = is_whole.then_some(bytes);
        }
    }
}
