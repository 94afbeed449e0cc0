//! Saturating counters, as predictors use them.

/// Steps a signed counter of `bits` bits up or down. From 0 on it predicts taken.
#[inline]
pub(crate) fn step_saturating(counter: i8, up: bool, bits: u32) -> i8 {
    let most = i8::MAX >> (i8::BITS - bits);
    if up { counter.saturating_add(1).min(most) } else { counter.saturating_sub(1).max(-most - 1) }
}

/// Steps an unsigned two-bit counter. From 2 on it predicts taken.
#[inline]
pub(crate) fn step_two_bits(counter: u8, up: bool) -> u8 {
    if up { (counter + 1).min(3) } else { counter.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_saturate() {
        assert_eq!([2, 3].map(|counter| step_saturating(counter, true, 3)), [3, 3]);
        assert_eq!([-3, -4].map(|counter| step_saturating(counter, false, 3)), [-4, -4]);
        assert_eq!([126, 127].map(|counter| step_saturating(counter, true, 8)), [127, 127]);
        assert_eq!([2, 3].map(|counter| step_two_bits(counter, true)), [3, 3]);
        assert_eq!([1, 0].map(|counter| step_two_bits(counter, false)), [0, 0]);
    }
}
