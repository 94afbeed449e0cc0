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
use crate::container::{Chunk, Kind, Refusal, chunks};
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

/// The most bytes that a stream of a chunk can have.
const STREAM_MAX: usize = 1 << 30;

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
    /// By number of the access point, where its pieces are.
    pieces: Vec<Vec<PieceBytes>>,
}

/// The pieces of a point in a chunk.
#[derive(Clone, Debug)]
struct PieceBytes {
    /// The chunk, by its position in [`ThreadIndex::addresses`].
    chunk: u32,
    /// Their place in the chunk's unpacked pieces.
    place: Range<u32>,
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
                index.add_pieces(&directory, self.points.all().len()).ok_or(FormatError("directory of pieces"))?;
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
        for (number, chunk) in (0u32..).zip(&index.addresses) {
            let pieces = self.unpacked_pieces(chunk).map_err(|problem| chunk.error(problem))?;
            for (point, places) in (0u32..).zip(&index.pieces) {
                for place in places.iter().filter(|place| place.chunk == number) {
                    let mut reader = PieceReader::new(place.of(&pieces));
                    while let Some(piece) = reader.next_piece().map_err(|problem| chunk.error(problem))? {
                        each(PointId(point), piece);
                    }
                }
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
}

impl Chunk {
    fn error(&self, problem: FormatError) -> MemoryTraceError {
        MemoryTraceError::Content { at: self.content.start, problem }
    }
}

impl PieceBytes {
    fn of<'p>(&self, pieces: &'p [u8]) -> &'p [u8] {
        pieces.get(self.place.start as usize..self.place.end as usize).unwrap_or(&[])
    }
}

impl ThreadIndex {
    /// Reads the directory of the next chunk of pieces.
    fn add_pieces(&mut self, directory: &[u8], point_count: usize) -> Option<()> {
        let chunk = u32::try_from(self.addresses.len()).ok()?;
        let (mut fields, mut number, mut start) = (ByteReader::new(directory), 0usize, 0u32);
        while !fields.is_empty() {
            let distance = usize::try_from(fields.varint()?).ok().filter(|&distance| distance > 0)?;
            number = number.checked_add(distance).filter(|&number| number <= point_count)?;
            let end = start.checked_add(fields.varint_u32()?)?;
            if self.pieces.len() < number {
                self.pieces.resize_with(number, Vec::new);
            }
            self.pieces.get_mut(number - 1)?.push(PieceBytes { chunk, place: start..end });
            start = end;
        }
        Some(())
    }
}
