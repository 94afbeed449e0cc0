//! Streams of bytes, compressed by zstd where that makes them shorter.
//!
//! Every codec ends in a few streams. [`Compressor`] compresses them and keeps its memory from one
//! to the next; [`put_stream`] and [`take_stream`] frame them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use zstd::zstd_safe::{CParameter, ParamSwitch};

use crate::bytes::{ByteReader, put_varint};
use crate::error::DecodeError;

/// Streams shorter than this are stored as they are.
const SMALL: usize = 48;
/// Bytes that are tried first, to see whether a stream compresses well.
const SAMPLE: usize = 16 << 10;
/// Levels below zero are faster.
const ZSTD_LEVEL: i32 = 1;
const ZSTD_LEVEL_QUICK: i32 = -4;

/// Appends a stream: its length, its stored length and the stored bytes. Equal lengths mean that it
/// is stored as it is.
pub fn put_stream(out: &mut Vec<u8>, compressor: &mut Compressor, stream: &[u8]) {
    let rest = put_last_stream(out, compressor, stream, false);
    out.extend_from_slice(rest);
}

/// Appends a stream as [`put_stream`] does, but compresses it only if it compresses well.
pub fn put_stream_quickly(out: &mut Vec<u8>, compressor: &mut Compressor, stream: &[u8]) {
    let rest = put_last_stream(out, compressor, stream, true);
    out.extend_from_slice(rest);
}

/// Appends a stream as [`put_stream`] does, and returns the bytes that the caller still has to
/// append.
pub fn put_last_stream<'s>(
    out: &mut Vec<u8>,
    compressor: &mut Compressor,
    stream: &'s [u8],
    quickly: bool,
) -> &'s [u8] {
    let compressed = if stream.len() < SMALL {
        None
    } else if quickly {
        compressor.compress_quickly(stream)
    } else {
        compressor.compress(stream, ZSTD_LEVEL)
    };
    put_varint(out, stream.len() as u64);
    put_varint(out, compressed.map_or(stream.len(), <[u8]>::len) as u64);
    let Some(compressed) = compressed else { return stream };
    out.extend_from_slice(compressed);
    &[]
}

/// Reads a stream written by [`put_stream`] and no longer than `most`.
pub fn take_stream(bytes: &mut ByteReader<'_>, most: usize) -> Result<Vec<u8>, DecodeError> {
    let (stored, length) = take_stored(bytes, most)?;
    let mut stream = Vec::new();
    if stored.len() == length {
        stream.extend_from_slice(stored);
    } else {
        decompress(stored, length, &mut stream)?;
    }
    Ok(stream)
}

/// Reads a stream without a copy: one that is stored as it is stays where it is, any other is
/// decompressed into `buffer`.
pub fn take_stream_into<'s>(
    bytes: &mut ByteReader<'s>,
    most: usize,
    buffer: &'s mut Vec<u8>,
) -> Result<&'s [u8], DecodeError> {
    let (stored, length) = take_stored(bytes, most)?;
    if stored.len() == length {
        return Ok(stored);
    }
    decompress(stored, length, buffer)?;
    Ok(buffer)
}

/// Reads a stream as it is stored, and its length.
fn take_stored<'s>(bytes: &mut ByteReader<'s>, most: usize) -> Result<(&'s [u8], usize), DecodeError> {
    const SHORT: DecodeError = DecodeError::Malformed("its streams do not fit into it");
    let mut length = || bytes.varint().and_then(|length| usize::try_from(length).ok()).ok_or(SHORT);
    let (length, stored) = (length()?, length()?);
    let stored = bytes.take(stored).ok_or(SHORT)?;
    if length > most { Err(SHORT) } else { Ok((stored, length)) }
}

/// How hard zstd searches for repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// As its level says.
    Usual,
    /// At a few positions only, for streams that hardly repeat themselves; mostly the entropy coder
    /// counts.
    Sparse,
}

/// Bytes from one place of a sparse search to the next.
const SPARSE_STEP: u32 = 1 << 10;

impl Search {
    /// Returns the parameters of zstd that differ from those of a level; 0 stands for the level's
    /// own.
    fn parameters(self) -> [CParameter; 2] {
        match self {
            // zstd does not compress literals if its step is set, unless it is asked to.
            Self::Usual => [CParameter::TargetLength(0), CParameter::LiteralCompressionMode(ParamSwitch::Auto)],
            Self::Sparse => {
                [CParameter::TargetLength(SPARSE_STEP), CParameter::LiteralCompressionMode(ParamSwitch::Enable)]
            }
        }
    }
}

/// A compressor that is kept for its memory.
#[derive(Default)]
pub struct Compressor {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    out: Vec<u8>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compressor")
    }
}

impl Compressor {
    /// Compresses a stream; returns `None` if it does not compress well.
    fn compress_quickly(&mut self, stream: &[u8]) -> Option<&[u8]> {
        let middle = stream.len() / 2;
        let sample = stream.get(middle..middle + SAMPLE).unwrap_or(stream);
        let length = self.compress(sample, ZSTD_LEVEL_QUICK)?.len();
        if length <= sample.len() / 2 { self.compress(stream, ZSTD_LEVEL_QUICK) } else { None }
    }

    /// Compresses a stream; returns `None` if that does not make it shorter.
    fn compress(&mut self, stream: &[u8], level: i32) -> Option<&[u8]> {
        self.frame(stream, level, Search::Usual).filter(|frame| frame.len() < stream.len())
    }

    /// Compresses a stream to a zstd frame, however long that is.
    pub fn frame(&mut self, stream: &[u8], level: i32, search: Search) -> Option<&[u8]> {
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Compressor::new(level).ok();
        }
        self.out.clear();
        self.out.reserve(zstd::zstd_safe::compress_bound(stream.len()));
        let zstd = self.zstd.as_mut()?;
        zstd.set_compression_level(level).ok()?;
        search.parameters().into_iter().try_for_each(|parameter| zstd.set_parameter(parameter)).ok()?;
        zstd.compress_to_buffer(stream, &mut self.out).ok()?;
        Some(&self.out)
    }
}

/// Decompresses a frame that must hold exactly `length` bytes.
pub fn decompress(stored: &[u8], length: usize, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    out.clear();
    out.reserve(length);
    let mut decompressor =
        zstd::bulk::Decompressor::new().map_err(|_| DecodeError::Malformed("no decompressor can be made"))?;
    let written = decompressor
        .decompress_to_buffer(stored, out)
        .map_err(|_| DecodeError::Malformed("its zstd data is malformed"))?;
    if written == length { Ok(()) } else { Err(DecodeError::Malformed("its length is wrong")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn streams_round_trip(streams in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..200), 0..5)) {
            let (mut out, mut compressor) = (Vec::new(), Compressor::default());
            for stream in &streams {
                put_stream(&mut out, &mut compressor, stream);
                put_stream_quickly(&mut out, &mut compressor, stream);
            }
            let mut bytes = ByteReader::new(&out);
            for stream in streams {
                prop_assert_eq!(&take_stream(&mut bytes, 200).unwrap(), &stream);
                prop_assert_eq!(&take_stream(&mut bytes, 200).unwrap(), &stream);
            }
            prop_assert!(bytes.is_empty());
        }
    }

    #[test]
    fn quickly_means_only_what_is_easily_compressed() {
        let random = |i: u32| (i.wrapping_mul(i) ^ i >> 3).wrapping_mul(0x9e37_79b1).to_le_bytes();
        let hard: Vec<u8> = (0..1 << 16).flat_map(random).collect();
        let easy = vec![7; 1 << 18];
        let length = |stream: &[u8]| {
            let mut out = Vec::new();
            put_stream_quickly(&mut out, &mut Compressor::default(), stream);
            assert_eq!(take_stream(&mut ByteReader::new(&out), stream.len()).unwrap(), stream);
            out.len()
        };
        assert!(length(&hard) >= hard.len() && length(&easy) < 1000);
    }

    #[test]
    fn a_stream_longer_than_possible_is_refused() {
        let mut out = Vec::new();
        put_stream(&mut out, &mut Compressor::default(), &[7; 1000]);
        assert!(take_stream(&mut ByteReader::new(&out), 999).is_err());
    }
}
