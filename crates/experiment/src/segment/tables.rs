//! Tables 7.1 to 7.15 of Hadjipavlou 2025.

use std::collections::{BTreeMap, BTreeSet};

use ::segment::{Class, EndReason, LengthWeight, Policy, hamming_distance, max_norm_ratios};
use report::{Chart, Table, grouped, percent};

use super::{
    FIRST, FIRST_WEIGHT, FOURTH, FOURTH_WEIGHT, PolicyOutcome, ProgramOutcomes, Study, best, beyond, digits, highest,
    inside, merged_ratios, ratios, scores,
};
use crate::NamedTable;

fn figure(number: f64) -> String {
    format!("{number:.2}")
}

pub(super) fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = numbers.fold((0_u32, 0.0), |(count, sum), number| (count + 1, sum + number));
    sum / f64::from(count.max(1))
}

/// Returns a cell for each class: 1 if it may stand inside a trace.
fn cells(inside: &[bool]) -> Vec<String> {
    inside.iter().map(|&inside| u8::from(inside).to_string()).collect()
}

fn heads<'h>(classes: &[(&'h str, Class)], more: &[&'h str]) -> Vec<&'h str> {
    classes.iter().map(|&(name, _)| name).chain(more.iter().copied()).collect()
}

impl Study {
    pub(super) fn all_tables(&self) -> Vec<NamedTable> {
        let mut tables = vec![("table-7-1", self.mix())];
        tables.extend(self.first_tables(FIRST_WEIGHT, &FIRST_NAMES[0]));
        tables.extend(self.difference_tables());
        tables.extend(self.fourth_tables(FOURTH_WEIGHT, &FOURTH_NAMES[0]));
        tables.extend(self.first_tables(LengthWeight::Occurrences, &FIRST_NAMES[1]));
        tables.extend(self.fourth_tables(LengthWeight::Coverage, &FOURTH_NAMES[1]));
        tables.extend(self.merged_tables());
        tables.push(("reasons", self.reasons()));
        tables.extend(beyond::tables(&self.measured));
        tables
    }

    /// Tables 7.2 to 7.9.
    fn first_tables(&self, weight: LengthWeight, names: &[&'static str; 8]) -> Vec<NamedTable> {
        let best: Vec<Vec<bool>> = self.measured.iter().map(|own| own.best_inside(weight)).collect();
        let (common, distances) = (common(&best), distances(&best));
        let nearest = &distances[..distances.len().min(1)];
        let caption = |words: &str| format!("{words} (length by {})", weight.name());
        let tables = [
            self.best(&caption("Table 7.2: the best policy of each program"), weight),
            choices(&caption("Table 7.3: whether the best policies let classes stand inside"), &FIRST, &best),
            patterns(&caption("Table 7.4: the best policies"), &FIRST, &common),
            patterns(&caption("Table 7.5: the most common of them"), &FIRST, &common[..common.len().min(1)]),
            ranking(&caption("Table 7.6: average Hamming distance from the best policies"), &FIRST, &distances),
            ranking(&caption("Table 7.7: the nearest to all of them"), &FIRST, nearest),
            self.extremes(&caption("Table 7.8: where the choice matters least and most"), weight),
            self.first_ranking(&caption("Table 7.9: average max-norm ratio"), |own| ratios(own, weight)),
        ];
        names.iter().copied().zip(tables).collect()
    }

    /// Tables 7.10 and 7.11, with the two weights of the thesis and with the same weight on both
    /// sides.
    fn difference_tables(&self) -> Vec<NamedTable> {
        use LengthWeight::{Coverage, Occurrences};
        let mut tables = Vec::new();
        let kinds = [
            (
                ["table-7-10", "table-7-11"],
                [FIRST_WEIGHT, FOURTH_WEIGHT],
                "lengths by coverage and by occurrences, as the thesis's",
            ),
            (["table-7-10-coverage", "table-7-11-coverage"], [Coverage; 2], "lengths by coverage"),
            (["table-7-10-occurrences", "table-7-11-occurrences"], [Occurrences; 2], "lengths by occurrences"),
        ];
        for ([long, two], weights, words) in kinds {
            let caption = format!("Table 7.10: 32 instructions less 255 ({words})");
            tables.push((long, self.difference(&caption, ["32", "255"], weights, |own| &own.long)));
            let caption = format!("Table 7.11: the best less two conditional jumps, each counting twice ({words})");
            tables.push((two, self.difference(&caption, ["best", "2 DCJ"], weights, |own| &own.two)));
        }
        tables
    }

    /// Tables 7.12 to 7.15.
    fn fourth_tables(&self, weight: LengthWeight, names: &[&'static str; 4]) -> Vec<NamedTable> {
        let best: Vec<Vec<bool>> = self.measured.iter().map(|own| own.best_of_fourth_inside(weight)).collect();
        let caption = |words: &str| format!("{words} (length by {})", weight.name());
        let tables = [
            self.best_of_fourth(&caption("Table 7.12: the best choice of direct conditional jumps"), weight),
            patterns(&caption("Table 7.13: the best choices of direct conditional jumps"), &FOURTH, &common(&best)),
            choices(&caption("Table 7.14: whether the best let them stand inside"), &FOURTH, &best),
            self.fourth_ranking(&caption("Table 7.15: average max-norm ratio"), |own| ratios(own, weight)),
        ];
        names.iter().copied().zip(tables).collect()
    }

    /// Tables 7.3, 7.9 and 7.15 with traces of the same path merged.
    fn merged_tables(&self) -> Vec<NamedTable> {
        let merged: Vec<Vec<bool>> = self.measured.iter().map(ProgramOutcomes::best_merged_inside).collect();
        let caption = "Table 7.3 if traces that go the same way are one, whatever made them end (length by coverage)";
        let first = |own: &[PolicyOutcome]| merged_ratios(own, FIRST_WEIGHT);
        let fourth = |own: &[PolicyOutcome]| merged_ratios(own, FOURTH_WEIGHT);
        vec![
            ("merged-7-3", choices(caption, &FIRST, &merged)),
            ("merged-7-9", self.first_ranking("Table 7.9 in that case (length by coverage)", first)),
            ("merged-7-15", self.fourth_ranking("Table 7.15 in that case (length by occurrences)", fourth)),
        ]
    }

    /// The instructions that end traces if every control-flow instruction ends one, as the thesis
    /// counts.
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

    /// The reasons for which traces of the best policies ended.
    fn reasons_by_program(&self) -> Vec<(EndReason, Vec<f64>)> {
        let best = || self.measured.iter().map(ProgramOutcomes::base);
        let reasons: BTreeSet<EndReason> = best().flat_map(|own| &own.reasons).map(|&(reason, _)| reason).collect();
        let times = |own: &PolicyOutcome, reason| own.reasons.iter().find(|own| own.0 == reason).map_or(0, |own| own.1);
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
        let best: Vec<Vec<bool>> = self.measured.iter().map(|own| own.best_inside(FIRST_WEIGHT)).collect();
        let distances = distances(&best);
        Chart::bars("Table 7.6: average Hamming distance from the best policies")
            .x("RET, DC, IC, DCJ, IUJ: 1 if inside")
            .y("classes")
            .categories(distances.iter().map(|(inside, _)| digits(inside)))
            .series("distance", distances.iter().map(|&(_, distance)| distance).collect::<Vec<_>>())
            .svg()
    }

    /// Table 7.9 by both weights, in the order of the thesis.
    pub(super) fn weights_chart(&self) -> String {
        let averages = LengthWeight::ALL.map(|weight| self.averages(|own| &own.first, |own| ratios(own, weight)));
        let mut ranked: Vec<usize> = (0..averages[0].len()).collect();
        ranked.sort_by(|&one, &other| averages[0][other].1.total_cmp(&averages[0][one].1));
        let chart = Chart::bars("Table 7.9: average max-norm ratio, by what trace lengths are weighted by")
            .x("RET, DC, IC, DCJ, IUJ: 1 if inside")
            .y("max-norm ratio")
            .categories(ranked.iter().map(|&place| digits(&inside(&averages[0][place].0, &FIRST))));
        let series = |place: usize| ranked.iter().map(|&own| averages[place][own].1).collect::<Vec<_>>();
        LengthWeight::ALL
            .into_iter()
            .enumerate()
            .fold(chart, |chart, (place, weight)| chart.series(&format!("by {}", weight.name()), series(place)))
            .svg()
    }

    fn best(&self, caption: &str, weight: LengthWeight) -> Table {
        let heads = ["program"].into_iter().chain(heads(&FIRST, &JUDGED)).chain(["front"]);
        let mut table = Table::new(caption, &heads.collect::<Vec<_>>());
        for own in &self.measured {
            let front = ::segment::pareto_front(&scores(&own.first, weight)).into_iter().filter(|&own| own).count();
            let row = judged_row(own, &own.first, weight, &FIRST);
            table.row(row.into_iter().chain([front.to_string()]));
        }
        table
    }

    fn extremes(&self, caption: &str, weight: LengthWeight) -> Table {
        let heads = ["program"].into_iter().chain(heads(&FIRST, &JUDGED));
        let mut table = Table::new(caption, &heads.collect::<Vec<_>>());
        let ranked = self.ranked(weight);
        let ends = if ranked.len() > 1 { vec![ranked[0], ranked[ranked.len() - 1]] } else { ranked };
        ends.into_iter().for_each(|(own, _)| table.row(judged_row(own, &own.first, weight, &FIRST)));
        table
    }

    fn best_of_fourth(&self, caption: &str, weight: LengthWeight) -> Table {
        let heads = ["program"].into_iter().chain(heads(&FOURTH, &JUDGED));
        let mut table = Table::new(caption, &heads.collect::<Vec<_>>());
        self.measured.iter().for_each(|own| table.row(judged_row(own, &own.fourth, weight, &FOURTH)));
        table
    }

    /// Returns policies with their ratios, averaged over all programs.
    fn averages(
        &self,
        outcomes: fn(&ProgramOutcomes) -> &[PolicyOutcome],
        ratios: impl Fn(&[PolicyOutcome]) -> Vec<f64>,
    ) -> Vec<(Policy, f64)> {
        let all: Vec<Vec<f64>> = self.measured.iter().map(|own| ratios(outcomes(own))).collect();
        let policies = self.measured.first().map_or(&[][..], outcomes).iter().enumerate();
        policies.map(|(place, own)| (own.policy, mean(all.iter().map(|ratios| ratios[place])))).collect()
    }

    fn first_ranking(&self, caption: &str, ratios: impl Fn(&[PolicyOutcome]) -> Vec<f64>) -> Table {
        ratio_ranking(caption, &FIRST, self.averages(|own| &own.first, ratios))
    }

    fn fourth_ranking(&self, caption: &str, ratios: impl Fn(&[PolicyOutcome]) -> Vec<f64>) -> Table {
        ratio_ranking(caption, &FOURTH, self.averages(|own| &own.fourth, ratios))
    }

    /// Returns the difference between the best policy and another, with ratios of the two.
    fn difference(
        &self,
        caption: &str,
        names: [&str; 2],
        weights: [LengthWeight; 2],
        other: fn(&ProgramOutcomes) -> &PolicyOutcome,
    ) -> Table {
        let ratio_heads = names.map(|name| format!("ratio, {name}"));
        let heads = ["program", "Δ length", "Δ count", &ratio_heads[0], &ratio_heads[1], "Δ ratio"];
        let mut table = Table::new(caption, &heads);
        let rows: Vec<[f64; 5]> = self
            .measured
            .iter()
            .map(|own| {
                let scores = [own.base().score(weights[0]), other(own).score(weights[1])];
                let [length, count] = [scores[0].length - scores[1].length, scores[0].count - scores[1].count];
                let ratios = max_norm_ratios(&scores);
                [length, count, ratios[0], ratios[1], ratios[0] - ratios[1]]
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

impl ProgramOutcomes {
    /// Returns shares of all traces, in the order of [`MIX`].
    fn mix_shares(&self) -> [f64; MIX.len()] {
        let ends = |classes: &[Class]| {
            let is_one = |reason: &EndReason| classes.iter().any(|&class| *reason == EndReason::Class(class));
            self.strict.reasons.iter().filter(|(reason, _)| is_one(reason)).map(|&(_, times)| times).sum()
        };
        MIX.map(|(_, classes)| percent(ends(classes), self.strict.occurrences))
    }

    fn best_inside(&self, weight: LengthWeight) -> Vec<bool> {
        inside(&self.first[best(&self.first, weight)].policy, &FIRST)
    }

    /// Returns the best policy with traces of the same path merged.
    fn best_merged_inside(&self) -> Vec<bool> {
        inside(&self.first[highest(&self.first, &merged_ratios(&self.first, FIRST_WEIGHT))].policy, &FIRST)
    }

    fn best_of_fourth_inside(&self, weight: LengthWeight) -> Vec<bool> {
        inside(&self.fourth[best(&self.fourth, weight)].policy, &FOURTH)
    }
}

/// Names of Tables 7.2 to 7.9, by the weight of the thesis and by the other.
const FIRST_NAMES: [[&str; 8]; 2] = [
    ["table-7-2", "table-7-3", "table-7-4", "table-7-5", "table-7-6", "table-7-7", "table-7-8", "table-7-9"],
    [
        "table-7-2-occurrences",
        "table-7-3-occurrences",
        "table-7-4-occurrences",
        "table-7-5-occurrences",
        "table-7-6-occurrences",
        "table-7-7-occurrences",
        "table-7-8-occurrences",
        "table-7-9-occurrences",
    ],
];

/// Names of Tables 7.12 to 7.15, by the weight of the thesis and by the other.
const FOURTH_NAMES: [[&str; 4]; 2] = [
    ["table-7-12", "table-7-13", "table-7-14", "table-7-15"],
    ["table-7-12-coverage", "table-7-13-coverage", "table-7-14-coverage", "table-7-15-coverage"],
];

const JUDGED: [&str; 3] = ["trace length", "trace count", "max-norm ratio"];

/// Returns the row of the best policy of a program: the classes inside its traces, and the columns
/// of [`JUDGED`].
fn judged_row(
    own: &ProgramOutcomes,
    outcomes: &[PolicyOutcome],
    weight: LengthWeight,
    classes: &[(&str, Class)],
) -> Vec<String> {
    let best = best(outcomes, weight);
    let (policy, score) = (outcomes[best].policy, outcomes[best].score(weight));
    let ratio = ratios(outcomes, weight)[best];
    let judged = [figure(score.length), grouped(score.count as u64), figure(ratio)];
    [own.program.clone()].into_iter().chain(cells(&inside(&policy, classes))).chain(judged).collect()
}

fn ratio_ranking(caption: &str, classes: &[(&str, Class)], mut ranked: Vec<(Policy, f64)>) -> Table {
    ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut table = Table::new(caption, &heads(classes, &["max-norm ratio"]));
    for (policy, ratio) in ranked {
        table.row(cells(&inside(&policy, classes)).into_iter().chain([figure(ratio)]));
    }
    table
}

/// Returns how often each class stands inside, and how often it ends a trace.
fn choices(caption: &str, classes: &[(&str, Class)], best: &[Vec<bool>]) -> Table {
    let mut table = Table::new(caption, &["class", "inside", "ends"]);
    for (place, (name, _)) in classes.iter().enumerate() {
        let count = best.iter().filter(|inside| inside[place]).count();
        table.row([(*name).to_owned(), count.to_string(), (best.len() - count).to_string()]);
    }
    table
}

/// Returns the different policies, the most frequent first.
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

/// Returns the average distance of each policy of the first experiment from the best ones, the
/// nearest first.
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
