//! The `trackway` command: arguments in, library calls, output out.
//!
//! `arguments` defines the command line, `verb` calls the libraries for each verb, and `output`
//! writes the results. This crate does not know how a program is traced or how a trace is stored.
//!
//! The binary calls [`run`]. `cargo xtask man` writes the man pages from [`command`], and `trackway
//! completions` writes shell completions from it, so that help, man pages and completions have one
//! source.

mod allocations;
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
mod scopes;
mod select;
mod symbolizer;
mod verb;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use arguments::Arguments;
use arguments::mtrace::with_two_dashes;
use output::Stopped;

/// The status that a shell reports for a program that SIGPIPE killed. Rust ignores SIGPIPE, so the
/// verb returns it itself.
const PIPE_CLOSED: u8 = 128 + 13;

/// Returns the definition of the command line: all verbs and options, with their help.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command with the arguments of this process and returns the exit status.
pub fn run() -> ExitCode {
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
