//! Codec 2: words predicted from the words before them.
//!
//! Two tables guess the next word, one from the last three words and one from the last word alone. Where the first is sure
//! of its guess, only the number of right guesses up to the next wrong one is stored. Everywhere else a range coder stores
//! whether a guess was right, and if none was, the word: most often the exit of the fragment that stands where the path before
//! led to. What follows the first word of an event goes into a stream of its own. Tables start empty with every chunk.
//!
//! `docs/format.md` describes all of it for other implementations; changing anything here changes the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word::{self, EVENT};

use crate::bytes::{Bytes, put_varint, unzigzag, zigzag};
use crate::coder::{BitDecoder, BitEncoder, Chance, Coder, NumberModel};
use crate::error::Problem;
use crate::event::{self, Packer};
use crate::path::{Source, decompress};
use crate::program::{Chain, Program};
use crate::tally::{Tally, Total};

/// Trust at which a guess of the long table is only counted.
const SURE: u32 = 7;
const BITS_MIN: u32 = 8;
const BITS_MAX: u32 = 16;
const ZSTD_LEVEL: i32 = 3;
/// Event streams longer than this are compressed.
const SMALL: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Guess {
    /// 0: none.
    word: u32,
    /// Up to [`SURE`].
    trust: u32,
}

impl Guess {
    fn learn(&mut self, word: u32) {
        if self.word == word {
            self.trust = (self.trust + 1).min(SURE);
        } else if self.trust > 1 {
            self.trust /= 2;
        } else {
            *self = Self { word, trust: 1 };
        }
    }
}

/// The tables, kept between chunks for their memory only.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    long: Vec<Guess>,
    short: Vec<Guess>,
}

impl Tables {
    /// Empties the tables for a chunk of `count` words and gives the history to start with.
    fn start(&mut self, count: usize) -> History {
        let bits = (usize::BITS - count.leading_zeros()).clamp(BITS_MIN, BITS_MAX);
        for table in [&mut self.long, &mut self.short] {
            table.clear();
            table.resize(1 << bits, Guess::default());
        }
        History { recent: 0, last: EVENT, shift: 64 - bits }
    }
}

/// The words before, as far as they matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct History {
    /// Sixteen bits of hash of each of the last words, the newest lowest.
    recent: u64,
    last: u32,
    shift: u32,
}

impl History {
    #[inline]
    fn push(&mut self, word: u32) {
        self.recent = (self.recent << 16 | u64::from(word.wrapping_mul(0x9e37_79b1) >> 16)) & 0xffff_ffff_ffff;
        self.last = word;
    }

    #[inline]
    fn long(&self) -> usize {
        self.slot(self.recent)
    }

    #[inline]
    fn short(&self) -> usize {
        self.slot(u64::from(self.last))
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        // At most BITS_MAX bits are left.
        #[allow(clippy::cast_possible_truncation)]
        let slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        slot
    }
}

/// How words are coded that are not surely guessed; the same for both directions.
struct Model<'p> {
    program: &'p Program,
    image: u32,
    sequence: u32,
    first: [[Chance; 3]; SURE as usize + 1],
    second: [[Chance; 2]; SURE as usize + 1],
    is_event: Chance,
    is_expected: Chance,
    exits: NumberModel,
    others: NumberModel,
    last_other: u32,
    kinds: NumberModel,
    lows: NumberModel,
}

impl<'p> Model<'p> {
    fn new(program: &'p Program, image: u32, sequence: u32) -> Self {
        Self {
            program,
            image,
            sequence,
            first: [[Chance::EVEN; 3]; SURE as usize + 1],
            second: [[Chance::EVEN; 2]; SURE as usize + 1],
            is_event: Chance::EVEN,
            is_expected: Chance::EVEN,
            exits: NumberModel::new(),
            others: NumberModel::new(),
            last_other: 0,
            kinds: NumberModel::new(),
            lows: NumberModel::new(),
        }
    }

    /// Codes `word` where the thread stands at `pc`; decoders ignore the argument and take the result.
    fn word<C: Coder>(&mut self, coder: &mut C, long: Guess, short: Guess, pc: u64, word: u32) -> u32 {
        let missed = long.trust == SURE;
        let (first, second) = if !missed && short.trust > long.trust { (short, long) } else { (long, short) };
        if !missed && first.word != 0 {
            let relation = if second.word == 0 { 0 } else { 1 + usize::from(second.word == first.word) };
            let chance = self.first.get_mut(first.trust as usize).and_then(|row| row.get_mut(relation));
            if coder.bit(word == first.word, chance.unwrap_or(&mut { Chance::EVEN })) {
                return first.word;
            }
        }
        if second.word != 0 && second.word != first.word {
            let chance = self.second.get_mut(second.trust as usize).and_then(|row| row.get_mut(usize::from(missed)));
            if coder.bit(word == second.word, chance.unwrap_or(&mut { Chance::EVEN })) {
                return second.word;
            }
        }
        self.unguessed(coder, pc, word)
    }

    fn unguessed<C: Coder>(&mut self, coder: &mut C, pc: u64, word: u32) -> u32 {
        if coder.bit(word & EVENT != 0, &mut self.is_event) {
            return self.event(coder, word);
        }
        if let Some(chain) = self.expected(pc) {
            let exits = u32::from(chain.exit_count);
            let exit = word.wrapping_sub(chain.first_path);
            if coder.bit(exit < exits, &mut self.is_expected) {
                let from_last = self.exits.code(coder, exits.wrapping_sub(1).wrapping_sub(exit));
                return chain.first_path.wrapping_add(exits.wrapping_sub(1).wrapping_sub(from_last));
            }
        }
        let difference = self.others.code(coder, zigzag32(word.wrapping_sub(self.last_other)));
        self.last_other = self.last_other.wrapping_add(unzigzag32(difference));
        self.last_other
    }

    fn expected(&self, pc: u64) -> Option<Chain> {
        if pc == 0 { None } else { self.program.chain_at(self.image, pc, self.sequence).copied() }
    }

    fn event<C: Coder>(&mut self, coder: &mut C, word: u32) -> u32 {
        let kind = self.kinds.code(coder, u32::from(word::kind(word)));
        let low = self.lows.code(coder, word & 0xff_ffff);
        EVENT | kind << 24 | low & 0xff_ffff
    }
}

fn zigzag32(difference: u32) -> u32 {
    let wide = i64::from(difference.cast_signed()).cast_unsigned();
    u32::try_from(zigzag(wide)).unwrap_or(0)
}

fn unzigzag32(value: u32) -> u32 {
    let [a, b, c, d, ..] = unzigzag(u64::from(value)).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Encodes and counts `words`. The error is the number of words before one that is unknown.
pub(crate) fn encode(
    tables: &mut Tables,
    program: &Program,
    image: u32,
    sequence: u32,
    words: &[u32],
) -> Result<(Vec<u8>, Total), usize> {
    let mut history = tables.start(words.len());
    let mut encoder = Encoder {
        model: Model::new(program, image, sequence),
        tally: Tally::new(program),
        coder: BitEncoder::new(),
        runs: Runs { coder: BitEncoder::new(), model: NumberModel::new(), run: 0 },
        packer: Packer::default(),
        events: Vec::new(),
    };
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        let before = history;
        let Some(guess) = tables.long.get_mut(history.long()) else { break };
        let sure = guess.word == word && guess.trust == SURE;
        if sure {
            encoder.runs.run += 1;
        } else {
            let old = *guess;
            guess.learn(word);
            let short = tables.short.get_mut(history.short()).map(|short| {
                let old = *short;
                short.learn(word);
                old
            });
            encoder.surprise(old, short.unwrap_or_default(), history.last, word);
        }
        history.push(word);
        if word & EVENT != 0 {
            at += encoder.event(before.last, words.get(at..).unwrap_or(&[])).ok_or(at)?;
            continue;
        }
        let counts = program.counts(word).ok_or(at)?;
        encoder.tally.sum.add(counts);
        at += 1;
        if sure && history == before {
            let more = equal(words.get(at..).unwrap_or(&[]), word);
            if more > 0 {
                encoder.runs.run += more as u64;
                encoder.tally.sum.add_times(counts, more as u64);
                at += more;
            }
        }
    }
    Ok(encoder.finish(words, history.last))
}

/// How many of the first words equal `word`.
fn equal(words: &[u32], word: u32) -> usize {
    let whole = words.chunks_exact(8).take_while(|chunk| chunk.iter().fold(0, |all, other| all | (other ^ word)) == 0);
    let eights = whole.count() * 8;
    eights + words.iter().skip(eights).take_while(|&&other| other == word).count()
}

struct Encoder<'p> {
    model: Model<'p>,
    tally: Tally<'p>,
    coder: BitEncoder,
    runs: Runs,
    packer: Packer,
    events: Vec<u8>,
}

/// Numbers of sure guesses that were right before each one that was wrong.
struct Runs {
    coder: BitEncoder,
    model: NumberModel,
    run: u64,
}

impl Runs {
    fn end(&mut self) {
        self.model.code(&mut self.coder, u32::try_from(self.run).unwrap_or(u32::MAX));
        self.run = 0;
    }
}

impl Encoder<'_> {
    /// A word that was not surely and rightly guessed.
    fn surprise(&mut self, long: Guess, short: Guess, before: u32, word: u32) {
        if long.trust == SURE {
            self.runs.end();
        }
        let pc = self.tally.lead(before);
        self.model.word(&mut self.coder, long, short, pc, word);
    }

    fn event(&mut self, before: u32, words: &[u32]) -> Option<usize> {
        let length = self.tally.event(before, words)?;
        let (&first, rest) = words.get(..length)?.split_first()?;
        self.packer.pack(first, rest, &mut self.events);
        Some(length)
    }

    fn finish(mut self, words: &[u32], before: u32) -> (Vec<u8>, Total) {
        let mut out = Vec::new();
        self.runs.end();
        let runs = self.runs.coder.finish();
        let coded = self.coder.finish();
        let packed = if self.events.len() > SMALL { zstd::bulk::compress(&self.events, ZSTD_LEVEL).ok() } else { None };
        put_varint(&mut out, runs.len() as u64);
        put_varint(&mut out, self.events.len() as u64);
        let events = match packed.filter(|packed| packed.len() < self.events.len()) {
            Some(packed) => {
                put_varint(&mut out, packed.len() as u64);
                packed
            }
            None => {
                put_varint(&mut out, self.events.len() as u64);
                self.events
            }
        };
        for part in [&runs, &events, &coded] {
            out.extend_from_slice(part);
        }
        (out, self.tally.finish(words, before))
    }
}

/// Decodes `count` words into `words`, which is empty.
pub(crate) fn decode(
    tables: &mut Tables,
    source: &Source<'_>,
    count: usize,
    words: &mut Vec<u32>,
) -> Result<(), Problem> {
    let mut scratch = Vec::new();
    let parts = Parts::split(source.payload, &mut scratch)?;
    let mut history = tables.start(count);
    let mut runs = RunsLeft { coder: BitDecoder::new(parts.runs), model: NumberModel::new(), left: None };
    let mut decoder = Decoder {
        model: Model::new(source.program, source.image, source.sequence),
        coder: BitDecoder::new(parts.coded),
        packer: Packer::default(),
        events: Bytes::new(parts.events),
        pc: 0,
    };
    while words.len() < count {
        let before = history;
        let guess = tables.long.get_mut(history.long()).ok_or(TABLES)?;
        let sure = guess.trust == SURE && runs.right_again();
        let word = if sure {
            guess.word
        } else {
            let short = tables.short.get_mut(history.short()).ok_or(TABLES)?;
            let pc = decoder.lead(history.last);
            let word = decoder.model.word(&mut decoder.coder, *guess, *short, pc, 0);
            guess.learn(word);
            short.learn(word);
            word
        };
        words.push(word);
        history.push(word);
        if word & EVENT != 0 {
            decoder.event(before.last, word, words)?;
        } else if sure && history == before {
            let more = runs.take(count - words.len());
            words.resize(words.len() + more, word);
        }
    }
    if words.len() == count { Ok(()) } else { Err(Problem::Decompress("an event reaches beyond its end")) }
}

/// Sure guesses that are right before the next one that is wrong.
struct RunsLeft<'a> {
    coder: BitDecoder<'a>,
    model: NumberModel,
    left: Option<usize>,
}

impl RunsLeft<'_> {
    /// Whether one more sure guess is right.
    #[inline]
    fn right_again(&mut self) -> bool {
        let left = match self.left {
            Some(left) => left,
            None => self.model.code(&mut self.coder, 0) as usize,
        };
        self.left = left.checked_sub(1);
        left > 0
    }

    /// How many of the next `most` sure guesses are right without a wrong one between.
    fn take(&mut self, most: usize) -> usize {
        let taken = self.left.unwrap_or(0).min(most);
        self.left = self.left.map(|left| left - taken);
        taken
    }
}

const TABLES: Problem = Problem::Decompress("its tables are empty");

struct Decoder<'p, 'a> {
    model: Model<'p>,
    coder: BitDecoder<'a>,
    packer: Packer,
    events: Bytes<'a>,
    pc: u64,
}

impl Decoder<'_, '_> {
    fn lead(&self, before: u32) -> u64 {
        if before & EVENT != 0 { self.pc } else { self.model.program.target(before).unwrap_or(0) }
    }

    /// Appends the rest of the event that begins with `first`, the last of `words` so far.
    fn event(&mut self, before: u32, first: u32, words: &mut Vec<u32>) -> Result<(), Problem> {
        const MALFORMED: Problem = Problem::Decompress("an event in it is malformed");
        let start = words.len() - 1;
        self.packer.unpack(first, &mut self.events, words).ok_or(MALFORMED)?;
        let recorded = words.get(start..).and_then(event::read).ok_or(MALFORMED)?;
        self.pc = event::position(&recorded.event).unwrap_or(self.lead(before));
        Ok(())
    }
}

/// The streams of a payload.
struct Parts<'a> {
    runs: &'a [u8],
    events: &'a [u8],
    coded: &'a [u8],
}

impl<'a> Parts<'a> {
    fn split(payload: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Self, Problem> {
        const SHORT: Problem = Problem::Decompress("its streams do not fit into it");
        let mut bytes = Bytes::new(payload);
        let mut length = || bytes.varint().and_then(|length| usize::try_from(length).ok());
        let (runs, events_length, events) = (length().ok_or(SHORT)?, length().ok_or(SHORT)?, length().ok_or(SHORT)?);
        let runs = bytes.take(runs).ok_or(SHORT)?;
        let events = bytes.take(events).ok_or(SHORT)?;
        if events.len() == events_length {
            return Ok(Self { runs, events, coded: bytes.rest() });
        }
        if events_length > crate::container::RAW_BYTES_MAX as usize {
            return Err(SHORT);
        }
        decompress(events, events_length, scratch)?;
        Ok(Self { runs, events: scratch, coded: bytes.rest() })
    }
}
