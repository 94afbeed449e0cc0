//! Captures the execution of a process: launches it or attaches to a running one, injects the
//! engine, and drains the rings that the engine fills into a [`Sink`].
//!
//! Who calls whom: a [`Target`] finds the program (`command`) and starts it (`launch`), or opens a
//! running process. [`Target::capture`] runs a `session`. The session injects the engine's `image`
//! (`inject` and `attach`, over `remote` and `ptrace`) and drains the shared memory (`shared`,
//! `drain`) until the process exits or the recorder detaches from it (`detach`). A [`ProcessTree`]
//! (`follow`) runs a session for each child process, with sinks from a [`SinkFactory`].
//!
//! Knows neither trace files nor what an execution is captured for. No other crate calls ptrace on
//! a target.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags};
use trace::{DataMode, Exit, Recording};

use crate::command::Command;
use crate::follow::SpawnedProcess;
use crate::host::Calibration;
use crate::image::Image;
use crate::launch::LaunchedProcess;
use crate::session::{SessionEnd, SessionOptions, StartError};
use crate::shared::Shared;
use crate::signals::SignalSettings;

mod attach;
mod call_stack;
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
mod older_calls;
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
pub use follow::{ProcessTree, SinkFactory};
pub use inject::InjectError;
pub use select::{Selection, UnknownRoutines};
pub use session::Limits;
pub use sink::Sink;

/// What to capture.
#[derive(Debug, Clone, Default)]
pub struct CaptureOptions {
    /// The program and its arguments. Not used if there is a `process`.
    pub command: Vec<OsString>,
    /// The number of a running process to attach to.
    pub process: Option<i32>,
    /// Whether to run the program without address space randomisation.
    pub no_aslr: bool,
    /// What to record beside control flow.
    pub data: DataMode,
    /// When to detach from the target before it exits.
    pub limits: Limits,
    /// Which part of the execution to record.
    pub selection: Selection,
    /// Bytes that the code cache and its tables may take in each process. `None`:
    /// [`CODE_CACHE_BYTES`].
    pub code_cache: Option<u64>,
}

/// Default for [`CaptureOptions::code_cache`].
pub const CODE_CACHE_BYTES: u64 = 512 << 20;
/// Smallest value for [`CaptureOptions::code_cache`].
pub const CODE_CACHE_BYTES_MIN: u64 = wire::CODE_CACHE_MIN;

/// The recorder's account of one captured process, beside the events.
#[derive(Debug, Clone)]
pub struct CaptureReport {
    /// Processor time that the recorder has used.
    pub cpu_time: Duration,
    pub counters: Counters,
    /// Sentences about what could not be recorded.
    pub warnings: Vec<String>,
}

/// The result of capturing a process into a [`Sink`].
#[derive(Debug)]
pub struct CaptureOutcome<E> {
    pub exit: Exit,
    pub report: CaptureReport,
    /// The error with which the sink stopped taking events. The target ran on natively from there.
    pub failure: Option<E>,
}

static ENGINE: LazyLock<Image> = LazyLock::new(|| {
    let file = include_bytes!(concat!(env!("OUT_DIR"), "/engine-image"));
    Image::parse(file).expect("the build has checked the image")
});

/// Runs a command, or attaches to a process, and hands its events to `sink` as they arrive. Waits
/// until a command has exited, even after detaching from it.
///
/// # Errors
/// If nothing could be captured. An error of the sink is in [`CaptureOutcome::failure`].
pub fn capture<S: Sink>(options: &CaptureOptions, sink: S) -> Result<CaptureOutcome<S::Error>, Error> {
    let target = Target::open(options)?;
    let outcome = target.capture(sink)?;
    Ok(CaptureOutcome { exit: target.wait(outcome.exit), ..outcome })
}

/// A process that is ready to be captured.
pub struct Target {
    options: CaptureOptions,
    shared: Arc<Shared>,
    source: TargetSource,
    signals: SignalSettings,
    calibration: Calibration,
    cpu_time_before: Duration,
}

enum TargetSource {
    /// The recorder has started the process; it has not executed anything yet.
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
    /// Starts the command, stopped before its first instruction, or finds the running process.
    ///
    /// # Errors
    /// If the command cannot be started or traced, or the process cannot be attached to.
    pub fn open(options: &CaptureOptions) -> Result<Self, Error> {
        let (calibration, cpu_time_before) = (Calibration::start(), host::cpu_time());
        let (shared, signals, source) = match options.process {
            Some(process) => find(options, process)?,
            None => launch(options)?,
        };
        Ok(Self { options: options.clone(), shared, source, signals, calibration, cpu_time_before })
    }

    /// The number of the process.
    #[must_use]
    pub fn process(&self) -> i32 {
        match &self.source {
            TargetSource::Launched { launched, .. } => launched.pid(),
            TargetSource::Running { process, .. } => *process,
        }
    }

    /// The program and its arguments.
    fn command(&self) -> Vec<String> {
        match &self.source {
            TargetSource::Launched { .. } => {
                self.options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
            }
            TargetSource::Running { process, .. } => task::command(*process),
        }
    }

    /// Describes the recording that is about to begin.
    #[must_use]
    pub fn recording(&self) -> Recording {
        describe_recording(&self.options, self.command(), self.process(), &self.calibration)
    }

    /// Processor time that this process has used since the target was opened.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        host::cpu_time().saturating_sub(self.cpu_time_before)
    }

    /// Kills a process that the recorder has started.
    pub fn kill(&self) {
        if let TargetSource::Launched { launched, .. } = &self.source {
            launched.kill();
        }
    }

    /// Returns the function that says whether the user has ended the recording.
    fn is_stopped(&self) -> fn() -> bool {
        match self.source {
            TargetSource::Launched { .. } => || false,
            TargetSource::Running { .. } => SignalSettings::is_stopped,
        }
    }

    /// Captures the process into `sink`, until it exits or the recorder detaches from it.
    ///
    /// # Errors
    /// If nothing could be captured. The process is killed then if the recorder has started it.
    pub fn capture<S: Sink>(&self, sink: S) -> Result<CaptureOutcome<S::Error>, Error> {
        self.run_session(&ENGINE, sink, None)
    }

    /// As [`Self::capture`]; in addition, `tree` captures the child processes.
    ///
    /// # Errors
    /// As [`Self::capture`].
    pub fn capture_tree<S: Sink, F: SinkFactory>(
        &self,
        sink: S,
        tree: &Arc<ProcessTree<F>>,
    ) -> Result<CaptureOutcome<S::Error>, Error> {
        self.run_session(&ENGINE, sink, Some(&|spawned| tree.follow(spawned)))
    }

    fn run_session<S: Sink>(
        &self,
        engine: &Image,
        sink: S,
        follow: Option<&dyn Fn(SpawnedProcess)>,
    ) -> Result<CaptureOutcome<S::Error>, Error> {
        let target = match &self.source {
            TargetSource::Launched { launched, .. } => {
                session::SessionTarget::Launched { tracee: launched.tracee, pidfd: launched.pidfd.as_fd() }
            }
            TargetSource::Running { process, pidfd } => {
                session::SessionTarget::Running { process: *process, pidfd: pidfd.as_fd() }
            }
        };
        let session_options = SessionOptions {
            image: engine,
            shared: &self.shared,
            selection: &self.options.selection,
            limits: self.options.limits,
            is_stopped: &self.is_stopped(),
            follow,
        };
        let session = session::record(target, sink, session_options).map_err(|error| {
            self.kill();
            self.start_error(error)
        })?;
        let exit = session.end.into();
        if exit != Exit::Detached {
            self.signals.forget_target();
        }
        let report =
            CaptureReport { cpu_time: self.cpu_time(), counters: session.counters, warnings: session.warnings };
        Ok(CaptureOutcome { exit, report, failure: session.failure })
    }

    fn start_error(&self, error: StartError) -> Error {
        match (error, &self.source) {
            (StartError::Attach(error), _) => Error::Attach(error),
            (StartError::Inject(error), TargetSource::Launched { path, .. }) => {
                Error::Inject { path: path.clone(), error }
            }
            (StartError::Inject(error), TargetSource::Running { process, .. }) => {
                Error::Attach(AttachError::Inject(*process, error))
            }
        }
    }

    /// Returns how the program ended. If the recorder has started it and detached from it, waits
    /// for its end.
    #[must_use]
    pub fn wait(&self, exit: Exit) -> Exit {
        let TargetSource::Launched { launched, .. } = &self.source else { return exit };
        if exit != Exit::Detached {
            return exit;
        }
        let exit = ptrace::wait_for_exit(launched.pid()).map_or(Exit::Unknown, Exit::from);
        self.signals.forget_target();
        exit
    }
}

type OpenedTarget = (Arc<Shared>, SignalSettings, TargetSource);

fn launch(options: &CaptureOptions) -> Result<OpenedTarget, Error> {
    let command = Command::find(&options.command)?;
    let shared = make_shared(options)?;
    let signals = SignalSettings::install();
    let launched = launch::launch(&command, options.no_aslr, &signals)?;
    Ok((shared, signals, TargetSource::Launched { launched, path: command.path }))
}

fn find(options: &CaptureOptions, process: i32) -> Result<OpenedTarget, Error> {
    attach::check(process).map_err(Error::Attach)?;
    if let Some(routines) = UnknownRoutines::in_process(&options.selection, process) {
        return Err(Error::Attach(AttachError::UnknownRoutines(process, routines)));
    }
    let pid = Pid::from_raw(process).ok_or(Error::Attach(AttachError::NoProcess(process)))?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|_| Error::Attach(AttachError::NoProcess(process)))?;
    let shared = make_shared(options).map_err(|error| match error {
        Error::System { what, error } => {
            Error::Attach(AttachError::Inject(process, InjectError::System { what, error }))
        }
        other => other,
    })?;
    let signals = SignalSettings::install_to_stop();
    Ok((shared, signals, TargetSource::Running { process, pidfd }))
}

fn describe_recording(
    options: &CaptureOptions,
    command: Vec<String>,
    process: i32,
    calibration: &Calibration,
) -> Recording {
    let described = host::describe(command, process.cast_unsigned(), calibration);
    Recording { data: options.data, options: options.selection.as_options(), ..described }
}

impl From<ptrace::Exit> for Exit {
    fn from(exit: ptrace::Exit) -> Self {
        match exit {
            ptrace::Exit::Code(code) => Self::Code(code),
            ptrace::Exit::Signal(signal) => Self::Signal(signal),
        }
    }
}

impl From<SessionEnd> for Exit {
    fn from(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Exit(exit) => exit.into(),
            SessionEnd::Detached => Self::Detached,
            SessionEnd::Unknown => Self::Unknown,
        }
    }
}

fn make_shared(options: &CaptureOptions) -> Result<Arc<Shared>, Error> {
    let shared = Shared::create().map_err(|error| Error::System { what: "making the shared memory", error })?;
    set_up(shared.control(), options);
    Ok(Arc::new(shared))
}

/// As [`make_shared`], for a child process.
fn make_shared_for_child(options: &CaptureOptions) -> Result<Arc<Shared>, Error> {
    let shared = make_shared(options)?;
    inject_failure(shared.control(), "TRACKWAY_INJECT_FOLLOWED");
    Ok(shared)
}

/// Writes the options of the engine to the control page.
fn set_up(control: &wire::Control, options: &CaptureOptions) {
    control.data.store(options.data.number(), Ordering::SeqCst);
    control.code_cache.store(options.code_cache.unwrap_or(CODE_CACHE_BYTES), Ordering::SeqCst);
    inject_failure(control, "TRACKWAY_INJECT");
}

/// For tests: `TRACKWAY_INJECT=FAILURE:N` makes one of the `wire::FAILURE_*` happen in every
/// recorded process, at the Nth opportunity. `TRACKWAY_INJECT_FOLLOWED` does so in child processes
/// only.
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
