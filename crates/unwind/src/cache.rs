//! Keeps the compiled rows of addresses that were looked up before.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::row::Row;

/// A power of two. Programs have fewer return addresses than this on their stacks at a time.
const LINES: usize = 1 << 14;

/// A direct-mapped cache: a row takes the place of one with the same hash.
#[derive(Debug)]
pub struct RowCache(Vec<Option<(u64, Row)>>);

impl RowCache {
    pub fn new() -> Self {
        Self(vec![None; LINES])
    }

    pub fn clear(&mut self) {
        self.0.fill(None);
    }

    pub fn get(&self, key: u64) -> Option<&Row> {
        self.0.get(place(key))?.as_ref().filter(|(of, _)| *of == key).map(|(_, row)| row)
    }

    pub fn insert(&mut self, key: u64, row: Row) {
        if let Some(line) = self.0.get_mut(place(key)) {
            *line = Some((key, row));
        }
    }
}

/// Hashes by Fibonacci: the upper bits of the product depend on all bits of the key.
#[allow(clippy::cast_possible_truncation)]
const fn place(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - LINES.trailing_zeros())) as usize
}
