//! Numbers in chunks, lowest bits first. After each chunk, a connect bit is 1 if another chunk
//! follows (Tewar 2015, sections 4.2 and 4.3.4). A [`Coding`] writes and reads a field in chunks of
//! fixed or adaptive sizes.

use thiserror::Error;

use crate::bits::BitReader;
use crate::count::{Field, Port};
use crate::lengths::LengthHistogram;

/// Sizes of the first and of every other chunk, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    first: u32,
    next: u32,
}

/// Error: a chunk of illegal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there are no chunks of {0} bits: sizes are 1 to {CHUNK_BITS_MAX}")]
pub struct IllegalChunk(pub u32);

/// The maximum number of bits of a number.
pub const CHUNK_BITS_MAX: u32 = 64;

impl Chunks {
    pub fn new(first: u32, next: u32) -> Result<Self, IllegalChunk> {
        for size in [first, next] {
            if !(1..=CHUNK_BITS_MAX).contains(&size) {
                return Err(IllegalChunk(size));
            }
        }
        Ok(Self { first, next })
    }

    /// Chunks of one size, which must be legal.
    #[must_use]
    pub(crate) const fn fixed(size: u32) -> Self {
        Self { first: size, next: size }
    }

    /// Chunks of these sizes, which must be legal.
    #[must_use]
    pub(crate) const fn variable(first: u32, next: u32) -> Self {
        Self { first, next }
    }

    /// Returns the sizes of the first and of every other chunk.
    #[must_use]
    pub fn sizes(&self) -> (u32, u32) {
        (self.first, self.next)
    }

    /// Returns the bits that a number of `length` bits takes, including connect bits.
    #[must_use]
    #[inline]
    pub fn bits(&self, length: u32) -> u32 {
        let more = length.saturating_sub(self.first).div_ceil(self.next);
        self.first + 1 + more * (self.next + 1)
    }

    #[inline]
    fn write(&self, port: &mut Port, field: Field, value: u64) {
        let (mut size, mut rest) = (self.first, value);
        loop {
            let higher = rest.checked_shr(size).unwrap_or(0);
            port.put(field, rest, size);
            port.put(field, u64::from(higher != 0), 1);
            if higher == 0 {
                return;
            }
            (size, rest) = (self.next, higher);
        }
    }

    fn read(&self, bits: &mut BitReader<'_>) -> Option<u64> {
        let (mut value, mut size, mut at) = (0u64, self.first, 0u32);
        loop {
            let chunk = bits.get(size)?;
            let shifted = chunk.checked_shl(at).filter(|shifted| shifted >> at == chunk)?;
            value |= shifted;
            if bits.get(1)? == 0 {
                return Some(value);
            }
            at += size;
            size = self.next;
        }
    }
}

/// Encoding of a field.
#[derive(Clone, Debug)]
pub enum Coding {
    /// Chunks of constant sizes.
    Chunks(Chunks),
    /// Chunks whose sizes adapt to the values written before.
    Adaptive(Box<Adaptive>),
}

impl Coding {
    #[must_use]
    pub fn adaptive(start: Chunks) -> Self {
        Self::Adaptive(Box::new(Adaptive { chunks: start, lengths: LengthHistogram::default(), age: 0 }))
    }

    /// Writes `value` as a field.
    #[inline]
    pub fn write(&mut self, port: &mut Port, field: Field, value: u64) {
        match self {
            Self::Chunks(chunks) => chunks.write(port, field, value),
            Self::Adaptive(adaptive) => {
                adaptive.chunks.write(port, field, value);
                adaptive.learn(value);
            }
        }
    }

    /// Reads a field; `None` if the bits end or are not a number.
    pub fn read(&mut self, bits: &mut BitReader<'_>) -> Option<u64> {
        match self {
            Self::Chunks(chunks) => chunks.read(bits),
            Self::Adaptive(adaptive) => {
                let value = adaptive.chunks.read(bits)?;
                adaptive.learn(value);
                Some(value)
            }
        }
    }
}

/// Adaptive chunk sizes. Every few values, writer and reader both choose the best sizes for the
/// lengths of recent values.
#[derive(Clone, Debug)]
pub struct Adaptive {
    chunks: Chunks,
    lengths: LengthHistogram,
    /// Values since the last choice of sizes.
    age: u32,
}

/// Values between two choices of sizes. Each choice halves the weight of earlier values.
const LIFETIME: u32 = 64;
/// Largest size that is tried, as in Tewar 2015's search over |diffTA|.
const TRIED_MAX: u32 = 12;

impl Adaptive {
    fn learn(&mut self, value: u64) {
        self.lengths.add(value);
        self.age += 1;
        if self.age == LIFETIME {
            self.age = 0;
            self.chunks = self.lengths.best(TRIED_MAX).0;
            self.lengths.halve();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(coding: &mut Coding, values: &[u64]) -> (Vec<u8>, u64) {
        let mut port = Port::writing();
        values.iter().for_each(|&value| coding.write(&mut port, Field::BCnt, value));
        (port.finish(), port.bits())
    }

    /// Worked out on paper: 5 in (4,2) is one chunk; 37 is 0101 1, 10 0.
    #[test]
    fn by_hand() {
        let coding = |first, next| Coding::Chunks(Chunks::new(first, next).unwrap());
        assert_eq!(stream(&mut coding(4, 2), &[5]), (vec![0b0101_0000], 5));
        assert_eq!(stream(&mut coding(4, 2), &[37]), (vec![0b0101_1100], 8));
        assert_eq!(stream(&mut coding(2, 2), &[0, 21]), (vec![0b0000_1101, 0b1010_0000], 12));
        assert_eq!(stream(&mut coding(8, 8), &[0x1ff]), (vec![0xff, 0b1000_0000, 0b1000_0000], 18));
        assert_eq!(stream(&mut coding(64, 1), &[u64::MAX]).1, 65);
    }

    #[test]
    fn sizes() {
        assert_eq!(Chunks::new(0, 2), Err(IllegalChunk(0)));
        assert_eq!(Chunks::new(4, 65).unwrap_err().to_string(), "there are no chunks of 65 bits: sizes are 1 to 64");
        let chunks = Chunks::new(4, 2).unwrap();
        assert_eq!([0, 1, 4, 5, 6, 7, 64].map(|length| chunks.bits(length)), [5, 5, 5, 8, 8, 11, 95]);
    }

    /// A connect bit after more bits than a number has.
    #[test]
    fn endless_numbers_are_refused() {
        let chunks = Chunks::new(60, 8).unwrap();
        assert_eq!(chunks.read(&mut BitReader::new(&[0xff; 100], 800)), None);
        assert_eq!(chunks.read(&mut BitReader::new(&[0xff; 2], 16)), None);
    }

    #[test]
    fn sizes_follow_the_values() {
        let (long, start) = (vec![0x1234_5678; 1000], Chunks::new(1, 1).unwrap());
        let (_, fixed) = stream(&mut Coding::Chunks(start), &long);
        let (_, adaptive) = stream(&mut Coding::adaptive(start), &long);
        assert!(adaptive * 10 < fixed * 7, "{adaptive} and {fixed}");
    }

    proptest! {
        #[test]
        fn numbers_round_trip(
            values in proptest::collection::vec((any::<u64>(), 0u32..64), 0..400),
            first in 1u32..=64, next in 1u32..=64,
        ) {
            let values: Vec<u64> = values.into_iter().map(|(value, shift)| value >> shift).collect();
            let chunks = Chunks::new(first, next).unwrap();
            for coding in [Coding::Chunks(chunks), Coding::adaptive(chunks)] {
                let (bytes, bits) = stream(&mut coding.clone(), &values);
                let (mut reader, mut coding) = (BitReader::new(&bytes, bits), coding);
                for &value in &values {
                    prop_assert_eq!(coding.read(&mut reader), Some(value));
                }
                prop_assert!(reader.is_empty());
            }
            let (_, bits) = stream(&mut Coding::Chunks(chunks), &values);
            let expected: u64 = values.iter().map(|value| u64::from(chunks.bits(64 - value.leading_zeros()))).sum();
            prop_assert_eq!(bits, expected);
        }
    }
}
