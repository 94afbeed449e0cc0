//! `trackway memory compress`.

use std::fmt::Write;
use std::time::Instant;

use memory::second_stage::SecondStage;
use memory::{CompressError, CompressionOptions, CompressionSummary};
use scope::Scopes;
use serde::Serialize;
use trace::Trace;

use crate::arguments::memory::{self as arguments, Compress};
use crate::digits::{grouped, percent};
use crate::failure::{FAILED, Failure};
use crate::output::{Output, Stopped};
use crate::progress::Progress;
use crate::{scopes, select};

/// Bytes of an access before compression, as METRIC counts them (section 5.3).
const RECORD_BYTES: u64 = 6;

pub fn run(arguments: &Compress) -> Result<u8, Stopped> {
    let start = Instant::now();
    let trace = Trace::open(&arguments.file).map_err(Failure::from)?;
    select::require_data(&trace)?;
    let scopes = wanted_scopes(&trace, arguments)?;
    let mut output = Output::open_apart_from(&arguments.file, Some(&arguments.output))?;
    let (mut damaged, mut progress) = (0, Progress::new());
    let (codec, options) = (codec(arguments.codec), options(arguments));
    let total = trace.totals().reads.saturating_add(trace.totals().writes);
    let left_out = |error: &trace::ReadError| {
        eprintln!("trackway: left out: {error}");
        damaged += 1;
    };
    let tick = |done| progress.tick(|| format!("{} of {} accesses", grouped(done), grouped(total)));
    let compressed = memory::compress(&trace, &scopes, codec, options, &mut output, left_out, tick);
    let (_, summary) = match compressed {
        Ok(compressed) => compressed,
        Err(CompressError::Read(error)) => return Err(error.into()),
        Err(CompressError::Write(error)) => return Err(output.stopped(&error)),
    };
    output.finish()?;
    drop(progress);
    print(arguments, &Report::of(&summary, codec, start.elapsed().as_secs_f64()))?;
    let damaged = damaged + select::warn_if_unfinished(&trace, &arguments.file);
    Ok(if damaged == 0 { 0 } else { FAILED })
}

fn codec(codec: arguments::Codec) -> memory::MemoryCodec {
    match codec {
        arguments::Codec::Prsd => memory::MemoryCodec::Prsd,
        arguments::Codec::Vpc3 => memory::MemoryCodec::Vpc3,
        arguments::Codec::Native => memory::MemoryCodec::Native,
        arguments::Codec::Raw => memory::MemoryCodec::Raw,
    }
}

fn options(arguments: &Compress) -> CompressionOptions {
    CompressionOptions {
        grammar_symbols: arguments.grammar as usize,
        max_level: usize::from(arguments.levels) - 1,
        stage: match arguments.second_stage {
            arguments::SecondStage::Zstd => SecondStage::default(),
            arguments::SecondStage::Bzip2 => SecondStage::Bzip2,
            arguments::SecondStage::None => SecondStage::Store,
        },
        ..CompressionOptions::default()
    }
}

/// Returns the scopes to keep: of the routines that the user names, or that were recorded, or all.
fn wanted_scopes(trace: &Trace, arguments: &Compress) -> Result<Scopes, Failure> {
    if arguments.codec != arguments::Codec::Prsd && !arguments.routines.is_empty() {
        let name = codec(arguments.codec).name();
        return Err(Failure::new(format!("the codec {name} keeps no scopes, so there are none of a routine"))
            .hint("leave out --routine, or use --codec prsd"));
    }
    if arguments.no_scopes || arguments.codec != arguments::Codec::Prsd {
        return Ok(Scopes::default());
    }
    match scopes::select(trace, &arguments.routines) {
        // The accesses alone are worth keeping.
        Err(failure) if arguments.routines.is_empty() => {
            eprintln!("{failure}");
            Ok(Scopes::default())
        }
        scopes => scopes,
    }
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    codec: &'static str,
    accesses: u64,
    points: u64,
    raw_bytes: u64,
    compressed_bytes: u64,
    rate: f64,
    seconds: f64,
    detector_seconds: f64,
    order_seconds: f64,
    records_seconds: f64,
    output_seconds: f64,
    rows: u64,
    grammars: u64,
    rules: u64,
    symbols: u64,
    regular_sections: u64,
    irregular_accesses: u64,
}

impl Report {
    fn of(summary: &CompressionSummary, codec: memory::MemoryCodec, seconds: f64) -> Self {
        let raw_bytes = summary.accesses.saturating_mul(RECORD_BYTES);
        Self {
            codec: codec.name(),
            accesses: summary.accesses,
            points: summary.points,
            raw_bytes,
            compressed_bytes: summary.bytes,
            rate: raw_bytes as f64 / summary.bytes as f64,
            seconds,
            detector_seconds: summary.times.detector.as_secs_f64(),
            order_seconds: summary.times.order.as_secs_f64(),
            records_seconds: summary.times.records.as_secs_f64(),
            output_seconds: summary.times.output.as_secs_f64(),
            rows: summary.rows,
            grammars: summary.grammars,
            rules: summary.rules,
            symbols: summary.symbols,
            regular_sections: summary.regular_pieces,
            irregular_accesses: summary.irregular_accesses,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<10} {value}");
        };
        line("accesses", format!("{} of {} access points", grouped(self.accesses), grouped(self.points)));
        line("file", format!("{} bytes ({})", grouped(self.compressed_bytes), self.codec));
        line("rate", format!("{:.2}", self.rate));
        if self.codec == memory::MemoryCodec::Prsd.name() {
            let (rules, symbols, rows) = (grouped(self.rules), grouped(self.symbols), grouped(self.rows));
            let grammars = if self.grammars == 1 { "1 grammar".into() } else { format!("{} grammars", self.grammars) };
            line("order", format!("{grammars} with {rules} rules and {symbols} symbols, over {rows} rows"));
            let (irregular, share) =
                (grouped(self.irregular_accesses), percent(self.irregular_accesses, self.accesses));
            let sections = grouped(self.regular_sections);
            line("addresses", format!("{sections} regular sections; {irregular} irregular accesses ({share:.1} %)"));
        }
        text
    }
}

fn print(arguments: &Compress, report: &Report) -> Result<(), Stopped> {
    let mut output = Output::open(None)?;
    match arguments.json {
        true => output.json(report)?,
        false => output.write(report.text().as_bytes())?,
    }
    output.finish()
}
