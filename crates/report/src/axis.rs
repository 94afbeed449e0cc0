//! Axes: from values to places between 0 and 1, and the round values at which there are ticks.

use std::ops::RangeInclusive;

/// A range of values, as they are or as their logarithms, with ticks.
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values and what is written beside them.
    pub ticks: Vec<(f64, String)>,
    /// Where there are lines but no labels.
    pub minor: Vec<f64>,
    /// Whether ticks are worth a line across the picture.
    pub grid: bool,
}

/// Beyond this, differences and quotients of values are no longer finite.
const LARGEST: f64 = 1e100;

/// What a picture can show.
fn drawable(value: f64) -> bool {
    value.abs() <= LARGEST
}

/// The smallest and the largest of what can be shown.
pub fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|&value| drawable(value)).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

impl Axis {
    /// An axis on which neighbours have names instead of values: the first is around 0.5, the next around 1.5.
    pub fn categories(names: impl Iterator<Item = String>) -> Self {
        let ticks: Vec<_> = names.enumerate().map(|(number, name)| (number as f64 + 0.5, name)).collect();
        Self { low: 0.0, high: ticks.len().max(1) as f64, logarithmic: false, ticks, minor: Vec::new(), grid: false }
    }

    /// About `count` ticks; with `whole`, the axis begins and ends with one.
    pub fn linear(range: Option<(f64, f64)>, count: f64, whole: bool) -> Self {
        let (mut low, mut high) = apart(range.unwrap_or((0.0, 1.0)));
        let step = round_step((high - low) / count);
        if whole {
            (low, high) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        }
        let numbers = (low / step - 1e-9).ceil() as i64..=(high / step + 1e-9).floor() as i64;
        let ticks = labelled(numbers, step);
        Self { low, high, logarithmic: false, ticks, minor: Vec::new(), grid: true }
    }

    /// With `room`, even the smallest value is well above the beginning of the axis.
    pub fn logarithmic(values: impl Iterator<Item = f64>, room: bool) -> Self {
        // As small as the largest is large.
        let range = range(values.filter(|&value| value >= 1.0 / LARGEST));
        let (smallest, largest) = range.unwrap_or((1.0, 10.0));
        let low = if room { decade((smallest / 1.5).log10().floor() as i32) } else { round_below(smallest) };
        let high = round_step(largest);
        let high = if high > low { high } else { low * 10.0 };
        let (low, high) = (low.log10(), high.log10());
        let (ticks, minor) = logarithmic_ticks(low, high);
        Self { low, high, logarithmic: true, ticks, minor, grid: true }
    }

    /// A logarithmic axis with ticks at the values themselves, if these are few and whole, such as numbers of threads.
    pub fn counts(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|&value| value > 0.0 && drawable(value)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let few = (2..=8).contains(&values.len()) && values.iter().all(|&value| value.fract() == 0.0 && value < 1e6);
        let (&first, &last) = values.first().zip(values.last()).filter(|_| few)?;
        let ticks = values.iter().map(|&value| (value, number(value, 1.0))).collect();
        Some(Self { low: first.log10(), high: last.log10(), logarithmic: true, ticks, minor: Vec::new(), grid: true })
    }

    /// From 0 where the axis begins to 1 where it ends; none for what it does not show.
    pub fn place(&self, value: f64) -> Option<f64> {
        let value = if self.logarithmic { value.log10() } else { value };
        let place = (value - self.low) / (self.high - self.low);
        (-1e-6..=1.0 + 1e-6).contains(&place).then_some(place)
    }
}

/// Two ends that are different enough to divide what is between them.
fn apart((low, high): (f64, f64)) -> (f64, f64) {
    let magnitude = low.abs().max(high.abs());
    match magnitude {
        _ if magnitude < 1.0 / LARGEST => (0.0, 1.0),
        _ if high - low < magnitude * 1e-9 => (low - magnitude / 10.0, high + magnitude / 10.0),
        _ => (low, high),
    }
}

fn decade(exponent: i32) -> f64 {
    10f64.powi(exponent)
}

/// The next above of 1, 2, 5, 10, 20 and so on.
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

/// Labels have a common unit and as many figures behind the point as tell them apart.
fn labelled(numbers: RangeInclusive<i64>, step: f64) -> Vec<(f64, String)> {
    let largest = numbers.start().abs().max(numbers.end().abs()) as f64 * step;
    let fits = |(unit, _): &(f64, &str)| (*unit..HUGE).contains(&largest) && step >= unit / 1000.0;
    let (unit, name) = UNITS.into_iter().filter(|(unit, _)| *unit > 1e3).find(fits).unwrap_or((1.0, ""));
    let label = |value: f64| if value == 0.0 { "0".to_owned() } else { number(value / unit, step / unit) + name };
    numbers.map(|number| (number as f64 * step, label(number as f64 * step))).collect()
}

/// From here on, and for very small values, there are exponents instead of units.
const HUGE: f64 = 1e15;

const UNITS: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];

/// A value that is a multiple of `step`.
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
    format!("{sign}{}{fraction}", grouped(whole))
}

/// Groups of three digits, apart from each other by spaces that do not break; four digits are easily read without.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if digits.len() > 4 && place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    text
}

/// The labels of a logarithmic axis, and the values that only have a line; both ends are logarithms.
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

/// On a logarithmic axis each label has the unit that makes it short.
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
    fn logarithmic(values: &[f64], room: bool, expected: &str) {
        assert_eq!(labels(&Axis::logarithmic(values.iter().copied(), room)), expected);
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
    fn places() {
        let axis = Axis::logarithmic([1.0, 100.0].into_iter(), false);
        assert_eq!(axis.place(10.0), Some(0.5));
        assert_eq!([0.0, -1.0, f64::NAN, f64::INFINITY].map(|value| axis.place(value)), [None; 4]);
        assert_eq!(Axis::linear(Some((0.0, 10.0)), 5.0, true).place(5.0), Some(0.5));
    }
}
