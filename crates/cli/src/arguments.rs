//! The command line as a type: verbs, options and their help. [`crate::verb`] runs the verbs;
//! nothing here opens a file.

pub mod memory;
pub mod mtrace;
pub mod port;
pub mod segment;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use trace::{InstructionIndex, ThreadId};

/// Records every instruction that a multithreaded program executes, in a fraction of a bit per
/// instruction, and plays the trace back.
#[derive(Parser, Debug)]
#[command(name = "trackway", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  trackway demo                                   a first look, with nothing to prepare
  trackway record -o ls.trk -- ls -l              run a program and record all of it
  trackway info ls.trk                            summary of a trace
  trackway stat ls.trk                            hottest blocks and modules, system calls
  trackway dump --kind control -d ls.trk | less   every branch, disassembled
  trackway mcfTRaptor -a -- ls -l                 only the branches that predictors mispredict";

#[derive(Subcommand, Debug)]
pub enum Verb {
    Record(Record),
    Info(Info),
    Stat(Stat),
    Verify(Verify),
    Dump(Dump),
    #[command(name = "mcfTrace")]
    McfTrace(mtrace::McfTrace),
    #[command(name = "mlsTrace")]
    MlsTrace(mtrace::MlsTrace),
    #[command(name = "mcfTRaptor")]
    McfTRaptor(mtrace::McfTRaptor),
    #[command(name = "mlvCFiat")]
    MlvCFiat(mtrace::MlvCFiat),
    Port(Box<port::Port>),
    Segment(Box<segment::Segment>),
    #[command(subcommand)]
    Memory(memory::Memory),
    #[command(subcommand)]
    Experiment(Experiment),
    Demo(Demo),
    Completions(Completions),
}

/// Run a program, or attach to a running one, and record every instruction that it executes.
///
/// The program runs as it would without the recorder: same output, same exit status (128+N if
/// signal N killed it). Recording starts with the first instruction of the dynamic linker and
/// covers all threads. A program that the process executes by exec is recorded too, child processes
/// only with --follow.
///
/// With -p, a running process is recorded until it ends or the recorder is interrupted (Ctrl-C).
/// Then, as when a limit is reached, the recorder detaches: all threads return to native code,
/// nothing of the recorder stays in the process, and it runs on as before.
///
/// The trace appears under its name when the recording has ended. Until then, and if the recorder
/// is killed, it is in FILE.part, which can be read like any other trace. Only its owner may read
/// it (mode 0600): it holds the program's code and, with --data values, what the program had in its
/// memory.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway record -- ./a.out 1 2 3
  trackway record -o build.trk -- $(gcc -print-prog-name=cc1) -O2 -quiet hello.c -o hello.s
  trackway record --no-aslr -- sort < words > sorted         addresses repeat from run to run
  trackway record --data values -- ./a.out                   every load and store, with its value
  trackway record -p 1234 --seconds 0.5                      half a second of a running process
  trackway record --follow -o make.trk -- make -j2           make.trk and, per child, make.PID.trk
  trackway record --max-size 100 -- ./a.out                  the first 100 MB of trace
  trackway record --skip 1G --length 10M -- ./a.out          ten million instructions in the middle
  trackway record --routine 'parse_*' --callees -- ./a.out   some functions and all that they call
  trackway record --routine 'parse_*' --allocations -- ./a.out   these, and allocations everywhere
  trackway record --routine solve --data addresses --accesses 1M -p 1234   a million accesses of one

Exit status: that of the program, even if the recorder detached before its end; 127 if it was not
found, 126 if it cannot be executed or traced. With -p: 0 when the recorder has detached or the
process has ended.")]
pub struct Record {
    /// Where to write the trace.
    #[arg(short, long, value_name = "FILE", default_value = "trackway.trk")]
    pub output: PathBuf,
    /// Record the running process with this number.
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["command", "no_aslr"],
        value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Detach from the program after S seconds (fractions are possible); it runs on without being
    /// recorded.
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
    /// Detach from the program when MB megabytes (millions of bytes) are in the file; it runs on
    /// without being recorded. Data that waits to be compressed at that moment is still written, at
    /// most that of a second.
    #[arg(long, value_name = "MB", value_parser = parse_megabytes)]
    pub max_size: Option<u64>,
    /// Memory for translated code and its tables in each process: bytes, or K, M or G (powers of
    /// 1024). When it is full, the oldest code is dropped, and translated again if it is executed
    /// again.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_code_cache)]
    pub code_cache: u64,
    /// Record child processes, too: process 1234 to NAME.1234.trk if the output is NAME.trk. Waits
    /// until all of them have ended.
    ///
    /// A process that shares its parent's memory (vfork, posix_spawn) has a trace of its own from
    /// its exec on. Until then, it is a thread of its parent's trace, with or without this option.
    #[arg(long)]
    pub follow: bool,
    /// Switch off address space randomisation for the program, so that addresses are the same in
    /// every run.
    #[arg(long)]
    pub no_aslr: bool,
    /// Data to record beside control flow.
    #[arg(long, value_enum, value_name = "DATA", default_value_t = Data::None)]
    pub data: Data,
    /// Skip the first N instructions (of all threads together, up to the next end of a block)
    /// before recording. k, M, G: thousand, million, billion.
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true)]
    pub skip: u64,
    /// Stop recording after N instructions (of all threads together); the program runs on by
    /// itself.
    #[arg(long, value_name = "N", value_parser = parse_positive_count)]
    pub length: Option<u64>,
    /// Stop recording after N memory accesses (of all threads together), at the end of the path
    /// that makes the Nth; the program runs on by itself. Needs --data addresses or values.
    ///
    /// A path is what a thread executes between two words of the trace: up to a few hundred
    /// instructions without a system call. A repeated string instruction makes an access per
    /// iteration. Only what is recorded counts: with --routine, the accesses of the routines.
    #[arg(long, value_name = "N", value_parser = parse_positive_count)]
    pub accesses: Option<u64>,
    /// Leave out code of shared libraries, the dynamic linker and the kernel's vdso.
    #[arg(long)]
    pub no_shared_libs: bool,
    /// Record only the routines called NAME (as in the symbol table or in C++ or Rust source; * ?
    /// and [a-z] are wildcards). May be given several times.
    #[arg(long = "routine", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub routines: Vec<String>,
    /// Record the routines' callees as well.
    #[arg(long, requires = "routines")]
    pub callees: bool,
    /// Record the stack pointer at the entry of each routine, to name its locals later. Needs
    /// --routine, and --data addresses or values.
    #[arg(long)]
    pub scopes: bool,
    /// Record every call of an allocation routine, and every mapping, with its call stack.
    ///
    /// The routines are malloc, calloc, realloc, reallocarray, free, aligned_alloc, posix_memalign,
    /// memalign, valloc, and operator new and delete, of whatever library the program uses for
    /// them; the system calls are mmap, munmap, mremap and brk. They are recorded wherever they
    /// happen, also outside of the routines that --routine selects. Of calls inside of each other
    /// (operator new calls malloc), only the outermost is recorded. `dump --kind allocations` lists
    /// them, `stat` sums them up.
    #[arg(long)]
    pub allocations: bool,
    /// Print nothing but errors, even on a terminal.
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the recorder's own processor time, memory and waits to FILE, as JSON.
    #[arg(long, value_name = "FILE", hide = true)]
    pub report: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing.
    None,
    /// The address, size and direction of every memory access.
    Addresses,
    /// Also the value, exactly as the instruction read or wrote it.
    Values,
}

/// Summarise a trace: command, threads, instructions, branches, size.
///
/// Without a selection, everything comes from the trace's index: the answer is immediate, however
/// long the trace is.
#[derive(Args, Debug)]
pub struct Info {
    #[command(flatten)]
    pub input: Input,
    /// Print JSON instead of text. It is the same in every run over the same file.
    #[arg(long)]
    pub json: bool,
    /// Add the start and the duration of the recording, to the JSON too.
    #[arg(long)]
    pub times: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Count what was executed: branch mix, hottest blocks and modules, system calls, signals.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway stat t.trk
  trackway stat --thread 2 --skip 10M --length 1M t.trk   one thread, a million instructions of it
  trackway stat --json --top 50 t.trk | jq '.top_blocks[0]'")]
pub struct Stat {
    #[command(flatten)]
    pub input: Input,
    /// How many blocks to list; modules, system calls and signals are always listed in full.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Functions whose entries, exits and loops are counted: NAME as for `record`. May be given
    /// several times. By default those that were selected for recording.
    #[arg(long = "routine", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub routines: Vec<String>,
    /// Print JSON instead of text. It is the same in every run over the same file.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Check a trace: every checksum, every chunk, every step against the code, the counts in the
/// headers.
///
/// A damaged trace yields everything that is intact; this verb lists what is missing. The exit
/// status is 1 if anything is wrong.
///
/// Each class of transfer has its own rule: docs/format.md lists them. The target of an indirect
/// jump or call, or of a return, is compared with the value that the instruction loaded, if values
/// were recorded. Without values, or if the target was in a register, it cannot be checked; --json
/// counts those transfers as unchecked_transfers. In a part of a trace (--thread, --skip, --length)
/// each step is only compared with the end of the step before it.
///
/// With --filter, the trace is encoded by a filter of mTrace (Myers 2014) and decoded again: from
/// the program and mcfTRaptor's messages, or from addresses, stored values and mlvCFiat's messages.
/// Every decoded step or load is compared with the recorded one.
#[derive(Args, Debug)]
pub struct Verify {
    #[command(flatten)]
    pub input: Input,
    /// Check that the messages of this filter are enough to decode the rest.
    #[arg(long, value_enum, value_name = "FILTER", conflicts_with_all = ["thread", "skip", "length"])]
    pub filter: Option<Filter>,
    /// All threads share the predictors or the cache of the filter; by default each thread has its
    /// own.
    #[arg(long, requires = "filter")]
    pub shared: bool,
    /// With --shared, threads take turns of N branches or accesses, as with the tool's
    /// --interleave; by default they take turns by time.
    #[arg(long, value_name = "N", requires = "shared")]
    pub interleave: Option<NonZeroU64>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Control flow: the mispredictions of gshare (4096 entries), a return address stack (32) and a
    /// target buffer (64).
    #[value(name = "mcfTRaptor")]
    McfTRaptor,
    /// Load values: the first-access misses of a cache (32 KiB, 4 ways, 32 bytes per line) with
    /// first-access flags. Needs a trace with values.
    #[value(name = "mlvCFiat")]
    MlvCFiat,
}

/// List the execution: one line (or record) per instruction, branch or memory access.
///
/// Threads are merged by time unless one is selected; each thread's own order is exact.
#[derive(Args, Debug)]
#[command(after_help = "\
Formats of --kind control, as mcfTrace (Myers 2014, Figure 4.2) writes them:
  ascii   THREAD, ADDRESS, TARGET, TYPE
          0, 0x0000003f83200b03, 0x0000003f83201130, U, D, T
          TYPE is U, I, T / U, D, T / C, D, T / C, D, NT: unconditional or conditional, indirect or
          direct, taken or not. TARGET of a branch that was not taken is the address that it would
          have gone to. If the process ends in an indirect branch of a thread, TARGET is the word
          unknown.
  binary  18 bytes: thread (1), address (8), target (8), type (1: 0 = U I, 1 = U D, 2 = C D T,
          3 = C D NT, 4 = U I with an unknown target, which is written as 0)
Formats of --kind memory, as mlsTrace (Myers 2014, Figures 4.13 and 4.14) writes them:
  ascii   THREAD, L or S, ADDRESS, OPERAND, SIZE, VALUE
          0, L, 0x0000003f83201156, 0x0000003f8341fb80, 8, 0x0000003f83201130
          An instruction that reads and writes has a line for each, the read (L) first. The value is
          a number; without --data values in the recording there is none.
  binary  thread (1), 0 = load or 1 = store (1), address (8), operand address (8), size (1),
          value (SIZE bytes, as in memory). A size of 255 or more is 255 and then the size in
          4 bytes; --wide makes every size 4 bytes long without the 255. Without values in the
          recording, records end behind the size. If only this access was recorded without a value,
          the highest bit of a size in 4 bytes is 1, and no value follows.
Format of --kind scopes:
  ascii   THREAD, SCOPE, FUNCTION, ADDRESS         0, exit loop, solve, 0x401156, trips 100
          SCOPE is enter or exit, of the function, or enter loop or exit loop. ADDRESS is where the
          function or the loop begins. A loop makes as many trips as it executes its first block. An
          activation inside of others of the same function ends with their number: recursion 2.
Format of --kind allocations:
  ascii   THREAD, ROUTINE, SIZE, RESULT, [REMARKS,] CALL STACK
          0, malloc, 24, 0x55d0c8a012a0, push+0x12 < main+0x40 < __libc_start_call_main+0x7a
          0, realloc, 48, 0x55d0c8a012c0, was 0x55d0c8a012a0, push+0x2b < main+0x40
          0, free, -, 0x55d0c8a00f00, allocated before the recording, main+0x5c
          0, mmap, 135168, 0x7f1c3a200000, nested, sysmalloc+0x2f1 < malloc+0x1c2 < main+0x10
          A line stands where the routine returns. RESULT is the block or the mapping; of free,
          operator delete and munmap, what is given back. nested: an allocation routine has made
          the system call. The call stack has return addresses, the innermost first.
Formats of --kind instructions:
  ascii   THREAD, ADDRESS[, DISASSEMBLY]
          0, 0x00007f5a40996bbe, test rax, rax
  binary  9 bytes: thread (1), address (8)
All integers are little-endian. --wide makes the thread 4 bytes long.

Examples:
  trackway dump t.trk | head
  trackway dump --kind control -d --thread 0 --skip 1M --length 1k t.trk
  trackway dump --kind control --format binary -o branches.bin t.trk
  trackway dump --kind memory -d --thread 1 t.trk")]
pub struct Dump {
    #[command(flatten)]
    pub input: Input,
    /// Kind of items to list.
    #[arg(short, long, value_enum, default_value_t = Kind::Instructions)]
    pub kind: Kind,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Ascii, conflicts_with = "json")]
    pub format: Format,
    /// Functions whose entries, exits and loops are listed with `--kind scopes`: NAME as for
    /// `record`. May be given several times. By default those that were selected for recording, or
    /// else all.
    #[arg(long = "routine", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub routines: Vec<String>,
    /// Add the disassembly (not in binary).
    #[arg(short, long)]
    pub disassemble: bool,
    /// Write threads (and sizes of operands) as 4 bytes in binary, for traces with more than 256
    /// threads.
    #[arg(long)]
    pub wide: bool,
    /// Write one JSON object per line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every instruction.
    Instructions,
    /// Every branch, with its class, outcome and target.
    Control,
    /// Every memory access, with its address, size and value.
    Memory,
    /// When threads enter and leave functions and loops.
    Scopes,
    /// Every call of an allocation routine, and every mapping, with its call stack.
    Allocations,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines of text.
    Ascii,
    /// Binary records.
    Binary,
}

/// Repeat the measurements of three theses with our own programs; docs/experiments.md compares the
/// results.
#[derive(Subcommand, Debug)]
pub enum Experiment {
    Mtrace(ExperimentMtrace),
    Port(port::ExperimentPort),
    Segment(segment::ExperimentSegment),
}

/// Repeat Tables 5.1 to 5.4 and 6.1 to 6.16 and Figures 6.1 to 6.3 of Myers 2014: the instruction
/// mix of the programs, and the traces of the four tools.
///
/// Builds each program (needs a C compiler) and runs it natively, under the engine alone (a tool
/// that skips everything) and under the tools. Then records it and runs the tools over the trace:
/// without a compressor, with gzip and with bzip2, filters with private and with shared structures.
/// Slowdowns are measured once more with ten times as many instructions. The default programs take
/// about twenty minutes on two cores and up to 2 GB of disk for temporary files at a time.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway experiment mtrace --plots mtrace            every table as CSV, every figure as SVG
  trackway experiment mtrace --programs fft,radix --threads 1,2 --json -o mtrace.json")]
pub struct ExperimentMtrace {
    /// Programs, of workloads/parallel.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "fft,radix,cholesky,radiosity,raytrace")]
    pub programs: Vec<String>,
    /// Numbers of threads.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,4,8",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Vec<u16>,
    /// The size argument of the programs, whose meaning depends on the program. By default one size
    /// for about ten million instructions and one for a hundred million.
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(u32).range(1..))]
    pub size: Option<u32>,
    /// Number of rounds. Tables show the median, and the range behind it where it is visible;
    /// compressors run once.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    #[command(flatten)]
    pub results: Results,
}

/// Build a multithreaded program, record it, and summarise the trace.
///
/// Needs gcc, and nothing else.
#[derive(Args, Debug)]
pub struct Demo {
    /// Number of threads that the program starts.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub threads: u16,
    /// File for the trace.
    #[arg(short, long, value_name = "FILE", default_value = "demo.trk")]
    pub output: PathBuf,
}

/// Print a script that completes verbs and options in a shell.
///
/// The shell reads the script when it starts, or when it first completes `trackway`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trackway completions bash > ~/.local/share/bash-completion/completions/trackway
  trackway completions zsh > /usr/local/share/zsh/site-functions/_trackway
  trackway completions fish > ~/.config/fish/completions/trackway.fish")]
pub struct Completions {
    /// The shell that will read the script.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The trace to read and the selected part of it.
#[derive(Args, Debug)]
pub struct Input {
    /// The trace.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only this thread (as numbered by `info`).
    #[arg(short, long, value_name = "T", value_parser = clap::value_parser!(u32).map(ThreadId::new))]
    pub thread: Option<ThreadId>,
    /// Skip the first N instructions (of the thread, or of all threads merged by time). k, M, G:
    /// thousand, million, billion.
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "0", hide_default_value = true)]
    pub skip: u64,
    /// Stop after N instructions.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub length: Option<u64>,
}

impl Input {
    /// Returns the selected part.
    pub fn excerpt(&self) -> trace::Excerpt {
        trace::Excerpt { thread: self.thread, start: InstructionIndex::new(self.skip), length: self.length }
    }

    /// Returns whether a part of the trace is selected rather than all of it.
    pub fn is_partial(&self) -> bool {
        self.thread.is_some() || self.skip > 0 || self.length.is_some()
    }
}

/// The destination of the result.
#[derive(Args, Debug)]
pub struct Output {
    /// Write to OUT instead of standard output.
    #[arg(short = 'o', long = "output", value_name = "OUT", id = "out")]
    pub file: Option<PathBuf>,
}

/// The input of an analysis: a recorded trace, or a program while it runs.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("source").required(true).args(["input", "pid", "command"]))]
pub struct Source {
    /// Read this trace (made by `trackway record`) instead of running a program.
    #[arg(short, long, value_name = "FILE.trk")]
    pub input: Option<PathBuf>,
    /// Attach to the running process with this number.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Detach from the program after S seconds; it runs on by itself.
    #[arg(long, value_name = "S", value_parser = parse_seconds, conflicts_with = "input")]
    pub seconds: Option<Duration>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The destination of the tables and figures of an experiment.
#[derive(Args, Debug)]
pub struct Results {
    /// Write every table as CSV and every figure as SVG into this directory, which is created if it
    /// does not exist.
    #[arg(long, value_name = "DIRECTORY")]
    pub plots: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print tables as Markdown.
    #[arg(long)]
    pub markdown: bool,
    #[command(flatten)]
    pub output: Output,
}

/// Parses a time in seconds.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds: &f64| *seconds >= 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("'{text}' is not a time in seconds, such as 10 or 0.25"))
}

/// Parses a size in millions of bytes.
fn parse_megabytes(text: &str) -> Result<u64, String> {
    const LARGEST: f64 = 1e12;
    let megabytes: Option<f64> = text.parse().ok().filter(|size: &f64| (0.0..=LARGEST).contains(size) && *size > 0.0);
    let bytes = megabytes.map(|megabytes| (megabytes * 1e6) as u64);
    bytes.ok_or_else(|| format!("'{text}' is not a size in megabytes, such as 100 or 0.5"))
}

/// Parses a size of the code cache: bytes, or with K, M or G.
fn parse_code_cache(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok().filter(|_| !digits.starts_with('+'));
    let bytes = number.and_then(|number: u64| number.checked_mul(1 << shift));
    let bytes = bytes.ok_or_else(|| format!("'{text}' is not a size, such as 64M or 2G"))?;
    if bytes < capture::CODE_CACHE_BYTES_MIN {
        return Err(format!("it must be at least {}M", capture::CODE_CACHE_BYTES_MIN >> 20));
    }
    Ok(bytes)
}

/// Parses a number of instructions: digits, perhaps with a fraction, and k, M or G.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let problem = || format!("'{text}' is not a number, such as 1000, 64k, 2.5M or 1G");
    let (digits, zeros) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 3),
        Some('m' | 'M') => (&text[..text.len() - 1], 6),
        Some('g' | 'G') => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || digits.ends_with('.') {
        return Err(problem());
    }
    if fraction.len() > zeros {
        return Err(format!("'{text}' is not a whole number of instructions"));
    }
    let padding = "0".repeat(zeros - fraction.len());
    format!("{whole}{fraction}{padding}").parse().map_err(|_| format!("'{text}' is too large"))
}

/// Parses a number of instructions above 0.
fn parse_positive_count(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("it must be at least 1".to_owned()),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn counts_take_suffixes() {
        for (text, expected) in [
            ("0", 0),
            ("17", 17),
            ("3k", 3000),
            ("3K", 3000),
            ("2.5M", 2_500_000),
            ("1G", 1_000_000_000),
            ("0.001k", 1),
        ] {
            assert_eq!(parse_count(text), Ok(expected), "{text}");
        }
        for text in ["", "k", "-1", "1.5", "1.", ".5k", "1kk", "0x10", "1 k", "99999999999G", "1.0001k", "ä"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn record_takes_the_command_as_it_is() {
        let Verb::Record(record) = parse("trackway record -o x.trk --no-aslr -- ls -o --help -- y").unwrap().verb
        else {
            panic!("another verb");
        };
        assert_eq!(record.command, ["ls", "-o", "--help", "--", "y"]);
        assert_eq!((record.output, record.no_aslr), (PathBuf::from("x.trk"), true));
        let Verb::Record(record) = parse("trackway record -q ls -l -- x").unwrap().verb else { panic!("another verb") };
        assert_eq!(record.command, ["ls", "-l", "--", "x"]);
    }

    #[test]
    fn record_takes_a_process_and_limits() {
        let Verb::Record(record) = parse("trackway record -p 17 --seconds 0.25 --max-size 1.5").unwrap().verb else {
            panic!("another verb");
        };
        assert_eq!((record.pid, record.max_size), (Some(17), Some(1_500_000)));
        assert_eq!(record.seconds, Some(Duration::from_millis(250)));
        assert_eq!(record.code_cache, capture::CODE_CACHE_BYTES);
        let Verb::Record(record) = parse("trackway record --code-cache 64M ls").unwrap().verb else {
            panic!("another verb");
        };
        assert_eq!(record.code_cache, 64 << 20);
        for size in ["", "M", "1M", "+64M", "64X", "-1", "99999999999G"] {
            assert!(parse(&format!("trackway record --code-cache {size} ls")).is_err(), "{size}");
        }
        for line in ["-p 17 -- ls", "-p 0", "-p -3", "-p x", "--seconds -1 ls", "--seconds nan ls", "--max-size 0 ls"] {
            assert!(parse(&format!("trackway record {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn record_takes_a_part_of_the_program() {
        let line = "trackway record --skip 2k --length 1M --no-shared-libs --routine a* --routine b --callees ls";
        let Verb::Record(record) = parse(line).unwrap().verb else { panic!("another verb") };
        assert_eq!((record.skip, record.length, record.no_shared_libs), (2000, Some(1_000_000), true));
        assert_eq!((record.routines, record.callees), (vec!["a*".to_owned(), "b".to_owned()], true));
        for wrong in ["--length 0", "--length x", "--skip -1", "--callees", "--routine= "] {
            assert!(parse(&format!("trackway record {wrong} ls")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_seeds_formats_are_spelled_as_in_the_help() {
        let Verb::Dump(dump) =
            parse("trackway dump --kind control --format binary --wide -t 3 --skip 1k f").unwrap().verb
        else {
            panic!("another verb");
        };
        assert_eq!((dump.kind, dump.format, dump.wide), (Kind::Control, Format::Binary, true));
        assert_eq!((dump.input.thread, dump.input.skip, dump.input.length), (Some(ThreadId::new(3)), 1000, None));
        assert!(dump.input.is_partial());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for line in ["trackway", "trackway record --bogus x", "trackway info", "trackway dump -k nonsense f"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("trackway dump --json --format binary f").is_err());
        assert!(parse("trackway stat --thread -1 f").is_err());
    }
}
