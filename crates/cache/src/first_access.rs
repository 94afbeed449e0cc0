//! The cache first-access mechanism: a flag for every few bytes of a line tells whether they were accessed since the line
//! came in, hence whether whoever follows knows them (Myers 2014, Figures 3.4 and 4.41; Tewar 2015, Figures 3.7 and 3.8).

use crate::geometry::{Geometry, IllegalGeometry, power_of_two};
use crate::tags::{Line, Replacement, Tags};

/// Which flags an access sets, if it covers the bytes of a flag in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cover {
    /// Those whose bytes it covers as a whole: the others are not all known.
    Whole,
    /// All whose bytes it touches, as in the theses. The rest of those bytes is then taken for known, which has to be noticed by whoever
    /// compares values.
    #[default]
    Touched,
}

/// What a load has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// All lines were there.
    pub cache_hit: bool,
    /// All lines were there, and all flags were set.
    pub flags_hit: bool,
}

impl Load {
    /// Whether whoever follows has to be told the value.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        !self.flags_hit
    }
}

/// The part of an operand that lies in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub address: u64,
    pub bytes: u64,
    pub line: Line,
    /// Whether all flags of the part were set.
    pub flags_hit: bool,
}

const GRANULARITY_MAX: u64 = 1 << 16;

#[derive(Clone, Debug)]
pub struct FirstAccess {
    tags: Tags,
    cover: Cover,
    /// Bytes of a flag, as a power of two.
    granule_bits: u32,
    /// Words of flags per line.
    words: usize,
    /// Of each slot.
    flags: Vec<u64>,
    /// What [`Self::settled`] looks at, by the low bits of the line's number; nothing if it cannot tell anything.
    quick: Vec<Quick>,
}

/// A line that was accessed lately, and is still there.
#[derive(Clone, Copy, Debug)]
struct Quick {
    line: u64,
    /// As they are now.
    flags: u32,
    slot: u32,
}

impl Quick {
    const NOTHING: Self = Self { line: u64::MAX, flags: 0, slot: 0 };
}

impl FirstAccess {
    /// A flag stands for `granularity` bytes, a power of two; for a whole line if lines are shorter.
    pub fn new(
        geometry: Geometry,
        replacement: Replacement,
        granularity: u64,
        cover: Cover,
    ) -> Result<Self, IllegalGeometry> {
        power_of_two("granularity of flags", granularity, GRANULARITY_MAX)?;
        let granularity = granularity.min(geometry.line_bytes());
        let words = (geometry.line_bytes() / granularity).div_ceil(64) as usize;
        let flags = vec![0; geometry.sets() * geometry.ways() * words];
        let tags = Tags::new(geometry, replacement);
        let is_quick = geometry.line_bytes() / granularity <= u32::BITS.into() && !tags.counts_uses();
        let quick = vec![Quick::NOTHING; if is_quick { flags.len() } else { 0 }];
        Ok(Self { tags, cover, granule_bits: granularity.trailing_zeros(), words, flags, quick })
    }

    #[must_use]
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// A load of `bytes` bytes.
    #[inline]
    pub fn load(&mut self, address: u64, bytes: u64) -> Load {
        self.load_parts(address, bytes, |_| ())
    }

    /// A load, with every part of it shown.
    #[inline]
    pub fn load_parts(&mut self, address: u64, bytes: u64, mut show: impl FnMut(&Part)) -> Load {
        let mut load = Load { cache_hit: true, flags_hit: true };
        self.access(address, bytes, |part| {
            load.cache_hit &= part.line.hit;
            load.flags_hit &= part.flags_hit;
            show(part);
        });
        load
    }

    /// A store of `bytes` bytes; says whether all lines were there.
    #[inline]
    pub fn store(&mut self, address: u64, bytes: u64) -> bool {
        self.store_parts(address, bytes, |_| ())
    }

    /// A store, with every part of it shown.
    #[inline]
    pub fn store_parts(&mut self, address: u64, bytes: u64, mut show: impl FnMut(&Part)) -> bool {
        let mut hit = true;
        self.access(address, bytes, |part| {
            hit &= part.line.hit;
            show(part);
        });
        hit
    }

    /// The slot of an operand that lies in one line, which is there, and whose flags are all set: an access would change nothing. `None` if any of this
    /// is not so, or if it has to be looked at more closely.
    #[must_use]
    #[inline(always)]
    pub fn settled(&self, address: u64, bytes: u64) -> Option<usize> {
        let geometry = self.tags.geometry();
        let (line, offset) = (geometry.line(address), geometry.offset(address));
        let quick = self.quick.get(self.quick_place(line))?;
        if quick.line != line || bytes == 0 || offset + bytes > geometry.line_bytes() {
            return None;
        }
        let (first, last) = (offset >> self.granule_bits, (offset + bytes - 1) >> self.granule_bits);
        // As with mask, but there are 32 flags at most.
        let mask = (2u64 << last) - (1 << first);
        (u64::from(quick.flags) & mask == mask).then_some(quick.slot as usize)
    }

    #[inline(always)]
    fn quick_place(&self, line: u64) -> usize {
        // There are as many as lines, a power of two.
        line as usize & self.quick.len().wrapping_sub(1)
    }

    /// Takes care that [`Self::settled`] tells the truth about what is in a slot.
    #[inline]
    fn remember(&mut self, line: u64, slot: usize) {
        let place = self.quick_place(line);
        if let Some(quick) = self.quick.get_mut(place) {
            *quick = Quick { line, flags: self.flags[slot] as u32, slot: slot as u32 };
        }
    }

    #[inline]
    fn forget_line(&mut self, line: u64) {
        let place = self.quick_place(line);
        if let Some(quick) = self.quick.get_mut(place).filter(|quick| quick.line == line) {
            *quick = Quick::NOTHING;
        }
    }

    /// An address in each line of an operand.
    pub fn lines(&self, address: u64, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        parts(*self.tags.geometry(), address, bytes).map(|(address, _)| address)
    }

    /// Whether the line of an address is there.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        self.tags.find(self.tags.geometry().line(address)).is_some()
    }

    /// Takes over the line of an address, with its flags, from a cache of the same form that has it; gives the slot that it is in now and the
    /// one that it was copied from.
    pub fn adopt(&mut self, other: &Self, address: u64) -> Option<(usize, usize)> {
        let line = self.tags.geometry().line(address);
        let from = other.tags.find(line)?;
        let to = self.access_tag(line).slot;
        let flags = other.flags.get(from * self.words..)?.get(..self.words)?;
        self.flags[to * self.words..][..self.words].copy_from_slice(flags);
        self.remember(line, to);
        Some((to, from))
    }

    /// The line of an address belongs to somebody else from now on.
    pub fn throw_out(&mut self, address: u64) {
        let line = self.tags.geometry().line(address);
        self.tags.remove(line);
        self.forget_line(line);
    }

    /// Clears all flags of every line that an external write of these bytes touches, not only those of the bytes
    /// (Myers 2014, Figure 3.4, line 19; Tewar 2015, Figure 3.7, line 17). The lines stay in the cache.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        let geometry = *self.tags.geometry();
        for (address, _) in parts(geometry, address, bytes) {
            let line = geometry.line(address);
            if let Some(slot) = self.tags.find(line) {
                self.flags[slot * self.words..][..self.words].fill(0);
                self.remember(line, slot);
            }
        }
    }

    /// Somebody else may have changed anything: nothing is known any more.
    pub fn forget_all(&mut self) {
        self.flags.fill(0);
        self.quick.fill(Quick::NOTHING);
    }

    /// A load or store that lies in one line, as nearly all do; `None`, and nothing has happened, if it does not.
    #[inline(always)]
    pub fn access_in_line(&mut self, address: u64, bytes: u64) -> Option<Part> {
        let geometry = self.tags.geometry();
        let is_in_line = (1..=geometry.line_bytes() - geometry.offset(address)).contains(&bytes);
        is_in_line.then(|| self.access_line(address, bytes))
    }

    #[inline]
    fn access(&mut self, address: u64, bytes: u64, mut show: impl FnMut(&Part)) {
        match self.access_in_line(address, bytes) {
            Some(part) => show(&part),
            None => self.access_lines(address, bytes, show),
        }
    }

    #[inline(never)]
    fn access_lines(&mut self, address: u64, bytes: u64, mut show: impl FnMut(&Part)) {
        let geometry = *self.tags.geometry();
        for (address, bytes) in parts(geometry, address, bytes) {
            show(&self.access_line(address, bytes));
        }
    }

    /// The part of an access that lies in one line.
    #[inline(always)]
    fn access_line(&mut self, address: u64, bytes: u64) -> Part {
        let geometry = *self.tags.geometry();
        let number = geometry.line(address);
        let line = self.access_tag(number);
        let offset = geometry.offset(address);
        let flags_hit = if self.words == 1 {
            self.access_word(line.slot, offset, bytes)
        } else {
            self.access_words(line.slot, offset, bytes)
        };
        self.remember(number, line.slot);
        Part { address, bytes, line, flags_hit }
    }

    /// Sets the flags of these bytes of a line with one word of them; says whether all were set.
    #[inline(always)]
    fn access_word(&mut self, slot: usize, offset: u64, bytes: u64) -> bool {
        let touched = mask(self.granules(Cover::Touched, offset, bytes));
        let set = match self.cover {
            Cover::Touched => touched,
            Cover::Whole => mask(self.granules(Cover::Whole, offset, bytes)),
        };
        let flags = &mut self.flags[slot];
        let flags_hit = *flags & touched == touched;
        *flags |= set;
        flags_hit
    }

    /// The same for any number of words.
    fn access_words(&mut self, slot: usize, offset: u64, bytes: u64) -> bool {
        let (first, behind) = self.granules(Cover::Touched, offset, bytes);
        let mut flags_hit = true;
        self.each_word(slot, first, behind, |flags, mask| flags_hit &= *flags & mask == mask);
        let (first, behind) = self.granules(self.cover, offset, bytes);
        self.each_word(slot, first, behind, |flags, mask| *flags |= mask);
        flags_hit
    }

    /// Looks for a line and brings it in without flags if it is not there.
    #[inline(always)]
    fn access_tag(&mut self, number: u64) -> Line {
        if let Some(quick) = self.quick.get(self.quick_place(number)).filter(|quick| quick.line == number) {
            return self.tags.line_in(quick.slot as usize, number);
        }
        let line = self.tags.access(number);
        if !line.hit {
            self.flags[line.slot * self.words..][..self.words].fill(0);
            line.evicted.into_iter().for_each(|evicted| self.forget_line(evicted));
        }
        line
    }

    /// The first flag of these bytes of a line and the one behind the last.
    #[inline]
    fn granules(&self, cover: Cover, offset: u64, bytes: u64) -> (u64, u64) {
        let (last, end) = ((1 << self.granule_bits) - 1, offset + bytes);
        match cover {
            Cover::Touched => (offset >> self.granule_bits, (end + last) >> self.granule_bits),
            Cover::Whole => ((offset + last) >> self.granule_bits, end >> self.granule_bits),
        }
    }

    /// Shows each word of flags, and which bits of it are meant.
    fn each_word(&mut self, slot: usize, first: u64, behind: u64, mut show: impl FnMut(&mut u64, u64)) {
        let mut at = first;
        while at < behind {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let count = (behind - at).min(64 - bit);
            show(&mut self.flags[slot * self.words + word], mask((bit, bit + count)));
            at += count;
        }
    }
}

/// The flags from the first to the one before the last, of at most 64.
#[inline(always)]
fn mask((first, behind): (u64, u64)) -> u64 {
    if first < behind { u64::MAX >> (64 - (behind - first)) << first } else { 0 }
}

/// The parts of an operand, each in one line.
fn parts(geometry: Geometry, address: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let (mut address, mut left) = (address, bytes);
    std::iter::from_fn(move || {
        let own = left.min(geometry.line_bytes() - geometry.offset(address));
        let part = (left > 0).then_some((address, own));
        (address, left) = (address.wrapping_add(own), left - own);
        part
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// 32 bytes, two ways of 16, as in the thesis's examples.
    fn tiny() -> FirstAccess {
        let geometry = Geometry::new(32, 16, 2).unwrap();
        FirstAccess::new(geometry, Replacement::RoundRobin, 4, Cover::Touched).unwrap()
    }

    /// Set, tag, offset, way, hit of each part, and whether flags were set.
    type Shown = Vec<(usize, u64, u64, usize, bool, bool)>;

    fn load(cache: &mut FirstAccess, address: u64, bytes: u64) -> (Load, Shown) {
        let (mut shown, geometry) = (Vec::new(), *cache.tags().geometry());
        let load = cache.load_parts(address, bytes, |part| {
            let (tag, offset) = (geometry.line(part.address), geometry.offset(part.address));
            shown.push((part.line.set, tag, offset, part.line.way, part.line.hit, part.flags_hit));
        });
        (load, shown)
    }

    fn store(cache: &mut FirstAccess, address: u64, bytes: u64) -> Vec<(usize, u64, u64, usize, bool)> {
        let (mut shown, geometry) = (Vec::new(), *cache.tags().geometry());
        cache.store_parts(address, bytes, |part| {
            let (tag, offset) = (geometry.line(part.address), geometry.offset(part.address));
            shown.push((part.line.set, tag, offset, part.line.way, part.line.hit));
        });
        shown
    }

    #[test]
    fn lines_go_from_cache_to_cache() {
        let (mut one, mut other) = (tiny(), tiny());
        one.load(0x100, 8);
        other.load(0x200, 4);
        other.load(0x300, 4);
        assert_eq!(other.adopt(&one, 0x400), None);
        assert!(other.adopt(&one, 0x104).is_some());
        // What was known there is known here; the line that gave way is gone.
        assert!(other.settled(0x100, 8).is_some() && other.settled(0x108, 4).is_none());
        assert!(!other.holds(0x200) && other.settled(0x200, 4).is_none() && other.holds(0x300));
        assert_eq!(other.load(0x100, 8), Load { cache_hit: true, flags_hit: true });
        one.throw_out(0x107);
        assert!(!one.holds(0x100) && one.settled(0x100, 8).is_none());
        assert_eq!(one.load(0x100, 8), Load { cache_hit: false, flags_hit: false });
    }

    /// Myers 2014, Figure 4.43.
    #[test]
    fn myers_figure_4_43() {
        let mut cache = tiny();
        let tag = 8_795_997_725_029;
        assert_eq!(store(&mut cache, 0x7fff_a51e_1680, 8), [(0, tag + 3, 0, 1, false)]);
        let expected = [(0, 0, false), (0, 0, true), (0, 0, true), (0, 0, true)]
            .into_iter()
            .chain([(1, 1, false), (1, 1, true), (1, 1, true), (1, 1, true)])
            .chain([(2, 0, false)]);
        for (turn, (line, way, hit)) in expected.enumerate() {
            let (address, offset) = (0x7fff_a51e_1650 + 4 * turn as u64, 4 * (turn as u64 % 4));
            assert_eq!(store(&mut cache, address, 4), [(0, tag + line, offset, way, hit)]);
        }
        let (leave, shown) = load(&mut cache, 0x7fff_a51e_1680, 8);
        assert_eq!(leave, Load { cache_hit: false, flags_hit: false });
        assert_eq!(shown, [(0, tag + 3, 0, 1, false, false)]);
        let (ret, shown) = load(&mut cache, 0x7fff_a51e_1688, 8);
        assert_eq!(ret, Load { cache_hit: true, flags_hit: false });
        assert_eq!(shown, [(0, tag + 3, 8, 1, true, false)]);
        assert!(leave.is_reported() && ret.is_reported());
    }

    /// Myers 2014, Figure 4.45, with what comes before it in Figure 4.44.
    #[test]
    fn myers_figure_4_45() {
        let mut cache = tiny();
        let (stack, tag) = (0x7fff_b79a_a780u64, 8_796_017_109_618);
        cache.store(stack + 0x10, 8);
        for down in [8, 16, 24, 32] {
            cache.store(stack - down, 8);
        }
        for (down, line, offset, way) in [(8, 5, 8, 0), (16, 5, 0, 0), (24, 4, 8, 1), (32, 4, 0, 1)] {
            let (loaded, shown) = load(&mut cache, stack - down, 8);
            assert!(!loaded.is_reported());
            assert_eq!(shown, [(0, tag + line, offset, way, true, true)]);
        }
        assert_eq!(store(&mut cache, stack - 64, 32), [(0, tag + 2, 0, 0, false), (0, tag + 3, 0, 1, false)]);
        let (loaded, shown) = load(&mut cache, stack - 64, 32);
        assert!(!loaded.is_reported());
        assert_eq!(shown, [(0, tag + 2, 0, 0, true, true), (0, tag + 3, 0, 1, true, true)]);
        assert_eq!(store(&mut cache, stack - 96, 8), [(0, tag, 0, 0, false)]);
        let (loaded, shown) = load(&mut cache, stack - 64, 32);
        assert!(loaded.is_reported() && !loaded.cache_hit);
        assert_eq!(shown, [(0, tag + 2, 0, 1, false, false), (0, tag + 3, 0, 0, false, false)]);
    }

    #[test]
    fn what_somebody_else_changed_is_reported_again() {
        let mut cache = tiny();
        assert!(cache.load(0x100, 8).is_reported() && !cache.load(0x100, 8).is_reported());
        assert!(cache.load(0x110, 4).is_reported());
        // The whole line, and no other (Myers 2014, Figure 3.4, line 19; Tewar 2015, Figure 3.7, line 17).
        cache.forget(0x105, 1);
        assert!(cache.load(0x100, 4).is_reported() && !cache.load(0x100, 4).is_reported());
        assert!(cache.load(0x104, 4).is_reported() && !cache.load(0x104, 4).is_reported());
        assert!(!cache.load(0x110, 4).is_reported());
        cache.forget(0x10f, 2);
        assert!(cache.load(0x100, 4).is_reported() && cache.load(0x110, 4).is_reported());
        cache.forget_all();
        let load = cache.load(0x100, 4);
        assert!(load.cache_hit && load.is_reported() && cache.load(0x104, 4).is_reported());
    }

    /// Tewar 2015, Figure 6.21: nine numbers of four bytes, and flags for 16 bytes each. What came before has left way 0 to be filled next.
    #[test]
    fn tewar_figure_6_21() {
        let geometry = Geometry::new(32, 16, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 16, Cover::Touched).unwrap();
        cache.load(0xbffe_0000, 4);
        let expected = [
            (0xbffeff3c, 0xbffeff3, 0xc, 0, false),
            (0xbffeff40, 0xbffeff4, 0x0, 1, false),
            (0xbffeff44, 0xbffeff4, 0x4, 1, true),
            (0xbffeff48, 0xbffeff4, 0x8, 1, true),
            (0xbffeff4c, 0xbffeff4, 0xc, 1, true),
            (0xbffeff50, 0xbffeff5, 0x0, 0, false),
            (0xbffeff54, 0xbffeff5, 0x4, 0, true),
            (0xbffeff58, 0xbffeff5, 0x8, 0, true),
            (0xbffeff5c, 0xbffeff5, 0xc, 0, true),
        ];
        for (address, tag, offset, way, hit) in expected {
            let (loaded, shown) = load(&mut cache, address, 4);
            assert_eq!(shown, [(0, tag, offset, way, hit, hit)]);
            assert_eq!(loaded.is_reported(), !hit);
        }
    }

    /// Tewar 2015, Figure 6.22: an operand of eight bytes in lines of four.
    #[test]
    fn tewar_figure_6_22() {
        let geometry = Geometry::new(8, 4, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 4, Cover::Touched).unwrap();
        cache.load(0xbffe_0000, 4);
        let stored = store(&mut cache, 0xbffeff58, 8);
        assert_eq!(stored, [(0, 0x2fff_bfd6, 0, 0, false), (0, 0x2fff_bfd7, 0, 1, false)]);
        let (loaded, shown) = load(&mut cache, 0xbffeff58, 8);
        assert_eq!(shown, [(0, 0x2fff_bfd6, 0, 0, true, true), (0, 0x2fff_bfd7, 0, 1, true, true)]);
        assert!(loaded.cache_hit && !loaded.is_reported());
    }

    #[test]
    fn a_part_of_a_flag_is_not_the_whole() {
        let geometry = Geometry::new(64, 16, 2).unwrap();
        let mut whole = FirstAccess::new(geometry, Replacement::RoundRobin, 4, Cover::Whole).unwrap();
        assert!(whole.load(0, 2).is_reported() && whole.load(0, 2).is_reported());
        assert!(whole.load(0, 4).is_reported() && !whole.load(0, 2).is_reported());
        let mut touched = FirstAccess::new(geometry, Replacement::RoundRobin, 4, Cover::Touched).unwrap();
        assert!(touched.load(0, 2).is_reported() && !touched.load(2, 2).is_reported());
    }

    #[test]
    fn long_lines_have_many_flags() {
        let geometry = Geometry::new(4096, 1024, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::Lru, 1, Cover::Whole).unwrap();
        assert!(cache.load(60, 80).is_reported() && !cache.load(60, 80).is_reported());
        assert!(cache.load(59, 2).is_reported() && cache.load(139, 2).is_reported());
        assert!(!cache.load(59, 82).is_reported());
        assert!(FirstAccess::new(geometry, Replacement::Lru, 3, Cover::Whole).is_err());
    }

    proptest! {
        /// Whatever happens to two caches, what is found at once is there, and nothing else is.
        #[test]
        fn what_is_settled_is_known(
            happenings in proptest::collection::vec((any::<bool>(), 0u8..12, 0u64..160, 1u64..24), 0..300),
            ways in 0u32..3,
        ) {
            let geometry = Geometry::new(64, 16, 1 << ways).unwrap();
            let cache = || FirstAccess::new(geometry, Replacement::RoundRobin, 4, Cover::Touched).unwrap();
            let (mut one, mut other) = (cache(), cache());
            for (swapped, kind, address, bytes) in happenings {
                if swapped {
                    std::mem::swap(&mut one, &mut other);
                }
                match kind {
                    0 => one.forget(address, bytes),
                    1 => one.throw_out(address),
                    2 => if address == 0 { one.forget_all() },
                    3..5 => _ = one.adopt(&other, address),
                    5..8 => _ = one.store(address, bytes),
                    _ => _ = one.load(address, bytes),
                }
                for address in (0..160).step_by(4) {
                    let known = one.clone().load(address, 4);
                    prop_assert_eq!(one.holds(address), known.cache_hit);
                    prop_assert!(one.settled(address, 4).is_none() || known.flags_hit);
                }
            }
        }

        /// Byte for byte, with lines as maps.
        #[test]
        fn it_is_what_maps_say(
            accesses in proptest::collection::vec((0u64..256, 1u64..40, 0u8..9), 0..300),
            granule_bits in 0u32..5, touched in any::<bool>(),
        ) {
            let cover = if touched { Cover::Touched } else { Cover::Whole };
            let geometry = Geometry::new(128, 16, 2).unwrap();
            let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 1 << granule_bits, cover).unwrap();
            let mut tags = Tags::new(geometry, Replacement::RoundRobin);
            let mut known: HashMap<u64, [bool; 16]> = HashMap::new();
            for (address, bytes, kind) in accesses {
                if kind == 0 {
                    cache.forget(address, bytes);
                    for line in address / 16..=(address + bytes - 1) / 16 {
                        known.entry(line).and_modify(|known| known.fill(false));
                    }
                    continue;
                }
                let is_settled = cache.settled(address, bytes).is_some();
                let (mut cache_hit, mut flags_hit) = (true, true);
                for line in address / 16..=(address + bytes - 1) / 16 {
                    let found = tags.access(line);
                    found.evicted.map(|evicted| known.remove(&evicted));
                    cache_hit &= found.hit;
                    let line_known = known.entry(line).or_insert([false; 16]);
                    let own = |at: u64| (address..address + bytes).contains(&(line * 16 + at));
                    for granule in (0..16u64).collect::<Vec<_>>().chunks(1 << granule_bits) {
                        let is_touched = granule.iter().any(|&at| own(at));
                        let is_whole = granule.iter().all(|&at| own(at));
                        flags_hit &= !is_touched || line_known[granule[0] as usize];
                        if if touched { is_touched } else { is_whole } {
                            granule.iter().for_each(|&at| line_known[at as usize] = true);
                        }
                    }
                }
                prop_assert!(!is_settled || cache_hit && flags_hit);
                if kind < 4 {
                    prop_assert_eq!(cache.store(address, bytes), cache_hit);
                } else {
                    prop_assert_eq!(cache.load(address, bytes), Load { cache_hit, flags_hit });
                }
            }
        }
    }
}
