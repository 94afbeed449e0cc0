//! Codec 3: words guessed from the words before them, and zstd for what is left. Made to keep up with a fast target: two
//! look-ups a word, no arithmetic that waits for the bit before.
//!
//! One table guesses a word from the last three, another from the last one. A payload is three streams: how many words in a
//! row the first table had right; one byte for each word that it had wrong ([`SHORT`], [`WHOLE`], or a small difference to
//! its guess); and the words that are stored whole. Tables start empty with every chunk.
//!
//! `docs/format.md` describes it for other implementations; changing anything here changes the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use crate::bytes::Bytes;
use crate::error::Problem;
use crate::path::decompress;

const BITS: u32 = 16;
const SIZE: usize = 1 << BITS;
/// Bits of a word that its hash is made of: of this many paths, no two look alike.
const WORD_BITS: u32 = 21;
const WORD_MASK: u32 = (1 << WORD_BITS) - 1;
const ZSTD_LEVEL: i32 = 1;

/// The second table was right.
const SHORT: u8 = 0;
/// The word is in the third stream.
const WHOLE: u8 = 1;
/// From here on: the zigzag of the difference to the first table's guess, less one.
const NEAR: u8 = 2;
const NEAR_MAX: u32 = (u8::MAX - NEAR) as u32;
/// In the first stream: a longer run follows as four bytes. After it, no run of its own stands for the words up to the
/// next wrong guess.
const LONG_RUN: u8 = u8::MAX;

/// The tables, kept between chunks for their memory only.
#[derive(Debug)]
pub(crate) struct Tables {
    long: Vec<u32>,
    short: Vec<u32>,
}

impl Default for Tables {
    fn default() -> Self {
        Self { long: vec![0; SIZE], short: vec![0; SIZE] }
    }
}

impl Tables {
    /// Empties both and gives them, long and short, as arrays that every hash is an index of.
    fn start(&mut self) -> Option<(&mut [u32; SIZE], &mut [u32; SIZE])> {
        self.long.fill(0);
        self.short.fill(0);
        let (long, _) = self.long.split_first_chunk_mut()?;
        let (short, _) = self.short.split_first_chunk_mut()?;
        Some((long, short))
    }
}

/// The last words, as far as they matter: the newest lowest.
#[derive(Default)]
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

fn get_run(stream: &mut Bytes) -> Option<u32> {
    match stream.u8()? {
        LONG_RUN => stream.u32(),
        short => Some(u32::from(short)),
    }
}

/// Compresses words; at most `u32::MAX` of them.
#[allow(clippy::indexing_slicing)] // see `History`
pub(crate) fn encode(tables: &mut Tables, words: &[u32]) -> Option<Vec<u8>> {
    let (long, short) = tables.start()?;
    let mut history = History::default();
    let (mut runs, mut codes, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut run = 0u32;
    for &word in words {
        let guess = &mut long[history.long()];
        if *guess == word {
            run += 1;
        } else {
            put_run(&mut runs, run);
            run = 0;
            let second = &mut short[history.short()];
            let difference = zigzag(word.wrapping_sub(*guess)).wrapping_sub(1);
            if *second == word {
                codes.push(SHORT);
            } else if let Ok(near) = u8::try_from(difference)
                && difference <= NEAR_MAX
            {
                codes.push(NEAR + near);
            } else {
                codes.push(WHOLE);
                whole.extend_from_slice(&word.to_le_bytes());
            }
            *second = word;
            *guess = word;
        }
        history.push(word);
    }
    put_run(&mut runs, run);
    let mut payload = Vec::new();
    for stream in [runs, codes, whole] {
        let compressed = zstd::bulk::compress(&stream, ZSTD_LEVEL).ok()?;
        payload.extend_from_slice(&u32::try_from(stream.len()).ok()?.to_le_bytes());
        payload.extend_from_slice(&u32::try_from(compressed.len()).ok()?.to_le_bytes());
        payload.extend_from_slice(&compressed);
    }
    Some(payload)
}

/// Reads a stream of at most `length_max` bytes.
fn stream(payload: &mut Bytes, length_max: usize) -> Result<Vec<u8>, Problem> {
    const SHORT: Problem = Problem::Decompress("a stream is cut off");
    let length = payload.u32().ok_or(SHORT)? as usize;
    let stored = payload.u32().ok_or(SHORT)? as usize;
    let stored = payload.take(stored).ok_or(SHORT)?;
    if length > length_max {
        return Err(Problem::Decompress("a stream is longer than its words allow"));
    }
    let mut stream = Vec::new();
    decompress(stored, length, &mut stream)?;
    Ok(stream)
}

/// Appends `count` words.
#[allow(clippy::indexing_slicing)] // see `History`
pub(crate) fn decode(tables: &mut Tables, payload: &[u8], count: usize, words: &mut Vec<u32>) -> Result<(), Problem> {
    const SHORT_STREAM: Problem = Problem::Decompress("a stream ends too early");
    let mut payload = Bytes::new(payload);
    let runs = stream(&mut payload, count.saturating_mul(5).saturating_add(5))?;
    let codes = stream(&mut payload, count)?;
    let whole = stream(&mut payload, count.saturating_mul(4))?;
    let (mut runs, mut codes, mut whole) = (Bytes::new(&runs), Bytes::new(&codes), Bytes::new(&whole));
    let (long, short) = tables.start().ok_or(Problem::Decompress("its tables are missing"))?;
    let mut history = History::default();
    let end = words.len() + count;
    words.reserve(count);
    loop {
        let run = get_run(&mut runs).ok_or(SHORT_STREAM)? as usize;
        if run > end - words.len() {
            return Err(Problem::Decompress("a run is longer than the words that are left"));
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
        let mut tables = Tables::default();
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
        fn words_come_back(words in proptest::collection::vec(prop_oneof![0u32..8, 1000u32..1300, any::<u32>()], 0..3000)) {
            check(&words);
        }

        #[test]
        fn rubbish_does_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..200), count in 0usize..5000) {
            let _ = decode(&mut Tables::default(), &payload, count, &mut Vec::new());
        }

        #[test]
        fn damage_does_no_harm(words in proptest::collection::vec(0u32..50, 1..500), at in any::<usize>(), bits in 1u8..) {
            let mut tables = Tables::default();
            let mut payload = encode(&mut tables, &words).unwrap();
            let at = at % payload.len();
            payload[at] ^= bits;
            let _ = decode(&mut tables, &payload, words.len(), &mut Vec::new());
        }
    }
}
