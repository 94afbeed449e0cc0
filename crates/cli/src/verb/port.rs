//! `trackway port`: counts the bits that each technique needs.

mod decode;

use std::sync::Mutex;

use experiment::port::{Row, Survey, SurveyResult, rows};
use port::cores::Cores;
use port::file::{self, Description};
use port::message::ExceptionTarget;
use port::nexus::Streams;
use port::{Config, PortSettings, Subject, Technique};
use trace::{DataMode, ThreadId, Trace};

use crate::arguments::Input;
use crate::arguments::mtrace::LoadKnowledge;
use crate::arguments::port::{
    ConfigName, CustomSizes, ExceptionTargets, Port, PortOptions, PortVerb, StreamEnds, TageBudget, Techniques,
};
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};
use crate::progress::TerminalObserver;
use crate::select;
use predict::Budget;
use report::Table;

pub fn run(arguments: &Port) -> Result<u8, Stopped> {
    match &arguments.verb {
        Some(PortVerb::Decode(decode)) => decode::run(decode),
        None => measure(arguments.input.as_ref().expect("the parser asks for it"), &arguments.options),
    }
}

fn measure(input: &Input, options: &PortOptions) -> Result<u8, Stopped> {
    let trace = select::open(input)?;
    select::warn_if_nothing_is_selected(&trace, input);
    let techniques = techniques(&trace, options)?;
    if !options.chunks.is_empty() && !techniques.iter().any(|technique| technique.has_variable_chunks()) {
        return Err(Failure::new("chunks of these techniques have fixed sizes")
            .hint("those with _e and _a vary")
            .into());
    }
    if options.known == LoadKnowledge::Flags && !techniques.iter().any(|technique| technique.has_cache()) {
        return Err(Failure::new("these techniques have no cache").hint("those with mlvCF and mlvCC have one").into());
    }
    let configs = configs(options)?;
    let settings = settings(options);
    let cores = cores(&trace, input, options.cores)?;
    let observer = TerminalObserver::new();
    let mut survey = Survey {
        trace: &trace,
        excerpt: input.excerpt(),
        techniques: &techniques,
        configs: &configs,
        settings,
        cores: &cores,
        bits: None,
        observer: &observer,
    };
    let result = match &options.output {
        None => survey.run()?,
        Some(path) => {
            let (technique, config) = single_choice(&techniques, &configs)?;
            let mut output = Output::open_apart_from(&input.file, Some(path))?;
            output.write(file::MAGIC)?;
            let result = {
                let bits = Mutex::new(|bytes: &[u8]| output.write(bytes));
                survey.bits = Some((technique, &bits));
                survey.run()?
            };
            let mut description = Description::new(technique, &config, &settings);
            describe(&mut description, &trace, input, &cores, &result);
            output.write(&description.trailer())?;
            output.finish()?;
            result
        }
    };
    drop(observer);
    print(&rows(&result.outcomes, &techniques, &cores, options.cycles), options)?;
    let damaged = result.damaged + select::warn_if_unfinished(&trace, &input.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

/// Completes the description: the part of the trace, and the number of bits.
fn describe(description: &mut Description, trace: &Trace, input: &Input, cores: &Cores, result: &SurveyResult) {
    description.threads = input.excerpt().threads(trace).into_iter().map(ThreadId::get).collect();
    description.cores = cores.count();
    (description.thread, description.skip) = (input.thread.map(ThreadId::get), input.skip);
    description.length = input.length;
    let own = result.outcomes.iter().find(|outcome| outcome.technique.name() == description.technique);
    if let Some(outcome) = own {
        (description.bits, description.instructions) = (outcome.port.bits(), outcome.instructions);
    }
}

/// Returns the selected techniques for which the trace has enough data.
fn techniques(trace: &Trace, options: &PortOptions) -> Result<Vec<Technique>, Failure> {
    let has_values = trace.data() == DataMode::Values;
    let mut chosen = Vec::new();
    for technique in &options.technique {
        match *technique {
            Techniques::One(technique) => {
                if technique.subject() == Subject::Loads {
                    select::require_values(trace)?;
                }
                chosen.push(technique);
            }
            Techniques::All => {
                chosen.extend(Technique::ALL.into_iter().filter(|own| has_values || own.subject() == Subject::Flow));
                if !has_values {
                    eprintln!(
                        "trackway: this trace has no values, so that the mlv techniques are left out \
                         (record with --data values to have them)"
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
    let threads = input.excerpt().threads(trace);
    Cores::new(threads, cores.map(|cores| cores as usize)).map_err(|error| {
        Failure::new(error.to_string()).hint("--cores takes at least as many as `trackway info` lists")
    })
}

/// Returns the technique and the configuration whose bits are written; fails if there are several.
fn single_choice(techniques: &[Technique], configs: &[Config]) -> Result<(Technique, Config), Failure> {
    match (techniques, configs) {
        (&[technique], &[config]) => Ok((technique, config)),
        (&[technique], _) if !technique.filter().is_configured() => Ok((technique, Config::LARGE)),
        _ => Err(Failure::new("a file holds the bits of one technique and one configuration")
            .hint("choose them with --technique and --config")),
    }
}

fn print(rows: &[Row], options: &PortOptions) -> Result<(), Stopped> {
    let mut output = Output::open(None)?;
    if options.json {
        output.json(&rows)?;
    } else {
        let text: String = experiment::port::tables(rows).iter().map(Table::text).collect();
        output.write(text.as_bytes())?;
    }
    output.finish()
}
