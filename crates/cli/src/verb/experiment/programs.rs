//! Programs that are measured, and where that is done.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use workloads::Variant;

use crate::failure::Failure;

/// Sizes with which a program executes about ten million instructions, and about a hundred million.
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

/// What a program is called with.
pub fn size_of(program: &str) -> Result<&'static str, Failure> {
    sizes_of(program).map(|[usual, _]| usual)
}

/// What it is called with if it is to run for longer.
pub fn long_size_of(program: &str) -> Result<&'static str, Failure> {
    sizes_of(program).map(|[_, long]| long)
}

fn sizes_of(program: &str) -> Result<[&'static str; 2], Failure> {
    let found = SIZES.iter().find(|(name, _)| *name == program);
    let names = || SIZES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(_, sizes)| *sizes).ok_or_else(|| {
        Failure::new(format!("there is no program called {program}")).hint(format!("there are {}", names()))
    })
}

/// Each only once.
pub fn once<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    list.iter().for_each(|item| {
        if !kept.contains(item) {
            kept.push(item.clone())
        }
    });
    kept
}

/// Builds a program.
pub fn build(program: &str) -> Result<PathBuf, Failure> {
    workloads::build(program, Variant::Pie).map_err(|error| Failure::new(error.to_string()))
}

/// Runs a command and gives the seconds that it took.
pub fn timed(command: &mut Command) -> Result<f64, Failure> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(start.elapsed().as_secs_f64()),
        Ok(status) => Err(Failure::new(format!("{command:?} ended with {status}"))),
        Err(error) => Err(Failure::new(format!("cannot run {command:?}: {error}"))),
    }
}

/// Where temporary files are.
pub struct Place {
    directory: TempDir,
}

impl Place {
    pub fn new() -> Result<Self, Failure> {
        let directory =
            tempfile::tempdir().map_err(|error| Failure::new(format!("no temporary directory: {error}")))?;
        Ok(Self { directory })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: &str) -> String {
        self.directory().join(name).display().to_string()
    }

    /// Runs ourselves on a program that finds this environment and nothing else. What it says is told only if it fails.
    pub fn trackway_alone(
        &self,
        words: &[&str],
        command: &[String],
        environment: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let mut own = self.own()?;
        own.args(words).args(command).env_clear().envs(environment.iter().copied());
        let output = own.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let output = output.map_err(|error| Failure::new(format!("cannot run {own:?}: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        Err(Failure::new(format!("{} ended with {}: {said}", command.join(" "), output.status)))
    }

    /// Runs ourselves.
    pub fn trackway(&self, words: &[&str], command: &[&str]) -> Result<f64, Failure> {
        timed(self.own()?.args(words).args(command))
    }

    /// The command to run ourselves here.
    pub fn own(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::new(format!("we cannot be found: {error}")))?;
        let mut own = Command::new(program);
        own.current_dir(self.directory());
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_sizes() {
        assert_eq!((size_of("fft").unwrap(), long_size_of("fft").unwrap()), ("7", "8"));
        let failure = size_of("fff").unwrap_err().to_string();
        assert!(failure.contains("no program called fff (there are fft, radix,"), "{failure}");
        for (name, _) in SIZES {
            assert!(workloads::find(name).is_some(), "{name}");
        }
    }
}
