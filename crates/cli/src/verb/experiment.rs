//! `trackway experiment`: runs the experiments of the crate `experiment` and writes their tables,
//! figures and JSON.

use std::path::PathBuf;

use experiment::programs::Runs;
use experiment::{Findings, NamedTable, metric, mtrace, port, segment};
use report::Table;
use trace::{InstructionIndex, Trace};

use crate::arguments::memory::ExperimentMetric;
use crate::arguments::port::ExperimentPort;
use crate::arguments::segment::ExperimentSegment;
use crate::arguments::{Experiment, ExperimentMtrace, Results};
use crate::compressor::Compressor;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Output, Stopped};
use crate::progress::TerminalObserver;
use crate::select;

pub fn run(arguments: &Experiment) -> Result<u8, Stopped> {
    match arguments {
        Experiment::Mtrace(arguments) => run_mtrace(arguments),
        Experiment::Port(arguments) => run_port(arguments),
        Experiment::Segment(arguments) => run_segment(arguments),
        Experiment::Metric(arguments) => run_metric(arguments),
    }
}

fn run_mtrace(arguments: &ExperimentMtrace) -> Result<u8, Stopped> {
    [Compressor::Gzip, Compressor::Bzip2].into_iter().try_for_each(Compressor::require_installed)?;
    let experiment = mtrace::Experiment::new(Runs {
        programs: arguments.programs.clone(),
        threads: arguments.threads.clone(),
        size: arguments.size,
        repeat: arguments.repeat,
        trackway: own_path()?,
    })?;
    let output = open(&arguments.results)?;
    let study = experiment.run(&TerminalObserver::new())?;
    write(&arguments.results, output, &study)?;
    Ok(0)
}

fn run_port(arguments: &ExperimentPort) -> Result<u8, Stopped> {
    let experiment = port::Experiment::new(Runs {
        programs: arguments.programs.clone(),
        threads: arguments.threads.clone(),
        size: arguments.size,
        repeat: arguments.repeat,
        trackway: own_path()?,
    })?;
    let output = open(&arguments.results)?;
    let study = experiment.run(&TerminalObserver::new())?;
    write(&arguments.results, output, &study)?;
    Ok(0)
}

fn run_segment(arguments: &ExperimentSegment) -> Result<u8, Stopped> {
    let options = segment::Options {
        traces: arguments.traces.clone(),
        programs: arguments.programs.clone(),
        start: InstructionIndex::new(arguments.start),
        length: arguments.length,
        trackway: own_path()?,
    };
    let observer = TerminalObserver::new();
    let experiment = segment::Experiment::new(options, &observer)?;
    for path in &arguments.traces {
        output::refuse_same_file(path, arguments.results.output.file.as_deref())?;
    }
    let output = open(&arguments.results)?;
    let study = experiment.run(&observer)?;
    drop(observer);
    write(&arguments.results, output, &study)?;
    Ok(if study.is_complete() { 0 } else { FAILED })
}

fn run_metric(arguments: &ExperimentMetric) -> Result<u8, Stopped> {
    for path in &arguments.traces {
        select::require_data(&Trace::open(path).map_err(Failure::from)?)?;
        output::refuse_same_file(path, arguments.results.output.file.as_deref())?;
    }
    let options = metric::Options {
        traces: arguments.traces.clone(),
        programs: arguments.programs.clone(),
        start: InstructionIndex::new(arguments.start),
        accesses: arguments.accesses,
        stage: arguments.second_stage.into(),
        repeat: arguments.repeat,
        trackway: own_path()?,
    };
    let observer = TerminalObserver::new();
    let experiment = metric::Experiment::new(options, &observer)?;
    let output = open(&arguments.results)?;
    let study = experiment.run(&observer)?;
    drop(observer);
    write(&arguments.results, output, &study)?;
    Ok(if study.is_complete() { 0 } else { FAILED })
}

/// Returns the path of this program, which the experiments run to record others.
fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::new(format!("cannot find the path of trackway: {error}")))
}

/// Opens the outputs before the long work.
fn open(results: &Results) -> Result<Output, Failure> {
    if let Some(directory) = &results.plots {
        output::make_directory(directory)?;
    }
    Output::open(results.output.file.as_deref())
}

/// Writes tables as CSV and figures into a directory, if there is one. Writes tables as text or
/// Markdown, or everything as JSON, to the output.
fn write(results: &Results, mut output: Output, findings: &impl Findings) -> Result<(), Stopped> {
    if let Some(directory) = &results.plots {
        let tables = findings.tables().into_iter().map(|(name, table)| (format!("{name}.csv"), table.csv()));
        output::write_files(directory, tables.chain(findings.figures()))?;
    }
    if results.json {
        output.json(&findings.json())?;
    } else {
        let format = |(name, table): &NamedTable| if results.markdown { linked(name, table) } else { table.text() };
        let text: String = findings.tables().iter().map(format).collect();
        output.write(text.as_bytes())?;
    }
    output.finish()
}

/// Returns a table as Markdown, with an anchor for links.
fn linked(name: &str, table: &Table) -> String {
    format!("<a id=\"{name}\"></a>\n\n{}", table.markdown())
}
