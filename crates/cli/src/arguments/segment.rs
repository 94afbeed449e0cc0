//! `trackway segment`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use segment::Class;

use super::{parse_count, parse_positive_count, parse_seconds};

/// Flags of the thesis's tool that are names behind one dash.
pub const NAMES: [&str; 5] = ["ins", "cfis", "flags", "start", "stop"];

/// Cut what was executed into traces by configurable rules, and judge the set (Hadjipavlou 2025).
///
/// A trace ends when it has so many instructions, so many control-flow instructions, or when its last instruction may not stand inside a trace. Each thread is cut by
/// itself; equal traces of all threads are counted together. Traces are told apart by where they begin and by the way they go, exactly.
///
/// Takes a program that it runs (-- COMMAND), a process (-p) or a recorded trace (-i), which is faster for many policies. The exit status is the program's.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("source").required(true).args(["input", "pid", "command"]), after_help = "\
Classes: syscall, interrupt, return, direct-call, indirect-call, forward-taken, forward-not-taken, backward-taken, backward-not-taken (direct conditional jumps;
conditional stands for all four), direct-jump, indirect-conditional-jump, indirect-jump

The flags of the thesis, 1 for what may stand inside: system call, conditional forward taken (and trap), return, direct call, indirect call,
conditional forward not taken, conditional backward taken, direct jump, indirect conditional jump, indirect jump, conditional backward not taken

What is counted, as the thesis calls it: trace length is the instructions of a trace, on average over all that were executed; trace count is the number of different
traces that have 90 % of all instructions; max-norm ratio is length over the largest length, divided by count over the largest count, among the policies.

Examples:
  trackway segment -- ls -l                                                 32 instructions, 4 control-flow instructions, while it runs
  trackway segment -ins 64 -cfis 8 -flags 1,0,1,1,0,1,1,1,0,0,1 -start 1000 -stop 2000 -i t.trk -o traces.csv
  trackway segment --end return --end conditional -i t.trk --json
  trackway segment --policies first,fourth -i t.trk                         48 policies in one pass")]
pub struct Segment {
    /// Read this trace (made by `trackway record`) instead of running a program.
    #[arg(short, long, value_name = "FILE.trk")]
    pub input: Option<PathBuf>,
    /// Look at the process with this number, which is running.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Leave the program after S seconds; it runs on by itself.
    #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "input")]
    pub seconds: Option<Duration>,
    /// Only this thread of a trace.
    #[arg(short, long, value_name = "T", requires = "input")]
    pub thread: Option<u32>,
    /// Most instructions of a trace.
    #[arg(long = "ins", visible_alias = "max-instructions", value_name = "N", default_value_t = 32)]
    pub instructions: u32,
    /// Most control-flow instructions of a trace.
    #[arg(long, visible_alias = "max-cfis", value_name = "N", default_value_t = 4)]
    pub cfis: u32,
    /// Which classes may stand inside a trace, as the thesis writes it: eleven times 0 or 1.
    #[arg(long, value_name = "FLAGS")]
    pub flags: Option<String>,
    /// A class that ends a trace; beside system calls and traps, which do unless --inside says otherwise. May be given several times.
    #[arg(long = "end", value_name = "CLASS", value_parser = parse_classes, conflicts_with = "flags")]
    pub ends: Vec<Classes>,
    /// A class that may stand inside a trace. May be given several times.
    #[arg(long, value_name = "CLASS", value_parser = parse_classes, conflicts_with = "flags")]
    pub inside: Vec<Classes>,
    /// How much a class counts among the control-flow instructions; 1, and 0 for direct jumps, unless told. May be given several times.
    #[arg(long, value_name = "CLASS=N", value_parser = parse_weight)]
    pub weight: Vec<(Classes, u32)>,
    /// Leave out what comes before this instruction (of all threads together). k, M, G: thousands, millions, thousands of millions.
    #[arg(long, visible_alias = "skip", value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true)]
    pub start: u64,
    /// Stop at this instruction.
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "length")]
    pub stop: Option<u64>,
    /// Stop after so many instructions.
    #[arg(long, value_name = "N", value_parser = parse_positive_count)]
    pub length: Option<u64>,
    /// Which policies, separated by commas: the one that is given, or those of the thesis's experiments.
    #[arg(long, value_enum, value_name = "WHICH", value_delimiter = ',', default_value = "given")]
    pub policies: Vec<Policies>,
    /// Write every trace of the policy to a CSV file, as the thesis's tool does.
    #[arg(short, long, value_name = "OUT.csv")]
    pub output: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policies {
    /// The one that is given.
    Given,
    /// The first experiment: 32 ways to let returns, direct calls, indirect calls, direct conditional jumps and indirect jumps end a trace or not.
    First,
    /// The second: the one that is given, with 255 instructions.
    Second,
    /// The third: the one that is given, with direct conditional jumps inside, each counting twice.
    Third,
    /// The fourth: the one that is given, with 16 ways for the four kinds of direct conditional jumps.
    Fourth,
}

/// A class, or those of all direct conditional jumps.
pub type Classes = &'static [Class];

const CLASSES: [(&str, Classes); 13] = [
    ("syscall", &[Class::Syscall]),
    ("interrupt", &[Class::Interrupt]),
    ("return", &[Class::Return]),
    ("direct-call", &[Class::DirectCall]),
    ("indirect-call", &[Class::IndirectCall]),
    ("conditional", &Class::CONDITIONAL),
    ("forward-taken", &[Class::ForwardTaken]),
    ("forward-not-taken", &[Class::ForwardNotTaken]),
    ("backward-taken", &[Class::BackwardTaken]),
    ("backward-not-taken", &[Class::BackwardNotTaken]),
    ("direct-jump", &[Class::DirectJump]),
    ("indirect-conditional-jump", &[Class::IndirectConditionalJump]),
    ("indirect-jump", &[Class::IndirectJump]),
];

fn parse_classes(text: &str) -> Result<Classes, String> {
    let found = CLASSES.iter().find(|(name, _)| *name == text).map(|(_, classes)| *classes);
    found.ok_or_else(|| format!("classes are {}", CLASSES.map(|(name, _)| name).join(", ")))
}

fn parse_weight(text: &str) -> Result<(Classes, u32), String> {
    let form = || "weights look like direct-jump=1".to_owned();
    let (class, weight) = text.split_once('=').ok_or_else(form)?;
    Ok((parse_classes(class)?, weight.parse().map_err(|_| form())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_weights() {
        assert_eq!(parse_classes("return"), Ok(&[Class::Return][..]));
        assert_eq!(parse_weight("conditional=2"), Ok((&Class::CONDITIONAL[..], 2)));
        assert!(parse_classes("ret").unwrap_err().contains("direct-call"));
        assert!(parse_weight("return").is_err() && parse_weight("return=x").is_err());
    }
}
