//! The decoder: makes the same guesses as the encoder, and takes from the streams which of them
//! were right.

use wire::word::{self, EVENT};

use crate::bits::BitReader;
use crate::bytes::ByteReader;
use crate::error::DecodeError;
use crate::event::{NextPc, Packer, next_pc};
use crate::path::PathPayload;
use crate::streams::take_stream;

use super::PredictionTables;
use super::context::{Calls, target_behind};
use super::guess::{BIT_STREAMS, Guesses, IS_EVENT, IS_EXPECTED, SURE};
use super::model::{LowPc, PathModel, StackEffect};

/// Decodes `count` words into `words`, which is empty.
pub fn decode<M: PathModel>(
    tables: &mut PredictionTables,
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
        let Some(path) = word::path(word) else {
            let next = stored.event(word, words)?;
            context.target = target_behind(next, context.target);
            continue;
        };
        let Some(info) = source.model.path_info(path) else { return Err(UNDEFINED) };
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
        // Of each word of the chunk a stream holds a varint, a byte or a bit at most. So the many
        // streams of bits take little memory, whatever their lengths say.
        let (varints, bits_max) = (10 * count + 10, count.div_ceil(8));
        let mut take = |most| take_stream(&mut bytes, most);
        let (runs, exits, events) = (take(varints)?, take(count)?, take(varints)?);
        let mut others = [(); 4].map(|()| OwnedReader::default());
        for other in &mut others {
            *other = OwnedReader::new(take(count)?);
        }
        let bits = (0..BIT_STREAMS).map(|_| take(bits_max).map(BitReader::new)).collect::<Result<_, _>>()?;
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
            return Ok(exits.fragment.path(last.wrapping_sub(exit)).get() & !EVENT);
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
