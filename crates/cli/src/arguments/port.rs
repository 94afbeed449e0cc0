//! Arguments of `trackway port`, `trackway port decode` and `trackway experiment port`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use port::chunks::Chunks;
use port::{ChunkSizes, Technique};

use super::mtrace::{LoadKnowledge, parse_cache_size};
use super::{Input, Results, parse_positive_count};

/// Count the bits that it takes to stream control flow and load values off a chip.
///
/// Each technique filters the trace and encodes the messages bit by bit (Tewar 2015, chapters 3 to
/// 5). Techniques whose names begin with mcf encode control flow; those with mlv encode the values
/// of loads and need a trace with values. With -o, the bits of one technique are written to a file,
/// which `trackway port decode` decodes and compares with the trace.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Techniques:
  mcfNX_b  every stream of instructions by its length, as Nexus does; chunks of 8 and 32 bits
  mcfTR_b  mispredictions of gshare, return address stack and target buffer; chunks of 8 and 32 bits
  mcfTR_e  the same in variable chunks        mcfTR_a  in chunks whose sizes adapt
  mcfTG_e  with TAGE and ITTAGE instead       mcfTG_a  in chunks whose sizes adapt
  mcfET    packets like those of RISC-V E-Trace
  mcfPT    packets like those of Intel Processor Trace
  mlvNX_b  every load
  mlvCF_b  first-access misses of a cache with first-access flags; chunks of 8 bits
  mlvCF_e  the same in variable chunks        mlvCF_a  in chunks whose sizes adapt
  mlvCC_e  with coherent caches, which take lines over from each other

Configurations: entries of gshare, return address stack, target buffer; TAGE, ITTAGE; cache
(4 ways, lines of 64 bytes, a flag for 4 bytes)
  small    512, 8, 0;      4 KB, 1 KB;   16 KB
  medium   1024, 16, 16;   16 KB, 4 KB;  32 KB
  large    4096, 32, 64;   64 KB, 16 KB; 64 KB

Examples:
  trackway port t.trk                                       all techniques and configurations
  trackway port t.trk --technique mcfTR_e --config large --chunks bCnt=3,2 diffTA=3,4
  trackway port t.trk --technique mlvCF_e --known flags     as the thesis measured load values
  trackway port t.trk --technique mcfTR_e -o t.bits         the bits themselves
  trackway port decode t.bits --program t.trk               and back"
)]
pub struct Port {
    #[command(subcommand)]
    pub verb: Option<PortVerb>,
    #[command(flatten)]
    pub input: Option<Input>,
    #[command(flatten)]
    pub options: PortOptions,
}

#[derive(Subcommand, Debug)]
pub enum PortVerb {
    Decode(PortDecode),
}

/// Decode bits, and compare the result with the trace.
///
/// The decoder has the program, for load values also addresses and stored values, and the order of
/// threads; everything else comes from the bits. The exit status is 1 if a decoded step or load
/// differs from the trace. For bits that were made with --known flags, loads whose memory another
/// thread or the kernel has changed are counted separately: the bits do not contain their values.
#[derive(Args, Debug)]
pub struct PortDecode {
    /// File written by `trackway port -o`.
    #[arg(value_name = "BITS")]
    pub bits: PathBuf,
    /// The trace that the bits were made from; it contains the program.
    #[arg(long, value_name = "FILE.trk")]
    pub program: PathBuf,
    /// Write every message to this file, one line each: the core, and SL or bCnt (and the target),
    /// 0, iCnt and the target of an exception, fahCnt and a value, or the fields of a packet.
    #[arg(long, value_name = "OUT")]
    pub messages: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Repeat Tables 4.2 to 4.4 and 5.1 to 5.7 and Figures 4.9 to 4.11, 5.1 to 5.3, 5.5 and 5.6 of
/// Tewar 2015: the instruction mix of the programs, and the bits that each technique needs.
///
/// Builds each program (needs a C compiler), records it with values, and encodes the trace with all
/// techniques and configurations, several times. The default programs take about two minutes on two
/// cores. Bits per cycle are left out, because cycles are not counted.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway experiment port --plots port                every table as CSV, every figure as SVG
  trackway experiment port --programs fft,radix --threads 1,2 --json -o port.json")]
pub struct ExperimentPort {
    /// Programs, of workloads/parallel.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "cholesky,fft,lu-contiguous,lu-noncontiguous,radix,nbody,\
ocean-contiguous,ocean-noncontiguous,radiosity,raytrace,water,matmul"
    )]
    pub programs: Vec<String>,
    /// Numbers of threads.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Vec<u16>,
    /// The size argument of the programs, whose meaning depends on the program. By default a size
    /// for about ten million instructions.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(u32).range(1..))]
    pub size: Option<u32>,
    /// Number of recordings of every program. Tables show the median, and the range behind it where
    /// it is visible; figures show the median.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    #[command(flatten)]
    pub results: Results,
}

#[derive(Args, Debug)]
pub struct PortOptions {
    /// Techniques, separated by commas, or all.
    #[arg(long, value_name = "TECHNIQUES", value_delimiter = ',', value_parser = parse_techniques,
        default_value = "all")]
    pub technique: Vec<Techniques>,
    /// Sizes of predictors and caches: small, medium, large, all of these, or custom. The default
    /// is all; with -o it is large.
    #[arg(long, value_enum, value_name = "CONFIGS", value_delimiter = ',')]
    pub config: Vec<ConfigName>,
    /// Number of cores that share the port; by default the number of threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: Option<u32>,
    /// Sizes of variable chunks, first and others, of bCnt, iCnt, diffTA, fahCnt and time (which is
    /// reserved for timed traces).
    #[arg(long, value_name = "FIELD=I,J", num_args = 1.., value_parser = parse_chunks)]
    pub chunks: Vec<FieldChunks>,
    /// Number of clock cycles that the program took, for bits per cycle.
    #[arg(long, value_name = "N", value_parser = parse_positive_count)]
    pub cycles: Option<u64>,
    /// Branches that mcfNX_b encodes.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = StreamEnds::All)]
    pub streams: StreamEnds,
    /// Encoding of the target of an exception.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = ExceptionTargets::Difference)]
    pub exception_target: ExceptionTargets,
    /// Condition for a load to be known to a cache, so that no message is sent.
    #[arg(long, value_enum, value_name = "BY", default_value_t = LoadKnowledge::Values)]
    pub known: LoadKnowledge,
    #[command(flatten)]
    pub sizes: CustomSizes,
    /// Write the bits of one technique to this file.
    #[arg(short, long, value_name = "BITS")]
    pub output: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Sizes of --config custom; the defaults are those of large.
#[derive(Args, Debug)]
pub struct CustomSizes {
    /// With --config custom: entries of the outcome predictor, 0 or a power of two.
    #[arg(long, value_name = "ENTRIES")]
    pub gshare: Option<usize>,
    /// Entries of the return address stack, 0 to 64.
    #[arg(long = "RAS", visible_alias = "ras", value_name = "ENTRIES")]
    pub ras: Option<usize>,
    /// Entries of the target buffer, 0 or a power of two.
    #[arg(long = "iBTB", visible_alias = "ibtb", value_name = "ENTRIES")]
    pub ibtb: Option<usize>,
    /// Storage of TAGE and ITTAGE.
    #[arg(long, value_enum, value_name = "BUDGET")]
    pub tage: Option<TageBudget>,
    /// Size of the cache in KB, or in bytes with the suffix B.
    #[arg(long = "cs", visible_alias = "cache-size", value_name = "KILOBYTES", value_parser = parse_cache_size)]
    pub cache: Option<u64>,
    /// Bytes per cache line.
    #[arg(long = "cls", visible_alias = "line-size", value_name = "BYTES")]
    pub line: Option<u64>,
    /// Ways of a set.
    #[arg(long = "ca", visible_alias = "associativity", value_name = "WAYS")]
    pub ways: Option<usize>,
    /// Bytes per first-access flag.
    #[arg(long = "cfg", visible_alias = "granularity", value_name = "BYTES")]
    pub granularity: Option<u64>,
}

impl CustomSizes {
    pub fn are_given(&self) -> bool {
        self.gshare.is_some()
            || self.ras.is_some()
            || self.ibtb.is_some()
            || self.tage.is_some()
            || self.cache.is_some()
            || self.line.is_some()
            || self.ways.is_some()
            || self.granularity.is_some()
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TageBudget {
    /// About 4 KB and 1 KB.
    Small,
    /// About 16 KB and 4 KB.
    Medium,
    /// About 64 KB and 16 KB.
    Large,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Techniques {
    All,
    One(Technique),
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigName {
    Small,
    Medium,
    Large,
    /// small, medium and large.
    All,
    /// As --gshare, --RAS, --iBTB, --tage, --cs, --cls, --ca and --cfg say.
    Custom,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnds {
    /// All taken branches, as in Figure 2.1 and Table 5.1.
    All,
    /// Taken conditional and indirect branches (section 4.2.1); direct jumps and calls can be
    /// inferred.
    Uninferable,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionTargets {
    /// Difference to the last target, as for an indirect branch.
    Difference,
    /// 64 bits.
    Full,
}

/// The chunks of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldChunks {
    field: ChunkField,
    chunks: Chunks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkField {
    BCnt,
    ICnt,
    DiffTA,
    FahCnt,
    Time,
}

impl FieldChunks {
    pub fn apply(self, sizes: &mut ChunkSizes) {
        let size = match self.field {
            ChunkField::BCnt => &mut sizes.branches,
            ChunkField::ICnt => &mut sizes.instructions,
            ChunkField::DiffTA => &mut sizes.target,
            ChunkField::FahCnt => &mut sizes.loads,
            // There are no timed traces yet.
            ChunkField::Time => return,
        };
        *size = self.chunks;
    }
}

const CHUNK_FIELDS: [(&str, ChunkField); 5] = [
    ("bCnt", ChunkField::BCnt),
    ("iCnt", ChunkField::ICnt),
    ("diffTA", ChunkField::DiffTA),
    ("fahCnt", ChunkField::FahCnt),
    ("time", ChunkField::Time),
];

/// Parses FIELD=FIRST,OTHERS.
fn parse_chunks(text: &str) -> Result<FieldChunks, String> {
    let form = || {
        let form = "chunks look like bCnt=4,2, with sizes of 1 to 64; fields are bCnt, iCnt, diffTA, fahCnt and time";
        let hint = if text.contains('=') { "" } else { " (the file has to come before --chunks)" };
        form.to_owned() + hint
    };
    let (name, sizes) = text.split_once('=').ok_or_else(form)?;
    let &(_, field) = CHUNK_FIELDS.iter().find(|(own, _)| *own == name).ok_or_else(form)?;
    let (first, next) = sizes.split_once(',').ok_or_else(form)?;
    let size = |digits: &str| digits.parse::<u32>().map_err(|_| form());
    let chunks = Chunks::new(size(first)?, size(next)?).map_err(|error| error.to_string())?;
    Ok(FieldChunks { field, chunks })
}

fn parse_techniques(text: &str) -> Result<Techniques, String> {
    if text == "all" {
        return Ok(Techniques::All);
    }
    let names = || Technique::ALL.map(Technique::name).join(", ");
    Technique::called(text).map(Techniques::One).ok_or_else(|| format!("there are {} and all", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_parsed() {
        let mut sizes = ChunkSizes::default();
        parse_chunks("diffTA=3,4").unwrap().apply(&mut sizes);
        assert_eq!(sizes.target.sizes(), (3, 4));
        assert!(parse_chunks("time=4,2").is_ok());
        assert_eq!(parse_chunks("bCnt=0,2").unwrap_err(), "there are no chunks of 0 bits: sizes are 1 to 64");
        for wrong in ["bCnt", "bCnt=4", "bcnt=4,2", "SL=8,8", "bCnt=4,x", "bCnt=4,2,2"] {
            assert!(
                parse_chunks(wrong).unwrap_err().starts_with("chunks look like bCnt=4,2, with sizes of 1 to 64"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn techniques_are_parsed() {
        assert_eq!(parse_techniques("mcftr_e"), Ok(Techniques::One(Technique::McfTrE)));
        assert_eq!(parse_techniques("all"), Ok(Techniques::All));
        assert!(parse_techniques("mcfTR").unwrap_err().contains("mcfTR_b, mcfTR_e"));
    }
}
