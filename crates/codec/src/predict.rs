//! Codec 2: words predicted from the words before them.
//!
//! Two tables guess the next word, one from the last three words, one from the last word alone.
//! Both also use the address where execution is about to continue, which a call stack gives behind
//! returns. Where the first table is sure of its guess, only the number of right guesses up to the
//! next wrong one is stored. Everywhere else a bit says whether a guess was right. If none was, the
//! word itself is stored, most often as an exit of the fragment that is expected next.
//!
//! Bits are kept apart by how much a guess is trusted, bytes by their meaning, and each stream is
//! compressed by itself. The words behind the first one of an event go into a stream of their own.
//! All state starts empty with every chunk.
//!
//! `docs/format.md` describes all of it for other implementations; changing anything here changes
//! the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use wire::word::{self, EVENT};

use crate::bits::{BitReader, BitWriter};
use crate::bytes::{ByteReader, put_varint};
use crate::error::DecodeError;
use crate::event::{NextPc, Packer, next_pc};
use crate::path::PathPayload;
use crate::streams::{Compressor, put_stream, take_stream};
use crate::words::{Word, Words};

/// The low half of an address where execution goes on; 0 if that is not known.
pub type LowPc = u32;

/// Returns the low half of `address`.
#[inline]
#[must_use]
pub fn low_pc(address: u64) -> LowPc {
    let [a, b, c, d, ..] = address.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// What the codec asks about the paths of a program. Encoder and decoder must get the same answers.
pub trait PathModel {
    /// What is known of one path.
    type Path: Copy;

    /// Looks a path up; `None` if it is not defined.
    fn path_info(&self, word: u32) -> Option<Self::Path>;

    /// Returns what the path does to the call stack.
    fn stack_effect(&self, path: &Self::Path) -> StackEffect<'_>;

    /// Returns the number of the exit that `word` is, counted from the last one, of the fragment
    /// that [`Self::exits_at`] finds behind all definitions; `None` if `word` belongs to another
    /// fragment.
    fn expected_exit(&self, image: u32, target: LowPc, path: &Self::Path, word: u32) -> Option<u8>;

    /// Returns the exits of the newest fragment at `target` that was defined before chunk
    /// `sequence`.
    fn exits_at(&self, image: u32, target: LowPc, sequence: u32) -> Option<FragmentExits>;
}

/// The paths of a fragment: consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentExits {
    pub first_path: u32,
    pub count: u16,
}

/// What a path does to the call stack, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEffect<'p> {
    /// Nothing; leads to this address.
    Jumps(LowPc),
    /// Ends in a return and does nothing else.
    Returns,
    /// Pops some return addresses and pushes others. Leads to `target`, or to the last address
    /// popped if it `returns`.
    Calls { pops: u32, returns: bool, target: LowPc, pushes: &'p [LowPc] },
}

/// Counts words while they are encoded.
pub trait WordCounter<P> {
    type Total;

    /// Counts a path.
    fn add_path(&mut self, path: &P);

    /// Counts `times` executions of a path.
    fn add_repeated(&mut self, path: &P, times: u64);

    /// Counts the event at the start of `words`, which comes after the word `before`. Returns its
    /// length in words, or `None` if there is no whole event.
    fn add_event(&mut self, before: u32, words: &[u32]) -> Option<usize>;

    /// Returns the total of `words`. The last of them, or the first word of the event that they end
    /// with, is `last`.
    fn finish(self, words: &[u32], last: u32) -> Self::Total;

    /// Counts all of `words`, on a counter that has counted nothing. The error is the number of
    /// words before the first unknown one.
    fn count(self, words: &[u32]) -> Result<Self::Total, usize>;
}

/// Trust at which a guess of the long table is only counted.
const SURE: u32 = 7;
const BITS_MIN: u32 = 8;
const BITS_MAX: u32 = 16;
/// Streams of bits: for first guesses by trust and relation to the other guess, for second guesses
/// by trust and whether the first was sure, one that marks events, one that marks expected
/// fragments.
const FIRST: usize = 3 * (SURE as usize + 1);
const SECOND: usize = 2 * (SURE as usize + 1);
const BIT_STREAMS: usize = FIRST + SECOND + 2;
const IS_EVENT: usize = FIRST + SECOND;
const IS_EXPECTED: usize = IS_EVENT + 1;

#[derive(Clone, Copy, Debug, Default)]
struct Guess {
    /// 0: none.
    word: u32,
    /// Up to [`SURE`].
    trust: u32,
}

impl Guess {
    /// Returns the guess after `word` has come. Without branches, because they could not be
    /// predicted.
    #[inline]
    fn learned(self, word: u32) -> Self {
        let right = self.word == word;
        let kept = right | (self.trust > 1);
        let more = (self.trust + 1).min(SURE);
        let less = (self.trust >> 1).max(1);
        Self {
            word: std::hint::select_unpredictable(kept, self.word, word),
            trust: std::hint::select_unpredictable(right, more, less),
        }
    }
}

/// The tables, and memory for streams.
#[derive(Debug, Default)]
pub struct Tables {
    long: Vec<Guess>,
    short: Vec<Guess>,
    streams: Streams,
    compressor: Compressor,
}

impl Tables {
    /// Empties the tables for a chunk of `count` words and returns the context to start with.
    fn start(&mut self, count: usize) -> Context {
        let bits = (usize::BITS - count.leading_zeros()).clamp(BITS_MIN, BITS_MAX);
        for table in [&mut self.long, &mut self.short] {
            table.clear();
            table.resize(1 << bits, Guess::default());
        }
        Context { recent: 0, last: EVENT, target: 0, shift: 64 - bits }
    }
}

/// What a guess depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    /// Sixteen bits of hash of each of the last three words, the newest lowest.
    recent: u64,
    last: u32,
    /// Where execution is about to continue.
    target: LowPc,
    shift: u32,
}

impl Context {
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
        let mixed = key
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(u64::from(self.target).wrapping_mul(0xff51_afd7_ed55_8ccd));
        // At most BITS_MAX bits are left.
        #[allow(clippy::cast_possible_truncation)]
        let slot = (mixed >> self.shift) as usize;
        slot
    }
}

/// Return addresses of calls; the newest overwrite the oldest.
struct Calls {
    ring: [LowPc; 256],
    top: u8,
}

impl Calls {
    #[inline]
    fn new() -> Self {
        Self { ring: [0; 256], top: 0 }
    }

    /// Applies the effect of a path, and returns its target.
    #[inline]
    fn follow(&mut self, effect: StackEffect<'_>) -> LowPc {
        match effect {
            StackEffect::Jumps(target) => target,
            StackEffect::Returns => self.pop(1),
            StackEffect::Calls { pops, returns, target, pushes } => {
                let popped = self.pop(pops);
                for &push in pushes {
                    if let Some(slot) = self.ring.get_mut(usize::from(self.top)) {
                        *slot = push;
                    }
                    self.top = self.top.wrapping_add(1);
                }
                if returns { popped } else { target }
            }
        }
    }

    #[inline]
    fn pop(&mut self, count: u32) -> LowPc {
        let [count, ..] = count.to_le_bytes();
        self.top = self.top.wrapping_sub(count);
        self.ring.get(usize::from(self.top)).copied().unwrap_or(0)
    }
}

/// Returns where execution goes on behind an event, given where it would go on without it.
#[inline]
fn target_behind(next: NextPc, before: LowPc) -> LowPc {
    match next {
        NextPc::Unchanged => before,
        NextPc::At(pc) => low_pc(pc),
    }
}

/// The guesses for one word, in the order they are tried.
struct Guesses {
    first: u32,
    second: u32,
    /// Whether the first is tried: not if it was sure, because then it is known to be wrong.
    ask_first: bool,
    /// Whether the second is tried after the first: not if both are the same.
    ask_second: bool,
    /// The streams of their bits.
    first_stream: usize,
    second_stream: usize,
}

impl Guesses {
    #[inline]
    fn new(long: Guess, short: Guess) -> Self {
        let missed = long.trust == SURE;
        let swap = !missed & (short.trust > long.trust);
        let pick = |yes: Guess, no: Guess| Guess {
            word: std::hint::select_unpredictable(swap, yes.word, no.word),
            trust: std::hint::select_unpredictable(swap, yes.trust, no.trust),
        };
        let (first, second) = (pick(short, long), pick(long, short));
        let same = second.word == first.word;
        // Of the first guesses only a short one can be sure.
        let relation = usize::from(second.trust > 0) + usize::from(same);
        Self {
            first: first.word,
            second: second.word,
            ask_first: !missed,
            ask_second: !same,
            first_stream: first.trust as usize * 3 + relation,
            second_stream: FIRST + second.trust as usize * 2 + usize::from(missed),
        }
    }
}

/// The streams of a chunk that is being encoded.
#[derive(Debug)]
struct Streams {
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
    tables: &mut Tables,
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
    let Tables { streams, compressor, .. } = encoder.tables;
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
    tables: &'t mut Tables,
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
            if word & EVENT != 0 {
                break;
            }
            let info = self.model.path_info(word).ok_or(*count)?;
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
        let Tables { long: longs, short: shorts, streams, .. } = &mut *self.tables;
        let Some(guess) = longs.get_mut(long) else { return };
        if guess.word == word && guess.trust == SURE {
            streams.run += 1;
            return;
        }
        let Some(other) = shorts.get_mut(short) else { return };
        let (model, image) = (self.model, self.image);
        let exit = || model.path_info(word).and_then(|info| model.expected_exit(image, target, &info, word));
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
        let Some(info) = self.model.path_info(word) else { return 0 };
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

/// Decodes `count` words into `words`, which is empty.
pub fn decode<M: PathModel>(
    tables: &mut Tables,
    source: &PathPayload<'_, M>,
    count: usize,
    words: &mut Vec<u32>,
) -> Result<(), DecodeError> {
    let mut stored = StreamReaders::split(source.payload, count)?;
    let mut context = tables.start(count);
    let mut calls = Calls::new();
    while words.len() < count {
        let before = context;
        let guess = tables.long.get_mut(context.long()).ok_or(TABLES)?;
        let sure = guess.trust == SURE && stored.right_again();
        let word = if sure {
            guess.word
        } else {
            let other = tables.short.get_mut(context.short()).ok_or(TABLES)?;
            let word = stored.word(source, &Guesses::new(*guess, *other), context.target)?;
            *guess = guess.learned(word);
            *other = other.learned(word);
            word
        };
        words.push(word);
        context.push(word);
        if word & EVENT != 0 {
            let next = stored.event(word, words)?;
            context.target = target_behind(next, context.target);
            continue;
        }
        let Some(info) = source.model.path_info(word) else { return Err(UNDEFINED) };
        context.target = calls.follow(source.model.stack_effect(&info));
        if sure && context == before && source.model.stack_effect(&info) == StackEffect::Jumps(context.target) {
            let more = stored.take_right(count - words.len());
            words.resize(words.len() + more, word);
        }
    }
    if words.len() == count { Ok(()) } else { Err(DecodeError::Malformed("an event reaches beyond its end")) }
}

const TABLES: DecodeError = DecodeError::Malformed("its tables are empty");
const UNDEFINED: DecodeError = DecodeError::Malformed("it names a path that is not defined");
const EXHAUSTED: DecodeError = DecodeError::Malformed("one of its streams is too short");
const MALFORMED: DecodeError = DecodeError::Malformed("an event in it is malformed");

/// The streams of a chunk that is being decoded.
struct StreamReaders {
    bits: Vec<BitReader>,
    runs: OwnedReader,
    /// Sure guesses that are right before the next that is wrong.
    left: Option<usize>,
    exits: OwnedReader,
    others: [OwnedReader; 4],
    events: OwnedReader,
    packer: Packer,
}

#[derive(Default)]
struct OwnedReader {
    bytes: Vec<u8>,
    at: usize,
}

impl OwnedReader {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    fn take<R>(&mut self, read: impl FnOnce(&mut ByteReader<'_>) -> Option<R>) -> Option<R> {
        let mut bytes = ByteReader::new(self.bytes.get(self.at..)?);
        let result = read(&mut bytes);
        self.at += bytes.at();
        result
    }
}

impl StreamReaders {
    fn split(payload: &[u8], count: usize) -> Result<Self, DecodeError> {
        let mut bytes = ByteReader::new(payload);
        // No stream holds more than a varint per word of the chunk.
        let most = 10 * count + 10;
        let mut take = || take_stream(&mut bytes, most);
        let (runs, exits, events) = (take()?, take()?, take()?);
        let mut others = [(); 4].map(|()| OwnedReader::default());
        for other in &mut others {
            *other = OwnedReader::new(take()?);
        }
        let bits = (0..BIT_STREAMS).map(|_| take().map(BitReader::new)).collect::<Result<_, _>>()?;
        let [runs, exits, events] = [runs, exits, events].map(OwnedReader::new);
        Ok(Self { bits, runs, left: None, exits, others, events, packer: Packer::default() })
    }

    /// Whether one more sure guess is right.
    #[inline]
    fn right_again(&mut self) -> bool {
        let left = match self.left {
            Some(left) => left,
            None => {
                self.runs.take(|bytes| bytes.varint()).and_then(|run| usize::try_from(run).ok()).unwrap_or(usize::MAX)
            }
        };
        self.left = left.checked_sub(1);
        left > 0
    }

    /// Takes up to `most` right guesses of the current run, and returns their number.
    #[inline]
    fn take_right(&mut self, most: usize) -> usize {
        let taken = self.left.unwrap_or(0).min(most);
        self.left = self.left.map(|left| left - taken);
        taken
    }

    #[inline]
    fn bit(&mut self, stream: usize) -> bool {
        self.bits.get_mut(stream).is_some_and(BitReader::take)
    }

    #[inline]
    fn word<M: PathModel>(
        &mut self,
        source: &PathPayload<'_, M>,
        guesses: &Guesses,
        target: LowPc,
    ) -> Result<u32, DecodeError> {
        if guesses.ask_first && self.bit(guesses.first_stream) {
            return Ok(guesses.first);
        }
        if guesses.ask_second && self.bit(guesses.second_stream) {
            return Ok(guesses.second);
        }
        if self.bit(IS_EVENT) {
            let kind = self.events.take(|bytes| bytes.u8()).ok_or(EXHAUSTED)?;
            let low = self.events.take(|bytes| bytes.varint_u32()).ok_or(EXHAUSTED)?;
            return Ok(word::event(kind, low));
        }
        if self.bit(IS_EXPECTED) {
            let exit = u32::from(self.exits.take(|bytes| bytes.u8()).ok_or(EXHAUSTED)?);
            let exits = source.model.exits_at(source.image, target, source.sequence).ok_or(UNDEFINED)?;
            let last = u32::from(exits.count).wrapping_sub(1);
            return Ok(exits.first_path.wrapping_add(last.wrapping_sub(exit)) & !EVENT);
        }
        let mut word = [0; 4];
        for (byte, stream) in word.iter_mut().zip(&mut self.others) {
            *byte = stream.take(|bytes| bytes.u8()).ok_or(EXHAUSTED)?;
        }
        Ok(u32::from_le_bytes(word))
    }

    /// Appends the rest of the event that begins with `first`, the last of `words` so far.
    fn event(&mut self, first: u32, words: &mut Vec<u32>) -> Result<NextPc, DecodeError> {
        let start = words.len() - 1;
        let packer = &mut self.packer;
        self.events.take(|bytes| packer.unpack(first, bytes, words)).ok_or(MALFORMED)?;
        words.get(start..).and_then(next_pc).ok_or(MALFORMED)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fragments of four paths each, at addresses that their paths lead to in turn. Path 1 calls,
    /// path 2 returns.
    struct Model;

    const PATHS: u32 = 40;
    const EXITS: u32 = 4;

    impl PathModel for Model {
        type Path = u32;

        fn path_info(&self, word: u32) -> Option<u32> {
            (1..=PATHS).contains(&word).then_some(word)
        }

        fn stack_effect(&self, path: &u32) -> StackEffect<'_> {
            match *path {
                1 => StackEffect::Calls { pops: 0, returns: false, target: 2, pushes: &[3] },
                2 => StackEffect::Returns,
                path => StackEffect::Jumps(path % (PATHS / EXITS) + 1),
            }
        }

        fn expected_exit(&self, image: u32, target: LowPc, path: &u32, _: u32) -> Option<u8> {
            let exits = self.exits_at(image, target, u32::MAX)?;
            let number = path.checked_sub(exits.first_path).filter(|&number| number < EXITS)?;
            u8::try_from(EXITS - 1 - number).ok()
        }

        fn exits_at(&self, _: u32, target: LowPc, _: u32) -> Option<FragmentExits> {
            let first_path = target.checked_sub(1)?.checked_mul(EXITS)? + 1;
            Some(FragmentExits { first_path, count: 4 })
        }
    }

    /// Counts paths and events.
    #[derive(Default)]
    struct Counter(u64);

    impl WordCounter<u32> for Counter {
        type Total = (u64, u32);

        fn add_path(&mut self, _: &u32) {
            self.0 += 1;
        }

        fn add_repeated(&mut self, _: &u32, times: u64) {
            self.0 += times;
        }

        fn add_event(&mut self, _: u32, words: &[u32]) -> Option<usize> {
            self.0 += 1;
            word::length(*words.first()?)
        }

        fn finish(self, _: &[u32], last: u32) -> (u64, u32) {
            (self.0, last)
        }

        fn count(self, _: &[u32]) -> Result<(u64, u32), usize> {
            Err(0)
        }
    }

    fn decode_payload(payload: &[u8], count: usize) -> Result<Vec<u32>, DecodeError> {
        let mut words = Vec::new();
        let source = PathPayload {
            model: &Model,
            image: 0,
            sequence: 9,
            codec: crate::CODEC_PREDICT,
            payload,
            length: 4 * count,
        };
        decode(&mut Tables::default(), &source, count, &mut words)?;
        Ok(words)
    }

    /// Paths, some of them many times, and events.
    fn words() -> impl Strategy<Value = (u64, Vec<u32>)> {
        let path =
            (1..=PATHS, prop_oneof![4 => Just(1usize), 1 => 1usize..200]).prop_map(|(path, times)| vec![path; times]);
        let event = any::<u32>().prop_map(|low| vec![word::event(word::RESUME, low), 3, 0, low, 7]);
        proptest::collection::vec(prop_oneof![9 => path, 1 => event], 0..200).prop_map(|parts| {
            let count = |part: &Vec<u32>| if part[0] & EVENT == 0 { part.len() as u64 } else { 1 };
            (parts.iter().map(count).sum(), parts.concat())
        })
    }

    proptest! {
        #[test]
        fn words_come_back_and_are_counted((count, words) in words()) {
            let (payload, total) = encode(&mut Tables::default(), &Model, 0, &words, Counter::default()).unwrap();
            prop_assert_eq!(total.0, count);
            prop_assert_eq!(decode_payload(&payload, words.len()), Ok(words));
        }

        #[test]
        fn damage_does_no_harm((_, words) in words(), at in any::<usize>(), bits in 1u8..) {
            let (mut payload, _) = encode(&mut Tables::default(), &Model, 0, &words, Counter::default()).unwrap();
            let at = at % payload.len();
            payload[at] ^= bits;
            let _ = decode_payload(&payload, words.len());
        }
    }

    #[test]
    fn an_unknown_path_is_reported_by_its_position() {
        for words in [&[1, 2, 99][..], &[3, 3, 0], &[5, 5, EVENT]] {
            assert_eq!(encode(&mut Tables::default(), &Model, 0, words, Counter::default()).err(), Some(2));
        }
    }
}
