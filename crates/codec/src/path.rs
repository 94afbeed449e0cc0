//! The content of a path chunk: words in, payload and counts out, and back.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::error::DecodeError;
use crate::predict::{PathModel, PredictionTables, WordCounter};
use crate::streams::decompress;
use crate::{CODEC_FAST, CODEC_PREDICT, CODEC_RAW, CODEC_ZSTD, fast, predict};

#[cfg(not(target_endian = "little"))]
compile_error!("words are stored as they are in memory, lowest byte first");

const ZSTD_LEVEL: i32 = 3;

/// A chunk's payload, and the totals for its header.
pub struct EncodedWords<T> {
    pub codec: u8,
    /// `None` if the words are stored as they are.
    pub payload: Option<Vec<u8>>,
    pub total: T,
}

/// Encodes and decodes path chunks. Keeps its memory from one chunk to the next.
#[derive(Debug, Default)]
pub struct PathCoder {
    tables: PredictionTables,
    fast: fast::FastTables,
}

impl PathCoder {
    /// Compresses and counts `words`, for a chunk behind all definitions of `model`. The error is
    /// the number of words before one that is unknown.
    pub fn encode<M: PathModel, C: WordCounter<M::Path>>(
        &mut self,
        codec: u8,
        model: &M,
        image: u32,
        words: &[u32],
        counter: C,
    ) -> Result<EncodedWords<C::Total>, usize> {
        let (payload, total) = match codec {
            CODEC_PREDICT => {
                let (payload, total) = predict::encode(&mut self.tables, model, image, words, counter)?;
                (Some(payload), total)
            }
            CODEC_FAST => {
                let total = counter.count(words)?;
                (fast::encode(&mut self.fast, words), total)
            }
            CODEC_ZSTD => {
                let total = counter.count(words)?;
                (zstd::bulk::compress(bytes(words), ZSTD_LEVEL).ok(), total)
            }
            _ => (None, counter.count(words)?),
        };
        let payload = payload.filter(|payload| payload.len() < size_of_val(words));
        Ok(EncodedWords { codec: if payload.is_some() { codec } else { CODEC_RAW }, payload, total })
    }

    /// Decodes `source` into `words`.
    pub fn decode<M: PathModel>(
        &mut self,
        source: &PathPayload<'_, M>,
        words: &mut Vec<u32>,
    ) -> Result<(), DecodeError> {
        words.clear();
        let length = source.length;
        if !length.is_multiple_of(size_of::<u32>()) {
            return Err(DecodeError::Malformed("its length is not that of whole words"));
        }
        match source.codec {
            CODEC_RAW if source.payload.len() == length => append(source.payload, words),
            CODEC_RAW => return Err(DecodeError::Malformed("its length is wrong")),
            CODEC_ZSTD => {
                let mut raw = Vec::new();
                decompress(source.payload, length, &mut raw)?;
                append(&raw, words);
            }
            CODEC_PREDICT => {
                predict::decode(&mut self.tables, source, length / size_of::<u32>(), words)?;
            }
            CODEC_FAST => fast::decode(&mut self.fast, source.payload, length / size_of::<u32>(), words)?,
            unknown => return Err(DecodeError::UnknownCodec(unknown)),
        }
        Ok(())
    }
}

/// What decoding a path chunk needs.
#[derive(Clone, Copy, Debug)]
pub struct PathPayload<'a, M> {
    pub model: &'a M,
    pub image: u32,
    /// Sequence number of the chunk: only definitions before it are used.
    pub sequence: u32,
    pub codec: u8,
    pub payload: &'a [u8],
    /// Bytes of words.
    pub length: usize,
}

/// Returns words as they are stored.
pub fn bytes(words: &[u32]) -> &[u8] {
    bytemuck::cast_slice(words)
}

fn append(raw: &[u8], words: &mut Vec<u32>) {
    words.extend(raw.chunks_exact(4).map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes)));
}
