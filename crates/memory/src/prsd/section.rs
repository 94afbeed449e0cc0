//! Regular sections of any height.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// The most dimensions of a regular section.
pub const DIMENSIONS_MAX: usize = 8;

/// A loop: how often it does what is inside, and the distance between the starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dimension {
    /// A difference of addresses, modulo 2^64.
    pub stride: u64,
    /// At least two.
    pub length: u64,
}

/// A regular section descriptor: an RSD if it has one dimension, otherwise a power RSD. Addresses
/// are modulo 2^64.
///
/// ```
/// use trackway_memory::prsd::{Dimension, Prsd};
///
/// let rows = Dimension { stride: 800, length: 3 };
/// let section = Prsd::new(0x1000, &[Dimension { stride: 4, length: 2 }, rows]).unwrap();
/// assert!(section.addresses().eq([0x1000, 0x1004, 0x1320, 0x1324, 0x1640, 0x1644]));
/// assert!(section.height() == 1 && section.length() == 6 && section.last() == 0x1644);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prsd {
    start: u64,
    /// The innermost first; zeros behind the last one.
    dimensions: [Dimension; DIMENSIONS_MAX],
    dimension_count: usize,
}

impl Prsd {
    /// Returns `None` if there are no dimensions or too many, if one is shorter than two, or if a
    /// number cannot count the addresses.
    #[must_use]
    pub fn new(start: u64, dimensions: &[Dimension]) -> Option<Self> {
        let mut length = 1u64;
        for dimension in dimensions {
            length = length.checked_mul(dimension.length).filter(|_| dimension.length >= 2)?;
        }
        let mut own = [Dimension::default(); DIMENSIONS_MAX];
        own.get_mut(..dimensions.len())?.copy_from_slice(dimensions);
        (length > 1).then_some(Self { start, dimensions: own, dimension_count: dimensions.len() })
    }

    /// Returns an RSD.
    pub(super) fn rsd_from(start: u64, dimension: Dimension) -> Self {
        let mut dimensions = [Dimension::default(); DIMENSIONS_MAX];
        if let Some(first) = dimensions.first_mut() {
            *first = dimension;
        }
        Self { start, dimensions, dimension_count: 1 }
    }

    #[must_use]
    #[inline]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the dimensions, the innermost first.
    #[must_use]
    #[inline]
    pub fn dimensions(&self) -> &[Dimension] {
        self.dimensions.get(..self.dimension_count).unwrap_or(&self.dimensions)
    }

    /// Returns the number of dimensions around the innermost one; 0 for an RSD.
    #[must_use]
    pub fn height(&self) -> usize {
        self.dimension_count - 1
    }

    /// Returns the innermost dimension, which all RSDs of the section have.
    #[must_use]
    pub fn rsd(&self) -> Dimension {
        self.dimensions().first().copied().unwrap_or_default()
    }

    /// Returns the number of RSDs in the section; 1 for an RSD.
    #[must_use]
    pub fn rsd_count(&self) -> u64 {
        self.dimensions().iter().skip(1).map(|dimension| dimension.length).product()
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.rsd_count() * self.rsd().length
    }

    /// Returns the last address.
    #[must_use]
    pub fn last(&self) -> u64 {
        let distance = |dimension: &Dimension| dimension.stride.wrapping_mul(dimension.length - 1);
        self.dimensions().iter().map(distance).fold(self.start, u64::wrapping_add)
    }

    /// Generates the addresses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        let position = |dimension: &Dimension| Position { start: self.start, left: dimension.length };
        let positions = self.dimensions.each_ref().map(position);
        Addresses { section: *self, positions, next: self.start, left_inside: self.rsd().length, left: self.length() }
    }

    /// Returns whether two sections of one height are equal but for their starts
    /// (`is_compatible_sibling`, section 4.2).
    #[inline]
    pub(super) fn is_compatible_sibling(&self, other: &Self) -> bool {
        self.dimensions() == other.dimensions()
    }

    /// Returns whether another section is the next instance of what this one repeats
    /// (`is_compatible_child`, section 4.2).
    #[inline]
    pub(super) fn is_compatible_child(&self, child: &Self) -> bool {
        let Some((outermost, inside)) = self.dimensions().split_last() else { return false };
        let next = self.start.wrapping_add(outermost.stride.wrapping_mul(outermost.length));
        child.start == next && child.dimensions() == inside
    }

    /// Returns whether an RSD is the next instance of what this section repeats, as
    /// [`Self::is_compatible_child`] does.
    #[inline]
    pub(super) fn is_next_rsd(&self, start: u64, rsd: Dimension) -> bool {
        let &[inside, outermost] = self.dimensions() else { return false };
        inside == rsd && start == self.start.wrapping_add(outermost.stride.wrapping_mul(outermost.length))
    }

    /// Puts another RSD in the place of this one.
    #[inline]
    pub(super) fn replace_rsd(&mut self, start: u64, rsd: Dimension) {
        self.start = start;
        if let Some(first) = self.dimensions.first_mut() {
            *first = rsd;
        }
    }

    /// Adds a dimension of two around this section: itself and a sibling. The caller bounds the
    /// height.
    pub(super) fn combine(&mut self, sibling: &Self) {
        let stride = sibling.start.wrapping_sub(self.start);
        if let Some(outermost) = self.dimensions.get_mut(self.dimension_count) {
            *outermost = Dimension { stride, length: 2 };
            self.dimension_count += 1;
        }
    }

    /// Adds an instance to the outermost dimension.
    #[inline]
    pub(super) fn lengthen(&mut self) {
        if let Some(outermost) = self.dimensions.get_mut(self.dimension_count - 1) {
            outermost.length += 1;
        }
    }
}

/// The addresses of a regular section.
#[derive(Clone, Debug)]
pub struct Addresses {
    section: Prsd,
    positions: [Position; DIMENSIONS_MAX],
    next: u64,
    /// Addresses that follow in the present RSD.
    left_inside: u64,
    left: u64,
}

/// A position in a dimension.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The start of the present instance of what is inside.
    start: u64,
    /// Instances that follow, with the present one.
    left: u64,
}

impl Iterator for Addresses {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let address = self.next;
        self.left -= 1;
        self.left_inside -= 1;
        self.next = address.wrapping_add(self.section.rsd().stride);
        if self.left_inside == 0 {
            self.enter_next_rsd();
        }
        Some(address)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

impl Addresses {
    fn enter_next_rsd(&mut self) {
        let mut finished = 0;
        for (dimension, position) in self.section.dimensions().iter().zip(&mut self.positions).skip(1) {
            finished += 1;
            position.left -= 1;
            position.start = position.start.wrapping_add(dimension.stride);
            if position.left > 0 {
                self.next = position.start;
                break;
            }
        }
        for (dimension, position) in self.section.dimensions().iter().zip(&mut self.positions).take(finished) {
            if position.left == 0 {
                *position = Position { start: self.next, left: dimension.length };
            }
        }
        self.left_inside = self.section.rsd().length;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates addresses as nested loops would.
    fn nested(start: u64, dimensions: &[Dimension]) -> Vec<u64> {
        let Some((outermost, inside)) = dimensions.split_last() else { return vec![start] };
        let starts = (0..outermost.length).map(|at| start.wrapping_add(outermost.stride.wrapping_mul(at)));
        starts.flat_map(|start| nested(start, inside)).collect()
    }

    proptest! {
        #[test]
        fn addresses_are_those_of_nested_loops(
            start: u64, dimensions in prop::collection::vec((any::<u64>(), 2u64..5), 1..7),
        ) {
            let dimension = |(stride, length)| Dimension { stride, length };
            let dimensions: Vec<Dimension> = dimensions.into_iter().map(dimension).collect();
            let section = Prsd::new(start, &dimensions).unwrap();
            let expected = nested(start, &dimensions);
            prop_assert_eq!(section.length(), expected.len() as u64);
            prop_assert_eq!(section.rsd_count() * section.rsd().length, section.length());
            prop_assert_eq!(section.addresses().size_hint(), (expected.len(), Some(expected.len())));
            prop_assert_eq!(Some(section.last()), expected.last().copied());
            prop_assert!(section.addresses().eq(expected));
        }
    }

    #[test]
    fn impossible_sections_are_refused() {
        let two = Dimension { stride: 1, length: 2 };
        assert!(Prsd::new(0, &[two; DIMENSIONS_MAX]).is_some());
        assert_eq!(Prsd::new(0, &[]), None);
        assert_eq!(Prsd::new(0, &[two; DIMENSIONS_MAX + 1]), None);
        assert_eq!(Prsd::new(0, &[two, Dimension { stride: 1, length: 1 }]), None);
        assert_eq!(Prsd::new(0, &[two, Dimension { stride: 1, length: u64::MAX }]), None);
    }
}
