//! Chapters 5 and 6 of Myers 2014: what the programs do, how large the traces of the four tools are, how well they compress, how much
//! private structures are better than shared ones, and how long it takes.

use std::process::Command;

use report::Table;
use serde::Serialize;
use serde_json::Value;

use super::programs::{Place, build, size_of, timed};
use crate::arguments::ExperimentMtrace;
use crate::compressor::Compressor;
use crate::digits::{grouped, percent};
use crate::failure::Failure;
use crate::output::{Output, Stopped};
use crate::progress::Progress;

/// The predictors of section 6.3 and the cache of section 6.4.
const PREDICTORS: &[&str] = &["-gshare", "4096", "-RAS", "32", "-iBTB", "64"];
const CACHE: &[&str] = &["-cs", "64", "-ca", "4", "-cls", "64"];
const INTERLEAVED: &[&str] = &["--interleave", "1"];
const BY_FLAGS: &[&str] = &["--known", "flags"];

/// A program with so many threads, and what came of it.
#[derive(Serialize)]
struct Row {
    program: String,
    threads: u16,
    /// Seconds: without us, recorded, recorded with values, and filtered by mcfTRaptor while it runs.
    native: f64,
    recorded: f64,
    recorded_with_values: f64,
    live_mcftraptor: f64,
    mcftrace: Outcome,
    mlstrace: Outcome,
    mcftraptor_private: Outcome,
    mcftraptor_shared: Outcome,
    /// In turns of one branch, as if each thread had a processor to itself.
    mcftraptor_interleaved: Outcome,
    mlvcfiat_private: Outcome,
    mlvcfiat_shared: Outcome,
    /// In the theses' reading: a load is known by its flags alone.
    mlvcfiat_private_flags: Outcome,
    mlvcfiat_shared_flags: Outcome,
}

/// What a tool wrote: alone, with gzip, with bzip2.
#[derive(Serialize)]
struct Outcome {
    bytes: [u64; 3],
    seconds: [f64; 3],
    statistics: Value,
}

impl Outcome {
    fn number(&self, name: &str) -> u64 {
        self.statistics[name].as_u64().unwrap_or(0)
    }

    fn rate(&self, name: &str) -> f64 {
        self.statistics[name].as_f64().unwrap_or(0.0)
    }
}

pub fn run(arguments: &ExperimentMtrace) -> Result<u8, Stopped> {
    [Compressor::Gzip, Compressor::Bzip2].into_iter().try_for_each(Compressor::need)?;
    for program in &arguments.programs {
        size_of(program)?;
    }
    let mut output = Output::open(arguments.output.file.as_deref())?;
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    for program in &arguments.programs {
        for &threads in &arguments.threads {
            progress.tick(|| format!("{program} with {threads} threads"));
            let usual = size_of(program)?.to_owned();
            let size = arguments.size.map_or(usual, |size| size.to_string());
            rows.push(measure(program, threads, &size)?);
        }
    }
    drop(progress);
    if arguments.json {
        output.json(&rows)?;
    } else {
        output.write(text(&rows).as_bytes())?;
    }
    output.finish()?;
    Ok(0)
}

fn measure(program: &str, threads: u16, size: &str) -> Result<Row, Failure> {
    let path = build(program)?;
    let threads_word = threads.to_string();
    let command = [path.to_str().unwrap_or_default(), &threads_word, size];
    let place = Place::new()?;
    let (control, values) = (place.path("control.trk"), place.path("values.trk"));
    // Best of a few: these are short.
    let native = best(|| timed(Command::new(command[0]).args(&command[1..])))?;
    let recorded = best(|| place.trackway(&["record", "-q", "-o", &control, "--"], &command))?;
    let recorded_with_values =
        best(|| place.trackway(&["record", "-q", "--data", "values", "-o", &values, "--"], &command))?;
    let live = [&["mcfTRaptor", "-q", "-o", "live"], PREDICTORS, &["--"]].concat();
    let live_mcftraptor = best(|| place.trackway(&live, &command))?;
    Ok(Row {
        program: program.to_owned(),
        threads,
        native,
        recorded,
        recorded_with_values,
        live_mcftraptor,
        mcftrace: place.tool(&["mcfTrace"], &control)?,
        mlstrace: place.tool(&["mlsTrace", "-store"], &values)?,
        mcftraptor_private: place.tool(&[&["mcfTRaptor"], PREDICTORS].concat(), &control)?,
        mcftraptor_shared: place.tool(&[&["mcfTRaptor", "-TRaptorShare"], PREDICTORS].concat(), &control)?,
        mcftraptor_interleaved: place
            .tool(&[&["mcfTRaptor", "-TRaptorShare"], INTERLEAVED, PREDICTORS].concat(), &control)?,
        mlvcfiat_private: place.tool(&[&["mlvCFiat"], CACHE].concat(), &values)?,
        mlvcfiat_shared: place.tool(&[&["mlvCFiat", "-cshare"], CACHE].concat(), &values)?,
        mlvcfiat_private_flags: place.tool(&[&["mlvCFiat"], BY_FLAGS, CACHE].concat(), &values)?,
        mlvcfiat_shared_flags: place.tool(&[&["mlvCFiat", "-cshare"], BY_FLAGS, CACHE].concat(), &values)?,
    })
}

const ROUNDS: usize = 3;

fn best(mut run: impl FnMut() -> Result<f64, Failure>) -> Result<f64, Failure> {
    (0..ROUNDS).map(|_| run()).try_fold(f64::MAX, |best, seconds| Ok(best.min(seconds?)))
}

impl Place {
    /// Runs a tool over a trace, with every compressor.
    fn tool(&self, words: &[&str], trace: &str) -> Result<Outcome, Failure> {
        let mut outcome = Outcome { bytes: [0; 3], seconds: [0.0; 3], statistics: Value::Null };
        for (place, compressor) in [None, Some(Compressor::Gzip), Some(Compressor::Bzip2)].into_iter().enumerate() {
            let flags = compressor.map_or(Vec::new(), |compressor| vec!["-c", compressor.name()]);
            let words = [words, &["-q", "--json", "-o", "x", "-i", trace], &flags].concat();
            outcome.seconds[place] = self.trackway(&words, &[])?;
            let file = self.directory().join(format!("x.bin{}", compressor.map_or("", Compressor::suffix)));
            outcome.bytes[place] = file.metadata().map_or(0, |metadata| metadata.len());
            // The directory goes at the end, and these are large.
            drop(std::fs::remove_file(&file));
        }
        let statistics = std::fs::read(self.directory().join("x.Statistics")).unwrap_or_default();
        outcome.statistics = serde_json::from_slice(&statistics).unwrap_or(Value::Null);
        Ok(outcome)
    }
}

/// Two figures behind the point.
fn fixed(value: f64) -> String {
    format!("{value:.2}")
}

fn ratio(one: u64, other: u64) -> String {
    if other == 0 { "-".to_owned() } else { format!("{:.1}", one as f64 / other as f64) }
}

fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut add = |table: Table| text.push_str(&table.text());
    for table in programs(rows) {
        add(table);
    }
    add(sizes("Table 6.1: mcfTrace, size of the trace in bytes and compression", rows, |row| &row.mcftrace));
    add(times("Table 6.2: mcfTrace over a recorded trace, seconds", rows, |row| &row.mcftrace));
    add(sizes("Table 6.3: mlsTrace (loads and stores), size of the trace in bytes and compression", rows, |row| {
        &row.mlstrace
    }));
    add(times("Table 6.4: mlsTrace over a recorded trace, seconds", rows, |row| &row.mlstrace));
    let private: Part = |row| &row.mcftraptor_private;
    add(mispredictions("Table 6.5: private mcfTRaptor, mispredictions", rows, private));
    add(sizes("Table 6.6: private mcfTRaptor, size of the trace in bytes and compression", rows, private));
    add(times("Table 6.7: private mcfTRaptor over a recorded trace, seconds", rows, private));
    let shared: Part = |row| &row.mcftraptor_shared;
    add(mispredictions("Table 6.8: shared mcfTRaptor, mispredictions", rows, shared));
    add(sizes("Table 6.9: shared mcfTRaptor, size of the trace in bytes and compression", rows, shared));
    add(times("Table 6.10: shared mcfTRaptor over a recorded trace, seconds", rows, shared));
    let interleaved: Part = |row| &row.mcftraptor_interleaved;
    add(mispredictions("Table 6.8, threads in turns of one branch: mispredictions", rows, interleaved));
    add(sizes("Table 6.9, threads in turns of one branch: size of the trace in bytes", rows, interleaved));
    let private: Part = |row| &row.mlvcfiat_private;
    add(misses("Table 6.11: private mlvCFiat, cache and first-access misses", rows, private));
    add(sizes("Table 6.12: private mlvCFiat, size of the trace in bytes and compression", rows, private));
    add(times("Table 6.13: private mlvCFiat over a recorded trace, seconds", rows, private));
    let shared: Part = |row| &row.mlvcfiat_shared;
    add(misses("Table 6.14: shared mlvCFiat, cache and first-access misses", rows, shared));
    add(sizes("Table 6.15: shared mlvCFiat, size of the trace in bytes and compression", rows, shared));
    add(times("Table 6.16: shared mlvCFiat over a recorded trace, seconds", rows, shared));
    let private: Part = |row| &row.mlvcfiat_private_flags;
    add(misses("Table 6.11 by flags alone, as in the thesis: cache and first-access misses", rows, private));
    add(sizes("Table 6.12 by flags alone, as in the thesis: size of the trace in bytes", rows, private));
    add(times("Table 6.13 by flags alone, as in the thesis: seconds over a recorded trace", rows, private));
    let shared: Part = |row| &row.mlvcfiat_shared_flags;
    add(misses("Table 6.14 by flags alone, as in the thesis: cache and first-access misses", rows, shared));
    add(sizes("Table 6.15 by flags alone, as in the thesis: size of the trace in bytes", rows, shared));
    add(savings(rows));
    add(running(rows));
    text
}

type Part = fn(&Row) -> &Outcome;

fn name(row: &Row) -> [String; 2] {
    [row.program.clone(), row.threads.to_string()]
}

/// Tables 5.1 to 5.4.
fn programs(rows: &[Row]) -> Vec<Table> {
    let heads =
        ["program", "N", "instructions", "branches %", "cond. direct %", "uncond. direct %", "uncond. indirect %"];
    let mut control = Table::new("Table 5.1: control flow", &heads);
    let heads = ["program", "N", "instructions", "reads", "writes", "reads/ins", "writes/ins"];
    let mut memory = Table::new("Table 5.2: memory reads and writes", &heads);
    const KINDS: [(&str, &str); 8] = [
        ("byte", "byte"),
        ("word", "word"),
        ("dword", "doubleword"),
        ("qword", "quadword"),
        ("eword", "extended_precision"),
        ("oword", "octaword"),
        ("hword", "hexaword"),
        ("others", "other"),
    ];
    let heads: Vec<&str> = ["program", "N"].into_iter().chain(KINDS.map(|(head, _)| head)).collect();
    let mut reads = Table::new("Table 5.3: memory reads per instruction, by size", &heads);
    let mut writes = Table::new("Table 5.4: memory writes per instruction, by size", &heads);
    for row in rows {
        let (mcf, mls) = (&row.mcftrace, &row.mlstrace);
        let instructions = mcf.number("instructions");
        let conditional = mcf.number("conditional_direct_taken") + mcf.number("conditional_direct_not_taken");
        let parts = [
            mcf.number("branches"),
            conditional,
            mcf.number("unconditional_direct"),
            mcf.number("unconditional_indirect"),
        ];
        let parts = parts.map(|part| fixed(percent(part, instructions)));
        control.row(name(row).into_iter().chain([grouped(instructions)]).chain(parts));
        let instructions = mls.number("instructions");
        let per = |value: u64| fixed(value as f64 / instructions.max(1) as f64);
        let count = |direction: &str, kind: &str| mls.statistics[direction][kind].as_u64().unwrap_or(0);
        let (loads, stores) = (count("loads", "total"), count("stores", "total"));
        let cells = [grouped(instructions), grouped(loads), grouped(stores), per(loads), per(stores)];
        memory.row(name(row).into_iter().chain(cells));
        reads.row(name(row).into_iter().chain(KINDS.map(|(_, kind)| per(count("loads", kind)))));
        writes.row(name(row).into_iter().chain(KINDS.map(|(_, kind)| per(count("stores", kind)))));
    }
    vec![control, memory, reads, writes]
}

fn sizes(caption: &str, rows: &[Row], part: Part) -> Table {
    let mut table = Table::new(caption, &["program", "N", "raw", "gzip", "bzip2", "raw/gzip", "raw/bzip2"]);
    for row in rows {
        let [raw, gzip, bzip2] = part(row).bytes;
        let cells = [grouped(raw), grouped(gzip), grouped(bzip2), ratio(raw, gzip), ratio(raw, bzip2)];
        table.row(name(row).into_iter().chain(cells));
    }
    table
}

fn times(caption: &str, rows: &[Row], part: Part) -> Table {
    let mut table = Table::new(caption, &["program", "N", "raw", "gzip", "bzip2", "gzip/raw", "bzip2/raw"]);
    for row in rows {
        let [raw, gzip, bzip2] = part(row).seconds;
        let cells = [raw, gzip, bzip2, gzip / raw, bzip2 / raw].map(fixed);
        table.row(name(row).into_iter().chain(cells));
    }
    table
}

fn mispredictions(caption: &str, rows: &[Row], part: Part) -> Table {
    let heads = ["program", "N", "cond. direct", "outcomes %", "uncond. indirect", "targets %", "exceptions"];
    let mut table = Table::new(caption, &heads);
    for row in rows {
        let number = |name| part(row).number(name);
        let (conditional, indirect) = (number("conditional_direct"), number("unconditional_indirect"));
        let rate = |wrong, all| format!("{:.3}", percent(wrong, all));
        table.row(name(row).into_iter().chain([
            grouped(conditional),
            rate(number("outcomes_mispredicted"), conditional),
            grouped(indirect),
            rate(number("targets_mispredicted"), indirect),
            grouped(number("exceptions")),
        ]));
    }
    table
}

fn misses(caption: &str, rows: &[Row], part: Part) -> Table {
    let heads = ["program", "N", "accesses", "cache %", "loads that hit", "first access %", "of all loads %"];
    let mut table = Table::new(caption, &heads);
    for row in rows {
        let outcome = part(row);
        table.row(name(row).into_iter().chain([
            grouped(outcome.number("cache_hits") + outcome.number("cache_misses")),
            fixed(outcome.rate("cache_miss_percent")),
            grouped(outcome.number("first_access_hits") + outcome.number("first_access_misses")),
            fixed(outcome.rate("first_access_miss_percent_of_hits")),
            fixed(outcome.rate("first_access_miss_percent_of_loads")),
        ]));
    }
    table
}

fn savings(rows: &[Row]) -> Table {
    let heads = [
        "program",
        "N",
        "mcfTrace/private",
        "mlsTrace/private",
        "TRaptor shared/private",
        "in turns of one/private",
        "CFiat shared/private",
    ];
    let mut table = Table::new("What filters save, and what sharing costs (raw sizes)", &heads);
    for row in rows {
        let (traptor, cfiat) = (row.mcftraptor_private.bytes[0], row.mlvcfiat_private.bytes[0]);
        table.row(name(row).into_iter().chain([
            ratio(row.mcftrace.bytes[0], traptor),
            ratio(row.mlstrace.bytes[0], cfiat),
            ratio(row.mcftraptor_shared.bytes[0], traptor),
            ratio(row.mcftraptor_interleaved.bytes[0], traptor),
            ratio(row.mlvcfiat_shared.bytes[0], cfiat),
        ]));
    }
    table
}

fn running(rows: &[Row]) -> Table {
    let heads = ["program", "N", "native", "recorded", "with values", "live mcfTRaptor", "live/recorded"];
    let mut table = Table::new("Running times, seconds", &heads);
    for row in rows {
        let times = [row.native, row.recorded, row.recorded_with_values, row.live_mcftraptor];
        let cells = times.map(|seconds| format!("{seconds:.3}"));
        table.row(name(row).into_iter().chain(cells).chain([fixed(row.live_mcftraptor / row.recorded)]));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!((ratio(10, 4), ratio(1, 0)), ("2.5".to_owned(), "-".to_owned()));
    }
}
