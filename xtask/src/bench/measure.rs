//! Single measurements: a native run, a recorded one, one under valgrind, one reading of a trace.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trace::Trace;

/// The result of a recorded run.
#[derive(Serialize, Deserialize, Debug)]
pub struct Recording {
    pub record_seconds: f64,
    pub instructions: u64,
    pub file_bytes: u64,
    pub bits_per_instruction: f64,
    /// Processor time of the recorder alone, which compresses while the program runs.
    pub recorder_cpu_seconds: f64,
    /// Peak memory of the recorder, its rings not counted.
    pub recorder_memory_bytes: u64,
}

/// The speed of reading a trace, in millions of instructions per second on one core.
#[derive(Serialize, Deserialize, Debug, Clone, Copy)]
pub struct ReadingSpeed {
    pub read_steps_mips: f64,
    pub read_instructions_mips: f64,
}

/// Returns the seconds that a run of `command` takes.
pub fn native(command: &[String]) -> Result<f64, String> {
    time(command, &[])
}

pub fn valgrind(tool: &str, command: &[String]) -> Result<f64, String> {
    let tool = format!("--tool={tool}");
    time(command, &["valgrind", "-q", &tool, "--log-file=/dev/null"])
}

/// Returns the seconds in which `trackway stat` reads all steps of a trace, and the data with them,
/// on one core.
pub fn read_by_command(trackway: &Path, trace: &Path) -> Result<f64, String> {
    let trace = trace.to_string_lossy().into_owned();
    // The command decodes chunks in parallel otherwise.
    time(&[trace], &["env", "RAYON_NUM_THREADS=1", &trackway.to_string_lossy(), "stat"])
}

/// Returns the seconds that a run of `command` takes, with these words before it.
pub fn time(command: &[String], before: &[&str]) -> Result<f64, String> {
    let words: Vec<&str> = before.iter().copied().chain(command.iter().map(String::as_str)).collect();
    let (program, arguments) = words.split_first().ok_or("an empty command")?;
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("{program}: {error}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if status.success() { Ok(seconds) } else { Err(format!("`{}` ended with {status}", words.join(" "))) }
}

/// Records a run of `command`, with this data, to `trace`.
pub fn record(trackway: &Path, command: &[String], trace: &Path, data: &str) -> Result<Recording, String> {
    let report = trace.with_extension("json");
    let trackway = trackway.to_string_lossy();
    let (trace, report) = (trace.to_string_lossy(), report.to_string_lossy());
    let before = [&*trackway, "record", "--data", data, "--output", &trace, "--report", &report, "--"];
    let record_seconds = time(command, &before)?;
    let text = std::fs::read_to_string(&*report).map_err(|error| format!("{report}: {error}"))?;
    let observed: serde_json::Value = serde_json::from_str(&text).map_err(|error| format!("{report}: {error}"))?;
    let number = |key: &str| observed[key].as_f64().ok_or_else(|| format!("the recorder's report has no {key}"));
    let (instructions, file_bytes) = (number("instructions")?, number("file_bytes")?);
    Ok(Recording {
        record_seconds,
        instructions: instructions as u64,
        file_bytes: file_bytes as u64,
        bits_per_instruction: 8.0 * file_bytes / instructions,
        recorder_cpu_seconds: number("cpu_seconds")?,
        recorder_memory_bytes: number("peak_memory_bytes")? as u64,
    })
}

/// Keeps the faster of the two.
pub fn keep_faster(best: &mut Option<Recording>, recording: Recording) {
    if best.as_ref().is_none_or(|best| recording.record_seconds < best.record_seconds) {
        *best = Some(recording);
    }
}

/// Reads a trace on one core: all steps, then all instructions. A few rounds.
pub fn read(path: &Path) -> Result<Vec<ReadingSpeed>, String> {
    // The reader may decode chunks in parallel; here it must not.
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(|error| error.to_string())?;
    let speed = |count: fn(&Trace) -> Result<u64, String>| -> Result<f64, String> {
        let start = Instant::now();
        let instructions = alone.install(|| {
            let trace = Trace::open(path).map_err(|error| error.to_string())?;
            count(&trace)
        })?;
        Ok(instructions as f64 / 1e6 / start.elapsed().as_secs_f64())
    };
    let round = |_| {
        Ok(ReadingSpeed { read_steps_mips: speed(count_steps)?, read_instructions_mips: speed(count_instructions)? })
    };
    (0..READ_ROUNDS).map(round).collect()
}

const READ_ROUNDS: usize = 2;

fn count_steps(trace: &Trace) -> Result<u64, String> {
    let mut instructions = 0;
    for_each_batch(trace, |batch| {
        instructions += batch.steps().iter().map(|step| u64::from(step.instructions())).sum::<u64>();
    })?;
    Ok(instructions)
}

fn count_instructions(trace: &Trace) -> Result<u64, String> {
    let blocks = trace.blocks();
    let (mut instructions, mut addresses) = (0, 0u64);
    for_each_batch(trace, |batch| {
        for step in batch.steps() {
            for instruction in blocks.instructions(step) {
                instructions += 1;
                addresses ^= instruction.address.get();
            }
        }
    })?;
    std::hint::black_box(addresses);
    Ok(instructions)
}

fn for_each_batch(trace: &Trace, mut take: impl FnMut(&trace::Batch)) -> Result<(), String> {
    for thread in trace.threads() {
        let mut steps = trace.steps(thread.info.thread).map_err(|error| error.to_string())?;
        while let Some(batch) = steps.next_batch().map_err(|error| error.to_string())? {
            take(batch);
        }
    }
    Ok(())
}
