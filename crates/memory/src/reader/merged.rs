//! All threads of a memory trace in their turns.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::vec::IntoIter;

use codec::bytes::ByteReader;
use entity::ThreadId;

use super::{MemoryTrace, MemoryTraceError, ThreadWalk, WalkItem};
use crate::FormatError;
use crate::container::Chunk;
use crate::origin::MemoryCodec;
use crate::record::{AccessRecord, RecordReader};

/// Iterates the records of all threads in the merged order. Ends behind an error.
pub struct MergedRecords<'t> {
    trace: &'t MemoryTrace,
    turns: Turns<'t>,
    /// The present thread, and the accesses that are left of its turn.
    thread: ThreadId,
    left: u64,
    records: Records<'t>,
    has_failed: bool,
}

/// The turns of threads, chunk by chunk.
struct Turns<'t> {
    trace: &'t MemoryTrace,
    chunks: std::slice::Iter<'t, Chunk>,
    turns: IntoIter<(ThreadId, u64)>,
}

/// Where records come from.
enum Records<'t> {
    Threads(BTreeMap<ThreadId, ThreadWalk<'t>>),
    Chunks { reader: RecordReader, chunks: std::slice::Iter<'t, Chunk>, records: IntoIter<AccessRecord> },
}

impl<'t> MergedRecords<'t> {
    pub(super) fn new(trace: &'t MemoryTrace) -> Self {
        let records = match trace.codec() {
            MemoryCodec::Prsd => {
                let walk = |(&thread, index)| (thread, ThreadWalk::of_accesses(trace, thread, index));
                Records::Threads(trace.threads.iter().map(walk).collect())
            }
            codec => Records::Chunks {
                reader: RecordReader::new(codec),
                chunks: trace.records.iter(),
                records: IntoIter::default(),
            },
        };
        let turns = Turns { trace, chunks: trace.turns.iter(), turns: IntoIter::default() };
        Self { trace, turns, thread: ThreadId::FIRST, left: 0, records, has_failed: false }
    }

    fn next_record(&mut self) -> Result<Option<(ThreadId, AccessRecord)>, MemoryTraceError> {
        while self.left == 0 {
            let Some((thread, count)) = self.turns.next()? else { return Ok(None) };
            (self.thread, self.left) = (thread, count);
        }
        self.left -= 1;
        let record = match &mut self.records {
            Records::Threads(walks) => {
                let walk = walks.get_mut(&self.thread).ok_or(MemoryTraceError::NoThread(self.thread))?;
                next_access(walk).ok_or(MemoryTraceError::Addresses(self.thread))??
            }
            Records::Chunks { reader, chunks, records } => loop {
                if let Some(record) = records.next() {
                    break record;
                }
                let chunk = chunks.next().ok_or(MemoryTraceError::Records)?;
                *records = read_records(self.trace, reader, chunk)?;
            },
        };
        Ok(Some((self.thread, record)))
    }
}

fn next_access(walk: &mut ThreadWalk<'_>) -> Option<Result<AccessRecord, MemoryTraceError>> {
    walk.find_map(|item| match item {
        Ok(WalkItem::Access { point, address }) => Some(Ok(AccessRecord { point, address })),
        Ok(WalkItem::Scope(_)) => None,
        Err(error) => Some(Err(error)),
    })
}

fn read_records(
    trace: &MemoryTrace,
    reader: &mut RecordReader,
    chunk: &Chunk,
) -> Result<IntoIter<AccessRecord>, MemoryTraceError> {
    let mut records = Vec::new();
    reader.read(trace.content(chunk), trace.points().len(), &mut records).map_err(|problem| chunk.error(problem))?;
    Ok(records.into_iter())
}

impl Turns<'_> {
    fn next(&mut self) -> Result<Option<(ThreadId, u64)>, MemoryTraceError> {
        loop {
            if let Some(turn) = self.turns.next() {
                return Ok(Some(turn));
            }
            let Some(chunk) = self.chunks.next() else { return Ok(None) };
            let turns = self.trace.unpacked(chunk).and_then(|content| read_turns(&content));
            self.turns = turns.map_err(|problem| chunk.error(problem))?.into_iter();
        }
    }
}

fn read_turns(content: &[u8]) -> Result<Vec<(ThreadId, u64)>, FormatError> {
    let (mut fields, mut turns) = (ByteReader::new(content), Vec::new());
    while !fields.is_empty() {
        let (Some(thread), Some(count)) = (fields.varint_u32(), fields.varint()) else {
            return Err(FormatError("turns of threads"));
        };
        turns.push((ThreadId::new(thread), count));
    }
    Ok(turns)
}

impl Iterator for MergedRecords<'_> {
    type Item = Result<(ThreadId, AccessRecord), MemoryTraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let record = self.next_record().transpose();
        self.has_failed = matches!(record, Some(Err(_)));
        record
    }
}
