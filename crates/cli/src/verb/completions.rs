//! `trackway completions`: a script that completes verbs and options in a shell.

use crate::arguments::Completions;
use crate::output::{Output, Stopped};

/// Writes the script for one shell to standard output.
pub fn run(arguments: &Completions) -> Result<u8, Stopped> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::command(), "trackway", &mut script);
    let mut output = Output::open(None)?;
    output.write(&script)?;
    output.finish()?;
    Ok(0)
}
