//! Tables 7.1 to 7.15.

use std::collections::BTreeMap;

use ::segment::{Class, Policy, hamming_distance};
use report::Table;

use super::{FIRST, FOURTH, Measured, Named, Outcome, Study, beyond, digits, inside, ratios};
use crate::digits::{grouped, percent};

fn figure(number: f64) -> String {
    format!("{number:.2}")
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
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
    pub(super) fn tables(&self) -> Vec<Named> {
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
            ("table-7-9", self.ratio_ranking("Table 7.9: average max-norm ratio", &FIRST, |own| &own.first)),
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
            ("table-7-15", self.ratio_ranking("Table 7.15: average max-norm ratio", &FOURTH, |own| &own.fourth)),
        ]);
        tables.extend(beyond::tables(&self.measured));
        tables
    }

    fn mix(&self) -> Table {
        let kinds: [(&str, &[Class]); 6] = [
            ("DC %", &[Class::DirectCall]),
            ("DCJ %", &Class::CONDITIONAL),
            ("DUJ %", &[Class::DirectJump]),
            ("IC %", &[Class::IndirectCall]),
            ("IUJ %", &[Class::IndirectJump]),
            ("RET %", &[Class::Return]),
        ];
        let heads = ["program", "instructions", "per CFI"].into_iter().chain(kinds.iter().map(|(name, _)| *name));
        let mut table = Table::new("Table 7.1: control-flow instructions", &heads.collect::<Vec<_>>());
        let shares = |own: &Measured| {
            let count = |classes: &[Class]| classes.iter().map(|&class| own.moves.executed(class)).sum::<u64>();
            let all = count(&Class::ALL[1..]);
            (all, kinds.map(|(_, classes)| percent(count(classes), all)))
        };
        for own in &self.measured {
            let ((all, shares), instructions) = (shares(own), own.first[own.best].instructions);
            let size = [own.program.clone(), grouped(instructions), figure(instructions as f64 / all.max(1) as f64)];
            table.row(size.into_iter().chain(shares.map(|share| format!("{share:.1}"))));
        }
        let averages = (0..kinds.len()).map(|kind| mean(self.measured.iter().map(|own| shares(own).1[kind])));
        let blank = ["average".to_owned(), String::new(), String::new()];
        table.row(blank.into_iter().chain(averages.map(|share| format!("{share:.1}"))));
        table
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
        outcomes: fn(&Measured) -> &Vec<Outcome>,
    ) -> Table {
        let all: Vec<Vec<f64>> = self.measured.iter().map(|own| ratios(outcomes(own))).collect();
        let policies = self.measured.first().map_or(&[][..], |own| outcomes(own));
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

impl Measured {
    fn best_inside(&self) -> Vec<bool> {
        inside(&self.first[self.best].policy, &FIRST)
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
    let all = Policy::first_experiment().into_iter().map(|policy| inside(&policy, &FIRST));
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
