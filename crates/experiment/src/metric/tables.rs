//! Table I and Figure 7 of METRIC as tables, and what explains them.

use memory::MemoryCodec::{Native, Prsd, Raw, Vpc3};
use report::Table;

use super::statistics::{Means, rank_correlation};
use super::{CodecResult, ProgramResult, Round, Study};
use crate::NamedTable;
use crate::spread::{Spread, times};

/// A number of a round.
type Figure = fn(&Round) -> f64;
/// One of the three means.
type Mean = fn(&Means) -> f64;

impl Study {
    pub(super) fn all_tables(&self) -> Vec<NamedTable> {
        vec![
            ("table-1", self.rates()),
            ("finding", self.finding()),
            ("bytes", self.bytes()),
            ("figure-7", self.times()),
            ("speed", self.speeds()),
        ]
    }

    /// Table I, with the codecs of `.trk` files and no codec beside the two of the paper.
    fn rates(&self) -> Table {
        const RATES: [Figure; 5] = [
            |round| round.rate(Prsd),
            |round| round.rate(Vpc3),
            Round::ratio,
            |round| round.rate(Native),
            |round| round.rate(Raw),
        ];
        let heads = ["program", "M accesses", "points", "predictable %", "prsd", "vpc3", "prsd/vpc3", "native", "raw"];
        let caption = "Table I: compression rates, 6 bytes for each access over those of the file; the programs with \
                       the largest share of predictable accesses first";
        let mut table = self.table(caption, &heads, |own| {
            let first = [
                own.spread(|round| round.accesses as f64 / 1e6).cell(two_digits),
                own.spread(|round| round.points as f64).cell(whole),
                own.spread(|round| round.predictable_percent).cell(two_digits),
            ];
            let rates = [two_digits, two_digits, three_digits, two_digits, two_digits];
            first.into_iter().chain(RATES.iter().zip(rates).map(|(rate, show)| own.spread(rate).cell(show))).collect()
        });
        let means = RATES.map(|rate| Means::of(&self.medians(rate)));
        let parts: [(&str, Mean); 3] = [
            ("geometric mean", |means| means.geometric),
            ("harmonic mean", |means| means.harmonic),
            ("arithmetic mean", |means| means.arithmetic),
        ];
        // Of the means of the ratios, the geometric one alone is also a ratio of means.
        let ratios = [one(means[2].geometric, three_digits), String::new(), String::new()];
        for ((name, part), ratio) in parts.into_iter().zip(ratios) {
            let [prsd, vpc3, _, native, raw] = means.each_ref().map(|means| one(part(means), two_digits));
            let empty = String::new;
            table.row([name.to_owned(), empty(), empty(), empty(), prsd, vpc3, ratio, native, raw]);
        }
        table
    }

    /// The paper finds that regular sections win in regular programs, and VPC3 in others.
    fn finding(&self) -> Table {
        let (all, wins) = (self.results.len(), better(&self.results));
        let correlation = one(rank(&self.results), two_digits);
        let caption = format!(
            "The finding: prsd compresses {wins} of {all} programs better than vpc3; the rank correlation of \
             prsd/vpc3 with the share of predictable accesses is {correlation}"
        );
        let heads = ["programs", "number", "predictable % at least", "prsd better", "prsd/vpc3", "rank correlation"];
        let mut table = Table::new(&caption, &heads);
        let (regular, irregular) = self.results.split_at(all.div_ceil(2));
        for (name, part) in [("regular half", regular), ("irregular half", irregular), ("all", &self.results)] {
            let least = part.iter().map(ProgramResult::predictable_percent).fold(f64::NAN, f64::min);
            let ratios: Vec<f64> = part.iter().map(|own| own.median(Round::ratio)).collect();
            table.row([
                name.to_owned(),
                part.len().to_string(),
                one(least, two_digits),
                better(part).to_string(),
                one(Means::of(&ratios).geometric, three_digits),
                one(rank(part), two_digits),
            ]);
        }
        table
    }

    /// What takes the bytes of regular sections and SEQUITUR, and why.
    fn bytes(&self) -> Table {
        let heads = ["program", "KB", "order %", "addresses %", "accesses/symbol", "accesses/section", "irregular %"];
        let caption = "What prsd's bytes are: SEQUITUR's grammars, and regular sections with irregular addresses; the \
                       rest defines access points and rows";
        self.table(caption, &heads, |own| {
            let prsd = |figure: fn(&Round, &CodecResult) -> f64| own.spread(|round| figure(round, round.codec(Prsd)));
            vec![
                prsd(|_, prsd| prsd.compressed_bytes as f64 / 1e3).cell(one_digit),
                prsd(|_, prsd| 100.0 * times(prsd.order_bytes, prsd.compressed_bytes)).cell(one_digit),
                prsd(|_, prsd| 100.0 * times(prsd.address_bytes, prsd.compressed_bytes)).cell(one_digit),
                prsd(|round, prsd| times(round.accesses, prsd.symbols)).cell(one_digit),
                prsd(|round, prsd| times(round.accesses - prsd.irregular_accesses, prsd.regular_sections))
                    .cell(one_digit),
                prsd(|round, _| 100.0 - round.predictable_percent).cell(two_digits),
            ]
        })
    }

    /// The numbers of Figure 7.
    fn times(&self) -> Table {
        let parts = TIME_PARTS.iter().map(|(name, _)| *name);
        let heads: Vec<&str> =
            ["program", "VPC3 s"].into_iter().chain(parts).chain(["all", "reading (not in all)"]).collect();
        let caption = "Figure 7: time of prsd relative to that of vpc3; both with instrumentation, which is what \
                       recording adds to the program's own time, and with the second stage";
        let all = |round: &Round| TIME_PARTS.iter().map(|(_, part)| part(round)).sum::<f64>();
        let reading = |round: &Round| round.codec(Prsd).reading_seconds() / round.vpc3_seconds();
        let mut table = self.table(caption, &heads, |own| {
            let parts = TIME_PARTS.iter().map(|(_, part)| own.spread(part).cell(two_digits));
            std::iter::once(own.spread(Round::vpc3_seconds).cell(two_digits))
                .chain(parts)
                .chain([own.spread(all).cell(two_digits), own.spread(reading).cell(two_digits)])
                .collect()
        });
        let mean = |figure: &dyn Fn(&Round) -> f64| one(Means::of(&self.medians(figure)).arithmetic, two_digits);
        let parts = TIME_PARTS.iter().map(|(_, part)| mean(part));
        table.row(
            ["arithmetic mean".to_owned(), String::new()].into_iter().chain(parts).chain([mean(&all), mean(&reading)]),
        );
        table
    }

    /// Speeds, which do not depend on what else is in Figure 7.
    fn speeds(&self) -> Table {
        const SPEEDS: [Figure; 4] = [
            |round| speed(round, round.codec(Prsd).detector_seconds),
            |round| speed(round, round.codec(Prsd).order_seconds),
            |round| speed(round, round.codec(Prsd).detector_seconds + round.codec(Prsd).order_seconds),
            |round| speed(round, round.codec(Vpc3).records_seconds),
        ];
        let heads = ["program", "detector", "SEQUITUR", "detector and SEQUITUR", "VPC3 with second stage"];
        let caption = "Million accesses per second on one core";
        let mut table =
            self.table(caption, &heads, |own| SPEEDS.iter().map(|speed| own.spread(speed).cell(one_digit)).collect());
        let means = SPEEDS.map(|speed| one(Means::of(&self.medians(speed)).geometric, one_digit));
        table.row(["geometric mean".to_owned()].into_iter().chain(means));
        table
    }

    /// A row for each program.
    fn table(&self, caption: &str, heads: &[&str], cells: impl Fn(&ProgramResult) -> Vec<String>) -> Table {
        let mut table = Table::new(caption, heads);
        for own in &self.results {
            table.row(std::iter::once(own.program.clone()).chain(cells(own)));
        }
        table
    }

    pub(super) fn medians(&self, figure: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.results.iter().map(|own| own.median(&figure)).collect()
    }
}

/// The parts of prsd's time in Figure 7, relative to VPC3's, with their names. The paper does not
/// say where the second stage is.
pub(super) const TIME_PARTS: [(&str, Figure); 4] = [
    ("instrumentation", |round| round.instrumentation_seconds() / round.vpc3_seconds()),
    ("detector", |round| round.codec(Prsd).detector_seconds / round.vpc3_seconds()),
    ("SEQUITUR", |round| round.codec(Prsd).order_seconds / round.vpc3_seconds()),
    ("second stage", |round| round.codec(Prsd).output_seconds / round.vpc3_seconds()),
];

fn speed(round: &Round, seconds: f64) -> f64 {
    round.accesses as f64 / 1e6 / seconds
}

/// Returns the number of programs that regular sections compress better than VPC3.
fn better(results: &[ProgramResult]) -> usize {
    results.iter().filter(|own| own.median(Round::ratio) > 1.0).count()
}

/// Returns the rank correlation of regularity and of how much better regular sections compress.
fn rank(results: &[ProgramResult]) -> f64 {
    let pairs: Vec<(f64, f64)> =
        results.iter().map(|own| (own.predictable_percent(), own.median(Round::ratio))).collect();
    rank_correlation(&pairs)
}

/// Returns the cell of a number that has no range.
fn one(value: f64, show: fn(f64) -> String) -> String {
    Spread::of([value]).cell(show)
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn one_digit(value: f64) -> String {
    format!("{value:.1}")
}

fn two_digits(value: f64) -> String {
    format!("{value:.2}")
}

fn three_digits(value: f64) -> String {
    format!("{value:.3}")
}
