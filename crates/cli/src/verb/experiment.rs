//! `trackway experiment`: the measurements of the source documents, repeated with programs of our own.

mod mtrace;
mod port;
mod programs;
mod real;
mod segment;
mod spread;

use report::Table;
use serde::Serialize;

use crate::arguments::{Experiment, Results};
use crate::failure::Failure;
use crate::output::{self, Output, Stopped};

pub fn run(arguments: &Experiment) -> Result<u8, Stopped> {
    match arguments {
        Experiment::Mtrace(arguments) => mtrace::run(arguments),
        Experiment::Port(arguments) => port::run(arguments),
        Experiment::Segment(arguments) => segment::run(arguments),
    }
}

/// Gives a table a name for its file.
type Named = (&'static str, Table);

/// What came of an experiment.
trait Findings {
    fn tables(&self) -> Vec<Named>;
    /// Files, each with its name.
    fn figures(&self) -> Vec<(String, String)>;
    fn json(&self) -> impl Serialize;
}

/// Opens what will be written to, before the long work.
fn open(results: &Results) -> Result<Output, Failure> {
    if let Some(directory) = &results.plots {
        output::make_directory(directory)?;
    }
    Output::open(results.output.file.as_deref())
}

/// Writes every table as CSV and every figure if that is asked for, and the tables as text or Markdown or everything as JSON.
fn write(results: &Results, mut output: Output, findings: &impl Findings) -> Result<(), Stopped> {
    if let Some(directory) = &results.plots {
        let tables = findings.tables().into_iter().map(|(name, table)| (format!("{name}.csv"), table.csv()));
        output::write_files(directory, tables.chain(findings.figures()))?;
    }
    if results.json {
        output.json(&findings.json())?;
    } else {
        let form = |(name, table): &Named| if results.markdown { linked(name, table) } else { table.text() };
        let text: String = findings.tables().iter().map(form).collect();
        output.write(text.as_bytes())?;
    }
    output.finish()
}

/// A table as Markdown, with a place that links can lead to.
fn linked(name: &str, table: &Table) -> String {
    format!("<a id=\"{name}\"></a>\n\n{}", table.markdown())
}
