//! Correct checksums for mutated contents. Fuzzing needs them: a reader refuses a chunk with a
//! wrong checksum before it decodes it.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::lanes::Decoder;
use codec::path::bytes;

use crate::container::{CHUNK_HEADER_BYTES, CODEC_LANES, ChunkKind, crc};
use crate::data::needed;
use crate::decode::{DecodeBuffers, decode_unchecked};
use crate::trace::{Chunk, Trace, content_of};

/// Writes the checksum of its content into every chunk that can be decoded. Returns the file, and
/// codec and checksum of those chunks.
#[must_use]
pub fn repair_checksums(mut file: Vec<u8>) -> (Vec<u8>, Vec<(u8, u32)>) {
    let mut decoded = Vec::new();
    // Paths need definitions, and data needs its paths.
    for is_turn in [
        |kind| !matches!(kind, ChunkKind::Path | ChunkKind::Data),
        |kind| kind == ChunkKind::Path,
        |kind| kind == ChunkKind::Data,
    ] {
        let Ok(trace) = Trace::from_bytes(file.clone()) else { break };
        for (place, chunk) in trace.chunks().iter().enumerate().filter(|(_, chunk)| is_turn(chunk.header.kind)) {
            if let Some(checksum) = checksum(&trace, place, chunk) {
                decoded.push((chunk.header.codec, checksum));
                put(&mut file, chunk, checksum);
            }
        }
    }
    (file, decoded)
}

/// The checksum of what a chunk holds; `None` if it cannot be decoded.
fn checksum(trace: &Trace, place: usize, chunk: &Chunk) -> Option<u32> {
    let payload = trace.payload(chunk).ok()?;
    match chunk.header.kind {
        ChunkKind::Path => words(trace, chunk).map(|words| crc(&[bytes(&words)])),
        ChunkKind::Data => data_checksum(trace, place, chunk, payload),
        _ => content_of(payload, &chunk.header).ok().map(|content| crc(&[&content])),
    }
}

fn words(trace: &Trace, chunk: &Chunk) -> Option<Vec<u32>> {
    let mut words = Vec::new();
    decode_unchecked(trace, chunk, &mut DecodeBuffers::default(), &mut words).ok()?;
    Some(words)
}

fn data_checksum(trace: &Trace, place: usize, chunk: &Chunk, payload: &[u8]) -> Option<u32> {
    let path = (0..place).rev().find(|&path| trace.data_chunk_index(path) == Some(place))?;
    let words = words(trace, trace.chunks().get(path)?)?;
    let length = chunk.header.raw_length as usize;
    if needed(trace.program(), &words)? != length as u64 {
        return None;
    }
    if chunk.header.codec != CODEC_LANES {
        return content_of(payload, &chunk.header).ok().map(|content| crc(&[&content]));
    }
    let descriptors = &trace.program().descriptors;
    Decoder::default().decode(descriptors, &words, payload, length, &mut Vec::new()).ok()
}

fn put(file: &mut [u8], chunk: &Chunk, checksum: u32) {
    const RAW_CHECKSUM: usize = 20;
    const HEADER_CHECKSUM: usize = 28;
    let start = usize::try_from(chunk.offset).unwrap_or(usize::MAX);
    let length = usize::try_from(chunk.header.header_length()).unwrap_or(usize::MAX);
    let Some(header) = file.get_mut(start..).and_then(|rest| rest.get_mut(..length)) else { return };
    if let Some(field) = header.get_mut(RAW_CHECKSUM..RAW_CHECKSUM + 4) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
    let front = header.get(..HEADER_CHECKSUM).unwrap_or(&[]);
    let checksum = crc(&[front, header.get(CHUNK_HEADER_BYTES..).unwrap_or(&[])]);
    if let Some(field) = header.get_mut(HEADER_CHECKSUM..CHUNK_HEADER_BYTES) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
}
