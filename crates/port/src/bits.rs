//! Streams of bits. The first bit is the highest of the first byte, and a number's highest bit
//! comes first, so that a stream reads as it is written on paper.

/// Collects bits into bytes.
#[derive(Clone, Debug, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that do not fill a byte yet, in the lowest bits.
    rest: u64,
    /// Number of these bits; less than eight.
    rest_bits: u32,
}

/// Bits that fit into a word together with the rest.
const AT_ONCE: u32 = 32;

impl BitWriter {
    /// Appends the lowest `count` bits of `value`; at most 64.
    #[inline]
    pub fn put(&mut self, value: u64, count: u32) {
        if count > AT_ONCE {
            self.put_few(value >> AT_ONCE, count - AT_ONCE);
            self.put_few(value, AT_ONCE);
        } else {
            self.put_few(value, count);
        }
    }

    #[inline]
    fn put_few(&mut self, value: u64, count: u32) {
        self.rest = self.rest << count | value & low_bits(count);
        self.rest_bits += count;
        while self.rest_bits >= 8 {
            self.rest_bits -= 8;
            self.bytes.push((self.rest >> self.rest_bits) as u8);
        }
    }

    /// Takes the complete bytes.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Fills the last byte with zeros.
    pub fn pad(&mut self) {
        if self.rest_bits > 0 {
            self.put(0, 8 - self.rest_bits);
        }
    }
}

/// Returns a mask of the lowest bits.
fn low_bits(count: u32) -> u64 {
    u64::MAX.checked_shr(64 - count).unwrap_or(0)
}

/// Reads the bits of an untrusted stream; bits past its end are `None`.
#[derive(Clone, Debug)]
pub struct BitReader<'b> {
    bytes: &'b [u8],
    /// The next bit.
    at: u64,
    /// The position after the last bit.
    end: u64,
}

impl<'b> BitReader<'b> {
    /// Reads the first `bits` bits of `bytes`, or as many as there are.
    #[must_use]
    pub fn new(bytes: &'b [u8], bits: u64) -> Self {
        Self { bytes, at: 0, end: bits.min(bytes.len() as u64 * 8) }
    }

    /// Returns the next `count` bits as a number; at most 64.
    #[inline]
    pub fn get(&mut self, count: u32) -> Option<u64> {
        if u64::from(count) > self.end - self.at || count > 64 {
            return None;
        }
        let mut value = 0;
        let mut left = count;
        while left > 0 {
            let byte = *self.bytes.get(usize::try_from(self.at / 8).ok()?)?;
            let offset = (self.at % 8) as u32;
            let own = left.min(8 - offset);
            let bits = u64::from(byte) >> (8 - offset - own) & low_bits(own);
            value = value << own | bits;
            left -= own;
            self.at += u64::from(own);
        }
        Some(value)
    }

    /// Returns whether all bits were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_highest_bit_comes_first() {
        let mut writer = BitWriter::default();
        for (value, count) in [(0b101, 3), (0, 1), (0b1111_0000, 8), (1, 2)] {
            writer.put(value, count);
        }
        writer.pad();
        assert_eq!(writer.take(), [0b1010_1111, 0b0000_0100]);
    }

    #[test]
    fn bits_behind_the_end_are_none() {
        let mut reader = BitReader::new(&[0xff, 0], 100);
        assert_eq!((reader.get(17), reader.get(12), reader.get(5)), (None, Some(0xff0), None));
        assert_eq!((reader.get(4), reader.get(0), reader.get(1), reader.is_empty()), (Some(0), Some(0), None, true));
        let mut short = BitReader::new(&[0xff, 0], 3);
        assert_eq!((short.get(4), short.get(3)), (None, Some(7)));
    }

    proptest! {
        #[test]
        fn numbers_round_trip(values in proptest::collection::vec((any::<u64>(), 0u32..=64), 0..200)) {
            let mut writer = BitWriter::default();
            values.iter().for_each(|&(value, count)| writer.put(value, count));
            let bits = values.iter().map(|&(_, count)| u64::from(count)).sum();
            writer.pad();
            let bytes = writer.take();
            let mut reader = BitReader::new(&bytes, bits);
            for &(value, count) in &values {
                prop_assert_eq!(reader.get(count), Some(value & low_bits(count)));
            }
            prop_assert!(reader.is_empty());
        }
    }
}
