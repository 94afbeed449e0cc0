//! The median and the range of repeated measurements: threads never alternate in the same way
//! twice.

/// The median of some numbers, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&low), Some(&high)) = (values.first(), values.last()) else {
            return Self { median: f64::NAN, low: f64::NAN, high: f64::NAN };
        };
        let middle = values.len() / 2;
        let is_odd = values.len() % 2 == 1;
        let median = if is_odd { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Self { median, low, high }
    }

    /// Returns the median, and the range behind it if it is visible; a dash for what is not a
    /// number.
    pub fn cell(&self, show: impl Fn(f64) -> String) -> String {
        let show = |value: f64| if value.is_finite() { show(value) } else { "-".to_owned() };
        let (median, low, high) = (show(self.median), show(self.low), show(self.high));
        if low == high { median } else { format!("{median} ({low}–{high})") }
    }
}

/// Returns the quotient; not a number if the divisor is 0.
pub fn times(one: u64, other: u64) -> f64 {
    if other == 0 { f64::NAN } else { one as f64 / other as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert_eq!(Spread::of([3.0, 1.0, 9.0]), Spread { median: 3.0, low: 1.0, high: 9.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        let tenth = |value: f64| format!("{value:.1}");
        assert_eq!(Spread::of([3.0, 1.0, 9.0]).cell(tenth), "3.0 (1.0–9.0)");
        assert_eq!(Spread::of([3.01, 3.04]).cell(tenth), "3.0");
        assert_eq!(Spread::of([]).cell(tenth), "-");
        assert_eq!(Spread::of([times(1, 0), times(2, 0)]).cell(tenth), "-");
        assert_eq!(times(3, 2), 1.5);
    }
}
