//! Results of policies side by side, as JSON and as tables.

use report::{Table, grouped, percent};
use segment::{Class, InstructionMix, LengthWeight, Score, max_norm_ratios, pareto_front};
use serde::Serialize;

use super::class_names::{unusual_weights, weights_text};
use super::run::{PolicyOutcome, Segmentation};

/// The result of a policy.
#[derive(Serialize)]
pub struct Row {
    max_instructions: u32,
    max_cfis: u32,
    flags: String,
    /// The weights of classes that differ from the default, by the names that --weight takes.
    weights: serde_json::Map<String, serde_json::Value>,
    #[serde(skip)]
    weights_text: String,
    /// The rules beside limits, flags and weights.
    rules: String,
    instructions: u64,
    /// The number of different traces, and of executed traces.
    traces: usize,
    occurrences: u64,
    /// The number of traces that the tool of the thesis would take for others.
    aliases: usize,
    /// With traces of the same path merged, whatever ended them: their number, and the "trace
    /// count".
    paths: usize,
    path_count: usize,
    /// The average length for the ratio and the front, its weight, and both averages.
    trace_length: f64,
    length_weight: &'static str,
    trace_length_by_coverage: f64,
    trace_length_by_occurrences: f64,
    trace_count: usize,
    max_norm_ratio: f64,
    is_on_pareto_front: bool,
    consistency: f64,
    /// The average number of traces that an instruction is in: of all traces, and of those in
    /// "trace count".
    overlap: f64,
    hot_overlap: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ilp: Option<f64>,
    /// How often the policy changed its judgement of a branch.
    judged_anew: u64,
    reasons: serde_json::Map<String, serde_json::Value>,
    /// Pairs: a number of traces, and the share of all instructions that they cover.
    coverage: Vec<(usize, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fetch: Option<FetchRow>,
}

/// The result of a predictor and caches.
#[derive(Serialize)]
struct FetchRow {
    traces: u64,
    mispredicted: u64,
    misprediction_percent: f64,
    caches: Vec<CacheRow>,
}

/// The result of a cache.
#[derive(Serialize)]
struct CacheRow {
    traces: usize,
    ways: usize,
    replacement: &'static str,
    hits: u64,
    hit_percent: f64,
    /// Instructions from the cache, and those of them that were also predicted.
    coverage_percent: f64,
    supplied_percent: f64,
}

/// The JSON of `trackway segment`.
#[derive(Serialize)]
pub struct Report {
    control_flow: serde_json::Map<String, serde_json::Value>,
    policies: Vec<Row>,
}

impl Report {
    pub fn new(segmentation: &Segmentation, weight: LengthWeight) -> Self {
        Self { control_flow: control_flow(&segmentation.mix), policies: rows(&segmentation.outcomes, weight) }
    }

    pub fn text(&self, mix: &InstructionMix) -> String {
        let mut text = policies(&self.policies).text();
        if self.policies.iter().any(|row| row.fetch.is_some()) {
            text += &caches(&self.policies).text();
        }
        match &self.policies[..] {
            [row] => text + &reasons(row).text() + &mix_table(mix).text(),
            _ => text,
        }
    }
}

/// Returns the number of executed control-flow instructions by class, for JSON.
pub fn control_flow(mix: &InstructionMix) -> serde_json::Map<String, serde_json::Value> {
    let executed = |class: Class| (class.name().to_owned(), mix.executed(class).into());
    Class::ALL.into_iter().skip(1).map(executed).collect()
}

/// Returns the results of policies, with ratios among them.
pub fn rows<'o>(outcomes: impl IntoIterator<Item = &'o PolicyOutcome>, weight: LengthWeight) -> Vec<Row> {
    let outcomes: Vec<&PolicyOutcome> = outcomes.into_iter().collect();
    let scores: Vec<Score> = outcomes.iter().map(|own| own.score(weight)).collect();
    let judged = max_norm_ratios(&scores).into_iter().zip(pareto_front(&scores));
    outcomes.iter().zip(judged).map(|(own, (ratio, is_on_front))| row(own, weight, ratio, is_on_front)).collect()
}

fn row(own: &PolicyOutcome, weight: LengthWeight, max_norm_ratio: f64, is_on_pareto_front: bool) -> Row {
    let weights = unusual_weights(&own.policy).into_iter();
    Row {
        max_instructions: own.policy.max_instructions(),
        max_cfis: own.policy.max_cfis(),
        flags: own.policy.flags(),
        weights: weights.map(|(class, weight)| (class.to_owned(), weight.into())).collect(),
        weights_text: weights_text(&own.policy),
        rules: own.policy.rules(),
        instructions: own.instructions,
        traces: own.traces,
        occurrences: own.occurrences,
        aliases: own.aliases,
        paths: own.paths,
        path_count: own.path_count,
        trace_length: own.trace_length.by(weight),
        length_weight: weight.name(),
        trace_length_by_coverage: own.trace_length.by_coverage,
        trace_length_by_occurrences: own.trace_length.by_occurrences,
        trace_count: own.trace_count,
        max_norm_ratio,
        is_on_pareto_front,
        consistency: own.consistency,
        overlap: own.overlap[0].times(),
        hot_overlap: own.overlap[1].times(),
        ilp: own.ilp,
        judged_anew: own.changes,
        reasons: own.reasons.iter().map(|(reason, count)| (reason.name().to_owned(), (*count).into())).collect(),
        coverage: own.coverage.clone(),
        fetch: own.fetched.as_ref().map(|(asked, caches)| FetchRow {
            traces: asked.traces,
            mispredicted: asked.mispredicted,
            misprediction_percent: percent(asked.mispredicted, asked.traces),
            caches: caches
                .iter()
                .map(|(shape, supplied)| CacheRow {
                    traces: shape.traces(),
                    ways: shape.ways(),
                    replacement: shape.replacement.name(),
                    hits: supplied.hits,
                    hit_percent: percent(supplied.hits, asked.traces),
                    coverage_percent: percent(supplied.instructions, asked.instructions),
                    supplied_percent: percent(supplied.predicted, asked.instructions),
                })
                .collect(),
        }),
    }
}

/// Returns a table of the columns that are not empty.
fn without_empty_columns(caption: &str, heads: &[&str], rows: &[Vec<String>]) -> Table {
    let is_used = |column: &usize| rows.iter().any(|row| !row[*column].is_empty());
    let used: Vec<usize> = (0..heads.len()).filter(is_used).collect();
    let mut table = Table::new(caption, &used.iter().map(|&column| heads[column]).collect::<Vec<_>>());
    rows.iter().for_each(|row| table.row(used.iter().map(|&column| row[column].clone())));
    table
}

impl Row {
    /// In the order of [`HEADS`].
    fn cells(&self) -> Vec<String> {
        let fixed = |number: f64| format!("{number:.2}");
        vec![
            self.flags.clone(),
            self.max_instructions.to_string(),
            self.max_cfis.to_string(),
            self.weights_text.clone(),
            self.rules.clone(),
            grouped(self.traces as u64),
            grouped(self.occurrences),
            fixed(self.trace_length_by_coverage),
            fixed(self.trace_length_by_occurrences),
            grouped(self.trace_count as u64),
            fixed(self.max_norm_ratio),
            if self.is_on_pareto_front { "*" } else { "" }.to_owned(),
            fixed(self.consistency),
            fixed(self.overlap),
            fixed(self.hot_overlap),
            self.ilp.map_or(String::new(), fixed),
        ]
    }
}

const HEADS: [&str; 16] = [
    "flags",
    "ins",
    "cfis",
    "weights",
    "rules",
    "traces",
    "executed",
    "length/coverage",
    "length/occurrences",
    "trace count",
    "max-norm ratio",
    "front",
    "consistency",
    "overlap",
    "hot",
    "ILP",
];

fn policies(rows: &[Row]) -> Table {
    let (instructions, weight) = rows.first().map_or((0, ""), |row| (row.instructions, row.length_weight));
    let caption =
        format!("{} instructions in traces; ratio and front by length weighted by {weight}", grouped(instructions));
    without_empty_columns(&caption, &HEADS, &rows.iter().map(Row::cells).collect::<Vec<_>>())
}

/// Returns a table of caches.
fn caches(rows: &[Row]) -> Table {
    let heads = [
        "flags",
        "ins",
        "weights",
        "rules",
        "traces",
        "ways",
        "replacement",
        "hits %",
        "coverage %",
        "mispredicted %",
        "supplied %",
    ];
    let mut cells: Vec<Vec<String>> = Vec::new();
    for (row, fetch) in rows.iter().filter_map(|row| Some((row, row.fetch.as_ref()?))) {
        for cache in &fetch.caches {
            let policy =
                [row.flags.clone(), row.max_instructions.to_string(), row.weights_text.clone(), row.rules.clone()];
            let shape = [cache.traces.to_string(), cache.ways.to_string(), cache.replacement.to_owned()];
            let rates =
                [cache.hit_percent, cache.coverage_percent, fetch.misprediction_percent, cache.supplied_percent];
            cells.push(policy.into_iter().chain(shape).chain(rates.map(|rate| format!("{rate:.2}"))).collect());
        }
    }
    without_empty_columns("Traces from caches, predicted by the traces before them", &heads, &cells)
}

/// Returns a table of the reasons for which traces ended.
fn reasons(row: &Row) -> Table {
    let mut table = Table::new("Why traces ended", &["reason", "times", "%"]);
    let count = |count: &serde_json::Value| count.as_u64().unwrap_or(0);
    let mut reasons: Vec<(&String, u64)> = row.reasons.iter().map(|(reason, times)| (reason, count(times))).collect();
    reasons.sort_by_key(|&(_, times)| std::cmp::Reverse(times));
    for (reason, times) in reasons {
        table.row([reason.clone(), grouped(times), format!("{:.2}", percent(times, row.occurrences))]);
    }
    table
}

/// Returns a table of the executed control-flow instructions.
fn mix_table(mix: &InstructionMix) -> Table {
    let mut table = Table::new("Control-flow instructions", &["class", "times", "%"]);
    for class in Class::ALL.into_iter().skip(1).filter(|&class| mix.executed(class) > 0) {
        let count = mix.executed(class);
        table.row([class.name().to_owned(), grouped(count), format!("{:.2}", percent(count, mix.total()))]);
    }
    table
}
