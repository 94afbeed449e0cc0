//! The result of the benchmark as tables and sentences, for the terminal and for
//! docs/performance.md. Everything is computed from a report, so that a record gives the same text
//! again.

use std::fmt::Write;

use super::rounds::span;
use super::tools::{MILLIONS, POLICY_COUNT};
use super::{FurtherTable, LACKEY_SCALE, Means, Measurement, MissingResult, PeerResult, Report, Row, Tools};

/// The report for a terminal.
pub fn text(report: &Report) -> String {
    format!("{} on {}: {}\n\n{}", report.command, report.date, report.machine, content(report, aligned))
}

/// The report in Markdown.
pub fn markdown(report: &Report) -> String {
    format!("`{}` on {}: {}\n\n{}", report.command, report.date, report.machine, content(report, ruled))
}

fn content(report: &Report, table: fn(&[Vec<String>]) -> String) -> String {
    let programs: Vec<Vec<String>> =
        [heading()].into_iter().chain(report.programs.iter().map(cells)).chain([mean_cells(report)]).collect();
    let mut text = table(&programs) + "\n";
    text.push_str(&summary(report));
    if report.geometric_means.tools.is_some() {
        text.push_str(&(table(&tools(report)) + "\n"));
    }
    text.push_str(&further("What synchronisation costs", report.locks.as_ref(), table));
    text.push_str(&further("The time to a place in a trace", report.seek.as_ref(), table));
    text.push_str(&further("The speed of compressing memory accesses", report.memory.as_ref(), table));
    text.push_str(&pace(report));
    text.push_str(&notes());
    text
}

/// A further table and its note; nothing if it was not asked for.
fn further(
    name: &str,
    result: Option<&Result<FurtherTable, MissingResult>>,
    table: fn(&[Vec<String>]) -> String,
) -> String {
    match result {
        None => String::new(),
        Some(Ok(further)) => format!("{}\n{}\n\n", table(&further.cells), further.note),
        Some(Err(missing)) => format!("{name} could not be measured: {}\n\n", missing.problem),
    }
}

/// The means and the extremes in sentences, beside the goals.
fn summary(report: &Report) -> String {
    let means = &report.geometric_means;
    let most = |value: fn(&Measurement) -> f64| {
        let rows = report.programs.iter().filter_map(|row| Some((&row.name, value(row.result.as_ref().ok()?))));
        let most = rows.max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or("-".into(), |(name, value)| format!("{value:.2} ({name})"))
    };
    format!(
        "In the geometric mean, a recording takes {} times as long as a native run for control flow, \
         {} for addresses (goal 10, aim 5) and {} for values (goal 15, aim 8). \
         At most it takes {}, {} and {} times as long. Files have {}, {} and {} bits per instruction in the mean; \
         with addresses {} at most (goal 6, aim 3).{}\n\n",
        number(means.slowdown, 2),
        number(means.addresses_slowdown, 2),
        number(means.values_slowdown, 2),
        most(|row| row.slowdown),
        most(|row| row.addresses.slowdown),
        most(|row| row.values.slowdown),
        number(means.bits_per_instruction, 4),
        number(means.addresses_bits_per_instruction, 2),
        number(means.values_bits_per_instruction, 2),
        most(|row| row.addresses.recording.bits_per_instruction),
        valgrind(means),
    )
}

/// A sentence, unless valgrind was left out.
fn valgrind(means: &Means) -> String {
    match (means.valgrind_none, means.valgrind_lackey) {
        (Some(none), Some(lackey)) => {
            format!(
                " Valgrind without a tool takes {none:.2} times as long as a native run, with lackey {lackey:.2} times."
            )
        }
        _ => String::new(),
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.digits$}"))
}

/// A sentence about the pace after detaching.
fn pace(report: &Report) -> String {
    match &report.pace {
        None => String::new(),
        Some(Ok(pace)) => format!(
            "Attached to and left five times, a program takes {:.0} microseconds for the same work before, \
             {:.0} while it is recorded, and {:.0} after: {:.3} times as long as before.\n\n",
            pace.before, pace.while_recorded, pace.after, pace.ratio
        ),
        Some(Err(missing)) => format!("The pace after detaching could not be measured: {}\n\n", missing.problem),
    }
}

/// Rows in Markdown, the first one being the heading.
fn ruled(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        writeln!(text, "| {} |", row.join(" | ")).expect("a string takes everything");
        if number == 0 {
            writeln!(text, "| ---{}|", " | ---:".repeat(row.len() - 1) + " ").expect("a string takes everything");
        }
    }
    text
}

/// The speeds of the tools, with a heading.
fn tools(report: &Report) -> Vec<Vec<String>> {
    let heading = [
        "program",
        "mcfTRaptor M branches/s",
        "mlvCFiat M accesses/s",
        "segment M/s",
        &format!("segment, {POLICY_COUNT} policies"),
        "port M/s",
    ];
    let speeds: [fn(&Tools) -> f64; 5] = [
        |tools| tools.mcftraptor_branches,
        |tools| tools.mlvcfiat_accesses,
        |tools| tools.segment_instructions,
        |tools| tools.segment_policies_instructions,
        |tools| tools.port_instructions,
    ];
    let row = |name: &str, best: &Tools, rounds: &[Tools]| {
        let speeds = speeds.map(|speed| span(speed(best), rounds.iter().map(speed), 0));
        [name.to_owned()].into_iter().chain(speeds).collect()
    };
    let measured = report.programs.iter().filter_map(|own| Some((&own.name, own.result.as_ref().ok()?)));
    let programs = measured.map(|(name, own)| row(name, &own.tools, &own.rounds.tools));
    let mean = report.geometric_means.tools.iter().map(|tools| row("geometric mean", tools, &[]));
    [heading.map(String::from).into()].into_iter().chain(programs).chain(mean).collect()
}

fn notes() -> String {
    format!(
        "Times and speeds are the best of interleaved runs, and behind a dash the worst of them. \
         Slowdowns are over native, those under \"addresses\" and \"values\" \
         with --data, file written and compressed; lackey ran on less work ({LACKEY_SCALE} s), compared \
         with native runs of the same.\nMemory is the recorder's peak without its rings; reading is on \
         one core, in millions of instructions per second.\nTools run over the first {MILLIONS} million \
         instructions with values, command started and results written: mcfTRaptor (branches of all kinds, \
         direct ones included) and mlvCFiat with the thesis's defaults, segment with one policy and with \
         {POLICY_COUNT} (millions of instructions per second, policy and core), port with all techniques \
         and sizes.\n"
    )
}

fn heading() -> Vec<String> {
    [
        "program",
        "native s",
        "record s",
        "slowdown",
        "M instr.",
        "bits/instr.",
        "recorder cpu s",
        "memory MiB",
        "addresses",
        "bits/instr.",
        "values",
        "bits/instr.",
        "steps M/s",
        "instr. M/s",
        "valgrind none",
        "lackey",
    ]
    .map(String::from)
    .into()
}

/// One row.
pub fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.name.clone()];
    match &row.result {
        Ok(measured) => cells.extend(numbers(measured)),
        Err(missing) => {
            cells.push(missing.problem.clone());
            cells.resize(heading().len(), String::new());
        }
    }
    cells
}

fn numbers(measured: &Measurement) -> [String; 15] {
    let (recording, reading, rounds) = (&measured.recording, &measured.reading, &measured.rounds);
    let native = measured.native_seconds;
    let slowdown = |best: f64, seconds: &[f64]| span(best, seconds.iter().map(|seconds| seconds / native), 2);
    let [steps, instructions] = [0, 1].map(|which| {
        let speed = |reading: &super::ReadingSpeed| [reading.read_steps_mips, reading.read_instructions_mips][which];
        span(speed(reading), rounds.reading.iter().map(speed), 0)
    });
    [
        span(native, rounds.native_seconds.iter().copied(), 2),
        span(recording.record_seconds, rounds.record_seconds.iter().copied(), 2),
        slowdown(measured.slowdown, &rounds.record_seconds),
        format!("{:.0}", recording.instructions as f64 / 1e6),
        format!("{:.4}", recording.bits_per_instruction),
        format!("{:.2}", recording.recorder_cpu_seconds),
        format!("{:.0}", recording.recorder_memory_bytes as f64 / f64::from(1 << 20)),
        slowdown(measured.addresses.slowdown, &rounds.addresses_seconds),
        format!("{:.2}", measured.addresses.recording.bits_per_instruction),
        slowdown(measured.values.slowdown, &rounds.values_seconds),
        format!("{:.2}", measured.values.recording.bits_per_instruction),
        steps,
        instructions,
        peer(&measured.valgrind_none),
        peer(&measured.valgrind_lackey),
    ]
}

fn peer(peer: &PeerResult) -> String {
    match peer {
        PeerResult::Slowdown(slowdown) => format!("{slowdown:.2}"),
        PeerResult::Without(why) => why.clone(),
    }
}

fn mean_cells(report: &Report) -> Vec<String> {
    let means = &report.geometric_means;
    let empty = String::new;
    vec![
        "geometric mean".into(),
        empty(),
        empty(),
        number(means.slowdown, 2),
        empty(),
        number(means.bits_per_instruction, 4),
        empty(),
        empty(),
        number(means.addresses_slowdown, 2),
        number(means.addresses_bits_per_instruction, 2),
        number(means.values_slowdown, 2),
        number(means.values_bits_per_instruction, 2),
        number(means.read_steps_mips, 0),
        number(means.read_instructions_mips, 0),
        number(means.valgrind_none, 2),
        number(means.valgrind_lackey, 2),
    ]
}

/// Columns as wide as they have to be, numbers to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let written = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
            written.expect("a string takes everything");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows =
            [vec!["a".into(), "1.25".into()], vec!["bcd".into(), "10.5".into()], vec!["e".into(), String::new()]];
        assert_eq!(aligned(&rows), "a    1.25\nbcd  10.5\ne\n");
    }
}
