//! Scores of sets of traces, to compare policies (Hadjipavlou 2025, sections 5.5, 7.1 and 7.2).

/// Weight of the average "trace length". Section 5.5 prints the formula of the plain mean, but the
/// numbers of Tables 7.2 and 7.9 are weighted by coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthWeight {
    /// Instructions that a trace covers: the length of the trace that an executed instruction is
    /// in, ΣI²·O / ΣI·O.
    #[default]
    Coverage,
    /// Executions of a trace: the length of an executed trace, ΣI·O / ΣO.
    Occurrences,
}

impl LengthWeight {
    pub const ALL: [Self; 2] = [Self::Coverage, Self::Occurrences];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Coverage => "coverage",
            Self::Occurrences => "occurrences",
        }
    }
}

/// "Trace length", by both weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceLength {
    pub by_coverage: f64,
    pub by_occurrences: f64,
}

impl TraceLength {
    #[must_use]
    pub fn by(&self, weight: LengthWeight) -> f64 {
        match weight {
            LengthWeight::Coverage => self.by_coverage,
            LengthWeight::Occurrences => self.by_occurrences,
        }
    }
}

/// Score of a set of traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// "Trace length".
    pub length: f64,
    /// "Trace count".
    pub count: f64,
}

/// Returns the "max-norm ratio" of each set: its length relative to the largest, divided by its
/// count relative to the largest.
#[must_use]
pub fn max_norm_ratios(scores: &[Score]) -> Vec<f64> {
    let longest = scores.iter().map(|score| score.length).fold(0.0, f64::max);
    let most = scores.iter().map(|score| score.count).fold(0.0, f64::max);
    let ratio = |score: &Score| score.length / longest / (score.count / most);
    scores.iter().map(|score| if score.length > 0.0 && score.count > 0.0 { ratio(score) } else { 0.0 }).collect()
}

/// Returns for each set whether it is on the Pareto front: no other set has at least its length and
/// at most its count, and is better in one of them.
#[must_use]
pub fn pareto_front(scores: &[Score]) -> Vec<bool> {
    let beats = |one: &Score, other: &Score| one.length >= other.length && one.count <= other.count && one != other;
    scores.iter().map(|score| !scores.iter().any(|other| beats(other, score))).collect()
}

/// Returns the number of choices in which two configurations differ.
#[must_use]
pub fn hamming_distance(one: &[bool], other: &[bool]) -> usize {
    one.iter().zip(other).filter(|(one, other)| one != other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(pairs: &[(f64, f64)]) -> Vec<Score> {
        pairs.iter().map(|&(length, count)| Score { length, count }).collect()
    }

    /// The first row of Table 7.10. Its lengths and counts follow from Table 7.2 and the
    /// differences there: 21.73 and 18.21, 329 and 307.
    #[test]
    fn the_ratios_of_the_thesis() {
        let ratios = max_norm_ratios(&scores(&[(21.73, 329.0), (21.73 - 3.52, 329.0 - 22.0)]));
        assert_eq!(ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>(), ["1.00", "0.90"]);
        // 507, where both improve.
        let ratios = max_norm_ratios(&scores(&[(30.12, 403.0), (30.12 + 34.98, 403.0 - 339.0)]));
        assert_eq!(ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>(), ["0.46", "6.30"]);
        assert_eq!(max_norm_ratios(&scores(&[(0.0, 0.0)])), [0.0]);
    }

    #[test]
    fn the_front() {
        let front =
            pareto_front(&scores(&[(10.0, 5.0), (12.0, 5.0), (12.0, 9.0), (20.0, 9.0), (20.0, 9.0), (1.0, 1.0)]));
        assert_eq!(front, [false, true, false, true, true, true]);
    }

    #[test]
    fn distances() {
        assert_eq!(hamming_distance(&[true, false, true], &[false, false, true]), 1);
    }
}
