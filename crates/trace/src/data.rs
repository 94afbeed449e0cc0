//! The content of a data chunk: what the paths and events of a path chunk have behind them, one after the other.
//!
//! The words say how much belongs to each of them: as much as its plan says to a path, as much as its first word says to an
//! event. Here bytes are cut accordingly, counted and compressed.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word::{self, EVENT};

use crate::access::{Context, Gathered, Interrupted};
use crate::container::{CODEC_LANES, CODEC_RAW, CODEC_ZSTD, ChunkHeader, crc};
use crate::error::Problem;
use crate::event::{self, Recorded};
use crate::lanes::Decoder;
use crate::model::Event;
use crate::path::decompress;
use crate::program::Program;
use crate::span::{Span, Spans};

/// Bytes of data behind the path `word`; `None` if it is not defined. A fragment without a plan has no data.
#[inline]
pub(crate) fn path_bytes(program: &Program, word: u32) -> Option<usize> {
    match program.plans.span(word) {
        Some(span) => Some(usize::from(span.bytes)),
        None => program.info(word).map(|_| 0),
    }
}

/// Bytes of data behind an event.
#[inline]
pub(crate) fn event_bytes(first: u32) -> usize {
    word::data_words(first) * size_of::<u32>()
}

/// Bytes of data behind all of `words`; `None` if there is one that is not defined.
pub(crate) fn needed(program: &Program, words: &[u32]) -> Option<u64> {
    let (mut at, mut bytes) = (0, 0u64);
    while let Some(&word) = words.get(at) {
        let own = if word & EVENT == 0 { path_bytes(program, word)? } else { event_bytes(word) };
        bytes += own as u64;
        at += word::length(word)?;
    }
    Some(bytes)
}

/// The data of a chunk, and what says how to read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub program: &'a Program,
    pub data: &'a [u8],
}

/// How far the data of a chunk has been read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub at: usize,
    pub fs_base: u64,
    pub keep_values: bool,
    /// Where accesses begin that belong to the next path or signal.
    pub pending: Option<u32>,
}

impl Place {
    #[inline]
    fn take<'d>(&mut self, data: &'d [u8], length: usize) -> &'d [u8] {
        let taken = data.get(self.at..self.at + length).unwrap_or(&[]);
        self.at += length;
        taken
    }

    /// Passes over what begins with `word`.
    pub(crate) fn skip(&mut self, program: &Program, word: u32, event: Option<Event>) {
        self.at += if word & EVENT == 0 { path_bytes(program, word).unwrap_or(0) } else { event_bytes(word) };
        if let Some(Event::FsBase { base }) = event {
            self.fs_base = base;
        }
    }

    /// Gathers the accesses of a path with `steps` steps.
    #[inline]
    pub(crate) fn path(&mut self, source: Source<'_>, word: u32, steps: usize, gathered: &mut Gathered) {
        let mark = self.pending.take();
        let plans = &source.program.plans;
        match plans.span(word) {
            None => gathered.unplanned(steps, mark),
            Some(span) => {
                let data = self.take(source.data, usize::from(span.bytes));
                gathered.path(plans, span, data, self.context(), mark);
            }
        }
    }

    #[inline]
    pub(crate) fn context(&self) -> Context {
        Context { fs_base: self.fs_base, keep_values: self.keep_values }
    }

    /// Gathers the accesses that belong to the event at the start of `words`, which interrupted so many whole steps and
    /// perhaps a part of one; `None` if that makes no sense.
    pub(crate) fn event(
        &mut self,
        source: Source<'_>,
        words: &[u32],
        recorded: &Recorded,
        steps: Option<(usize, bool)>,
        gathered: &mut Gathered,
    ) {
        let Some(&first) = words.first() else { return };
        let data = self.take(source.data, event_bytes(first));
        match recorded.event {
            None => {
                self.pending.get_or_insert(gathered.mark());
                match event::told(words) {
                    Some(told) => gathered.told(told, data, self.keep_values),
                    None => gathered.lost += 1,
                }
                return;
            }
            Some(Event::Signal { pc, .. }) => {
                let (before, mark) = (self.pending.take(), gathered.mark());
                let mut unfinished = None;
                let plans = &source.program.plans;
                match (plans.span(recorded.interrupted.0), steps) {
                    (Some(span), Some((whole, part))) => {
                        let interrupted = Interrupted { blocks: u16::try_from(whole).unwrap_or(0), pc, part };
                        unfinished = gathered.partial(plans, span, interrupted, data, self.context());
                    }
                    (None, Some((whole, part))) => gathered.unplanned(whole + usize::from(part), None),
                    (_, None) => {}
                }
                let own = before.map(|before| gathered.postpone(before, mark));
                gathered.event(own.or(unfinished));
                return;
            }
            Some(Event::FsBase { base }) => self.fs_base = base,
            _ => {}
        }
        gathered.event(None);
    }
}

/// What the header of a data chunk says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataTotal {
    pub reads: u64,
    pub writes: u64,
    /// Behind the chunk.
    pub fs_base: u64,
    /// Accesses that could not be made of the data.
    pub lost: u64,
}

/// Counts the accesses of `words`, with `data` as long as it must be.
pub(crate) fn count(source: Source<'_>, words: &[u32], fs_base: u64, gathered: &mut Gathered) -> DataTotal {
    let spans = &source.program.plans.spans;
    let mut total = DataTotal { fs_base, ..DataTotal::default() };
    let (mut at, mut data) = (0, source.data);
    while let Some(&word) = words.get(at) {
        let rest = words.get(at..).unwrap_or(&[]);
        at += word::length(word).unwrap_or(1);
        let bytes = if word & EVENT == 0 {
            let Some(span) = spans.get(word) else { continue };
            total.path(spans, &span, data);
            usize::from(span.bytes)
        } else {
            let bytes = event_bytes(word);
            total.event(source.program, rest, data.get(..bytes).unwrap_or(&[]), gathered);
            bytes
        };
        data = data.get(bytes..).unwrap_or(&[]);
    }
    total
}

impl DataTotal {
    /// Adds a path whose data is at the start of `data`.
    #[inline]
    pub(crate) fn path(&mut self, spans: &Spans, span: &Span, data: &[u8]) {
        self.reads += u64::from(span.reads);
        self.writes += u64::from(span.writes);
        if span.varying != 0 {
            match spans.count_varying(span, data.get(..usize::from(span.bytes)).unwrap_or(&[])) {
                Some((reads, writes)) => self.add(reads, writes),
                None => self.lost += 1,
            }
        }
    }

    /// Adds the event at the start of `words`.
    pub(crate) fn event(&mut self, program: &Program, words: &[u32], data: &[u8], gathered: &mut Gathered) {
        let Some(recorded) = event::read(words) else { return };
        gathered.clear();
        let mut place = Place::default();
        let steps = interrupted_steps(program, &recorded);
        place.event(Source { program, data }, words, &recorded, steps, gathered);
        if let Some(Event::FsBase { base }) = recorded.event {
            self.fs_base = base;
        }
        let (reads, writes) = gathered.all().counts();
        self.add(reads, writes);
        self.lost += gathered.lost;
    }

    fn add(&mut self, reads: u64, writes: u64) {
        self.reads = self.reads.saturating_add(reads);
        self.writes = self.writes.saturating_add(writes);
    }
}

/// How many whole steps a signal interrupted, and whether a part of one more was executed.
fn interrupted_steps(program: &Program, recorded: &Recorded) -> Option<(usize, bool)> {
    let (fragment, blocks) = recorded.interrupted;
    match recorded.event {
        Some(Event::Signal { pc, .. }) if fragment != 0 => {
            program.interrupted(fragment, blocks, pc).map(|(whole, part)| (whole.len(), part.is_some()))
        }
        _ => Some((0, false)),
    }
}

/// Memory that reading the data of one chunk leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct DataCoder {
    decoder: Decoder,
}

impl DataCoder {
    /// The data of a path chunk with these words, given the chunk that holds it.
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
            CODEC_LANES => self.decoder.decode(&program.plans.spans, words, payload, length, data)?,
            _ => crc(&[data]),
        };
        if checksum == header.raw_crc { Ok(()) } else { Err(Problem::RawChecksum) }
    }
}
