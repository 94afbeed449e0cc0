//! Chapters 5 and 6 of Myers 2014: the instruction mix of the programs, the size of the traces of
//! the four tools and how well they compress, private against shared structures, and times: while a
//! program runs, as in the thesis, and over a recorded trace.

mod figures;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use serde_json::Value;

use crate::programs::{Runs, Workspace, build, timed};
use crate::spread::Spread;
use crate::{Error, Findings, NamedTable, Observer};

/// One of the four tools, and its arguments.
struct Tool {
    /// The key in JSON and in tables.
    name: &'static str,
    words: &'static [&'static str],
    needs_values: bool,
    /// Whether it is timed while the program runs, too. Variants are not: one of them needs a
    /// trace, and they take as long as the tool itself.
    is_timed: bool,
}

impl Tool {
    const fn new(name: &'static str, words: &'static [&'static str], needs_values: bool) -> Self {
        Self { name, words, needs_values, is_timed: true }
    }

    const fn variant(name: &'static str, words: &'static [&'static str], needs_values: bool) -> Self {
        Self { name, words, needs_values, is_timed: false }
    }
}

/// The predictors are those of section 6.3, the cache is that of section 6.4. Variants: threads
/// take turns of one branch, as if each had a processor to itself; a load is known by its flags
/// alone, as in the theses.
const TOOLS: [Tool; 9] = [
    Tool::new("mcftrace", &["mcfTrace"], false),
    Tool::new("mlstrace", &["mlsTrace", "-store"], true),
    Tool::new("mcftraptor_private", &["mcfTRaptor", "-gshare", "4096", "-RAS", "32", "-iBTB", "64"], false),
    Tool::new(
        "mcftraptor_shared",
        &["mcfTRaptor", "-TRaptorShare", "-gshare", "4096", "-RAS", "32", "-iBTB", "64"],
        false,
    ),
    Tool::new("mlvcfiat_private", &["mlvCFiat", "-cs", "64", "-ca", "4", "-cls", "64"], true),
    Tool::new("mlvcfiat_shared", &["mlvCFiat", "-cshare", "-cs", "64", "-ca", "4", "-cls", "64"], true),
    Tool::variant(
        "mcftraptor_interleaved",
        &["mcfTRaptor", "-TRaptorShare", "--interleave", "1", "-gshare", "4096", "-RAS", "32", "-iBTB", "64"],
        false,
    ),
    Tool::variant(
        "mlvcfiat_private_flags",
        &["mlvCFiat", "--known", "flags", "-cs", "64", "-ca", "4", "-cls", "64"],
        true,
    ),
    Tool::variant(
        "mlvcfiat_shared_flags",
        &["mlvCFiat", "-cshare", "--known", "flags", "-cs", "64", "-ca", "4", "-cls", "64"],
        true,
    ),
];

/// A general-purpose compressor for the output of tools.
struct Compressor {
    name: &'static str,
    /// The suffix that it adds to the name of a file.
    suffix: &'static str,
}

const GZIP: Compressor = Compressor { name: "gzip", suffix: ".gz" };
const BZIP2: Compressor = Compressor { name: "bzip2", suffix: ".bz2" };

/// Returns the tools that are timed while programs run.
fn timed_tools() -> impl Iterator<Item = &'static Tool> {
    TOOLS.iter().filter(|tool| tool.is_timed)
}

/// A number above the instructions of any program: the engine runs the program and counts, and
/// nothing is traced. The thesis compares with inscount_tls of Pin, which does the same.
const ALL: &str = "1000G";

/// The results of a program with a number of threads.
#[derive(Serialize)]
struct ProgramResult {
    program: String,
    threads: u16,
    seconds: Seconds,
    /// With a larger size, so that the start hardly counts.
    long_seconds: Seconds,
    #[serde(flatten)]
    tools: BTreeMap<&'static str, ToolOutcome>,
}

/// Seconds of every round: native; with everything skipped, for tools that take control flow and
/// for those that take values; recorded; under the tools.
#[derive(Serialize, Default)]
struct Seconds {
    native: Vec<f64>,
    untraced: Vec<f64>,
    untraced_with_values: Vec<f64>,
    recorded: Vec<f64>,
    recorded_with_values: Vec<f64>,
    live: BTreeMap<&'static str, Vec<f64>>,
}

/// The output of a tool: every round without a compressor, the first one with each compressor, too.
#[derive(Serialize, Default)]
struct ToolOutcome {
    rounds: Vec<ToolOutput>,
    gzip: CompressedOutput,
    bzip2: CompressedOutput,
}

/// Output of a tool over a trace, without a compressor.
#[derive(Serialize)]
struct ToolOutput {
    bytes: u64,
    seconds: f64,
    statistics: Value,
}

/// Seconds over a trace, and while the program runs (`live_seconds`), if that is timed.
#[derive(Serialize, Default)]
struct CompressedOutput {
    bytes: u64,
    seconds: f64,
    live_seconds: Option<f64>,
}

impl ToolOutput {
    fn number(&self, name: &str) -> u64 {
        self.statistics[name].as_u64().unwrap_or(0)
    }

    fn rate(&self, name: &str) -> f64 {
        self.statistics[name].as_f64().unwrap_or(0.0)
    }
}

/// Returns the median and the range of all rounds.
fn spread(seconds: &[f64]) -> Spread {
    Spread::of(seconds.iter().copied())
}

impl Seconds {
    /// Returns the seconds of the engine alone, with the data that this tool needs.
    fn untraced_by(&self, tool: &str) -> Spread {
        let needs_values = TOOLS.iter().any(|own| own.name == tool && own.needs_values);
        spread(if needs_values { &self.untraced_with_values } else { &self.untraced })
    }

    fn live(&self, tool: &str) -> Spread {
        self.live.get(tool).map_or(spread(&[]), |seconds| spread(seconds))
    }
}

impl ToolOutcome {
    fn spread(&self, figure: impl Fn(&ToolOutput) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    /// Returns the size of the input of the compressors.
    fn first_bytes(&self) -> u64 {
        self.rounds.first().map_or(0, |raw| raw.bytes)
    }
}

/// The experiment before it runs.
pub struct Experiment {
    runs: Runs,
}

impl Experiment {
    /// Checks that all programs exist.
    pub fn new(runs: Runs) -> Result<Self, Error> {
        Ok(Self { runs: runs.checked()? })
    }

    /// Measures every program with every number of threads.
    pub fn run(&self, observer: &dyn Observer) -> Result<Study, Error> {
        let Runs { programs, threads, repeat, trackway, .. } = &self.runs;
        let mut rows = Vec::new();
        for program in programs {
            for &threads in threads {
                let mut row = ProgramResult::new(program, threads);
                let usual = Subject::new(program, threads, self.runs.size_of(program)?, trackway)?;
                let long = Subject::new(program, threads, self.runs.long_size_of(program)?, trackway)?;
                for round in 1..=*repeat {
                    observer.stage(&|| format!("{program} with {threads} threads, {round} of {repeat}"));
                    usual.time(&mut row.seconds)?;
                    usual.filter(&mut row.tools)?;
                    long.time(&mut row.long_seconds)?;
                }
                rows.push(row);
            }
        }
        Ok(Study { rows })
    }
}

/// A program that is measured, and its workspace.
struct Subject<'s> {
    command: Vec<String>,
    workspace: Workspace<'s>,
}

impl<'s> Subject<'s> {
    fn new(program: &str, threads: u16, size: String, trackway: &'s Path) -> Result<Self, Error> {
        let command = vec![build(program)?.display().to_string(), threads.to_string(), size];
        Ok(Self { command, workspace: Workspace::new(trackway)? })
    }

    /// Returns the path of the recording with control flow alone, or with values.
    fn trace(&self, with_values: bool) -> String {
        self.workspace.path(if with_values { "values.trk" } else { "control.trk" })
    }

    /// Runs and records the program once in every way.
    fn time(&self, seconds: &mut Seconds) -> Result<(), Error> {
        let [control, values] = [false, true].map(|with_values| self.trace(with_values));
        seconds.native.push(timed(Command::new(&self.command[0]).args(&self.command[1..]))?);
        seconds.untraced.push(self.untraced("mcfTrace")?);
        seconds.untraced_with_values.push(self.untraced("mlsTrace")?);
        seconds.recorded.push(self.run(&["record", "-q", "-o", &control])?);
        seconds.recorded_with_values.push(self.run(&["record", "-q", "--data", "values", "-o", &values])?);
        for tool in timed_tools() {
            seconds.live.entry(tool.name).or_default().push(self.live(tool, &[], "")?);
        }
        Ok(())
    }

    /// Runs all tools over the last recordings.
    fn filter(&self, tools: &mut BTreeMap<&'static str, ToolOutcome>) -> Result<(), Error> {
        for tool in &TOOLS {
            let (trace, outcome) = (self.trace(tool.needs_values), tools.entry(tool.name).or_default());
            if outcome.rounds.is_empty() {
                outcome.gzip = self.compressed(tool, &trace, &GZIP)?;
                outcome.bzip2 = self.compressed(tool, &trace, &BZIP2)?;
            }
            outcome.rounds.push(self.raw(tool, &trace)?);
        }
        Ok(())
    }

    /// Runs the command on the program.
    fn run(&self, words: &[&str]) -> Result<f64, Error> {
        let command: Vec<&str> = std::iter::once("--").chain(self.command.iter().map(String::as_str)).collect();
        self.workspace.time(words, &command)
    }

    /// Runs the program under a tool that traces nothing. The warning about it is dropped.
    fn untraced(&self, tool: &str) -> Result<f64, Error> {
        let mut own = self.workspace.command();
        own.args([tool, "-q", "-o", "x", "-s", ALL, "--"]).args(&self.command);
        timed(own.stderr(Stdio::null()))
    }

    fn raw(&self, tool: &Tool, trace: &str) -> Result<ToolOutput, Error> {
        let (bytes, seconds) = self.over_trace(tool, trace, &[], "")?;
        let name = "x.Statistics";
        let statistics = std::fs::read(self.workspace.directory().join(name)).map_err(|error| missing(name, &error))?;
        let statistics = serde_json::from_slice(&statistics).map_err(|error| missing(name, &error))?;
        Ok(ToolOutput { bytes, seconds, statistics })
    }

    fn compressed(&self, tool: &Tool, trace: &str, compressor: &Compressor) -> Result<CompressedOutput, Error> {
        let flags = ["-c", compressor.name];
        let live_seconds = tool.is_timed.then(|| self.live(tool, &flags, compressor.suffix)).transpose()?;
        let (bytes, seconds) = self.over_trace(tool, trace, &flags, compressor.suffix)?;
        Ok(CompressedOutput { bytes, seconds, live_seconds })
    }

    fn live(&self, tool: &Tool, flags: &[&str], suffix: &str) -> Result<f64, Error> {
        let seconds = self.run(&[tool.words, &["-q", "-o", "live"], flags].concat())?;
        self.remove_large(&format!("live.bin{suffix}"));
        Ok(seconds)
    }

    /// Removes an output. The directory is only removed at the end, and outputs are large.
    fn remove_large(&self, name: &str) {
        drop(std::fs::remove_file(self.workspace.directory().join(name)));
    }

    /// Returns the number of bytes that a tool writes, and the seconds that it takes.
    fn over_trace(&self, tool: &Tool, trace: &str, flags: &[&str], suffix: &str) -> Result<(u64, f64), Error> {
        let words = [tool.words, &["-q", "--json", "-o", "x", "-i", trace], flags].concat();
        let seconds = self.workspace.time(&words, &[])?;
        let name = format!("x.bin{suffix}");
        let bytes = self.workspace.directory().join(&name).metadata().map_err(|error| missing(&name, &error))?.len();
        self.remove_large(&name);
        Ok((bytes, seconds))
    }
}

fn missing(file: &str, problem: &dyn std::fmt::Display) -> Error {
    Error::ToolOutput { file: file.to_owned(), problem: problem.to_string() }
}

impl ProgramResult {
    fn new(program: &str, threads: u16) -> Self {
        let [seconds, long_seconds] = [Seconds::default(), Seconds::default()];
        Self { program: program.to_owned(), threads, seconds, long_seconds, tools: BTreeMap::new() }
    }

    /// Returns the output of a tool of [`TOOLS`].
    fn tool(&self, name: &str) -> &ToolOutcome {
        &self.tools[name]
    }

    /// Returns a figure of two tools, round by round: both read the same trace.
    fn spread_of_two(&self, one: &str, other: &str, figure: impl Fn(&ToolOutput, &ToolOutput) -> f64) -> Spread {
        let rounds = self.tool(one).rounds.iter().zip(&self.tool(other).rounds);
        Spread::of(rounds.map(|(one, other)| figure(one, other)))
    }
}

/// The results of all programs with all numbers of threads.
pub struct Study {
    rows: Vec<ProgramResult>,
}

impl Findings for Study {
    fn tables(&self) -> Vec<NamedTable> {
        self.all_tables()
    }

    fn figures(&self) -> Vec<(String, String)> {
        self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg)).collect()
    }

    fn json(&self) -> impl Serialize {
        &self.rows
    }
}
