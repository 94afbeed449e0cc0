//! Section 5 of METRIC (Marathe and others 2007): how well regular sections with SEQUITUR compress
//! the memory accesses of programs, beside VPC3 (Table I), and how long that takes (Figure 7).
//!
//! As in the paper, traces are partial. There they begin at `main`, here behind a number of
//! instructions, so that the dynamic linker does not count; they end after a number of accesses.
//! Other than there, accesses are recorded first and compressed from the recording, so that all
//! codecs get the same accesses. What the paper calls instrumentation is here the time that
//! recording adds to a program's own.

mod figures;
mod statistics;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memory::second_stage::SecondStage;
use memory::{CompressError, CompressionOptions, CompressionSummary, MemoryCodec};
use scope::Scopes;
use serde::Serialize;
use trace::{InstructionIndex, Trace};

use crate::debian::{self, DebianProgram, ENVIRONMENT};
use crate::programs::{self, Workspace, build, without_duplicates};
use crate::spread::{Spread, times};
use crate::{Error, Findings, NamedTable, Observer};

/// The programs that are measured by default: loop nests first, real programs last.
const DEFAULT_PROGRAMS: [&str; 19] = [
    "matmul",
    "lu-contiguous",
    "lu-noncontiguous",
    "ocean-contiguous",
    "ocean-noncontiguous",
    "fft",
    "radix",
    "cholesky",
    "water",
    "nbody",
    "bzip2",
    "gcc",
    "gzip",
    "openssl",
    "perl",
    "sort",
    "sqlite",
    "xz",
    "zstd",
];

/// The benchmarks of the paper are sequential.
const THREADS: &str = "1";

/// The traces or programs to measure, and how much of each program.
#[derive(Clone, Debug)]
pub struct Options {
    /// Recorded traces, instead of programs.
    pub traces: Vec<PathBuf>,
    /// Names of programs; the usual ones, as far as they are installed, if there is none.
    pub programs: Vec<String>,
    /// The first instruction of each program that is recorded, and the number of accesses after
    /// which the recording ends.
    pub start: InstructionIndex,
    pub accesses: u64,
    /// The second stage of all codecs.
    pub stage: SecondStage,
    /// The number of rounds.
    pub repeat: u16,
    /// The path of the `trackway` command.
    pub trackway: PathBuf,
}

/// The experiment before it runs.
pub struct Experiment {
    options: Options,
    subjects: Vec<Subject>,
}

impl Experiment {
    /// Finds the programs. Warns of usual ones that are not installed.
    pub fn new(options: Options, observer: &dyn Observer) -> Result<Self, Error> {
        let subjects = if !options.traces.is_empty() {
            options.traces.iter().cloned().map(Subject::Recorded).collect()
        } else if options.programs.is_empty() {
            usual_programs(observer)?
        } else {
            let names = without_duplicates(&options.programs);
            names.iter().map(|name| Subject::find(name)).collect::<Result<_, _>>()?
        };
        Ok(Self { options, subjects })
    }

    /// Measures all programs. Leaves out a program that fails, with a warning; fails if all do.
    pub fn run(&self, observer: &dyn Observer) -> Result<Study, Error> {
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for subject in &self.subjects {
            match subject.measure(&self.options, observer) {
                Ok(own) => results.push(own),
                Err(error) => failures.push(error),
            }
        }
        if results.is_empty()
            && let Some(error) = failures.pop()
        {
            return Err(error);
        }
        failures.iter().for_each(|error| observer.warn(&format!("left out: {error}")));
        Ok(Study::new(results, failures.is_empty()))
    }
}

/// Returns the usual programs that are installed.
fn usual_programs(observer: &dyn Observer) -> Result<Vec<Subject>, Error> {
    let all = DEFAULT_PROGRAMS.into_iter().map(Subject::find).collect::<Result<Vec<_>, _>>()?;
    let is_there = |subject: &Subject| match subject {
        Subject::Debian(program) if !program.is_installed() => {
            let DebianProgram { name, package, .. } = program;
            observer.warn(&format!("{name} is left out: it is not installed (package {package})"));
            false
        }
        _ => true,
    };
    Ok(all.into_iter().filter(is_there).collect())
}

/// What is measured: a program of `workloads/parallel` or of the distribution, or a trace.
enum Subject {
    Parallel(&'static str),
    Debian(&'static DebianProgram),
    Recorded(PathBuf),
}

impl Subject {
    fn find(name: &str) -> Result<Self, Error> {
        if let Some(parallel) = programs::names().find(|known| *known == name) {
            return Ok(Self::Parallel(parallel));
        }
        let known = || programs::names().chain(debian::all().iter().map(|program| program.name));
        DebianProgram::find(name).map(Self::Debian).map_err(|_| Error::UnknownProgram {
            kind: "program",
            name: name.to_owned(),
            known: known().collect::<Vec<_>>().join(", "),
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Parallel(name) => (*name).to_owned(),
            Self::Debian(program) => program.name.to_owned(),
            Self::Recorded(path) => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }

    fn measure(&self, options: &Options, observer: &dyn Observer) -> Result<ProgramResult, Error> {
        let workspace = Workspace::new(&options.trackway)?;
        let mut rounds = Vec::new();
        let command = self.command(workspace.directory())?;
        for round in 1..=options.repeat {
            observer.stage(&|| format!("{}, {round} of {}", self.name(), options.repeat));
            let (path, seconds) = match self {
                Self::Recorded(path) => (path.clone(), None),
                _ => record(&workspace, &command, options)?,
            };
            rounds.push(Round::measure(&path, seconds, options.stage)?);
        }
        if rounds.iter().any(|round| round.accesses == 0) {
            return Err(Error::NoAccesses(self.name()));
        }
        Ok(ProgramResult { program: self.name(), rounds })
    }

    /// Returns the command to be recorded in a directory that has its input; nothing of a trace.
    fn command(&self, directory: &Path) -> Result<Vec<String>, Error> {
        match self {
            Self::Parallel(name) => {
                let size = programs::long_size(name)?;
                Ok(vec![build(name)?.display().to_string(), THREADS.to_owned(), size.to_owned()])
            }
            Self::Debian(program) => program.prepare(directory),
            Self::Recorded(_) => Ok(Vec::new()),
        }
    }
}

/// Seconds of a whole program: by itself, and with a part of its accesses recorded.
#[derive(Clone, Copy, Debug, Serialize)]
struct RunSeconds {
    native: f64,
    recorded: f64,
}

/// Runs a program by itself, records a part of its accesses, and returns the trace.
fn record(
    workspace: &Workspace<'_>,
    command: &[String],
    options: &Options,
) -> Result<(PathBuf, Option<RunSeconds>), Error> {
    let native = workspace.time_natively(command, &ENVIRONMENT)?;
    let path = workspace.path("program.trk");
    let (start, accesses) = (options.start.to_string(), options.accesses.to_string());
    let words = ["record", "-q", "--no-aslr", "--data", "addresses", "--skip", &start, "--accesses", &accesses];
    let begin = Instant::now();
    workspace.run_isolated(&[&words[..], &["-o", &path, "--"]].concat(), command, &ENVIRONMENT)?;
    let recorded = begin.elapsed().as_secs_f64();
    Ok((path.into(), Some(RunSeconds { native, recorded })))
}

/// What one recording of a program gives.
#[derive(Serialize)]
struct Round {
    accesses: u64,
    points: u64,
    /// Accesses in regular sections, in per cent of all.
    predictable_percent: f64,
    /// `None` for a trace that was recorded before.
    run_seconds: Option<RunSeconds>,
    codecs: BTreeMap<&'static str, CodecResult>,
}

/// What a codec makes of a recording. A key that `trackway memory compress --json` has, too, means
/// the same here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct CodecResult {
    compressed_bytes: u64,
    rate: f64,
    seconds: f64,
    detector_seconds: f64,
    order_seconds: f64,
    records_seconds: f64,
    output_seconds: f64,
    order_bytes: u64,
    address_bytes: u64,
    symbols: u64,
    regular_sections: u64,
    irregular_accesses: u64,
}

impl Round {
    fn measure(path: &Path, run_seconds: Option<RunSeconds>, stage: SecondStage) -> Result<Self, Error> {
        let trace = Trace::open(path)?;
        if !trace.is_finished() {
            return Err(Error::Unfinished(path.to_owned()));
        }
        let mut codecs = BTreeMap::new();
        let (mut accesses, mut points, mut irregular) = (0, 0, 0);
        for codec in MemoryCodec::ALL {
            let (summary, seconds) = compress(&trace, path, codec, stage)?;
            (accesses, points) = (summary.accesses, summary.points);
            // The others count none.
            irregular += summary.irregular_accesses;
            codecs.insert(codec.name(), CodecResult::new(&summary, seconds));
        }
        let predictable_percent = 100.0 * (1.0 - times(irregular, accesses));
        Ok(Self { accesses, points, predictable_percent, run_seconds, codecs })
    }

    fn codec(&self, codec: MemoryCodec) -> &CodecResult {
        &self.codecs[codec.name()]
    }

    fn rate(&self, codec: MemoryCodec) -> f64 {
        self.codec(codec).rate
    }

    /// How many times as well regular sections compress as VPC3: the last column of Table I.
    fn ratio(&self) -> f64 {
        self.rate(MemoryCodec::Prsd) / self.rate(MemoryCodec::Vpc3)
    }

    /// Returns what recording adds to the time of the program.
    fn instrumentation_seconds(&self) -> f64 {
        self.run_seconds.map_or(0.0, |seconds| (seconds.recorded - seconds.native).max(0.0))
    }

    /// Returns the seconds of VPC3 with instrumentation and the second stage, to which Figure 7 is
    /// relative.
    fn vpc3_seconds(&self) -> f64 {
        let vpc3 = self.codec(MemoryCodec::Vpc3);
        self.instrumentation_seconds() + vpc3.records_seconds + vpc3.output_seconds
    }
}

/// Compresses all accesses and returns the seconds that it took, with those of reading the trace.
fn compress(
    trace: &Trace,
    path: &Path,
    codec: MemoryCodec,
    stage: SecondStage,
) -> Result<(CompressionSummary, f64), Error> {
    let options = CompressionOptions { stage, ..CompressionOptions::default() };
    let (mut damage, start) = (None, Instant::now());
    let note = |error: &trace::ReadError| {
        damage.get_or_insert_with(|| error.clone());
    };
    // VPC3 has no place for scopes, so neither codec keeps any.
    let (scopes, out) = (Scopes::default(), std::io::sink());
    let compressed = memory::compress(trace, &scopes, codec, options, out, note, |_| {});
    let seconds = start.elapsed().as_secs_f64();
    match (compressed, damage) {
        // Without some of the accesses, the results would be wrong.
        (_, Some(error)) => Err(Error::Damaged { path: path.to_owned(), error }),
        (Err(CompressError::Read(error)), _) => Err(error.into()),
        (Err(CompressError::Write(error)), _) => Err(Error::Write { path: path.to_owned(), error }),
        (Ok((_, summary)), None) => Ok((summary, seconds)),
    }
}

impl CodecResult {
    fn new(summary: &CompressionSummary, seconds: f64) -> Self {
        Self {
            compressed_bytes: summary.bytes,
            rate: summary.rate(),
            seconds,
            detector_seconds: summary.times.detector.as_secs_f64(),
            order_seconds: summary.times.order.as_secs_f64(),
            records_seconds: summary.times.records.as_secs_f64(),
            output_seconds: summary.times.output.as_secs_f64(),
            order_bytes: summary.order_bytes,
            address_bytes: summary.address_bytes,
            symbols: summary.symbols,
            regular_sections: summary.regular_pieces,
            irregular_accesses: summary.irregular_accesses,
        }
    }

    /// Returns the seconds of reading the recording, which METRIC does not do.
    fn reading_seconds(&self) -> f64 {
        let own = self.detector_seconds + self.order_seconds + self.records_seconds + self.output_seconds;
        (self.seconds - own).max(0.0)
    }
}

/// The results of a program.
#[derive(Serialize)]
struct ProgramResult {
    program: String,
    rounds: Vec<Round>,
}

impl ProgramResult {
    fn spread(&self, figure: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        self.spread(figure).median
    }

    fn predictable_percent(&self) -> f64 {
        self.median(|round| round.predictable_percent)
    }
}

/// The results of all programs, the most regular first.
pub struct Study {
    results: Vec<ProgramResult>,
    is_complete: bool,
}

impl Study {
    fn new(mut results: Vec<ProgramResult>, is_complete: bool) -> Self {
        results.sort_by(|one, other| other.predictable_percent().total_cmp(&one.predictable_percent()));
        Self { results, is_complete }
    }

    /// Returns whether no program had to be left out.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl Findings for Study {
    fn tables(&self) -> Vec<NamedTable> {
        self.all_tables()
    }

    fn figures(&self) -> Vec<(String, String)> {
        self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg)).collect()
    }

    fn json(&self) -> impl Serialize {
        &self.results
    }
}

#[cfg(test)]
mod tests;
