//! Arguments of `trackway memory`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Output, Results, parse_count, parse_positive_count};

/// Compress the memory accesses of a trace, and look at their regularity.
///
/// A memory trace holds the order of accesses as a grammar, and the addresses of each instruction
/// as regular sections (METRIC, Marathe and others 2007). A nest of loops takes a few bytes,
/// however long it runs.
#[derive(Subcommand, Debug)]
pub enum Memory {
    Compress(Compress),
    Expand(Expand),
    Streams(Streams),
}

/// Compress the memory accesses of a trace to a file of their own.
///
/// The trace needs the addresses of accesses (`trackway record --data addresses`). The file also
/// says when threads enter and leave functions and loops: those of the routines that were selected
/// for recording, or else all whose names are known.
#[derive(Args, Debug)]
#[command(after_help = "\
Codecs:
  prsd    the order by SEQUITUR, addresses as regular sections of any height: METRIC's compression
  vpc3    value predictors (Burtscher 2004), with which METRIC is compared
  native  the codecs of .trk files
  raw     12 bytes for each access

The rate that is printed is METRIC's: 6 bytes for each access, divided by the bytes of the file.

Examples:
  trackway memory compress -o t.mem t.trk
  trackway memory compress --codec vpc3 --second-stage bzip2 --json -o t.vpc t.trk
  trackway memory compress --routine 'solve*' -o t.mem t.trk     scopes of these functions only")]
pub struct Compress {
    /// The trace.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to write the memory trace.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// How to compress.
    #[arg(long, value_enum, value_name = "CODEC", default_value_t = Codec::Prsd)]
    pub codec: Codec,
    /// What compresses the rest behind the codec.
    #[arg(long, value_enum, value_name = "STAGE", default_value_t = SecondStage::Zstd)]
    pub second_stage: SecondStage,
    /// Begin a new grammar when one has more symbols. It bounds the memory that is used.
    #[arg(long, value_name = "SYMBOLS", default_value_t = 1 << 16,
        value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    pub grammar: u32,
    /// The most loops of a nest that one section describes.
    #[arg(long, value_name = "LOOPS", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub levels: u8,
    /// Keep the scopes of the functions called NAME (as for `record`; may be given several times)
    /// instead.
    #[arg(long = "routine", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub routines: Vec<String>,
    /// Keep no scopes.
    #[arg(long, conflicts_with = "routines")]
    pub no_scopes: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Prsd,
    Vpc3,
    Native,
    Raw,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondStage {
    Zstd,
    Bzip2,
    /// Nothing.
    None,
}

impl From<SecondStage> for memory::second_stage::SecondStage {
    fn from(stage: SecondStage) -> Self {
        match stage {
            SecondStage::Zstd => Self::default(),
            SecondStage::Bzip2 => Self::Bzip2,
            SecondStage::None => Self::Store,
        }
    }
}

/// List the accesses of a memory trace, as `dump --kind memory` lists those of the trace that it
/// was made from.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway memory expand t.mem | head
  trackway memory expand --format binary -o t.accesses t.mem")]
pub struct Expand {
    /// The memory trace.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Output format, as of `dump --kind memory`.
    #[arg(short, long, value_enum, default_value_t = super::Format::Ascii, conflicts_with = "json")]
    pub format: super::Format,
    /// Write threads and sizes as 4 bytes in binary, for traces with more than 256 threads.
    #[arg(long)]
    pub wide: bool,
    /// Write one JSON object per line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Show how regular the accesses of each instruction are.
///
/// A stream is a run of accesses with one stride. An access is predictable if it is in a stream of
/// three accesses or more, or in one that a loop repeats.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway memory streams t.mem
  trackway memory streams --json --top 1000000 t.mem | jq '.points[] | select(.regularity_ratio < 0.5)'")]
pub struct Streams {
    /// The memory trace, compressed with --codec prsd.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How many instructions to list, those with most accesses first.
    #[arg(long, value_name = "N", default_value = "20")]
    pub top: NonZeroU32,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Repeat Table I and Figure 7 of METRIC (Marathe and others 2007): how well memory accesses
/// compress with regular sections and SEQUITUR and with VPC3, and how long that takes.
///
/// Records a part of the accesses of each program, with one thread, and compresses it with every
/// codec, several times. Programs of workloads/parallel are built (needs a C compiler). The default
/// programs take about three minutes on two cores.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway experiment metric --plots metric              every table as CSV, every figure as SVG
  trackway experiment metric --programs fft,gcc --accesses 1M --repeat 1 --json
  trackway experiment metric a.trk b.trk                 traces that were recorded before")]
pub struct ExperimentMetric {
    /// Traces recorded with --data addresses or values, instead of programs. Figure 7 is then
    /// without instrumentation.
    #[arg(value_name = "FILE.trk", conflicts_with = "programs")]
    pub traces: Vec<PathBuf>,
    /// Programs: cholesky, fft, lu-contiguous, lu-noncontiguous, matmul, nbody, ocean-contiguous,
    /// ocean-noncontiguous, radiosity, radix, raytrace, water, and those of `experiment segment`.
    /// By default most of the former, and bzip2, gcc, gzip, openssl, perl, sort, sqlite, xz and
    /// zstd if they are installed.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Skip the first N instructions of each program: most of a million are the dynamic linker's.
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "1M")]
    pub start: u64,
    /// Number of accesses of each program, after the first N instructions of --start.
    #[arg(long, value_name = "N", value_parser = parse_positive_count, default_value = "10M")]
    pub accesses: u64,
    /// What compresses the rest behind both codecs.
    #[arg(long, value_enum, value_name = "STAGE", default_value_t = SecondStage::Bzip2)]
    pub second_stage: SecondStage,
    /// Number of rounds. Tables show the median, and the range behind it where it is visible;
    /// figures show the median.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    #[command(flatten)]
    pub results: Results,
}
