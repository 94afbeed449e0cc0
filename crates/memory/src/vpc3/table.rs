//! Tables of value predictors. Line numbers are masked, so every number is one of a line.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// Lines of recent values, the last one first.
#[derive(Clone, Debug)]
pub struct ValueTable<T, const VALUES: usize> {
    lines: Vec<[T; VALUES]>,
}

impl<T: Copy + Default + PartialEq, const VALUES: usize> ValueTable<T, VALUES>
where
    [T; VALUES]: Default,
{
    pub fn new(line_bits: u32) -> Self {
        Self { lines: vec![<[T; VALUES]>::default(); 1 << line_bits] }
    }

    #[inline]
    pub fn line(&self, line: u32) -> [T; VALUES] {
        self.lines.get(line as usize & (self.lines.len() - 1)).copied().unwrap_or_default()
    }

    /// Puts a value first, unless it is there already.
    #[inline]
    pub fn update(&mut self, line: u32, value: T) {
        let mask = self.lines.len() - 1;
        let Some(line) = self.lines.get_mut(line as usize & mask) else { return };
        if line.first().is_some_and(|&first| first != value) {
            line.rotate_right(1);
            line.iter_mut().take(1).for_each(|first| *first = value);
        }
    }
}

/// Hashes of the last values of each line, for contexts of the orders 1 to `ORDERS`.
#[derive(Clone, Debug)]
pub struct History<const ORDERS: usize> {
    lines: Vec<[u32; ORDERS]>,
    /// Bits of the hash of one value.
    hash_bits: u32,
}

impl<const ORDERS: usize> History<ORDERS> {
    pub fn new(line_bits: u32, hash_bits: u32) -> Self {
        Self { lines: vec![[0; ORDERS]; 1 << line_bits], hash_bits }
    }

    /// Returns the lines of the second levels: order 1 first.
    #[inline]
    pub fn contexts(&self, line: u32) -> [u32; ORDERS] {
        self.lines.get(line as usize & (self.lines.len() - 1)).copied().unwrap_or([0; ORDERS])
    }

    #[inline]
    pub fn update(&mut self, line: u32, value: u64) {
        let (mask, folded) = (self.lines.len() - 1, self.fold(value));
        let Some(line) = self.lines.get_mut(line as usize & mask) else { return };
        let mut shorter = 0;
        for hash in line {
            let next = (shorter << 1) ^ folded;
            shorter = std::mem::replace(hash, next);
        }
    }

    #[inline]
    fn fold(&self, value: u64) -> u32 {
        let mask = (1 << self.hash_bits) - 1;
        let (mut rest, mut folded) = (value, 0);
        while rest != 0 {
            folded ^= rest & mask;
            rest >>= self.hash_bits;
        }
        u32::try_from(folded).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_different_values() {
        let mut table = ValueTable::<u64, 2>::new(4);
        for value in [5, 5, 6, 6, 6] {
            table.update(3 + 16, value);
        }
        assert_eq!(table.line(3), [6, 5]);
        assert_eq!(table.line(4), [0, 0]);
    }

    #[test]
    fn a_context_is_made_of_the_last_values() {
        let (mut one, mut other) = (History::<3>::new(0, 17), History::<3>::new(0, 17));
        [1, 9, 20, 3].into_iter().for_each(|value| one.update(0, value));
        [2, 8, 20, 3].into_iter().for_each(|value| other.update(5, value));
        let [[first, second, third], [other_first, other_second, other_third]] = [one.contexts(7), other.contexts(0)];
        assert!(first == other_first && second == other_second && third != other_third);
        assert!(first < 1 << 17 && second < 1 << 18 && third < 1 << 19);
        assert_eq!(third, (9 << 2) ^ (20 << 1) ^ 3);
    }

    #[test]
    fn all_bits_of_a_value_count() {
        let history = History::<1>::new(0, 19);
        assert!((0..64).all(|bit| history.fold(1 << bit) != 0));
        assert_eq!(history.fold(u64::MAX) >> 19, 0);
    }
}
