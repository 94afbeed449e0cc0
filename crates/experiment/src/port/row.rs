//! Results of techniques side by side, as JSON and as tables.

use filter::cfiat::KnownCriterion;
use port::cores::Cores;
use port::{Field, PortResult, Technique};
use report::{Table, grouped, percent};
use serde::Serialize;
use serde_json::{Map, Value};

/// The result of a technique.
#[derive(Serialize)]
pub struct Row {
    technique: &'static str,
    config: Option<&'static str>,
    threads: usize,
    cores: usize,
    instructions: u64,
    bits: u64,
    /// Bits per instruction, and per clock cycle.
    bpi: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bpc: Option<f64>,
    /// The bits of mcfNX_b or mlvNX_b over those of the technique.
    ratio: f64,
    messages: u64,
    /// The condition for a load to be known to the cache: values or flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<&'static str>,
    /// In per cent: mispredicted outcomes and targets, loads with a message, loads that missed the
    /// cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome_misprediction_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_misprediction_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_access_miss_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_miss_percent: Option<f64>,
    fields: Map<String, Value>,
}

pub fn rows(outcomes: &[PortResult], techniques: &[Technique], cores: &Cores, cycles: Option<u64>) -> Vec<Row> {
    let baseline = |technique: Technique| {
        let found = outcomes.iter().find(|outcome| outcome.technique == technique.baseline());
        found.map_or(0, |outcome| outcome.port.bits())
    };
    let asked = outcomes.iter().filter(|outcome| techniques.contains(&outcome.technique));
    asked.map(|outcome| row(outcome, baseline(outcome.technique), cores, cycles)).collect()
}

fn row(outcome: &PortResult, baseline: u64, cores: &Cores, cycles: Option<u64>) -> Row {
    let bits = outcome.port.bits();
    let per = |count: u64| if count == 0 { 0.0 } else { bits as f64 / count as f64 };
    let (predicted, known) = (outcome.rates.predicted, outcome.rates.known);
    let fields = Field::ALL.into_iter().filter(|&field| outcome.port.of(field) > 0);
    Row {
        technique: outcome.technique.name(),
        config: outcome.config.map(|config| config.name),
        threads: cores.threads(),
        cores: cores.count(),
        instructions: outcome.instructions,
        bits,
        bpi: per(outcome.instructions),
        bpc: cycles.map(per),
        ratio: if bits == 0 { 0.0 } else { baseline as f64 / bits as f64 },
        messages: outcome.port.messages,
        known: known.map(|own| name_of(own.known_by)),
        outcome_misprediction_percent: predicted.map(|own| percent(own.outcomes_wrong, own.outcomes)),
        target_misprediction_percent: predicted.map(|own| percent(own.targets_wrong, own.targets)),
        first_access_miss_percent: known.map(|own| percent(own.reported, own.loads)),
        cache_miss_percent: known.map(|own| percent(own.cache_misses, own.loads)),
        fields: fields.map(|field| (field.name().to_owned(), outcome.port.of(field).into())).collect(),
    }
}

fn name_of(criterion: KnownCriterion) -> &'static str {
    match criterion {
        KnownCriterion::Values => "values",
        KnownCriterion::Flags => "flags",
    }
}

/// Returns a table of bits, messages and rates, and a table of the bits of each field.
pub fn tables(rows: &[Row]) -> [Table; 2] {
    let (cores, instructions) = rows.first().map_or((0, 0), |row| (row.cores, row.instructions));
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let is_by_flags = rows.iter().any(|row| row.known == Some(name_of(KnownCriterion::Flags)));
    let known = if is_by_flags { ", loads known by flags alone" } else { "" };
    let caption = format!("{} instructions on {cores}: bits on the trace port{known}", grouped(instructions));
    let has_cycles = rows.iter().any(|row| row.bpc.is_some());
    let mut heads = vec!["technique", "config", "bits", "bits/instruction"];
    heads.extend(has_cycles.then_some("bits/cycle"));
    heads.extend(["ratio", "messages", "outcomes wrong %", "targets wrong %", "loads sent %"]);
    let mut table = Table::new(&caption, &heads);
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for row in rows {
        let mut cells = vec![row.technique.to_owned(), row.config.unwrap_or("-").to_owned(), grouped(row.bits)];
        cells.push(format!("{:.4}", row.bpi));
        cells.extend(row.bpc.map(|bpc| format!("{bpc:.4}")));
        cells.extend([format!("{:.1}", row.ratio), grouped(row.messages)]);
        let rates =
            [row.outcome_misprediction_percent, row.target_misprediction_percent, row.first_access_miss_percent];
        cells.extend(rates.map(or_dash));
        table.row(cells);
    }
    [table, fields(rows)]
}

/// Returns a table of the share of each field.
fn fields(rows: &[Row]) -> Table {
    let used = |field: &Field| rows.iter().any(|row| row.fields.contains_key(field.name()));
    let used: Vec<&str> = Field::ALL.into_iter().filter(used).map(Field::name).collect();
    let heads: Vec<&str> = ["technique", "config"].into_iter().chain(used.iter().copied()).collect();
    let mut table = Table::new("Where the bits go, per cent", &heads);
    for row in rows {
        let share = |name: &&str| match row.fields.get(*name).and_then(Value::as_u64) {
            Some(bits) => format!("{:.1}", percent(bits, row.bits)),
            None => "-".to_owned(),
        };
        let cells = [row.technique.to_owned(), row.config.unwrap_or("-").to_owned()];
        table.row(cells.into_iter().chain(used.iter().map(share)));
    }
    table
}
