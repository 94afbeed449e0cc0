//! Codec 4: data guessed lane by lane.
//!
//! The data behind a path is a row of *lanes*, eight bytes each. Each lane of each plan is guessed from what it held before:
//! the last value plus a stride that was seen twice in a row. A mask tells which guesses of eight lanes were wrong. For
//! those a class tells what is stored: a small difference to the guess, the place of a value that was met before, or the value
//! itself. Data of events is stored as it is. Everything starts afresh with every chunk.
//!
//! Has to keep up with a target that writes gigabytes per second: [`encode`] looks at everything as it comes, while it is
//! still in the processor's cache, and keeps what was guessed wrong; [`sort`] puts that into streams.
//!
//! `docs/format.md` describes it for other implementations; changing anything here changes the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod encode;
mod sort;
#[cfg(target_arch = "x86_64")]
mod wide;

use wire::word::{self, EVENT};

pub(crate) use encode::Encoder;

use crate::bits::take_stream;
use crate::bytes::{Bytes, unzigzag};
use crate::container::crc;
use crate::data::event_bytes;
use crate::error::Problem;
use crate::span::{Span, Spans};

/// Lanes that are treated in one go.
const GROUP: usize = 8;
const GROUP_BYTES: usize = 8 * GROUP;
const GROUP_WORDS: usize = 2 * GROUP;

/// Classes of what is stored for a lane: from 0, differences of 1 to 4 bytes; from [`HIGH`], those of the upper half of a lane;
/// [`MET`], two bytes, the place of a value; [`VALUE`], the value.
const HIGH: usize = 4;
const MET: usize = 8;
const VALUE: usize = 9;
/// Bytes of differences at most.
const SMALL_BYTES_MAX: usize = 4;
const MET_BYTES: usize = 2;
const VALUE_BYTES: usize = 8;

/// Values that can be met again.
const MET_BITS: u32 = 12;
/// They are found by the upper bits of the product with this.
const MET_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Values that no guess gave, by a hash of them.
type Met = [u64; 1 << MET_BITS];

#[inline]
fn met_place(value: u64) -> usize {
    // MET_BITS bits are left.
    #[allow(clippy::cast_possible_truncation)]
    let place = (value.wrapping_mul(MET_FACTOR) >> (64 - MET_BITS)) as usize;
    place
}

/// What is remembered of eight lanes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Group {
    last: [u64; GROUP],
    /// Strides are short; of what is not, the low half is kept.
    stride: [u32; GROUP],
    /// The difference of the last two values that was not the stride.
    other: [u32; GROUP],
}

/// The stride as the number that it stands for.
#[inline(always)]
fn extended(stride: u32) -> u64 {
    i64::from(stride.cast_signed()).cast_unsigned()
}

/// The difference as it is remembered.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // so it is meant
fn shortened(moved: u64) -> u32 {
    moved as u32
}

/// What is remembered of all lanes in a chunk.
#[derive(Debug, Default)]
struct Memory {
    /// Of each plan, where its groups are, plus one; 0 if it was not met.
    places: Vec<u32>,
    groups: Vec<Group>,
}

impl Memory {
    fn clear(&mut self) {
        self.places.fill(0);
        self.groups.clear();
    }

    /// Where the groups of a plan are. They are as many as the longest data so far needs.
    #[inline]
    fn place(&mut self, span: &Span) -> usize {
        match self.places.get(span.plan as usize) {
            Some(&place) if place != 0 => place as usize - 1,
            _ => self.new_place(span),
        }
    }

    #[cold]
    fn new_place(&mut self, span: &Span) -> usize {
        let plan = span.plan as usize;
        if plan >= self.places.len() {
            self.places.resize(plan + 1024, 0);
        }
        let place = self.groups.len();
        if let (Some(slot), Ok(number)) = (self.places.get_mut(plan), u32::try_from(place + 1)) {
            *slot = number;
        }
        self.groups.resize(place + usize::from(span.most).div_ceil(GROUP_BYTES), Group::default());
        place
    }
}

/// The lanes, or parts of them, that so many words of data fill: bits of the data, and whether a lane is used at all.
#[derive(Clone, Copy, Debug)]
struct Used {
    bits: [u64; GROUP],
    lanes: [u64; GROUP],
}

impl Used {
    #[allow(clippy::indexing_slicing)] // a wrong index would not compile
    const fn new(words: usize) -> Self {
        let (mut bits, mut lanes) = ([0; GROUP], [0; GROUP]);
        let mut word = 0;
        while word < words {
            bits[word / 2] |= if word % 2 == 0 { 0xffff_ffff } else { 0xffff_ffff << 32 };
            lanes[word / 2] = u64::MAX;
            word += 1;
        }
        Self { bits, lanes }
    }

    #[inline]
    fn of(words: usize) -> &'static Self {
        #[allow(clippy::indexing_slicing)]
        const ALL: [Used; GROUP_WORDS + 1] = {
            let mut all = [Used::new(0); GROUP_WORDS + 1];
            let mut words = 0;
            while words < all.len() {
                all[words] = Used::new(words);
                words += 1;
            }
            all
        };
        const WHOLE: &Used = &ALL[GROUP_WORDS];
        ALL.get(words).unwrap_or(WHOLE)
    }
}

/// A checksum that costs nearly nothing: of each of eight lanes a sum, turned by a bit before something is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums([u64; GROUP]);

impl Sums {
    #[inline(always)]
    fn add(&mut self, values: &[u64; GROUP], bits: &[u64; GROUP]) {
        for ((sum, value), bits) in self.0.iter_mut().zip(values).zip(bits) {
            *sum = sum.rotate_left(1).wrapping_add(value & bits);
        }
    }

    /// The checksum of a chunk with this data of events.
    fn finish(&self, events: &[u8]) -> u32 {
        let mut bytes = [0; GROUP_BYTES];
        for (bytes, sum) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = sum.to_le_bytes();
        }
        crc(&[&bytes, events])
    }
}

const SHORT: Problem = Problem::Decompress("one of its streams is too short");

/// A stream on its way back, with eight bytes more than it has.
#[derive(Debug, Default)]
struct Stored {
    bytes: Vec<u8>,
    at: usize,
}

impl Stored {
    fn new(mut bytes: Vec<u8>) -> Self {
        bytes.extend([0; 8]);
        Self { bytes, at: 0 }
    }

    #[inline(always)]
    fn take(&mut self, width: usize) -> Option<u64> {
        let bytes = self.bytes.get(self.at..self.at + 8)?.first_chunk::<8>()?;
        self.at += width;
        Some(u64::from_le_bytes(*bytes) << (64 - 8 * width) >> (64 - 8 * width))
    }

    fn is_exhausted(&self) -> bool {
        self.at + 8 == self.bytes.len()
    }
}

/// A stream of parts of bytes, the lowest first.
#[derive(Debug, Default)]
struct Parts {
    bytes: Vec<u8>,
    at: usize,
}

impl Parts {
    /// The next part of so many bits.
    #[inline(always)]
    fn take(&mut self, bits: usize) -> Option<u8> {
        let place = self.at * bits;
        self.at += 1;
        Some(self.bytes.get(place / 8)? >> (place % 8) & !(0xff << bits))
    }

    fn is_exhausted(&self, bits: usize) -> bool {
        (self.at * bits).div_ceil(8) == self.bytes.len()
    }
}

/// Memory for decoding, kept between chunks.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    memory: Memory,
}

/// The streams of a chunk on their way back.
struct Payload {
    /// Of each group, whether a lane was guessed wrong, and of those, which.
    flags: Parts,
    masks: Stored,
    classes: Parts,
    events: Vec<u8>,
    differences: Stored,
    places: Stored,
    values: Stored,
    met: Box<Met>,
}

impl Payload {
    fn split(payload: &[u8], length: usize) -> Result<Self, Problem> {
        let mut bytes = Bytes::new(payload);
        // Of every eight bytes, or of those behind a single path, nothing takes more than eight.
        let most = 2 * length + 8;
        let mut parts = || Ok(Parts { bytes: take_stream(&mut bytes, most)?, at: 0 });
        let (flags, classes) = (parts()?, parts()?);
        let masks = Stored::new(take_stream(&mut bytes, most)?);
        let events = take_stream(&mut bytes, length)?;
        let mut stored = || Ok(Stored::new(take_stream(&mut bytes, most)?));
        let (differences, places, values) = (stored()?, stored()?, stored()?);
        Ok(Self { flags, masks, classes, events, differences, places, values, met: Box::new([0; 1 << MET_BITS]) })
    }

    /// Reads which lanes of a group were guessed wrong.
    #[inline(always)]
    fn mask(&mut self) -> Option<u8> {
        if self.flags.take(1)? == 0 { Some(0) } else { Some(self.masks.take(1)?.to_le_bytes()[0]) }
    }

    /// Reads the lanes of a group that were guessed wrong.
    #[inline(always)]
    fn surprise(&mut self, group: &mut Group, mut mask: u8) -> Option<()> {
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize % GROUP;
            mask &= mask - 1;
            let last = group.last.get_mut(lane)?;
            // `guess` has put the guess there.
            let guess = *last;
            let class = usize::from(self.classes.take(4)?);
            *last = match class {
                0..HIGH => guess.wrapping_add(unzigzag(self.differences.take(class + 1)?)),
                HIGH..MET => guess.wrapping_add(unzigzag(self.differences.take(class + 1 - HIGH)?) << 32),
                MET => *self.met.get(usize::try_from(self.places.take(MET_BYTES)?).ok()?)?,
                VALUE => {
                    let value = self.values.take(VALUE_BYTES)?;
                    *self.met.get_mut(met_place(value))? = value;
                    value
                }
                _ => return None,
            };
            let (stride, other) = (group.stride.get_mut(lane)?, group.other.get_mut(lane)?);
            let moved = shortened(last.wrapping_sub(guess).wrapping_add(extended(*stride)));
            if moved == *other {
                *stride = moved;
            }
            *other = moved;
        }
        Some(())
    }

    fn is_exhausted(&self) -> bool {
        self.flags.is_exhausted(1)
            && self.classes.is_exhausted(4)
            && [&self.masks, &self.differences, &self.places, &self.values].into_iter().all(Stored::is_exhausted)
    }
}

/// Puts the guesses of the lanes in use into their place.
#[inline(always)]
fn guess(group: &mut Group, lanes: &[u64; GROUP]) {
    for ((last, &stride), lane) in group.last.iter_mut().zip(&group.stride).zip(lanes) {
        *last = last.wrapping_add(extended(stride) & lane);
    }
}

impl Decoder {
    /// Gives the `length` bytes of data behind `words` back, and their checksum.
    pub(crate) fn decode(
        &mut self,
        spans: &Spans,
        words: &[u32],
        payload: &[u8],
        length: usize,
        data: &mut Vec<u8>,
    ) -> Result<u32, Problem> {
        let mut payload = Payload::split(payload, length)?;
        self.memory.clear();
        data.clear();
        // A group is written as a whole.
        data.resize(length + GROUP_BYTES, 0);
        let mut sums = Sums::default();
        let end = self.rows(spans, words, &mut payload, data, &mut sums).ok_or(SHORT)?;
        if end != length || !payload.is_exhausted() {
            return Err(Problem::Decompress("its streams do not fit its paths"));
        }
        data.truncate(length);
        Ok(sums.finish(&payload.events))
    }

    fn rows(
        &mut self,
        spans: &Spans,
        words: &[u32],
        payload: &mut Payload,
        data: &mut [u8],
        sums: &mut Sums,
    ) -> Option<usize> {
        let (mut at, mut end, mut events) = (0, 0, 0);
        while let Some(&word) = words.get(at) {
            at += word::length(word)?;
            if word & EVENT != 0 {
                let bytes = event_bytes(word);
                let own = payload.events.get(events..events + bytes)?;
                data.get_mut(end..end + bytes)?.copy_from_slice(own);
                (events, end) = (events + bytes, end + bytes);
            } else if let Some(span) = spans.get(word).filter(|span| span.bytes != 0) {
                let bytes = usize::from(span.bytes);
                // Behind this row, too, there must be room for a group.
                let room = data.get_mut(end..end + bytes.next_multiple_of(GROUP_BYTES))?;
                self.row(&span, payload, room, sums)?;
                end += bytes;
            }
        }
        (events == payload.events.len()).then_some(end)
    }

    #[inline]
    fn row(&mut self, span: &Span, payload: &mut Payload, room: &mut [u8], sums: &mut Sums) -> Option<()> {
        let place = self.memory.place(span);
        let mut words = usize::from(span.bytes) / 4;
        for (out, group) in room.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().zip(self.memory.groups.get_mut(place..)?) {
            let used = Used::of(words);
            words = words.saturating_sub(GROUP_WORDS);
            guess(group, &used.lanes);
            let mask = payload.mask()?;
            if mask != 0 {
                payload.surprise(group, mask)?;
            }
            sums.add(&group.last, &used.bits);
            for (out, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(&group.last) {
                *out = value.to_le_bytes();
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
