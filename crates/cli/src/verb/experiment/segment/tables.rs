//! Tables 7.1 to 7.15.

use std::collections::{BTreeMap, BTreeSet};

use ::segment::{Class, Policy, Reason, hamming_distance};
use report::{Chart, Table};

use super::{FIRST, FOURTH, Measured, Named, Outcome, Study, beyond, digits, highest, inside, merged_ratios, ratios};
use crate::digits::{grouped, percent};

fn figure(number: f64) -> String {
    format!("{number:.2}")
}

pub(super) fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = numbers.fold((0_u32, 0.0), |(count, sum), number| (count + 1, sum + number));
    sum / f64::from(count.max(1))
}

/// 1 for what may stand inside, a cell for each class.
fn cells(inside: &[bool]) -> Vec<String> {
    inside.iter().map(|&inside| u8::from(inside).to_string()).collect()
}

fn heads<'h>(classes: &[(&'h str, Class)], more: &[&'h str]) -> Vec<&'h str> {
    classes.iter().map(|&(name, _)| name).chain(more.iter().copied()).collect()
}

impl Study {
    pub(super) fn all_tables(&self) -> Vec<Named> {
        let mut tables = vec![("table-7-1", self.mix()), ("table-7-2", self.best())];
        let best: Vec<Vec<bool>> = self.measured.iter().map(|own| own.best_inside()).collect();
        let fourth: Vec<Vec<bool>> = self.measured.iter().map(Measured::best_of_fourth_inside).collect();
        let common = common(&best);
        tables.extend([
            ("table-7-3", choices("Table 7.3: whether the best policies let classes stand inside", &FIRST, &best)),
            ("table-7-4", patterns("Table 7.4: the best policies", &FIRST, &common)),
            ("table-7-5", patterns("Table 7.5: the most common of them", &FIRST, &common[..common.len().min(1)])),
        ]);
        let distances = distances(&best);
        let nearest = &distances[..distances.len().min(1)];
        tables.extend([
            ("table-7-6", ranking("Table 7.6: average Hamming distance from the best policies", &FIRST, &distances)),
            ("table-7-7", ranking("Table 7.7: the nearest to all of them", &FIRST, nearest)),
            ("table-7-8", self.extremes()),
            (
                "table-7-9",
                self.ratio_ranking("Table 7.9: average max-norm ratio", &FIRST, |own| &own.first, |own| ratios(own)),
            ),
            ("table-7-10", self.difference("Table 7.10: 32 instructions less 255", ["32", "255"], |own| &own.long)),
            (
                "table-7-11",
                self.difference("Table 7.11: the best less two conditional jumps", ["best", "2 DCJ"], |own| &own.two),
            ),
            ("table-7-12", self.best_of_fourth()),
            (
                "table-7-13",
                patterns("Table 7.13: the best choices of direct conditional jumps", &FOURTH, &self::common(&fourth)),
            ),
            ("table-7-14", choices("Table 7.14: whether the best let them stand inside", &FOURTH, &fourth)),
            (
                "table-7-15",
                self.ratio_ranking("Table 7.15: average max-norm ratio", &FOURTH, |own| &own.fourth, |own| ratios(own)),
            ),
        ]);
        let merged: Vec<Vec<bool>> = self.measured.iter().map(Measured::best_merged_inside).collect();
        let caption = "Table 7.3 if traces that go the same way are one, whatever made them end";
        tables.extend([
            ("merged-7-3", choices(caption, &FIRST, &merged)),
            ("merged-7-9", self.ratio_ranking("Table 7.9 in that case", &FIRST, |own| &own.first, merged_ratios)),
            ("merged-7-15", self.ratio_ranking("Table 7.15 in that case", &FOURTH, |own| &own.fourth, merged_ratios)),
            ("reasons", self.reasons()),
        ]);
        tables.extend(beyond::tables(&self.measured));
        tables
    }

    /// What traces end with if every control-flow instruction ends one, as the thesis counts.
    fn mix(&self) -> Table {
        let heads = ["program", "instructions", "per CFI"].into_iter().chain(MIX.iter().map(|(name, _)| *name));
        let mut table = Table::new(
            "Table 7.1: how traces end if every control-flow instruction ends one, per cent",
            &heads.collect::<Vec<_>>(),
        );
        for own in &self.measured {
            let instructions = own.strict.instructions;
            let per = instructions as f64 / own.mix.total().max(1) as f64;
            let size = [own.program.clone(), grouped(instructions), figure(per)];
            table.row(size.into_iter().chain(own.mix_shares().map(|share| format!("{share:.1}"))));
        }
        let averages = (0..MIX.len()).map(|kind| mean(self.measured.iter().map(|own| own.mix_shares()[kind])));
        let blank = ["average".to_owned(), String::new(), String::new()];
        table.row(blank.into_iter().chain(averages.map(|share| format!("{share:.1}"))));
        table
    }

    fn by_program(&self, title: &str) -> Chart<report::Bars> {
        Chart::bars(title).x("programs").y("per cent").categories(self.measured.iter().map(|own| &own.program))
    }

    pub(super) fn mix_chart(&self) -> String {
        let chart = self.by_program("Table 7.1: how traces end if every control-flow instruction ends one");
        let series = MIX.iter().enumerate().fold(chart, |chart, (kind, (name, _))| {
            chart.series(name, self.measured.iter().map(|own| own.mix_shares()[kind]).collect::<Vec<_>>())
        });
        series.svg()
    }

    /// Why traces of the best policies ended.
    fn reasons_by_program(&self) -> Vec<(Reason, Vec<f64>)> {
        let best = || self.measured.iter().map(|own| &own.first[own.best]);
        let reasons: BTreeSet<Reason> = best().flat_map(|own| &own.reasons).map(|&(reason, _)| reason).collect();
        let times = |own: &Outcome, reason| own.reasons.iter().find(|own| own.0 == reason).map_or(0, |own| own.1);
        let share = |reason| best().map(|own| percent(times(own, reason), own.occurrences)).collect();
        reasons.into_iter().map(|reason| (reason, share(reason))).collect()
    }

    fn reasons(&self) -> Table {
        let reasons = self.reasons_by_program();
        let heads: Vec<&str> = ["program"].into_iter().chain(reasons.iter().map(|(reason, _)| reason.name())).collect();
        let mut table = Table::new("Why traces of the best policies ended, per cent", &heads);
        for (place, own) in self.measured.iter().enumerate() {
            let shares = reasons.iter().map(|(_, shares)| format!("{:.1}", shares[place]));
            table.row([own.program.clone()].into_iter().chain(shares));
        }
        table
    }

    pub(super) fn reasons_chart(&self) -> String {
        let chart = self.by_program("Why traces of the best policies ended");
        let reasons = self.reasons_by_program().into_iter();
        reasons.fold(chart, |chart, (reason, shares)| chart.series(reason.name(), shares)).svg()
    }

    pub(super) fn distance_chart(&self) -> String {
        let best: Vec<Vec<bool>> = self.measured.iter().map(Measured::best_inside).collect();
        let distances = distances(&best);
        Chart::bars("Table 7.6: average Hamming distance from the best policies")
            .x("RET, DC, IC, DCJ, IUJ: 1 if inside")
            .y("classes")
            .categories(distances.iter().map(|(inside, _)| digits(inside)))
            .series("distance", distances.iter().map(|&(_, distance)| distance).collect::<Vec<_>>())
            .svg()
    }

    fn best(&self) -> Table {
        let heads =
            ["program"].into_iter().chain(heads(&FIRST, &["trace length", "trace count", "max-norm ratio", "front"]));
        let mut table = Table::new("Table 7.2: the best policy of each program", &heads.collect::<Vec<_>>());
        for own in &self.measured {
            let scores: Vec<_> = own.first.iter().map(Outcome::score).collect();
            let front = ::segment::pareto_front(&scores).into_iter().filter(|&is_on_front| is_on_front).count();
            let judged = judged(&own.first[own.best], ratios(&own.first)[own.best]);
            table.row(
                [own.program.clone()]
                    .into_iter()
                    .chain(cells(&own.best_inside()))
                    .chain(judged)
                    .chain([front.to_string()]),
            );
        }
        table
    }

    fn extremes(&self) -> Table {
        let heads = ["program"].into_iter().chain(heads(&FIRST, &["trace length", "trace count", "max-norm ratio"]));
        let mut table = Table::new("Table 7.8: where the choice matters least and most", &heads.collect::<Vec<_>>());
        let ranked = self.ranked();
        let ends = if ranked.len() > 1 { vec![ranked[0], ranked[ranked.len() - 1]] } else { ranked };
        for (own, ratio) in ends {
            let judged = judged(&own.first[own.best], ratio);
            table.row([own.program.clone()].into_iter().chain(cells(&own.best_inside())).chain(judged));
        }
        table
    }

    /// Policies by their ratio, on average over all programs.
    fn ratio_ranking(
        &self,
        caption: &str,
        classes: &[(&str, Class)],
        outcomes: fn(&Measured) -> &[Outcome],
        ratios: fn(&[Outcome]) -> Vec<f64>,
    ) -> Table {
        let all: Vec<Vec<f64>> = self.measured.iter().map(|own| ratios(outcomes(own))).collect();
        let policies = self.measured.first().map_or(&[][..], outcomes);
        let ranked = policies
            .iter()
            .enumerate()
            .map(|(place, own)| (inside(&own.policy, classes), mean(all.iter().map(|ratios| ratios[place]))));
        let mut ranked: Vec<(Vec<bool>, f64)> = ranked.collect();
        ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
        let mut table = Table::new(caption, &heads(classes, &["max-norm ratio"]));
        ranked.iter().for_each(|(inside, ratio)| table.row(cells(inside).into_iter().chain([figure(*ratio)])));
        table
    }

    /// The best policy less another, with ratios of the two.
    fn difference(&self, caption: &str, names: [&str; 2], other: fn(&Measured) -> &Outcome) -> Table {
        let ratio_heads = names.map(|name| format!("ratio, {name}"));
        let heads = ["program", "Δ length", "Δ count", &ratio_heads[0], &ratio_heads[1], "Δ ratio"];
        let mut table = Table::new(caption, &heads);
        let rows: Vec<[f64; 5]> = self
            .measured
            .iter()
            .map(|own| {
                let (one, other) = (&own.first[own.best], other(own));
                let ratios = ratios([one, other]);
                let count = one.trace_count as f64 - other.trace_count as f64;
                [one.trace_length - other.trace_length, count, ratios[0], ratios[1], ratios[0] - ratios[1]]
            })
            .collect();
        let row = |name: &str, row: [f64; 5]| [name.to_owned()].into_iter().chain(row.map(figure)).collect::<Vec<_>>();
        for (own, figures) in self.measured.iter().zip(&rows) {
            table.row(row(&own.program, *figures));
        }
        let averages: Vec<f64> = (0..5).map(|column| mean(rows.iter().map(|row| row[column]))).collect();
        table.row([String::from("average")].into_iter().chain(averages.into_iter().map(figure)));
        let better =
            |is_better: fn(f64) -> bool, column: usize| rows.iter().filter(|row| is_better(row[column])).count();
        let counts = [better(|length| length < 0.0, 0), better(|count| count > 0.0, 1)];
        let of = |count: usize| format!("{count} of {}", rows.len());
        table.row([format!("better with {}", names[1]), of(counts[0]), of(counts[1])]);
        table
    }

    fn best_of_fourth(&self) -> Table {
        let heads = ["program"].into_iter().chain(heads(&FOURTH, &["trace length", "trace count", "max-norm ratio"]));
        let mut table =
            Table::new("Table 7.12: the best choice of direct conditional jumps", &heads.collect::<Vec<_>>());
        for own in &self.measured {
            let judged = judged(&own.fourth[own.best_of_fourth], ratios(&own.fourth)[own.best_of_fourth]);
            table.row([own.program.clone()].into_iter().chain(cells(&own.best_of_fourth_inside())).chain(judged));
        }
        table
    }
}

/// The columns of Table 7.1.
const MIX: [(&str, &[Class]); 6] = [
    ("DC", &[Class::DirectCall]),
    ("DCJ", &Class::CONDITIONAL),
    ("DUJ", &[Class::DirectJump]),
    ("IC", &[Class::IndirectCall]),
    ("IUJ", &[Class::IndirectJump]),
    ("RET", &[Class::Return]),
];

impl Measured {
    /// Shares of all traces, in the order of [`MIX`].
    fn mix_shares(&self) -> [f64; MIX.len()] {
        let ends = |classes: &[Class]| {
            let is_one = |reason: &Reason| classes.iter().any(|&class| *reason == Reason::Class(class));
            self.strict.reasons.iter().filter(|(reason, _)| is_one(reason)).map(|&(_, times)| times).sum()
        };
        MIX.map(|(_, classes)| percent(ends(classes), self.strict.occurrences))
    }

    fn best_inside(&self) -> Vec<bool> {
        inside(&self.first[self.best].policy, &FIRST)
    }

    /// The best policy if traces that go the same way are one.
    fn best_merged_inside(&self) -> Vec<bool> {
        inside(&self.first[highest(&self.first, &merged_ratios(&self.first))].policy, &FIRST)
    }

    fn best_of_fourth_inside(&self) -> Vec<bool> {
        inside(&self.fourth[self.best_of_fourth].policy, &FOURTH)
    }
}

fn judged(outcome: &Outcome, ratio: f64) -> [String; 3] {
    [figure(outcome.trace_length), grouped(outcome.trace_count as u64), figure(ratio)]
}

/// How often each class stands inside, and how often it ends a trace.
fn choices(caption: &str, classes: &[(&str, Class)], best: &[Vec<bool>]) -> Table {
    let mut table = Table::new(caption, &["class", "inside", "ends"]);
    for (place, (name, _)) in classes.iter().enumerate() {
        let count = best.iter().filter(|inside| inside[place]).count();
        table.row([(*name).to_owned(), count.to_string(), (best.len() - count).to_string()]);
    }
    table
}

/// Different policies, those that are met most often first.
fn common(best: &[Vec<bool>]) -> Vec<(Vec<bool>, usize)> {
    let mut counts: BTreeMap<&Vec<bool>, usize> = BTreeMap::new();
    best.iter().for_each(|inside| *counts.entry(inside).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().map(|(inside, count)| (inside.clone(), count)).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

fn patterns(caption: &str, classes: &[(&str, Class)], counts: &[(Vec<bool>, usize)]) -> Table {
    let mut table = Table::new(caption, &heads(classes, &["programs"]));
    counts.iter().for_each(|(inside, count)| table.row(cells(inside).into_iter().chain([count.to_string()])));
    table
}

/// How far each policy of the first experiment is from the best ones, on average; the nearest first.
fn distances(best: &[Vec<bool>]) -> Vec<(Vec<bool>, f64)> {
    let all = Policy::default().first_experiment().into_iter().map(|policy| inside(&policy, &FIRST));
    let distance = |inside: &[bool]| mean(best.iter().map(|best| hamming_distance(inside, best) as f64));
    let mut distances: Vec<(Vec<bool>, f64)> = all.map(|inside| (inside.clone(), distance(&inside))).collect();
    distances.sort_by(|one, other| one.1.total_cmp(&other.1).then_with(|| digits(&one.0).cmp(&digits(&other.0))));
    distances
}

fn ranking(caption: &str, classes: &[(&str, Class)], ranked: &[(Vec<bool>, f64)]) -> Table {
    let mut table = Table::new(caption, &heads(classes, &["average Hamming distance"]));
    ranked.iter().for_each(|(inside, distance)| table.row(cells(inside).into_iter().chain([figure(*distance)])));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best policies of Table 7.2, in the order of the thesis.
    const BEST: [&str; 23] = [
        "00010", "00010", "00111", "00010", "11101", "11101", "10111", "00111", "00100", "10110", "11000", "00011",
        "00000", "11100", "10101", "00111", "01100", "11101", "01110", "11100", "11100", "11101", "11101",
    ];

    fn best() -> Vec<Vec<bool>> {
        BEST.iter().map(|digits| digits.chars().map(|digit| digit == '1').collect()).collect()
    }

    /// Tables 7.3, 7.5, 7.6 and 7.7 of the thesis follow from its Table 7.2.
    #[test]
    fn the_tables_of_the_thesis() {
        let counts: Vec<Vec<String>> =
            choices("", &FIRST, &best()).rows().iter().map(|row| row[1..].to_vec()).collect();
        assert_eq!(counts, [["12", "11"], ["11", "12"], ["17", "6"], ["10", "13"], ["11", "12"]]);
        let common = common(&best());
        assert_eq!((digits(&common[0].0).as_str(), common[0].1), ("11101", 5));
        let shown: BTreeMap<String, String> =
            distances(&best()).iter().map(|(inside, distance)| (digits(inside), figure(*distance))).collect();
        for (policy, distance) in [
            ("10100", "2.13"),
            ("11100", "2.17"),
            ("00100", "2.17"),
            ("10101", "2.17"),
            ("11101", "2.22"),
            ("10110", "2.26"),
            ("11111", "2.35"),
            ("10000", "2.61"),
            ("00000", "2.65"),
            ("00010", "2.78"),
            ("01011", "2.87"),
        ] {
            assert_eq!(shown[policy], distance, "{policy}");
        }
        assert_eq!(digits(&distances(&best())[0].0), "10100");
    }

    #[test]
    fn averages() {
        assert_eq!(mean([1.0, 2.0, 6.0].into_iter()), 3.0);
        assert_eq!(mean(std::iter::empty()), 0.0);
    }
}
