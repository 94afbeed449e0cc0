//! Commands for maintainers: `cargo xtask test`, `cargo xtask package`, `cargo xtask bench`, `cargo
//! xtask soak`, `cargo xtask experiments`, `cargo xtask man`.
//!
//! Knows the directories of the repository, and runs `cargo` and the `trackway` command as a user
//! would. Measures reading with the `trace` crate directly, and takes the man pages from the
//! definition of the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod experiments;
mod machine;
mod man;
mod package;
mod packages;
mod soak;
mod test;

#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Test(test::Arguments),
    Package(package::Arguments),
    Bench(bench::Arguments),
    Soak(soak::Arguments),
    Experiments(experiments::Arguments),
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test(arguments) => test::run(&arguments),
        Task::Package(arguments) => package::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Experiments(arguments) => experiments::run(&arguments),
        Task::Man(arguments) => man::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a directory of the workspace")
}

/// Builds the release version of the command, beside this program.
fn build_trackway() -> Result<PathBuf, String> {
    run_cargo(&["build", "--release", "--package", "trackway"])?;
    let path = trackway()?;
    if path.exists() { Ok(path) } else { Err(format!("{} was not built", path.display())) }
}

/// Returns the path of the release version of the command.
fn trackway() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("trackway"))
}

fn run_cargo(words: &[&str]) -> Result<(), String> {
    run_to_success(Command::new(env!("CARGO")).args(words))
}

/// Runs a cargo command and fails if it does.
fn run_to_success(cargo: &mut Command) -> Result<(), String> {
    let words: Vec<_> = cargo.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    match cargo.current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("`cargo {}` failed", words.join(" "))),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

/// Runs a command and fails if it does.
fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("cannot run {command:?}: {error}")),
    }
}
