//! Prints what a command does to memory, one line for each access, in the fields of Myers 2014,
//! Figure 4.14: thread, L or S, instruction, address, size, value. For comparing by eye:
//! `cargo run -p oracle --example accesses -- COMMAND [ARG]...`

use std::io::{self, BufWriter, Write};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: accesses COMMAND [ARG]...");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    let options = oracle::StepOptions { memory: true, ..oracle::StepOptions::default() };
    let run = match oracle::single_step(&mut command, &options) {
        Ok(run) => run,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let count = run.threads.iter().map(Vec::len).sum::<usize>();
    eprintln!("{count} instructions, {} accesses", run.accesses.iter().map(Vec::len).sum::<usize>());
    match print(&run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn print(run: &oracle::Execution) -> io::Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    for (thread, accesses) in run.accesses.iter().enumerate() {
        for access in accesses {
            let oracle::Access { pc, address, writes, value, .. } = access;
            let direction = if *writes { 'S' } else { 'L' };
            write!(output, "{thread}, {direction}, {pc:#018x}, {address:#018x}, {}, 0x", value.len())?;
            value.iter().rev().try_for_each(|byte| write!(output, "{byte:02x}"))?;
            writeln!(output)?;
        }
    }
    output.flush()
}
