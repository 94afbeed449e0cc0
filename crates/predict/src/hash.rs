//! Spreads addresses and what was before a branch over a table.

/// 2^64 divided by the golden ratio, which is odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Its high bits depend on all bits of `value`, its low ones do not.
#[inline]
pub(crate) fn scattered(value: u64) -> u64 {
    value.wrapping_mul(FACTOR)
}

/// All its bits depend on all bits of `value`.
#[inline]
pub(crate) fn mixed(value: u64) -> u64 {
    let product = u128::from(value) * u128::from(FACTOR);
    (product >> 64) as u64 ^ product as u64
}

/// One of `count` places, chosen by the high bits of `hash`.
#[inline]
pub(crate) fn place(hash: u64, count: usize) -> usize {
    (((hash >> 32) * count as u64) >> 32) as usize
}
