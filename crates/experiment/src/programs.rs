//! Programs of `workloads/parallel` that are measured, and the directory in which they run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use workloads::Variant;

use crate::Error;

/// The sizes with which a program executes about ten million instructions, and about a hundred
/// million.
const SIZES: &[(&str, [&str; 2])] = &[
    ("fft", ["7", "8"]),
    ("radix", ["100", "1000"]),
    ("cholesky", ["26", "58"]),
    ("radiosity", ["1", "4"]),
    ("raytrace", ["60", "190"]),
    ("lu-contiguous", ["9", "19"]),
    ("lu-noncontiguous", ["9", "19"]),
    ("ocean-contiguous", ["34", "110"]),
    ("ocean-noncontiguous", ["34", "170"]),
    ("water", ["4", "7"]),
    ("nbody", ["350", "1900"]),
    ("matmul", ["100", "226"]),
];

/// Programs of `workloads/parallel`, the numbers of threads to run them with, and how often.
#[derive(Clone, Debug)]
pub struct Runs {
    pub programs: Vec<String>,
    pub threads: Vec<u16>,
    /// The size that programs are called with, instead of the usual one of each.
    pub size: Option<u32>,
    /// The number of rounds.
    pub repeat: u16,
    /// The path of the `trackway` command.
    pub trackway: PathBuf,
}

impl Runs {
    /// Checks that all programs exist, and removes duplicates.
    pub(crate) fn checked(mut self) -> Result<Self, Error> {
        self.programs.iter().try_for_each(|program| sizes_of(program).map(drop))?;
        self.programs = without_duplicates(&self.programs);
        self.threads = without_duplicates(&self.threads);
        Ok(self)
    }

    /// Returns the size for a run of about ten million instructions.
    pub(crate) fn size_of(&self, program: &str) -> Result<String, Error> {
        sizes_of(program).map(|[usual, _]| self.given_size(usual))
    }

    /// Returns the size for a run of about a hundred million instructions.
    pub(crate) fn long_size_of(&self, program: &str) -> Result<String, Error> {
        long_size(program).map(|long| self.given_size(long))
    }

    fn given_size(&self, usual: &str) -> String {
        self.size.map_or(usual.to_owned(), |size| size.to_string())
    }
}

/// Returns the size with which a program executes about a hundred million instructions.
pub(crate) fn long_size(program: &str) -> Result<&'static str, Error> {
    sizes_of(program).map(|[_, long]| long)
}

/// Returns the names of all programs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SIZES.iter().map(|(name, _)| *name)
}

fn sizes_of(program: &str) -> Result<[&'static str; 2], Error> {
    let found = SIZES.iter().find(|(name, _)| *name == program);
    let known = || names().collect::<Vec<_>>().join(", ");
    found.map(|(_, sizes)| *sizes).ok_or_else(|| Error::UnknownProgram {
        kind: "program",
        name: program.to_owned(),
        known: known(),
    })
}

/// Returns each item once, in the order of the list.
pub(crate) fn without_duplicates<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut unique: Vec<T> = Vec::new();
    for item in list {
        if !unique.contains(item) {
            unique.push(item.clone());
        }
    }
    unique
}

/// Builds a program and returns its path.
pub(crate) fn build(program: &str) -> Result<PathBuf, Error> {
    workloads::build(program, Variant::Pie).map_err(|error| Error::Build(error.to_string()))
}

/// Runs a command and returns the seconds that it took.
pub(crate) fn timed(command: &mut Command) -> Result<f64, Error> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(start.elapsed().as_secs_f64()),
        Ok(status) => Err(Error::Status { command: format!("{command:?}"), status, message: String::new() }),
        Err(error) => Err(Error::CannotRun { command: format!("{command:?}"), error }),
    }
}

/// A temporary directory in which the `trackway` command runs.
pub(crate) struct Workspace<'w> {
    directory: TempDir,
    trackway: &'w Path,
}

impl<'w> Workspace<'w> {
    pub(crate) fn new(trackway: &'w Path) -> Result<Self, Error> {
        Ok(Self { directory: tempfile::tempdir().map_err(Error::TemporaryDirectory)?, trackway })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory().join(name).display().to_string()
    }

    /// Runs the command on a program that gets this environment and no other. Its messages appear
    /// only in an error.
    pub(crate) fn run_isolated(
        &self,
        arguments: &[&str],
        program: &[String],
        environment: &[(&str, &str)],
    ) -> Result<(), Error> {
        let mut command = self.command();
        command.args(arguments).args(program).env_clear().envs(environment.iter().copied());
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let output = output.map_err(|error| Error::CannotRun { command: format!("{command:?}"), error })?;
        if output.status.success() {
            return Ok(());
        }
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        Err(Error::Status { command: program.join(" "), status: output.status, message: format!(": {last}") })
    }

    /// Runs a program by itself in this directory, with this environment and no other, and returns
    /// the seconds that it took.
    pub(crate) fn time_natively(&self, program: &[String], environment: &[(&str, &str)]) -> Result<f64, Error> {
        let mut command = Command::new(program.first().map_or("", String::as_str));
        command.args(program.iter().skip(1)).current_dir(self.directory());
        timed(command.env_clear().envs(environment.iter().copied()).stderr(Stdio::null()))
    }

    /// Runs the command and returns the seconds that it took.
    pub(crate) fn time(&self, arguments: &[&str], program: &[&str]) -> Result<f64, Error> {
        timed(self.command().args(arguments).args(program))
    }

    /// Returns the command, to be run in this directory.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.trackway);
        command.current_dir(self.directory());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_sizes() {
        assert_eq!(sizes_of("fft").unwrap(), ["7", "8"]);
        let error = sizes_of("fff").unwrap_err();
        assert_eq!(error.to_string(), "there is no program called fff");
        assert!(error.hint().unwrap().starts_with("there are fft, radix,"), "{error:?}");
        for (name, _) in SIZES {
            assert!(workloads::find(name).is_some(), "{name}");
        }
    }
}
