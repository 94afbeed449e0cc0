//! The error of a verb: one sentence, a hint if the user can do something about it, and the exit
//! status.

use std::fmt;
use std::path::Path;

/// The exit status of a verb that could not do its work, or found something wrong.
pub const FAILED: u8 = 1;

/// A failure that is printed on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub sentence: String,
    pub hint: Option<String>,
    pub status: u8,
}

impl Failure {
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: without_numbers(&sentence.into()), hint: None, status: FAILED }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// A file that cannot be written; its place can be chosen with `-o`.
    pub fn writing(path: &Path, error: &std::io::Error) -> Self {
        let failure = Self::new(format!("cannot write {}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::NotFound => failure.hint("the directory it should be in does not exist"),
            std::io::ErrorKind::StorageFull => failure.hint("make room, or choose another directory with -o"),
            _ => failure,
        }
    }

    /// Standard output, a device or a pipe that cannot be written. Not every verb has `-o`.
    pub fn writing_directly(path: &Path, error: &std::io::Error) -> Self {
        let failure = Self::writing(path, error);
        match error.kind() {
            std::io::ErrorKind::StorageFull => failure.hint("make room, or write to another place"),
            _ => failure,
        }
    }
}

/// Removes the error numbers that Rust adds to the messages of the system.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        words.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim_start_matches(')'));
    }
    words
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trackway: {}", self.sentence)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl From<trace::ReadError> for Failure {
    fn from(error: trace::ReadError) -> Self {
        use trace::ReadError as E;
        let failure = Self::new(error.to_string());
        match error {
            E::NotATrace { .. } => failure.hint("traces are made by `trackway record`"),
            E::Version { .. } => failure.hint("use the version of trackway that recorded it"),
            E::NoData => failure.hint("record with --data addresses or --data values to have them"),
            E::NoThread { .. } => failure.hint("`trackway info` lists the threads"),
            E::Chunk { .. } | E::Missing { .. } => failure.hint("`trackway verify` lists the damage"),
            _ => failure,
        }
    }
}

impl From<recording::Error> for Failure {
    fn from(error: recording::Error) -> Self {
        Self { hint: error.hint(), status: error.exit_status(), ..Self::new(error.to_string()) }
    }
}

impl From<capture::Error> for Failure {
    fn from(error: capture::Error) -> Self {
        Self { hint: error.hint(), status: error.exit_status(), ..Self::new(error.to_string()) }
    }
}

impl From<experiment::Error> for Failure {
    fn from(error: experiment::Error) -> Self {
        match error {
            experiment::Error::Read(error) => error.into(),
            experiment::Error::Write { path, error } => Self::writing(&path, &error),
            error => Self { hint: error.hint(), ..Self::new(error.to_string()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentence_with_a_hint() {
        let failure = Failure::new("it rains").hint("take an umbrella");
        assert_eq!(failure.to_string(), "trackway: it rains (take an umbrella)");
        assert_eq!(Failure::new("it rains").to_string(), "trackway: it rains");
    }

    #[test]
    fn error_numbers_are_removed() {
        assert_eq!(without_numbers("a: b (os error 2), c (os error 33)."), "a: b, c.");
        let error = std::io::Error::from_raw_os_error(28);
        assert_eq!(
            Failure::writing(Path::new("/a"), &error).to_string(),
            "trackway: cannot write /a: No space left on device (make room, or choose another directory with -o)"
        );
        assert_eq!(
            Failure::writing_directly(Path::new("standard output"), &error).to_string(),
            "trackway: cannot write standard output: No space left on device (make room, or write to another place)"
        );
    }
}
