//! Integers in bytes: prefix varints, which take one to nine bytes for 64 bits, and a reader of
//! untrusted bytes, which returns `None` at their end and never panics.
//!
//! The number of leading ones in the first byte of a varint is the number of bytes behind it. The
//! bits of the first byte behind its first zero are the lowest bits of the value. So the largest
//! addresses take nine bytes and not ten as with a continuation bit in each byte.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Appends a varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    let bits = u64::BITS - (value | 1).leading_zeros();
    let extra = ((bits - 1) / 7).min(8);
    if extra == 8 {
        out.push(u8::MAX);
        out.extend_from_slice(&value.to_le_bytes());
        return;
    }
    // `extra` ones, a zero, and the lowest bits.
    let low_bits = 7 - extra;
    let ones = !(u8::MAX >> extra);
    out.push(ones | (value.to_le_bytes()[0] & ((1 << low_bits) - 1)));
    let rest = (value >> low_bits).to_le_bytes();
    out.extend(rest.iter().take(extra as usize));
}

/// Appends a difference of two addresses, which is short if it is small either way.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, difference: u64) {
    put_varint(out, (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned());
}

/// Reads integers from a slice.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = self.u8()?;
        let extra = first.leading_ones();
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.take(extra as usize)?) {
            *to = *from;
        }
        let rest = u64::from_le_bytes(bytes);
        if extra >= 7 {
            return Some(rest);
        }
        let low_bits = 7 - extra;
        Some(rest << low_bits | u64::from(first) & ((1 << low_bits) - 1))
    }

    #[inline]
    pub fn signed(&mut self) -> Option<u64> {
        self.varint().map(|value| (value >> 1) ^ (value & 1).wrapping_neg())
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_varint_takes_a_byte_for_seven_bits_and_nine_bytes_at_most() {
        let lengths = [(0u64, 1), (0x7f, 1), (0x80, 2), (0x3fff, 2), (0x4000, 3), (u64::MAX >> 8, 8), (u64::MAX, 9)];
        for (value, length) in lengths {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out.len(), length, "{value:#x}");
            assert_eq!(ByteReader::new(&out).varint(), Some(value));
            assert_eq!(ByteReader::new(&out[..length - 1]).varint(), None);
        }
    }

    proptest! {
        #[test]
        fn integers_come_back(values: Vec<u64>, shift in 0u32..64) {
            let mut out = Vec::new();
            for value in &values {
                put_varint(&mut out, value >> shift);
                put_signed(&mut out, *value);
            }
            let mut bytes = ByteReader::new(&out);
            for value in values {
                prop_assert_eq!(bytes.varint(), Some(value >> shift));
                prop_assert_eq!(bytes.signed(), Some(value));
            }
            prop_assert!(bytes.is_empty());
        }
    }
}
