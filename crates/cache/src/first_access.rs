//! The cache first-access mechanism. A flag for every few bytes of a line says whether they were
//! accessed since the line came in, hence whether the decoder knows them (Myers 2014, Figures 3.4
//! and 4.41; Tewar 2015, Figures 3.7 and 3.8). [`FirstAccess`] combines flags with [`Tags`].

use crate::geometry::{Geometry, IllegalGeometry, power_of_two};
use crate::tags::{Line, Replacement, Tags};

/// Which flags an access sets that covers the bytes of a flag only in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlagCoverage {
    /// Flags whose bytes it covers completely: the other bytes are not known.
    Whole,
    /// All flags whose bytes it touches, as in the theses. The remaining bytes then count as known;
    /// a comparison of values has to notice errors.
    #[default]
    Touched,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The cache held all lines.
    pub cache_hit: bool,
    /// The cache held all lines, and all flags were set.
    pub flags_hit: bool,
}

impl Load {
    /// Returns whether the decoder needs a message with the value.
    #[must_use]
    pub fn needs_message(&self) -> bool {
        !self.flags_hit
    }
}

/// An access to the part of an operand that lies in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAccess {
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
    cover: FlagCoverage,
    /// Logarithm of the bytes that one flag covers.
    granule_bits: u32,
    /// Words of flags per line.
    words: usize,
    /// Flags of each slot.
    flags: Vec<u64>,
    /// Recently accessed lines for [`Self::known_slot`], indexed by the low bits of the line
    /// number. Empty if the configuration does not allow the fast check.
    recent: Vec<RecentLine>,
}

/// A recently accessed line that is still in the cache.
#[derive(Clone, Copy, Debug)]
struct RecentLine {
    line: u64,
    /// Its current flags.
    flags: u32,
    slot: u32,
}

impl RecentLine {
    const EMPTY: Self = Self { line: u64::MAX, flags: 0, slot: 0 };
}

impl FirstAccess {
    /// Returns an empty cache. A flag covers `granularity` bytes, a power of two, or a whole line
    /// if lines are shorter.
    pub fn new(
        geometry: Geometry,
        replacement: Replacement,
        granularity: u64,
        cover: FlagCoverage,
    ) -> Result<Self, IllegalGeometry> {
        power_of_two("granularity of flags", granularity, GRANULARITY_MAX)?;
        let granularity = granularity.min(geometry.line_bytes());
        let words = (geometry.line_bytes() / granularity).div_ceil(64) as usize;
        let flags = vec![0; geometry.sets() * geometry.ways() * words];
        let tags = Tags::new(geometry, replacement);
        let has_recent = geometry.line_bytes() / granularity <= u32::BITS.into() && !tags.tracks_use();
        let recent = vec![RecentLine::EMPTY; if has_recent { flags.len() } else { 0 }];
        Ok(Self { tags, cover, granule_bits: granularity.trailing_zeros(), words, flags, recent })
    }

    #[must_use]
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Performs a load of `bytes` bytes.
    #[inline]
    pub fn load(&mut self, address: u64, bytes: u64) -> Load {
        self.load_parts(address, bytes, |_| ())
    }

    /// Performs a load and calls `visit` for each line.
    #[inline]
    pub fn load_parts(&mut self, address: u64, bytes: u64, mut visit: impl FnMut(&LineAccess)) -> Load {
        let mut load = Load { cache_hit: true, flags_hit: true };
        self.access(address, bytes, |part| {
            load.cache_hit &= part.line.hit;
            load.flags_hit &= part.flags_hit;
            visit(part);
        });
        load
    }

    /// Performs a store of `bytes` bytes. Returns whether the cache held all lines.
    #[inline]
    pub fn store(&mut self, address: u64, bytes: u64) -> bool {
        self.store_parts(address, bytes, |_| ())
    }

    /// Performs a store and calls `visit` for each line.
    #[inline]
    pub fn store_parts(&mut self, address: u64, bytes: u64, mut visit: impl FnMut(&LineAccess)) -> bool {
        let mut hit = true;
        self.access(address, bytes, |part| {
            hit &= part.line.hit;
            visit(part);
        });
        hit
    }

    /// Returns the slot of an operand within one line that the cache holds with all flags set, so
    /// that an access would change nothing. Returns `None` otherwise, or if only a full access can
    /// decide.
    #[must_use]
    #[inline(always)]
    pub fn known_slot(&self, address: u64, bytes: u64) -> Option<usize> {
        let geometry = self.tags.geometry();
        let (line, offset) = (geometry.line(address), geometry.offset(address));
        let recent = self.recent.get(self.recent_index(line))?;
        if recent.line != line || bytes == 0 || offset + bytes > geometry.line_bytes() {
            return None;
        }
        let (first, last) = (offset >> self.granule_bits, (offset + bytes - 1) >> self.granule_bits);
        // Like `mask`, for at most 32 flags.
        let mask = (2u64 << last) - (1 << first);
        (u64::from(recent.flags) & mask == mask).then_some(recent.slot as usize)
    }

    #[inline(always)]
    fn recent_index(&self, line: u64) -> usize {
        // As many as lines, a power of two.
        line as usize & self.recent.len().wrapping_sub(1)
    }

    /// Keeps [`Self::known_slot`] consistent with a slot.
    #[inline]
    fn update_recent(&mut self, line: u64, slot: usize) {
        let index = self.recent_index(line);
        if let Some(recent) = self.recent.get_mut(index) {
            *recent = RecentLine { line, flags: self.flags[slot] as u32, slot: slot as u32 };
        }
    }

    #[inline]
    fn drop_recent(&mut self, line: u64) {
        let index = self.recent_index(line);
        if let Some(recent) = self.recent.get_mut(index).filter(|recent| recent.line == line) {
            *recent = RecentLine::EMPTY;
        }
    }

    /// Returns an address in each line of an operand.
    pub fn lines(&self, address: u64, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        parts(*self.tags.geometry(), address, bytes).map(|(address, _)| address)
    }

    /// Returns whether the cache holds the line of an address.
    #[must_use]
    pub fn holds(&self, address: u64) -> bool {
        self.tags.find(self.tags.geometry().line(address)).is_some()
    }

    /// Copies the line of an address, with its flags, from a cache of the same configuration.
    /// Returns its new slot and the slot that it was copied from.
    pub fn copy_line_from(&mut self, other: &Self, address: u64) -> Option<(usize, usize)> {
        let line = self.tags.geometry().line(address);
        let from = other.tags.find(line)?;
        let to = self.access_tag(line).slot;
        let flags = other.flags.get(from * self.words..)?.get(..self.words)?;
        self.flags[to * self.words..][..self.words].copy_from_slice(flags);
        self.update_recent(line, to);
        Some((to, from))
    }

    /// Invalidates the line of an address.
    pub fn invalidate(&mut self, address: u64) {
        let line = self.tags.geometry().line(address);
        self.tags.remove(line);
        self.drop_recent(line);
    }

    /// Clears all flags of every line that an external write of these bytes touches, not only those
    /// of the bytes (Myers 2014, Figure 3.4, line 19; Tewar 2015, Figure 3.7, line 17). The lines
    /// stay in the cache.
    pub fn clear_flags(&mut self, address: u64, bytes: u64) {
        let geometry = *self.tags.geometry();
        for (address, _) in parts(geometry, address, bytes) {
            let line = geometry.line(address);
            if let Some(slot) = self.tags.find(line) {
                self.flags[slot * self.words..][..self.words].fill(0);
                self.update_recent(line, slot);
            }
        }
    }

    /// Clears all flags, because any memory may have changed.
    pub fn clear_all_flags(&mut self) {
        self.flags.fill(0);
        self.recent.fill(RecentLine::EMPTY);
    }

    /// Accesses an operand within one line, as nearly all are. Returns `None` without any change if
    /// it crosses lines.
    #[inline(always)]
    pub fn access_in_line(&mut self, address: u64, bytes: u64) -> Option<LineAccess> {
        let geometry = self.tags.geometry();
        let is_in_line = (1..=geometry.line_bytes() - geometry.offset(address)).contains(&bytes);
        is_in_line.then(|| self.access_line(address, bytes))
    }

    #[inline]
    fn access(&mut self, address: u64, bytes: u64, mut visit: impl FnMut(&LineAccess)) {
        match self.access_in_line(address, bytes) {
            Some(part) => visit(&part),
            None => self.access_lines(address, bytes, visit),
        }
    }

    #[inline(never)]
    fn access_lines(&mut self, address: u64, bytes: u64, mut visit: impl FnMut(&LineAccess)) {
        let geometry = *self.tags.geometry();
        for (address, bytes) in parts(geometry, address, bytes) {
            visit(&self.access_line(address, bytes));
        }
    }

    /// Accesses the part of an operand that lies in one line.
    #[inline(always)]
    fn access_line(&mut self, address: u64, bytes: u64) -> LineAccess {
        let geometry = *self.tags.geometry();
        let number = geometry.line(address);
        let line = self.access_tag(number);
        let offset = geometry.offset(address);
        let flags_hit = if self.words == 1 {
            self.access_word(line.slot, offset, bytes)
        } else {
            self.access_words(line.slot, offset, bytes)
        };
        self.update_recent(number, line.slot);
        LineAccess { address, bytes, line, flags_hit }
    }

    /// Sets the flags of these bytes in a line with one word of flags. Returns whether all were
    /// set.
    #[inline(always)]
    fn access_word(&mut self, slot: usize, offset: u64, bytes: u64) -> bool {
        let touched = mask(self.granules(FlagCoverage::Touched, offset, bytes));
        let set = match self.cover {
            FlagCoverage::Touched => touched,
            FlagCoverage::Whole => mask(self.granules(FlagCoverage::Whole, offset, bytes)),
        };
        let flags = &mut self.flags[slot];
        let flags_hit = *flags & touched == touched;
        *flags |= set;
        flags_hit
    }

    /// Like [`Self::access_word`], for any number of words.
    fn access_words(&mut self, slot: usize, offset: u64, bytes: u64) -> bool {
        let (first, end) = self.granules(FlagCoverage::Touched, offset, bytes);
        let mut flags_hit = true;
        self.for_each_word(slot, first, end, |flags, mask| flags_hit &= *flags & mask == mask);
        let (first, end) = self.granules(self.cover, offset, bytes);
        self.for_each_word(slot, first, end, |flags, mask| *flags |= mask);
        flags_hit
    }

    /// Accesses a line, and fills it without flags on a miss.
    #[inline(always)]
    fn access_tag(&mut self, number: u64) -> Line {
        if let Some(recent) = self.recent.get(self.recent_index(number)).filter(|recent| recent.line == number) {
            return self.tags.hit_line(recent.slot as usize, number);
        }
        let line = self.tags.access(number);
        if !line.hit {
            self.flags[line.slot * self.words..][..self.words].fill(0);
            line.evicted.into_iter().for_each(|evicted| self.drop_recent(evicted));
        }
        line
    }

    /// Returns the first flag of these bytes of a line and the one after the last.
    #[inline]
    fn granules(&self, cover: FlagCoverage, offset: u64, bytes: u64) -> (u64, u64) {
        let (last, end) = ((1 << self.granule_bits) - 1, offset + bytes);
        match cover {
            FlagCoverage::Touched => (offset >> self.granule_bits, (end + last) >> self.granule_bits),
            FlagCoverage::Whole => ((offset + last) >> self.granule_bits, end >> self.granule_bits),
        }
    }

    /// Calls `visit` with each word of flags and the mask of the affected bits.
    fn for_each_word(&mut self, slot: usize, first: u64, end: u64, mut visit: impl FnMut(&mut u64, u64)) {
        let mut at = first;
        while at < end {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let count = (end - at).min(64 - bit);
            visit(&mut self.flags[slot * self.words + word], mask((bit, bit + count)));
            at += count;
        }
    }
}

/// Returns a mask of the flags from `first` up to, but not including, `end`; at most 64.
#[inline(always)]
fn mask((first, end): (u64, u64)) -> u64 {
    if first < end { u64::MAX >> (64 - (end - first)) << first } else { 0 }
}

/// Splits an operand at line boundaries.
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
        FirstAccess::new(geometry, Replacement::RoundRobin, 4, FlagCoverage::Touched).unwrap()
    }

    /// Set, tag, offset, way and hit of each line, and whether flags were set.
    type Visited = Vec<(usize, u64, u64, usize, bool, bool)>;

    fn load(cache: &mut FirstAccess, address: u64, bytes: u64) -> (Load, Visited) {
        let (mut visited, geometry) = (Vec::new(), *cache.tags().geometry());
        let load = cache.load_parts(address, bytes, |part| {
            let (tag, offset) = (geometry.line(part.address), geometry.offset(part.address));
            visited.push((part.line.set, tag, offset, part.line.way, part.line.hit, part.flags_hit));
        });
        (load, visited)
    }

    fn store(cache: &mut FirstAccess, address: u64, bytes: u64) -> Vec<(usize, u64, u64, usize, bool)> {
        let (mut visited, geometry) = (Vec::new(), *cache.tags().geometry());
        cache.store_parts(address, bytes, |part| {
            let (tag, offset) = (geometry.line(part.address), geometry.offset(part.address));
            visited.push((part.line.set, tag, offset, part.line.way, part.line.hit));
        });
        visited
    }

    #[test]
    fn lines_go_from_cache_to_cache() {
        let (mut one, mut other) = (tiny(), tiny());
        one.load(0x100, 8);
        other.load(0x200, 4);
        other.load(0x300, 4);
        assert_eq!(other.copy_line_from(&one, 0x400), None);
        assert!(other.copy_line_from(&one, 0x104).is_some());
        // What was known there is known here; the victim is gone.
        assert!(other.known_slot(0x100, 8).is_some() && other.known_slot(0x108, 4).is_none());
        assert!(!other.holds(0x200) && other.known_slot(0x200, 4).is_none() && other.holds(0x300));
        assert_eq!(other.load(0x100, 8), Load { cache_hit: true, flags_hit: true });
        one.invalidate(0x107);
        assert!(!one.holds(0x100) && one.known_slot(0x100, 8).is_none());
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
        let (leave, visited) = load(&mut cache, 0x7fff_a51e_1680, 8);
        assert_eq!(leave, Load { cache_hit: false, flags_hit: false });
        assert_eq!(visited, [(0, tag + 3, 0, 1, false, false)]);
        let (ret, visited) = load(&mut cache, 0x7fff_a51e_1688, 8);
        assert_eq!(ret, Load { cache_hit: true, flags_hit: false });
        assert_eq!(visited, [(0, tag + 3, 8, 1, true, false)]);
        assert!(leave.needs_message() && ret.needs_message());
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
            let (loaded, visited) = load(&mut cache, stack - down, 8);
            assert!(!loaded.needs_message());
            assert_eq!(visited, [(0, tag + line, offset, way, true, true)]);
        }
        assert_eq!(store(&mut cache, stack - 64, 32), [(0, tag + 2, 0, 0, false), (0, tag + 3, 0, 1, false)]);
        let (loaded, visited) = load(&mut cache, stack - 64, 32);
        assert!(!loaded.needs_message());
        assert_eq!(visited, [(0, tag + 2, 0, 0, true, true), (0, tag + 3, 0, 1, true, true)]);
        assert_eq!(store(&mut cache, stack - 96, 8), [(0, tag, 0, 0, false)]);
        let (loaded, visited) = load(&mut cache, stack - 64, 32);
        assert!(loaded.needs_message() && !loaded.cache_hit);
        assert_eq!(visited, [(0, tag + 2, 0, 1, false, false), (0, tag + 3, 0, 0, false, false)]);
    }

    #[test]
    fn a_load_after_an_external_write_needs_a_message() {
        let mut cache = tiny();
        assert!(cache.load(0x100, 8).needs_message() && !cache.load(0x100, 8).needs_message());
        assert!(cache.load(0x110, 4).needs_message());
        // The whole line, and no other (Myers 2014, Figure 3.4, line 19; Tewar 2015, Figure 3.7,
        // line 17).
        cache.clear_flags(0x105, 1);
        assert!(cache.load(0x100, 4).needs_message() && !cache.load(0x100, 4).needs_message());
        assert!(cache.load(0x104, 4).needs_message() && !cache.load(0x104, 4).needs_message());
        assert!(!cache.load(0x110, 4).needs_message());
        cache.clear_flags(0x10f, 2);
        assert!(cache.load(0x100, 4).needs_message() && cache.load(0x110, 4).needs_message());
        cache.clear_all_flags();
        let load = cache.load(0x100, 4);
        assert!(load.cache_hit && load.needs_message() && cache.load(0x104, 4).needs_message());
    }

    /// Tewar 2015, Figure 6.21: nine numbers of four bytes, and flags for 16 bytes each. Earlier
    /// accesses make way 0 the next victim.
    #[test]
    fn tewar_figure_6_21() {
        let geometry = Geometry::new(32, 16, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 16, FlagCoverage::Touched).unwrap();
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
            let (loaded, visited) = load(&mut cache, address, 4);
            assert_eq!(visited, [(0, tag, offset, way, hit, hit)]);
            assert_eq!(loaded.needs_message(), !hit);
        }
    }

    /// Tewar 2015, Figure 6.22: an operand of eight bytes in lines of four.
    #[test]
    fn tewar_figure_6_22() {
        let geometry = Geometry::new(8, 4, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 4, FlagCoverage::Touched).unwrap();
        cache.load(0xbffe_0000, 4);
        let stored = store(&mut cache, 0xbffeff58, 8);
        assert_eq!(stored, [(0, 0x2fff_bfd6, 0, 0, false), (0, 0x2fff_bfd7, 0, 1, false)]);
        let (loaded, visited) = load(&mut cache, 0xbffeff58, 8);
        assert_eq!(visited, [(0, 0x2fff_bfd6, 0, 0, true, true), (0, 0x2fff_bfd7, 0, 1, true, true)]);
        assert!(loaded.cache_hit && !loaded.needs_message());
    }

    #[test]
    fn a_part_of_a_flag_is_not_the_whole() {
        let geometry = Geometry::new(64, 16, 2).unwrap();
        let mut whole = FirstAccess::new(geometry, Replacement::RoundRobin, 4, FlagCoverage::Whole).unwrap();
        assert!(whole.load(0, 2).needs_message() && whole.load(0, 2).needs_message());
        assert!(whole.load(0, 4).needs_message() && !whole.load(0, 2).needs_message());
        let mut touched = FirstAccess::new(geometry, Replacement::RoundRobin, 4, FlagCoverage::Touched).unwrap();
        assert!(touched.load(0, 2).needs_message() && !touched.load(2, 2).needs_message());
    }

    #[test]
    fn long_lines_have_many_flags() {
        let geometry = Geometry::new(4096, 1024, 2).unwrap();
        let mut cache = FirstAccess::new(geometry, Replacement::Lru, 1, FlagCoverage::Whole).unwrap();
        assert!(cache.load(60, 80).needs_message() && !cache.load(60, 80).needs_message());
        assert!(cache.load(59, 2).needs_message() && cache.load(139, 2).needs_message());
        assert!(!cache.load(59, 82).needs_message());
        assert!(FirstAccess::new(geometry, Replacement::Lru, 3, FlagCoverage::Whole).is_err());
    }

    proptest! {
        /// Whatever happens to two caches, what the fast check finds is known.
        #[test]
        fn the_fast_check_agrees(
            happenings in proptest::collection::vec((any::<bool>(), 0u8..12, 0u64..160, 1u64..24), 0..300),
            ways in 0u32..3,
        ) {
            let geometry = Geometry::new(64, 16, 1 << ways).unwrap();
            let cache = || FirstAccess::new(geometry, Replacement::RoundRobin, 4, FlagCoverage::Touched).unwrap();
            let (mut one, mut other) = (cache(), cache());
            for (swapped, kind, address, bytes) in happenings {
                if swapped {
                    std::mem::swap(&mut one, &mut other);
                }
                match kind {
                    0 => one.clear_flags(address, bytes),
                    1 => one.invalidate(address),
                    2 => if address == 0 { one.clear_all_flags() },
                    3..5 => _ = one.copy_line_from(&other, address),
                    5..8 => _ = one.store(address, bytes),
                    _ => _ = one.load(address, bytes),
                }
                for address in (0..160).step_by(4) {
                    let known = one.clone().load(address, 4);
                    prop_assert_eq!(one.holds(address), known.cache_hit);
                    prop_assert!(one.known_slot(address, 4).is_none() || known.flags_hit);
                }
            }
        }

        /// Compares byte by byte with a model that keeps lines in maps.
        #[test]
        fn flags_agree_with_maps(
            accesses in proptest::collection::vec((0u64..256, 1u64..40, 0u8..9), 0..300),
            granule_bits in 0u32..5, touched in any::<bool>(),
        ) {
            let cover = if touched { FlagCoverage::Touched } else { FlagCoverage::Whole };
            let geometry = Geometry::new(128, 16, 2).unwrap();
            let mut cache = FirstAccess::new(geometry, Replacement::RoundRobin, 1 << granule_bits, cover).unwrap();
            let mut tags = Tags::new(geometry, Replacement::RoundRobin);
            let mut known: HashMap<u64, [bool; 16]> = HashMap::new();
            for (address, bytes, kind) in accesses {
                if kind == 0 {
                    cache.clear_flags(address, bytes);
                    for line in address / 16..=(address + bytes - 1) / 16 {
                        known.entry(line).and_modify(|known| known.fill(false));
                    }
                    continue;
                }
                let is_settled = cache.known_slot(address, bytes).is_some();
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
