//! Sizes of a cache, and the split of an address into line, set and offset.

use thiserror::Error;

/// Bytes, bytes per line, and ways; each is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    bytes: u64,
    line_bytes: u64,
    ways: usize,
    /// Derived sizes, which every access needs.
    line_bits: u32,
    sets: usize,
}

/// Error: illegal sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IllegalGeometry {
    #[error("a {what} of {value} is not possible; {below} and {above} are")]
    NoPowerOfTwo { what: &'static str, value: u64, below: u64, above: u64 },
    #[error(
        "{ways} ways of {line_bytes} bytes do not fit into a cache of {bytes} bytes; {} bytes would be enough",
        *.line_bytes * *.ways as u64
    )]
    TooSmall { bytes: u64, line_bytes: u64, ways: usize },
    #[error("a {what} of {value} is too large; {most} is possible")]
    TooLarge { what: &'static str, value: u64, most: u64 },
}

const BYTES_MAX: u64 = 1 << 32;
const LINE_BYTES_MAX: u64 = 1 << 16;
const WAYS_MAX: u64 = 1 << 16;

impl Geometry {
    pub fn new(bytes: u64, line_bytes: u64, ways: usize) -> Result<Self, IllegalGeometry> {
        power_of_two("cache size", bytes, BYTES_MAX)?;
        power_of_two("line size", line_bytes, LINE_BYTES_MAX)?;
        power_of_two("number of ways", ways as u64, WAYS_MAX)?;
        if bytes < line_bytes * ways as u64 {
            return Err(IllegalGeometry::TooSmall { bytes, line_bytes, ways });
        }
        let sets = (bytes / line_bytes) as usize / ways;
        Ok(Self { bytes, line_bytes, ways, line_bits: line_bytes.trailing_zeros(), sets })
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[must_use]
    #[inline]
    pub fn line_bytes(&self) -> u64 {
        self.line_bytes
    }

    #[must_use]
    #[inline]
    pub fn ways(&self) -> usize {
        self.ways
    }

    #[must_use]
    #[inline]
    pub fn sets(&self) -> usize {
        self.sets
    }

    /// Returns the number of the line of `address`.
    #[must_use]
    #[inline]
    pub fn line(&self, address: u64) -> u64 {
        address >> self.line_bits
    }

    /// Returns the offset of `address` in its line.
    #[must_use]
    #[inline]
    pub fn offset(&self, address: u64) -> u64 {
        address & (self.line_bytes - 1)
    }

    /// Returns the index of `address` among the bytes of all slots, if its line is in this slot.
    #[must_use]
    #[inline]
    pub fn byte_index(&self, slot: usize, address: u64) -> usize {
        (slot << self.line_bits) + self.offset(address) as usize
    }

    /// Returns the set of a line.
    #[must_use]
    #[inline]
    pub fn set(&self, line: u64) -> usize {
        // Truncation keeps the low bits.
        line as usize & (self.sets() - 1)
    }
}

/// Accepts powers of two up to `most`.
pub(crate) fn power_of_two(what: &'static str, value: u64, most: u64) -> Result<(), IllegalGeometry> {
    if value > most {
        return Err(IllegalGeometry::TooLarge { what, value, most });
    }
    if value.is_power_of_two() {
        return Ok(());
    }
    let above = value.next_power_of_two();
    Err(IllegalGeometry::NoPowerOfTwo { what, value, below: (above / 2).max(1), above })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let geometry = Geometry::new(32 << 10, 32, 4).unwrap();
        assert_eq!(geometry.sets(), 256);
        let line = geometry.line(0x12345);
        assert_eq!((line, geometry.set(line), geometry.offset(0x12345)), (0x91a, 0x1a, 5));
    }

    #[test]
    fn an_illegal_geometry_is_refused_with_legal_numbers() {
        let said = |bytes, line, ways| Geometry::new(bytes, line, ways).unwrap_err().to_string();
        assert_eq!(said(48, 16, 2), "a cache size of 48 is not possible; 32 and 64 are");
        assert_eq!(said(64, 0, 2), "a line size of 0 is not possible; 1 and 1 are");
        assert_eq!(said(32, 16, 4), "4 ways of 16 bytes do not fit into a cache of 32 bytes; 64 bytes would be enough");
        assert!(Geometry::new(32, 16, 2).is_ok() && Geometry::new(1 << 40, 64, 4).is_err());
    }
}
