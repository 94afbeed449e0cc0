//! Counts the instructions that a command executes, per thread:
//! `cargo run -p oracle --example count -- COMMAND [ARG]...`

use std::process::{Command, ExitCode};
use std::time::Instant;

use oracle::{StepOptions, single_step};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let Some((program, rest)) = arguments.split_first() else {
        eprintln!("usage: count COMMAND [ARG]...");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    match single_step(Command::new(program).args(rest), &StepOptions::default()) {
        Ok(run) => {
            let counts: Vec<usize> = run.threads.iter().map(Vec::len).collect();
            let seconds = start.elapsed().as_secs_f64();
            let rate = counts.iter().sum::<usize>() as f64 / seconds;
            eprintln!("instructions {counts:?}, {:?}, {rate:.0} per second", run.exit);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
