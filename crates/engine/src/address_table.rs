//! A hash table from application addresses to numbers: open addressing, no allocation but for
//! growing.

use alloc::vec::Vec;

use entity::AppPc;

/// A hash table from application addresses to numbers.
pub struct AddressTable {
    entries: Vec<(AppPc, u32)>,
    count: usize,
}

const EMPTY: u32 = u32::MAX;
const CAPACITY_MIN: usize = 1024;

impl Default for AddressTable {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressTable {
    pub const fn new() -> Self {
        Self { entries: Vec::new(), count: 0 }
    }

    fn slot(&self, address: AppPc) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = (address.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.entries[at].1 != EMPTY && self.entries[at].0 != address {
            at = (at + 1) & mask;
        }
        at
    }

    pub fn get(&self, address: AppPc) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let (_, number) = self.entries[self.slot(address)];
        (number != EMPTY).then_some(number)
    }

    pub fn insert(&mut self, address: AppPc, number: u32) {
        if self.count * 2 >= self.entries.len() {
            let capacity = (self.entries.len() * 2).max(CAPACITY_MIN);
            self.grow(Vec::with_capacity(capacity), capacity);
        }
        let at = self.slot(address);
        if self.entries[at].1 == EMPTY {
            self.count += 1;
        }
        self.entries[at] = (address, number);
    }

    /// Removes an entry; those after it move up, so that they are still found.
    pub fn remove(&mut self, address: AppPc) {
        if self.get(address).is_none() {
            return;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.slot(address);
        self.entries[at].1 = EMPTY;
        self.count -= 1;
        loop {
            at = (at + 1) & mask;
            let (address, number) = core::mem::replace(&mut self.entries[at], (AppPc::NONE, EMPTY));
            if number == EMPTY {
                return;
            }
            let slot = self.slot(address);
            self.entries[slot] = (address, number);
        }
    }

    /// Makes room for one more entry. False if there is no memory.
    pub fn reserve(&mut self) -> bool {
        self.reserve_many(1)
    }

    /// Makes room for more entries. False if there is no memory.
    pub fn reserve_many(&mut self, more: usize) -> bool {
        while (self.count + more) * 2 >= self.entries.len() {
            let mut entries = Vec::new();
            let capacity = (self.entries.len() * 2).max(CAPACITY_MIN);
            if entries.try_reserve_exact(capacity).is_err() {
                return false;
            }
            self.grow(entries, capacity);
        }
        true
    }

    fn grow(&mut self, mut entries: Vec<(AppPc, u32)>, capacity: usize) {
        entries.resize(capacity, (AppPc::NONE, EMPTY));
        let old = core::mem::replace(&mut self.entries, entries);
        self.count = 0;
        for (address, number) in old {
            if number != EMPTY {
                self.insert(address, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_is_a_map(steps in prop::collection::vec((0u64..300, any::<u32>(), any::<bool>()), 0..2000)) {
            let mut lookup = AddressTable::new();
            let mut model = HashMap::new();
            for (key, number, insert) in steps {
                // Few addresses, far apart and close together, so that they collide and are removed
                // again.
                let address = AppPc::new(key % 100 + (key / 100) * (1 << 40));
                if insert {
                    lookup.insert(address, number & 0x7fff_ffff);
                    model.insert(address, number & 0x7fff_ffff);
                } else {
                    lookup.remove(address);
                    model.remove(&address);
                }
                prop_assert_eq!(lookup.get(address), model.get(&address).copied());
            }
            for address in (0..300).map(|key| AppPc::new(key % 100 + (key / 100) * (1 << 40))) {
                prop_assert_eq!(lookup.get(address), model.get(&address).copied());
            }
        }
    }

    #[test]
    fn the_table_grows_and_shrinks() {
        let mut lookup = AddressTable::new();
        let address = |number: u32| AppPc::new(u64::from(number) * 16);
        assert_eq!(lookup.get(address(1)), None);
        lookup.remove(address(1));
        (0..10_000).for_each(|number| lookup.insert(address(number), number));
        (0..10_000).filter(|number| number % 3 != 0).for_each(|number| lookup.remove(address(number)));
        for number in 0..10_000 {
            assert_eq!(lookup.get(address(number)), (number % 3 == 0).then_some(number));
        }
    }
}
