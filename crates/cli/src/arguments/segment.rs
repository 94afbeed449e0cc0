//! `trackway segment`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use segment::{Class, LengthWeight, Policy, TraceCacheShape, TraceReplacement};

use super::{Results, Source, parse_count, parse_positive_count};

/// Flags of the thesis's tool that are names behind one dash.
pub const NAMES: [&str; 5] = ["ins", "cfis", "flags", "start", "stop"];

/// Cut what was executed into traces by configurable rules, and judge the set (Hadjipavlou 2025).
///
/// A trace ends when it has so many instructions, so many control-flow instructions, or when its last instruction may not stand inside a trace. Each thread is cut by
/// itself; equal traces of all threads are counted together. Traces are told apart by where they begin and by the way they go, exactly.
///
/// Takes a program that it runs (-- COMMAND), a process (-p) or a recorded trace (-i), which is faster for many policies. The exit status is the program's.
#[derive(Args, Debug)]
#[command(after_help = "\
Classes: syscall, interrupt, return, direct-call, indirect-call, forward-taken, forward-not-taken, backward-taken, backward-not-taken (direct conditional jumps;
conditional stands for all four), direct-jump, indirect-conditional-jump, indirect-jump

The flags of the thesis, 1 for what may stand inside: system call, conditional forward taken (and trap), return, direct call, indirect call,
conditional forward not taken, conditional backward taken, direct jump, indirect conditional jump, indirect jump, conditional backward not taken

What is counted, as the thesis calls it: trace length is the instructions of a trace, on average, weighted by coverage (over all executed instructions, each with the
length of its trace) and by occurrences (over all executed traces); trace count is the number of different traces that have 90 % of all instructions; max-norm ratio is
length over the largest length, divided by count over the largest count, among the policies. --length-weight says which length the ratio and the Pareto front are of.

Examples:
  trackway segment -- ls -l                                                 32 instructions, 4 control-flow instructions, while it runs
  trackway segment -ins 64 -cfis 8 -flags 1,0,1,1,0,1,1,1,0,0,1 -start 1000 -stop 2000 -i t.trk -o traces.csv
  trackway segment --end return --end conditional -i t.trk --json
  trackway segment --policies first,fourth -i t.trk                         48 policies in one pass")]
pub struct Segment {
    #[command(flatten)]
    pub source: Source,
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
    /// Which average of the trace length the max-norm ratio and the Pareto front are of: weighted by the instructions that each trace covers, or by how often it was
    /// executed.
    #[arg(long, value_name = "coverage|occurrences", value_parser = parse_length_weight, default_value = LengthWeight::default().name())]
    pub length_weight: LengthWeight,
    /// End a trace where its consistency would fall below P: the product of the probabilities, as far as they are known by then, that its branches go as they do.
    #[arg(long, value_name = "P", conflicts_with = "restructure")]
    pub consistency: Option<f32>,
    /// Make traces anew as branches become known: those that mostly go one way stand inside and do not count; of others, classes decide.
    #[arg(long)]
    pub restructure: bool,
    /// Begin a new trace with a block that would not fit as a whole.
    #[arg(long)]
    pub keep_blocks: bool,
    /// End a trace of at least N instructions where eight other traces have begun before.
    #[arg(long, value_name = "N")]
    pub meet: Option<u32>,
    /// Fetch traces from a cache of so many, in sets of so many ways; may be given several times, or with commas. The next trace is predicted.
    #[arg(long, value_name = "TRACES[xWAYS][:lru|lfu|blocks]", value_parser = parse_cache, value_delimiter = ',')]
    pub cache: Vec<TraceCacheShape>,
    /// How many traces the next one is predicted from, 1 to 15.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=15), requires = "cache")]
    pub path: u8,
    /// Look for the longest chain of data dependences in every trace, which tells its ILP.
    #[arg(long)]
    pub dependences: bool,
    /// Leave out what comes before this instruction (of all threads together, or of the one that is chosen). k, M, G: thousands, millions, thousands of millions.
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
    /// Write every trace of the policy to a file: CSV as the thesis's tool writes it, or Parquet with more columns if the name ends so.
    #[arg(short, long, value_name = "OUT.csv|OUT.parquet")]
    pub output: Option<PathBuf>,
    /// Write coverage curves, trace length over trace count with the Pareto front, and ratios as CSV and SVG into this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Tables 7.1 to 7.15 and Figures 7.1 to 7.4 of Hadjipavlou 2025 with real programs: which control-flow instructions should end a trace.
///
/// Records each program (those of the usual list that are installed) with inputs of its own, cuts it into traces by the policies of the four experiments, and goes
/// beyond them: policies that learn, traces that overlap less, data dependences, trace caches and a predictor of traces. Takes five to nine minutes on two cores.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway experiment segment --plots segment                     every table also as CSV, every figure as SVG
  trackway experiment segment --programs perl,gcc,xz --json -o segment.json
  trackway experiment segment a.trk b.trk                         traces that were recorded before")]
pub struct ExperimentSegment {
    /// Recorded traces, instead of programs.
    #[arg(value_name = "FILE.trk", conflicts_with = "programs")]
    pub traces: Vec<PathBuf>,
    /// Which programs, of bc, bzip2, convert, gcc, gnugo, gzip, jq, lua, mawk, openssl, perl, php, povray, python, ruby, sort, sqlite, x264, xz, zstd; those that are
    /// installed unless told.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// How many instructions of each are looked at, behind the first N of --start.
    #[arg(long, value_name = "N", value_parser = parse_positive_count, default_value = "100M")]
    pub length: u64,
    /// Leave out the first N instructions of each.
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true)]
    pub start: u64,
    #[command(flatten)]
    pub results: Results,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policies {
    /// The one that is given.
    Given,
    /// The first experiment: the one that is given, with 32 ways to let returns, direct calls, indirect calls, direct conditional jumps and indirect jumps end a trace or not.
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

fn parse_length_weight(text: &str) -> Result<LengthWeight, String> {
    let found = LengthWeight::ALL.into_iter().find(|weight| weight.name() == text);
    found.ok_or_else(|| "weights are coverage and occurrences".to_owned())
}

/// The weights of a policy that are not the usual ones, as --weight takes them: the four kinds of conditional jumps as one if they count alike.
pub fn unusual_weights(policy: &Policy) -> Vec<(&'static str, u32)> {
    let mut shown: Vec<Class> = Vec::new();
    let mut weights = Vec::new();
    for (name, classes) in CLASSES {
        let weight = policy.weight(classes[0]);
        let is_new = |class: &Class| !policy.has_usual_weight(*class) && !shown.contains(class);
        if classes.iter().all(|class| is_new(class) && policy.weight(*class) == weight) {
            weights.push((name, weight));
            shown.extend(classes);
        }
    }
    weights
}

/// The same on a line, as --weight takes them; empty if all are usual.
pub fn weights_text(policy: &Policy) -> String {
    let weights = unusual_weights(policy).into_iter();
    weights.map(|(class, weight)| format!("{class}={weight}")).collect::<Vec<_>>().join(",")
}

/// Such as 1024, 1024x4 or 1024x4:lfu.
fn parse_cache(text: &str) -> Result<TraceCacheShape, String> {
    let form = || {
        "caches look like 1024x4:lru: so many traces, in sets of so many, and who gives way (lru, lfu, blocks)"
            .to_owned()
    };
    let (sizes, replacement) = text.split_once(':').unwrap_or((text, "lru"));
    let (traces, ways) = sizes.split_once('x').unwrap_or((sizes, "4"));
    let replacement = TraceReplacement::ALL.into_iter().find(|known| known.name() == replacement).ok_or_else(form)?;
    let (traces, ways) = (traces.parse().map_err(|_| form())?, ways.parse().map_err(|_| form())?);
    TraceCacheShape::new(traces, ways, replacement).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_weights() {
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

    #[test]
    fn unusual_weights_are_told() {
        let given = Policy::default();
        assert_eq!(unusual_weights(&given), []);
        assert_eq!(unusual_weights(&given.two_conditional_jumps()), [("conditional", 2)]);
        let mixed =
            given.two_conditional_jumps().with_weight(Class::BackwardTaken, 3).with_weight(Class::DirectJump, 1);
        let expected = [
            ("forward-taken", 2),
            ("forward-not-taken", 2),
            ("backward-taken", 3),
            ("backward-not-taken", 2),
            ("direct-jump", 1),
        ];
        assert_eq!(unusual_weights(&mixed), expected);
    }
}
