//! What maintainers run: `cargo xtask test`, `cargo xtask package`, `cargo xtask bench`, `cargo xtask soak`, `cargo xtask experiments`.
//!
//! Knows where things are in the repository and drives `cargo` and the `trackway` command like a user would; measures
//! reading with the `trace` crate directly.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod experiments;
mod machine;
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
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Test(arguments) => test::run(&arguments),
        Task::Package(arguments) => package::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Experiments(arguments) => experiments::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("xtask: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a directory of the workspace")
}

/// Builds the release version of the command, which lands beside this program.
fn build_trackway() -> Result<PathBuf, String> {
    run_cargo(&["build", "--release", "--package", "trackway"])?;
    let path = trackway()?;
    if path.exists() { Ok(path) } else { Err(format!("{} was not built", path.display())) }
}

/// Where the release version of the command is.
fn trackway() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(own.with_file_name("trackway"))
}

fn run_cargo(words: &[&str]) -> Result<(), String> {
    succeed(Command::new(env!("CARGO")).args(words))
}

/// Runs cargo.
fn succeed(cargo: &mut Command) -> Result<(), String> {
    let words: Vec<_> = cargo.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    match cargo.current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("`cargo {}` failed", words.join(" "))),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}
