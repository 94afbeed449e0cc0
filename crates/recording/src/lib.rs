//! Records a process to trace files: one for the process, and one for each child that is followed.
//!
//! [`record`] opens a [`Target`], makes a [`FileSink`] for it, and lets `capture` fill the sink.
//! The factory in `files` makes the sinks for child processes. This crate knows the names of the
//! output files and removes a partial file that nothing was recorded to.
//!
//! Does not know how a process is captured, nor how a trace is stored.

use std::path::PathBuf;
use std::sync::Arc;

use capture::{CaptureOutcome, CaptureReport, ProcessTree, Target};
use trace::{Exit, Summary};

mod error;
mod files;
mod sink;

pub use error::Error;
pub use sink::FileSink;

use crate::files::ChildFiles;

/// What to record, and where to.
#[derive(Debug, Clone, Default)]
pub struct RecordingOptions {
    pub capture: capture::CaptureOptions,
    /// The trace file.
    pub output: PathBuf,
    /// Whether to record child processes, too, each to a file of its own.
    pub follow: bool,
}

/// The result of a recording.
#[derive(Debug)]
pub struct RecordingOutcome {
    /// How the program ended, even if that was after the recording.
    pub exit: Exit,
    pub summary: Summary,
    pub report: CaptureReport,
}

/// Runs a command, or attaches to a process, and records it to a file.
///
/// # Errors
/// If nothing could be recorded, or if the file could not be written.
pub fn record(options: &RecordingOptions) -> Result<RecordingOutcome, Error> {
    let target = Target::open(&options.capture)?;
    let tree = options.follow.then(|| Arc::new(ProcessTree::new(&target, ChildFiles::beside(options.output.clone()))));
    let mut sink = FileSink::create(&options.output, &target.recording()).map_err(|error| {
        target.kill();
        Error::Create(error)
    })?;
    let partial = trace::partial_path(&options.output);
    let captured = match &tree {
        Some(tree) => target.capture_tree(&mut sink, tree),
        None => target.capture(&mut sink),
    };
    let CaptureOutcome { exit, mut report, failure } = match captured {
        Ok(outcome) => outcome,
        Err(error) => {
            sink.discard();
            return Err(error.into());
        }
    };
    let processes = tree.as_ref().map(|tree| tree.processes()).unwrap_or_default();
    let written = match failure {
        Some(error) => Err(error),
        None => sink.finish(exit, &processes),
    };
    report.warnings.extend(tree.iter().flat_map(|tree| tree.wait()));
    report.cpu_time = target.cpu_time();
    let exit = target.wait(exit);
    match written {
        Ok(summary) => Ok(RecordingOutcome { exit, summary, report }),
        Err(error) => Err(Error::Write { error, exit, partial }),
    }
}
