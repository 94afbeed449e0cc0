//! `cargo xtask test`: everything that has to hold before a change is accepted.

use crate::run_cargo;

/// Check formatting and lints, and run all tests.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run only the tests, not the formatter and the lints.
    #[arg(long)]
    tests_only: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    if !arguments.tests_only {
        run_cargo(&["fmt", "--all", "--check"])?;
        run_cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    }
    run_cargo(&["test", "--release", "--workspace", "--no-fail-fast"])
}
