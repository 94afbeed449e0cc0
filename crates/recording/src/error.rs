//! Why there is no complete recording: one sentence, a hint, and the exit status of the command.

use std::path::PathBuf;

use trace::{Exit, WriteError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Capture(#[from] capture::Error),
    #[error("the output could not be created: {0}")]
    Create(#[source] WriteError),
    #[error("the recording is incomplete: {error}")]
    Write {
        error: WriteError,
        /// How the target ended, which ran on natively.
        exit: Exit,
        /// The file with what was written before the error.
        partial: PathBuf,
    },
}

impl Error {
    /// Returns the exit status for a command that only records.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Capture(error) => error.exit_status(),
            Self::Create(_) | Self::Write { .. } => 1,
        }
    }

    /// Returns what the user could do about the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Capture(error) => error.hint(),
            Self::Create(_) => None,
            Self::Write { partial, .. } => {
                Some(format!("what was recorded before is in {} and can be read", partial.display()))
            }
        }
    }
}
