//! The second stage of compression: a general compressor behind the models of this crate. METRIC
//! and VPC3 have BZIP2 there (METRIC, sections 3.2 and 5.1); zstd is faster.
//!
//! A packed stream is the number of its compressor, the length of the content, the stored length
//! and the stored bytes. What a compressor does not shorten is stored as it is.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::io::{Error, Read};

use bzip2::read::{BzDecoder, BzEncoder};

use crate::FormatError;
use codec::bytes::{ByteReader, put_varint};

/// A general compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondStage {
    /// Nothing is compressed.
    Store,
    /// zstd with this level.
    Zstd(i32),
    /// bzip2 with its largest blocks.
    Bzip2,
}

impl Default for SecondStage {
    fn default() -> Self {
        Self::Zstd(zstd::DEFAULT_COMPRESSION_LEVEL)
    }
}

const STORED: u8 = 0;
const ZSTD: u8 = 1;
const BZIP2: u8 = 2;

/// Windows of zstd have at most 8 MiB, so that the bytes cannot demand more memory. Levels below 20
/// do not use more.
const WINDOW_LOG_MAX: u32 = 23;

impl SecondStage {
    /// Appends a packed stream.
    pub fn pack(self, content: &[u8], out: &mut Vec<u8>) {
        let packed = self.compress(content).ok().flatten();
        let packed = packed.filter(|(_, stored)| stored.len() < content.len());
        let (number, stored) = packed.as_ref().map_or((STORED, content), |(number, stored)| (*number, stored));
        out.push(number);
        put_varint(out, content.len() as u64);
        put_varint(out, stored.len() as u64);
        out.extend_from_slice(stored);
    }

    fn compress(self, content: &[u8]) -> Result<Option<(u8, Vec<u8>)>, Error> {
        Ok(match self {
            Self::Store => None,
            Self::Zstd(level) => Some((ZSTD, compress_zstd(content, level)?)),
            Self::Bzip2 => {
                let mut stored = Vec::new();
                BzEncoder::new(content, bzip2::Compression::best()).read_to_end(&mut stored)?;
                Some((BZIP2, stored))
            }
        })
    }
}

fn compress_zstd(content: &[u8], level: i32) -> Result<Vec<u8>, Error> {
    let mut compressor = zstd::bulk::Compressor::new(level.min(19))?;
    compressor.compress(content)
}

/// Takes a packed stream off the front of `bytes` and returns its content, which has at most
/// `limit` bytes.
pub fn unpack(bytes: &mut &[u8], limit: usize) -> Result<Vec<u8>, FormatError> {
    let mut reader = ByteReader::new(bytes);
    let content = read(&mut reader, limit).ok_or(FormatError("compressed stream"))?;
    *bytes = reader.rest();
    Ok(content)
}

fn read(reader: &mut ByteReader<'_>, limit: usize) -> Option<Vec<u8>> {
    let number = reader.u8()?;
    let length = reader.varint().filter(|&length| length <= limit as u64)?;
    let stored_length = usize::try_from(reader.varint()?).ok()?;
    let stored = reader.take(stored_length)?;
    let content = match number {
        STORED => Some(stored.to_vec()),
        ZSTD => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(stored).ok()?;
            decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
            read_all(decoder, length)
        }
        BZIP2 => read_all(BzDecoder::new(stored), length),
        _ => None,
    };
    content.filter(|content| content.len() as u64 == length)
}

/// Reads what a decoder has, or one byte more than expected.
fn read_all(decoder: impl Read, length: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    decoder.take(length + 1).read_to_end(&mut content).ok()?;
    Some(content)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAGES: [SecondStage; 3] = [SecondStage::Store, SecondStage::Zstd(19), SecondStage::Bzip2];

    fn check(content: &[u8]) {
        for stage in STAGES {
            let mut packed = Vec::new();
            stage.pack(content, &mut packed);
            packed.push(7);
            let mut bytes = packed.as_slice();
            assert_eq!(unpack(&mut bytes, content.len()).as_deref(), Ok(content), "{stage:?}");
            assert_eq!(bytes, [7]);
            if let Some(less) = content.len().checked_sub(1) {
                assert_eq!(unpack(&mut packed.as_slice(), less), Err(FormatError("compressed stream")));
            }
        }
    }

    #[test]
    fn content_comes_back() {
        check(&[]);
        check(b"abc");
        check(&[5; 100_000]);
        check(&(0..300_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    }

    #[test]
    fn regular_content_is_shorter_and_other_content_hardly_longer() {
        for stage in [SecondStage::default(), SecondStage::Bzip2] {
            let (mut regular, mut short) = (Vec::new(), Vec::new());
            stage.pack(&[1; 10_000], &mut regular);
            stage.pack(&[1, 2, 3], &mut short);
            assert!(regular.len() < 100 && short.len() == 6, "{stage:?}");
        }
    }

    #[test]
    fn a_stream_that_is_longer_than_it_says_is_refused() {
        for stage in STAGES {
            let mut packed = Vec::new();
            stage.pack(&[9; 100], &mut packed);
            assert_eq!(packed[1], 100);
            packed[1] -= 1;
            assert!(unpack(&mut packed.as_slice(), 1000).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_content_comes_back(content: Vec<u8>) {
            check(&content);
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes: Vec<u8>, number in 0u8..3) {
            let _ = unpack(&mut bytes.as_slice(), 1 << 16);
            let _ = unpack(&mut [&[number, 100, bytes.len() as u8][..], &bytes].concat().as_slice(), 1 << 16);
        }

        #[test]
        fn damaged_streams_are_refused_or_read(at: prop::sample::Index, byte: u8) {
            for stage in STAGES {
                let mut packed = Vec::new();
                stage.pack(&[b"abcdefgh".repeat(50), vec![byte; 50]].concat(), &mut packed);
                let at = at.index(packed.len());
                packed[at] = byte;
                let content = unpack(&mut packed.as_slice(), 1 << 16);
                prop_assert!(content.is_err() || content.is_ok_and(|content| content.len() <= 1 << 16));
            }
        }
    }
}
