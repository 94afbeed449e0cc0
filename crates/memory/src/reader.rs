//! Reading a memory trace: its access points, and what each thread did, without expanding the file.
//!
//! A [`MemoryTrace`] keeps the grammars and the pieces compressed. A [`ThreadWalk`] goes through
//! one thread, a [`MergedRecords`] through all of them in their turns. Chunks are unpacked when
//! they are needed.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;

use codec::bytes::ByteReader;
use entity::ThreadId;
use memmap2::Mmap;

use crate::FormatError;
use crate::container::{Chunk, Kind, Refusal, STREAM_MAX, chunks};
use crate::origin::{MemoryCodec, Origin};
use crate::point::{AccessPoint, PointId, PointTable};
use crate::prsd::PieceReader;
use crate::row::{Action, RowTable};
use crate::second_stage::unpack;
use crate::sequitur::Rules;

mod merged;
mod walk;

pub use merged::MergedRecords;
pub use walk::{ThreadWalk, WalkItem};

/// Why a memory trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum MemoryTraceError {
    #[error("cannot open {path:?}: {reason}")]
    Open { path: std::path::PathBuf, reason: String },
    #[error("it is not a memory trace")]
    NotAMemoryTrace,
    #[error("its version is {0}, and this program reads version 1")]
    Version(u8),
    #[error("it is damaged at byte {0}")]
    Chunk(usize),
    #[error("its chunk at byte {at} is damaged: {problem}")]
    Content { at: usize, problem: FormatError },
    #[error("it ends early: it was not finished")]
    Unfinished,
    #[error("thread {0} has fewer addresses than its order says")]
    Addresses(ThreadId),
    #[error("its records are fewer than the turns of its threads say")]
    Records,
    #[error("thread {0} is not in it")]
    NoThread(ThreadId),
}

const DIRECTORY: FormatError = FormatError("directory of pieces");

enum FileBytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A memory trace that can be read.
pub struct MemoryTrace {
    file: FileBytes,
    origin: Origin,
    points: PointTable,
    rows: RowTable,
    threads: BTreeMap<ThreadId, ThreadIndex>,
    records: Vec<Chunk>,
    turns: Vec<Chunk>,
    accesses: u64,
}

/// Where the parts of a thread are.
#[derive(Debug, Default)]
struct ThreadIndex {
    orders: Vec<Chunk>,
    addresses: Vec<Chunk>,
    /// Where the pieces of each access point are. A thread takes memory for its own points only.
    pieces: BTreeMap<PointId, Vec<PieceBytes>>,
}

/// The pieces of a point in a chunk.
#[derive(Clone, Debug)]
struct PieceBytes {
    /// The chunk, by its position in [`ThreadIndex::addresses`].
    chunk: u32,
    /// Where they are in the chunk's unpacked pieces.
    range: Range<u32>,
}

impl fmt::Debug for MemoryTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTrace").field("origin", &self.origin).field("accesses", &self.accesses).finish()
    }
}

impl MemoryTrace {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, MemoryTraceError> {
        let failed =
            |error: std::io::Error| MemoryTraceError::Open { path: path.to_owned(), reason: error.to_string() };
        let file = std::fs::File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(MemoryTraceError::Open { path: path.to_owned(), reason: "it is not a regular file".into() });
        }
        // SAFETY: the mapping is only read, and every use of it is checked. A writer replaces a
        // file as a whole and never shortens it, which is the one thing that would make reading
        // fault.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Self::read(FileBytes::Mapped(map))
    }

    /// Reads a file from memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, MemoryTraceError> {
        Self::read(FileBytes::Owned(bytes))
    }

    fn read(file: FileBytes) -> Result<Self, MemoryTraceError> {
        let chunks = chunks(&file).map_err(|refusal| match refusal {
            Refusal::Magic => MemoryTraceError::NotAMemoryTrace,
            Refusal::Version(version) => MemoryTraceError::Version(version),
            Refusal::Chunk(at) => MemoryTraceError::Chunk(at),
        })?;
        let is_finished = chunks.last().is_some_and(|chunk| chunk.kind == Kind::End);
        if !is_finished {
            return Err(MemoryTraceError::Unfinished);
        }
        let mut trace = Self {
            file,
            origin: Origin::default(),
            points: PointTable::default(),
            rows: RowTable::default(),
            threads: BTreeMap::new(),
            records: Vec::new(),
            turns: Vec::new(),
            accesses: 0,
        };
        for chunk in chunks {
            let at = chunk.content.start;
            trace.add(chunk).map_err(|problem| MemoryTraceError::Content { at, problem })?;
        }
        Ok(trace)
    }

    /// Adds a chunk to the index.
    fn add(&mut self, chunk: Chunk) -> Result<(), FormatError> {
        let thread = ThreadId::new(chunk.thread);
        match chunk.kind {
            Kind::Origin => self.origin = Origin::read(&self.unpacked(&chunk)?).ok_or(FormatError("origin"))?,
            Kind::Points => {
                let content = self.unpacked(&chunk)?;
                self.points.read(&content).ok_or(FormatError("access points"))?;
            }
            Kind::Rows => {
                let content = self.unpacked(&chunk)?;
                self.rows.read(&content).ok_or(FormatError("rows"))?;
            }
            Kind::Order => self.threads.entry(thread).or_default().orders.push(chunk),
            Kind::Addresses => {
                let directory = self.unpacked(&chunk)?;
                let index = self.threads.entry(thread).or_default();
                index.add_pieces(&directory, self.points.all().len()).ok_or(DIRECTORY)?;
                index.addresses.push(chunk);
            }
            Kind::Records => self.records.push(chunk),
            Kind::Turns => self.turns.push(chunk),
            Kind::End => {
                let mut fields = ByteReader::new(self.content(&chunk));
                self.accesses = fields.varint().ok_or(FormatError("totals"))?;
            }
        }
        Ok(())
    }

    fn content(&self, chunk: &Chunk) -> &[u8] {
        self.file.get(chunk.content.clone()).unwrap_or(&[])
    }

    /// Unpacks the first stream of a chunk.
    fn unpacked(&self, chunk: &Chunk) -> Result<Vec<u8>, FormatError> {
        unpack(&mut self.content(chunk), STREAM_MAX)
    }

    /// Unpacks the pieces of a chunk, which are its second stream.
    fn unpacked_pieces(&self, chunk: &Chunk) -> Result<Vec<u8>, FormatError> {
        let mut content = self.content(chunk);
        unpack(&mut content, STREAM_MAX)?;
        unpack(&mut content, STREAM_MAX)
    }

    fn rules(&self, chunk: &Chunk) -> Result<Rules, FormatError> {
        Rules::decode(&self.unpacked(chunk)?)
    }

    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    #[must_use]
    pub fn codec(&self) -> MemoryCodec {
        self.origin.codec
    }

    /// Returns the number of accesses.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Returns the access points, in order of their numbers.
    #[must_use]
    pub fn points(&self) -> &[AccessPoint] {
        self.points.all()
    }

    #[must_use]
    pub fn point(&self, point: PointId) -> Option<&AccessPoint> {
        self.points.get(point)
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file.len() as u64
    }

    /// Returns the threads whose accesses are stored apart, as [`MemoryCodec::Prsd`] does.
    pub fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.threads.keys().copied()
    }

    /// Returns the grammars of a thread.
    pub fn grammars(&self, thread: ThreadId) -> impl Iterator<Item = Result<Rules, MemoryTraceError>> {
        let chunks = self.threads.get(&thread).map_or(&[][..], |index| &index.orders);
        chunks.iter().map(|chunk| self.rules(chunk).map_err(|problem| chunk.error(problem)))
    }

    /// Calls `each` for the pieces of every access point of a thread, in the order of a point's
    /// accesses.
    pub fn pieces(
        &self,
        thread: ThreadId,
        mut each: impl FnMut(PointId, crate::prsd::Piece<'_>),
    ) -> Result<(), MemoryTraceError> {
        let Some(index) = self.threads.get(&thread) else { return Err(MemoryTraceError::NoThread(thread)) };
        for chunk in &index.addresses {
            self.pieces_of_chunk(chunk, &mut each).map_err(|problem| chunk.error(problem))?;
        }
        Ok(())
    }

    fn pieces_of_chunk(
        &self,
        chunk: &Chunk,
        each: &mut impl FnMut(PointId, crate::prsd::Piece<'_>),
    ) -> Result<(), FormatError> {
        let (directory, pieces) = (self.unpacked(chunk)?, self.unpacked_pieces(chunk)?);
        for (point, range) in read_directory(&directory, self.points().len()).ok_or(DIRECTORY)? {
            let mut reader = PieceReader::new(slice(&pieces, &range));
            while let Some(piece) = reader.next_piece()? {
                each(point, piece);
            }
        }
        Ok(())
    }

    /// Returns all records in the merged order of threads.
    pub fn merged(&self) -> MergedRecords<'_> {
        MergedRecords::new(self)
    }

    /// Returns what a thread did, in order. The file's codec is [`MemoryCodec::Prsd`].
    pub fn walk(&self, thread: ThreadId) -> Result<ThreadWalk<'_>, MemoryTraceError> {
        match self.threads.get(&thread) {
            Some(index) => Ok(ThreadWalk::new(self, thread, index)),
            None => Err(MemoryTraceError::NoThread(thread)),
        }
    }

    fn actions(&self, row: u32) -> Option<&[Action]> {
        self.rows.get(row)
    }

    /// Returns whether a row has an access. A missing row counts as one that has: a walk must come
    /// to it, and fail.
    fn has_access(&self, row: u32) -> bool {
        self.rows.get(row).is_none_or(|row| row.iter().any(|action| matches!(action, Action::Access(_))))
    }
}

impl Chunk {
    fn error(&self, problem: FormatError) -> MemoryTraceError {
        MemoryTraceError::Content { at: self.content.start, problem }
    }
}

impl PieceBytes {
    fn of<'p>(&self, pieces: &'p [u8]) -> &'p [u8] {
        slice(pieces, &self.range)
    }
}

fn slice<'p>(pieces: &'p [u8], range: &Range<u32>) -> &'p [u8] {
    pieces.get(range.start as usize..range.end as usize).unwrap_or(&[])
}

impl ThreadIndex {
    /// Adds the next chunk of pieces, which has this directory.
    fn add_pieces(&mut self, directory: &[u8], point_count: usize) -> Option<()> {
        let chunk = u32::try_from(self.addresses.len()).ok()?;
        for (point, range) in read_directory(directory, point_count)? {
            self.pieces.entry(point).or_default().push(PieceBytes { chunk, range });
        }
        Some(())
    }
}

/// Returns where the pieces of each point are in the unpacked pieces of a chunk.
fn read_directory(directory: &[u8], point_count: usize) -> Option<Vec<(PointId, Range<u32>)>> {
    let (mut fields, mut number, mut start) = (ByteReader::new(directory), 0u32, 0u32);
    let mut ranges = Vec::new();
    while !fields.is_empty() {
        let distance = fields.varint_u32().filter(|&distance| distance > 0)?;
        number = number.checked_add(distance).filter(|&number| number as usize <= point_count)?;
        let end = start.checked_add(fields.varint_u32()?)?;
        ranges.push((PointId(number - 1), start..end));
        start = end;
    }
    Some(ranges)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codec::bytes::put_varint;

    use super::*;
    use crate::container::ChunkWriter;
    use crate::row::LoopIndex;
    use crate::second_stage::SecondStage;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        SecondStage::Store.pack(content, &mut out);
        out
    }

    /// Returns a file with these chunks between its origin and its end.
    fn file(codec: MemoryCodec, chunks: &[(Kind, Vec<u8>)]) -> Vec<u8> {
        let origin = (Kind::Origin, packed(&Origin { codec, ..Origin::default() }.write()));
        let mut writer = ChunkWriter::new(Vec::new()).unwrap();
        for (kind, content) in [&[origin][..], chunks, &[(Kind::End, vec![1])]].concat() {
            writer.put(kind, 0, &content).unwrap();
        }
        writer.finish().unwrap().0
    }

    #[test]
    fn a_record_of_an_unknown_point_is_refused() {
        let raw = [&[1][..], &1_000_000u32.to_le_bytes(), &[0; 8]].concat();
        let turns = packed(&[0, 1]);
        let trace = file(MemoryCodec::Raw, &[(Kind::Records, raw), (Kind::Turns, turns)]);
        let first = MemoryTrace::from_bytes(trace).unwrap().merged().next();
        assert!(first.is_some_and(|record| record.is_err()));
    }

    #[test]
    fn a_thread_takes_memory_for_its_own_points_only() {
        let (mut index, mut directory) = (ThreadIndex::default(), Vec::new());
        [1_000_000, 1].into_iter().for_each(|field| put_varint(&mut directory, field));
        index.add_pieces(&directory, 1_000_000).unwrap();
        assert_eq!(index.pieces.len(), 1);
    }

    /// Rules that double what they use make a few bytes more scopes than anything can pass over.
    #[test]
    fn merging_does_not_go_through_scopes_without_accesses() {
        let mut rows = Vec::new();
        [1, Action::Iterate(LoopIndex(0)).code()].into_iter().for_each(|field| put_varint(&mut rows, field));
        // Rule 0 is row 0, sixty rules double the one before.
        let order = [&[61, 1, 0][..], &[1, 3, 0].repeat(60)].concat();
        let chunks = [(Kind::Rows, packed(&rows)), (Kind::Order, packed(&order)), (Kind::Turns, packed(&[0, 1]))];
        let trace = MemoryTrace::from_bytes(file(MemoryCodec::Prsd, &chunks)).unwrap();
        assert_eq!(trace.grammars(ThreadId::FIRST).next().unwrap().unwrap().length(), 1 << 60);
        assert!(trace.merged().next().unwrap().is_err());
    }
}
