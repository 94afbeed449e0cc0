//! `trackway segment`: cuts an execution into traces by one or many policies.

mod files;
mod receiver;

use std::path::Path;

use capture::{CaptureOptions, Limits, Selection};
use experiment::segment::{AnalysisOptions, Figures, LiveSegmenter, Report, Segmentation, segment_trace, weights_text};
use segment::Policy;
use trace::{DataMode, LiveTrace};

use crate::arguments::Input;
use crate::arguments::segment::{Policies, Segment};
use crate::failure::{FAILED, Failure};
use crate::output::{self, Output, Stopped};
use crate::progress::TerminalObserver;
use crate::select;
use crate::verb::record::status;
use files::TraceFile;

pub fn run(arguments: &Segment) -> Result<u8, Stopped> {
    let policies = policies(arguments)?;
    if arguments.output.is_some() && policies.len() > 1 {
        return Err(Failure::new("a file holds the traces of one policy").hint("leave out --policies or -o").into());
    }
    let length = length(arguments)?;
    let file =
        arguments.output.as_deref().map(|path| TraceFile::open(path, arguments.source.input.as_deref())).transpose()?;
    if let Some(directory) = &arguments.plots {
        output::make_directory(directory)?;
    }
    let analysis = AnalysisOptions {
        caches: arguments.cache.clone(),
        path: arguments.path.into(),
        dependences: arguments.dependences,
        keep_traces: file.is_some(),
    };
    let (segmentation, status) = match &arguments.source.input {
        Some(input) => segment_file(input, length, arguments, &policies, &analysis)?,
        None => segment_program(length, arguments, &policies, &analysis)?,
    };
    let details = segmentation.outcomes.first().and_then(|own| Some((own, own.details.as_ref()?)));
    if let (Some(file), Some((own, details))) = (file, details) {
        file.write(own, details)?;
    }
    if let Some(directory) = &arguments.plots {
        write_plots(directory, arguments, &segmentation)?;
    }
    let report = Report::new(&segmentation, arguments.length_weight);
    let mut output = Output::open(None)?;
    if arguments.json {
        output.json(&report)?;
    } else {
        output.write(report.text(&segmentation.mix).as_bytes())?;
    }
    output.finish()?;
    Ok(status)
}

fn write_plots(directory: &Path, arguments: &Segment, segmentation: &Segmentation) -> Result<(), Stopped> {
    let process = arguments.source.pid.map(|pid| format!("process {pid}"));
    let program = arguments.source.input.as_deref().or(arguments.source.command.first().map(Path::new));
    let file = program.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let subject = process.or(file).unwrap_or_default();
    let limits = |policy: &Policy| format!("{}/{}", policy.max_instructions(), policy.max_cfis());
    let are_alike =
        segmentation.outcomes.iter().all(|own| limits(&own.policy) == limits(&segmentation.outcomes[0].policy));
    let name = |policy: &Policy| {
        let limits = if are_alike { String::new() } else { limits(policy) };
        let words = [policy.flags(), limits, weights_text(policy), policy.rules()];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let outcomes = segmentation.outcomes.iter().map(|own| (name(&own.policy), own)).collect();
    output::write_files(directory, Figures { subject: &subject, weight: arguments.length_weight, outcomes }.files())
}

/// Returns the number of instructions to segment, if it is limited.
fn length(arguments: &Segment) -> Result<Option<u64>, Failure> {
    match (arguments.stop, arguments.length) {
        // As in the tool of the thesis, 0 means no end.
        (Some(0), _) => Ok(None),
        (Some(stop), _) if stop <= arguments.start => {
            Err(Failure::new("there is nothing between -start and -stop").hint("-stop has to be larger"))
        }
        (Some(stop), _) => Ok(Some(stop - arguments.start)),
        (None, length) => Ok(length),
    }
}

/// Segments a trace. Returns the exit status, too.
fn segment_file(
    file: &Path,
    length: Option<u64>,
    arguments: &Segment,
    policies: &[Policy],
    analysis: &AnalysisOptions,
) -> Result<(Segmentation, u8), Stopped> {
    let input = Input { file: file.to_owned(), thread: arguments.thread, skip: arguments.start, length };
    let trace = select::open(&input)?;
    select::warn_if_nothing_is_selected(&trace, &input);
    let observer = TerminalObserver::new();
    let (segmentation, damage) = segment_trace(&trace, input.excerpt(), policies, analysis, &observer)?;
    drop(observer);
    damage.iter().for_each(|problem| eprintln!("trackway: left out: {problem}"));
    let damaged = damage.len() as u64 + select::warn_if_unfinished(&trace, file);
    Ok((segmentation, if damaged == 0 { 0 } else { FAILED }))
}

/// Segments a program while it runs. Returns the exit status, too.
fn segment_program(
    length: Option<u64>,
    arguments: &Segment,
    policies: &[Policy],
    analysis: &AnalysisOptions,
) -> Result<(Segmentation, u8), Stopped> {
    let options = CaptureOptions {
        command: arguments.source.command.clone(),
        process: arguments.source.pid,
        limits: Limits { time: arguments.source.seconds, bytes: None },
        selection: Selection { skip: arguments.start, length, ..Selection::default() },
        ..CaptureOptions::default()
    };
    let mut segmenter = LiveSegmenter::new(policies, analysis);
    let exit = crate::live::run(&options, LiveTrace::new(DataMode::None), &mut segmenter)?;
    Ok((segmenter.into_segmentation(), if arguments.source.pid.is_some() { 0 } else { status(exit) }))
}

/// Returns the selected policies.
fn policies(arguments: &Segment) -> Result<Vec<Policy>, Failure> {
    let given = given(arguments).map_err(|error| Failure::new(error.to_string()))?;
    let policies = arguments.policies.iter().flat_map(|which| match which {
        Policies::Given => vec![given],
        Policies::First => given.first_experiment(),
        Policies::Second => vec![given.long()],
        Policies::Third => vec![given.two_conditional_jumps()],
        Policies::Fourth => given.fourth_experiment(),
    });
    Ok(policies.collect())
}

fn given(arguments: &Segment) -> Result<Policy, segment::IllegalPolicy> {
    let mut given = Policy::new(arguments.instructions, arguments.cfis)?;
    if let Some(flags) = &arguments.flags {
        given = given.with_flags(flags)?;
    }
    for (classes, inside) in [(&arguments.ends, false), (&arguments.inside, true)] {
        given = classes.iter().copied().flatten().fold(given, |given, &class| given.with(class, inside));
    }
    for &(classes, weight) in &arguments.weight {
        given = classes.iter().fold(given, |given, &class| given.with_weight(class, weight));
    }
    if let Some(least) = arguments.consistency {
        given = given.with_least_consistency(least)?;
    }
    if arguments.restructure {
        given = given.restructuring();
    }
    if arguments.keep_blocks {
        given = given.keeping_blocks();
    }
    Ok(arguments.meet.map_or(given, |least| given.meeting_from(least)))
}
