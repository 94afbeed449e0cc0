//! Builds small programs whose source is in the tests, in any language.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{process, tool};
use workloads::Exit;

/// Writes `text` to `directory/name` and returns that path.
///
/// # Panics
///
/// If it cannot be written.
pub fn write(directory: &Path, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// Compiles `text`, a file called `name`, with the compiler and its flags in `compiler`, to an
/// executable in `directory`.
///
/// # Panics
///
/// If the compiler is not installed or refuses.
#[must_use]
pub fn compile(directory: &Path, name: &str, text: &str, compiler: &[&str]) -> PathBuf {
    let source = write(directory, name, text);
    let executable = source.with_extension("executable");
    let mut command = Command::new(tool::required(compiler[0]));
    command.args(&compiler[1..]).arg("-o").arg(&executable).arg(&source).current_dir(directory);
    succeed(&mut command);
    executable
}

/// Runs a command that must succeed.
///
/// # Panics
///
/// If it does not.
pub fn succeed(command: &mut Command) {
    let finished = process::run(command);
    assert_eq!(finished.exit, Exit::Status(0), "{command:?}: {}{}", finished.stdout_text(), finished.stderr_text());
}
