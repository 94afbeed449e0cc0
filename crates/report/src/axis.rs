//! Axes: map values to positions between 0 and 1, and choose round values for ticks.

use std::ops::RangeInclusive;

/// A linear or logarithmic range of values, with ticks.
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values of ticks and their labels.
    pub ticks: Vec<(f64, String)>,
    /// Values of grid lines without labels.
    pub minor: Vec<f64>,
    /// Whether ticks have grid lines.
    pub grid: bool,
}

/// Beyond this, differences and quotients of values are no longer finite.
const VALUE_MAX: f64 = 1e100;

/// Returns whether a chart can show the value.
fn is_drawable(value: f64) -> bool {
    value.abs() <= VALUE_MAX
}

/// Returns the smallest and the largest value that can be shown.
pub fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|&value| is_drawable(value)).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

impl Axis {
    /// Returns an axis of categories: the first is centred at 0.5, the next at 1.5.
    pub fn categories(names: impl Iterator<Item = String>) -> Self {
        let ticks: Vec<_> = names.enumerate().map(|(number, name)| (number as f64 + 0.5, name)).collect();
        Self { low: 0.0, high: ticks.len().max(1) as f64, logarithmic: false, ticks, minor: Vec::new(), grid: false }
    }

    /// Returns a linear axis with about `count` ticks; with `whole`, it begins and ends with a
    /// tick.
    pub fn linear(range: Option<(f64, f64)>, count: f64, whole: bool) -> Self {
        let (mut low, mut high) = widen(range.unwrap_or((0.0, 1.0)));
        let step = round_step((high - low) / count);
        if whole {
            (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        }
        let numbers = (low / step - 1e-9).ceil() as i64..=(high / step + 1e-9).floor() as i64;
        let ticks = label_ticks(numbers, step);
        Self { low, high, logarithmic: false, ticks, minor: Vec::new(), grid: true }
    }

    /// Returns a logarithmic axis; with `with_margin`, even the smallest value is well above its
    /// start.
    pub fn logarithmic(values: impl Iterator<Item = f64>, with_margin: bool) -> Self {
        // The lower limit mirrors the upper one.
        let range = range(values.filter(|&value| value >= 1.0 / VALUE_MAX));
        let (smallest, largest) = range.unwrap_or((1.0, 10.0));
        let low = if with_margin { decade((smallest / 1.5).log10().floor() as i32) } else { round_below(smallest) };
        let high = round_step(largest);
        let high = if high > low { high } else { low * 10.0 };
        let (low, high) = (low.log10(), high.log10());
        let (ticks, minor) = logarithmic_ticks(low, high);
        Self { low, high, logarithmic: true, ticks, minor, grid: true }
    }

    /// Returns a logarithmic axis with ticks at the values themselves, if these are few whole
    /// numbers, such as numbers of threads.
    pub fn counts(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|&value| value > 0.0 && is_drawable(value)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let few = (2..=8).contains(&values.len()) && values.iter().all(|&value| value.fract() == 0.0 && value < 1e6);
        let (&first, &last) = values.first().zip(values.last()).filter(|_| few)?;
        let ticks = values.iter().map(|&value| (value, number(value, 1.0))).collect();
        Some(Self { low: first.log10(), high: last.log10(), logarithmic: true, ticks, minor: Vec::new(), grid: true })
    }

    /// Returns the position of a value, from 0 at the start of the axis to 1 at its end; `None`
    /// outside.
    pub fn position(&self, value: f64) -> Option<f64> {
        let value = if self.logarithmic { value.log10() } else { value };
        let position = (value - self.low) / (self.high - self.low);
        (-1e-6..=1.0 + 1e-6).contains(&position).then_some(position)
    }
}

/// Widens a range that is too narrow to be divided.
fn widen((low, high): (f64, f64)) -> (f64, f64) {
    let magnitude = low.abs().max(high.abs());
    match magnitude {
        _ if magnitude < 1.0 / VALUE_MAX => (0.0, 1.0),
        _ if high - low < magnitude * 1e-9 => (low - magnitude / 10.0, high + magnitude / 10.0),
        _ => (low, high),
    }
}

fn decade(exponent: i32) -> f64 {
    10f64.powi(exponent)
}

/// Returns the next of 1, 2, 5, 10, 20 and so on that is not below `least`.
fn round_step(least: f64) -> f64 {
    let unit = decade(least.log10().floor() as i32);
    let factors = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * unit >= least * (1.0 - 1e-9));
    factors.unwrap_or(10.0) * unit
}

fn round_below(value: f64) -> f64 {
    let unit = decade(value.log10().floor() as i32);
    let factors = [5.0, 2.0].into_iter().find(|factor| factor * unit <= value * (1.0 + 1e-9));
    factors.unwrap_or(1.0) * unit
}

/// Labels ticks with a common unit and as many decimals as distinguish them.
fn label_ticks(numbers: RangeInclusive<i64>, step: f64) -> Vec<(f64, String)> {
    let largest = numbers.start().abs().max(numbers.end().abs()) as f64 * step;
    let fits = |(unit, _): &(f64, &str)| (*unit..HUGE).contains(&largest) && step >= unit / 1000.0;
    let (unit, name) = UNITS.into_iter().filter(|(unit, _)| *unit > 1e3).find(fits).unwrap_or((1.0, ""));
    let label = |value: f64| if value == 0.0 { "0".to_owned() } else { number(value / unit, step / unit) + name };
    numbers.map(|number| (number as f64 * step, label(number as f64 * step))).collect()
}

/// From here on, and for very small values, labels have exponents instead of units.
const HUGE: f64 = 1e15;

const UNITS: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];

/// Formats a value that is a multiple of `step`.
fn number(value: f64, step: f64) -> String {
    let exponent = |value: f64| (value.abs().log10() + 1e-9).floor();
    if value.abs() >= HUGE || step < 1e-5 {
        let figures = (exponent(value) - exponent(step)).clamp(0.0, 15.0) as usize;
        return format!("{value:.figures$e}");
    }
    let figures = (-step.log10() - 1e-9).ceil().max(0.0) as usize;
    let text = format!("{:.figures$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign = if value < 0.0 { "\u{2212}" } else { "" };
    format!("{sign}{}{fraction}", group_digits(whole))
}

/// Groups digits by three with no-break spaces; up to four digits stay together.
fn group_digits(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if digits.len() > 4 && index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    text
}

/// Returns the ticks and the minor grid lines of a logarithmic axis; `low` and `high` are
/// logarithms.
fn logarithmic_ticks(low: f64, high: f64) -> (Vec<(f64, String)>, Vec<f64>) {
    let stride = ((high - low) / 9.0).ceil().max(1.0) as usize;
    let factors: &[u8] = if high - low <= 3.0 { &[1, 2, 5] } else { &[1] };
    let (mut ticks, mut minor) = (Vec::new(), Vec::new());
    for exponent in (low.floor() as i32..=high.ceil() as i32).step_by(stride) {
        for factor in 1..=9 {
            let value = f64::from(factor) * decade(exponent);
            if !(low - 1e-9..=high + 1e-9).contains(&value.log10()) {
                continue;
            }
            match factors.contains(&factor) {
                true => ticks.push((value, magnitude(value, exponent))),
                false if stride == 1 && high - low <= 7.0 => minor.push(value),
                false => {}
            }
        }
    }
    (ticks, minor)
}

/// Labels a tick of a logarithmic axis with its shortest unit.
fn magnitude(value: f64, exponent: i32) -> String {
    let fits = |(unit, _): &(f64, &str)| value >= unit * 0.999 && (9999.0..HUGE).contains(&value);
    let (unit, name) = UNITS.into_iter().find(fits).unwrap_or((1.0, ""));
    number(value / unit, decade(exponent) / unit) + name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, label)| label.replace('\u{a0}', " ")).collect::<Vec<_>>().join(", ")
    }

    #[track_caller]
    fn linear(low: f64, high: f64, expected: &str) {
        assert_eq!(labels(&Axis::linear(Some((low, high)), 5.0, true)), expected);
    }

    #[test]
    fn linear_ticks_are_round() {
        linear(0.0, 100.0, "0, 20, 40, 60, 80, 100");
        linear(0.0, 0.9, "0, 0.2, 0.4, 0.6, 0.8, 1.0");
        linear(-3.0, 7.0, "−4, −2, 0, 2, 4, 6, 8");
        linear(0.0, 48_000.0, "0, 10 000, 20 000, 30 000, 40 000, 50 000");
        linear(0.0, 2.4e6, "0, 0.5 M, 1.0 M, 1.5 M, 2.0 M, 2.5 M");
        linear(1e9, 1e9 + 4.0, "1 000 000 000, 1 000 000 001, 1 000 000 002, 1 000 000 003, 1 000 000 004");
        linear(0.0, 4e-7, "0, 1e-7, 2e-7, 3e-7, 4e-7");
    }

    #[test]
    fn equal_ends_are_moved_apart() {
        linear(0.0, 0.0, "0, 0.2, 0.4, 0.6, 0.8, 1.0");
        linear(10.0, 10.0, "9.0, 9.5, 10.0, 10.5, 11.0");
        linear(1e100, 1e100, "9.0e99, 9.5e99, 1.00e100, 1.05e100, 1.10e100");
    }

    #[track_caller]
    fn logarithmic(values: &[f64], with_margin: bool, expected: &str) {
        assert_eq!(labels(&Axis::logarithmic(values.iter().copied(), with_margin)), expected);
    }

    #[test]
    fn logarithmic_ticks_are_powers_and_between_them_what_fits() {
        logarithmic(&[1.0, 1e6], false, "1, 10, 100, 1000, 10 k, 100 k, 1 M");
        logarithmic(&[0.003, 0.1], false, "0.002, 0.005, 0.01, 0.02, 0.05, 0.1");
        logarithmic(&[1.0, 30.0], true, "0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50");
        logarithmic(&[1.0, 1e20], false, "1, 1000, 1 M, 1 G, 1 T, 1e15, 1e18");
        logarithmic(&[7.0], false, "5, 10");
        logarithmic(&[1.0], false, "1, 2, 5, 10");
        logarithmic(&[0.0, -1.0, f64::NAN], false, "1, 2, 5, 10");
    }

    #[test]
    fn positions() {
        let axis = Axis::logarithmic([1.0, 100.0].into_iter(), false);
        assert_eq!(axis.position(10.0), Some(0.5));
        assert_eq!([0.0, -1.0, f64::NAN, f64::INFINITY].map(|value| axis.position(value)), [None; 4]);
        assert_eq!(Axis::linear(Some((0.0, 10.0)), 5.0, true).position(5.0), Some(0.5));
    }
}
