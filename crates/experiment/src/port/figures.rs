//! Figures 4.9 to 4.11 and 5.1 to 5.6 of Tewar 2015, and the numbers behind them.

use ::port::chunks::Chunks;
use ::port::lengths::LengthHistogram;
use ::port::{Field, Technique};
use report::{Chart, Table};

use super::{CONFIGS, Measurement, Round, Study};
use crate::NamedTable;
use crate::spread::{Spread, times};

/// A field of variable length, the technique that encodes it, the chunk sizes that are tried, and
/// those of the thesis.
struct VariableField {
    field: Field,
    technique: Technique,
    tried: u32,
    thesis: (u32, u32),
    /// Names of the distribution and of the search.
    names: [&'static str; 2],
    figures: [&'static str; 2],
}

const VARIABLE_FIELDS: [VariableField; 3] = [
    VariableField {
        field: Field::BCnt,
        technique: Technique::McfTrE,
        tried: 6,
        thesis: (4, 2),
        names: ["figure-4-9-bcnt", "figure-4-10-bcnt"],
        figures: ["Figure 4.9, left", "Figure 4.10, left"],
    },
    VariableField {
        field: Field::DiffTA,
        technique: Technique::McfTrE,
        tried: 12,
        thesis: (3, 5),
        names: ["figure-4-9-diffta", "figure-4-10-diffta"],
        figures: ["Figure 4.9, right", "Figure 4.10, right"],
    },
    VariableField {
        field: Field::FahCnt,
        technique: Technique::MlvCfE,
        tried: 12,
        thesis: (2, 2),
        names: ["figure-4-11-fahcnt", "figure-4-11-chunks"],
        figures: ["Figure 4.11, left", "Figure 4.11, right"],
    },
];

/// The number of encodings that are shown beside the best.
const SHOWN: usize = 10;

fn lengths(own: &Measurement, varying: &VariableField) -> LengthHistogram {
    let rates = own.of(varying.technique, "large").map(|outcome| &outcome.rates.lengths);
    let found = rates.and_then(|all| all.iter().find(|(field, _)| *field == varying.field));
    found.map_or(LengthHistogram::default(), |(_, lengths)| lengths.clone())
}

/// Returns the average number of bits of a value in every round.
fn mean(rounds: &[LengthHistogram], chunks: &Chunks) -> Spread {
    Spread::of(rounds.iter().map(|lengths| times(lengths.bits(chunks), lengths.total())))
}

impl Round {
    /// Returns the lengths of all programs with this number of threads.
    fn all_lengths(&self, threads: u16, varying: &VariableField) -> LengthHistogram {
        let mut sum = LengthHistogram::default();
        self.with_threads(threads).for_each(|own| sum.merge(&lengths(own, varying)));
        sum
    }
}

impl Study {
    /// Of the first round.
    fn with_threads(&self, threads: u16) -> impl Iterator<Item = &Measurement> {
        self.rounds.iter().take(1).flat_map(move |round| round.with_threads(threads))
    }

    /// For each number of threads, round by round.
    fn lengths_by_threads(&self, varying: &VariableField) -> Vec<Vec<LengthHistogram>> {
        let rounds = |&threads: &u16| self.rounds.iter().map(|round| round.all_lengths(threads, varying)).collect();
        self.threads.iter().map(rounds).collect()
    }

    /// Returns the encodings that are best for all programs and all numbers of threads together,
    /// and that of the thesis.
    fn encodings(&self, varying: &VariableField) -> Vec<Chunks> {
        let mut sum = LengthHistogram::default();
        self.lengths_by_threads(varying).iter().flatten().for_each(|lengths| sum.merge(lengths));
        let sizes = (1..=varying.tried).flat_map(|first| (1..=varying.tried).map(move |next| (first, next)));
        let mut all: Vec<Chunks> = sizes.filter_map(|(first, next)| Chunks::new(first, next).ok()).collect();
        all.sort_by_key(|chunks| sum.bits(chunks));
        let is_shown = |(place, chunks): &(usize, Chunks)| *place < SHOWN || chunks.sizes() == varying.thesis;
        all.into_iter().enumerate().filter(is_shown).map(|(_, chunks)| chunks).collect()
    }

    /// Figures 4.9 to 4.11 as tables.
    pub(super) fn length_tables(&self) -> Vec<NamedTable> {
        let mut tables = Vec::new();
        for varying in &VARIABLE_FIELDS {
            tables.push((varying.names[0], self.distribution_table(varying)));
            tables.push((varying.names[1], self.search_table(varying)));
        }
        tables
    }

    fn first_threads(&self) -> u16 {
        self.threads.first().copied().unwrap_or(1)
    }

    /// Returns the share of values by the bits that they need, for the first number of threads.
    fn distribution_table(&self, varying: &VariableField) -> Table {
        let (threads, field) = (self.first_threads(), varying.field.name());
        let shares: Vec<(&str, Vec<f64>)> =
            self.with_threads(threads).map(|own| (own.program.as_str(), lengths(own, varying).cumulative())).collect();
        let longest = shares.iter().map(|(_, shares)| shares.len()).max().unwrap_or(0);
        let heads: Vec<&str> = std::iter::once("bits").chain(shares.iter().map(|(program, _)| *program)).collect();
        let figure = varying.figures[0];
        let caption =
            format!("{figure}: values of {field} that need at most so many bits, per cent (large, N={threads})");
        let mut table = Table::new(&caption, &heads);
        for length in 0..longest {
            let share = |shares: &[f64]| 100.0 * shares.get(length).or(shares.last()).copied().unwrap_or(0.0);
            let cells = shares.iter().map(|(_, shares)| format!("{:.1}", share(shares)));
            table.row(std::iter::once((length + 1).to_string()).chain(cells));
        }
        table
    }

    fn search_table(&self, varying: &VariableField) -> Table {
        let heads: Vec<String> = self.threads.iter().map(|threads| format!("N={threads}")).collect();
        let heads: Vec<&str> = std::iter::once("chunks").chain(heads.iter().map(String::as_str)).collect();
        let (figure, field, tried) = (varying.figures[1], varying.field.name(), varying.tried);
        let caption = format!("{figure}: bits of {field} on average, the best of chunks 1 to {tried} first");
        let mut table = Table::new(&caption, &heads);
        let all = self.lengths_by_threads(varying);
        for chunks in self.encodings(varying) {
            let (first, next) = chunks.sizes();
            let cells = all.iter().map(|rounds| mean(rounds, &chunks).cell(|bits| format!("{bits:.3}")));
            table.row(std::iter::once(format!("({first},{next})")).chain(cells));
        }
        table
    }

    /// Returns all figures, each with a name for its file.
    pub(super) fn charts(&self) -> Vec<(&'static str, String)> {
        let mut figures = Vec::new();
        for varying in &VARIABLE_FIELDS {
            figures.push((varying.names[0], self.distribution(varying)));
            figures.push((varying.names[1], self.search(varying)));
        }
        figures.push(("figure-5-1", self.wrong_chart(0, "Figure 5.1: mispredicted outcomes")));
        figures.push(("figure-5-2", self.wrong_chart(1, "Figure 5.2: mispredicted targets")));
        figures.push(("figure-5-3", self.totals_chart("Figure 5.3: control flow", &Technique::ALL[..8])));
        figures.push(("figure-5-5", self.first_access_chart()));
        figures.push(("figure-5-6", self.totals_chart("Figure 5.6: load values", &Technique::ALL[8..])));
        figures
    }

    fn distribution(&self, varying: &VariableField) -> String {
        let (threads, field) = (self.first_threads(), varying.field.name());
        let title = format!("{}: bits that {field} needs (large, N={threads})", varying.figures[0]);
        let chart = Chart::lines(&title).x("bits").y("share of messages, %");
        let chart = self.with_threads(threads).fold(chart, |chart, own| {
            let shares = lengths(own, varying).cumulative();
            chart.series(&own.program, (1..).zip(shares).map(|(bits, share)| (f64::from(bits), 100.0 * share)))
        });
        chart.svg()
    }

    fn search(&self, varying: &VariableField) -> String {
        let encodings = self.encodings(varying);
        let title = format!("{}: average size of {}", varying.figures[1], varying.field.name());
        let names = encodings.iter().map(|chunks| format!("({},{})", chunks.sizes().0, chunks.sizes().1));
        let chart = Chart::bars(&title).x("sizes of chunks").y("bits").categories(names);
        let all = self.threads.iter().zip(self.lengths_by_threads(varying));
        let chart = all.fold(chart, |chart, (threads, rounds)| {
            let means = encodings.iter().map(|chunks| mean(&rounds, chunks).median);
            chart.series(&format!("N = {threads}"), means.collect::<Vec<_>>())
        });
        chart.svg()
    }

    fn by_threads(&self, title: &str) -> Chart<report::Bars> {
        Chart::bars(title).categories(self.threads.iter().map(|threads| format!("N = {threads}")))
    }

    fn wrong_chart(&self, kind: usize, title: &str) -> String {
        let chart = self.by_threads(title).y("per cent");
        let predictors = [("gshare, iBTB", Technique::McfTrE), ("TAGE, ITTAGE", Technique::McfTgE)];
        let all = predictors.iter().flat_map(|own| CONFIGS.iter().map(move |config| (own, config.name)));
        let chart = all.fold(chart, |chart, (&(name, technique), config)| {
            let wrong = |&threads: &u16| self.median(|round| round.wrong(threads, technique, config)[kind]);
            chart.series(&format!("{name}, {config}"), self.threads.iter().map(wrong).collect::<Vec<_>>())
        });
        chart.svg()
    }

    /// Returns a figure with bars for all programs together, and lines from the program with the
    /// fewest misses to the one with the most.
    fn first_access_chart(&self) -> String {
        let title = "Figure 5.5: first-access misses, with minimum and maximum";
        let chart = self.by_threads(title).y("per cent of all loads");
        let caches = [("mlvCF", Technique::MlvCfE), ("mlvCC", Technique::MlvCcE)];
        let all = caches.iter().flat_map(|own| CONFIGS.iter().map(move |config| (own, config.name)));
        let chart = all.fold(chart, |chart, (&(name, technique), config)| {
            let extreme =
                |threads, end: usize| self.median(|round| round.first_access_extremes(threads, technique, config)[end]);
            let misses = |&threads: &u16| {
                let all = self.median(|round| round.first_access_misses(threads, technique, config));
                (all, (extreme(threads, 0), extreme(threads, 1)))
            };
            chart.ranges(&format!("{name}, {config}"), self.threads.iter().map(misses).collect::<Vec<_>>())
        });
        chart.svg()
    }

    /// Returns a figure of the bits per instruction of all programs together, for every size;
    /// techniques without sizes are the same in all of them.
    fn totals_chart(&self, title: &str, techniques: &[Technique]) -> String {
        let columns: Vec<(&str, u16)> =
            CONFIGS.iter().flat_map(|config| self.threads.iter().map(move |&n| (config.name, n))).collect();
        let names = columns.iter().map(|(config, threads)| format!("{config}, N = {threads}"));
        let chart = Chart::bars(title).categories(names).y("bits per instruction").log_y();
        let chart = techniques.iter().fold(chart, |chart, &technique| {
            let bits = |&(config, threads): &(&str, u16)| self.median(|round| round.bpi(threads, technique, config));
            chart.series(technique.name(), columns.iter().map(bits).collect::<Vec<_>>())
        });
        chart.svg()
    }
}
