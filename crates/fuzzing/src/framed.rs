//! The input is a list of chunks, to which the target adds correct headers and checksums.
//!
//! Each chunk has a kind, a codec, a thread, a position in the extra header and a byte for it, the
//! length of the content and its decoded length (`u16` each), and the content as the codec encodes
//! it, with every stream as it is before zstd. The rest of the extra header is zero. So counts are
//! wrong, but only `verify` reads them.

use crate::{exercise::exercise, next, next_u16, take};

/// Codec and checksum of every chunk that could be decoded.
pub type DecodedChunks = Vec<(u8, u32)>;

const KINDS: u8 = 7;
const CODECS: u8 = 5;
const ZSTD: u8 = 1;
const FAST: u8 = 3;
const PATH: u8 = 4;
const DATA: u8 = 7;
/// Bytes of the extra header of each kind of chunk.
const EXTRA: [usize; 8] = [0, 0, 16, 0, 120, 0, 0, 32];
/// Streams of the fast codec.
const FAST_STREAMS: usize = 3;

/// Reads the chunks in `bytes` as a trace. Returns what could be decoded.
pub fn framed(bytes: &[u8]) -> DecodedChunks {
    let (file, decoded) = trace::repair::repair_checksums(frame(bytes));
    exercise(file);
    decoded
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    let mut file = b"\x89TRK\r\n\x1a\n\x02\0\0\0".to_vec();
    file.extend(crc32fast::hash(&file).to_le_bytes());
    let mut rest = bytes;
    let mut sequence = 0u32;
    while !rest.is_empty() {
        chunk(&mut file, &mut rest, sequence);
        sequence += 1;
    }
    file
}

fn chunk(file: &mut Vec<u8>, rest: &mut &[u8], sequence: u32) {
    let (kind, codec) = (1 + next(rest) % KINDS, next(rest) % CODECS);
    let mut extra = vec![0; EXTRA[usize::from(kind)]];
    // The thread, of a path or data chunk.
    let thread = next(rest) & 3;
    if let Some(first) = extra.first_mut() {
        *first = thread;
    }
    if let Some(path) = extra.get_mut(4..8).filter(|_| kind == DATA) {
        // Data behind the chunk before it.
        path.copy_from_slice(&sequence.wrapping_sub(1).to_le_bytes());
    }
    let (place, value) = (next(rest), next(rest));
    if let Some(byte) = extra.get_mut(usize::from(place)) {
        *byte ^= value;
    }
    let (length, decoded_length) = (next_u16(rest), next_u16(rest));
    let content = take(rest, length.into());
    let stored = stored(codec, content);
    let raw_length = if matches!(codec, 0 | ZSTD) { content.len() as u32 } else { decoded_length.into() };
    let mut header = vec![0xa7, b'T', b'k', b'C', kind, codec];
    header.extend((extra.len() as u16).to_le_bytes());
    for field in [stored.len() as u32, raw_length, crc32fast::hash(&stored), 0, sequence] {
        header.extend(field.to_le_bytes());
    }
    let checksum = crc32fast::hash(&[&header[..], &extra].concat());
    header.extend(checksum.to_le_bytes());
    file.extend([header, extra, stored].concat());
}

/// Returns the payload of a content.
fn stored(codec: u8, content: &[u8]) -> Vec<u8> {
    match codec {
        ZSTD => compress(content),
        FAST => fast(content),
        _ => content.to_vec(),
    }
}

fn compress(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 1).unwrap_or_default()
}

/// The streams of the fast codec, each as its length and that of its zstd frame.
fn fast(mut content: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    for _ in 0..FAST_STREAMS {
        let length = next_u16(&mut content);
        let stream = take(&mut content, length.into());
        let frame = compress(stream);
        stored.extend((stream.len() as u32).to_le_bytes());
        stored.extend((frame.len() as u32).to_le_bytes());
        stored.extend(frame);
    }
    stored
}

/// The inverse, for a corpus: the chunks of a trace as an input.
///
/// # Panics
/// If it is not a sound trace of short chunks.
#[must_use]
pub fn unframed(file: &[u8]) -> Vec<u8> {
    let mut input = Vec::new();
    let mut rest = &file[16..];
    while rest.starts_with(b"\xa7TkC") {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (kind, codec, extra) = (rest[4], rest[5], usize::from(rest[6]));
        let (stored, raw_length) = (number(8), number(12));
        let payload = &rest[32 + extra..32 + extra + stored];
        let content = match codec {
            ZSTD => zstd::bulk::decompress(payload, raw_length).unwrap(),
            FAST => unfast(payload),
            2 | 4 => unpack(payload),
            _ => payload.to_vec(),
        };
        let thread = if matches!(kind, PATH | DATA) { rest[32] } else { 0 };
        input.extend([kind - 1, codec, thread, 0, 0]);
        for length in [content.len(), raw_length] {
            input.extend(u16::try_from(length).unwrap().to_le_bytes());
        }
        input.extend(content);
        rest = &rest[32 + extra + stored..];
    }
    input
}

fn unfast(mut payload: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    for _ in 0..FAST_STREAMS {
        let number = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap()) as usize;
        let (length, stored) = (number(0), number(4));
        let stream = zstd::bulk::decompress(&payload[8..8 + stored], length).unwrap();
        content.extend(u16::try_from(length).unwrap().to_le_bytes());
        content.extend(stream);
        payload = &payload[8 + stored..];
    }
    content
}

/// Streams of codecs 2 and 4 without their zstd frames.
fn unpack(mut payload: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while !payload.is_empty() {
        let (length, stored) = (varint(&mut payload), varint(&mut payload));
        let bytes = take(&mut payload, stored);
        let stream = if length == stored { bytes.to_vec() } else { zstd::bulk::decompress(bytes, length).unwrap() };
        put_varint(&mut content, length);
        put_varint(&mut content, length);
        content.extend(stream);
    }
    content
}

fn varint(bytes: &mut &[u8]) -> usize {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = next(bytes);
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
