//! `cargo xtask bench`: measures the slowdown of recording, the size of traces, the speed of
//! reading and of the tools, and valgrind on the same programs; all as ratios in one run on one
//! machine.
//!
//! Runs are interleaved (native, ours, native, ours …) and the best of each counts, so that other
//! load affects all alike, and the best hardly at all.

use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};
use crate::packages;

mod before;
mod locks;
mod measure;
mod memory;
mod pace;
mod page;
mod programs;
mod rounds;
mod seek;
mod table;
mod tools;

use measure::{ReadingSpeed, Recording};
use programs::{PROGRAMS, Program};
use rounds::Rounds;
use tools::Tools;

/// Measure slowdown, size and reading speed over nine programs, beside valgrind.
#[derive(clap::Args)]
pub struct Arguments {
    /// About 0.3 seconds of native time per program instead of 1, fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Only these programs, separated by commas; `pace` is the pace after detaching, `locks` the
    /// cost of synchronisation, `seek` the time to a place in a long trace, `memory` the speed of
    /// compressing memory accesses.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    programs: Vec<String>,
    /// Leave valgrind out.
    #[arg(long)]
    no_valgrind: bool,
    /// Rounds of native and recorded runs.
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Keep the result: a dated record under docs/performance/, and after a complete run the
    /// section of this processor's vendor in docs/performance.md.
    #[arg(long)]
    save: bool,
    /// Compare recording and reading with those of an earlier revision instead, in all data modes,
    /// runs of both interleaved.
    #[arg(long, value_name = "REVISION")]
    before: Option<String>,
    /// Measure nothing; write the sections of docs/performance.md again from the records that they
    /// name.
    #[arg(long)]
    page: bool,
    #[command(flatten)]
    packages: packages::Arguments,
}

/// The result of a run.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub command: String,
    pub date: String,
    pub machine: Machine,
    pub programs: Vec<Row>,
    pub geometric_means: Means,
    /// The pace of a program after detaching; with the others or by `--programs pace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Result<pace::Pace, MissingResult>>,
    /// Programs that synchronise; with the others or by `--programs locks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<Result<FurtherTable, MissingResult>>,
    /// The time to a place in a long trace; with the others or by `--programs seek`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seek: Option<Result<FurtherTable, MissingResult>>,
    /// The speed of compressing memory accesses; with the others or by `--programs memory`. Records
    /// before 2026-11-19 lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Result<FurtherTable, MissingResult>>,
}

/// A table beside those of the programs: its rows as data, and as they are printed.
#[derive(Serialize, Deserialize)]
pub struct FurtherTable {
    pub rows: serde_json::Value,
    pub cells: Vec<Vec<String>>,
    /// The text below the table.
    pub note: String,
}

impl FurtherTable {
    fn new(rows: &impl Serialize, cells: Vec<Vec<String>>, note: &str) -> Result<Self, String> {
        Ok(Self { rows: serde_json::to_value(rows).map_err(|error| error.to_string())?, cells, note: note.into() })
    }
}

/// The result of one program.
#[derive(Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub what: String,
    #[serde(flatten)]
    pub result: Result<Measurement, MissingResult>,
}

/// The reason for missing numbers.
#[derive(Serialize, Deserialize)]
pub struct MissingResult {
    pub problem: String,
}

#[derive(Serialize, Deserialize)]
pub struct Measurement {
    pub native_seconds: f64,
    #[serde(flatten)]
    pub recording: Recording,
    pub slowdown: f64,
    pub addresses: DataRecording,
    pub values: DataRecording,
    #[serde(flatten)]
    pub reading: ReadingSpeed,
    pub tools: Tools,
    pub valgrind_none: PeerResult,
    pub valgrind_lackey: PeerResult,
    /// The numbers above are the best of these.
    pub rounds: Rounds,
}

/// A recording with memory accesses.
#[derive(Serialize, Deserialize)]
pub struct DataRecording {
    #[serde(flatten)]
    pub recording: Recording,
    pub slowdown: f64,
}

/// The result of another tool.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub enum PeerResult {
    Slowdown(f64),
    Without(String),
}

#[derive(Serialize, Deserialize)]
pub struct Means {
    pub slowdown: Option<f64>,
    pub bits_per_instruction: Option<f64>,
    pub addresses_slowdown: Option<f64>,
    pub addresses_bits_per_instruction: Option<f64>,
    pub values_slowdown: Option<f64>,
    pub values_bits_per_instruction: Option<f64>,
    pub read_steps_mips: Option<f64>,
    pub read_instructions_mips: Option<f64>,
    pub tools: Option<Tools>,
    pub valgrind_none: Option<f64>,
    pub valgrind_lackey: Option<f64>,
}

/// In place of a program: only the pace after detaching.
const PACE: &str = "pace";

/// In place of a program: only the programs that synchronise.
const LOCKS: &str = "locks";

/// In place of a program: only the time to a place in a long trace.
const SEEK: &str = "seek";

/// In place of a program: only the speed of compressing memory accesses.
const MEMORY: &str = "memory";

/// The note below the table of programs that synchronise.
const LOCKS_NOTE: &str = "Sizes are bits per instruction; that of the tree is over the trace of one thread.";

/// The note below the table of times to a place in a trace.
const SEEK_NOTE: &str = "Times are those of whole commands, the best of five runs.";

/// The note below the table of speeds of compression.
const MEMORY_NOTE: &str = "Speeds are millions of accesses per second, the best of the rounds: of the detector of \
    regular sections and of SEQUITUR with its rows on one core, of both together, of VPC3 with its second stage, and \
    of the whole command `memory compress`, which reads the trace on other cores.";

/// In place of a number that `--no-valgrind` leaves out.
const NOT_ASKED_FOR: &str = "not asked for";

/// The scale of runs under lackey, which is slow. They are compared with native runs of the same
/// work.
const LACKEY_SCALE: f64 = 0.04;

/// The programs that are measured.
struct Selection {
    programs: Vec<&'static Program>,
    locks: bool,
}

struct Bench {
    trackway: PathBuf,
    directory: tempfile::TempDir,
    scale: f64,
    rounds: u32,
    valgrind: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.page {
        return page::write_again();
    }
    let valgrind = !arguments.no_valgrind && arguments.before.is_none();
    packages::require(if valgrind { &["bench", "valgrind"] } else { &["bench"] }, &arguments.packages)?;
    let wants = |what: &str| arguments.programs.is_empty() || arguments.programs.iter().any(|name| name == what);
    let selected = select(&arguments.programs)?;
    let bench = Bench {
        trackway: crate::build_trackway()?,
        directory: tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?,
        scale: if arguments.quick { 0.3 } else { 1.0 },
        rounds: arguments.rounds.unwrap_or(if arguments.quick { 2 } else { 3 }),
        valgrind,
    };
    if let Some(revision) = &arguments.before {
        let programs = Selection { programs: selected, locks: wants(LOCKS) };
        return before::run(&bench, &programs, revision, command_line(arguments), arguments.json, arguments.save);
    }
    let programs: Vec<Row> = selected.iter().map(|program| bench.row(program)).collect();
    let pace = wants(PACE).then(|| pace::measure(&bench.trackway, bench.directory.path()));
    let locks = wants(LOCKS).then(|| bench.locks());
    let seek = wants(SEEK).then(|| bench.seek());
    let memory = wants(MEMORY).then(|| bench.memory());
    let report = Report {
        command: command_line(arguments),
        date: machine::today(),
        machine: machine::describe(),
        geometric_means: means(&programs),
        programs,
        pace: pace.map(|pace| pace.map_err(|problem| MissingResult { problem })),
        locks: locks.map(|locks| locks.map_err(|problem| MissingResult { problem })),
        seek: seek.map(|seek| seek.map_err(|problem| MissingResult { problem })),
        memory: memory.map(|memory| memory.map_err(|problem| MissingResult { problem })),
    };
    let json = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    if arguments.json {
        println!("{json}");
    } else {
        print!("{}", table::text(&report));
    }
    let missing = report.programs.iter().find_map(|row| row.result.as_ref().err());
    let further = [report.locks.as_ref(), report.seek.as_ref(), report.memory.as_ref()].into_iter().flatten();
    let further = further.filter_map(|table| table.as_ref().err()).next();
    let pace = report.pace.as_ref().and_then(|pace| pace.as_ref().err());
    if let Some(missing) = missing.or(further).or(pace) {
        return Err(format!("not everything could be measured: {}", missing.problem));
    }
    if arguments.save { page::save(&report, &json) } else { Ok(()) }
}

fn select(names: &[String]) -> Result<Vec<&'static Program>, String> {
    if names.is_empty() {
        return Ok(PROGRAMS.iter().collect());
    }
    let known = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    names
        .iter()
        .filter(|name| ![PACE, LOCKS, SEEK, MEMORY].contains(&name.as_str()))
        .map(|name| PROGRAMS.iter().find(|program| program.name == name))
        .map(|found| found.ok_or_else(|| format!("there are only these programs: {}", known())))
        .collect()
}

fn command_line(arguments: &Arguments) -> String {
    let mut line = String::from("cargo xtask bench");
    for (given, word) in [(arguments.quick, " --quick"), (arguments.no_valgrind, " --no-valgrind")] {
        if given {
            line.push_str(word);
        }
    }
    if !arguments.programs.is_empty() {
        line.push_str(&format!(" --programs {}", arguments.programs.join(",")));
    }
    if let Some(rounds) = arguments.rounds {
        line.push_str(&format!(" --rounds {rounds}"));
    }
    if let Some(revision) = &arguments.before {
        line.push_str(&format!(" --before {revision}"));
    }
    line
}

impl Bench {
    fn row(&self, program: &Program) -> Row {
        let start = Instant::now();
        let result = self.measure(program).map_err(|problem| MissingResult { problem });
        let row = Row { name: program.name.into(), what: program.what.into(), result };
        eprintln!("{} ({:.0} s)", table::cells(&row).join("  "), start.elapsed().as_secs_f64());
        row
    }

    fn measure(&self, program: &Program) -> Result<Measurement, String> {
        let command = program.command(self.directory.path(), self.scale)?;
        let trace = self.directory.path().join("bench.trk");
        let mut rounds = Rounds::default();
        let mut best: [Option<Recording>; 3] = [const { None }; 3];
        for _ in 0..self.rounds {
            // Control flow last: its trace is read afterwards.
            for (data, best) in ["values", "addresses", "none"].into_iter().zip(&mut best) {
                rounds.native_seconds.push(measure::native(&command)?);
                let recording = measure::record(&self.trackway, &command, &trace, data)?;
                rounds.of_recordings(data).push(recording.record_seconds);
                measure::keep_faster(best, recording);
            }
        }
        rounds.reading = measure::read(&trace)?;
        rounds.tools = tools::measure(&self.trackway, &command, self.directory.path(), self.rounds)?;
        let native = rounds::least(&rounds.native_seconds);
        let [Some(values), Some(addresses), Some(recording)] = best else { return Err("there are no rounds".into()) };
        let with_data = |recording: Recording| DataRecording { slowdown: recording.record_seconds / native, recording };
        Ok(Measurement {
            native_seconds: native,
            slowdown: recording.record_seconds / native,
            recording,
            addresses: with_data(addresses),
            values: with_data(values),
            reading: rounds.best_reading(),
            tools: tools::best(&rounds.tools).ok_or("there are no rounds")?,
            valgrind_none: self.none(&command, native)?,
            valgrind_lackey: self.lackey(program)?,
            rounds,
        })
    }

    fn locks(&self) -> Result<FurtherTable, String> {
        let rows = locks::measure(&self.trackway, self.directory.path(), self.scale, self.rounds)?;
        FurtherTable::new(&rows, locks::cells(&rows), LOCKS_NOTE)
    }

    fn seek(&self) -> Result<FurtherTable, String> {
        let rows = seek::measure(&self.trackway, self.directory.path(), self.scale)?;
        FurtherTable::new(&rows, seek::cells(&rows), SEEK_NOTE)
    }

    fn memory(&self) -> Result<FurtherTable, String> {
        let rows = memory::measure(&self.trackway, self.directory.path(), self.scale, self.rounds)?;
        FurtherTable::new(&rows, memory::cells(&rows), MEMORY_NOTE)
    }

    fn none(&self, command: &[String], native: f64) -> Result<PeerResult, String> {
        if !self.valgrind {
            return Ok(PeerResult::Without(NOT_ASKED_FOR.into()));
        }
        Ok(PeerResult::Slowdown(measure::valgrind("none", command)? / native))
    }

    fn lackey(&self, program: &Program) -> Result<PeerResult, String> {
        if !self.valgrind {
            return Ok(PeerResult::Without(NOT_ASKED_FOR.into()));
        }
        let command = program.command(self.directory.path(), LACKEY_SCALE)?;
        let mut native = f64::INFINITY;
        for _ in 0..self.rounds {
            native = native.min(measure::native(&command)?);
        }
        Ok(PeerResult::Slowdown(measure::valgrind("lackey", &command)? / native))
    }
}

fn means(rows: &[Row]) -> Means {
    let over = |value: fn(&Measurement) -> Option<f64>| {
        geometric_mean(rows.iter().filter_map(|row| row.result.as_ref().ok().and_then(value)))
    };
    let peer = |peer: &PeerResult| match *peer {
        PeerResult::Slowdown(slowdown) => Some(slowdown),
        PeerResult::Without(_) => None,
    };
    Means {
        slowdown: over(|row| Some(row.slowdown)),
        bits_per_instruction: over(|row| Some(row.recording.bits_per_instruction)),
        addresses_slowdown: over(|row| Some(row.addresses.slowdown)),
        addresses_bits_per_instruction: over(|row| Some(row.addresses.recording.bits_per_instruction)),
        values_slowdown: over(|row| Some(row.values.slowdown)),
        values_bits_per_instruction: over(|row| Some(row.values.recording.bits_per_instruction)),
        read_steps_mips: over(|row| Some(row.reading.read_steps_mips)),
        read_instructions_mips: over(|row| Some(row.reading.read_instructions_mips)),
        tools: tools::means(rows.iter().filter_map(|row| Some(row.result.as_ref().ok()?.tools))),
        valgrind_none: geometric_mean(rows.iter().filter_map(|row| peer(&row.result.as_ref().ok()?.valgrind_none))),
        valgrind_lackey: geometric_mean(rows.iter().filter_map(|row| peer(&row.result.as_ref().ok()?.valgrind_lackey))),
    }
}

/// `None` for no values.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_geometric_mean_is_the_root_of_the_product() {
        assert_eq!(geometric_mean([].into_iter()), None);
        let mean = geometric_mean([1.0, 4.0, 16.0].into_iter()).unwrap();
        assert!((mean - 4.0).abs() < 1e-12);
    }

    #[test]
    fn programs_are_selected_by_name() {
        assert_eq!(select(&["cc1".into(), "xz".into()]).unwrap().len(), 2);
        assert!(select(&["nonsense".into()]).is_err());
    }
}
