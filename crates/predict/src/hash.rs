//! Hash functions that spread addresses and histories over a table.

/// 2^64 divided by the golden ratio, which is odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes `value`. Only the high bits of the result depend on all bits of `value`.
#[inline]
pub(crate) fn scatter(value: u64) -> u64 {
    value.wrapping_mul(FACTOR)
}

/// Hashes `value`. All bits of the result depend on all bits of `value`.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let product = u128::from(value) * u128::from(FACTOR);
    (product >> 64) as u64 ^ product as u64
}

/// Reduces the high bits of `hash` to an index below `count`.
#[inline]
pub(crate) fn reduce(hash: u64, count: usize) -> usize {
    (((hash >> 32) * count as u64) >> 32) as usize
}
