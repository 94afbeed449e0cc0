//! Errors of experiments.

use std::io;
use std::path::PathBuf;

use trace::ReadError;

/// A failure of an experiment. [`Error::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("no temporary directory: {0}")]
    TemporaryDirectory(io::Error),
    #[error("there is no {kind} called {name}")]
    UnknownProgram { kind: &'static str, name: String, known: String },
    #[error("{program} is not installed")]
    NotInstalled { program: &'static str, package: &'static str },
    #[error("none of the programs is installed")]
    NoneInstalled { packages: String },
    #[error("{0}")]
    Build(String),
    #[error("cannot run {command}: {error}")]
    CannotRun { command: String, error: io::Error },
    /// A program ended with another status than 0; `message` is a colon and the last line that it
    /// printed.
    #[error("{command} ended with {status}{message}")]
    Status { command: String, status: std::process::ExitStatus, message: String },
    #[error("cannot read {file} of a tool: {problem}")]
    ToolOutput { file: String, problem: String },
    #[error("{} ends early (the recorder was killed or the file was cut)", .0.display())]
    Unfinished(PathBuf),
    #[error("{}: {error}", path.display())]
    Damaged { path: PathBuf, error: ReadError },
    #[error("{0} executes nothing there")]
    Empty(String),
    #[error("{0} makes no memory accesses")]
    NoAccesses(String),
    /// Techniques, sizes or cores that cannot be combined.
    #[error("{0}")]
    Settings(String),
}

impl Error {
    /// Returns what can be done about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownProgram { known, .. } => Some(format!("there are {known}")),
            Self::NotInstalled { package, .. } => Some(format!("it is in the package {package}")),
            Self::NoneInstalled { packages } => Some(format!("install {packages}")),
            Self::Empty(_) => Some("a smaller --start".to_owned()),
            _ => None,
        }
    }
}
