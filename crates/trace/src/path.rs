//! The content of a path chunk: words in, payload and counts out, and back.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::container::{CODEC_FAST, CODEC_PREDICT, CODEC_RAW, CODEC_ZSTD};
use crate::error::Problem;
use crate::fast;
use crate::predict::{self, Tables};
use crate::program::Program;
use crate::tally::{PathTotal, Tally};

#[cfg(not(target_endian = "little"))]
compile_error!("words are stored as they are in memory, lowest byte first");

const ZSTD_LEVEL: i32 = 3;

/// A chunk's payload and what its header has to say.
pub(crate) struct EncodedWords {
    pub codec: u8,
    /// `None`: the words as they are.
    pub payload: Option<Vec<u8>>,
    pub total: PathTotal,
}

/// Memory that encoding or decoding one chunk leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct PathCoder {
    tables: Tables,
    fast: fast::Tables,
}

impl PathCoder {
    /// Counts and compresses `words`, for a chunk behind all definitions of `program`. The error is the number of words before one that is unknown.
    pub(crate) fn encode(
        &mut self,
        codec: u8,
        program: &Program,
        image: u32,
        words: &[u32],
    ) -> Result<EncodedWords, usize> {
        let (payload, total) = match codec {
            CODEC_PREDICT => {
                let (payload, total) = predict::encode(&mut self.tables, program, image, words)?;
                (Some(payload), total)
            }
            CODEC_FAST => {
                let total = Tally::new(program).words(words)?;
                (fast::encode(&mut self.fast, words), total)
            }
            CODEC_ZSTD => {
                let total = Tally::new(program).words(words)?;
                (zstd::bulk::compress(bytes(words), ZSTD_LEVEL).ok(), total)
            }
            _ => (None, Tally::new(program).words(words)?),
        };
        let payload = payload.filter(|payload| payload.len() < size_of_val(words));
        Ok(EncodedWords { codec: if payload.is_some() { codec } else { CODEC_RAW }, payload, total })
    }

    /// Gives `length` bytes of words back.
    pub(crate) fn decode(&mut self, source: &PathPayload<'_>, words: &mut Vec<u32>) -> Result<(), Problem> {
        words.clear();
        let length = source.length;
        if !length.is_multiple_of(size_of::<u32>()) {
            return Err(Problem::Decompress("its length is not that of whole words"));
        }
        match source.codec {
            CODEC_RAW if source.payload.len() == length => append(source.payload, words),
            CODEC_RAW => return Err(Problem::Decompress("its length is wrong")),
            CODEC_ZSTD => {
                let mut raw = Vec::new();
                decompress(source.payload, length, &mut raw)?;
                append(&raw, words);
            }
            CODEC_PREDICT => {
                predict::decode(&mut self.tables, source, length / size_of::<u32>(), words)?;
            }
            CODEC_FAST => fast::decode(&mut self.fast, source.payload, length / size_of::<u32>(), words)?,
            unknown => return Err(Problem::Codec(unknown)),
        }
        Ok(())
    }
}

/// What decoding a path chunk needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathPayload<'a> {
    pub program: &'a Program,
    pub image: u32,
    /// Of the chunk: only definitions before it are used.
    pub sequence: u32,
    pub codec: u8,
    pub payload: &'a [u8],
    /// Bytes of words.
    pub length: usize,
}

/// Words as they are stored.
pub(crate) fn bytes(words: &[u32]) -> &[u8] {
    bytemuck::cast_slice(words)
}

fn append(raw: &[u8], words: &mut Vec<u32>) {
    words.extend(raw.chunks_exact(4).map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes)));
}

/// Decompresses what must give exactly `length` bytes.
pub(crate) fn decompress(stored: &[u8], length: usize, out: &mut Vec<u8>) -> Result<(), Problem> {
    out.clear();
    out.reserve(length);
    let mut decompressor =
        zstd::bulk::Decompressor::new().map_err(|_| Problem::Decompress("no decompressor can be made"))?;
    let written = decompressor
        .decompress_to_buffer(stored, out)
        .map_err(|_| Problem::Decompress("its zstd data is malformed"))?;
    if written == length { Ok(()) } else { Err(Problem::Decompress("its length is wrong")) }
}
