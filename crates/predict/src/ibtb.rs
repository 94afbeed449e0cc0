//! Indirect branch target buffer: targets of indirect jumps and calls in two ways, indexed by the
//! branch's address and the path of previous branches (Myers 2014, Figures 4.26 and 4.27; Tewar
//! 2015, section 4.3 and Table 6.3).

use crate::size::{IllegalSize, Structure, power_of_two};

/// Low bits of an address that are ignored.
const ADDRESS_SHIFT: u32 = 4;
/// Bits of an address that enter the path history.
const PATH_ADDRESS_MASK: u64 = 0x7ff;
/// Width of a tag. Path bits above the tag enter the index.
const TAG_BITS: u32 = 8;
const ENTRIES_MAX: usize = 1 << 24;

/// Selection of a way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tagging {
    /// By tag, the low bits of the path. The buffer predicts one target, which a decoder with the
    /// same buffer can reproduce.
    #[default]
    Tagged,
    /// Predicted if either way has the target. The buffer does not say which way, so messages that
    /// are filtered this way cannot be decoded.
    Untagged,
}

/// Victim of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victim {
    /// The way that was not used last.
    #[default]
    Older,
    /// Always the first way, as in the listing of Myers 2014, Figure 4.27, which compares the array
    /// of last used ways instead of its element.
    First,
}

#[derive(Clone, Copy, Debug, Default)]
struct TargetEntry {
    target: u64,
    /// Tag; a value above all tags in empty entries.
    tag: u16,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    ways: [TargetEntry; 2],
    last_used: u8,
}

impl Default for Set {
    /// Fills the first way first.
    fn default() -> Self {
        let empty = TargetEntry { target: 0, tag: u16::MAX };
        Self { ways: [empty; 2], last_used: 1 }
    }
}

#[derive(Clone, Debug)]
pub struct Ibtb {
    sets: Vec<Set>,
    /// Path history, latest branch in the lowest bits.
    path: u16,
    tagging: Tagging,
    victim: Victim,
}

impl Ibtb {
    /// Returns a buffer with a power of two of entries, in sets of two, or with 0 entries, which
    /// never predicts.
    pub fn new(entries: usize, tagging: Tagging) -> Result<Self, IllegalSize> {
        let entries = power_of_two(Structure::Ibtb, entries, 2, ENTRIES_MAX)?;
        Ok(Self { sets: vec![Set::default(); entries / 2], path: 0, tagging, victim: Victim::Older })
    }

    #[must_use]
    pub fn with_victim(mut self, victim: Victim) -> Self {
        self.victim = victim;
        self
    }

    /// Sets the initial path history.
    #[must_use]
    pub fn with_path(mut self, path: u16) -> Self {
        self.path = path;
        self
    }

    /// Returns the path history.
    #[must_use]
    pub fn path(&self) -> u16 {
        self.path
    }

    /// Returns the index of the set for the branch at `address`; 0 if there are no sets.
    #[must_use]
    #[inline]
    pub fn index(&self, address: u64) -> usize {
        // Truncation keeps the low bits.
        let address = (address >> ADDRESS_SHIFT) as usize;
        if self.sets.is_empty() { 0 } else { (usize::from(self.path >> TAG_BITS) ^ address) & (self.sets.len() - 1) }
    }

    /// Returns the targets of a set; 0 in empty entries.
    #[must_use]
    pub fn targets(&self, index: usize) -> Option<[u64; 2]> {
        self.sets.get(index).map(|set| set.ways.map(|way| way.target))
    }

    #[inline]
    fn tag(&self) -> u16 {
        self.path & ((1 << TAG_BITS) - 1)
    }

    /// Returns the predicted target of the branch at `address`; always `None` if untagged.
    #[must_use]
    #[inline]
    pub fn predict(&self, address: u64) -> Option<u64> {
        let set = self.sets.get(self.index(address))?;
        let tag = self.tag();
        match self.tagging {
            Tagging::Tagged => set.ways.iter().find(|way| way.tag == tag).map(|way| way.target),
            Tagging::Untagged => None,
        }
    }

    /// Updates the buffer with an executed branch. Returns whether it was predicted.
    #[inline]
    pub fn update(&mut self, address: u64, target: u64) -> bool {
        let (index, tag, tagging) = (self.index(address), self.tag(), self.tagging);
        self.path = (self.path << 2 ^ (address >> ADDRESS_SHIFT & PATH_ADDRESS_MASK) as u16) | 1;
        let Some(set) = self.sets.get_mut(index) else { return false };
        let found = set.ways.iter().position(|way| match tagging {
            Tagging::Tagged => way.tag == tag,
            Tagging::Untagged => way.target == target,
        });
        let way = found.unwrap_or(match self.victim {
            Victim::Older => usize::from(set.last_used ^ 1),
            Victim::First => 0,
        });
        let is_correct = found.is_some() && set.ways[way].target == target;
        set.ways[way] = TargetEntry { target, tag };
        set.last_used = way as u8;
        is_correct
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Myers 2014, Figure 4.35: the same indirect call ten times.
    #[test]
    fn myers_figure_4_35() {
        let mut ibtb = Ibtb::new(64, Tagging::Untagged).unwrap();
        let (address, target) = (0x40049c, 0x400474);
        // The figure shows the first three calls and the last two: path and set before, targets in
        // the set, whether one was correct, and the low bits of the path after.
        let first = [(0, 9, 0, false, 0x49), (0x49, 9, target, true, 0x6d), (0x16d, 8, 0, false, 0xfd)];
        let last = [(0xaabd, 3, target, true, 0xbd); 2];
        let shown = first.map(Some).into_iter().chain([None; 5]).chain(last.map(Some));
        for call in shown {
            let (path, index) = (ibtb.path(), ibtb.index(address));
            let targets = ibtb.targets(index);
            let is_correct = ibtb.update(address, target);
            if let Some((own_path, own_index, way, own_correct, new_path)) = call {
                assert_eq!((path, index, targets, is_correct), (own_path, own_index, Some([way, 0]), own_correct));
                assert_eq!(ibtb.path() & 0xff, new_path);
            }
        }
    }

    /// Tewar 2015, Table 6.3: twenty calls through a pointer, of which the last thirteen are
    /// predicted.
    #[test]
    fn tewar_table_6_3() {
        let mut ibtb = Ibtb::new(64, Tagging::Tagged).unwrap().with_path(0x13c9);
        let (address, target) = (0x8048e76, 0x8048e44);
        for (path, index) in [(0x13c9, 20), (0x4fc3, 8), (0x3feb, 24), (0xff4b, 24), (0xfdcb, 26)] {
            assert_eq!((ibtb.path(), ibtb.index(address)), (path, index));
            assert!(!ibtb.update(address, target));
        }
        let is_correct: Vec<bool> = (5..20).map(|_| ibtb.update(address, target)).collect();
        assert_eq!(is_correct, [&[false; 2][..], &[true; 13]].concat());
    }

    #[test]
    fn the_way_used_last_is_kept() {
        let mut ibtb = Ibtb::new(2, Tagging::Untagged).unwrap();
        assert!(!ibtb.update(0, 1) && !ibtb.update(0, 2));
        assert!(ibtb.update(0, 1));
        assert!(!ibtb.update(0, 3));
        assert_eq!(ibtb.targets(0), Some([1, 3]));
        let mut ibtb = Ibtb::new(2, Tagging::Untagged).unwrap().with_victim(Victim::First);
        assert!(!ibtb.update(0, 1) && !ibtb.update(0, 2) && !ibtb.update(0, 1));
        assert_eq!(ibtb.targets(0), Some([1, 0]));
    }

    #[test]
    fn sizes() {
        assert!(Ibtb::new(1, Tagging::Tagged).is_err() && Ibtb::new(48, Tagging::Tagged).is_err());
        let mut none = Ibtb::new(0, Tagging::Tagged).unwrap();
        assert_eq!((none.predict(5), none.update(5, 6)), (None, false));
    }

    proptest! {
        /// A prediction is correct exactly if it equals the target.
        #[test]
        fn tagged_it_predicts_one_target(
            branches in proptest::collection::vec((0u64..256, 1u64..4), 0..400),
            power in 1u32..8,
        ) {
            let mut ibtb = Ibtb::new(1 << power, Tagging::Tagged).unwrap();
            for (address, target) in branches {
                let predicted = ibtb.predict(address);
                prop_assert_eq!(ibtb.update(address, target), predicted == Some(target));
            }
        }
    }
}
