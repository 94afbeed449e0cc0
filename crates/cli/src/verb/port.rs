//! `trackway port`: how many bits each technique needs.

mod decode;
mod survey;

use std::sync::Mutex;

use filter::cfiat::KnownCriterion;
use port::cores::Cores;
use port::file::{self, Description};
use port::message::ExceptionTarget;
use port::nexus::Streams;
use port::{Config, Field, PortResult, PortSettings, Subject, Technique};
use serde::Serialize;
use serde_json::{Map, Value};
use trace::{DataMode, Trace};

use crate::arguments::Input;
use crate::arguments::mtrace::Known;
use crate::arguments::port::{
    ConfigName, CustomSizes, ExceptionTargets, Port, PortOptions, PortVerb, StreamEnds, TageBudget, Techniques,
};
use crate::digits::{grouped, percent};
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};
use crate::select;
use predict::Budget;
use report::Table;
pub use survey::Survey;
use survey::Surveyed;

pub fn run(arguments: &Port) -> Result<u8, Stopped> {
    match &arguments.verb {
        Some(PortVerb::Decode(decode)) => decode::run(decode),
        None => measure(arguments.input.as_ref().expect("the parser asks for it"), &arguments.options),
    }
}

fn measure(input: &Input, options: &PortOptions) -> Result<u8, Stopped> {
    let trace = select::open(input)?;
    select::tell_nothing(&trace, input);
    let techniques = techniques(&trace, options)?;
    if !options.chunks.is_empty() && !techniques.iter().any(|technique| technique.has_variable_chunks()) {
        return Err(Failure::new("chunks of these techniques have fixed sizes")
            .hint("those with _e and _a vary")
            .into());
    }
    if options.known == Known::Flags && !techniques.iter().any(|technique| technique.has_cache()) {
        return Err(Failure::new("these techniques have no cache that could know a load")
            .hint("those with mlvCF and mlvCC have one")
            .into());
    }
    let configs = configs(options)?;
    let settings = settings(options);
    let cores = cores(&trace, input, options.cores)?;
    let mut survey = Survey {
        trace: &trace,
        input,
        techniques: &techniques,
        configs: &configs,
        settings,
        cores: &cores,
        bits: None,
    };
    let surveyed = match &options.output {
        None => survey.run()?,
        Some(path) => {
            let (technique, config) = only_one(&techniques, &configs)?;
            let bits = Mutex::new(Output::beside(&input.file, Some(path))?);
            survey.bits = Some((technique, &bits));
            let description = Description::new(technique, &config, &settings);
            let surveyed = write_bits(&survey, description, &bits)?;
            bits.into_inner().expect("nobody panics while writing").finish()?;
            surveyed
        }
    };
    print(&rows(&surveyed.outcomes, &techniques, &cores, options.cycles), options)?;
    let damaged = surveyed.damaged + select::tell_unfinished(&trace, &input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

fn write_bits(survey: &Survey<'_>, mut description: Description, bits: &Mutex<Output>) -> Result<Surveyed, Stopped> {
    let lock = || bits.lock().expect("nobody panics while writing");
    lock().write(file::MAGIC)?;
    let input = survey.input;
    description.threads = select::threads(survey.trace, input);
    description.cores = survey.cores.count();
    (description.thread, description.skip, description.length) = (input.thread, input.skip, input.length);
    let surveyed = survey.run()?;
    let own = surveyed.outcomes.iter().find(|outcome| outcome.technique.name() == description.technique);
    if let Some(outcome) = own {
        (description.bits, description.instructions) = (outcome.port.bits(), outcome.instructions);
    }
    lock().write(&description.trailer())?;
    Ok(surveyed)
}

/// Those that were asked for, and that the trace has enough for.
fn techniques(trace: &Trace, options: &PortOptions) -> Result<Vec<Technique>, Failure> {
    let has_values = trace.data() == DataMode::Values;
    let mut chosen = Vec::new();
    for technique in &options.technique {
        match *technique {
            Techniques::One(technique) => {
                if technique.subject() == Subject::Loads {
                    select::need_values(trace)?;
                }
                chosen.push(technique);
            }
            Techniques::All => {
                chosen.extend(Technique::ALL.into_iter().filter(|own| has_values || own.subject() == Subject::Flow));
                if !has_values {
                    eprintln!(
                        "trackway: this trace has no values, so that the mlv techniques are left out (record with --data values to have them)"
                    );
                }
            }
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

fn configs(options: &PortOptions) -> Result<Vec<Config>, Failure> {
    if options.sizes.are_given() && !options.config.contains(&ConfigName::Custom) {
        return Err(Failure::new("sizes of predictors and caches are those of the configuration")
            .hint("--config custom takes others"));
    }
    let named = if options.config.is_empty() {
        &[if options.output.is_some() { ConfigName::Large } else { ConfigName::All }]
    } else {
        &options.config[..]
    };
    let mut configs: Vec<Config> = Vec::new();
    for name in named {
        configs.extend(match name {
            ConfigName::Small => vec![Config::SMALL],
            ConfigName::Medium => vec![Config::MEDIUM],
            ConfigName::Large => vec![Config::LARGE],
            ConfigName::All => vec![Config::SMALL, Config::MEDIUM, Config::LARGE],
            ConfigName::Custom => vec![custom(&options.sizes)],
        });
    }
    let mut seen = Vec::new();
    for config in &configs {
        config.check().map_err(|error| Failure::new(error.to_string()))?;
    }
    configs.retain(|config| {
        !seen.contains(&config.name) && {
            seen.push(config.name);
            true
        }
    });
    Ok(configs)
}

fn custom(sizes: &CustomSizes) -> Config {
    let large = Config::LARGE;
    Config {
        name: "custom",
        tage: match sizes.tage {
            Some(TageBudget::Small) => Budget::Small,
            Some(TageBudget::Medium) => Budget::Medium,
            Some(TageBudget::Large) | None => Budget::Large,
        },
        gshare: sizes.gshare.unwrap_or(large.gshare),
        ras: sizes.ras.unwrap_or(large.ras),
        ibtb: sizes.ibtb.unwrap_or(large.ibtb),
        cache_bytes: sizes.cache.unwrap_or(large.cache_bytes),
        line_bytes: sizes.line.unwrap_or(large.line_bytes),
        ways: sizes.ways.unwrap_or(large.ways),
        granularity: sizes.granularity.unwrap_or(large.granularity),
    }
}

fn settings(options: &PortOptions) -> PortSettings {
    let mut settings = PortSettings::default();
    options.chunks.iter().for_each(|chunks| chunks.apply(&mut settings.sizes));
    settings.streams = match options.streams {
        StreamEnds::All => Streams::All,
        StreamEnds::Uninferable => Streams::Uninferable,
    };
    settings.known_by = options.known.criterion();
    settings.exception_target = match options.exception_target {
        ExceptionTargets::Difference => ExceptionTarget::Difference,
        ExceptionTargets::Full => ExceptionTarget::Full,
    };
    settings
}

fn cores(trace: &Trace, input: &Input, cores: Option<u32>) -> Result<Cores, Failure> {
    let threads = select::threads(trace, input);
    Cores::new(threads, cores.map(|cores| cores as usize)).map_err(|error| {
        Failure::new(error.to_string()).hint("--cores takes at least as many as `trackway info` lists")
    })
}

/// The technique and the configuration whose bits are written.
fn only_one(techniques: &[Technique], configs: &[Config]) -> Result<(Technique, Config), Failure> {
    match (techniques, configs) {
        (&[technique], &[config]) => Ok((technique, config)),
        (&[technique], _) if !technique.filter().is_configured() => Ok((technique, Config::LARGE)),
        _ => Err(Failure::new("a file holds the bits of one technique and one configuration")
            .hint("choose them with --technique and --config")),
    }
}

/// What is printed of a technique.
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
    /// To mcfNX_b or mlvNX_b.
    ratio: f64,
    messages: u64,
    /// What makes a load known to the cache: values or flags.
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<&'static str>,
    /// Per cent of branches, of loads that were told, of loads that missed the cache.
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

fn name_of(known_by: KnownCriterion) -> &'static str {
    match known_by {
        KnownCriterion::Values => "values",
        KnownCriterion::Flags => "flags",
    }
}

fn print(rows: &[Row], options: &PortOptions) -> Result<(), Stopped> {
    let mut output = Output::open(None)?;
    if options.json {
        output.json(&rows)?;
    } else {
        output.write(text(rows).as_bytes())?;
    }
    output.finish()
}

fn text(rows: &[Row]) -> String {
    let (cores, instructions) = rows.first().map_or((0, 0), |row| (row.cores, row.instructions));
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    let is_by_flags = rows.iter().any(|row| row.known == Some(name_of(KnownCriterion::Flags)));
    let known = if is_by_flags { ", loads known by flags alone" } else { "" };
    let caption = format!("{} instructions on {cores}: bits on the trace port{known}", grouped(instructions));
    let has_cycles = rows.iter().any(|row| row.bpc.is_some());
    let mut heads = vec!["technique", "config", "bits", "bits/instruction"];
    heads.extend(has_cycles.then_some("bits/cycle"));
    heads.extend(["ratio", "messages", "outcomes wrong %", "targets wrong %", "loads told %"]);
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
    table.text() + &fields(rows).text()
}

/// Where the bits go.
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
