//! The frame of a `.trk` file: file header, chunk headers, trailer. This module knows where chunks
//! begin and end and what their headers say, not what is inside. `docs/format.md` describes every
//! byte.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::fmt;
use std::ops::Range;

use codec::bytes::ByteReader;
use entity::{AppPc, ThreadId, Tsc};

use crate::InstructionIndex;
use crate::model::Counts;

pub(crate) const FILE_MAGIC: [u8; 8] = *b"\x89TRK\r\n\x1a\n";
pub(crate) const VERSION: u16 = 3;
pub(crate) const FILE_HEADER_BYTES: usize = 16;
pub(crate) const CHUNK_MAGIC: [u8; 4] = *b"\xa7TkC";
pub(crate) const CHUNK_HEADER_BYTES: usize = 32;
pub(crate) const PATH_EXTRA_BYTES: usize = 120;
pub(crate) const CODE_EXTRA_BYTES: usize = 16;
pub(crate) const DATA_EXTRA_BYTES: usize = 32;
pub(crate) const TRAILER_MAGIC: [u8; 8] = *b"TkEnd\r\n\x1a";
pub(crate) const TRAILER_BYTES: usize = 28;
/// Largest content of a chunk, so that a damaged header cannot ask for more memory.
pub(crate) const RAW_BYTES_MAX: u32 = 64 << 20;

pub(crate) use codec::{CODEC_FAST, CODEC_LANES, CODEC_PREDICT, CODEC_RAW, CODEC_ZSTD, crc};

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// What was known before the first instruction.
    Recording,
    /// Definitions of static blocks.
    Code,
    /// Threads, modules, unmapped ranges.
    Facts,
    /// A run of one thread's words.
    Path,
    /// How the target ended.
    End,
    /// Copies of all chunk headers before it.
    Index,
    /// The data behind the paths of a path chunk.
    Data,
}

impl ChunkKind {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Recording => 1,
            Self::Code => 2,
            Self::Facts => 3,
            Self::Path => 4,
            Self::End => 5,
            Self::Index => 6,
            Self::Data => 7,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Recording,
            2 => Self::Code,
            3 => Self::Facts,
            4 => Self::Path,
            5 => Self::End,
            6 => Self::Index,
            7 => Self::Data,
            _ => return None,
        })
    }
}

impl fmt::Display for ChunkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recording => "recording",
            Self::Code => "code",
            Self::Facts => "facts",
            Self::Path => "path",
            Self::End => "end",
            Self::Index => "index",
            Self::Data => "data",
        })
    }
}

/// What the header of a path chunk says about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHeader {
    pub thread: ThreadId,
    pub image: u32,
    /// The chunk's first instruction in its thread.
    pub first_instruction: InstructionIndex,
    pub counts: Counts,
    /// Smallest and greatest timestamp; both [`Tsc::NONE`] if there is none.
    pub first_tsc: Tsc,
    pub last_tsc: Tsc,
    /// Address of the thread when the chunk begins; [`AppPc::NONE`] if its words do not say,
    /// `u64::MAX` if they begin with an event that moves the thread elsewhere or ends it.
    pub start_pc: AppPc,
    /// Address that the last word leads to; [`AppPc::NONE`] if the words do not say.
    pub end_pc: AppPc,
}

impl PathHeader {
    /// Returns the instructions of the chunk.
    pub(crate) fn instructions(&self) -> Range<InstructionIndex> {
        self.first_instruction..self.first_instruction + self.counts.instructions
    }
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub kind: ChunkKind,
    pub codec: u8,
    pub stored_length: u32,
    pub raw_length: u32,
    pub stored_crc: u32,
    pub raw_crc: u32,
    /// Chunks before this one in the file.
    pub sequence: u32,
    pub extra: Extra,
}

/// The part of a header that only some kinds of chunks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    None,
    Code(CodeHeader),
    Path(PathHeader),
    Data(DataHeader),
}

/// What the header of a data chunk says about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHeader {
    pub thread: ThreadId,
    /// Sequence number of the path chunk whose data this is.
    pub path: u32,
    /// Base of the thread's fs segment when the chunk begins.
    pub fs_base: u64,
    pub reads: u64,
    pub writes: u64,
}

/// What the header of a code chunk says about its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeHeader {
    /// Definitions in it.
    pub blocks: u32,
    pub fragments: u32,
    /// Bytes of code in its blocks.
    pub code_bytes: u64,
}

impl ChunkHeader {
    /// Bytes of header, without the payload.
    pub(crate) fn header_length(&self) -> u64 {
        let extra = match self.extra {
            Extra::None => 0,
            Extra::Code(_) => CODE_EXTRA_BYTES,
            Extra::Path(_) => PATH_EXTRA_BYTES,
            Extra::Data(_) => DATA_EXTRA_BYTES,
        };
        (CHUNK_HEADER_BYTES + extra) as u64
    }

    /// Bytes from the chunk's start to the next one.
    pub(crate) fn length(&self) -> u64 {
        self.header_length() + u64::from(self.stored_length)
    }

    /// Parses the header at the start of `bytes`. `None` if it is none or its checksum is wrong.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(bytes);
        if fields.take(CHUNK_MAGIC.len())? != CHUNK_MAGIC {
            return None;
        }
        let kind = fields.u8();
        let codec = fields.u8()?;
        let extra_length = usize::from(fields.u16()?);
        if extra_length > PATH_EXTRA_BYTES {
            // No header is longer. So a search for headers in a hostile file does not compute the
            // checksums of long ones all the time.
            return None;
        }
        let [stored_length, raw_length, stored_crc, raw_crc, sequence, header_crc] = read_array(&mut fields)?;
        let extra = fields.take(extra_length)?;
        if crc(&[bytes.get(..CHUNK_HEADER_BYTES - 4)?, extra]) != header_crc || raw_length > RAW_BYTES_MAX {
            return None;
        }
        let kind = ChunkKind::from_number(kind?)?;
        let extra = match kind {
            ChunkKind::Path if extra.len() == PATH_EXTRA_BYTES => Extra::Path(PathHeader::parse(extra)?),
            ChunkKind::Code if extra.len() == CODE_EXTRA_BYTES => Extra::Code(CodeHeader::parse(extra)?),
            ChunkKind::Data if extra.len() == DATA_EXTRA_BYTES => Extra::Data(DataHeader::parse(extra)?),
            ChunkKind::Path | ChunkKind::Code | ChunkKind::Data => return None,
            _ if extra.is_empty() => Extra::None,
            _ => return None,
        };
        Some(Self { kind, codec, stored_length, raw_length, stored_crc, raw_crc, sequence, extra })
    }

    /// Appends the header to `out`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut extra = Vec::new();
        match &self.extra {
            Extra::None => {}
            Extra::Code(code) => code.write(&mut extra),
            Extra::Path(path) => path.write(&mut extra),
            Extra::Data(data) => data.write(&mut extra),
        }
        out.extend_from_slice(&CHUNK_MAGIC);
        out.extend_from_slice(&[self.kind.number(), self.codec]);
        out.extend_from_slice(&u16::try_from(extra.len()).unwrap_or(0).to_le_bytes());
        for field in [self.stored_length, self.raw_length, self.stored_crc, self.raw_crc, self.sequence] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let checksum = crc(&[out.get(start..).unwrap_or(&[]), &extra]);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(&extra);
    }
}

impl CodeHeader {
    fn parse(extra: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(extra);
        Some(Self { blocks: fields.u32()?, fragments: fields.u32()?, code_bytes: fields.u64()? })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.fragments.to_le_bytes());
        out.extend_from_slice(&self.code_bytes.to_le_bytes());
    }
}

impl DataHeader {
    fn parse(extra: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(extra);
        let [thread, path] = read_array(&mut fields)?;
        let [fs_base, reads, writes] = read_array64(&mut fields)?;
        Some(Self { thread: ThreadId::new(thread), path, fs_base, reads, writes })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.thread.get().to_le_bytes());
        out.extend_from_slice(&self.path.to_le_bytes());
        for field in [self.fs_base, self.reads, self.writes] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
}

impl PathHeader {
    fn parse(extra: &[u8]) -> Option<Self> {
        let mut fields = ByteReader::new(extra);
        let [thread, image] = read_array(&mut fields)?;
        let [first_instruction, first_tsc, last_tsc, start_pc, end_pc] = read_array64(&mut fields)?;
        let [instructions, steps, conditional_taken, conditional_not_taken] = read_array64(&mut fields)?;
        let [unconditional_direct, unconditional_indirect, system_calls, signals, lost] = read_array64(&mut fields)?;
        let counts = Counts {
            instructions,
            steps,
            conditional_taken,
            conditional_not_taken,
            unconditional_direct,
            unconditional_indirect,
            system_calls,
            signals,
            lost,
            ..Counts::default()
        };
        Some(Self {
            thread: ThreadId::new(thread),
            image,
            first_instruction: InstructionIndex::new(first_instruction),
            counts,
            first_tsc: Tsc::new(first_tsc),
            last_tsc: Tsc::new(last_tsc),
            start_pc: AppPc::new(start_pc),
            end_pc: AppPc::new(end_pc),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.thread.get().to_le_bytes());
        out.extend_from_slice(&self.image.to_le_bytes());
        let counts = &self.counts;
        for field in [
            self.first_instruction.get(),
            self.first_tsc.get(),
            self.last_tsc.get(),
            self.start_pc.get(),
            self.end_pc.get(),
            counts.instructions,
            counts.steps,
            counts.conditional_taken,
            counts.conditional_not_taken,
            counts.unconditional_direct,
            counts.unconditional_indirect,
            counts.system_calls,
            counts.signals,
            counts.lost,
        ] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
}

fn read_array<const N: usize>(fields: &mut ByteReader<'_>) -> Option<[u32; N]> {
    let mut values = [0; N];
    for value in &mut values {
        *value = fields.u32()?;
    }
    Some(values)
}

fn read_array64<const N: usize>(fields: &mut ByteReader<'_>) -> Option<[u64; N]> {
    let mut values = [0; N];
    for value in &mut values {
        *value = fields.u64()?;
    }
    Some(values)
}

/// The first bytes of every trace.
pub(crate) fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    let [low, high] = VERSION.to_le_bytes();
    let fields = FILE_MAGIC.into_iter().chain([low, high, 0, 0]);
    for (byte, field) in header.iter_mut().zip(fields) {
        *byte = field;
    }
    let checksum = crc(&[header.get(..12).unwrap_or(&[])]);
    for (byte, field) in header.iter_mut().skip(12).zip(checksum.to_le_bytes()) {
        *byte = field;
    }
    header
}

/// The format version of `file`; `None` if its first bytes are not, or no longer, those of a trace.
pub(crate) fn file_version(file: &[u8]) -> Option<u16> {
    let mut fields = ByteReader::new(file);
    let magic = fields.take(FILE_MAGIC.len())?;
    let (version, _reserved, checksum) = (fields.u16()?, fields.u16()?, fields.u32()?);
    (magic == FILE_MAGIC && checksum == crc(&[file.get(..12)?])).then_some(version)
}

/// The last bytes of a finished trace.
pub(crate) fn trailer(index_offset: u64, file_length: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(TRAILER_BYTES);
    out.extend_from_slice(&index_offset.to_le_bytes());
    out.extend_from_slice(&file_length.to_le_bytes());
    let checksum = crc(&[&out]);
    out.extend_from_slice(&checksum.to_le_bytes());
    out.extend_from_slice(&TRAILER_MAGIC);
    out
}

/// Where the index is, if `file` ends in an intact trailer.
pub(crate) fn index_offset(file: &[u8]) -> Option<u64> {
    let bytes = file.get(file.len().checked_sub(TRAILER_BYTES)?..)?;
    let mut fields = ByteReader::new(bytes);
    let (offset, length, checksum) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let intact = crc(&[bytes.get(..16)?]) == checksum && fields.rest() == TRAILER_MAGIC;
    (intact && length == file.len() as u64).then_some(offset)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn header() -> ChunkHeader {
        let counts = Counts { instructions: 10, steps: 3, lost: 1, ..Counts::default() };
        let path = PathHeader {
            thread: ThreadId::new(1),
            image: 2,
            first_instruction: InstructionIndex::new(77),
            counts,
            first_tsc: Tsc::new(5),
            last_tsc: Tsc::new(9),
            start_pc: AppPc::new(0x4000),
            end_pc: AppPc::NONE,
        };
        ChunkHeader {
            kind: ChunkKind::Path,
            codec: 2,
            stored_length: 100,
            raw_length: 200,
            stored_crc: 1,
            raw_crc: 2,
            sequence: 3,
            extra: Extra::Path(path),
        }
    }

    #[test]
    fn headers_round_trip() {
        let mut out = Vec::new();
        header().write(&mut out);
        assert_eq!(out.len() as u64, header().header_length());
        assert_eq!(ChunkHeader::parse(&out), Some(header()));
        let data = DataHeader { thread: ThreadId::new(1), path: 2, fs_base: u64::MAX, reads: 4, writes: 5 };
        let header = ChunkHeader { kind: ChunkKind::Data, extra: Extra::Data(data), ..header() };
        out.clear();
        header.write(&mut out);
        assert_eq!(out.len() as u64, header.header_length());
        assert_eq!(ChunkHeader::parse(&out), Some(header));
    }

    #[test]
    fn a_changed_bit_is_noticed() {
        let mut out = Vec::new();
        header().write(&mut out);
        for bit in 0..out.len() * 8 {
            let mut changed = out.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ChunkHeader::parse(&changed), None, "bit {bit}");
        }
        for length in 0..out.len() {
            assert_eq!(ChunkHeader::parse(&out[..length]), None);
        }
    }

    #[test]
    fn the_trailer_is_found() {
        let mut file = vec![0; 100];
        file.extend(trailer(40, 100 + TRAILER_BYTES as u64));
        assert_eq!(index_offset(&file), Some(40));
        file.push(0);
        assert_eq!(index_offset(&file), None);
    }

    #[test]
    fn the_file_header_holds_the_version() {
        let header = file_header();
        assert_eq!(file_version(&header), Some(VERSION));
        for bit in 0..header.len() * 8 {
            let mut changed = header;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(file_version(&changed), None, "bit {bit}");
        }
    }
}
