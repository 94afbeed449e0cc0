//! The time to reach an instruction near the end of a long trace, beside the goal: with one thread
//! and with two merged ones.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::measure::{self, Recording};

/// The number of rounds of a loop of nine instructions, by all threads together, for some seconds
/// of recording.
const ROUNDS: f64 = 4e9;
/// The tenths of all instructions that are skipped.
const TENTHS_SKIPPED: u64 = 9;
const GOAL_MILLISECONDS: f64 = 100.0;
/// The number of runs, of which the fastest counts.
const RUNS: u32 = 5;

/// Arguments of the command, beside `--skip`.
const QUESTIONS: [&[&str]; 4] = [
    &["dump", "--length", "3", "--thread", "0"],
    &["dump", "--length", "3"],
    &["segment", "--length", "1000", "-i"],
    &["port", "--length", "1000"],
];

/// The time of a question about one trace.
#[derive(Serialize)]
pub struct SeekRow {
    pub verb: String,
    pub threads: u32,
    pub instructions: u64,
    pub milliseconds: f64,
    pub goal_milliseconds: f64,
}

pub fn measure(trackway: &Path, directory: &Path, scale: f64) -> Result<Vec<SeekRow>, String> {
    let program = build(directory)?;
    let mut rows = Vec::new();
    for threads in [1, 2] {
        let trace = directory.join("seek.trk");
        let rounds = (ROUNDS * scale / f64::from(threads)).round();
        let command = [program.clone(), threads.to_string(), rounds.to_string()];
        let recording = measure::record(trackway, &command, &trace, "none")?;
        for words in QUESTIONS {
            rows.push(row(trackway, &trace, words, threads, &recording)?);
        }
    }
    Ok(rows)
}

fn row(trackway: &Path, trace: &Path, words: &[&str], threads: u32, recording: &Recording) -> Result<SeekRow, String> {
    // The instructions of each thread are numbered separately.
    let counted = if words.contains(&"--thread") { u64::from(threads) } else { 1 };
    let skip = (recording.instructions / counted / 10 * TENTHS_SKIPPED).to_string();
    let (verb, options) = words.split_first().ok_or("a question without a verb")?;
    let mut command = vec![trackway.to_string_lossy().into_owned(), (*verb).to_owned(), "--skip".into(), skip];
    command.extend(options.iter().map(|&option| option.to_owned()));
    command.push(trace.to_string_lossy().into_owned());
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(measure::time(&command, &[])?);
    }
    let verb = words.iter().filter(|&&word| word != "-i").copied().collect::<Vec<_>>().join(" ");
    let milliseconds = best * 1e3;
    eprintln!("{verb} of {threads} threads: {milliseconds:.1} ms");
    let instructions = recording.instructions;
    Ok(SeekRow { verb, threads, instructions, milliseconds, goal_milliseconds: GOAL_MILLISECONDS })
}

fn build(directory: &Path) -> Result<String, String> {
    let (source, program) = (directory.join("spin.c"), directory.join("spin"));
    let text = include_str!("../../../crates/acceptance/programs/spin.c");
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    let status = Command::new("gcc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
    match status.map_err(|error| format!("gcc: {error}"))?.success() {
        true => Ok(program.to_string_lossy().into_owned()),
        false => Err("gcc refuses spin.c".into()),
    }
}

/// The rows as cells, with a heading.
pub fn cells(rows: &[SeekRow]) -> Vec<Vec<String>> {
    let heading = ["9 of 10 instructions skipped", "threads", "M instr.", "ms", "goal"];
    let cells = rows.iter().map(|row| {
        vec![
            row.verb.clone(),
            row.threads.to_string(),
            format!("{:.0}", row.instructions as f64 / 1e6),
            format!("{:.1}", row.milliseconds),
            format!("{:.0}", row.goal_milliseconds),
        ]
    });
    [heading.map(String::from).into()].into_iter().chain(cells).collect()
}
