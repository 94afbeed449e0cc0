//! Chapters 5 and 6 of Myers 2014: what the programs do, how large the traces of the four tools are, how well they compress, how much
//! private structures are better than shared ones, and how long it takes: while a program runs, as in the thesis, and over a recorded trace.

mod figures;
mod tables;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde::Serialize;
use serde_json::Value;

use super::programs::{Place, build, once, size_of, timed};
use super::spread::Spread;
use super::{Findings, Named, open, write};
use crate::arguments::ExperimentMtrace;
use crate::compressor::Compressor;
use crate::failure::Failure;
use crate::output::Stopped;
use crate::progress::Progress;

/// One of the four tools, and how it is called.
struct Tool {
    /// In JSON, and where tables are made.
    name: &'static str,
    words: &'static [&'static str],
    needs_values: bool,
}

/// The predictors are those of section 6.3, the cache is that of section 6.4.
const TOOLS: [Tool; 6] = [
    Tool { name: "mcftrace", words: &["mcfTrace"], needs_values: false },
    Tool { name: "mlstrace", words: &["mlsTrace", "-store"], needs_values: true },
    Tool {
        name: "mcftraptor_private",
        words: &["mcfTRaptor", "-gshare", "4096", "-RAS", "32", "-iBTB", "64"],
        needs_values: false,
    },
    Tool {
        name: "mcftraptor_shared",
        words: &["mcfTRaptor", "-TRaptorShare", "-gshare", "4096", "-RAS", "32", "-iBTB", "64"],
        needs_values: false,
    },
    Tool { name: "mlvcfiat_private", words: &["mlvCFiat", "-cs", "64", "-ca", "4", "-cls", "64"], needs_values: true },
    Tool {
        name: "mlvcfiat_shared",
        words: &["mlvCFiat", "-cshare", "-cs", "64", "-ca", "4", "-cls", "64"],
        needs_values: true,
    },
];

/// More instructions than any program executes: the engine runs the program and counts, and nothing is traced. It is what Pin's inscount_tls does, which the thesis compares with.
const ALL: &str = "1000G";

/// A program with so many threads, and what came of it.
#[derive(Serialize)]
struct Row {
    program: String,
    threads: u16,
    /// Seconds, round by round.
    seconds: Seconds,
    #[serde(flatten)]
    tools: BTreeMap<&'static str, Outcome>,
}

/// Without us; with everything skipped, for tools that take control flow and for those that take values; recorded.
#[derive(Serialize, Default)]
struct Seconds {
    native: Vec<f64>,
    untraced: Vec<f64>,
    untraced_with_values: Vec<f64>,
    recorded: Vec<f64>,
    recorded_with_values: Vec<f64>,
}

/// What a tool wrote: every round without a compressor, the first one with each compressor, too.
#[derive(Serialize, Default)]
struct Outcome {
    rounds: Vec<Raw>,
    gzip: Compressed,
    bzip2: Compressed,
}

/// Over a trace (`seconds`), and while the program runs (`live_seconds`).
#[derive(Serialize)]
struct Raw {
    bytes: u64,
    seconds: f64,
    live_seconds: f64,
    statistics: Value,
}

#[derive(Serialize, Default)]
struct Compressed {
    bytes: u64,
    seconds: f64,
    live_seconds: f64,
}

impl Raw {
    fn number(&self, name: &str) -> u64 {
        self.statistics[name].as_u64().unwrap_or(0)
    }

    fn rate(&self, name: &str) -> f64 {
        self.statistics[name].as_f64().unwrap_or(0.0)
    }
}

impl Outcome {
    fn spread(&self, figure: impl Fn(&Raw) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(figure))
    }

    /// What the compressors got.
    fn first_bytes(&self) -> u64 {
        self.rounds.first().map_or(0, |raw| raw.bytes)
    }
}

pub fn run(arguments: &ExperimentMtrace) -> Result<u8, Stopped> {
    [Compressor::Gzip, Compressor::Bzip2].into_iter().try_for_each(Compressor::need)?;
    for program in &arguments.programs {
        size_of(program)?;
    }
    let output = open(&arguments.results)?;
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    for program in &once(&arguments.programs) {
        for &threads in &once(&arguments.threads) {
            let usual = size_of(program)?.to_owned();
            let size = arguments.size.map_or(usual, |size| size.to_string());
            let path = build(program)?;
            let command = vec![path.display().to_string(), threads.to_string(), size];
            let mut row = Row::new(program, threads);
            let measured = Measured { command, place: Place::new()? };
            for round in 1..=arguments.repeat {
                progress.tick(|| format!("{program} with {threads} threads, {round} of {}", arguments.repeat));
                measured.round(&mut row)?;
            }
            rows.push(row);
        }
    }
    drop(progress);
    write(&arguments.results, output, &Study { rows })?;
    Ok(0)
}

/// A program that is measured, and where.
struct Measured {
    command: Vec<String>,
    place: Place,
}

impl Measured {
    /// Measures everything once more.
    fn round(&self, row: &mut Row) -> Result<(), Failure> {
        let [control, values] = ["control.trk", "values.trk"].map(|name| self.place.path(name));
        let seconds = &mut row.seconds;
        seconds.native.push(timed(Command::new(&self.command[0]).args(&self.command[1..]))?);
        seconds.untraced.push(self.untraced("mcfTrace")?);
        seconds.untraced_with_values.push(self.untraced("mlsTrace")?);
        seconds.recorded.push(self.run(&["record", "-q", "-o", &control])?);
        seconds.recorded_with_values.push(self.run(&["record", "-q", "--data", "values", "-o", &values])?);
        for tool in &TOOLS {
            let trace = if tool.needs_values { &values } else { &control };
            let outcome = row.tools.entry(tool.name).or_default();
            if outcome.rounds.is_empty() {
                outcome.gzip = self.compressed(tool, trace, Compressor::Gzip)?;
                outcome.bzip2 = self.compressed(tool, trace, Compressor::Bzip2)?;
            }
            outcome.rounds.push(self.raw(tool, trace)?);
        }
        Ok(())
    }

    /// Runs ourselves on the program.
    fn run(&self, words: &[&str]) -> Result<f64, Failure> {
        let command: Vec<&str> = std::iter::once("--").chain(self.command.iter().map(String::as_str)).collect();
        self.place.trackway(words, &command)
    }

    /// Runs the program under a tool that traces nothing. It says so, which nobody has to read.
    fn untraced(&self, tool: &str) -> Result<f64, Failure> {
        let mut own = self.place.own()?;
        own.args([tool, "-q", "-o", "x", "-s", ALL, "--"]).args(&self.command);
        timed(own.stderr(Stdio::null()))
    }

    fn raw(&self, tool: &Tool, trace: &str) -> Result<Raw, Failure> {
        let live_seconds = self.live(tool, &[])?;
        let (bytes, seconds) = self.over_trace(tool, trace, &[], "")?;
        let statistics = std::fs::read(self.place.directory().join("x.Statistics")).unwrap_or_default();
        let statistics = serde_json::from_slice(&statistics).unwrap_or(Value::Null);
        Ok(Raw { bytes, seconds, live_seconds, statistics })
    }

    fn compressed(&self, tool: &Tool, trace: &str, compressor: Compressor) -> Result<Compressed, Failure> {
        let flags = ["-c", compressor.name()];
        let live_seconds = self.live(tool, &flags)?;
        let (bytes, seconds) = self.over_trace(tool, trace, &flags, compressor.suffix())?;
        Ok(Compressed { bytes, seconds, live_seconds })
    }

    fn live(&self, tool: &Tool, flags: &[&str]) -> Result<f64, Failure> {
        self.run(&[tool.words, &["-q", "-o", "live"], flags].concat())
    }

    /// How much is written, and in what time.
    fn over_trace(&self, tool: &Tool, trace: &str, flags: &[&str], suffix: &str) -> Result<(u64, f64), Failure> {
        let words = [tool.words, &["-q", "--json", "-o", "x", "-i", trace], flags].concat();
        let seconds = self.place.trackway(&words, &[])?;
        let file = self.place.directory().join(format!("x.bin{suffix}"));
        Ok((file.metadata().map_or(0, |metadata| metadata.len()), seconds))
    }
}

impl Row {
    fn new(program: &str, threads: u16) -> Self {
        Self { program: program.to_owned(), threads, seconds: Seconds::default(), tools: BTreeMap::new() }
    }

    /// What a tool of [`TOOLS`] made of it.
    fn tool(&self, name: &str) -> &Outcome {
        &self.tools[name]
    }

    /// A figure of two tools, round by round: they have the same trace before them.
    fn spread_of_two(&self, one: &str, other: &str, figure: impl Fn(&Raw, &Raw) -> f64) -> Spread {
        let rounds = self.tool(one).rounds.iter().zip(&self.tool(other).rounds);
        Spread::of(rounds.map(|(one, other)| figure(one, other)))
    }
}

/// All programs with all numbers of threads.
struct Study {
    rows: Vec<Row>,
}

impl Findings for Study {
    fn tables(&self) -> Vec<Named> {
        self.all_tables()
    }

    fn figures(&self) -> Vec<(String, String)> {
        self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg)).collect()
    }

    fn json(&self) -> impl Serialize {
        &self.rows
    }
}
