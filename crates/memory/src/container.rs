//! The frame of a memory trace's file: a header, then chunks with checksums. This module knows
//! where chunks begin and end, not what is in them.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::io::{self, Write};
use std::ops::Range;

use codec::bytes::ByteReader;
use codec::crc;

/// The file's first bytes; the last one is the version.
pub(crate) const MAGIC: [u8; 8] = *b"\x89TkMem\n\x01";
const CHUNK_HEADER_BYTES: usize = 16;
/// The most bytes that a packed stream of a chunk has. So a few bytes of a file do not unpack to
/// more than memory holds.
pub(crate) const STREAM_MAX: usize = 1 << 28;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Where the accesses come from, and how they are stored.
    Origin,
    /// Access points.
    Points,
    /// Rows.
    Rows,
    /// A grammar: the order of a thread's rows.
    Order,
    /// Pieces of the addresses of a thread's access points.
    Addresses,
    /// Records of a thread, in a form other than rows and pieces.
    Records,
    /// How threads took turns.
    Turns,
    /// Totals; the last chunk.
    End,
}

const KINDS: [Kind; 8] =
    [Kind::Origin, Kind::Points, Kind::Rows, Kind::Order, Kind::Addresses, Kind::Records, Kind::Turns, Kind::End];

impl Kind {
    fn number(self) -> u32 {
        // There are eight.
        (1u32..).zip(KINDS).find(|&(_, kind)| kind == self).map_or(0, |(number, _)| number)
    }

    fn from_number(number: u32) -> Option<Self> {
        (1u32..).zip(KINDS).find(|&(other, _)| other == number).map(|(_, kind)| kind)
    }
}

/// A chunk in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub kind: Kind,
    /// The thread that it belongs to, if it belongs to one.
    pub thread: u32,
    /// The content's place in the file.
    pub content: Range<usize>,
}

/// Writes chunks and counts their bytes.
#[derive(Debug)]
pub(crate) struct ChunkWriter<W> {
    out: W,
    pub bytes: u64,
}

impl<W: Write> ChunkWriter<W> {
    /// Writes the header of a file.
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        Ok(Self { out, bytes: MAGIC.len() as u64 })
    }

    pub(crate) fn put(&mut self, kind: Kind, thread: u32, content: &[u8]) -> io::Result<()> {
        let length = u32::try_from(content.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fields = [kind.number(), thread, length].map(u32::to_le_bytes);
        let checksum = crc(&[fields.as_flattened(), content]).to_le_bytes();
        self.out.write_all(fields.as_flattened())?;
        self.out.write_all(&checksum)?;
        self.out.write_all(content)?;
        self.bytes += (CHUNK_HEADER_BYTES + content.len()) as u64;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<(W, u64)> {
        self.out.flush()?;
        Ok((self.out, self.bytes))
    }
}

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It does not begin as such files do.
    Magic,
    Version(u8),
    /// The bytes from here on are no chunk, or a damaged one.
    Chunk(usize),
}

/// Returns the chunks of a file.
pub(crate) fn chunks(file: &[u8]) -> Result<Vec<Chunk>, Refusal> {
    match file.split_first_chunk::<8>() {
        Some((magic, _)) if *magic == MAGIC => {}
        Some((&[ref name @ .., version], _)) if MAGIC.starts_with(name) => return Err(Refusal::Version(version)),
        _ => return Err(Refusal::Magic),
    }
    let (mut chunks, mut at) = (Vec::new(), MAGIC.len());
    while at < file.len() {
        let chunk = chunk_at(file, at).ok_or(Refusal::Chunk(at))?;
        at = chunk.content.end;
        chunks.push(chunk);
    }
    Ok(chunks)
}

fn chunk_at(file: &[u8], at: usize) -> Option<Chunk> {
    let header = file.get(at..at.checked_add(CHUNK_HEADER_BYTES)?)?;
    let mut fields = ByteReader::new(header);
    let (kind, thread, length, checksum) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    let start = at + CHUNK_HEADER_BYTES;
    let content = start..start.checked_add(length as usize)?;
    let is_sound = crc(&[header.get(..12)?, file.get(content.clone())?]) == checksum;
    is_sound.then_some(Chunk { kind: Kind::from_number(kind)?, thread, content })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut writer = ChunkWriter::new(Vec::new()).unwrap();
        for (thread, kind) in (0..).zip(KINDS) {
            writer.put(kind, thread, &vec![7; thread as usize]).unwrap();
        }
        let (file, bytes) = writer.finish().unwrap();
        assert_eq!(file.len() as u64, bytes);
        file
    }

    #[test]
    fn chunks_come_back() {
        let file = file();
        let chunks = chunks(&file).unwrap();
        assert_eq!(chunks.len(), KINDS.len());
        for (thread, (kind, chunk)) in (0..).zip(KINDS.iter().zip(chunks)) {
            assert_eq!((chunk.kind, chunk.thread, chunk.content.len()), (*kind, thread, thread as usize));
        }
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let file = file();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            assert!(chunks(&damaged).is_err(), "{at}");
            assert!(at < 8 || chunks(&file[..at]).is_err() || chunks(&file[..at]).unwrap().len() < KINDS.len());
        }
        assert_eq!(chunks(b"\x89TkMem\n\x02"), Err(Refusal::Version(2)));
        assert_eq!(chunks(b"\x7fELF\x02\x01\x01\0"), Err(Refusal::Magic));
        assert_eq!(chunks(b"\x89Tk"), Err(Refusal::Magic));
    }
}
