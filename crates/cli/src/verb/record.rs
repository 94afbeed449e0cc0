//! `trackway record`: records a program to a file, with a progress line and a report if they are
//! wanted.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use capture::{Limits, Selection};
use recording::{RecordingOptions, RecordingOutcome};
use serde::Serialize;
use trace::{DataMode, Exit, Summary};

use crate::arguments::{Data, Record};
use crate::digits::{grouped, size};
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};
use crate::progress::Progress;

pub fn run(arguments: &Record) -> Result<u8, Stopped> {
    refuse_special(&arguments.output)?;
    refuse_combinations(arguments)?;
    let capture = capture::CaptureOptions {
        command: arguments.command.clone(),
        process: arguments.pid,
        no_aslr: arguments.no_aslr,
        code_cache: Some(arguments.code_cache),
        data: mode(arguments.data),
        limits: Limits { time: arguments.seconds, bytes: arguments.max_size },
        selection: selection(arguments),
    };
    let options = RecordingOptions { capture, output: arguments.output.clone(), follow: arguments.follow };
    let (outcome, usage) = monitored(arguments, || recording::record(&options));
    let outcome = outcome.map_err(Failure::from)?;
    for warning in &outcome.report.warnings {
        eprintln!("trackway: {warning}");
    }
    if !arguments.quiet && std::io::stderr().is_terminal() {
        eprintln!("{}", summary_line(&outcome.summary, &arguments.output));
    }
    if let Some(path) = &arguments.report {
        write_report(path, &outcome, &usage)?;
    }
    Ok(if arguments.pid.is_some() { 0 } else { status(outcome.exit) })
}

fn selection(arguments: &Record) -> Selection {
    Selection {
        skip: arguments.skip,
        length: arguments.length,
        no_shared_libs: arguments.no_shared_libs,
        routines: arguments.routines.clone(),
        callees: arguments.callees,
        accesses: arguments.accesses,
        allocations: arguments.allocations,
        scopes: arguments.scopes,
    }
}

/// Refuses options that need, or exclude, others.
fn refuse_combinations(arguments: &Record) -> Result<(), Failure> {
    if arguments.accesses.is_some() && arguments.data == Data::None {
        return Err(Failure::new("--accesses counts memory accesses, and none are recorded")
            .hint("add --data addresses or --data values"));
    }
    if arguments.scopes && arguments.routines.is_empty() {
        return Err(Failure::new("--scopes records the stack pointer at the entries of routines, and none are named")
            .hint("name them with --routine"));
    }
    if arguments.scopes && arguments.data == Data::None {
        return Err(Failure::new("--scopes records data, which --data none leaves out")
            .hint("add --data addresses or --data values"));
    }
    if arguments.allocations && arguments.skip > 0 {
        return Err(Failure::new("--allocations cannot be used together with --skip")
            .hint("attach to the running program later, with -p"));
    }
    Ok(())
}

fn mode(data: Data) -> DataMode {
    match data {
        Data::None => DataMode::None,
        Data::Addresses => DataMode::Addresses,
        Data::Values => DataMode::Values,
    }
}

/// Refuses an output that is a directory, a device or a pipe. A finished trace replaces the file of
/// that name.
pub fn refuse_special(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            let what = if metadata.is_dir() { "a directory" } else { "not a regular file" };
            Err(Failure::new(format!("cannot write the trace to {}: it is {what}", path.display()))
                .hint("name a file with -o"))
        }
        _ => Ok(()),
    }
}

/// Returns the exit status that a shell would give.
pub fn status(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code & 0xff).unwrap_or(FAILED),
        Exit::Signal(signal) => 128u8.wrapping_add(u8::try_from(signal).unwrap_or(0)),
        Exit::Detached | Exit::Unknown => FAILED,
    }
}

fn summary_line(summary: &Summary, path: &Path) -> String {
    format!(
        "trackway: {} instructions of {} thread{}, {} in {} ({:.3} bits per instruction)",
        grouped(summary.totals.instructions),
        summary.threads.len(),
        if summary.threads.len() == 1 { "" } else { "s" },
        size(summary.file_bytes),
        path.display(),
        summary.bits_per_instruction()
    )
}

/// Resources that the recorder has used.
#[derive(Default)]
struct ResourceUsage {
    seconds: f64,
    peak_memory: u64,
}

/// Time between two looks at the memory in use.
const MONITOR_INTERVAL: Duration = Duration::from_millis(20);

/// Runs `work` while another thread shows progress and measures the memory in use, if either is
/// wanted.
fn monitored<T>(arguments: &Record, work: impl FnOnce() -> T) -> (T, ResourceUsage) {
    // On the terminal that the program writes to, a progress line would end up in the middle of its
    // output.
    let shows_progress = !arguments.quiet && !std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
    if !shows_progress && arguments.report.is_none() {
        return (work(), ResourceUsage::default());
    }
    let part = trace::partial_path(&arguments.output);
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let monitor: ScopedJoinHandle<ResourceUsage> = scope.spawn(move || {
            let start = Instant::now();
            let mut progress = shows_progress.then(Progress::new);
            let mut peak_memory = 0;
            while is_done.recv_timeout(MONITOR_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                peak_memory = peak_memory.max(memory_without_rings());
                if let Some(progress) = &mut progress {
                    let written = || part.metadata().map_or(0, |metadata| metadata.len());
                    progress.tick(|| format!("recording: {:.0} s, {}", start.elapsed().as_secs_f64(), size(written())));
                }
            }
            ResourceUsage { seconds: start.elapsed().as_secs_f64(), peak_memory }
        });
        let result = work();
        drop(done);
        (result, monitor.join().unwrap_or_default())
    })
}

/// Returns the bytes of memory that this process has in use, without shared memory, which is the
/// rings.
fn memory_without_rings() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    (kibibytes("RssAnon:") + kibibytes("RssFile:")) * 1024
}

/// The report for benchmarks, as JSON.
#[derive(Serialize)]
struct Report<'a> {
    instructions: u64,
    branches: u64,
    file_bytes: u64,
    word_bytes: u64,
    data_bytes: u64,
    stored_data_bytes: u64,
    code_bytes: u64,
    reads: u64,
    writes: u64,
    seconds: f64,
    cpu_seconds: f64,
    peak_memory_bytes: u64,
    stalls: u64,
    sleeps: u64,
    warnings: &'a [String],
}

fn write_report(path: &Path, outcome: &RecordingOutcome, usage: &ResourceUsage) -> Result<(), Stopped> {
    let (summary, capture) = (&outcome.summary, &outcome.report);
    let report = Report {
        instructions: summary.totals.instructions,
        branches: summary.totals.branches(),
        file_bytes: summary.file_bytes,
        word_bytes: summary.word_bytes,
        data_bytes: summary.data_bytes,
        stored_data_bytes: summary.stored_data_bytes,
        code_bytes: summary.code_bytes,
        reads: summary.totals.reads,
        writes: summary.totals.writes,
        seconds: usage.seconds,
        cpu_seconds: capture.cpu_time.as_secs_f64(),
        peak_memory_bytes: usage.peak_memory,
        stalls: capture.counters.stalls,
        sleeps: capture.counters.sleeps,
        warnings: &capture.warnings,
    };
    let mut output = Output::open(Some(path))?;
    output.json(&report)?;
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_passed_through() {
        assert_eq!(status(Exit::Code(0)), 0);
        assert_eq!(status(Exit::Code(255)), 255);
        assert_eq!(status(Exit::Signal(9)), 137);
        assert_eq!(status(Exit::Signal(11)), 139);
        assert_eq!(status(Exit::Unknown), 1);
    }

    #[test]
    fn the_summary_line_has_sizes_and_rates() {
        let mut summary = Summary { file_bytes: 1 << 20, ..Summary::default() };
        summary.totals.instructions = 83_886_080;
        summary.threads.push(trace::ThreadSummary::default());
        assert_eq!(
            summary_line(&summary, Path::new("t.trk")),
            "trackway: 83 886 080 instructions of 1 thread, 1.0 MiB in t.trk (0.100 bits per instruction)"
        );
    }

    #[test]
    fn memory_is_known() {
        assert!(memory_without_rings() > 100_000);
    }
}
