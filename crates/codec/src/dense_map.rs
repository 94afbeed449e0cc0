//! Values by number: an array as long as the numbers are dense, which they are in a sound
//! recording, and a hash map for the others. So numbers from a damaged file take no more memory
//! than their count.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::marker::PhantomData;

use hashbrown::HashMap;

/// A value type with one value that means "none".
pub trait Sentinel: Copy {
    const NONE: Self;

    fn is_none(&self) -> bool;
}

impl Sentinel for u32 {
    const NONE: Self = u32::MAX;

    fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// A map from the numbers `K`.
#[derive(Debug)]
pub struct DenseMap<K, T> {
    dense: Vec<T>,
    sparse: HashMap<u32, T>,
    count: usize,
    numbers: PhantomData<K>,
}

impl<K, T> Default for DenseMap<K, T> {
    fn default() -> Self {
        Self { dense: Vec::new(), sparse: HashMap::new(), count: 0, numbers: PhantomData }
    }
}

impl<K: Into<u32>, T: Sentinel> DenseMap<K, T> {
    #[inline]
    pub fn get(&self, number: K) -> Option<T> {
        self.find(number).copied()
    }

    /// Returns a reference to the value, for callers that need a part of it.
    #[inline]
    pub fn find(&self, number: K) -> Option<&T> {
        self.find_number(number.into())
    }

    #[inline]
    fn find_number(&self, number: u32) -> Option<&T> {
        match self.dense.get(number as usize) {
            Some(value) if !value.is_none() => Some(value),
            _ => self.find_sparse(number),
        }
    }

    #[cold]
    fn find_sparse(&self, number: u32) -> Option<&T> {
        self.sparse.get(&number)
    }

    /// Adds a value; returns false if there is one already.
    pub fn insert(&mut self, number: K, value: T) -> bool {
        let number = number.into();
        if self.find_number(number).is_some() {
            return false;
        }
        self.count += 1;
        let place = number as usize;
        if place >= self.dense.len() && place < 2 * self.count + 65536 {
            self.dense.resize((place + 1).next_multiple_of(4096), T::NONE);
        }
        match self.dense.get_mut(place) {
            Some(slot) => *slot = value,
            None => {
                self.sparse.insert(number, value);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_numbers_take_no_room() {
        let mut numbers = DenseMap::<u32, u32>::default();
        for number in [u32::MAX, 3, 1 << 29, 4] {
            assert!(numbers.insert(number, number / 2));
            assert!(!numbers.insert(number, 0));
        }
        assert_eq!(
            [u32::MAX, 3, 4, 1 << 29, 5, 1 << 30].map(|number| numbers.get(number)),
            [Some(u32::MAX / 2), Some(1), Some(2), Some(1 << 28), None, None]
        );
        assert!(numbers.dense.len() < 100_000);
    }
}
