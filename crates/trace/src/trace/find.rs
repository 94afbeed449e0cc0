//! Finding the chunks of a file: by its index, or by scanning when the index is missing or wrong.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::bytes::ByteReader;

use super::{Chunk, Damage, content};
use crate::container::{
    CHUNK_MAGIC, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, TRAILER_BYTES, TRAILER_MAGIC, crc, index_offset,
};
use crate::error::Problem;

/// Chunks in the order of the file, and the bytes between them that are none.
pub(super) struct ChunkList {
    pub chunks: Vec<Chunk>,
    pub damage: Vec<Damage>,
}

/// Whether chunks follow where the header of a trace should be.
pub(super) fn looks_like_a_trace(file: &[u8]) -> bool {
    file.get(FILE_HEADER_BYTES..).and_then(ChunkHeader::parse).is_some_and(|header| header.kind == ChunkKind::Recording)
}

pub(super) fn chunks(file: &[u8]) -> ChunkList {
    match by_index(file) {
        Some(chunks) => ChunkList { chunks, damage: Vec::new() },
        None => by_scanning(file),
    }
}

/// The chunks that the index lists, the index itself being the last. `None` unless they fill the
/// file without a gap.
fn by_index(file: &[u8]) -> Option<Vec<Chunk>> {
    let offset = index_offset(file)?;
    let index = chunk_at(file, offset)?;
    let stored = file.get(usize::try_from(offset + index.header.header_length()).ok()?..)?;
    let stored = stored.get(..index.header.stored_length as usize)?;
    if index.header.kind != ChunkKind::Index || crc(&[stored]) != index.header.stored_crc {
        return None;
    }
    let entries = content(stored, &index.header).ok()?;
    let mut chunks = listed(&entries)?;
    chunks.push(index);
    let mut end = FILE_HEADER_BYTES as u64;
    for chunk in &chunks {
        if chunk.offset != end {
            return None;
        }
        end = end.checked_add(chunk.header.length())?;
    }
    (end.checked_add(TRAILER_BYTES as u64)? == file.len() as u64).then_some(chunks)
}

/// The entries of an index: an offset and a copy of the chunk's header each.
fn listed(entries: &[u8]) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    let mut bytes = ByteReader::new(entries);
    while !bytes.is_empty() {
        let offset = bytes.u64()?;
        let header = ChunkHeader::parse(entries.get(bytes.at()..)?)?;
        bytes.take(usize::try_from(header.header_length()).ok()?)?;
        chunks.push(Chunk { offset, header });
    }
    Some(chunks)
}

fn chunk_at(file: &[u8], offset: u64) -> Option<Chunk> {
    let header = ChunkHeader::parse(file.get(usize::try_from(offset).ok()?..)?)?;
    Some(Chunk { offset, header })
}

fn by_scanning(file: &[u8]) -> ChunkList {
    let length = file.len() as u64;
    let mut found = ChunkList { chunks: Vec::new(), damage: Vec::new() };
    let mut at = FILE_HEADER_BYTES as u64;
    while at < length && !is_trailer(file, at) {
        match chunk_at(file, at) {
            Some(chunk) if at.saturating_add(chunk.header.length()) <= length => {
                at += chunk.header.length();
                found.chunks.push(chunk);
            }
            Some(chunk) => {
                let behind = at + chunk.header.header_length();
                let problem = Problem::Truncated {
                    length: u64::from(chunk.header.stored_length),
                    available: length.saturating_sub(behind),
                };
                let next = next_chunk(file, behind);
                let mut damage = Damage::of_chunk(&chunk, &problem);
                damage.bytes.end = next;
                found.damage.push(damage);
                at = next;
            }
            None => {
                let next = next_chunk(file, at + 1);
                found.damage.push(Damage::of(at..next, "no chunk begins here".into()));
                at = next;
            }
        }
    }
    found.note_the_end(length);
    found
}

impl ChunkList {
    /// Says why there was no index, if it is not plain from the damage already found.
    fn note_the_end(&mut self, length: u64) {
        let has = |kind| self.chunks.iter().any(|chunk| chunk.header.kind == kind);
        if !self.damage.is_empty() {
            return;
        }
        let reason = match (has(ChunkKind::End), has(ChunkKind::Index)) {
            (false, _) => "the recording was not finished",
            (true, false) => "the index is missing",
            (true, true) => "the index is damaged",
        };
        self.damage.push(Damage::of(length..length, reason.into()));
    }
}

fn is_trailer(file: &[u8], at: u64) -> bool {
    let left = usize::try_from(at).ok().and_then(|at| file.get(at..));
    left.is_some_and(|left| left.len() == TRAILER_BYTES && left.ends_with(&TRAILER_MAGIC))
}

/// The offset of the next intact chunk header at or behind `from`, or the end of the file.
fn next_chunk(file: &[u8], from: u64) -> u64 {
    let mut at = usize::try_from(from).unwrap_or(usize::MAX).min(file.len());
    while let Some(rest) = file.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(skip) = rest.windows(CHUNK_MAGIC.len()).position(|window| window == CHUNK_MAGIC) else { break };
        at += skip;
        if file.get(at..).and_then(ChunkHeader::parse).is_some() {
            return at as u64;
        }
        at += 1;
    }
    file.len() as u64
}
