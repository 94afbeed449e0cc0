//! Targets of returns: a return address stack that overwrites its oldest entry when it is full.

use crate::size::{IllegalSize, Structure};

const ENTRIES_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct Ras {
    /// 0 in entries that were never pushed.
    entries: Vec<u64>,
    /// Index of the entry that predicts the next return.
    top: usize,
}

impl Ras {
    /// Returns a stack of 0 to 64 entries; with 0 entries it never predicts.
    pub fn new(entries: usize) -> Result<Self, IllegalSize> {
        if entries > ENTRIES_MAX {
            let structure = Structure::Ras;
            return Err(IllegalSize { structure, entries, below: Some(ENTRIES_MAX), above: None });
        }
        Ok(Self { entries: vec![0; entries], top: 0 })
    }

    /// Pushes the return address of a call.
    #[inline]
    pub fn push(&mut self, address: u64) {
        self.top = if self.top + 1 >= self.entries.len() { 0 } else { self.top + 1 };
        if let Some(entry) = self.entries.get_mut(self.top) {
            *entry = address;
        }
    }

    /// Pops an entry. Returns whether it predicted `target`.
    #[inline]
    pub fn pop_matches(&mut self, target: u64) -> bool {
        self.pop() == Some(target)
    }

    /// Pops and returns the predicted target; `None` without entries.
    #[inline]
    pub fn pop(&mut self) -> Option<u64> {
        let entry = self.entries.get(self.top).copied();
        self.top = self.top.checked_sub(1).unwrap_or(self.entries.len().saturating_sub(1));
        entry
    }

    /// Returns the index and value of the entry that predicts the next return.
    #[must_use]
    pub fn top(&self) -> Option<(usize, u64)> {
        self.entries.get(self.top).map(|&entry| (self.top, entry))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Myers 2014, Figure 4.33: a function that calls itself five times; the outermost caller was
    /// not called.
    #[test]
    fn myers_figure_4_33() {
        let mut ras = Ras::new(16).unwrap();
        ras.push(0x4004a6);
        (0..5).for_each(|_| ras.push(0x400493));
        for number in [6, 5, 4, 3, 2] {
            assert_eq!(ras.top(), Some((number, 0x400493)));
            assert!(ras.pop_matches(0x400493));
        }
        assert_eq!(ras.top(), Some((1, 0x4004a6)));
        assert!(ras.pop_matches(0x4004a6));
        assert_eq!(ras.top(), Some((0, 0)));
        assert!(!ras.pop_matches(0x7fd2_349a_7cdd));
    }

    /// Tewar 2015, Figure 6.17: nested calls, with one entry in use before them.
    #[test]
    fn tewar_figure_6_17() {
        let mut ras = Ras::new(16).unwrap();
        ras.push(0xb766_9470);
        let calls = [0x804848f, 0x804846c, 0x8048459, 0x8048446, 0x8048433];
        for (number, address) in (2..).zip(calls) {
            ras.push(address);
            assert_eq!(ras.top(), Some((number, address)));
        }
        for (number, pair) in [5, 4, 3].into_iter().zip([0x8048433, 0x8048446, 0x8048459, 0x804846c].windows(2)) {
            assert!(ras.pop_matches(pair[0]));
            assert_eq!(ras.top(), Some((number, pair[1])));
        }
        assert!(ras.pop_matches(0x804846c) && ras.pop_matches(0x804848f));
        assert!(!ras.pop_matches(0xb7df_ca83));
    }

    #[test]
    fn a_full_stack_overwrites_its_oldest_entry() {
        let mut ras = Ras::new(2).unwrap();
        (1..=3).for_each(|address| ras.push(address));
        assert!(ras.pop_matches(3) && ras.pop_matches(2) && !ras.pop_matches(1));
    }

    #[test]
    fn sizes() {
        assert!((0..=64).all(|entries| Ras::new(entries).is_ok()));
        assert_eq!(Ras::new(65).unwrap_err().below, Some(64));
        let mut none = Ras::new(0).unwrap();
        none.push(5);
        assert_eq!((none.top(), none.pop_matches(5)), (None, false));
    }

    proptest! {
        /// As long as no more calls are open than there are entries.
        #[test]
        fn addresses_return_in_the_order_of_a_stack(
            steps in proptest::collection::vec(proptest::option::of(1u64..9), 0..300),
            entries in 1usize..=64,
        ) {
            let (mut ras, mut stack) = (Ras::new(entries).unwrap(), Vec::new());
            for step in steps {
                match step {
                    Some(address) if stack.len() < entries => {
                        ras.push(address);
                        stack.push(address);
                    }
                    _ => if let Some(address) = stack.pop() {
                        prop_assert!(ras.pop_matches(address));
                    }
                }
            }
        }
    }
}
