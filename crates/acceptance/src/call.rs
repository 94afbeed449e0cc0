//! One call of a program, to be run natively and recorded in the same environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use trace::Trace;
use workloads::Exit;

use crate::process::{LIMIT, ProcessOutput, RunningProcess};
use crate::trackway;

/// What is recorded beside control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    None,
    Addresses,
    Values,
}

/// The modes in which [`Call::check`] records, one recording each.
pub const MODES: &[Data] = &[Data::None, Data::Addresses, Data::Values];

impl Data {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Addresses => "addresses",
            Self::Values => "values",
        }
    }
}

/// A program, its arguments and its environment.
#[derive(Clone, Debug)]
pub struct Call {
    program: OsString,
    arguments: Vec<OsString>,
    directory: Option<PathBuf>,
    environment: Option<Vec<(OsString, OsString)>>,
    input: Vec<u8>,
    fixed_addresses: bool,
    data: Data,
    options: Vec<OsString>,
}

impl Call {
    /// Makes a call without arguments. A name without a slash is looked up, as shells do.
    #[must_use]
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            directory: None,
            environment: None,
            input: Vec::new(),
            fixed_addresses: false,
            data: Data::None,
            options: Vec::new(),
        }
    }

    #[must_use]
    pub fn arg(self, argument: impl AsRef<OsStr>) -> Self {
        self.args([argument])
    }

    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Sets exactly these variables instead of the test's own.
    #[must_use]
    pub fn environment(mut self, variables: &[(&str, &str)]) -> Self {
        self.environment = Some(variables.iter().map(|&(name, value)| (name.into(), value.into())).collect());
        self
    }

    /// Makes standard input a file with this content.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Records without address space randomisation.
    #[must_use]
    pub fn fixed_addresses(mut self) -> Self {
        self.fixed_addresses = true;
        self
    }

    /// Records this data.
    #[must_use]
    pub fn data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// Records with these options.
    #[must_use]
    pub fn options(mut self, options: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.options.extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    /// Returns the command that runs it natively.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        self.surround(&mut command);
        command
    }

    /// Returns the command that records it to `output`.
    #[must_use]
    pub fn record_command(&self, output: &Path) -> Command {
        let mut command = Command::new(trackway());
        command.arg("record").arg("-o").arg(output);
        if self.fixed_addresses {
            command.arg("--no-aslr");
        }
        if self.data != Data::None {
            command.arg("--data").arg(self.data.name());
        }
        command.args(&self.options).arg("--").arg(&self.program).args(&self.arguments);
        self.surround(&mut command);
        command
    }

    fn surround(&self, command: &mut Command) {
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        if let Some(environment) = &self.environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
    }

    /// Runs it natively.
    ///
    /// # Panics
    ///
    /// If it cannot be started or hangs.
    #[must_use]
    pub fn natively(&self) -> ProcessOutput {
        RunningProcess::start(&mut self.command(), &self.input).wait(LIMIT)
    }

    /// Records it and verifies the trace.
    ///
    /// # Panics
    ///
    /// If it cannot be recorded, hangs, or if the trace is not sound, not complete or reports
    /// another exit.
    #[must_use]
    pub fn recorded(&self) -> RecordedCall {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("test.trk");
        let mut command = self.record_command(&path);
        let finished = RunningProcess::start(&mut command, &self.input).wait(LIMIT);
        assert!(path.exists(), "{command:?} left no trace: {finished:?}");
        let trace = open_sound(&path);
        assert!(trace.is_finished(), "{command:?}: the trace was not finished");
        let exit = exit_of(&trace);
        assert_eq!(
            finished.exit,
            Exit::Status(shell_status(exit)),
            "{command:?}: the target's end ({exit}) was not passed on: {}",
            finished.stderr_text()
        );
        RecordedCall { finished: ProcessOutput { exit, ..finished }, trace, path, directory }
    }

    /// As [`Self::recorded`], for a recording that may end before the target exits. The command's
    /// status says how the target ended.
    ///
    /// # Panics
    ///
    /// As [`Self::recorded`].
    #[must_use]
    pub fn recorded_until_detach(&self) -> RecordedCall {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("test.trk");
        let mut command = self.record_command(&path);
        let finished = RunningProcess::start(&mut command, &self.input).wait(LIMIT);
        assert!(path.exists(), "{command:?} left no trace: {finished:?}");
        let trace = open_sound(&path);
        assert!(trace.is_finished(), "{command:?}: the trace was not finished");
        if trace.exit() != trace::Exit::Detached {
            assert_eq!(finished.exit, Exit::Status(shell_status(exit_of(&trace))), "{command:?}");
        }
        RecordedCall { finished, trace, path, directory }
    }

    /// Runs it natively and records it in every mode; output and status have to be equal. Returns
    /// the first recording.
    ///
    /// # Panics
    ///
    /// If they do not, or as [`Self::recorded`].
    pub fn check(&self) -> RecordedCall {
        self.check_against(&self.natively())
    }

    /// Records it in every mode; output and status have to equal `expected`. Returns the first
    /// recording.
    ///
    /// # Panics
    ///
    /// If they are not, or as [`Self::recorded`].
    pub fn check_against(&self, expected: &ProcessOutput) -> RecordedCall {
        let mut recordings = self.in_every_mode().map(|call| {
            let recorded = call.recorded();
            recorded.assert_finished_as(expected);
            recorded
        });
        let first = recordings.next().expect("there are modes");
        recordings.for_each(drop);
        first
    }

    /// Returns the call once for every mode.
    pub fn in_every_mode(&self) -> impl Iterator<Item = Self> {
        MODES.iter().map(|&data| self.clone().data(data))
    }
}

/// The result of recording a call. [`ProcessOutput::exit`] is how the target ended, as the trace
/// says.
#[derive(Debug)]
pub struct RecordedCall {
    pub finished: ProcessOutput,
    pub trace: Trace,
    pub path: PathBuf,
    /// The directory of the trace, which is removed when this is dropped.
    pub directory: TempDir,
}

impl RecordedCall {
    /// # Panics
    ///
    /// If output or status are not as `expected`.
    pub fn assert_finished_as(&self, expected: &ProcessOutput) {
        let command = self.trace.recording().command.join(" ");
        let same = self.finished == *expected;
        assert!(same, "{command}:\nexpected {}\nrecorded {}", shown(expected), shown(&self.finished));
    }
}

fn shown(finished: &ProcessOutput) -> String {
    let ProcessOutput { exit, stdout, stderr } = finished;
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let head: String = text.chars().take(2000).collect();
        format!("{} bytes: {head}", bytes.len())
    };
    format!("exit {exit}\n--- stdout, {}\n--- stderr, {}", text(stdout), text(stderr))
}

/// Opens a trace that has to be sound.
///
/// # Panics
///
/// If it cannot be opened or is not sound.
#[must_use]
pub fn open_sound(path: &Path) -> Trace {
    open_without(path, |_| true)
}

/// Opens the partial trace of a recorder that was killed: it has to be sound, but not finished.
///
/// # Panics
///
/// If it cannot be opened, is not sound, or is finished.
#[must_use]
pub fn open_part(path: &Path) -> Trace {
    let trace = open_without(path, |problem| !problem.ends_with("the recording was not finished"));
    assert!(!trace.is_finished(), "{} is finished", path.display());
    trace
}

/// Opens a trace that must not have problems of this kind.
fn open_without(path: &Path, is_wrong: impl Fn(&str) -> bool) -> Trace {
    let trace = Trace::open(path).unwrap_or_else(|error| panic!("{error}"));
    let problems: Vec<String> = trace.verify().problems.into_iter().filter(|problem| is_wrong(problem)).collect();
    let command = trace.recording().command.join(" ");
    let listed = problems.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(problems.is_empty(), "the trace of {command} has {} problems:\n{listed}", problems.len());
    trace
}

/// Returns how the target of a trace ended.
///
/// # Panics
///
/// If the trace does not say.
#[must_use]
pub fn exit_of(trace: &Trace) -> Exit {
    match trace.exit() {
        trace::Exit::Code(code) => Exit::Status(code),
        trace::Exit::Signal(signal) => Exit::Signal(signal),
        trace::Exit::Detached => panic!("the target was left while it was running"),
        trace::Exit::Unknown => panic!("the trace does not say how the target ended"),
    }
}

/// Returns the status that shells report for an exit.
#[must_use]
pub fn shell_status(exit: Exit) -> i32 {
    match exit {
        Exit::Status(status) => status,
        Exit::Signal(signal) => 128 + signal,
    }
}
