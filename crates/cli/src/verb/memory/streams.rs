//! `trackway memory streams`: the stream metrics of METRIC, section 9.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use memory::regularity::Regularity;
use memory::{AccessPoint, CodeModule, MemoryTrace, PointId};
use serde::Serialize;
use symbols::Functions;
use trace::AppPc;

use crate::arguments::memory::Streams;
use crate::digits::grouped;
use crate::output::{Output, Stopped};

/// Lengths and strides in a distribution.
const DISTRIBUTION_MAX: usize = 3;

pub fn run(arguments: &Streams) -> Result<u8, Stopped> {
    let trace = super::open(&arguments.file)?;
    super::require_sections(&trace, &arguments.file)?;
    let mut output = Output::open_apart_from(&arguments.file, arguments.output.file.as_deref())?;
    let mut points = regularities(&trace).map_err(|error| super::failure(&arguments.file, &error))?;
    let total = points.iter().fold(Regularity::default(), |mut total, (_, regularity)| {
        total.merge(regularity);
        total
    });
    points.sort_by_key(|(_, regularity)| std::cmp::Reverse(regularity.accesses()));
    let mut names = Names { trace: &trace, files: BTreeMap::new() };
    let points: Vec<PointReport> = points
        .iter()
        .take(arguments.top.get() as usize)
        .filter_map(|(point, regularity)| Some(names.report(trace.point(*point)?, regularity)))
        .collect();
    let report = StreamReport { accesses: trace.accesses(), metrics: Metrics::of(&total), points };
    match arguments.json {
        true => output.json(&report)?,
        false => output.write(report.text().as_bytes())?,
    }
    output.finish()?;
    Ok(0)
}

/// Returns the regularity of every access point, of all threads together.
fn regularities(trace: &MemoryTrace) -> Result<Vec<(PointId, Regularity)>, memory::MemoryTraceError> {
    let mut points: BTreeMap<PointId, Regularity> = BTreeMap::new();
    for thread in trace.threads() {
        trace.pieces(thread, |point, piece| points.entry(point).or_default().add(&piece))?;
    }
    Ok(points.into_iter().collect())
}

#[derive(Serialize)]
struct StreamReport {
    accesses: u64,
    #[serde(flatten)]
    metrics: Metrics,
    points: Vec<PointReport>,
}

#[derive(Serialize)]
struct PointReport {
    address: String,
    name: String,
    kind: &'static str,
    size: u32,
    accesses: u64,
    #[serde(flatten)]
    metrics: Metrics,
}

#[derive(Serialize)]
struct Metrics {
    predictable_accesses: u64,
    regularity_ratio: Option<f64>,
    streams: u64,
    mean_stream_length: Option<f64>,
    distinct_lengths: usize,
    distinct_strides: usize,
    /// The most frequent lengths and strides, each with its share of all streams.
    lengths: Vec<Share<u64>>,
    strides: Vec<Share<i64>>,
}

#[derive(Serialize)]
struct Share<T> {
    value: T,
    share: f64,
}

impl Metrics {
    fn of(regularity: &Regularity) -> Self {
        Self {
            predictable_accesses: regularity.predictable_accesses(),
            regularity_ratio: regularity.regularity_ratio(),
            streams: regularity.streams(),
            mean_stream_length: regularity.mean_stream_length(),
            distinct_lengths: regularity.distinct_lengths(),
            distinct_strides: regularity.distinct_strides(),
            lengths: shares(regularity.length_distribution()),
            strides: shares(regularity.stride_distribution()),
        }
    }
}

fn shares<T>(distribution: Vec<(T, f64)>) -> Vec<Share<T>> {
    distribution.into_iter().take(DISTRIBUTION_MAX).map(|(value, share)| Share { value, share }).collect()
}

/// The names of instructions.
struct Names<'t> {
    trace: &'t MemoryTrace,
    files: BTreeMap<&'t str, Option<Functions>>,
}

impl<'t> Names<'t> {
    fn report(&mut self, point: &AccessPoint, regularity: &Regularity) -> PointReport {
        PointReport {
            address: format!("{:#x}", point.pc),
            name: self.name(point.image, point.pc),
            kind: if point.is_write { "store" } else { "load" },
            size: point.size,
            accesses: regularity.accesses(),
            metrics: Metrics::of(regularity),
        }
    }

    /// Returns function and offset, or module and offset, or nothing.
    fn name(&mut self, image: u32, pc: AppPc) -> String {
        let contains =
            |module: &&CodeModule| module.image == image && pc.get().wrapping_sub(module.address) < module.length;
        let Some(module) = self.trace.origin().modules.iter().find(contains) else { return String::new() };
        let functions =
            self.files.entry(&module.path).or_insert_with(|| Functions::of_file(Path::new(&module.path)).ok());
        let found = functions.as_ref().and_then(|functions| {
            let linked = pc.get().wrapping_sub(functions.bias(module.address, module.file_offset)?);
            let function = functions.whole_at(linked)?;
            Some(format!("{}+{:#x}", function.name(), linked.wrapping_sub(function.start)))
        });
        found.unwrap_or_else(|| {
            let file = Path::new(&module.path).file_name().unwrap_or_default().to_string_lossy();
            format!("{file}+{:#x}", pc.get().wrapping_sub(module.address).wrapping_add(module.file_offset))
        })
    }
}

fn decimal(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

impl StreamReport {
    fn text(&self) -> String {
        let mut text = format!(
            "{} accesses, {} predictable (regularity ratio {}), in {} streams of {} accesses on average\n\n",
            grouped(self.accesses),
            grouped(self.metrics.predictable_accesses),
            decimal(self.metrics.regularity_ratio, 3),
            grouped(self.metrics.streams),
            decimal(self.metrics.mean_stream_length, 1),
        );
        let _ = writeln!(
            text,
            "{:>15}  {:>5}  {:>11}  {:>12}  {:>18}  instruction",
            "accesses", "ratio", "mean length", "lengths", "strides"
        );
        for point in &self.points {
            let metrics = &point.metrics;
            let _ = writeln!(
                text,
                "{:>15}  {:>5}  {:>11}  {:>12}  {:>18}  {} {} {} {}",
                grouped(point.accesses),
                decimal(metrics.regularity_ratio, 3),
                decimal(metrics.mean_stream_length, 1),
                summary(&metrics.lengths, metrics.distinct_lengths),
                summary(&metrics.strides, metrics.distinct_strides),
                point.address,
                point.kind,
                point.size,
                point.name,
            );
        }
        text
    }
}

/// Returns the most frequent value with its share, and how many others there are.
fn summary<T: std::fmt::Display>(shares: &[Share<T>], distinct: usize) -> String {
    match shares.first() {
        None => "-".into(),
        Some(Share { value, .. }) if distinct == 1 => value.to_string(),
        Some(Share { value, share }) => format!("{value} {:.0} % +{}", 100.0 * share, distinct - 1),
    }
}
