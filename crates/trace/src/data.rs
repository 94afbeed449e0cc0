//! The content of a data chunk: what the paths and events of a path chunk have behind them, one after the other.
//!
//! The words say how much belongs to each of them: as much as its plan says to a path, as much as its first word says to an
//! event. Here bytes are cut accordingly, counted and compressed.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word::{self, EVENT};

use crate::access::{Context, Gathered, Interrupted};
use crate::container::{CODEC_RAW, CODEC_ZSTD, ChunkHeader, crc};
use crate::error::Problem;
use crate::event::{self, Recorded};
use crate::model::Event;
use crate::path::decompress;
use crate::program::Program;

const ZSTD_LEVEL: i32 = 1;

/// Bytes of data behind the path `word`; `None` if it is not defined. A fragment without a plan has no data.
#[inline]
pub(crate) fn path_bytes(program: &Program, word: u32) -> Option<usize> {
    match program.plans.way(word) {
        Some(way) => Some(way.length as usize),
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
        match plans.way(word) {
            None => gathered.unplanned(steps, mark),
            Some(way) => {
                let data = self.take(source.data, way.length as usize);
                gathered.path(plans, way, data, self.context(), mark);
            }
        }
    }

    fn context(&self) -> Context {
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
                match (plans.way(recorded.interrupted.0), steps) {
                    (Some(way), Some((whole, part))) => {
                        let interrupted = Interrupted { blocks: u16::try_from(whole).unwrap_or(0), pc, part };
                        unfinished = gathered.partial(plans, way, interrupted, data, self.context());
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
pub(crate) fn count(program: &Program, words: &[u32], data: &[u8], fs_base: u64, gathered: &mut Gathered) -> DataTotal {
    let mut place = Place { fs_base, ..Place::default() };
    let source = Source { program, data };
    let mut total = DataTotal::default();
    gathered.clear();
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        let rest = words.get(at..).unwrap_or(&[]);
        at += word::length(word).unwrap_or(1);
        if word & EVENT == 0 {
            if let Some(way) = program.plans.way(word).filter(|way| !way.varies && place.pending.is_none()) {
                total.reads += u64::from(way.reads);
                total.writes += u64::from(way.writes);
                place.at += way.length as usize;
                continue;
            }
            place.path(source, word, 1, gathered);
        } else if let Some(recorded) = event::read(rest) {
            let steps = interrupted_steps(program, &recorded);
            place.event(source, rest, &recorded, steps, gathered);
        }
        if place.pending.is_none() {
            total.add(gathered);
        }
    }
    total.add(gathered);
    total.fs_base = place.fs_base;
    total
}

impl DataTotal {
    fn add(&mut self, gathered: &mut Gathered) {
        let (reads, writes) = gathered.all().counts();
        self.reads = self.reads.saturating_add(reads);
        self.writes = self.writes.saturating_add(writes);
        self.lost += gathered.lost;
        gathered.clear();
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

/// Compresses the data behind `words`. `None`: as it is.
pub(crate) fn encode(codec: u8, data: &[u8]) -> Option<Vec<u8>> {
    match codec {
        CODEC_ZSTD => zstd::bulk::compress(data, ZSTD_LEVEL).ok().filter(|payload| payload.len() < data.len()),
        _ => None,
    }
}

/// The data of a path chunk with these words, given the chunk that holds it.
pub(crate) fn read(
    program: &Program,
    words: &[u32],
    header: &ChunkHeader,
    payload: &[u8],
    data: &mut Vec<u8>,
) -> Result<(), Problem> {
    decode(header.codec, payload, header.raw_length as usize, data)?;
    if crc(&[data]) != header.raw_crc {
        return Err(Problem::RawChecksum);
    }
    let (bytes, needed) = (data.len() as u64, needed(program, words).ok_or(Problem::Undefined)?);
    if bytes == needed { Ok(()) } else { Err(Problem::DataLength { bytes, needed }) }
}

/// Gives `length` bytes of data back.
fn decode(codec: u8, payload: &[u8], length: usize, data: &mut Vec<u8>) -> Result<(), Problem> {
    data.clear();
    match codec {
        CODEC_RAW if payload.len() == length => data.extend_from_slice(payload),
        CODEC_RAW => return Err(Problem::Decompress("its length is wrong")),
        CODEC_ZSTD => decompress(payload, length, data)?,
        unknown => return Err(Problem::Codec(unknown)),
    }
    Ok(())
}
