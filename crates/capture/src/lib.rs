//! Records a command: launches it, places the engine into it, drains the rings that the engine fills, and writes what
//! comes to a trace.
//!
//! Who calls whom: [`record`] finds the program (`command`), starts it (`launch`), and hands it to a session
//! (`session`), which injects the `image` of the engine (`inject`, over `ptrace`) and drains the shared memory
//! (`shared`, `drain`) into a [`Sink`] until the process is gone.
//!
//! Does not know what a trace is used for; is the only crate that calls ptrace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use trace::{DataMode, Exit, Recording, Summary, Writer};

use crate::command::Command;
use crate::host::Calibration;
use crate::image::Image;
use crate::launch::Launched;
use crate::shared::Shared;
use crate::signals::Signals;

mod command;
mod drain;
mod error;
mod exec;
mod filter;
mod host;
mod image;
mod inject;
mod launch;
mod maps;
#[cfg(test)]
mod memory;
mod ptrace;
mod select;
mod session;
mod shared;
mod signals;
mod sink;
mod split;

pub use drain::Counters;
pub use error::Error;
pub use inject::InjectError;
pub use select::Selection;
pub use sink::Sink;

/// What to record, and where to.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    pub output: PathBuf,
    /// Let the target run without address space randomisation.
    pub no_aslr: bool,
    /// What to record beside control flow.
    pub data: DataMode,
    /// What of it is recorded.
    pub selection: Selection,
}

/// What came of a recording.
#[derive(Debug)]
pub struct Outcome {
    pub exit: Exit,
    pub summary: Summary,
    pub observed: Observed,
}

/// What the recorder has seen besides the events.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Processor time that the recorder has used.
    pub cpu_time: Duration,
    pub counters: Counters,
    /// Sentences about what could not be recorded.
    pub warnings: Vec<String>,
}

/// What came of handing events to a [`Sink`].
#[derive(Debug)]
pub struct Delivered<E> {
    pub exit: Exit,
    pub observed: Observed,
    /// Why the sink stopped taking events, if it did; the target ran on natively from there.
    pub failure: Option<E>,
}

static ENGINE: LazyLock<Image> = LazyLock::new(|| {
    let file = include_bytes!(concat!(env!("OUT_DIR"), "/engine-image"));
    Image::parse(file).expect("the build has checked the image")
});

/// Runs a command and records it to a file.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    let (calibration, cpu_time_before) = (Calibration::start(), host::cpu_time());
    let target = Target::launch(options)?;
    let words = options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let described = host::describe(words, target.launched.pid() as u32, &calibration);
    let recording = Recording { data: options.data, options: options.selection.as_options(), ..described };
    let mut writer = Writer::create(&options.output, &recording).map_err(|error| {
        target.launched.kill();
        Error::Create(error)
    })?;
    let part = trace::part_name(&options.output);
    let delivered = target.record(&ENGINE, &mut writer);
    let Delivered { exit, observed, failure } = delivered.inspect_err(|_| {
        // Nothing was recorded; a file of nothing is of no use.
        let _ = std::fs::remove_file(&part);
    })?;
    let written = match failure {
        Some(error) => Err(error),
        None => writer.finish(exit),
    };
    match written {
        Ok(summary) => {
            let cpu_time = host::cpu_time().saturating_sub(cpu_time_before);
            Ok(Outcome { exit, summary, observed: Observed { cpu_time, ..observed } })
        }
        Err(error) => Err(Error::Write { error, exit, partial: part }),
    }
}

/// Runs a command and hands its events to `sink` as they come; `options.output` is not used.
pub fn record_into<S: Sink>(options: &Options, sink: S) -> Result<Delivered<S::Error>, Error> {
    Target::launch(options)?.record(&ENGINE, sink)
}

/// A process that was started and has not executed anything yet.
struct Target {
    path: PathBuf,
    shared: Shared,
    launched: Launched,
    signals: Signals,
    selection: Selection,
    cpu_time_before: Duration,
}

impl Target {
    fn launch(options: &Options) -> Result<Self, Error> {
        let cpu_time_before = host::cpu_time();
        let command = Command::find(&options.command)?;
        let shared = Shared::create().map_err(|error| Error::System { what: "making the shared memory", error })?;
        shared.control().data.store(options.data.number(), Ordering::SeqCst);
        let signals = Signals::install();
        let launched = launch::launch(&command, options.no_aslr, &signals)?;
        let selection = options.selection.clone();
        Ok(Self { path: command.path, shared, launched, signals, selection, cpu_time_before })
    }

    fn record<S: Sink>(self, engine: &Image, sink: S) -> Result<Delivered<S::Error>, Error> {
        let report = session::record(&self.launched, engine, &self.shared, &self.selection, sink);
        self.signals.forget_target();
        let report = report.map_err(|error| Error::Inject { path: self.path, error })?;
        let exit = match report.exit {
            ptrace::Exit::Code(code) => Exit::Code(code),
            ptrace::Exit::Signal(signal) => Exit::Signal(signal),
        };
        let cpu_time = host::cpu_time().saturating_sub(self.cpu_time_before);
        let observed = Observed { cpu_time, counters: report.counters, warnings: report.warnings };
        Ok(Delivered { exit, observed, failure: report.failure })
    }
}

#[cfg(test)]
mod tests;
