//! The encoder: looks up a run of paths at once, then compares each word with its guesses and
//! fills the streams of a chunk.

use wire::word::{self, EVENT};

use crate::bits::BitWriter;
use crate::bytes::put_varint;
use crate::event::{Packer, next_pc};
use crate::streams::{Compressor, put_stream};
use crate::words::{Word, Words};

use super::PredictionTables;
use super::context::{Calls, Context, target_behind};
use super::guess::{BIT_STREAMS, Guess, Guesses, IS_EVENT, IS_EXPECTED, SURE};
use super::model::{LowPc, PathModel, StackEffect, WordCounter};

/// The streams of a chunk that is being encoded.
#[derive(Debug)]
pub(super) struct Streams {
    bits: [BitWriter; BIT_STREAMS],
    runs: Vec<u8>,
    run: u64,
    exits: Vec<u8>,
    /// Words that nothing guessed, byte by byte.
    others: [Vec<u8>; 4],
    events: Vec<u8>,
    packer: Packer,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            bits: std::array::from_fn(|_| BitWriter::default()),
            runs: Vec::new(),
            run: 0,
            exits: Vec::new(),
            others: std::array::from_fn(|_| Vec::new()),
            events: Vec::new(),
            packer: Packer::default(),
        }
    }
}

impl Streams {
    fn clear(&mut self) {
        self.bits.iter_mut().for_each(BitWriter::clear);
        for bytes in [&mut self.runs, &mut self.exits, &mut self.events].into_iter().chain(&mut self.others) {
            bytes.clear();
        }
        (self.run, self.packer) = (0, Packer::default());
    }

    #[inline]
    fn bit(&mut self, stream: usize, bit: bool) -> bool {
        if let Some(stream) = self.bits.get_mut(stream) {
            stream.push(bit);
        }
        bit
    }

    #[inline]
    fn bit_if(&mut self, wanted: bool, stream: usize, bit: bool) {
        if let Some(stream) = self.bits.get_mut(stream) {
            stream.push_if(wanted, bit);
        }
    }

    #[inline]
    fn end_run(&mut self) {
        put_varint(&mut self.runs, self.run);
        self.run = 0;
    }

    /// Stores a word that was guessed wrong. `exit` is its exit of the expected fragment, if it has
    /// one.
    #[inline]
    fn put_literal(&mut self, word: u32, exit: Option<u8>) {
        if self.bit(IS_EVENT, word & EVENT != 0) {
            self.events.push(word::kind(word));
            put_varint(&mut self.events, u64::from(word & 0xff_ffff));
            return;
        }
        self.bit(IS_EXPECTED, exit.is_some());
        match exit {
            Some(exit) => self.exits.push(exit),
            None => self.others.iter_mut().zip(word.to_le_bytes()).for_each(|(bytes, byte)| bytes.push(byte)),
        }
    }

    fn finish(&mut self, compressor: &mut Compressor) -> Vec<u8> {
        self.end_run();
        let mut out = Vec::new();
        for stream in [&self.runs, &self.exits, &self.events].into_iter().chain(&self.others) {
            put_stream(&mut out, compressor, stream);
        }
        for stream in &mut self.bits {
            put_stream(&mut out, compressor, stream.finish());
        }
        out
    }
}

/// Encodes and counts `words`. The error is the number of words before one that is unknown.
pub fn encode<M: PathModel, C: WordCounter<M::Path>>(
    tables: &mut PredictionTables,
    model: &M,
    image: u32,
    words: &[u32],
    counter: C,
) -> Result<(Vec<u8>, C::Total), usize> {
    let context = tables.start(words.len());
    tables.streams.clear();
    let mut encoder =
        Encoder { model, image, tables, counter, calls: Calls::new(), context, lookahead: Lookahead::new() };
    let mut rest = Words::new(words);
    while let Some(word) = rest.peek() {
        let at = words.len() - rest.rest().len();
        let taken = match word {
            Word::Event(event) => encoder.event(event.words()).ok_or(at)?,
            Word::Path(_) => match encoder.repeated(rest.rest()) {
                0 => encoder.paths(rest.rest()).map_err(|known| at + known)?,
                repeated => repeated,
            },
        };
        rest.skip_words(taken);
    }
    let PredictionTables { streams, compressor, .. } = encoder.tables;
    Ok((streams.finish(compressor), encoder.counter.finish(words, encoder.context.last)))
}

/// Paths that are looked up in one go.
const LOOKAHEAD: usize = 128;

/// Slots and targets of the next paths, found before any path is compared with its guess. So the
/// processor fetches what they need from memory side by side.
struct Lookahead {
    count: usize,
    long: [usize; LOOKAHEAD],
    short: [usize; LOOKAHEAD],
    targets: [LowPc; LOOKAHEAD],
}

impl Lookahead {
    fn new() -> Self {
        Self { count: 0, long: [0; LOOKAHEAD], short: [0; LOOKAHEAD], targets: [0; LOOKAHEAD] }
    }
}

struct Encoder<'t, M, C> {
    model: &'t M,
    image: u32,
    tables: &'t mut PredictionTables,
    counter: C,
    calls: Calls,
    context: Context,
    lookahead: Lookahead,
}

impl<M: PathModel, C: WordCounter<M::Path>> Encoder<'_, M, C> {
    /// Encodes the event at the start of `words` and returns its length; `None` if there is no
    /// whole event.
    fn event(&mut self, words: &[u32]) -> Option<usize> {
        let next = next_pc(words)?;
        let length = self.counter.add_event(self.context.last, words)?;
        let (&first, rest) = words.get(..length)?.split_first()?;
        let (long, short, target) = (self.context.long(), self.context.short(), self.context.target);
        self.word(first, long, short, target);
        let streams = &mut self.tables.streams;
        streams.packer.pack(first, rest, &mut streams.events);
        self.context.push(first);
        self.context.target = target_behind(next, target);
        Some(length)
    }

    /// Encodes paths at the start of `words` and returns their number. The error is the number of
    /// paths before an unknown one.
    fn paths(&mut self, words: &[u32]) -> Result<usize, usize> {
        self.lookahead(words)?;
        self.prefetch();
        for (place, &word) in words.iter().take(self.lookahead.count).enumerate() {
            let lookahead = &self.lookahead;
            if let (Some(&long), Some(&short), Some(&target)) =
                (lookahead.long.get(place), lookahead.short.get(place), lookahead.targets.get(place))
            {
                self.word(word, long, short, target);
            }
        }
        Ok(self.lookahead.count)
    }

    /// Counts paths and finds the slots of their guesses.
    fn lookahead(&mut self, words: &[u32]) -> Result<(), usize> {
        let Lookahead { count, long, short, targets } = &mut self.lookahead;
        *count = 0;
        for (((&word, long), short), target) in words.iter().zip(long).zip(short).zip(targets) {
            let Some(path) = word::path(word) else { break };
            let info = self.model.path_info(path).ok_or(*count)?;
            (*long, *short, *target) = (self.context.long(), self.context.short(), self.context.target);
            self.counter.add_path(&info);
            self.context.push(word);
            self.context.target = self.calls.follow(self.model.stack_effect(&info));
            *count += 1;
        }
        Ok(())
    }

    /// Reads all guesses once, so that they are in the cache.
    fn prefetch(&self) {
        let word = |table: &[Guess], slot: &usize| table.get(*slot).map_or(0, |guess| guess.word);
        let long = self
            .lookahead
            .long
            .iter()
            .take(self.lookahead.count)
            .fold(0, |all, slot| all ^ word(&self.tables.long, slot));
        let short = self
            .lookahead
            .short
            .iter()
            .take(self.lookahead.count)
            .fold(0, |all, slot| all ^ word(&self.tables.short, slot));
        std::hint::black_box(long ^ short);
    }

    #[inline]
    fn word(&mut self, word: u32, long: usize, short: usize, target: LowPc) {
        let PredictionTables { long: longs, short: shorts, streams, .. } = &mut *self.tables;
        let Some(guess) = longs.get_mut(long) else { return };
        if guess.word == word && guess.trust == SURE {
            streams.run += 1;
            return;
        }
        let Some(other) = shorts.get_mut(short) else { return };
        let (model, image) = (self.model, self.image);
        let exit = || {
            let path = word::path(word)?;
            model.expected_exit(image, target, &model.path_info(path)?, path)
        };
        encode_miss(streams, *guess, *other, word, exit);
        *guess = guess.learned(word);
        *other = other.learned(word);
    }

    /// Encodes repetitions of the last word at the start of `words`, if only their number matters,
    /// and returns it.
    fn repeated(&mut self, words: &[u32]) -> usize {
        let word = self.context.last;
        let Some(guess) = self.tables.long.get(self.context.long()) else { return 0 };
        if guess.word != word || guess.trust != SURE || words.first() != Some(&word) {
            return 0;
        }
        let Some(info) = word::path(word).and_then(|path| self.model.path_info(path)) else { return 0 };
        let mut after = self.context;
        after.push(word);
        if after != self.context || self.model.stack_effect(&info) != StackEffect::Jumps(self.context.target) {
            return 0;
        }
        let more = equal(words, word);
        self.tables.streams.run += more as u64;
        self.counter.add_repeated(&info, more as u64);
        more
    }
}

/// Stores a word that was not guessed both surely and rightly.
#[inline]
fn encode_miss(streams: &mut Streams, long: Guess, short: Guess, word: u32, exit: impl FnOnce() -> Option<u8>) {
    if long.trust == SURE {
        streams.end_run();
    }
    let guesses = Guesses::new(long, short);
    let (first, second) = (guesses.first == word, guesses.second == word);
    streams.bit_if(guesses.ask_first, guesses.first_stream, first);
    streams.bit_if(!first & guesses.ask_second, guesses.second_stream, second);
    if !(first | second) {
        streams.put_literal(word, exit());
    }
}

/// Returns how many of the first words equal `word`.
#[inline]
fn equal(words: &[u32], word: u32) -> usize {
    let whole = words.chunks_exact(8).take_while(|chunk| chunk.iter().fold(0, |all, other| all | (other ^ word)) == 0);
    let eights = whole.count() * 8;
    eights + words.iter().skip(eights).take_while(|&&other| other == word).count()
}
