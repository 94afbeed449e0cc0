//! What a thread has executed since its last chunk: its words, and the data behind them, compressed
//! as it comes.
//!
//! Data is compared with its guesses while it is still in the processor's cache, and only the
//! misses are kept.

use std::time::Instant;

use codec::lanes::Encoder;
use codec::streams::Compressor;
use wire::word;

use super::Codec;
use crate::container::{CODEC_LANES, CODEC_RAW, CODEC_ZSTD, crc};
use crate::data::DataTotal;
use crate::error::WriteError;
use crate::event;
use crate::span::{Span, Spans};

/// Words and data of one thread that are not yet on their way to the file.
pub(super) struct PendingWords {
    pub image: u32,
    pub words: Vec<u32>,
    pub data: Option<Box<PendingData>>,
    pub since: Instant,
}

impl PendingWords {
    /// Bytes of data so far.
    pub(super) fn data_bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.bytes)
    }
}

/// The data behind the words of a chunk.
#[derive(Default)]
pub(super) struct PendingData {
    encoder: Encoder<Span>,
    /// The data itself, if it is to be stored as it is.
    whole: Vec<u8>,
    keeps_whole: bool,
    pub bytes: usize,
    /// Base of the thread's fs segment when the chunk begins.
    pub fs_base: u64,
    /// All accesses but those of interrupted paths.
    pub total: DataTotal,
    /// Signals: their positions among the words, and their data.
    pub signals: Vec<(usize, Vec<u8>)>,
    /// Why the data does not belong to the words, if it does not.
    pub wrong: Option<WriteError>,
}

impl PendingData {
    /// Starts a chunk.
    pub(super) fn start(&mut self, codec: Codec, fs_base: u64) {
        self.encoder.clear();
        self.whole.clear();
        self.signals.clear();
        self.keeps_whole = matches!(codec, Codec::Raw | Codec::Zstd);
        (self.bytes, self.fs_base, self.wrong) = (0, fs_base, None);
        self.total = DataTotal { fs_base, ..DataTotal::default() };
    }

    /// Appends the data behind `words`; the chunk has `before` words before them. Returns false if
    /// there is more or less data than belongs to the words.
    pub(super) fn append(&mut self, spans: &Spans, before: usize, words: &[u32], data: &[u8]) -> bool {
        let Self { encoder, total, signals, .. } = self;
        let mut explicit = DataTotal { fs_base: total.fs_base, ..DataTotal::default() };
        let event = |at: usize, own: &[u8]| match words.get(at..) {
            Some(rest) if rest.first().is_some_and(|&first| word::kind(first) == word::SIGNAL) => {
                signals.push((before + at, own.to_vec()));
            }
            Some(rest) => count_event(&mut explicit, rest),
            None => {}
        };
        let path = |span: &Span, data: &[u8]| total.path(&spans.varying, span, data);
        let taken = encoder.append(spans, words, data, path, event);
        total.reads = total.reads.saturating_add(explicit.reads);
        total.writes = total.writes.saturating_add(explicit.writes);
        total.fs_base = explicit.fs_base;
        if self.keeps_whole {
            self.whole.extend_from_slice(data);
        }
        self.bytes += data.len();
        taken == Some(data.len())
    }

    pub(super) fn checksum(&self) -> u32 {
        if self.keeps_whole { crc(&[&self.whole]) } else { self.encoder.checksum() }
    }

    /// Returns codec and payload, in two parts. In a hurry, the payload is larger.
    pub(super) fn finish(
        &mut self,
        codec: Codec,
        compressor: &mut Compressor,
        in_a_hurry: bool,
    ) -> (u8, Vec<u8>, &[u8]) {
        match codec {
            Codec::Raw => (CODEC_RAW, Vec::new(), &self.whole),
            Codec::Zstd => match zstd::bulk::compress(&self.whole, 1) {
                Ok(payload) => (CODEC_ZSTD, payload, &[]),
                Err(_) => (CODEC_RAW, Vec::new(), &self.whole),
            },
            Codec::Predict | Codec::Fast | Codec::Adaptive => {
                let (payload, rest) = self.encoder.finish(compressor, in_a_hurry);
                (CODEC_LANES, payload, rest)
            }
        }
    }
}

/// Counts an event that is no signal.
fn count_event(total: &mut DataTotal, words: &[u32]) {
    if let Some(access) = event::read_explicit_access(words) {
        let (reads, writes) = access.counts();
        total.reads = total.reads.saturating_add(reads);
        total.writes = total.writes.saturating_add(writes);
    } else if let Some(crate::model::Event::FsBase { base }) = event::read(words).and_then(|read| read.event) {
        total.fs_base = base;
    }
}
