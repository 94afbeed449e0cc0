//! Records a process: launches it or takes over one that is running, places the engine into it, drains the rings that the engine fills,
//! and writes what comes to a trace.
//!
//! Who calls whom: [`record`] finds the program (`command`) and starts it (`launch`), or looks at a running process, and hands it to
//! a session (`session`), which puts the `image` of the engine into it (`inject`, `attach`, over `remote` and `ptrace`) and drains
//! the shared memory (`shared`, `drain`) into a [`Sink`] until the process is gone or is left again (`leave`). Processes that it makes
//! get sessions of their own (`follow`).
//!
//! Does not know what a trace is used for; is the only crate that calls ptrace.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags};
use trace::{DataMode, Exit, Recording, Summary, Writer};

use crate::command::Command;
use crate::follow::{ProcessTree, SpawnedProcess};
use crate::host::Calibration;
use crate::image::Image;
use crate::launch::LaunchedProcess;
use crate::session::{End, SessionOptions, StartError};
use crate::shared::Shared;
use crate::signals::Signals;

mod attach;
mod command;
mod detach;
mod drain;
mod error;
mod exec;
mod filter;
mod follow;
mod host;
mod image;
mod inject;
mod launch;
mod maps;
#[cfg(test)]
mod memory_sink;
mod ptrace;
mod remote;
mod segment_time;
mod select;
mod session;
mod setup;
mod shared;
mod signals;
mod sink;
mod split;
mod state;
mod syscall;
mod task;
mod thread_group;

#[doc(hidden)]
pub mod rings;

pub use attach::AttachError;
pub use command::find_program;
pub use drain::Counters;
pub use error::Error;
pub use inject::InjectError;
pub use select::Selection;
pub use session::Limits;
pub use sink::Sink;

/// What to record, and where to.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The program and its arguments, unless there is a `process`.
    pub command: Vec<OsString>,
    /// The number of a process that is running.
    pub process: Option<i32>,
    pub output: PathBuf,
    /// Let the target run without address space randomisation.
    pub no_aslr: bool,
    /// What to record beside control flow.
    pub data: DataMode,
    /// When to let the target go on without being recorded.
    pub limits: Limits,
    /// What of it is recorded.
    pub selection: Selection,
    /// Record the processes that it makes, too, each to a file of its own. Only by [`record`].
    pub follow: bool,
    /// Bytes that translated code and its tables may take in each process; [`CODE_CACHE_BYTES`] if nothing is said.
    pub code_cache: Option<u64>,
}

/// Bytes that translated code and its tables may take, if nothing else is said.
pub const CODE_CACHE_BYTES: u64 = 512 << 20;
/// The least that they can do with.
pub const CODE_CACHE_BYTES_MIN: u64 = wire::CODE_CACHE_MIN;

/// What came of a recording.
#[derive(Debug)]
pub struct Outcome {
    /// How the program ended, also if that was after the recording.
    pub exit: Exit,
    pub summary: Summary,
    pub report: CaptureReport,
}

/// What the recorder has seen besides the events.
#[derive(Debug, Clone)]
pub struct CaptureReport {
    /// Processor time that the recorder has used.
    pub cpu_time: Duration,
    pub counters: Counters,
    /// Sentences about what could not be recorded.
    pub warnings: Vec<String>,
}

/// What came of handing events to a [`Sink`].
#[derive(Debug)]
pub struct CaptureOutcome<E> {
    pub exit: Exit,
    pub report: CaptureReport,
    /// Why the sink stopped taking events, if it did; the target ran on natively from there.
    pub failure: Option<E>,
}

static ENGINE: LazyLock<Image> = LazyLock::new(|| {
    let file = include_bytes!(concat!(env!("OUT_DIR"), "/engine-image"));
    Image::parse(file).expect("the build has checked the image")
});

/// Runs a command, or takes over a process, and records it to a file.
pub fn record(options: &Options) -> Result<Outcome, Error> {
    let (calibration, cpu_time_before) = (Calibration::start(), host::cpu_time());
    let target = Target::open(options)?;
    let words = target.words(options);
    let tree = options.follow.then(|| Arc::new(ProcessTree::new(options, target.is_stopped())));
    if let Some(tree) = &tree {
        tree.add_process(target.process(), None, host::tsc(), words.clone());
    }
    let described = host::describe(words, target.process().cast_unsigned(), &calibration);
    let recording = Recording { data: options.data, options: options.selection.as_options(), ..described };
    let mut writer = Writer::create(&options.output, &recording).map_err(|error| {
        target.kill();
        Error::Create(error)
    })?;
    let part = trace::partial_path(&options.output);
    let outcome = target.record(&ENGINE, &mut writer, tree.as_ref());
    let CaptureOutcome { exit, mut report, failure } = outcome.inspect_err(|_| {
        // Nothing was recorded; a file of nothing is of no use.
        let _ = std::fs::remove_file(&part);
    })?;
    let written = match failure {
        Some(error) => Err(error),
        None => tree.as_ref().map_or(Ok(()), |tree| tree.tell(&mut writer)).and_then(|()| writer.finish(exit)),
    };
    report.warnings.extend(tree.iter().flat_map(|tree| tree.wait()));
    let cpu_time = host::cpu_time().saturating_sub(cpu_time_before);
    let exit = target.wait(exit);
    match written {
        Ok(summary) => Ok(Outcome { exit, summary, report: CaptureReport { cpu_time, ..report } }),
        Err(error) => Err(Error::Write { error, exit, partial: part }),
    }
}

/// Runs a command, or takes over a process, and hands its events to `sink` as they come; `options.output` is not used.
pub fn record_into<S: Sink>(options: &Options, sink: S) -> Result<CaptureOutcome<S::Error>, Error> {
    let target = Target::open(options)?;
    let outcome = target.record(&ENGINE, sink, None)?;
    Ok(CaptureOutcome { exit: target.wait(outcome.exit), ..outcome })
}

/// A process that is to be recorded.
struct Target {
    shared: Arc<Shared>,
    source: Source,
    signals: Signals,
    limits: Limits,
    selection: Selection,
    cpu_time_before: Duration,
}

enum Source {
    /// It was started and has not executed anything yet.
    Launched {
        launched: LaunchedProcess,
        path: PathBuf,
    },
    Running {
        process: i32,
        pidfd: OwnedFd,
    },
}

impl Target {
    fn open(options: &Options) -> Result<Self, Error> {
        match options.process {
            Some(process) => Self::find(options, process),
            None => Self::launch(options),
        }
    }

    fn launch(options: &Options) -> Result<Self, Error> {
        let cpu_time_before = host::cpu_time();
        let command = Command::find(&options.command)?;
        let shared = make_shared(options)?;
        let signals = Signals::install();
        let launched = launch::launch(&command, options.no_aslr, &signals)?;
        let source = Source::Launched { launched, path: command.path };
        Ok(Self {
            shared,
            source,
            signals,
            limits: options.limits,
            selection: options.selection.clone(),
            cpu_time_before,
        })
    }

    fn find(options: &Options, process: i32) -> Result<Self, Error> {
        let cpu_time_before = host::cpu_time();
        attach::check(process).map_err(Error::Attach)?;
        let pid = Pid::from_raw(process).ok_or(Error::Attach(AttachError::NoProcess(process)))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|_| Error::Attach(AttachError::NoProcess(process)))?;
        let shared = make_shared(options).map_err(|error| match error {
            Error::System { what, error } => {
                Error::Attach(AttachError::Inject(process, InjectError::System { what, error }))
            }
            other => other,
        })?;
        let signals = Signals::install_to_stop();
        let source = Source::Running { process, pidfd };
        Ok(Self {
            shared,
            source,
            signals,
            limits: options.limits,
            selection: options.selection.clone(),
            cpu_time_before,
        })
    }

    fn process(&self) -> i32 {
        match &self.source {
            Source::Launched { launched, .. } => launched.pid(),
            Source::Running { process, .. } => *process,
        }
    }

    /// The program and its arguments.
    fn words(&self, options: &Options) -> Vec<String> {
        match &self.source {
            Source::Launched { .. } => options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            Source::Running { process, .. } => task::command(*process),
        }
    }

    /// Ends a process that was started for nothing.
    fn kill(&self) {
        if let Source::Launched { launched, .. } = &self.source {
            launched.kill();
        }
    }

    /// What ends the recording before its target.
    fn is_stopped(&self) -> fn() -> bool {
        match self.source {
            Source::Launched { .. } => || false,
            Source::Running { .. } => Signals::is_stopped,
        }
    }

    fn record<S: Sink>(
        &self,
        engine: &Image,
        sink: S,
        tree: Option<&Arc<ProcessTree>>,
    ) -> Result<CaptureOutcome<S::Error>, Error> {
        let target = match &self.source {
            Source::Launched { launched, .. } => {
                session::Target::Launched { tracee: launched.tracee, pidfd: launched.pidfd.as_fd() }
            }
            Source::Running { process, pidfd } => session::Target::Running { process: *process, pidfd: pidfd.as_fd() },
        };
        let follow = tree.map(|tree| |spawned| tree.follow(spawned));
        let session_options = SessionOptions {
            image: engine,
            shared: &self.shared,
            selection: &self.selection,
            limits: self.limits,
            is_stopped: &self.is_stopped(),
            follow: follow.as_ref().map(|follow| follow as &dyn Fn(SpawnedProcess)),
        };
        let session = session::record(target, sink, session_options).map_err(|error| {
            self.kill();
            self.describe(error)
        })?;
        let exit = match session.end {
            End::Exit(exit) => as_exit(exit),
            End::Detached => Exit::Detached,
            End::Unknown => Exit::Unknown,
        };
        if exit != Exit::Detached {
            self.signals.forget_target();
        }
        let cpu_time = host::cpu_time().saturating_sub(self.cpu_time_before);
        let report = CaptureReport { cpu_time, counters: session.counters, warnings: session.warnings };
        Ok(CaptureOutcome { exit, report, failure: session.failure })
    }

    fn describe(&self, error: StartError) -> Error {
        match (error, &self.source) {
            (StartError::Attach(error), _) => Error::Attach(error),
            (StartError::Inject(error), Source::Launched { path, .. }) => Error::Inject { path: path.clone(), error },
            (StartError::Inject(error), Source::Running { process, .. }) => {
                Error::Attach(AttachError::Inject(*process, error))
            }
        }
    }

    /// If a program that we have started was left: waits for its end.
    fn wait(&self, exit: Exit) -> Exit {
        let Source::Launched { launched, .. } = &self.source else { return exit };
        if exit != Exit::Detached {
            return exit;
        }
        let exit = ptrace::wait_for_exit(launched.pid()).map_or(Exit::Unknown, as_exit);
        self.signals.forget_target();
        exit
    }
}

fn as_exit(exit: ptrace::Exit) -> Exit {
    match exit {
        ptrace::Exit::Code(code) => Exit::Code(code),
        ptrace::Exit::Signal(signal) => Exit::Signal(signal),
    }
}

fn make_shared(options: &Options) -> Result<Arc<Shared>, Error> {
    let shared = Shared::create().map_err(|error| Error::System { what: "making the shared memory", error })?;
    set_up(shared.control(), options);
    Ok(Arc::new(shared))
}

/// As [`make_shared`], for a process that is followed.
fn make_shared_to_follow(options: &Options) -> Result<Arc<Shared>, Error> {
    let shared = make_shared(options)?;
    inject_failure(shared.control(), "TRACKWAY_INJECT_FOLLOWED");
    Ok(shared)
}

/// Tells the engine what is wanted of it.
fn set_up(control: &wire::Control, options: &Options) {
    control.data.store(options.data.number(), Ordering::SeqCst);
    control.code_cache.store(options.code_cache.unwrap_or(CODE_CACHE_BYTES), Ordering::SeqCst);
    inject_failure(control, "TRACKWAY_INJECT");
}

/// For tests: `TRACKWAY_INJECT=FAILURE:N` makes one of the `wire::FAILURE_*` happen, N times later than it could, in every process that
/// is recorded; `TRACKWAY_INJECT_FOLLOWED` does so in those only that are followed.
fn inject_failure(control: &wire::Control, variable: &str) {
    let Ok(wanted) = std::env::var(variable) else { return };
    let numbers =
        wanted.split_once(':').and_then(|(failure, after)| Some((failure.parse().ok()?, after.parse().ok()?)));
    if let Some((failure, after)) = numbers {
        control.injected_after.store(after, Ordering::SeqCst);
        control.injected_failure.store(failure, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
