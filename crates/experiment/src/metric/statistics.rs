//! Means as in METRIC's Table I, and the rank correlation that says whether its finding holds.

/// The three means of numbers above zero. Without numbers, none of them is a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Means {
    pub geometric: f64,
    pub harmonic: f64,
    pub arithmetic: f64,
}

impl Means {
    pub fn of(values: &[f64]) -> Self {
        let mean = |of: fn(f64) -> f64| values.iter().copied().map(of).sum::<f64>() / values.len() as f64;
        Self { geometric: mean(f64::ln).exp(), harmonic: mean(f64::recip).recip(), arithmetic: mean(|value| value) }
    }
}

/// Returns Spearman's rank correlation: 1 if the larger of one always has the larger of the other,
/// -1 if it always has the smaller. Not a number if one of them is always the same.
pub fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let (one, other): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (one, other) = (ranks(&one), ranks(&other));
    // All ranks have the same mean, however many are shared.
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let product = |one: &[f64], other: &[f64]| -> f64 {
        one.iter().zip(other).map(|(one, other)| (one - mean) * (other - mean)).sum()
    };
    product(&one, &other) / (product(&one, &one) * product(&other, &other)).sqrt()
}

/// Returns the rank of each value, from 1 on. Equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let lower = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        lower as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_means() {
        let means = Means::of(&[1.0, 4.0, 16.0]);
        assert!((means.geometric - 4.0).abs() < 1e-12 && means.arithmetic == 7.0);
        assert!((means.harmonic - 3.0 / (1.0 + 0.25 + 0.0625)).abs() < 1e-12);
        assert!(Means::of(&[]).geometric.is_nan());
    }

    /// The means that METRIC's Table I has below its rates.
    #[test]
    fn means_of_the_paper() {
        let vpc3 =
            [154_698.98, 221.48, 4765.63, 133.94, 6183.17, 4466.73, 40380.65, 99.55, 618.93, 1152.85, 437.52, 488.11];
        let Means { geometric, harmonic, arithmetic } = Means::of(&vpc3);
        assert!((geometric - 1636.89).abs() < 1.0, "{geometric}");
        assert!((harmonic - 407.20).abs() < 1.0, "{harmonic}");
        assert!((arithmetic - 17803.97).abs() < 1.0, "{arithmetic}");
    }

    #[test]
    fn correlation_of_ranks() {
        assert_eq!(rank_correlation(&[(1.0, 10.0), (2.0, 100.0), (3.0, 101.0)]), 1.0);
        assert_eq!(rank_correlation(&[(1.0, 9.0), (5.0, 3.0), (3.0, 4.0)]), -1.0);
        let shared = rank_correlation(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 3.0)]);
        assert!((shared - 0.888_888_888).abs() < 1e-6, "{shared}");
        assert!(rank_correlation(&[(1.0, 1.0), (1.0, 2.0)]).is_nan() && rank_correlation(&[]).is_nan());
    }
}
