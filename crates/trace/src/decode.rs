//! Decoding one path chunk into words.
//!
//! [`DecodeBuffers`] holds the memory that decoding needs. Cursors that take turns share one.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::path::{self, PathCoder, PathPayload};

use crate::access::AccessBuffer;
use crate::container::crc;
use crate::data::DataCoder;
use crate::error::Problem;
use crate::trace::{Chunk, Trace};

/// Memory for decoding, kept from one chunk to the next.
#[derive(Debug, Default)]
pub(crate) struct DecodeBuffers {
    coder: PathCoder,
    pub data: DataCoder,
    /// Accesses on their way to an [`crate::AccessVisitor`].
    pub accesses: AccessBuffer,
    /// How many path chunks cursors have decoded.
    pub chunks: u64,
}

/// Decodes the words of a path chunk and compares all checksums.
pub(crate) fn decode(
    trace: &Trace,
    chunk: &Chunk,
    buffers: &mut DecodeBuffers,
    words: &mut Vec<u32>,
) -> Result<(), Problem> {
    decode_unchecked(trace, chunk, buffers, words)?;
    if crc(&[path::bytes(words)]) == chunk.header.raw_crc { Ok(()) } else { Err(Problem::RawChecksum) }
}

/// Decodes the words of a path chunk and ignores their checksum.
pub(crate) fn decode_unchecked(
    trace: &Trace,
    chunk: &Chunk,
    buffers: &mut DecodeBuffers,
    words: &mut Vec<u32>,
) -> Result<(), Problem> {
    let Some(header) = chunk.path() else { return Err(Problem::Header) };
    let source = PathPayload {
        model: trace.program(),
        image: header.image,
        sequence: chunk.header.sequence,
        codec: chunk.header.codec,
        payload: trace.payload(chunk)?,
        length: chunk.header.raw_length as usize,
    };
    Ok(buffers.coder.decode(&source, words)?)
}
