//! Streams of single bits, packed into bytes, first bit lowest. The predicting codec writes and
//! reads its outcomes with [`BitWriter`] and [`BitReader`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Writes single bits.
#[derive(Clone, Debug, Default)]
pub struct BitWriter {
    pending: u64,
    count: u32,
    out: Vec<u8>,
}

impl BitWriter {
    #[inline]
    pub fn push(&mut self, bit: bool) {
        self.push_if(true, bit);
    }

    /// Appends the bit if it is `wanted`, without a branch on that.
    #[inline]
    pub fn push_if(&mut self, wanted: bool, bit: bool) {
        self.pending |= u64::from(bit & wanted) << self.count;
        self.count += u32::from(wanted);
        if self.count == 64 {
            self.out.extend_from_slice(&self.pending.to_le_bytes());
            (self.pending, self.count) = (0, 0);
        }
    }

    /// Returns all bits; the rest of the last byte is zero.
    pub fn finish(&mut self) -> &[u8] {
        let used = self.count.div_ceil(8) as usize;
        self.out.extend(self.pending.to_le_bytes().iter().take(used));
        (self.pending, self.count) = (0, 0);
        &self.out
    }

    pub fn clear(&mut self) {
        (self.pending, self.count) = (0, 0);
        self.out.clear();
    }
}

/// Reads single bits, and zeros behind the end.
#[derive(Clone, Debug, Default)]
pub struct BitReader {
    bytes: Vec<u8>,
    next: usize,
    pending: u64,
    count: u32,
}

impl BitReader {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, next: 0, pending: 0, count: 0 }
    }

    #[inline]
    pub fn take(&mut self) -> bool {
        if self.count == 0 {
            self.refill();
        }
        let bit = self.pending & 1 != 0;
        self.pending >>= 1;
        self.count -= 1;
        bit
    }

    #[inline]
    fn refill(&mut self) {
        let mut bytes = [0; 8];
        for (byte, &stored) in bytes.iter_mut().zip(self.bytes.get(self.next..).unwrap_or(&[])) {
            *byte = stored;
        }
        self.next = self.next.saturating_add(8);
        (self.pending, self.count) = (u64::from_le_bytes(bytes), 64);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_round_trip(bits in proptest::collection::vec(any::<bool>(), 0..300)) {
            let mut writer = BitWriter::default();
            bits.iter().for_each(|&bit| writer.push(bit));
            let mut reader = BitReader::new(writer.finish().to_vec());
            for bit in bits {
                prop_assert_eq!(reader.take(), bit);
            }
        }
    }
}
