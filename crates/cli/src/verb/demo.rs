//! `trackway demo`: runs a multithreaded program natively and recorded, and summarises the trace.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use recording::RecordingOptions;
use trace::Summary;

use crate::arguments::Demo;
use crate::digits::{grouped, percent, size};
use crate::failure::Failure;
use crate::output::{Output, Stopped};
use crate::verb::info::branch_lines;
use crate::verb::record::refuse_special;

const PROGRAM: &str = "raytrace";
/// The number of rows and of columns of the picture.
const SIZE: &str = "1000";
const ROUNDS: usize = 3;

pub fn run(arguments: &Demo) -> Result<u8, Stopped> {
    refuse_special(&arguments.output)?;
    let mut output = Output::open(None)?;
    let program =
        workloads::build(PROGRAM, workloads::Variant::Pie).map_err(|error| Failure::new(error.to_string()))?;
    let threads = arguments.threads.to_string();
    output.write(
        format!("Painting {SIZE} x {SIZE} points with {threads} threads: workloads/parallel/{PROGRAM}.c\n").as_bytes(),
    )?;
    output.flush()?;
    let mut native = Duration::MAX;
    let mut recorded = Duration::MAX;
    let mut summary = Summary::default();
    for _ in 0..ROUNDS {
        native = native.min(run_natively(&program, &threads)?);
        let (time, latest) = record(&program, &threads, &arguments.output)?;
        recorded = recorded.min(time);
        summary = latest;
    }
    output.write(report(&summary, native, recorded).as_bytes())?;
    output.write(suggestions(&arguments.output).as_bytes())?;
    output.finish()?;
    Ok(0)
}

fn run_natively(program: &Path, threads: &str) -> Result<Duration, Failure> {
    let start = Instant::now();
    let status = Command::new(program).args([threads, SIZE]).stdout(Stdio::null()).status();
    let time = start.elapsed();
    match status {
        Ok(status) if status.success() => Ok(time),
        Ok(status) => Err(Failure::new(format!("{} ended with {status}", program.display()))),
        Err(error) => Err(Failure::new(format!("cannot run {}: {error}", program.display()))),
    }
}

fn record(program: &Path, threads: &str, trace: &Path) -> Result<(Duration, Summary), Failure> {
    let command = vec![program.into(), threads.into(), SIZE.into()];
    let capture = capture::CaptureOptions { command, ..capture::CaptureOptions::default() };
    let options = RecordingOptions { capture, output: trace.to_owned(), ..RecordingOptions::default() };
    let start = Instant::now();
    let outcome = recording::record(&options)?;
    let time = start.elapsed();
    if outcome.exit == trace::Exit::Code(0) {
        Ok((time, outcome.summary))
    } else {
        Err(Failure::new(format!("the recorded program ended with {:?}, not like the native one", outcome.exit)))
    }
}

fn report(summary: &Summary, native: Duration, recorded: Duration) -> String {
    let totals = &summary.totals;
    let (native, recorded) = (native.as_secs_f64(), recorded.as_secs_f64());
    let mut text = format!("\nWhat was seen\n  threads       {}\n", summary.threads.len());
    for thread in &summary.threads {
        let count = thread.counts.instructions;
        text.push_str(&format!(
            "    {:<3} {:>18} instructions {:>5.1} %\n",
            thread.info.thread,
            grouped(count),
            percent(count, totals.instructions)
        ));
    }
    text.push_str(&format!(
        "  instructions  {}\n  branches      {}\n",
        grouped(totals.instructions),
        grouped(totals.branches())
    ));
    text.push_str(&branch_lines(totals));
    text.push_str(&format!("  system calls  {}\n", grouped(totals.system_calls)));
    text.push_str(&format!(
        "\nWhat it took\n  trace         {} ({} bytes), {:.4} bits per instruction\n",
        size(summary.file_bytes),
        grouped(summary.file_bytes),
        summary.bits_per_instruction()
    ));
    text.push_str(&format!(
        "  time          {native:.3} s natively, {recorded:.3} s recorded: \
         {:.2} times as long (best of {ROUNDS} each)\n",
        recorded / native
    ));
    text
}

fn suggestions(trace: &Path) -> String {
    let name = trace.display();
    format!(
        "\nWhat to try next
  trackway info {name}
  trackway stat {name}
  trackway dump --kind control -d {name} | head
  trackway verify {name}
  trackway record -o mine.trk -- YOUR PROGRAM
(`cargo run --release -- VERB` does the same as `trackway VERB`.)
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_the_ratios() {
        let mut summary = Summary { file_bytes: 1000, ..Summary::default() };
        summary.totals.instructions = 80_000;
        let text = report(&summary, Duration::from_millis(500), Duration::from_millis(1250));
        assert!(text.contains("0.1000 bits per instruction"), "{text}");
        assert!(text.contains("2.50 times as long"), "{text}");
    }
}
