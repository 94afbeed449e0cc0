//! The online detector (METRIC, section 4, Figures 5 and 6).
//!
//! A *level* is empty, *single* (it has one element) or *compound* (it has a section of several).
//! The elements of level zero are addresses; those of a higher level are compound sections of the
//! level below. An element that a level does not predict moves what is there one level up, where it
//! is an element in turn. So level `l` has sections of height `l`.
//!
//! Where the paper is silent:
//!
//! * `is_compatible_sibling` compares strides, too. Otherwise unequal RSDs would become one PRSD,
//!   whose addresses are not those that came in.
//! * RSDs shorter than three are irregular when they are flushed, but not inside a PRSD.
//! * Higher levels are older, so they are flushed first, and the irregular addresses between two
//!   sections are passed on before the second one. So all pieces keep the order of the addresses.
//! * At the end, each compound section moves up before everything is flushed. So the last RSD of
//!   Frame 11 becomes part of the PRSD above it.

use super::section::{Dimension, Prsd};
use super::{DIMENSIONS_MAX, IRREGULAR_MAX, Piece};

/// The highest level that a detector can have.
pub const MAX_LEVEL: usize = DIMENSIONS_MAX - 1;

/// A detector for one access point.
///
/// ```
/// use trackway_memory::prsd::{Detector, MAX_LEVEL, Piece};
///
/// let (mut detector, mut pieces) = (Detector::new(MAX_LEVEL), Vec::new());
/// let mut keep = |piece: Piece<'_>| pieces.push(format!("{piece:?}"));
/// for row in 0..100 {
///     (0..100).for_each(|column| detector.push(0x1000 + 800 * row + 4 * column, &mut keep));
/// }
/// detector.finish(&mut keep);
/// assert_eq!(pieces.len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Detector {
    /// Level zero: the last address, and the section that ends with it.
    last: u64,
    stride: u64,
    /// 0: empty, 1: single.
    length: u64,
    /// The levels from one on, as far as they were reached.
    levels: Vec<Level>,
    /// Irregular addresses that were not passed on yet.
    irregular: Vec<u64>,
    max_level: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Empty,
    Single(Prsd),
    Compound(Prsd),
}

impl Detector {
    /// Returns a detector whose levels are all empty. Sections that would leave level `max_level`
    /// are flushed (MAXLEVEL in section 4.2). Numbers above [`MAX_LEVEL`] mean [`MAX_LEVEL`].
    #[must_use]
    pub fn new(max_level: usize) -> Self {
        let max_level = max_level.min(MAX_LEVEL);
        Self { last: 0, stride: 0, length: 0, levels: Vec::new(), irregular: Vec::new(), max_level }
    }

    /// Processes an address and passes on what is complete.
    #[inline]
    pub fn push(&mut self, address: u64, sink: &mut impl FnMut(Piece<'_>)) {
        if address == self.last.wrapping_add(self.stride) && self.length >= 2 {
            self.last = address;
            self.length += 1;
        } else {
            self.push_unpredicted(address, sink);
        }
    }

    /// Passes on the rest. The detector is as new then.
    pub fn finish(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        let single = (self.length == 1).then_some(self.last);
        if self.length >= 2 {
            let (start, rsd) = self.level_zero();
            self.process_rsd(start, rsd, sink);
        }
        self.length = 0;
        for level in 1..=self.max_level {
            if let Some(&Level::Compound(section)) = self.levels.get(level - 1) {
                self.levels[level - 1] = Level::Empty;
                self.process(level + 1, section, sink);
            }
        }
        self.flush_levels(1, sink);
        single.into_iter().for_each(|address| self.put_irregular(address, sink));
        self.pass_irregular(sink);
    }

    fn push_unpredicted(&mut self, address: u64, sink: &mut impl FnMut(Piece<'_>)) {
        match self.length {
            0 => self.length = 1,
            1 => {
                self.stride = address.wrapping_sub(self.last);
                self.length = 2;
            }
            _ => {
                let (start, rsd) = self.level_zero();
                self.length = 1;
                self.process_rsd(start, rsd, sink);
            }
        }
        self.last = address;
    }

    /// Returns the compound section of level zero.
    #[inline]
    fn level_zero(&self) -> (u64, Dimension) {
        let distance = self.stride.wrapping_mul(self.length - 1);
        (self.last.wrapping_sub(distance), Dimension { stride: self.stride, length: self.length })
    }

    /// Processes an element of level one as [`Self::process`] does. The two frequent cases do not
    /// copy sections, which are large: the next row of a nest, and addresses that are irregular.
    #[inline]
    fn process_rsd(&mut self, start: u64, rsd: Dimension, sink: &mut impl FnMut(Piece<'_>)) {
        match self.levels.first_mut() {
            Some(Level::Compound(section)) if section.is_next_rsd(start, rsd) => section.lengthen(),
            Some(Level::Single(pair)) if pair.rsd().length == 2 && pair.rsd() != rsd => {
                let addresses = [pair.start(), pair.last()];
                pair.replace_rsd(start, rsd);
                self.flush_levels(2, sink);
                addresses.into_iter().for_each(|address| self.put_irregular(address, sink));
            }
            _ => self.process(1, Prsd::rsd_from(start, rsd), sink),
        }
    }

    /// Processes an element of a level from one on (Figure 5).
    fn process(&mut self, level: usize, element: Prsd, sink: &mut impl FnMut(Piece<'_>)) {
        if level > self.max_level {
            self.flush(&element, sink);
            return;
        }
        if self.levels.len() < level {
            self.levels.resize(level, Level::Empty);
        }
        match &mut self.levels[level - 1] {
            Level::Compound(section) if section.is_compatible_child(&element) => section.lengthen(),
            Level::Single(sibling) if sibling.is_compatible_sibling(&element) => {
                let mut section = *sibling;
                section.combine(&element);
                self.levels[level - 1] = Level::Compound(section);
            }
            other => {
                let other = std::mem::replace(other, Level::Single(element));
                self.make_room(level, other, sink);
            }
        }
    }

    /// Moves what was in a level up, or flushes it and everything above, for an element that is in
    /// the level now.
    fn make_room(&mut self, level: usize, previous: Level, sink: &mut impl FnMut(Piece<'_>)) {
        match previous {
            Level::Empty => {}
            Level::Single(section) => {
                self.flush_levels(level + 1, sink);
                self.flush(&section, sink);
            }
            Level::Compound(section) => self.process(level + 1, section, sink),
        }
    }

    /// Flushes all levels from one level on, the oldest sections first.
    fn flush_levels(&mut self, from: usize, sink: &mut impl FnMut(Piece<'_>)) {
        for at in (from - 1..self.levels.len()).rev() {
            if !matches!(self.levels[at], Level::Empty)
                && let Level::Single(section) | Level::Compound(section) = std::mem::take(&mut self.levels[at])
            {
                self.flush(&section, sink);
            }
        }
    }

    fn flush(&mut self, section: &Prsd, sink: &mut impl FnMut(Piece<'_>)) {
        if section.length() < 3 {
            // There are two.
            [section.start(), section.last()].into_iter().for_each(|address| self.put_irregular(address, sink));
        } else {
            self.pass_irregular(sink);
            sink(Piece::Regular(*section));
        }
    }

    fn put_irregular(&mut self, address: u64, sink: &mut impl FnMut(Piece<'_>)) {
        self.irregular.push(address);
        if self.irregular.len() == IRREGULAR_MAX {
            self.pass_irregular(sink);
        }
    }

    fn pass_irregular(&mut self, sink: &mut impl FnMut(Piece<'_>)) {
        if !self.irregular.is_empty() {
            sink(Piece::Irregular(&self.irregular));
            self.irregular.clear();
        }
    }
}

#[cfg(test)]
mod tests;
