//! Codec 3: words guessed from the words before them, and zstd for the rest. Made to keep up with a
//! fast target: two look-ups a word, and no arithmetic that waits for the bit before.
//!
//! One table guesses a word from the last three, another from the last one. A payload is three
//! streams: the lengths of runs that the first table guessed right; one byte for each word that it
//! guessed wrong (`SHORT`, `WHOLE`, or a small difference to its guess); and the words that are
//! stored whole. Tables start empty with every chunk.
//!
//! `docs/format.md` describes it for other implementations; changing anything here changes the
//! format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::hint::select_unpredictable;

use crate::bytes::ByteReader;
use crate::error::DecodeError;
use crate::streams::decompress;
use crate::streams::{Compressor, Search};

const BITS: u32 = 16;
const SIZE: usize = 1 << BITS;
/// Bits of a word that are hashed: no two of this many paths are the same in them.
const WORD_BITS: u32 = 21;
const WORD_MASK: u32 = (1 << WORD_BITS) - 1;
const ZSTD_LEVEL: i32 = 1;
/// If more than one word in this many was guessed wrong, the streams hardly repeat themselves, and
/// zstd searches less.
const HARD: usize = 4;

/// The second table was right.
const SHORT: u8 = 0;
/// The word is in the third stream.
const WHOLE: u8 = 1;
/// From here on: the zigzag of the difference to the first table's guess, less one.
const NEAR: u8 = 2;
const NEAR_MAX: u32 = (u8::MAX - NEAR) as u32;
/// In the first stream: a longer run follows as four bytes. After it, no run of its own stands for
/// the words up to the next wrong guess.
const LONG_RUN: u8 = u8::MAX;

/// The tables and streams, kept between chunks for their memory only.
#[derive(Debug)]
pub struct FastTables {
    long: Vec<u32>,
    short: Vec<u32>,
    streams: Streams,
    compressor: Compressor,
}

impl Default for FastTables {
    fn default() -> Self {
        Self {
            long: vec![0; SIZE],
            short: vec![0; SIZE],
            streams: Streams::default(),
            compressor: Compressor::default(),
        }
    }
}

impl FastTables {
    /// Empties both tables and returns them, long and short, as arrays that every hash is an index
    /// of.
    fn start(&mut self) -> Option<(&mut [u32; SIZE], &mut [u32; SIZE])> {
        self.long.fill(0);
        self.short.fill(0);
        let (long, _) = self.long.split_first_chunk_mut()?;
        let (short, _) = self.short.split_first_chunk_mut()?;
        Some((long, short))
    }
}

/// The low bits of the last words, the newest lowest.
#[derive(Clone, Copy, Default)]
struct History(u64);

impl History {
    #[inline]
    fn push(&mut self, word: u32) {
        self.0 = self.0 << WORD_BITS | u64::from(word & WORD_MASK);
    }

    // Both shifts leave BITS bits, so that indexing needs no check and cannot fail.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn long(&self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS)) as usize
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn short(&self) -> usize {
        ((self.0 as u32 & WORD_MASK).wrapping_mul(0x9e37_79b1) >> (32 - BITS)) as usize
    }
}

fn zigzag(difference: u32) -> u32 {
    difference << 1 ^ (difference >> 31).wrapping_neg()
}

fn unzigzag(value: u32) -> u32 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

fn put_run(stream: &mut Vec<u8>, run: u32) {
    match u8::try_from(run) {
        Ok(short) if short < LONG_RUN => stream.push(short),
        _ => {
            stream.push(LONG_RUN);
            stream.extend_from_slice(&run.to_le_bytes());
        }
    }
}

fn get_run(stream: &mut ByteReader) -> Option<u32> {
    match stream.u8()? {
        LONG_RUN => stream.u32(),
        short => Some(u32::from(short)),
    }
}

/// Words that are guessed in one go, before the wrong guesses are encoded.
const BLOCK: usize = 1024;
/// Wrong guesses in a block above which the next block is guessed without branches on the outcome.
const MANY: usize = BLOCK / 32;

/// The wrong guesses of a block: the first `count` of each list.
struct Misses {
    count: usize,
    /// Places of words in the block.
    places: [u16; BLOCK],
    /// What the two tables had.
    longs: [u32; BLOCK],
    shorts: [u32; BLOCK],
}

/// Guesses words, and learns the words that came instead.
struct Predictor<'t> {
    long: &'t mut [u32; SIZE],
    short: &'t mut [u32; SIZE],
    history: History,
    misses: Misses,
}

impl Predictor<'_> {
    /// Guesses a block of words.
    fn block(&mut self, words: &[u32]) {
        let many = std::mem::take(&mut self.misses.count) > MANY;
        if many { self.without_branches(words.iter().zip(0..)) } else { self.with_branches(words) }
    }

    /// Guesses words; fast where guesses are right.
    #[allow(clippy::indexing_slicing)] // see `History`
    fn with_branches(&mut self, words: &[u32]) {
        for (word, place) in words.iter().zip(0..) {
            if self.long[self.history.long()] == *word {
                self.history.push(*word);
            } else {
                self.without_branches([(word, place)].into_iter());
            }
        }
    }

    /// Guesses words in the same time for right and wrong guesses. With many wrong ones,
    /// mispredicted branches would take more time than doing everything.
    #[allow(clippy::indexing_slicing)] // see `History`; the count is below BLOCK before the last word of a block
    fn without_branches<'w>(&mut self, words: impl Iterator<Item = (&'w u32, u16)>) {
        let Self { long, short, misses, .. } = self;
        // In registers.
        let (mut history, mut count) = (self.history, misses.count);
        for (&word, place) in words {
            let (first, second) = (&mut long[history.long()], &mut short[history.short()]);
            let right = *first == word;
            let at = count % BLOCK;
            (misses.places[at], misses.longs[at], misses.shorts[at]) = (place, *first, *second);
            count += usize::from(!right);
            *second = select_unpredictable(right, *second, word);
            *first = word;
            history.push(word);
        }
        (self.history, misses.count) = (history, count);
    }
}

/// The streams of a chunk that is being encoded.
#[derive(Debug, Default)]
struct Streams {
    /// Right guesses since the last wrong one.
    run: u32,
    runs: Vec<u8>,
    codes: Vec<u8>,
    whole: Vec<u8>,
}

impl Streams {
    fn clear(&mut self) {
        self.run = 0;
        [&mut self.runs, &mut self.codes, &mut self.whole].into_iter().for_each(Vec::clear);
    }

    /// Appends a block of words, some of which were guessed wrongly.
    fn block(&mut self, words: &[u32], misses: &Misses) {
        self.append_runs(words.len(), misses.places.get(..misses.count).unwrap_or(&[]));
        self.append_codes(words, misses);
    }

    fn append_runs(&mut self, words: usize, misses: &[u16]) {
        let Some((&first, &last)) = misses.first().zip(misses.last()) else {
            self.run += small(words);
            return;
        };
        put_run(&mut self.runs, self.run + u32::from(first));
        let between = misses.iter().zip(misses.iter().skip(1)).map(|(before, place)| place - before - 1);
        if between.clone().fold(0, u16::max) < u16::from(LONG_RUN) {
            // All of them fit.
            #[allow(clippy::cast_possible_truncation)]
            self.runs.extend(between.map(|run| run as u8));
        } else {
            between.for_each(|run| put_run(&mut self.runs, u32::from(run)));
        }
        self.run = small(words - 1) - u32::from(last);
    }

    /// Without branches on what the codes are.
    #[allow(clippy::indexing_slicing)] // counts are below BLOCK before the last wrong guess of a block
    fn append_codes(&mut self, words: &[u32], misses: &Misses) {
        let (mut codes, mut whole, mut whole_count) = ([0; BLOCK], [0; BLOCK], 0);
        let guesses = misses.places.iter().zip(&misses.longs).zip(&misses.shorts).take(misses.count);
        for (((&place, &long), &short), stored) in guesses.zip(&mut codes) {
            let word = words.get(usize::from(place)).copied().unwrap_or(0);
            *stored = code(long, short, word);
            whole[whole_count % BLOCK] = word;
            whole_count += usize::from(*stored == WHOLE);
        }
        self.codes.extend(codes.iter().take(misses.count));
        self.whole.extend_from_slice(bytemuck::cast_slice(whole.get(..whole_count).unwrap_or(&[])));
    }

    /// Returns the payload of `words` words.
    fn finish(&mut self, words: usize, compressor: &mut Compressor) -> Option<Vec<u8>> {
        put_run(&mut self.runs, self.run);
        let search = if self.codes.len() > words / HARD { Search::Sparse } else { Search::Usual };
        let mut payload = Vec::new();
        for stream in [&self.runs, &self.codes, &self.whole] {
            let compressed = compressor.frame(stream, ZSTD_LEVEL, search)?;
            payload.extend_from_slice(&u32::try_from(stream.len()).ok()?.to_le_bytes());
            payload.extend_from_slice(&u32::try_from(compressed.len()).ok()?.to_le_bytes());
            payload.extend_from_slice(compressed);
        }
        Some(payload)
    }
}

/// Converts a number of words of a block.
#[allow(clippy::cast_possible_truncation)]
fn small(count: usize) -> u32 {
    debug_assert!(count <= BLOCK);
    count as u32
}

/// Returns the code of `word`, which the first table guessed wrong.
#[inline]
fn code(long: u32, short: u32, word: u32) -> u8 {
    let difference = zigzag(word.wrapping_sub(long)).wrapping_sub(1);
    // Used only if it fits.
    #[allow(clippy::cast_possible_truncation)]
    let near = (difference as u8).wrapping_add(NEAR);
    let far = select_unpredictable(difference <= NEAR_MAX, near, WHOLE);
    select_unpredictable(short == word, SHORT, far)
}

/// Compresses words; at most `u32::MAX` of them.
pub fn encode(tables: &mut FastTables, words: &[u32]) -> Option<Vec<u8>> {
    let mut streams = std::mem::take(&mut tables.streams);
    streams.clear();
    let (long, short) = tables.start()?;
    let misses = Misses { count: 0, places: [0; BLOCK], longs: [0; BLOCK], shorts: [0; BLOCK] };
    let mut predictor = Predictor { long, short, history: History::default(), misses };
    for words in words.chunks(BLOCK) {
        predictor.block(words);
        streams.block(words, &predictor.misses);
    }
    let payload = streams.finish(words.len(), &mut tables.compressor);
    tables.streams = streams;
    payload
}

/// Reads a stream of at most `length_max` bytes.
fn stream(payload: &mut ByteReader, length_max: usize) -> Result<Vec<u8>, DecodeError> {
    const SHORT: DecodeError = DecodeError::Malformed("a stream is cut off");
    let length = payload.u32().ok_or(SHORT)? as usize;
    let stored = payload.u32().ok_or(SHORT)? as usize;
    let stored = payload.take(stored).ok_or(SHORT)?;
    if length > length_max {
        return Err(DecodeError::Malformed("a stream is longer than its words allow"));
    }
    let mut stream = Vec::new();
    decompress(stored, length, &mut stream)?;
    Ok(stream)
}

/// Appends `count` words.
#[allow(clippy::indexing_slicing)] // see `History`
pub fn decode(tables: &mut FastTables, payload: &[u8], count: usize, words: &mut Vec<u32>) -> Result<(), DecodeError> {
    const SHORT_STREAM: DecodeError = DecodeError::Malformed("a stream ends too early");
    let mut payload = ByteReader::new(payload);
    let runs = stream(&mut payload, count.saturating_mul(5).saturating_add(5))?;
    let codes = stream(&mut payload, count)?;
    let whole = stream(&mut payload, count.saturating_mul(4))?;
    let (mut runs, mut codes, mut whole) = (ByteReader::new(&runs), ByteReader::new(&codes), ByteReader::new(&whole));
    let (long, short) = tables.start().ok_or(DecodeError::Malformed("its tables are missing"))?;
    let mut history = History::default();
    let end = words.len() + count;
    words.reserve(count);
    loop {
        let run = get_run(&mut runs).ok_or(SHORT_STREAM)? as usize;
        if run > end - words.len() {
            return Err(DecodeError::Malformed("a run is longer than the words that are left"));
        }
        for _ in 0..run {
            let word = long[history.long()];
            words.push(word);
            history.push(word);
        }
        if words.len() == end {
            return Ok(());
        }
        let guess = &mut long[history.long()];
        let second = &mut short[history.short()];
        let word = match codes.u8().ok_or(SHORT_STREAM)? {
            SHORT => *second,
            WHOLE => whole.u32().ok_or(SHORT_STREAM)?,
            near => guess.wrapping_add(unzigzag(u32::from(near - NEAR) + 1)),
        };
        *second = word;
        *guess = word;
        words.push(word);
        history.push(word);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(words: &[u32]) {
        let mut tables = FastTables::default();
        let payload = encode(&mut tables, words).unwrap();
        let mut decoded = vec![7];
        decode(&mut tables, &payload, words.len(), &mut decoded).unwrap();
        assert_eq!(decoded[1..], *words);
    }

    #[test]
    fn nothing_and_long_runs_come_back() {
        check(&[]);
        check(&[0]);
        check(&[5; 1_000_000]);
        check(&[&[5; 300][..], &[9], &[5; 255], &[9], &[5; 254], &[9]].concat().repeat(40));
        check(&[1, 2, 3, u32::MAX, 0, 1 << 31].repeat(1000));
    }

    #[test]
    fn zigzag_comes_back() {
        for difference in [0, 1, u32::MAX, 127, 128u32.wrapping_neg(), 1 << 31] {
            assert_eq!(unzigzag(zigzag(difference)), difference);
        }
    }

    proptest! {
        #[test]
        fn words_come_back(
            words in proptest::collection::vec(prop_oneof![0u32..8, 1000u32..1300, any::<u32>()], 0..3000),
        ) {
            check(&words);
        }

        #[test]
        fn rubbish_does_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..200), count in 0usize..5000) {
            let _ = decode(&mut FastTables::default(), &payload, count, &mut Vec::new());
        }

        #[test]
        fn damage_does_no_harm(
            words in proptest::collection::vec(0u32..50, 1..500),
            at in any::<usize>(),
            bits in 1u8..,
        ) {
            let mut tables = FastTables::default();
            let mut payload = encode(&mut tables, &words).unwrap();
            let at = at % payload.len();
            payload[at] ^= bits;
            let _ = decode(&mut tables, &payload, words.len(), &mut Vec::new());
        }
    }
}
