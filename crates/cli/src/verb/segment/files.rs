//! Writes every trace of a policy to a file, as CSV or Parquet.

use std::path::Path;
use std::sync::Arc;

use experiment::segment::{PolicyOutcome, TraceDetails, weights_text};
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use segment::SegmentTrace;

use crate::failure::Failure;
use crate::output::{LineBuffer, Output, Stopped};

enum Format {
    /// As the tool of the thesis writes it.
    Csv,
    /// With the whole path of each trace, and its consistency and chains.
    Parquet,
}

/// The file for the traces.
pub struct TraceFile {
    output: Output,
    format: Format,
}

impl TraceFile {
    /// Opens the file before the long work, so that a wrong name is reported at once.
    pub fn open(path: &Path, input: Option<&Path>) -> Result<Self, Failure> {
        let is_parquet = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
        let output = match input {
            Some(input) => Output::open_apart_from(input, Some(path)),
            None => Output::open(Some(path)),
        };
        Ok(Self { output: output?, format: if is_parquet { Format::Parquet } else { Format::Csv } })
    }

    /// Writes the traces, those with the highest coverage first.
    pub fn write(mut self, own: &PolicyOutcome, details: &TraceDetails) -> Result<(), Stopped> {
        match self.format {
            Format::Csv => write_csv(self.output, details),
            Format::Parquet => {
                let bytes =
                    parquet(own, details).map_err(|error| Failure::new(format!("cannot make Parquet: {error}")))?;
                self.output.write(&bytes)?;
                self.output.finish()
            }
        }
    }
}

fn write_csv(output: Output, TraceDetails { set, .. }: &TraceDetails) -> Result<(), Stopped> {
    let mut lines = LineBuffer::new(output);
    lines.bytes.extend(b"StartAddress,Instructions,CFICount,BranchOutcomes,Reason,Occurrences\n");
    for trace in set.traces() {
        let (start, outcomes) = (trace.start(), trace.branch_outcomes());
        let (reason, count) = (trace.reason.name(), trace.occurrences);
        let line = format!("{start:#x},{},{},{outcomes:#x},{reason},{count}\n", trace.instructions, trace.cfis);
        lines.bytes.extend(line.as_bytes());
        lines.flush_if_long()?;
    }
    lines.finish()
}

const SCHEMA: &str = "
message traces {
    required int64 StartAddress (INTEGER(64, false));
    required int32 Instructions (INTEGER(32, false));
    required int32 CFICount (INTEGER(32, false));
    required int32 BranchOutcomes (INTEGER(32, false));
    required binary Reason (STRING);
    required int64 Occurrences (INTEGER(64, false));
    required double Consistency;
    optional int32 LongestChain (INTEGER(32, false));
    required group Path (LIST) { repeated group list { required int64 element (INTEGER(64, false)); } }
}";

/// The number of traces in a row group.
const GROUP: usize = 1 << 16;

/// Returns the policy, and the averages over its traces, as metadata.
fn properties(own: &PolicyOutcome) -> WriterProperties {
    let pairs = [
        ("flags", own.policy.flags()),
        ("max_instructions", own.policy.max_instructions().to_string()),
        ("max_cfis", own.policy.max_cfis().to_string()),
        ("weights", weights_text(&own.policy)),
        ("rules", own.policy.rules()),
        ("trace_length_by_coverage", own.trace_length.by_coverage.to_string()),
        ("trace_length_by_occurrences", own.trace_length.by_occurrences.to_string()),
        ("trace_count", own.trace_count.to_string()),
    ];
    let pairs = pairs.map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let builder = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    builder.set_key_value_metadata(Some(pairs.to_vec())).build()
}

fn parquet(
    own: &PolicyOutcome,
    TraceDetails { set, consistencies, chains }: &TraceDetails,
) -> Result<Vec<u8>, ParquetError> {
    let properties = properties(own);
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    for (number, traces) in set.traces().chunks(GROUP).enumerate() {
        let first = number * GROUP;
        let chains = chains.get(first..first + traces.len()).unwrap_or_default();
        let mut group = file.next_row_group()?;
        write_group(&mut group, traces, &consistencies[first..first + traces.len()], chains)?;
        group.close()?;
    }
    file.into_inner()
}

/// Converts unsigned numbers to signed ones of the same bits, which Parquet stores.
fn write_group(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    traces: &[SegmentTrace],
    consistencies: &[f64],
    chains: &[u32],
) -> Result<(), ParquetError> {
    let longs = |number: fn(&SegmentTrace) -> u64| traces.iter().map(|trace| number(trace) as i64).collect::<Vec<_>>();
    let ints = |number: fn(&SegmentTrace) -> u32| traces.iter().map(|trace| number(trace) as i32).collect::<Vec<_>>();
    let reasons = traces.iter().map(|trace| ByteArray::from(trace.reason.name())).collect::<Vec<_>>();
    let levels = vec![i16::from(!chains.is_empty()); traces.len()];
    let path = || traces.iter().flat_map(|trace| trace.runs.iter().enumerate());
    // A path has at least its start, so that every list has a first element.
    let firsts: Vec<i16> = path().map(|(place, _)| i16::from(place > 0)).collect();
    let addresses: Vec<i64> = path().map(|(_, run)| run.address.get() as i64).collect();
    column(group, |column| column.longs(&longs(|trace| trace.start().get()), None))?;
    column(group, |column| column.ints(&ints(|trace| trace.instructions), None))?;
    column(group, |column| column.ints(&ints(|trace| trace.cfis), None))?;
    column(group, |column| column.ints(&ints(SegmentTrace::branch_outcomes), None))?;
    column(group, |column| column.texts(&reasons))?;
    column(group, |column| column.longs(&longs(|trace| trace.occurrences), None))?;
    column(group, |column| column.doubles(consistencies))?;
    let chains: Vec<i32> = chains.iter().map(|&chain| chain as i32).collect();
    column(group, |column| column.ints(&chains, Some(&levels)))?;
    column(group, |column| column.longs(&addresses, Some(&firsts)))
}

/// A column; the schema gives its type.
struct Column<'c, 'w> {
    writer: &'c mut ColumnWriter<'w>,
}

fn column(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    write: impl FnOnce(&mut Column<'_, '_>) -> Result<usize, ParquetError>,
) -> Result<(), ParquetError> {
    let mut next = group.next_column()?.ok_or_else(|| ParquetError::General("there are no more columns".into()))?;
    write(&mut Column { writer: next.untyped() })?;
    next.close()
}

impl Column<'_, '_> {
    fn wrong() -> ParquetError {
        ParquetError::General("a column has another type".into())
    }

    /// In lists: whether each number continues the list of the one before.
    fn longs(&mut self, values: &[i64], lists: Option<&[i16]>) -> Result<usize, ParquetError> {
        let ColumnWriter::Int64ColumnWriter(writer) = self.writer else { return Err(Self::wrong()) };
        let there = lists.map(|lists| vec![1; lists.len()]);
        writer.write_batch(values, there.as_deref(), lists)
    }

    /// Whether each number is present.
    fn ints(&mut self, values: &[i32], there: Option<&[i16]>) -> Result<usize, ParquetError> {
        let ColumnWriter::Int32ColumnWriter(writer) = self.writer else { return Err(Self::wrong()) };
        writer.write_batch(values, there, None)
    }

    fn doubles(&mut self, values: &[f64]) -> Result<usize, ParquetError> {
        let ColumnWriter::DoubleColumnWriter(writer) = self.writer else { return Err(Self::wrong()) };
        writer.write_batch(values, None, None)
    }

    fn texts(&mut self, values: &[ByteArray]) -> Result<usize, ParquetError> {
        let ColumnWriter::ByteArrayColumnWriter(writer) = self.writer else { return Err(Self::wrong()) };
        writer.write_batch(values, None, None)
    }
}
