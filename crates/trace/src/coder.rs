//! An adaptive binary range coder: bits in, bytes out, and back. Knows nothing of what the bits mean.
//!
//! The interval `low..=high` of 32 bits is split in proportion to the probability; leading bytes that both ends share are
//! written. The decoder reads zeros behind the end of its bytes.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Probability that a bit is 1, in 65536ths, learnt from the bits seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chance(u16);

impl Chance {
    pub(crate) const EVEN: Self = Self(1 << 15);
    const RATE: u32 = 5;
    /// Keeps both halves of the interval from becoming empty.
    const EDGE: u16 = 1 << 6;

    fn learn(&mut self, bit: bool) {
        if bit {
            self.0 += (u16::MAX - Self::EDGE - self.0.min(u16::MAX - Self::EDGE)) >> Self::RATE;
        } else {
            self.0 -= (self.0.max(Self::EDGE) - Self::EDGE) >> Self::RATE;
        }
    }
}

/// Where the interval is split.
#[inline]
fn middle(low: u32, high: u32, chance: Chance) -> u32 {
    let width = u64::from(high - low);
    // Less than the width, which has 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    let part = (width * u64::from(chance.0) >> 16) as u32;
    low + part
}

/// Something that codes bits one way or the other, so that a model is written once for both.
pub(crate) trait Coder {
    /// Codes `bit`, which a decoder ignores, and gives the bit.
    fn bit(&mut self, bit: bool, chance: &mut Chance) -> bool;

    /// Codes the `count` low bits of `value` as equally likely.
    fn plain(&mut self, value: u32, count: u32) -> u32 {
        (0..count).rev().fold(0, |result, place| {
            result << 1 | u32::from(self.bit(value >> place & 1 != 0, &mut { Chance::EVEN }))
        })
    }
}

#[derive(Debug)]
pub(crate) struct BitEncoder {
    low: u32,
    high: u32,
    out: Vec<u8>,
}

impl BitEncoder {
    pub(crate) fn new() -> Self {
        Self { low: 0, high: u32::MAX, out: Vec::new() }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out.extend_from_slice(&self.high.to_be_bytes());
        // The decoder reads zeros behind the end, so zeros need not be stored; `high` is never zero.
        while self.out.last() == Some(&0) {
            self.out.pop();
        }
        self.out
    }
}

impl Coder for BitEncoder {
    #[inline]
    fn bit(&mut self, bit: bool, chance: &mut Chance) -> bool {
        let middle = middle(self.low, self.high, *chance);
        if bit {
            self.high = middle;
        } else {
            self.low = middle + 1;
        }
        chance.learn(bit);
        while (self.low ^ self.high) >> 24 == 0 {
            self.out.push(self.high.to_be_bytes()[0]);
            self.low <<= 8;
            self.high = self.high << 8 | 0xff;
        }
        bit
    }
}

#[derive(Debug)]
pub(crate) struct BitDecoder<'a> {
    low: u32,
    high: u32,
    value: u32,
    input: std::slice::Iter<'a, u8>,
}

impl<'a> BitDecoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let mut decoder = Self { low: 0, high: u32::MAX, value: 0, input: bytes.iter() };
        (0..4).for_each(|_| decoder.shift());
        decoder
    }

    #[inline]
    fn shift(&mut self) {
        self.value = self.value << 8 | u32::from(self.input.next().copied().unwrap_or(0));
    }
}

impl Coder for BitDecoder<'_> {
    #[inline]
    fn bit(&mut self, _: bool, chance: &mut Chance) -> bool {
        let middle = middle(self.low, self.high, *chance);
        let bit = self.value <= middle;
        if bit {
            self.high = middle;
        } else {
            self.low = middle + 1;
        }
        chance.learn(bit);
        while (self.low ^ self.high) >> 24 == 0 {
            self.low <<= 8;
            self.high = self.high << 8 | 0xff;
            self.shift();
        }
        bit
    }
}

/// A model for whole numbers: their bit length in unary-coded tree form, then the two bits below the top one, each learnt; the
/// rest plain.
#[derive(Clone, Debug)]
pub(crate) struct NumberModel {
    lengths: [Chance; 64],
    tops: [[Chance; 4]; 33],
}

impl NumberModel {
    pub(crate) fn new() -> Self {
        Self { lengths: [Chance::EVEN; 64], tops: [[Chance::EVEN; 4]; 33] }
    }

    /// Codes `value` (any value when decoding) and gives it.
    pub(crate) fn code(&mut self, coder: &mut impl Coder, value: u32) -> u32 {
        let length = self.length(coder, 32 - value.leading_zeros());
        if length <= 1 {
            return length;
        }
        let below = length - 1;
        let learnt = below.min(2);
        let mut result = 1u32;
        let mut node = 1usize;
        for place in (below - learnt..below).rev() {
            let chances = self.tops.get_mut(length as usize).and_then(|tops| tops.get_mut(node));
            let bit = coder.bit(value >> place & 1 != 0, chances.unwrap_or(&mut { Chance::EVEN }));
            result = result << 1 | u32::from(bit);
            node = node << 1 | usize::from(bit);
        }
        let rest = below - learnt;
        if rest == 0 { result } else { result << rest | coder.plain(value, rest) }
    }

    /// A number up to 32, by a binary tree of six bits.
    fn length(&mut self, coder: &mut impl Coder, length: u32) -> u32 {
        let mut node = 1usize;
        for place in (0..6).rev() {
            let chance = self.lengths.get_mut(node);
            let bit = coder.bit(length >> place & 1 != 0, chance.unwrap_or(&mut { Chance::EVEN }));
            node = node << 1 | usize::from(bit);
        }
        u32::try_from(node & 63).unwrap_or(0).min(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_round_trip(bits in proptest::collection::vec((any::<bool>(), 0usize..3), 0..3000)) {
            let mut encoder = BitEncoder::new();
            let mut chances = [Chance::EVEN; 3];
            for &(bit, context) in &bits {
                encoder.bit(bit && context != 2, &mut chances[context]);
            }
            let bytes = encoder.finish();
            let mut decoder = BitDecoder::new(&bytes);
            let mut chances = [Chance::EVEN; 3];
            for &(bit, context) in &bits {
                prop_assert_eq!(decoder.bit(false, &mut chances[context]), bit && context != 2);
            }
        }

        #[test]
        fn numbers_round_trip(numbers in proptest::collection::vec(any::<u32>(), 0..300), shifts in 0u32..32) {
            let mut encoder = BitEncoder::new();
            let mut model = NumberModel::new();
            for &number in &numbers {
                model.code(&mut encoder, number >> (number % (shifts + 1)));
            }
            let bytes = encoder.finish();
            let mut decoder = BitDecoder::new(&bytes);
            let mut model = NumberModel::new();
            for &number in &numbers {
                prop_assert_eq!(model.code(&mut decoder, 0), number >> (number % (shifts + 1)));
            }
        }
    }

    #[test]
    fn a_sure_bit_costs_little() {
        let mut encoder = BitEncoder::new();
        let mut chance = Chance::EVEN;
        (0..80_000).for_each(|_| _ = encoder.bit(true, &mut chance));
        let length = encoder.finish().len();
        assert!(length < 100, "{length}");
    }
}
