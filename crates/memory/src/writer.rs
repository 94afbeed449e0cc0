//! Writing a memory trace: accesses and scopes in, chunks out.
//!
//! A [`MemoryTraceWriter`] gets what each thread does, in the merged order of threads. With
//! [`MemoryCodec::Prsd`], every thread has a grammar of its own for the order of its rows, and a
//! detector for each access point.
//!
//! Memory does not grow with the length of the trace, nor with the number of threads: a grammar
//! that becomes too large is written and begun anew, and so are pieces, and so is everything if all
//! threads together need too much. What remains is a table of all access points, and one of rows,
//! whose size is limited.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::mem;
use std::time::{Duration, Instant};

use codec::bytes::put_varint;
use entity::ThreadId;

use crate::container::{ChunkWriter, Kind, STREAM_MAX};
use crate::origin::{MemoryCodec, Origin};
use crate::point::{AccessPoint, PointId, PointTable};
use crate::prsd::{Detector, MAX_LEVEL, Piece, PieceEncoder};
use crate::record::{AccessRecord, RecordWriter};
use crate::row::{Action, ROW_MAX, RowTable};
use crate::second_stage::SecondStage;
use crate::sequitur::{BoundedGrammars, Rules};

/// What a [`MemoryTraceWriter`] may use, and how it compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionOptions {
    /// A grammar with more symbols is written, and a new one begun.
    pub grammar_symbols: usize,
    /// The highest level of the detectors (MAXLEVEL of METRIC).
    pub max_level: usize,
    /// Pieces of a thread are written when they take more bytes.
    pub piece_bytes: usize,
    /// Grammars and pieces of all threads are written, and begun anew, when they take more bytes.
    pub memory: usize,
    pub stage: SecondStage,
}

impl Default for CompressionOptions {
    fn default() -> Self {
        Self {
            grammar_symbols: 1 << 16,
            max_level: MAX_LEVEL,
            piece_bytes: 4 << 20,
            memory: 512 << 20,
            stage: SecondStage::default(),
        }
    }
}

/// Wall-clock time of the parts of compression, all of it in the thread that compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionTimes {
    /// Finding regular sections.
    pub detector: Duration,
    /// Rows and SEQUITUR.
    pub order: Duration,
    /// VPC3, the codecs of `.trk` files, or copying.
    pub records: Duration,
    /// The second stage, and writing.
    pub output: Duration,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionSummary {
    pub accesses: u64,
    pub points: u64,
    pub rows: u64,
    /// Grammars, and the rules and symbols in all of them.
    pub grammars: u64,
    pub rules: u64,
    pub symbols: u64,
    pub regular_pieces: u64,
    /// Accesses that are in no regular piece.
    pub irregular_accesses: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of grammars, and of regular sections and irregular addresses, after the second stage.
    pub order_bytes: u64,
    pub address_bytes: u64,
    pub times: CompressionTimes,
}

/// Bytes of an access before compression, as METRIC counts them (section 5.3): 4 for a 32-bit
/// address and 2 for the access point.
const METRIC_RECORD_BYTES: u64 = 6;

impl CompressionSummary {
    /// Returns the bytes of all accesses before compression, as METRIC counts them.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        self.accesses.saturating_mul(METRIC_RECORD_BYTES)
    }

    /// Returns METRIC's compression rate: [`Self::raw_bytes`] divided by the bytes of the file.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.raw_bytes() as f64 / self.bytes as f64
    }
}

/// Accesses that are collected before they are compressed.
const BATCH: usize = 8192;
/// Actions that are collected before they are compressed: a thread may go through loops without any
/// access.
const BATCH_ACTIONS: usize = 4 * BATCH;
/// Actions of new rows that are collected before the rows are written.
const ROW_ACTIONS: usize = 1 << 20;
/// Turns in a chunk.
const TURNS: usize = 1 << 18;
/// Limits of [`CompressionOptions`], so that no stream exceeds [`STREAM_MAX`].
const GRAMMAR_SYMBOLS_MAX: usize = 1 << 24;
const PIECE_BYTES_MAX: usize = STREAM_MAX / 2;

/// Writes a memory trace.
pub struct MemoryTraceWriter<W> {
    chunks: ChunkWriter<W>,
    options: CompressionOptions,
    points: PointTable,
    form: Form,
    /// The streams of threads whose turn it is not, and the bytes that they take.
    streams: BTreeMap<ThreadId, Box<ThreadStream>>,
    stream_bytes: usize,
    turns: Vec<(ThreadId, u64)>,
    summary: CompressionSummary,
}

enum Form {
    Sections { rows: RowTable },
    Records(Box<RecordWriter>),
}

/// What one thread does. With plain records, there is one stream for all threads.
struct ThreadStream {
    /// What was not compressed yet.
    accesses: Vec<AccessRecord>,
    actions: Vec<Action>,
    /// Where rows end in `actions`.
    ends: Vec<usize>,
    grammars: BoundedGrammars,
    /// By number of the access point.
    points: Vec<Option<Box<PointStream>>>,
    /// The number of points that have a stream.
    point_count: usize,
    /// Bytes of pieces of all points.
    piece_bytes: usize,
}

/// The addresses of an access point of a thread.
struct PointStream {
    detector: Detector,
    encoder: PieceEncoder,
    bytes: Vec<u8>,
}

/// One thread of a [`MemoryTraceWriter`], for as long as it does something.
pub struct ThreadWriter<'w, W: Write> {
    writer: &'w mut MemoryTraceWriter<W>,
    stream: Box<ThreadStream>,
    thread: ThreadId,
    /// Accesses of this turn.
    count: u64,
}

impl<W: Write> MemoryTraceWriter<W> {
    /// Begins a file.
    pub fn new(out: W, origin: &Origin, mut options: CompressionOptions) -> io::Result<Self> {
        options.grammar_symbols = options.grammar_symbols.min(GRAMMAR_SYMBOLS_MAX);
        options.piece_bytes = options.piece_bytes.min(PIECE_BYTES_MAX);
        let chunks = ChunkWriter::new(out)?;
        let form = match origin.codec {
            MemoryCodec::Prsd => Form::Sections { rows: RowTable::default() },
            codec => Form::Records(Box::new(RecordWriter::new(codec, options.stage))),
        };
        let (points, summary) = (PointTable::default(), CompressionSummary::default());
        let (streams, turns) = (BTreeMap::new(), Vec::new());
        let mut writer = Self { chunks, options, points, form, streams, stream_bytes: 0, turns, summary };
        writer.put_packed(Kind::Origin, ThreadId::FIRST, &[&origin.write()])?;
        Ok(writer)
    }

    /// Returns the number of accesses so far.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.summary.accesses
    }

    /// Returns a thread, which does what comes next.
    pub fn thread(&mut self, thread: ThreadId) -> ThreadWriter<'_, W> {
        let stream = match self.streams.remove(&self.stream_of(thread)) {
            Some(stream) => {
                self.stream_bytes -= stream.memory();
                stream
            }
            None => Box::new(ThreadStream::new(self.options.grammar_symbols)),
        };
        ThreadWriter { writer: self, stream, thread, count: 0 }
    }

    fn stream_of(&self, thread: ThreadId) -> ThreadId {
        match self.form {
            Form::Sections { .. } => thread,
            Form::Records(_) => ThreadId::FIRST,
        }
    }

    fn give_back(&mut self, thread: ThreadId, stream: Box<ThreadStream>) -> io::Result<()> {
        self.stream_bytes += stream.memory();
        self.streams.insert(self.stream_of(thread), stream);
        if self.stream_bytes <= self.options.memory { Ok(()) } else { self.finish_streams() }
    }

    /// Writes what all threads have, and frees its memory.
    #[cold]
    fn finish_streams(&mut self) -> io::Result<()> {
        self.stream_bytes = 0;
        mem::take(&mut self.streams).into_iter().try_for_each(|(thread, mut stream)| {
            stream.end_row();
            self.compress(thread, &mut stream)?;
            self.finish_stream(thread, &mut stream)
        })
    }

    /// Writes the rest.
    pub fn finish(mut self) -> io::Result<(W, CompressionSummary)> {
        self.finish_streams()?;
        if let Form::Records(records) = &mut self.form
            && let Some(chunk) = records.finish()
        {
            self.put_records(&chunk)?;
        }
        self.put_definitions()?;
        self.put_turns()?;
        self.put_end()?;
        let (out, bytes) = self.chunks.finish()?;
        Ok((out, CompressionSummary { bytes, ..self.summary }))
    }

    fn finish_stream(&mut self, thread: ThreadId, stream: &mut ThreadStream) -> io::Result<()> {
        if let Some(rules) = stream.grammars.finish() {
            self.put_order(thread, &rules)?;
        }
        for point in 0..stream.points.len() {
            stream.finish_point(point, &mut self.summary);
            if stream.piece_bytes >= self.options.piece_bytes {
                self.put_pieces(thread, stream)?;
            }
        }
        self.put_pieces(thread, stream)
    }

    /// Compresses what a thread has collected.
    fn compress(&mut self, thread: ThreadId, stream: &mut ThreadStream) -> io::Result<()> {
        match self.form {
            Form::Sections { .. } => self.compress_sections(thread, stream),
            Form::Records(_) => self.compress_records(stream),
        }
    }

    fn compress_sections(&mut self, thread: ThreadId, stream: &mut ThreadStream) -> io::Result<()> {
        let Form::Sections { rows } = &mut self.form else { return Ok(()) };
        let start = Instant::now();
        stream.detect(self.options.max_level, &mut self.summary);
        let detected = Instant::now();
        let grammars = stream.order(rows);
        self.summary.times.detector += detected - start;
        self.summary.times.order += detected.elapsed();
        let unwritten = rows.unwritten_actions();
        for rules in grammars {
            self.put_order(thread, &rules)?;
        }
        if unwritten >= ROW_ACTIONS {
            self.put_definitions()?;
        }
        if stream.piece_bytes >= self.options.piece_bytes { self.put_pieces(thread, stream) } else { Ok(()) }
    }

    fn compress_records(&mut self, stream: &mut ThreadStream) -> io::Result<()> {
        let Form::Records(records) = &mut self.form else { return Ok(()) };
        let start = Instant::now();
        let chunks: Vec<Vec<u8>> = stream.accesses.drain(..).filter_map(|record| records.push(record)).collect();
        self.summary.times.records += start.elapsed();
        stream.actions.clear();
        stream.ends.clear();
        chunks.iter().try_for_each(|chunk| self.put_records(chunk))
    }

    fn put(&mut self, kind: Kind, thread: ThreadId, content: &[u8]) -> io::Result<()> {
        match kind {
            Kind::Order => self.summary.order_bytes += content.len() as u64,
            Kind::Addresses => self.summary.address_bytes += content.len() as u64,
            _ => {}
        }
        self.chunks.put(kind, thread.get(), content)
    }

    /// Writes a chunk of packed streams.
    fn put_packed(&mut self, kind: Kind, thread: ThreadId, streams: &[&[u8]]) -> io::Result<()> {
        let mut content = Vec::new();
        for stream in streams {
            if stream.len() > STREAM_MAX {
                let problem = format!("{} bytes are too many for a stream of a memory trace", stream.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
            self.options.stage.pack(stream, &mut content);
        }
        self.put(kind, thread, &content)
    }

    fn put_order(&mut self, thread: ThreadId, rules: &Rules) -> io::Result<()> {
        self.put_definitions()?;
        self.summary.grammars += 1;
        self.summary.rules += rules.rule_count() as u64;
        self.summary.symbols += rules.size() as u64;
        let start = Instant::now();
        let mut bytes = Vec::new();
        rules.encode(&mut bytes);
        self.put_packed(Kind::Order, thread, &[&bytes])?;
        self.summary.times.output += start.elapsed();
        Ok(())
    }

    /// Writes the points and rows that are new.
    fn put_definitions(&mut self) -> io::Result<()> {
        let (mut points, mut rows) = (Vec::new(), Vec::new());
        self.points.write_new(&mut points);
        if let Form::Sections { rows: table } = &mut self.form {
            table.write_new(&mut rows);
            self.summary.rows = table.len() as u64;
        }
        self.summary.points = self.points.all().len() as u64;
        for (kind, bytes) in [(Kind::Points, points), (Kind::Rows, rows)] {
            if !bytes.is_empty() {
                self.put_packed(kind, ThreadId::FIRST, &[&bytes])?;
            }
        }
        Ok(())
    }

    /// Writes the pieces of a thread: for each point that has some, the distance of its number to
    /// the one before and the bytes of its pieces; then all pieces.
    fn put_pieces(&mut self, thread: ThreadId, stream: &mut ThreadStream) -> io::Result<()> {
        self.put_definitions()?;
        let start = Instant::now();
        let (mut directory, mut pieces, mut before) = (Vec::new(), Vec::new(), 0);
        for (number, point) in (1u64..).zip(&mut stream.points) {
            let Some(point) = point.as_mut().filter(|point| !point.bytes.is_empty()) else { continue };
            put_varint(&mut directory, number - before);
            put_varint(&mut directory, point.bytes.len() as u64);
            before = number;
            pieces.append(&mut point.bytes);
            // Each chunk can be read without the ones before it.
            point.encoder = PieceEncoder::default();
        }
        stream.piece_bytes = 0;
        if !directory.is_empty() {
            self.put_packed(Kind::Addresses, thread, &[&directory, &pieces])?;
        }
        self.summary.times.output += start.elapsed();
        Ok(())
    }

    fn put_records(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.put_definitions()?;
        let start = Instant::now();
        self.put(Kind::Records, ThreadId::FIRST, chunk)?;
        self.summary.times.output += start.elapsed();
        Ok(())
    }

    fn add_turn(&mut self, thread: ThreadId, count: u64) -> io::Result<()> {
        self.summary.accesses += count;
        match self.turns.last_mut() {
            _ if count == 0 => {}
            Some((last, sum)) if *last == thread => *sum += count,
            _ => self.turns.push((thread, count)),
        }
        if self.turns.len() < TURNS { Ok(()) } else { self.put_turns() }
    }

    fn put_turns(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (thread, count) in self.turns.drain(..) {
            put_varint(&mut bytes, u64::from(thread.get()));
            put_varint(&mut bytes, count);
        }
        if bytes.is_empty() { Ok(()) } else { self.put_packed(Kind::Turns, ThreadId::FIRST, &[&bytes]) }
    }

    fn put_end(&mut self) -> io::Result<()> {
        let mut content = Vec::new();
        put_varint(&mut content, self.summary.accesses);
        self.put(Kind::End, ThreadId::FIRST, &content)
    }
}

impl<W: Write> ThreadWriter<'_, W> {
    /// Returns the number of an access point.
    pub fn point(&mut self, point: AccessPoint) -> PointId {
        self.writer.points.id_of(point)
    }

    /// Adds an access.
    #[inline]
    pub fn access(&mut self, point: PointId, address: u64) -> io::Result<()> {
        self.count += 1;
        self.stream.accesses.push(AccessRecord { point, address });
        self.stream.actions.push(Action::Access(point));
        if self.stream.accesses.len() < BATCH { Ok(()) } else { self.compress() }
    }

    /// Adds a change of scope. [`MemoryCodec::Prsd`] alone keeps it.
    #[inline]
    pub fn scope(&mut self, change: Action) -> io::Result<()> {
        self.stream.actions.push(change);
        if self.stream.actions.len() < BATCH_ACTIONS { Ok(()) } else { self.compress() }
    }

    /// Ends a row, for example at the end of a loop's iteration. Rows that come again and again
    /// make a file small.
    #[inline]
    pub fn end_row(&mut self) {
        self.stream.end_row();
    }

    /// Ends the thread's turn.
    pub fn finish(mut self) -> io::Result<()> {
        let (thread, count) = (self.thread, mem::take(&mut self.count));
        self.writer.add_turn(thread, count)?;
        self.writer.give_back(thread, self.stream)
    }

    #[cold]
    fn compress(&mut self) -> io::Result<()> {
        self.writer.compress(self.thread, &mut self.stream)
    }
}

/// About how many bytes a detector takes for its levels and its irregular addresses.
const DETECTOR_BYTES: usize = 1 << 10;

impl ThreadStream {
    fn new(grammar_symbols: usize) -> Self {
        Self {
            accesses: Vec::new(),
            actions: Vec::new(),
            ends: Vec::new(),
            grammars: BoundedGrammars::new(grammar_symbols),
            points: Vec::new(),
            point_count: 0,
            piece_bytes: 0,
        }
    }

    /// Returns about how many bytes the stream takes.
    fn memory(&self) -> usize {
        let collected = self.accesses.capacity() * size_of::<AccessRecord>()
            + self.actions.capacity() * size_of::<Action>()
            + self.ends.capacity() * size_of::<usize>();
        let points = self.points.capacity() * size_of::<Option<Box<PointStream>>>()
            + self.point_count * (size_of::<PointStream>() + DETECTOR_BYTES);
        collected + points + self.piece_bytes + self.grammars.memory()
    }

    #[inline]
    fn end_row(&mut self) {
        if self.actions.len() > self.ends.last().copied().unwrap_or(0) {
            self.ends.push(self.actions.len());
        }
    }

    /// Passes the addresses that were collected to the detectors of their points.
    fn detect(&mut self, max_level: usize, summary: &mut CompressionSummary) {
        for AccessRecord { point: PointId(point), address } in self.accesses.drain(..) {
            let point = point as usize;
            if point >= self.points.len() {
                self.points.resize_with(point + 1, || None);
            }
            let stream = self.points[point].get_or_insert_with(|| {
                self.point_count += 1;
                Box::new(PointStream::new(max_level))
            });
            let PointStream { detector, encoder, bytes } = &mut **stream;
            detector.push(address, &mut |piece| self.piece_bytes += put_piece(encoder, bytes, piece, summary));
        }
    }

    fn finish_point(&mut self, point: usize, summary: &mut CompressionSummary) {
        if let Some(stream) = &mut self.points[point] {
            let PointStream { detector, encoder, bytes } = &mut **stream;
            detector.finish(&mut |piece| self.piece_bytes += put_piece(encoder, bytes, piece, summary));
        }
    }

    /// Appends the rows that were collected to the grammar. Returns the grammars that became too
    /// large.
    fn order(&mut self, rows: &mut RowTable) -> Vec<Rules> {
        let (mut start, mut grammars) = (0, Vec::new());
        for end in self.ends.drain(..) {
            for row in self.actions[start..end].chunks(ROW_MAX) {
                rows.numbers_of(row, |number| grammars.extend(self.grammars.push(number)));
            }
            start = end;
        }
        // A row without an end so far stays, unless it is longer than a row can be.
        while self.actions.len() - start >= ROW_MAX {
            let row = &self.actions[start..start + ROW_MAX];
            rows.numbers_of(row, |number| grammars.extend(self.grammars.push(number)));
            start += ROW_MAX;
        }
        self.actions.drain(..start);
        grammars
    }
}

impl PointStream {
    fn new(max_level: usize) -> Self {
        Self { detector: Detector::new(max_level), encoder: PieceEncoder::default(), bytes: Vec::new() }
    }
}

/// Appends a piece and returns the number of bytes that it takes.
fn put_piece(
    encoder: &mut PieceEncoder,
    bytes: &mut Vec<u8>,
    piece: Piece<'_>,
    summary: &mut CompressionSummary,
) -> usize {
    match piece {
        Piece::Regular(_) => summary.regular_pieces += 1,
        Piece::Irregular(addresses) => summary.irregular_accesses += addresses.len() as u64,
    }
    let before = bytes.len();
    encoder.put(bytes, piece);
    bytes.len() - before
}

#[cfg(test)]
mod tests {
    use entity::AppPc;

    use super::*;
    use crate::row::LoopIndex;

    fn writer(options: CompressionOptions) -> MemoryTraceWriter<Vec<u8>> {
        MemoryTraceWriter::new(Vec::new(), &Origin::default(), options).unwrap()
    }

    #[test]
    fn a_loop_without_accesses_takes_bounded_memory() {
        let mut writer = writer(CompressionOptions::default());
        let mut thread = writer.thread(ThreadId::FIRST);
        for _ in 0..10 * BATCH {
            thread.scope(Action::Iterate(LoopIndex(0))).unwrap();
            thread.end_row();
        }
        assert!(thread.stream.actions.len() < 5 * BATCH, "{}", thread.stream.actions.len());
    }

    #[test]
    fn many_threads_take_bounded_memory() {
        const MEMORY: usize = 4 << 20;
        let mut writer = writer(CompressionOptions { memory: MEMORY, ..CompressionOptions::default() });
        for number in 0..500 {
            let mut thread = writer.thread(ThreadId::new(number));
            for pc in 0..500 {
                let point = thread.point(AccessPoint { image: 0, pc: AppPc::new(pc), size: 8, is_write: false });
                thread.access(point, 8 * pc).unwrap();
            }
            thread.finish().unwrap();
            let sum: usize = writer.streams.values().map(|stream| stream.memory()).sum();
            assert!(sum <= MEMORY && sum == writer.stream_bytes, "{sum}");
        }
        let (file, summary) = writer.finish().unwrap();
        let trace = crate::MemoryTrace::from_bytes(file).unwrap();
        assert_eq!((summary.accesses, trace.merged().filter_map(Result::ok).count()), (250_000, 250_000));
    }
}
