//! `cargo xtask bench --before REVISION`: measures the cost of a change. Native runs, recordings by
//! the earlier and by the present `trackway`, and readings of them take turns, so that other load
//! affects all alike.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::measure::{self, Recording};
use super::{Bench, Selection, geometric_mean, locks, page, table};
use crate::machine::{self, Machine};

/// The modes of recording that are compared, as `--data` names them.
const MODES: [&str; 3] = ["none", "addresses", "values"];

/// The comparison of two revisions.
#[derive(Serialize)]
struct Comparison {
    command: String,
    date: String,
    machine: Machine,
    before: String,
    rows: Vec<Row>,
}

/// One program in one mode.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    data: &'static str,
    native_seconds: f64,
    before: Recording,
    after: Recording,
    /// The time in which each `trackway` reads its own trace.
    read_seconds_before: f64,
    read_seconds_after: f64,
}

/// The best rounds of one `trackway` in one mode.
struct Best {
    recording: Option<Recording>,
    read_seconds: f64,
}

impl Best {
    const NONE: Self = Self { recording: None, read_seconds: f64::INFINITY };
}

impl Row {
    /// Returns the time of a recording now over the time before.
    fn ratio(&self) -> f64 {
        self.after.record_seconds / self.before.record_seconds
    }

    /// Returns the time per instruction of reading now over that before: two recordings of a
    /// program differ a little in length.
    fn reading_ratio(&self) -> f64 {
        let per_instruction = |seconds: f64, recording: &Recording| seconds / recording.instructions as f64;
        per_instruction(self.read_seconds_after, &self.after) / per_instruction(self.read_seconds_before, &self.before)
    }
}

/// Measures and prints, or prints as JSON; `save` keeps a dated record under docs/performance/.
pub fn run(
    bench: &Bench,
    selected: &Selection,
    revision: &str,
    command: String,
    json: bool,
    save: bool,
) -> Result<(), String> {
    let earlier = build(revision)?;
    let mut rows = Vec::new();
    for program in &selected.programs {
        let words = program.command(bench.directory.path(), bench.scale)?;
        rows.extend(compare(bench, &earlier, program.name, &words, &MODES)?);
    }
    if selected.locks {
        for (name, words) in locks::commands(bench.scale)? {
            rows.extend(compare(bench, &earlier, name, &words, &MODES[..1])?);
        }
    }
    let comparison =
        Comparison { command, date: machine::today(), machine: machine::describe(), before: revision.into(), rows };
    let text = text(&comparison);
    let data = serde_json::to_string_pretty(&comparison).map_err(|error| error.to_string())?;
    print!("{}", if json { &data } else { &text });
    if save {
        let (date, machine) = (&comparison.date, &comparison.machine);
        let name = format!("{date}-{}-{}-since-{revision}", machine.vendor(), machine.revision);
        page::keep(&name, &[("json", &data), ("txt", &text)])?;
    }
    Ok(())
}

/// Builds the `trackway` of an earlier revision in a work tree of its own under target/.
fn build(revision: &str) -> Result<PathBuf, String> {
    let tree = crate::root().join("target/before").join(revision);
    if !tree.exists() {
        run_in(crate::root(), "git", &["worktree", "add", "--force", "--detach", &tree.to_string_lossy(), revision])?;
    }
    run_in(&tree, env!("CARGO"), &["build", "--release", "--package", "trackway", "--target-dir", "target"])?;
    Ok(tree.join("target/release/trackway"))
}

fn run_in(directory: &Path, program: &str, words: &[&str]) -> Result<(), String> {
    match Command::new(program).args(words).current_dir(directory).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{program} {}` ended with {status}", words.join(" "))),
        Err(error) => Err(format!("cannot run {program}: {error}")),
    }
}

fn compare(
    bench: &Bench,
    earlier: &Path,
    name: &'static str,
    command: &[String],
    modes: &[&'static str],
) -> Result<Vec<Row>, String> {
    let trace = bench.directory.path().join("before.trk");
    let mut native = f64::INFINITY;
    let mut best: Vec<[Best; 2]> = modes.iter().map(|_| [Best::NONE; 2]).collect();
    for round in 0..bench.rounds {
        for (data, best) in modes.iter().zip(&mut best) {
            native = native.min(measure::native(command)?);
            let mut pair = [earlier, &bench.trackway].into_iter().zip(best).collect::<Vec<_>>();
            // The second recording shares the machine with the kernel, which writes the file of the
            // first one to disk.
            if round % 2 == 1 {
                pair.reverse();
            }
            for (trackway, best) in pair {
                measure::keep_faster(&mut best.recording, measure::record(trackway, command, &trace, data)?);
                best.read_seconds = best.read_seconds.min(measure::read_by_command(trackway, &trace)?);
            }
        }
    }
    let rows = modes.iter().zip(best).map(|(&data, best)| {
        let [earlier, present] = best;
        let (Some(before), Some(after)) = (earlier.recording, present.recording) else {
            return Err("there are no rounds".to_owned());
        };
        let (read_seconds_before, read_seconds_after) = (earlier.read_seconds, present.read_seconds);
        let row = Row { name, data, native_seconds: native, before, after, read_seconds_before, read_seconds_after };
        eprintln!("{}", cells(&row).join("  "));
        Ok(row)
    });
    rows.collect()
}

fn text(comparison: &Comparison) -> String {
    let Comparison { command, date, machine, before, rows } = comparison;
    let heading = [
        "program",
        "data",
        "native s",
        "before",
        "after",
        "after/before",
        "bits before",
        "bits after",
        "bits ratio",
        "reading ratio",
    ];
    let table: Vec<Vec<String>> =
        [heading.map(String::from).into()].into_iter().chain(rows.iter().map(cells)).chain(means(rows)).collect();
    format!(
        "{command} on {date}: {machine}\n\n{}\nBefore is revision {before}. Before and after are times over native; \
         times are the best of interleaved runs. Bits are per instruction, in the whole file. \
         The ratio of reading is that of the times per instruction in which each `trackway stat` reads its own \
         trace on one core.\n",
        table::aligned(&table)
    )
}

fn cells(row: &Row) -> Vec<String> {
    let (before, after) = (&row.before, &row.after);
    vec![
        row.name.into(),
        row.data.into(),
        format!("{:.2}", row.native_seconds),
        format!("{:.2}", before.record_seconds / row.native_seconds),
        format!("{:.2}", after.record_seconds / row.native_seconds),
        format!("{:.3}", row.ratio()),
        format!("{:.4}", before.bits_per_instruction),
        format!("{:.4}", after.bits_per_instruction),
        format!("{:.3}", after.bits_per_instruction / before.bits_per_instruction),
        format!("{:.3}", row.reading_ratio()),
    ]
}

/// The geometric mean of the ratios over the programs that were run in all modes.
fn means(rows: &[Row]) -> Vec<Vec<String>> {
    let in_all = |row: &&Row| rows.iter().filter(|other| other.name == row.name).count() == MODES.len();
    let mean = |data: &'static str| {
        let rows = || rows.iter().filter(in_all).filter(|row| row.data == data);
        let number = |value: fn(&Row) -> f64, digits: usize| {
            geometric_mean(rows().map(value)).map_or("-".into(), |mean| format!("{mean:.digits$}"))
        };
        vec![
            "geometric mean".into(),
            data.into(),
            String::new(),
            number(|row| row.before.record_seconds / row.native_seconds, 2),
            number(|row| row.after.record_seconds / row.native_seconds, 2),
            number(Row::ratio, 3),
            number(|row| row.before.bits_per_instruction, 4),
            number(|row| row.after.bits_per_instruction, 4),
            number(|row| row.after.bits_per_instruction / row.before.bits_per_instruction, 3),
            number(Row::reading_ratio, 3),
        ]
    };
    MODES.map(mean).into()
}
