//! Reading integers from untrusted bytes, and writing them. Reads return `None` at the end of the
//! bytes and never panic.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// A position in a slice.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    whole: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    #[inline]
    pub fn new(whole: &'a [u8]) -> Self {
        Self { whole, at: 0 }
    }

    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at >= self.whole.len()
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.whole.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.whole.get(self.at..).unwrap_or(&[]);
        self.at = self.whole.len();
        rest
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a varint: seven bits a byte, the lowest first, the top bit set in all bytes but the
    /// last; at most ten bytes.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    pub fn varint_u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    #[inline]
    pub fn signed(&mut self) -> Option<u64> {
        self.varint().map(unzigzag)
    }

    /// Reads a varint length and that many bytes of UTF-8. Malformed sequences are replaced.
    pub fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Appends a difference of two addresses or times as a varint, which is short if the difference is
/// small either way.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, difference: u64) {
    put_varint(out, zigzag(difference));
}

pub fn put_string(out: &mut Vec<u8>, string: &str) {
    put_varint(out, string.len() as u64);
    out.extend_from_slice(string.as_bytes());
}

#[inline]
pub fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

#[inline]
pub fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_signed(&mut out, value);
            let mut bytes = ByteReader::new(&out);
            assert_eq!(bytes.varint(), Some(value));
            assert_eq!(bytes.signed(), Some(value));
            assert!(bytes.is_empty());
        }
        assert_eq!(ByteReader::new(&[0xff; 11]).varint(), None);
        assert_eq!(ByteReader::new(&[0x80]).varint(), None);
    }
}
