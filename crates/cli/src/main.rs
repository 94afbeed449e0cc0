//! The `trackway` command: arguments in, library calls, output out.
//!
//! [`arguments`] says what can be asked, [`verb`] does it with the crates `capture` and `trace`, [`output`] writes it. Knows
//! nothing of how a program is traced or how a trace is stored.

mod arguments;
mod compressor;
mod descriptor;
mod digits;
mod disassembly;
mod failure;
mod live;
mod names;
mod output;
mod progress;
mod select;
mod verb;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;
use arguments::mtrace::with_two_dashes;
use output::Stopped;

/// What a shell reports for a program that SIGPIPE killed, which is what would have happened.
const PIPE_CLOSED: u8 = 128 + 13;

fn main() -> ExitCode {
    let arguments = Arguments::parse_from(with_two_dashes(std::env::args_os()));
    match verb::run(&arguments.verb) {
        Ok(status) => ExitCode::from(status),
        Err(Stopped::Gone) => ExitCode::from(PIPE_CLOSED),
        Err(Stopped::Failed(failure)) => {
            eprintln!("{failure}");
            ExitCode::from(failure.status)
        }
    }
}
