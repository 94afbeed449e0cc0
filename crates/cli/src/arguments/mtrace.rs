//! Arguments of the tools of mTrace: the flags of Myers 2014, Tables 4.1, 4.3, 4.5 and 4.6. The
//! theses write long flags with one dash; [`with_two_dashes`] adds the second.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use filter::cfiat::KnownCriterion;

use super::{Source, parse_count, parse_megabytes, parse_positive_count};
use crate::compressor::Compressor;
use crate::descriptor::flow::Layout;

/// Flags of the tools that are names behind one dash.
const NAMES: [&str; 13] = [
    "filter_no_shared_libs",
    "filter_rtn",
    "help",
    "store",
    "gshare",
    "RAS",
    "iBTB",
    "TRaptorShare",
    "ca",
    "cfg",
    "cls",
    "cs",
    "cshare",
];

const TOOLS: [&str; 4] = ["mcfTrace", "mlsTrace", "mcfTRaptor", "mlvCFiat"];

/// Adds the second dash to the tools' long flags, which the theses write with one.
pub fn with_two_dashes(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let names = match arguments.get(1) {
        Some(verb) if TOOLS.iter().any(|tool| verb == tool) => &NAMES[..],
        Some(verb) if verb == "segment" => &super::segment::NAMES,
        _ => return arguments,
    };
    for argument in arguments.iter_mut().skip(2).take_while(|argument| *argument != "--") {
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let name = name.map(|name| name.split_once('=').map_or(name, |(name, _)| name));
        if name.is_some_and(|name| names.contains(&name)) {
            let mut longer = OsString::from("-");
            longer.push(&argument);
            *argument = longer;
        }
    }
    arguments
}

/// Arguments that all four tools have.
#[derive(Args, Debug)]
pub struct Common {
    #[command(flatten)]
    pub source: Source,
    /// Write text instead of binary records.
    #[arg(short, long)]
    pub ascii: bool,
    /// Compress the output with this program, which must be installed.
    #[arg(short, long, value_enum, value_name = "COMPRESSOR")]
    pub compressor: Option<Compressor>,
    /// Add the disassembled instruction to each line.
    #[arg(short, long, requires = "ascii")]
    pub disassemble: bool,
    /// Stop when MB megabytes (millions of bytes, before compression) are written; a program runs
    /// on by itself.
    #[arg(short = 'f', long, value_name = "MB", value_parser = parse_megabytes, default_value = "50000")]
    pub max_size: u64,
    /// Leave out code of shared libraries.
    #[arg(long = "filter_no_shared_libs", visible_alias = "no-shared-libs")]
    pub no_shared_libs: bool,
    /// Trace only the routines called NAME (* ? and [a-z] are wildcards). May be given several
    /// times.
    #[arg(long = "filter_rtn", visible_alias = "routine", value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub routines: Vec<String>,
    /// Trace the routines' callees as well; only for a running program, not for a trace.
    #[arg(long, requires = "routines", conflicts_with = "input")]
    pub callees: bool,
    /// Stop after NIST instructions (of all threads together). k, M, G: thousand, million, billion.
    #[arg(short, long, value_name = "NIST", value_parser = parse_positive_count)]
    pub length: Option<u64>,
    /// Skip the first NIST instructions (of all threads together).
    #[arg(short, long, value_name = "NIST", value_parser = parse_count, default_value = "0",
        hide_default_value = true)]
    pub skip: u64,
    /// Write to NAME.bin or NAME.txt, and statistics to NAME.Statistics. By default, the name
    /// consists of the tool's name and the time.
    #[arg(short, long, value_name = "NAME")]
    pub output: Option<PathBuf>,
    /// Write threads and sizes of operands as 4 bytes in binary, for more than 256 threads.
    #[arg(long, conflicts_with = "ascii")]
    pub wide: bool,
    /// Switch off address space randomisation for the program.
    #[arg(long, conflicts_with_all = ["input", "pid"])]
    pub no_aslr: bool,
    /// Write the statistics as JSON.
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
}

/// mTrace: write a descriptor of every control transfer.
///
/// Takes a program that it runs (-- COMMAND), a process (-p) or a recorded trace (-i). Threads are
/// merged by time; those of a running program within the window that is held back.
#[derive(Args, Debug)]
#[command(after_help = "\
The descriptors (Myers 2014, Figure 4.2):
  binary  18 bytes: thread (1), address (8), target (8), type (1: 0 = unconditional indirect,
          1 = unconditional direct, 2 = conditional direct taken, 3 = not taken, 4 = unconditional
          indirect with an unknown target, which is written as 0), integers little-endian
  -a      THREAD, ADDRESS, TARGET, TYPE
          0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T
          If the process ends in an indirect branch of a thread, TARGET is the word unknown.

Examples:
  trackway mcfTrace -a -d -o ls -- ls -l            ls.txt and ls.Statistics
  trackway mcfTrace -c gzip -s 3M -l 1M -- ./a.out  a million instructions, compressed
  trackway mcfTrace -i t.trk -filter_rtn 'parse_*'")]
pub struct McfTrace {
    #[command(flatten)]
    pub common: Common,
}

/// mTrace: write a descriptor of every load, and with -store of every store.
///
/// Takes a program that it runs (-- COMMAND), a process (-p) or a trace recorded with --data values
/// (-i).
#[derive(Args, Debug)]
#[command(after_help = "\
The descriptors (Myers 2014, Figures 4.13 and 4.14):
  binary  thread (1), with -store 0 = load or 1 = store (1), address (8), operand address (8),
          size (1), value (size)
          A size of 255 or more is 255 and then the size in 4 bytes (--wide: every size has 4 bytes,
          without the 255). If the highest bit of a size in 4 bytes is 1, the access was recorded
          without a value, and none follows.
  -a      THREAD[, L or S], ADDRESS, OPERAND, SIZE, VALUE
          0, L, 0x0000003f83201156, 0x0000003f8341fb80, 8, 0x0000003f83201130

Examples:
  trackway mlsTrace -a -store -o mm -- ./matmul 16
  trackway mlsTrace -c zstd -i t.trk")]
pub struct MlsTrace {
    #[command(flatten)]
    pub common: Common,
    /// Trace stores, too; every descriptor then has a field for load or store.
    #[arg(long)]
    pub store: bool,
    #[command(flatten)]
    pub order: ByteOrder,
}

/// The order in which threads use shared structures.
#[derive(Args, Debug)]
pub struct InterleaveOptions {
    /// Threads use shared structures one after the other, for N branches (mcfTRaptor: conditional
    /// and indirect ones) or N accesses (mlvCFiat: loads and stores, up to the end of the block) at
    /// a time, as if each had a processor to itself. Needs a trace.
    #[arg(long, value_name = "N", requires = "shared", conflicts_with_all = ["pid", "command"])]
    pub interleave: Option<NonZeroU64>,
}

/// Byte order of values in binary.
#[derive(Args, Debug)]
pub struct ByteOrder {
    /// Write values with their highest byte first in binary, as the thesis's listings do; by
    /// default as they are in memory.
    #[arg(long, conflicts_with = "ascii")]
    pub big_endian: bool,
}

/// mTrace: write only the branches that predictors mispredict (TRaptor).
///
/// A decoder that has the program and the same predictors derives all other branches: `trackway
/// verify --filter mcfTRaptor` checks it. Takes a program that it runs (-- COMMAND), a process (-p)
/// or a recorded trace (-i).
#[derive(Args, Debug)]
#[command(after_help = "\
The descriptors (Myers 2014, Figure 4.22); the position of the type in binary depends on --layout:
  binary  mispredicted outcome  6 bytes: thread (1), bCnt (4), type 0 (1)
          mispredicted target  15 bytes: thread (1), bCnt (4), type 1 (1), taken 1 (1), target (8)
          exception            18 bytes: thread (1), 0 (4), type 2 (1), iCnt (4), target (8)
  -a      THREAD, BCNT                              0, 1
          THREAD, BCNT, T, TARGET                   1, 1, T, 0x0000003f83e07780
          THREAD, 0, ICNT, TARGET                   0, 0, 78, 0x0000000000401000
bCnt counts branches since the last descriptor of the thread, the mispredicted one included; iCnt
counts instructions. A bCnt of 0xffffffff in binary stands for 0xffffffff branches without a
misprediction; the next record continues the count (an iCnt of 0xffffffff with target 0 likewise).

Examples:
  trackway mcfTRaptor -gshare 4096 -RAS 32 -iBTB 64 -a -d -- ./a.out
  trackway mcfTRaptor -TRaptorShare -i t.trk -o shared")]
pub struct McfTRaptor {
    #[command(flatten)]
    pub common: Common,
    /// Entries of the outcome predictor: 0 or a power of two.
    #[arg(long, value_name = "ENTRIES", default_value_t = 4096)]
    pub gshare: usize,
    /// Entries of the return address stack: 0 to 64.
    #[arg(long = "RAS", visible_alias = "ras", value_name = "ENTRIES", default_value_t = 32)]
    pub ras: usize,
    /// Entries of the indirect branch target buffer, which has two ways: 0 or a power of two.
    #[arg(long = "iBTB", visible_alias = "ibtb", value_name = "ENTRIES", default_value_t = 64)]
    pub ibtb: usize,
    /// All threads share the predictors. They take turns of about 16 blocks, by time, or as
    /// --interleave says.
    #[arg(long = "TRaptorShare", visible_alias = "shared")]
    pub shared: bool,
    #[command(flatten)]
    pub interleaving: InterleaveOptions,
    /// Number of the first branch after a descriptor: 1 (Tewar 2015) or 2 (Myers 2014, Figure
    /// 4.31).
    #[arg(long, value_enum, value_name = "NUMBER", default_value_t = CountFrom::One)]
    pub count_from: CountFrom,
    /// Lookup in the target buffer.
    #[arg(long, value_enum, value_name = "LOOKUP", default_value_t = TargetLookup::Tagged)]
    pub ibtb_lookup: TargetLookup,
    /// Victim in the target buffer.
    #[arg(long, value_enum, value_name = "WAY", default_value_t = TargetVictim::Older)]
    pub ibtb_victim: TargetVictim,
    /// Prediction of conditional branches with -gshare 0.
    #[arg(long, value_enum, value_name = "OUTCOME", default_value_t = DefaultOutcome::NotTaken)]
    pub without_gshare: DefaultOutcome,
    /// Position of the type in a binary record.
    #[arg(long, value_enum, value_name = "PLACE", default_value_t = Layout::Fixed)]
    pub layout: Layout,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountFrom {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetLookup {
    /// By a tag, the low bits of the path (Tewar 2015): the buffer predicts one target.
    Tagged,
    /// A hit in either way counts (Myers 2014); the result cannot be decoded.
    Untagged,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetVictim {
    /// The way that was not used last.
    Older,
    /// Always the first way, as in the listing of Myers 2014, Figure 4.27.
    First,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultOutcome {
    /// Not taken: taken branches are written.
    NotTaken,
    /// None: all are written (Myers 2014), but a decoder cannot know which were taken.
    Nothing,
}

/// mTrace: write only the load values that a cache with first-access flags does not know (CFiat).
///
/// A decoder that has the same cache, the addresses and the stored values derives all other loads:
/// `trackway verify --filter mlvCFiat` checks it. Takes a program that it runs (-- COMMAND), a
/// process (-p) or a trace recorded with --data values (-i).
#[derive(Args, Debug)]
#[command(after_help = "\
The descriptors (Myers 2014, Figure 4.36):
  binary  thread (1), fahCnt (4), size (1), value (size)
          A size of 255 or more is 255 and then the size in 4 bytes (--wide: every size has 4 bytes,
          without the 255). A fahCnt of 0xffffffff with size 0 stands for 0xffffffff hits; the next
          record continues the count.
  -a      THREAD, FAHCNT, VALUE                     0, 2, 0x00000004
fahCnt counts the loads of the thread that were known since its last descriptor.

Examples:
  trackway mlvCFiat -cs 64 -ca 4 -cls 64 -a -d -- ./a.out
  trackway mlvCFiat -cshare -i t.trk --known flags --invalidate threads --invalidate kernel")]
pub struct MlvCFiat {
    #[command(flatten)]
    pub common: Common,
    /// Size of the cache in KB, or in bytes with the suffix B.
    #[arg(long = "cs", visible_alias = "cache-size", value_name = "KILOBYTES", value_parser = parse_cache_size,
        default_value = "32")]
    pub size: u64,
    /// Bytes per cache line.
    #[arg(long = "cls", visible_alias = "line-size", value_name = "BYTES", default_value_t = 32)]
    pub line: u64,
    /// Ways of a set.
    #[arg(long = "ca", visible_alias = "associativity", value_name = "WAYS", default_value_t = 4)]
    pub ways: usize,
    /// Bytes per first-access flag.
    #[arg(long = "cfg", visible_alias = "granularity", value_name = "BYTES", default_value_t = 4)]
    pub granularity: u64,
    /// All threads share the cache. They take turns of about 16 blocks, by time, or as --interleave
    /// says.
    #[arg(long = "cshare", visible_alias = "shared")]
    pub shared: bool,
    #[command(flatten)]
    pub interleaving: InterleaveOptions,
    /// Replacement policy.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = LineReplacement::RoundRobin)]
    pub replacement: LineReplacement,
    /// Condition for a load to be known.
    #[arg(long, value_enum, value_name = "BY", default_value_t = LoadKnowledge::Values)]
    pub known: LoadKnowledge,
    /// Flags that an access sets if it covers their bytes in part.
    #[arg(long, value_enum, value_name = "FLAGS", default_value_t = AccessedFlags::Touched)]
    pub flags: AccessedFlags,
    /// Further writers that clear flags. May be given several times.
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub invalidate: Vec<InvalidatingWriter>,
    #[command(flatten)]
    pub order: ByteOrder,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineReplacement {
    /// The ways of a set in turn, from the last to the first (Myers 2014, Figure 4.43).
    RoundRobin,
    /// The line that was not used for the longest time.
    Lru,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKnowledge {
    /// Flags and value: a load is written, too, if another thread or the kernel has changed the
    /// memory without the cache's knowledge.
    Values,
    /// Flags alone, as in the theses; values that another thread or the kernel has changed cannot
    /// be decoded.
    Flags,
}

impl LoadKnowledge {
    pub fn criterion(self) -> KnownCriterion {
        match self {
            Self::Values => KnownCriterion::Values,
            Self::Flags => KnownCriterion::Flags,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessedFlags {
    /// Flags whose bytes the access covers completely.
    Whole,
    /// Flags of all bytes that the access touches, as in the theses. With --known flags, the rest
    /// of their bytes cannot be decoded.
    Touched,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidatingWriter {
    /// Other threads: their writes clear all flags of the lines that they touch (Myers 2014, Figure
    /// 3.4; Tewar 2015, Figure 3.7).
    Threads,
    /// The kernel: a system call or a signal clears all flags, because its writes are not recorded.
    Kernel,
}

/// Parses a number of KB, or of bytes with B behind it.
pub fn parse_cache_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['B', 'b']) {
        Some(digits) => (digits, 1),
        None => (text, 1024),
    };
    let size = digits.parse::<u64>().ok().and_then(|size| size.checked_mul(unit));
    size.ok_or_else(|| format!("'{text}' is not a size in KB, such as 32, or in bytes, such as 512B"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Verb};
    use super::*;

    fn parse(line: &str) -> Result<Verb, clap::Error> {
        let words = line.split_whitespace().map(OsString::from);
        Arguments::try_parse_from(with_two_dashes(words)).map(|arguments| arguments.verb)
    }

    /// Command lines of the thesis: Figures 4.14, 4.23 and 5.2, and one with all flags.
    #[test]
    fn the_seeds_flags_are_accepted() {
        let Ok(Verb::MlsTrace(tool)) = parse("trackway mlsTrace -a -store -- ./mm 16 -cs") else { panic!("refused") };
        assert!(tool.store && tool.common.ascii);
        assert_eq!(tool.common.source.command, ["./mm", "16", "-cs"]);
        let line = "trackway mcfTRaptor -a -d -gshare 256 -RAS 16 -iBTB 32 -TRaptorShare -- ./mm 32";
        let Ok(Verb::McfTRaptor(tool)) = parse(line) else { panic!("refused") };
        assert_eq!((tool.gshare, tool.ras, tool.ibtb, tool.shared), (256, 16, 32, true));
        let Ok(Verb::McfTrace(tool)) = parse("trackway mcfTrace -o p1_gzip -c gzip -- fft -m20 -p1") else {
            panic!("refused")
        };
        assert_eq!((tool.common.output, tool.common.compressor), (Some("p1_gzip".into()), Some(Compressor::Gzip)));
        let line = "trackway mlvCFiat -cs 64 -cls 64 -ca 2 -cfg 8 -cshare -f 100 -filter_no_shared_libs \
                    -filter_rtn main -l 1M -s 5 -i t.trk";
        let Ok(Verb::MlvCFiat(tool)) = parse(line) else { panic!("refused") };
        assert_eq!((tool.size, tool.line, tool.ways, tool.granularity, tool.shared), (64 << 10, 64, 2, 8, true));
        let common = tool.common;
        assert_eq!(
            (common.max_size, common.no_shared_libs, common.length, common.skip),
            (100_000_000, true, Some(1_000_000), 5)
        );
        assert_eq!(common.routines, ["main"]);
    }

    #[test]
    fn our_own_spellings_are_accepted() {
        let line = "trackway mlvCFiat --cache-size 512B --line-size 16 --shared --no-shared-libs --routine a \
                    --skip 3 --length 4 --output x ls";
        let Ok(Verb::MlvCFiat(tool)) = parse(line) else { panic!("refused") };
        assert_eq!((tool.size, tool.line, tool.shared, tool.common.skip), (512, 16, true, 3));
        assert_eq!(tool.common.source.command, ["ls"]);
    }

    #[test]
    fn impossible_arguments_are_refused() {
        for line in [
            "mcfTrace",
            "mcfTrace -i t.trk ls",
            "mcfTrace -d ls",
            "mcfTrace -c arj ls",
            "mlvCFiat -cs 3x ls",
            "mcfTrace -store ls",
        ] {
            assert!(parse(&format!("trackway {line}")).is_err(), "{line}");
        }
        let help = parse("trackway mcfTrace -help").unwrap_err();
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
    }
}
