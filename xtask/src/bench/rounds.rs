//! The results of the rounds of a measurement, and their spread.

use serde::{Deserialize, Serialize};

use super::measure::ReadingSpeed;
use super::tools::Tools;

/// Every round of one program.
#[derive(Serialize, Deserialize, Default)]
pub struct Rounds {
    pub native_seconds: Vec<f64>,
    pub record_seconds: Vec<f64>,
    pub addresses_seconds: Vec<f64>,
    pub values_seconds: Vec<f64>,
    pub reading: Vec<ReadingSpeed>,
    pub tools: Vec<Tools>,
}

impl Rounds {
    /// Returns the seconds of recordings with this data, as `--data` names it.
    pub fn of_recordings(&mut self, data: &str) -> &mut Vec<f64> {
        match data {
            "values" => &mut self.values_seconds,
            "addresses" => &mut self.addresses_seconds,
            _ => &mut self.record_seconds,
        }
    }

    /// Returns the best of both speeds.
    pub fn best_reading(&self) -> ReadingSpeed {
        let best = |speed: fn(&ReadingSpeed) -> f64| self.reading.iter().map(speed).fold(0.0, f64::max);
        ReadingSpeed {
            read_steps_mips: best(|reading| reading.read_steps_mips),
            read_instructions_mips: best(|reading| reading.read_instructions_mips),
        }
    }
}

pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Returns the number that counts and, if the table can show the difference, the one farthest from
/// it.
pub fn span(counts: f64, rounds: impl Iterator<Item = f64>, digits: usize) -> String {
    let farther = |a: f64, b: f64| if (b - counts).abs() > (a - counts).abs() { b } else { a };
    let (counts, farthest) = (format!("{counts:.digits$}"), format!("{:.digits$}", rounds.fold(counts, farther)));
    if counts == farthest { counts } else { format!("{counts}–{farthest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_goes_from_the_best_to_the_worst() {
        assert_eq!(span(1.5, [1.5, 1.75, 1.625].into_iter(), 2), "1.50–1.75");
        assert_eq!(span(100.0, [100.0, 90.0].into_iter(), 0), "100–90");
        assert_eq!(span(1.5, [1.501].into_iter(), 2), "1.50");
        assert_eq!(span(1.5, [].into_iter(), 2), "1.50");
    }
}
