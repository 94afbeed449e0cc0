//! A hash table from addresses to numbers: open addressing, no allocation but for growing.

use alloc::vec::Vec;

/// A hash table from addresses to numbers.
pub struct Lookup {
    entries: Vec<(u64, u32)>,
    count: usize,
}

const EMPTY: u32 = u32::MAX;

impl Default for Lookup {
    fn default() -> Self {
        Self::new()
    }
}

impl Lookup {
    pub const fn new() -> Self {
        Self { entries: Vec::new(), count: 0 }
    }

    fn slot(&self, address: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.entries[at].1 != EMPTY && self.entries[at].0 != address {
            at = (at + 1) & mask;
        }
        at
    }

    pub fn get(&self, address: u64) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let (_, number) = self.entries[self.slot(address)];
        (number != EMPTY).then_some(number)
    }

    pub fn insert(&mut self, address: u64, number: u32) {
        if self.count * 2 >= self.entries.len() {
            self.grow();
        }
        let at = self.slot(address);
        if self.entries[at].1 == EMPTY {
            self.count += 1;
        }
        self.entries[at] = (address, number);
    }

    /// Removes an entry; those after it move up, so that they are still found.
    pub fn remove(&mut self, address: u64) {
        if self.get(address).is_none() {
            return;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.slot(address);
        self.entries[at].1 = EMPTY;
        self.count -= 1;
        loop {
            at = (at + 1) & mask;
            let (address, number) = core::mem::replace(&mut self.entries[at], (0, EMPTY));
            if number == EMPTY {
                return;
            }
            let slot = self.slot(address);
            self.entries[slot] = (address, number);
        }
    }

    fn grow(&mut self) {
        let capacity = (self.entries.len() * 2).max(1024);
        let old = core::mem::replace(&mut self.entries, alloc::vec![(0, EMPTY); capacity]);
        self.count = 0;
        for (address, number) in old {
            if number != EMPTY {
                self.insert(address, number);
            }
        }
    }
}
