//! What a program did to its memory, and how one instruction's accesses are found out: addresses
//! and values that are read are taken before the step, values that are written after it.
//!
//! Which accesses an instruction makes is known in [`crate::operand`].

use crate::tracee::Tracee;

/// One read or write of memory by an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// How many instructions the thread had executed before this one.
    pub instruction: u64,
    pub pc: u64,
    pub address: u64,
    pub writes: bool,
    /// What was read or written, in the order of memory; as long as the operand.
    pub value: Vec<u8>,
}

/// An access that an instruction will make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedAccess {
    pub address: u64,
    pub size: usize,
    pub writes: bool,
    /// If it is known before the step.
    pub value: Option<Vec<u8>>,
}

impl PlannedAccess {
    pub fn read(address: u64, size: usize) -> Self {
        Self { address, size, writes: false, value: None }
    }

    pub fn write(address: u64, size: usize) -> Self {
        Self { address, size, writes: true, value: None }
    }

    /// A write of what is known already: another one of the same instruction may go to the same
    /// place.
    pub fn write_of(address: u64, value: Vec<u8>) -> Self {
        Self { address, size: value.len(), writes: true, value: Some(value) }
    }

    pub fn covers(&self, address: u64) -> bool {
        self.writes && address.wrapping_sub(self.address) < self.size as u64
    }

    /// Takes the value from memory: before the step for reads, after it for writes. What cannot be
    /// read stays unknown, and matters only if the instruction does not fault.
    pub fn read_value(&mut self, tracee: Tracee) {
        if self.value.is_none() {
            let mut bytes = vec![0; self.size];
            let is_whole = tracee.read(self.address, &mut bytes) == self.size;
            self.value = is_whole.then_some(bytes);
        }
    }
}
