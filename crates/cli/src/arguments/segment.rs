//! Arguments of `trackway segment` and `trackway experiment segment`.

use std::path::PathBuf;

use clap::builder::TypedValueParser as _;
use clap::{Args, ValueEnum};
use experiment::segment::{CLASSES, Classes};
use segment::{LengthWeight, TraceCacheShape, TraceReplacement};
use trace::ThreadId;

use super::{Results, Source, parse_count, parse_positive_count};

/// Flags of the thesis's tool that are names behind one dash.
pub const NAMES: [&str; 5] = ["ins", "cfis", "flags", "start", "stop"];

/// Cut an execution into traces by configurable rules, and score the set of traces (Hadjipavlou
/// 2025).
///
/// A trace ends when it has a maximum number of instructions or of control-flow instructions, or
/// after an instruction that may not stand inside a trace. Each thread is cut by itself; equal
/// traces of all threads are counted together. Traces are equal if they begin at the same address
/// and follow the same path.
///
/// Takes a program that it runs (-- COMMAND), a process (-p) or a recorded trace (-i), which is
/// faster for many policies. The exit status is that of the program, if it runs one.
#[derive(Args, Debug)]
#[command(after_help = "\
Classes: syscall, interrupt, return, direct-call, indirect-call, forward-taken, forward-not-taken,
backward-taken, backward-not-taken (direct conditional jumps; conditional stands for all four),
direct-jump, indirect-conditional-jump, indirect-jump

The flags of the thesis, 1 for a class that may stand inside: system call, conditional forward taken
(and trap), return, direct call, indirect call, conditional forward not taken, conditional backward
taken, direct jump, indirect conditional jump, indirect jump, conditional backward not taken

Numbers, as the thesis calls them: trace length is the average number of instructions in a trace,
weighted by coverage (over all executed instructions, each with the length of its trace) or by
occurrences (over all executed traces); trace count is the number of different traces that cover
90 % of all instructions; max-norm ratio is length over the largest length, divided by count over
the largest count, among the policies. --length-weight selects the length for the ratio and the
Pareto front. docs/segment.md explains the other columns.

Examples:
  trackway segment -- ls -l           32 instructions, 4 control-flow instructions, while it runs
  trackway segment -ins 64 -cfis 8 -flags 1,0,1,1,0,1,1,1,0,0,1 -start 1000 -stop 2000 -i t.trk
  trackway segment --end return --end conditional -i t.trk --json
  trackway segment --policies first,fourth -i t.trk                    48 policies in one pass")]
pub struct Segment {
    #[command(flatten)]
    pub source: Source,
    /// Only this thread of a trace.
    #[arg(short, long, value_name = "T", value_parser = clap::value_parser!(u32).map(ThreadId::new),
        requires = "input")]
    pub thread: Option<ThreadId>,
    /// Maximum number of instructions in a trace.
    #[arg(long = "ins", visible_alias = "max-instructions", value_name = "N", default_value_t = 32)]
    pub instructions: u32,
    /// Maximum number of control-flow instructions in a trace.
    #[arg(long, visible_alias = "max-cfis", value_name = "N", default_value_t = 4)]
    pub cfis: u32,
    /// Classes that may stand inside a trace, as the thesis writes them: eleven times 0 or 1, with
    /// commas between them.
    #[arg(long, value_name = "FLAGS")]
    pub flags: Option<String>,
    /// A class that ends a trace, in addition to system calls and traps, which end one unless
    /// --inside names them. May be given several times.
    #[arg(long = "end", value_name = "CLASS", value_parser = parse_classes, conflicts_with = "flags")]
    pub ends: Vec<Classes>,
    /// A class that may stand inside a trace. May be given several times.
    #[arg(long, value_name = "CLASS", value_parser = parse_classes, conflicts_with = "flags")]
    pub inside: Vec<Classes>,
    /// Weight of a class in the number of control-flow instructions; by default 1, and 0 for direct
    /// jumps. May be given several times.
    #[arg(long, value_name = "CLASS=N", value_parser = parse_weight)]
    pub weight: Vec<(Classes, u32)>,
    /// Average of the trace length for the max-norm ratio and the Pareto front: weighted by the
    /// instructions that each trace covers, or by its number of executions.
    #[arg(long, value_name = "coverage|occurrences", value_parser = parse_length_weight,
        default_value = LengthWeight::default().name())]
    pub length_weight: LengthWeight,
    /// End a trace where its consistency would fall below P: the product of the probabilities, as
    /// observed so far, that its branches go where the trace goes.
    #[arg(long, value_name = "P", conflicts_with = "restructure")]
    pub consistency: Option<f32>,
    /// Form new traces as branches become known: branches that mostly go one way stand inside and
    /// do not count; for others, the classes decide.
    #[arg(long)]
    pub restructure: bool,
    /// Begin a new trace with a block that would not fit as a whole.
    #[arg(long)]
    pub keep_blocks: bool,
    /// End a trace of at least N instructions where eight other traces have begun before.
    #[arg(long, value_name = "N")]
    pub meet: Option<u32>,
    /// Fetch traces from a cache of this size and associativity; may be given several times, or
    /// with commas. The next trace is predicted.
    #[arg(long, value_name = "TRACES[xWAYS][:lru|lfu|blocks]", value_parser = parse_cache, value_delimiter = ',')]
    pub cache: Vec<TraceCacheShape>,
    /// Number of traces that the prediction of the next one is based on, 1 to 15.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=15),
        requires = "cache")]
    pub path: u8,
    /// Find the longest chain of data dependences in every trace, for its ILP.
    #[arg(long)]
    pub dependences: bool,
    /// Skip all instructions before this one (of all threads together, or of the selected one). k,
    /// M, G: thousand, million, billion.
    #[arg(long, visible_alias = "skip", value_name = "N", value_parser = parse_count, default_value = "0",
        hide_default_value = true)]
    pub start: u64,
    /// Stop at this instruction.
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "length")]
    pub stop: Option<u64>,
    /// Stop after N instructions.
    #[arg(long, value_name = "N", value_parser = parse_positive_count)]
    pub length: Option<u64>,
    /// Policies, separated by commas: the given one, or those of the experiments of the thesis.
    #[arg(long, value_enum, value_name = "WHICH", value_delimiter = ',', default_value = "given")]
    pub policies: Vec<Policies>,
    /// Write every trace of the policy to a file: CSV as the tool of the thesis writes it, or
    /// Parquet with more columns if the name ends so.
    #[arg(short, long, value_name = "OUT.csv|OUT.parquet")]
    pub output: Option<PathBuf>,
    /// Write coverage curves, trace length over trace count with the Pareto front, and ratios as
    /// CSV and SVG into this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Repeat Tables 7.1 to 7.15 and Figures 7.1 to 7.4 of Hadjipavlou 2025 with real programs: which
/// control-flow instructions should end a trace.
///
/// Records each program (those of the list that are installed) with inputs of its own and cuts it
/// into traces by the policies of the four experiments. Goes beyond them with policies that learn,
/// traces that overlap less, data dependences, trace caches and a predictor of traces. Takes five
/// to nine minutes on two cores.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway experiment segment --plots segment   every table as CSV, every figure as SVG
  trackway experiment segment --programs perl,gcc,xz --json -o segment.json
  trackway experiment segment a.trk b.trk       traces that were recorded before")]
pub struct ExperimentSegment {
    /// Recorded traces, instead of programs.
    #[arg(value_name = "FILE.trk", conflicts_with = "programs")]
    pub traces: Vec<PathBuf>,
    /// Programs, of bc, bzip2, convert, gcc, gnugo, gzip, jq, lua, mawk, openssl, perl, php,
    /// povray, python, ruby, sort, sqlite, x264, xz, zstd; by default those that are installed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Number of instructions of each program, after the first N of --start.
    #[arg(long, value_name = "N", value_parser = parse_positive_count, default_value = "100M")]
    pub length: u64,
    /// Skip the first N instructions of each program.
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true)]
    pub start: u64,
    #[command(flatten)]
    pub results: Results,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policies {
    /// The given policy.
    Given,
    /// The first experiment: the given policy, with 32 choices whether returns, direct calls,
    /// indirect calls, direct conditional jumps and indirect jumps end a trace.
    First,
    /// The second: the given policy, with 255 instructions.
    Second,
    /// The third: the given policy, with direct conditional jumps inside, each counting twice.
    Third,
    /// The fourth: the given policy, with 16 choices for the four kinds of direct conditional
    /// jumps.
    Fourth,
}

fn parse_classes(text: &str) -> Result<Classes, String> {
    let found = CLASSES.iter().find(|(name, _)| *name == text).map(|(_, classes)| *classes);
    found.ok_or_else(|| format!("classes are {}", CLASSES.map(|(name, _)| name).join(", ")))
}

fn parse_weight(text: &str) -> Result<(Classes, u32), String> {
    let form = || "weights look like direct-jump=1".to_owned();
    let (class, weight) = text.split_once('=').ok_or_else(form)?;
    Ok((parse_classes(class)?, weight.parse().map_err(|_| form())?))
}

fn parse_length_weight(text: &str) -> Result<LengthWeight, String> {
    let found = LengthWeight::ALL.into_iter().find(|weight| weight.name() == text);
    found.ok_or_else(|| "weights are coverage and occurrences".to_owned())
}

/// Parses a cache such as 1024, 1024x4 or 1024x4:lfu.
fn parse_cache(text: &str) -> Result<TraceCacheShape, String> {
    let form = || {
        "caches look like 1024x4:lru: number of traces, ways of a set, and replacement (lru, lfu, blocks)".to_owned()
    };
    let (sizes, replacement) = text.split_once(':').unwrap_or((text, "lru"));
    let (traces, ways) = sizes.split_once('x').unwrap_or((sizes, "4"));
    let replacement = TraceReplacement::ALL.into_iter().find(|known| known.name() == replacement).ok_or_else(form)?;
    let (traces, ways) = (traces.parse().map_err(|_| form())?, ways.parse().map_err(|_| form())?);
    TraceCacheShape::new(traces, ways, replacement).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use segment::Class;

    use super::*;

    #[test]
    fn classes_and_weights_are_parsed() {
        assert_eq!(parse_classes("return"), Ok(&[Class::Return][..]));
        assert_eq!(parse_weight("conditional=2"), Ok((&Class::CONDITIONAL[..], 2)));
        assert!(parse_classes("ret").unwrap_err().contains("direct-call"));
        assert_eq!(
            parse_cache("1024").map(|shape| (shape.traces(), shape.ways(), shape.replacement)),
            Ok((1024, 4, TraceReplacement::Lru))
        );
        assert_eq!(parse_cache("64x1:blocks").map(|shape| shape.replacement), Ok(TraceReplacement::Blocks));
        for wrong in ["", "x", "64x", "64x0", "60x4", "64:mru", "64x128"] {
            assert!(parse_cache(wrong).is_err(), "{wrong}");
        }
        assert!(parse_weight("return").is_err() && parse_weight("return=x").is_err());
        assert_eq!(parse_length_weight("occurrences"), Ok(LengthWeight::Occurrences));
        assert!(parse_length_weight("plain").unwrap_err().contains("coverage and occurrences"));
    }
}
