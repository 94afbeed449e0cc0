//! The targets of indirect jumps and calls: a buffer of two ways, looked up by the branch's address and the path to it
//! (Myers 2014, Figures 4.26 and 4.27; Tewar 2015, section 4.3 and Table 6.3).

use crate::size::{IllegalSize, Structure, power_of_two};

/// Low bits of an address that are not looked at.
const ADDRESS_SHIFT: u32 = 4;
/// Bits of an address that become part of the path.
const PATH_ADDRESS_MASK: u64 = 0x7ff;
/// The part of the path that chooses a set is above the part that is compared.
const TAG_BITS: u32 = 8;
const ENTRIES_MAX: usize = 1 << 24;

/// How a way is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tagging {
    /// By a tag, the low bits of the path: the buffer predicts one target, so that whoever has the same buffer knows it.
    #[default]
    Tagged,
    /// It counts as predicted if either way has the target. Nobody could tell which, so that what is filtered by it cannot be
    /// decoded.
    Untagged,
}

/// The way that gives its place to a new target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victim {
    /// The one that was not used last.
    #[default]
    Older,
    /// Always the first. This is what the listing of Myers 2014, Figure 4.27, does: it compares the array of the ways last used, instead of
    /// its element.
    First,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    target: u64,
    /// Of the path; more than fits if nothing was ever stored.
    tag: u16,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    ways: [Way; 2],
    last_used: u8,
}

impl Default for Set {
    /// The first way is filled first.
    fn default() -> Self {
        let empty = Way { target: 0, tag: u16::MAX };
        Self { ways: [empty; 2], last_used: 1 }
    }
}

#[derive(Clone, Debug)]
pub struct Ibtb {
    sets: Vec<Set>,
    /// The branches before, the last one lowest.
    path: u16,
    tagging: Tagging,
    victim: Victim,
}

impl Ibtb {
    /// With 0 entries nothing is ever predicted; otherwise their number is a power of two, half of them sets.
    pub fn new(entries: usize, tagging: Tagging) -> Result<Self, IllegalSize> {
        let entries = power_of_two(Structure::Ibtb, entries, 2, ENTRIES_MAX)?;
        Ok(Self { sets: vec![Set::default(); entries / 2], path: 0, tagging, victim: Victim::Older })
    }

    #[must_use]
    pub fn with_victim(mut self, victim: Victim) -> Self {
        self.victim = victim;
        self
    }

    /// Begins with this path to the first branch.
    #[must_use]
    pub fn with_path(mut self, path: u16) -> Self {
        self.path = path;
        self
    }

    /// The path to the next branch.
    #[must_use]
    pub fn path(&self) -> u16 {
        self.path
    }

    /// The set that is asked about the branch at `address`; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn index(&self, address: u64) -> usize {
        // The low bits are what counts.
        let address = (address >> ADDRESS_SHIFT) as usize;
        if self.sets.is_empty() { 0 } else { (usize::from(self.path >> TAG_BITS) ^ address) & (self.sets.len() - 1) }
    }

    /// The targets in both ways of a set; 0 where there is none.
    #[must_use]
    pub fn targets(&self, index: usize) -> Option<[u64; 2]> {
        self.sets.get(index).map(|set| set.ways.map(|way| way.target))
    }

    #[inline]
    fn tag(&self) -> u16 {
        self.path & ((1 << TAG_BITS) - 1)
    }

    /// The target that is predicted for the branch at `address`. Untagged, none is.
    #[must_use]
    #[inline]
    pub fn prediction(&self, address: u64) -> Option<u64> {
        let set = self.sets.get(self.index(address))?;
        let tag = self.tag();
        match self.tagging {
            Tagging::Tagged => set.ways.iter().find(|way| way.tag == tag).map(|way| way.target),
            Tagging::Untagged => None,
        }
    }

    /// The branch at `address` went to `target`: learns, and says whether it was predicted.
    #[inline]
    pub fn branch(&mut self, address: u64, target: u64) -> bool {
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
        let right = found.is_some() && set.ways[way].target == target;
        set.ways[way] = Way { target, tag };
        set.last_used = way as u8;
        right
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
        // The figure shows the first three and the last two: path and set before, targets there, whether one was right, and the low
        // bits of the path behind it.
        let first = [(0, 9, 0, false, 0x49), (0x49, 9, target, true, 0x6d), (0x16d, 8, 0, false, 0xfd)];
        let last = [(0xaabd, 3, target, true, 0xbd); 2];
        let shown = first.map(Some).into_iter().chain([None; 5]).chain(last.map(Some));
        for call in shown {
            let (path, index) = (ibtb.path(), ibtb.index(address));
            let targets = ibtb.targets(index);
            let right = ibtb.branch(address, target);
            if let Some((own_path, own_index, way, own_right, new_path)) = call {
                assert_eq!((path, index, targets, right), (own_path, own_index, Some([way, 0]), own_right));
                assert_eq!(ibtb.path() & 0xff, new_path);
            }
        }
    }

    /// Tewar 2015, Table 6.3: twenty calls through a pointer, of which the last thirteen are predicted.
    #[test]
    fn tewar_table_6_3() {
        let mut ibtb = Ibtb::new(64, Tagging::Tagged).unwrap().with_path(0x13c9);
        let (address, target) = (0x8048e76, 0x8048e44);
        for (path, index) in [(0x13c9, 20), (0x4fc3, 8), (0x3feb, 24), (0xff4b, 24), (0xfdcb, 26)] {
            assert_eq!((ibtb.path(), ibtb.index(address)), (path, index));
            assert!(!ibtb.branch(address, target));
        }
        let right: Vec<bool> = (5..20).map(|_| ibtb.branch(address, target)).collect();
        assert_eq!(right, [&[false; 2][..], &[true; 13]].concat());
    }

    #[test]
    fn the_way_used_last_is_kept() {
        let mut ibtb = Ibtb::new(2, Tagging::Untagged).unwrap();
        assert!(!ibtb.branch(0, 1) && !ibtb.branch(0, 2));
        assert!(ibtb.branch(0, 1));
        assert!(!ibtb.branch(0, 3));
        assert_eq!(ibtb.targets(0), Some([1, 3]));
        let mut ibtb = Ibtb::new(2, Tagging::Untagged).unwrap().with_victim(Victim::First);
        assert!(!ibtb.branch(0, 1) && !ibtb.branch(0, 2) && !ibtb.branch(0, 1));
        assert_eq!(ibtb.targets(0), Some([1, 0]));
    }

    #[test]
    fn sizes() {
        assert!(Ibtb::new(1, Tagging::Tagged).is_err() && Ibtb::new(48, Tagging::Tagged).is_err());
        let mut none = Ibtb::new(0, Tagging::Tagged).unwrap();
        assert_eq!((none.prediction(5), none.branch(5, 6)), (None, false));
    }

    proptest! {
        /// What was predicted is right exactly if it is the target.
        #[test]
        fn tagged_it_predicts_one_target(
            branches in proptest::collection::vec((0u64..256, 1u64..4), 0..400),
            power in 1u32..8,
        ) {
            let mut ibtb = Ibtb::new(1 << power, Tagging::Tagged).unwrap();
            for (address, target) in branches {
                let predicted = ibtb.prediction(address);
                prop_assert_eq!(ibtb.branch(address, target), predicted == Some(target));
            }
        }
    }
}
