//! Why a process was not captured: one sentence, a hint where the user can do something about it,
//! and the exit status that a shell would give.

use std::io;
use std::path::PathBuf;

use crate::attach::AttachError;
use crate::inject::InjectError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no command was given")]
    NoCommand,
    #[error("an argument of the command has a zero byte in it")]
    ZeroByte,
    #[error("{name}: command not found")]
    NotFound { name: String },
    #[error("{path}: {}", reason(error))]
    NotAccessible { path: PathBuf, error: io::Error },
    #[error("{path} is a directory, not a program")]
    Directory { path: PathBuf },
    #[error("{path} is not a program (neither a file nor a link to one)")]
    NotAFile { path: PathBuf },
    #[error("{path} may not be executed (no permission)")]
    NotExecutable { path: PathBuf },
    #[error("{path} may be executed but not read, and what cannot be read cannot be traced")]
    NotReadable { path: PathBuf },
    #[error("{path} is a 32-bit program, and only x86-64 programs can be traced")]
    Not64Bit { path: PathBuf },
    #[error(
        "{path} is a program for another processor (ELF machine {machine}), and only x86-64 programs can be traced"
    )]
    ForeignMachine { path: PathBuf, machine: u16 },
    #[error("{path} is not a program: {reason}")]
    NotAProgram { path: PathBuf, reason: &'static str },
    #[error("{path} needs the interpreter {interpreter}, which does not exist")]
    MissingInterpreter { path: PathBuf, interpreter: PathBuf },
    #[error("{path} needs the interpreter {interpreter}, which cannot be executed: {error}")]
    BadInterpreter { path: PathBuf, interpreter: PathBuf, error: Box<Error> },
    #[error("{path} would run with other privileges than yours, and the system does not let you trace that")]
    Privileged { path: PathBuf },
    #[error("{path} could not be executed: {}", reason(error))]
    Exec { path: PathBuf, error: io::Error },
    #[error("{what} failed: {}", reason(error))]
    System { what: &'static str, error: io::Error },
    #[error("no permission to trace {path}: {}", reason(error))]
    NoPermission { path: PathBuf, error: io::Error },
    #[error("{path} could not be traced: {error}")]
    Inject { path: PathBuf, error: InjectError },
    #[error("{0}")]
    Attach(AttachError),
}

impl Error {
    /// Returns the exit status for a program that only captures: 127 if there is no such command,
    /// 126 if it cannot be executed or traced.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound { .. } | Self::MissingInterpreter { .. } => 127,
            Self::NotAccessible { error, .. } | Self::Exec { error, .. } => {
                if error.kind() == io::ErrorKind::NotFound {
                    127
                } else {
                    126
                }
            }
            Self::Directory { .. }
            | Self::NotAFile { .. }
            | Self::NotExecutable { .. }
            | Self::NotReadable { .. }
            | Self::Not64Bit { .. }
            | Self::ForeignMachine { .. }
            | Self::NotAProgram { .. }
            | Self::BadInterpreter { .. }
            | Self::Privileged { .. }
            | Self::System { .. }
            | Self::NoPermission { .. }
            | Self::Inject { .. } => 126,
            _ => 1,
        }
    }

    /// Returns what the user could do about the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoCommand => "put the command after `--`, as in `trackway record -- ls -l`".into(),
            Self::NotFound { .. } => "check the spelling, or give a path with a slash in it".into(),
            Self::NotExecutable { path } => format!("`chmod +x {}` would make it a program", path.display()),
            Self::NotReadable { .. } => "ask its owner for the permission to read it".into(),
            Self::Not64Bit { .. } | Self::ForeignMachine { .. } => "build it for x86-64".into(),
            Self::MissingInterpreter { .. } => {
                "install what provides the interpreter, or correct the first line of a script".into()
            }
            Self::Privileged { .. } => "run the recorder as root, or use a copy of the program without the bit".into(),
            Self::NoPermission { .. } => {
                "ptrace may be forbidden here: see /proc/sys/kernel/yama/ptrace_scope, or the settings of the container"
                    .into()
            }
            Self::Inject { error: InjectError::System { error, .. }, .. }
                if error.raw_os_error() == Some(libc::ENOMEM) =>
            {
                "the address space of the target may be limited: see `ulimit -v`".into()
            }
            Self::System { error, .. } if error.raw_os_error() == Some(libc::ENOMEM) => {
                "the address space of the recorder may be limited: see `ulimit -v`".into()
            }
            Self::Inject { error: InjectError::System { error, .. }, .. }
                if error.raw_os_error() == Some(libc::EFBIG) =>
            {
                "to the system, shared memory is a file, and the size of files is limited: see `ulimit -f`".into()
            }
            Self::Attach(error) => return error.hint(),
            _ => return None,
        };
        Some(hint)
    }
}

/// Returns the system's message for an error, fit for the middle of a sentence and without its
/// number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}
