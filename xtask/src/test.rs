//! `cargo xtask test`: checks everything that has to hold before a change is accepted.

use std::process::Command;

use crate::{package, packages, run_cargo, run_to_success};

/// Every page of the crates' own documentation, and none of their dependencies'.
const DOCUMENT: [&str; 4] = ["doc", "--release", "--workspace", "--no-deps"];

/// Check formatting, lints, documentation and packages, and run all tests. Installs the programs
/// that the tests need and that are missing.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run only the tests; leave out formatter, lints, documentation and packages.
    #[arg(long)]
    tests_only: bool,
    #[command(flatten)]
    packages: packages::Arguments,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    packages::require(&["test"], &arguments.packages)?;
    if !arguments.tests_only {
        packages::require_components(&arguments.packages)?;
        run_cargo(&["fmt", "--all", "--check"])?;
        run_cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        run_to_success(Command::new(env!("CARGO")).args(DOCUMENT).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    // Cargo builds the command before it runs the first test. Built alone, the command would have
    // fewer features of its dependencies and would be compiled again.
    let mut test = Command::new(env!("CARGO"));
    test.args(["test", "--release", "--workspace", "--no-fail-fast"]).env("TESTED_TRACKWAY", crate::trackway()?);
    run_to_success(&mut test)?;
    if arguments.tests_only { Ok(()) } else { package::run(&package::Arguments::default()) }
}
