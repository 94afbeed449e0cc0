//! The content of a data chunk: the data behind the paths and events of one path chunk, in order.
//!
//! The words say how much data belongs to each: the access descriptors of a path's fragment give
//! its length, an event's first word gives that of an event. A [`DataPosition`] cuts the data
//! accordingly and decodes accesses into an [`AccessBuffer`].
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::event::event_bytes;
use codec::lanes::Decoder;
use codec::streams::decompress;
use codec::words::{Word, Words};
use entity::PathId;
use wire::word;

use crate::access::{AccessBuffer, AccessContext, Interruption};
use crate::container::{CODEC_LANES, CODEC_RAW, CODEC_ZSTD, ChunkHeader, crc};
use crate::error::Problem;
use crate::event::{self, RawEvent};
use crate::model::Event;
use crate::program::Program;
use crate::span::{Span, VaryingAccesses};

/// Returns the bytes of data behind a path; `None` if it is not defined. A fragment without access
/// descriptors has no data.
#[inline]
pub(crate) fn path_bytes(program: &Program, path: PathId) -> Option<usize> {
    match program.descriptors.span(path) {
        Some(span) => Some(usize::from(span.bytes)),
        None => program.info(path).map(|_| 0),
    }
}

/// Returns the bytes of data behind all of `words`; `None` if one of them is not defined.
pub(crate) fn needed(program: &Program, words: &[u32]) -> Option<u64> {
    let bytes = |word: Word<'_>| match word {
        Word::Path(path) => path_bytes(program, path),
        Word::Event(event) => word::length(event.first()).map(|_| event.data_bytes()),
    };
    Words::new(words).try_fold(0, |sum, word| Some(sum + bytes(word)? as u64))
}

/// The data of a chunk, and the program that says how to decode it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataSource<'a> {
    pub program: &'a Program,
    pub data: &'a [u8],
}

/// A position in the data of a chunk, with the thread's state there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataPosition {
    pub at: usize,
    pub fs_base: u64,
    pub keep_values: bool,
    /// Position in the buffer of the explicit accesses that belong to the next path or signal.
    pub pending: Option<u32>,
}

impl DataPosition {
    #[inline]
    fn take<'d>(&mut self, data: &'d [u8], length: usize) -> &'d [u8] {
        let taken = data.get(self.at..self.at + length).unwrap_or(&[]);
        self.at += length;
        taken
    }

    /// Passes over the data of a path or event.
    pub(crate) fn skip(&mut self, program: &Program, word: Word<'_>) {
        match word {
            Word::Path(path) => self.at += path_bytes(program, path).unwrap_or(0),
            Word::Event(event) => {
                self.at += event.data_bytes();
                if let Some(Event::FsBase { base }) = event::read(event.words()).and_then(|raw| raw.event) {
                    self.fs_base = base;
                }
            }
        }
    }

    /// Decodes the accesses of a path with `steps` steps.
    #[inline]
    pub(crate) fn path(&mut self, source: DataSource<'_>, path: PathId, steps: usize, buffer: &mut AccessBuffer) {
        let mark = self.pending.take();
        let descriptors = &source.program.descriptors;
        match descriptors.span(path) {
            None => buffer.push_empty_steps(steps, mark),
            Some(span) => {
                let data = self.take(source.data, usize::from(span.bytes));
                buffer.push_path(descriptors, span, data, self.context(), mark);
            }
        }
    }

    #[inline]
    pub(crate) fn context(&self) -> AccessContext {
        AccessContext { fs_base: self.fs_base, keep_values: self.keep_values }
    }

    /// Decodes the accesses that belong to the event at the start of `words`. `steps` says how many
    /// whole steps it interrupted and whether a part of one more; `None` if its fields are
    /// impossible.
    pub(crate) fn event(
        &mut self,
        source: DataSource<'_>,
        words: &[u32],
        raw: &RawEvent,
        steps: Option<(usize, bool)>,
        buffer: &mut AccessBuffer,
    ) {
        let Some(&first) = words.first() else { return };
        let data = self.take(source.data, event_bytes(first));
        match raw.event {
            None => {
                self.pending.get_or_insert(buffer.mark());
                match event::read_explicit_access(words) {
                    Some(access) => buffer.push_explicit(access, data, self.keep_values),
                    None => buffer.lost += 1,
                }
                return;
            }
            Some(Event::Signal { pc, .. }) => {
                let (before, mark) = (self.pending.take(), buffer.mark());
                let mut unfinished = None;
                let descriptors = &source.program.descriptors;
                let span = raw.interrupted.and_then(|(fragment, _)| descriptors.span(fragment.first_path()));
                match (span, steps) {
                    (Some(span), Some((whole, part))) => {
                        let interrupted = Interruption { blocks: u16::try_from(whole).unwrap_or(0), pc, part };
                        unfinished = buffer.push_interrupted(descriptors, span, interrupted, data, self.context());
                    }
                    (None, Some((whole, part))) => buffer.push_empty_steps(whole + usize::from(part), None),
                    (_, None) => {}
                }
                let own = before.map(|before| buffer.move_to_end(before, mark));
                buffer.push_event(own.or(unfinished));
                return;
            }
            Some(Event::FsBase { base }) => self.fs_base = base,
            _ => {}
        }
        buffer.push_event(None);
    }
}

/// The totals in the header of a data chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataTotal {
    pub reads: u64,
    pub writes: u64,
    /// Base of the fs segment behind the chunk.
    pub fs_base: u64,
    /// Accesses that could not be decoded.
    pub lost: u64,
}

/// Counts the accesses of `words`, whose data has the right length.
pub(crate) fn count(source: DataSource<'_>, words: &[u32], fs_base: u64, buffer: &mut AccessBuffer) -> DataTotal {
    let descriptors = &source.program.descriptors;
    let mut total = DataTotal { fs_base, ..DataTotal::default() };
    let mut data = source.data;
    for word in Words::new(words) {
        let bytes = match word {
            Word::Path(path) => {
                let Some(span) = descriptors.span(path) else { continue };
                total.path(&descriptors.varying, &span, data);
                usize::from(span.bytes)
            }
            Word::Event(event) => {
                let own = data.get(..event.data_bytes()).unwrap_or(&[]);
                total.event(source.program, event.words(), own, buffer);
                event.data_bytes()
            }
        };
        data = data.get(bytes..).unwrap_or(&[]);
    }
    total
}

impl DataTotal {
    /// Adds a path whose data is at the start of `data`.
    #[inline]
    pub(crate) fn path(&mut self, varying: &VaryingAccesses, span: &Span, data: &[u8]) {
        self.reads += u64::from(span.reads);
        self.writes += u64::from(span.writes);
        if span.varying != 0 {
            match varying.count(span, data.get(..usize::from(span.bytes)).unwrap_or(&[])) {
                Some((reads, writes)) => self.add(reads, writes),
                None => self.lost += 1,
            }
        }
    }

    /// Adds the event at the start of `words`.
    pub(crate) fn event(&mut self, program: &Program, words: &[u32], data: &[u8], buffer: &mut AccessBuffer) {
        let Some(raw) = event::read(words) else { return };
        buffer.clear();
        let mut position = DataPosition::default();
        let steps = raw.interrupted_steps(program).map(|(whole, part)| (whole.len(), part.is_some()));
        position.event(DataSource { program, data }, words, &raw, steps, buffer);
        if let Some(Event::FsBase { base }) = raw.event {
            self.fs_base = base;
        }
        let (reads, writes) = buffer.all().counts();
        self.add(reads, writes);
        self.lost += buffer.lost;
    }

    fn add(&mut self, reads: u64, writes: u64) {
        self.reads = self.reads.saturating_add(reads);
        self.writes = self.writes.saturating_add(writes);
    }
}

/// Memory for decoding data, kept from one chunk to the next.
#[derive(Debug, Default)]
pub(crate) struct DataCoder {
    decoder: Decoder<Span>,
}

impl DataCoder {
    /// Decodes the data behind `words` from the chunk with this header and payload.
    pub(crate) fn read(
        &mut self,
        program: &Program,
        words: &[u32],
        header: &ChunkHeader,
        payload: &[u8],
        data: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let length = header.raw_length as usize;
        let (bytes, needed) = (length as u64, needed(program, words).ok_or(Problem::Undefined)?);
        if bytes != needed {
            return Err(Problem::DataLength { bytes, needed });
        }
        match header.codec {
            CODEC_RAW if payload.len() == length => payload.clone_into(data),
            CODEC_RAW => return Err(Problem::Decompress("its length is wrong")),
            CODEC_ZSTD => decompress(payload, length, data)?,
            CODEC_LANES => {}
            unknown => return Err(Problem::Codec(unknown)),
        }
        let checksum = match header.codec {
            CODEC_LANES => self.decoder.decode(&program.descriptors, words, payload, length, data)?,
            _ => crc(&[data]),
        };
        if checksum == header.raw_crc { Ok(()) } else { Err(Problem::RawChecksum) }
    }
}
