//! The cost of synchronisation: programs of several threads that do little else, recorded with
//! control flow only, beside their goals.

use std::path::Path;

use serde::Serialize;

use super::measure::{self, Recording};
use super::rounds::{least, span};

/// A program that synchronises, and its goals.
struct LockProgram {
    name: &'static str,
    what: &'static str,
    workload: &'static str,
    /// SIZE for about a second of native time.
    size: f64,
    slowdown_goal: f64,
    /// Bits per instruction; for [`TREE`], size of the trace over that of one thread.
    size_goal: f64,
}

const THREADS: &str = "2";
/// The program whose trace is compared with that of a single thread.
const TREE: &str = "tree";

const LOCK_PROGRAMS: &[LockProgram] = &[
    LockProgram {
        name: "private mutexes",
        what: "each thread locks a mutex of its own",
        workload: "mutexes",
        size: 200_000.0,
        slowdown_goal: 4.0,
        size_goal: 0.05,
    },
    LockProgram {
        name: "one mutex",
        what: "all threads lock the same mutex",
        workload: "mutex",
        size: 40_000.0,
        slowdown_goal: 8.0,
        size_goal: 0.05,
    },
    LockProgram {
        name: "reference counts",
        what: "each thread takes and drops references, nearly always to its own objects",
        workload: "counts",
        size: 200_000.0,
        slowdown_goal: 4.0,
        size_goal: 0.05,
    },
    LockProgram {
        name: "tree build",
        what: "Barnes-Hut tree, a lock per cell; its size is over that of one thread",
        workload: TREE,
        size: 400.0,
        slowdown_goal: 2.5,
        size_goal: 1.5,
    },
];

/// The result of one program.
#[derive(Serialize)]
pub struct LockRow {
    pub name: &'static str,
    pub what: &'static str,
    pub native_seconds: f64,
    #[serde(flatten)]
    pub recording: Recording,
    pub slowdown: f64,
    pub slowdown_goal: f64,
    /// The seconds of every round.
    pub native_rounds: Vec<f64>,
    pub record_rounds: Vec<f64>,
    /// Bits per instruction, or the size of the trace over that of one thread.
    pub size: f64,
    pub size_goal: f64,
}

/// Runs each program natively and recorded in turns; the best of each counts.
pub fn measure(trackway: &Path, directory: &Path, scale: f64, rounds: u32) -> Result<Vec<LockRow>, String> {
    LOCK_PROGRAMS.iter().map(|program| row(program, trackway, directory, scale, rounds)).collect()
}

/// Names and command lines of all programs.
pub fn commands(scale: f64) -> Result<Vec<(&'static str, Vec<String>)>, String> {
    LOCK_PROGRAMS.iter().map(|program| Ok((program.name, command(program, THREADS, scale)?))).collect()
}

fn command(program: &LockProgram, threads: &str, scale: f64) -> Result<Vec<String>, String> {
    super::programs::workload(program.workload, &[threads.into(), size(program, scale)])
}

fn row(program: &LockProgram, trackway: &Path, directory: &Path, scale: f64, rounds: u32) -> Result<LockRow, String> {
    let trace = directory.join("locks.trk");
    let record = |threads: &str| measure::record(trackway, &command(program, threads, scale)?, &trace, "none");
    let (mut native_rounds, mut record_rounds, mut best) = (Vec::new(), Vec::new(), None::<Recording>);
    // Sizes depend on which code was found hot, so the smallest counts.
    let (mut file, mut file_of_one) = (u64::MAX, u64::MAX);
    for _ in 0..rounds {
        native_rounds.push(measure::native(&command(program, THREADS, scale)?)?);
        let recording = record(THREADS)?;
        record_rounds.push(recording.record_seconds);
        file = file.min(recording.file_bytes);
        if program.workload == TREE {
            file_of_one = file_of_one.min(record("1")?.file_bytes);
        }
        measure::keep_faster(&mut best, recording);
    }
    let recording = best.ok_or("there are no rounds")?;
    let native = least(&native_rounds);
    let size = match program.workload {
        TREE => file as f64 / file_of_one as f64,
        _ => 8.0 * file as f64 / recording.instructions as f64,
    };
    let slowdown = recording.record_seconds / native;
    eprintln!("{}: {slowdown:.2} times as long, size {size:.4}", program.name);
    Ok(LockRow {
        name: program.name,
        what: program.what,
        native_seconds: native,
        recording,
        slowdown,
        slowdown_goal: program.slowdown_goal,
        native_rounds,
        record_rounds,
        size,
        size_goal: program.size_goal,
    })
}

fn size(program: &LockProgram, scale: f64) -> String {
    (program.size * scale).round().max(1.0).to_string()
}

/// The rows as cells, with a heading.
pub fn cells(rows: &[LockRow]) -> Vec<Vec<String>> {
    let heading = ["2 threads", "native s", "record s", "slowdown", "goal", "size", "goal"];
    let cells = rows.iter().map(|row| {
        vec![
            row.name.to_owned(),
            span(row.native_seconds, row.native_rounds.iter().copied(), 2),
            span(row.recording.record_seconds, row.record_rounds.iter().copied(), 2),
            format!("{:.2}", row.slowdown),
            format!("{:.1}", row.slowdown_goal),
            format!("{:.4}", row.size),
            format!("{:.2}", row.size_goal),
        ]
    });
    [heading.map(String::from).into()].into_iter().chain(cells).collect()
}
