//! Lengths of a field's values in bits, and the chunk sizes that suit them (Tewar 2015, Figures 4.9
//! to 4.11).

use crate::chunks::Chunks;

/// Histogram of values by the bits they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthHistogram {
    counts: [u64; 65],
}

impl Default for LengthHistogram {
    fn default() -> Self {
        Self { counts: [0; 65] }
    }
}

impl LengthHistogram {
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.counts[64 - value.leading_zeros() as usize] += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, other)| *own += other);
    }

    pub(crate) fn halve(&mut self) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
    }

    /// Returns the number of values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the share of values that need at most 1 bit (as 0 does), 2 bits and so on, up to the
    /// length that covers all values.
    #[must_use]
    pub fn cumulative(&self) -> Vec<f64> {
        let total = self.total().max(1) as f64;
        let last = self.counts.iter().rposition(|&count| count > 0).unwrap_or(0).max(1);
        let mut sum = self.counts[0];
        let mut share = |count: &u64| {
            sum += count;
            sum as f64 / total
        };
        self.counts[1..=last].iter().map(&mut share).collect()
    }

    /// Returns the bits that all values take in such chunks.
    #[must_use]
    pub fn bits(&self, chunks: &Chunks) -> u64 {
        (0..)
            .zip(self.counts)
            .filter(|&(_, count)| count > 0)
            .map(|(length, count)| count * u64::from(chunks.bits(length)))
            .sum()
    }

    /// Returns the chunk sizes, 1 to `max`, that minimise the bits of all values, and these bits.
    #[must_use]
    pub fn best(&self, max: u32) -> (Chunks, u64) {
        let sizes = (1..=max).flat_map(|first| (1..=max).map(move |next| Chunks::variable(first, next)));
        sizes.map(|chunks| (chunks, self.bits(&chunks))).min_by_key(|&(_, bits)| bits).unwrap_or((Chunks::fixed(8), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> LengthHistogram {
        let mut lengths = LengthHistogram::default();
        values.iter().for_each(|&value| lengths.add(value));
        lengths
    }

    #[test]
    fn shares() {
        assert_eq!(of(&[0, 1, 2, 15]).cumulative(), [0.5, 0.75, 0.75, 1.0]);
        assert_eq!(of(&[]).cumulative(), [0.0]);
        assert_eq!(of(&[u64::MAX]).cumulative().len(), 64);
    }

    #[test]
    fn the_best_sizes_are_found() {
        let lengths = of(&[9, 10, 11, 12, 13]);
        let (chunks, bits) = lengths.best(6);
        assert_eq!((chunks.sizes().0, bits), (4, 25));
        for first in 1..=6 {
            assert!((1..=6).all(|next| lengths.bits(&Chunks::new(first, next).unwrap()) >= bits));
        }
    }
}
