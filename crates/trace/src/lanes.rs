//! Codec 4: data guessed lane by lane.
//!
//! The data behind a path is a row of *lanes*, eight bytes each. Each lane of each plan is guessed from what it held before:
//! the last value plus a stride that was seen twice in a row. A mask tells which guesses of eight lanes were wrong. For
//! those a class tells what is stored, in a stream for each class: a small difference to the guess, the place of a value that was
//! met before, or the value itself. Data of events is stored as it is. Everything starts afresh with every chunk.
//!
//! Has to keep up with a target that writes a gigabyte per second. Most rows are guessed right as a whole, and finding
//! that out takes a subtraction per lane and no decision. Where each row is remembered is found out for many rows in advance,
//! so that the processor can fetch them side by side.
//!
//! `docs/format.md` describes it for other implementations; changing anything here changes the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::hint::select_unpredictable;

use wire::word::{self, EVENT};

use crate::bits::{Compressor, put_stream, put_stream_quickly, take_stream};
use crate::bytes::{Bytes, unzigzag, zigzag};
use crate::data::{DataTotal, event_bytes};
use crate::error::Problem;
use crate::span::{Span, Spans};

/// Lanes that are treated in one go.
const GROUP: usize = 8;
const GROUP_BYTES: usize = 8 * GROUP;

/// Classes of what is stored for a lane: from 0, differences of 1 to 4 bytes; from [`HIGH`], those of the upper half of a lane;
/// [`MET`], two bytes, the place of a value; [`VALUE`], the value.
const HIGH: usize = 4;
const MET: usize = 8;
const VALUE: usize = 9;
const CLASSES: usize = 10;
/// Bytes that are stored for each class.
const WIDTHS: [usize; CLASSES] = [1, 2, 3, 4, 1, 2, 3, 4, 2, 8];

/// Values that can be met again.
const MET_BITS: u32 = 12;

/// What is remembered of eight lanes.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    last: [u64; GROUP],
    stride: [u64; GROUP],
    /// The difference of the last two values that was not the stride.
    other: [u64; GROUP],
}

/// What is remembered of all lanes in a chunk.
#[derive(Debug, Default)]
struct Memory {
    /// Of each plan, where its groups are, plus one; 0 if it was not met.
    places: Vec<u32>,
    groups: Vec<Group>,
    /// Values that no guess gave, by a hash of them.
    met: Vec<u64>,
}

impl Memory {
    fn clear(&mut self) {
        self.places.fill(0);
        self.groups.clear();
        self.met.clear();
        self.met.resize(1 << MET_BITS, 0);
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

    #[inline]
    fn met_place(value: u64) -> usize {
        // MET_BITS bits are left.
        #[allow(clippy::cast_possible_truncation)]
        let place = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - MET_BITS)) as usize;
        place
    }
}

/// The lanes, or parts of them, that so many words of data fill: bits of the data, and whether a lane is used at all.
#[allow(clippy::indexing_slicing)] // a wrong index would not compile
const fn used(words: usize) -> ([u64; GROUP], [u64; GROUP]) {
    let (mut bits, mut lanes) = ([0; GROUP], [0; GROUP]);
    let mut word = 0;
    while word < words {
        bits[word / 2] |= if word % 2 == 0 { 0xffff_ffff } else { 0xffff_ffff << 32 };
        lanes[word / 2] = u64::MAX;
        word += 1;
    }
    (bits, lanes)
}

type Used = ([u64; GROUP], [u64; GROUP]);

#[allow(clippy::indexing_slicing)]
const USED: [Used; 2 * GROUP + 1] = {
    let mut all = [([0; GROUP], [0; GROUP]); 2 * GROUP + 1];
    let mut words = 0;
    while words < all.len() {
        all[words] = used(words);
        words += 1;
    }
    all
};

const ALL: &Used = &USED[2 * GROUP];

/// Changes the stride of a lane that was guessed wrong by so much.
#[inline(always)]
fn learn(stride: &mut u64, other: &mut u64, wrong: u64) {
    let moved = wrong.wrapping_add(*stride);
    *stride = select_unpredictable(moved == *other, moved, *stride);
    *other = moved;
}

/// Room for what is known of the lanes of a group that are guessed wrong.
struct Room<'t> {
    wrong: &'t mut [u64; GROUP],
    values: &'t mut [u64; GROUP],
}

/// Compares the lanes of a group with their guesses, and learns. Gives a mask of those that were guessed wrong; by how much,
/// and what they really are, stands side by side in `room`.
#[inline(always)]
fn compare(group: &mut Group, data: &[u8; GROUP_BYTES], (bits, lanes): &Used, room: &mut Room<'_>) -> u8 {
    let (mut mask, mut count) = (0, 0);
    let (values, _) = data.as_chunks::<8>();
    let Group { last, stride, other } = group;
    let lanes = last.iter_mut().zip(stride).zip(other).zip(values).zip(bits).zip(lanes);
    for (number, (((((last, stride), other), value), bits), lane)) in lanes.enumerate() {
        let value = u64::from_le_bytes(*value) & bits | *last & !bits;
        let wrong = value.wrapping_sub(*last).wrapping_sub(*stride) & lane;
        *last = value;
        let is_wrong = wrong != 0;
        if let (Some(wrong_room), Some(value_room)) = (room.wrong.get_mut(count), room.values.get_mut(count)) {
            (*wrong_room, *value_room) = (wrong, value);
        }
        count += usize::from(is_wrong);
        mask |= u8::from(is_wrong) << number;
        let moved = wrong.wrapping_add(*stride);
        *stride = select_unpredictable(is_wrong & (moved == *other), moved, *stride);
        *other = select_unpredictable(is_wrong, moved, *other);
    }
    mask
}

/// The same in a few instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn compare_wide(group: &mut Group, data: &[u8; GROUP_BYTES], (bits, lanes): &Used, room: &mut Room<'_>) -> u8 {
    use std::arch::x86_64::*;
    // SAFETY: all pointers are to arrays of 64 bytes, which may be unaligned.
    let load = |from: *const u8| unsafe { _mm512_loadu_si512(from.cast()) };
    // SAFETY: as above, and the arrays are borrowed mutably.
    let store = |to: *mut u64, value: __m512i| unsafe { _mm512_storeu_si512(to.cast(), value) };
    let [last, stride, other, bits, lanes] =
        [&group.last, &group.stride, &group.other, bits, lanes].map(|array| load(array.as_ptr().cast()));
    // Where a bit of `bits` is set, that of the data, else that of `last`.
    let value = _mm512_ternarylogic_epi64::<0xca>(bits, load(data.as_ptr()), last);
    let wrong = _mm512_and_si512(_mm512_sub_epi64(_mm512_sub_epi64(value, last), stride), lanes);
    let mask = _mm512_test_epi64_mask(wrong, wrong);
    let moved = _mm512_add_epi64(wrong, stride);
    let again = _mm512_mask_cmpeq_epi64_mask(mask, moved, other);
    store(group.last.as_mut_ptr(), value);
    store(group.stride.as_mut_ptr(), _mm512_mask_mov_epi64(stride, again, moved));
    store(group.other.as_mut_ptr(), _mm512_mask_mov_epi64(other, mask, moved));
    store(room.wrong.as_mut_ptr(), _mm512_maskz_compress_epi64(mask, wrong));
    store(room.values.as_mut_ptr(), _mm512_maskz_compress_epi64(mask, value));
    mask
}

/// What the data of a chunk is made into as it comes.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    memory: Memory,
    ahead: Ahead,
    surprises: Surprises,
    events: Vec<u8>,
}

/// What was guessed wrong: a mask for each group, and for each wrong lane by how much and what it really is. Only the first
/// `mask_count` and `count` count, behind them is room.
#[derive(Debug, Default)]
struct Surprises {
    masks: Vec<u8>,
    mask_count: usize,
    wrong: Vec<u64>,
    values: Vec<u64>,
    count: usize,
}

impl Surprises {
    /// Makes room for so many groups.
    #[inline]
    fn make_room(&mut self, groups: usize) {
        if self.masks.len() < self.mask_count + groups || self.wrong.len() < self.count + (groups + 1) * GROUP {
            self.grow(groups);
        }
    }

    #[cold]
    fn grow(&mut self, groups: usize) {
        self.masks.resize((self.mask_count + groups).next_power_of_two(), 0);
        let lanes = (self.count + (groups + 1) * GROUP).next_power_of_two();
        self.wrong.resize(lanes, 0);
        self.values.resize(lanes, 0);
    }
}

/// Rows that are looked for in one go.
const AHEAD: usize = 64;

/// Some paths and where their rows are.
#[derive(Debug)]
struct Ahead {
    count: usize,
    spans: [Span; AHEAD],
    places: [usize; AHEAD],
}

impl Default for Ahead {
    fn default() -> Self {
        Self { count: 0, spans: [Span::NOTHING; AHEAD], places: [0; AHEAD] }
    }
}

impl Ahead {
    /// Looks at the paths at the start of `words`, up to an event; gives the groups that they have together.
    fn look(&mut self, spans: &Spans, words: &[u32], memory: &mut Memory) -> usize {
        self.count = 0;
        for (&word, span) in words.iter().zip(&mut self.spans) {
            if word & EVENT != 0 {
                break;
            }
            *span = spans.get(word).unwrap_or(Span::NOTHING);
            self.count += 1;
        }
        let (mut groups, mut touched) = (0, 0);
        for (span, place) in self.spans.iter().zip(&mut self.places).take(self.count) {
            *place = 0;
            if span.bytes == 0 {
                continue;
            }
            *place = memory.place(span);
            groups += usize::from(span.bytes).div_ceil(GROUP_BYTES);
            touched ^= memory.groups.get(*place).map_or(0, |group| group.last[0]);
        }
        std::hint::black_box(touched);
        groups
    }

    fn rows(&self) -> impl Iterator<Item = (&Span, usize)> {
        self.spans.iter().zip(self.places.iter().copied()).take(self.count)
    }
}

impl Encoder {
    /// Starts a chunk.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        (self.surprises.mask_count, self.surprises.count) = (0, 0);
        self.events.clear();
    }

    /// Appends the data behind `words`. Counts the accesses of paths into `total` and shows each event with its data. Gives the
    /// bytes that belong to the words, or `None` if there are not so many.
    pub(crate) fn append(
        &mut self,
        spans: &Spans,
        words: &[u32],
        data: &[u8],
        total: &mut DataTotal,
        mut event: impl FnMut(usize, &[u8]),
    ) -> Option<usize> {
        let (mut at, mut left) = (0, data);
        while let Some(&word) = words.get(at) {
            if word & EVENT != 0 {
                let (own, behind) = left.split_at_checked(event_bytes(word))?;
                event(at, own);
                self.events.extend_from_slice(own);
                left = behind;
                at += word::length(word)?;
                continue;
            }
            let groups = self.ahead.look(spans, words.get(at..)?, &mut self.memory);
            self.surprises.make_room(groups);
            left = self.rows(spans, left, total)?;
            at += self.ahead.count;
        }
        Some(data.len() - left.len())
    }

    /// Appends the rows that were looked for; their data is at the start of `data`. Gives what is behind it.
    fn rows<'d>(&mut self, spans: &Spans, data: &'d [u8], total: &mut DataTotal) -> Option<&'d [u8]> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it.
            return unsafe { self.rows_wide(spans, data, total) };
        }
        self.rows_with(spans, data, total, compare)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn rows_wide<'d>(&mut self, spans: &Spans, data: &'d [u8], total: &mut DataTotal) -> Option<&'d [u8]> {
        self.rows_with(spans, data, total, |group, data, used, room| compare_wide(group, data, used, room))
    }

    #[inline(always)]
    fn rows_with<'d>(
        &mut self,
        spans: &Spans,
        data: &'d [u8],
        total: &mut DataTotal,
        compare: impl Fn(&mut Group, &[u8; GROUP_BYTES], &Used, &mut Room<'_>) -> u8,
    ) -> Option<&'d [u8]> {
        let Self { ahead, memory, surprises, .. } = self;
        let mut left = data;
        for (span, place) in ahead.rows() {
            let mut bytes = usize::from(span.bytes);
            total.path(spans, span, left);
            let behind = left.get(bytes..)?;
            let groups = memory.groups.get_mut(place..place + bytes.div_ceil(GROUP_BYTES))?;
            for group in groups {
                let count = surprises.count;
                let mut room = Room {
                    wrong: surprises.wrong.get_mut(count..)?.first_chunk_mut()?,
                    values: surprises.values.get_mut(count..)?.first_chunk_mut()?,
                };
                let used = USED.get(bytes / 4).unwrap_or(ALL);
                let mask = match left.first_chunk::<GROUP_BYTES>() {
                    Some(data) => compare(group, data, used, &mut room),
                    None => compare(group, &padded(left), used, &mut room),
                };
                *surprises.masks.get_mut(surprises.mask_count)? = mask;
                surprises.mask_count += 1;
                surprises.count += mask.count_ones() as usize;
                bytes = bytes.saturating_sub(GROUP_BYTES);
                left = left.get(GROUP_BYTES..).unwrap_or(&[]);
            }
            left = behind;
        }
        Some(left)
    }

    /// The payload. In a hurry, what is not easily compressed stays as it is.
    pub(crate) fn finish(&mut self, streams: &mut Streams, compressor: &mut Compressor, in_a_hurry: bool) -> Vec<u8> {
        let Self { memory, surprises, .. } = self;
        let masks = surprises.masks.get(..surprises.mask_count).unwrap_or(&[]);
        streams.fill(surprises, &mut memory.met);
        let mut out = Vec::new();
        for stream in [masks, streams.classes.content(), &self.events] {
            put_stream(&mut out, compressor, stream);
        }
        let put = if in_a_hurry { put_stream_quickly } else { put_stream };
        for stream in &streams.stored {
            put(&mut out, compressor, stream.content());
        }
        out
    }
}

#[cold]
fn padded(data: &[u8]) -> [u8; GROUP_BYTES] {
    let mut all = [0; GROUP_BYTES];
    all.iter_mut().zip(data).for_each(|(byte, &own)| *byte = own);
    all
}

/// Bytes with room behind them.
#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    length: usize,
}

impl Stream {
    /// Starts afresh, with room for so many bytes.
    fn start(&mut self, room: usize) {
        self.length = 0;
        if self.bytes.len() < room {
            self.bytes.resize(room.next_power_of_two(), 0);
        }
    }

    /// Appends the low bytes of `value`; there must be room for eight.
    #[inline(always)]
    fn push(&mut self, value: u64, width: usize) {
        if let Some(room) = self.bytes.get_mut(self.length..self.length + 8) {
            room.copy_from_slice(&value.to_le_bytes());
            self.length += width;
        }
    }

    fn content(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// What is stored of the lanes that were guessed wrong.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    classes: Stream,
    stored: [Stream; CLASSES],
}

impl Streams {
    fn fill(&mut self, surprises: &Surprises, met: &mut [u64]) {
        let Surprises { wrong, values, count, .. } = surprises;
        self.classes.start(count + 8);
        for (stream, width) in self.stored.iter_mut().zip(WIDTHS) {
            stream.start(count * width + 8);
        }
        for (&wrong, &value) in wrong.iter().zip(values).take(*count) {
            self.lane(wrong, value, met);
        }
    }

    /// Without branches: nobody could predict them.
    #[inline(always)]
    fn lane(&mut self, wrong: u64, value: u64, met: &mut [u64]) {
        let is_high = wrong << 32 == 0;
        let part = select_unpredictable(is_high, (wrong.cast_signed() >> 32).cast_unsigned(), wrong);
        let difference = zigzag(part);
        let width = (u64::BITS - difference.leading_zeros()).div_ceil(8) as usize;
        let is_small = width <= 4;
        let place = Memory::met_place(value);
        let Some(known) = met.get_mut(place) else { return };
        let is_met = *known == value;
        *known = select_unpredictable(is_small, *known, value);
        let other_class = select_unpredictable(is_met, MET, VALUE);
        let other_stored = select_unpredictable(is_met, place as u64, value);
        let small_class = width.wrapping_sub(1) + select_unpredictable(is_high, HIGH, 0);
        let class = select_unpredictable(is_small, small_class, other_class);
        let stored = select_unpredictable(is_small, difference, other_stored);
        self.classes.push(class as u64, 1);
        if let (Some(stream), Some(&width)) = (self.stored.get_mut(class), WIDTHS.get(class)) {
            stream.push(stored, width);
        }
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

/// Memory for decoding, kept between chunks.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    memory: Memory,
}

/// The streams of a chunk on their way back.
struct Payload {
    masks: Stored,
    classes: Stored,
    events: Vec<u8>,
    stored: [Stored; CLASSES],
}

impl Payload {
    fn split(payload: &[u8], length: usize) -> Result<Self, Problem> {
        let mut bytes = Bytes::new(payload);
        // Of every eight bytes, or of those behind a single path, nothing takes more than eight.
        let most = 2 * length + 8;
        let (masks, classes) = (take_stream(&mut bytes, most)?, take_stream(&mut bytes, most)?);
        let events = take_stream(&mut bytes, length)?;
        let mut stored: [Stored; CLASSES] = Default::default();
        for stream in &mut stored {
            *stream = Stored::new(take_stream(&mut bytes, most)?);
        }
        Ok(Self { masks: Stored::new(masks), classes: Stored::new(classes), events, stored })
    }

    /// Reads the lanes of a group that were guessed wrong.
    #[inline(always)]
    fn surprise(&mut self, group: &mut Group, mut mask: u8, met: &mut [u64]) -> Option<()> {
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize % GROUP;
            mask &= mask - 1;
            let (last, stride) = (group.last.get_mut(lane)?, group.stride.get_mut(lane)?);
            // `guess` has put the guess there.
            let guess = *last;
            let class = usize::try_from(self.classes.take(1)?).ok()?;
            let stored = self.stored.get_mut(class)?.take(*WIDTHS.get(class)?)?;
            *last = match class {
                MET => *met.get(usize::try_from(stored).ok()?)?,
                VALUE => {
                    *met.get_mut(Memory::met_place(stored))? = stored;
                    stored
                }
                HIGH.. => guess.wrapping_add(unzigzag(stored) << 32),
                _ => guess.wrapping_add(unzigzag(stored)),
            };
            learn(stride, group.other.get_mut(lane)?, last.wrapping_sub(guess));
        }
        Some(())
    }

    fn is_exhausted(&self) -> bool {
        let all = [&self.masks, &self.classes].into_iter().chain(&self.stored);
        all.into_iter().all(Stored::is_exhausted)
    }
}

/// Puts the guesses of the lanes in use into their place.
#[inline(always)]
fn guess(group: &mut Group, lanes: &[u64; GROUP]) {
    for ((last, stride), lane) in group.last.iter_mut().zip(&group.stride).zip(lanes) {
        *last = last.wrapping_add(stride & lane);
    }
}

impl Decoder {
    /// Gives the `length` bytes of data behind `words` back.
    pub(crate) fn decode(
        &mut self,
        spans: &Spans,
        words: &[u32],
        payload: &[u8],
        length: usize,
        data: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let mut payload = Payload::split(payload, length)?;
        self.memory.clear();
        data.clear();
        // A group is written as a whole.
        data.resize(length + GROUP_BYTES, 0);
        let end = self.rows(spans, words, &mut payload, data).ok_or(SHORT)?;
        if end != length || !payload.is_exhausted() {
            return Err(Problem::Decompress("its streams do not fit its paths"));
        }
        data.truncate(length);
        Ok(())
    }

    fn rows(&mut self, spans: &Spans, words: &[u32], payload: &mut Payload, data: &mut [u8]) -> Option<usize> {
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
                self.row(&span, payload, room)?;
                end += bytes;
            }
        }
        (events == payload.events.len()).then_some(end)
    }

    #[inline]
    fn row(&mut self, span: &Span, payload: &mut Payload, room: &mut [u8]) -> Option<()> {
        let place = self.memory.place(span);
        let Memory { groups, met, .. } = &mut self.memory;
        let mut words = usize::from(span.bytes) / 4;
        for (out, group) in room.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().zip(groups.get_mut(place..)?) {
            let (_, lanes) = USED.get(words).unwrap_or(ALL);
            words = words.saturating_sub(2 * GROUP);
            guess(group, lanes);
            let mask = payload.masks.take(1)?.to_le_bytes()[0];
            if mask != 0 {
                payload.surprise(group, mask, met)?;
            }
            for (out, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(&group.last) {
                *out = value.to_le_bytes();
            }
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;
    use wire::code::Access;

    use super::*;
    use crate::model::Plan;

    /// Fragments with these lengths of data behind their exits.
    fn spans(fragments: &[Vec<u32>]) -> Spans {
        let mut spans = Spans::default();
        let mut first_path = 1;
        for lengths in fragments {
            let access = Access { size: 1, value: wire::code::NO_VALUE, ..Access::default() };
            let executed = vec![1; lengths.len()];
            spans.add(&Plan { first_path, lengths, accesses: &[access] }, &executed).unwrap();
            first_path += u32::try_from(lengths.len()).unwrap();
        }
        spans
    }

    fn append(encoder: &mut Encoder, spans: &Spans, words: &[u32], data: &[u8]) -> Option<usize> {
        encoder.append(spans, words, data, &mut DataTotal::default(), |_, _| ())
    }

    fn finish(encoder: &mut Encoder, in_a_hurry: bool) -> Vec<u8> {
        encoder.finish(&mut Streams::default(), &mut Compressor::default(), in_a_hurry)
    }

    fn check(spans: &Spans, words: &[u32], data: &[u8]) -> usize {
        let mut encoder = Encoder::default();
        let (mut decoder, mut back) = (Decoder::default(), vec![7]);
        let mut length = 0;
        // The second time it must not remember the first.
        for in_a_hurry in [true, false] {
            encoder.clear();
            assert_eq!(append(&mut encoder, spans, words, data), Some(data.len()));
            let payload = finish(&mut encoder, in_a_hurry);
            decoder.decode(spans, words, &payload, data.len(), &mut back).unwrap();
            assert!(back == data);
            length = payload.len();
        }
        length
    }

    #[test]
    fn nothing_comes_back() {
        check(&spans(&[]), &[], &[]);
        check(&spans(&[vec![0]]), &[1, 1], &[]);
        check(&spans(&[vec![4]]), &[1], &[1, 2, 3, 4]);
    }

    #[test]
    fn strides_cost_nothing() {
        let spans = spans(&[vec![16, 24]]);
        let count = 100_000u64;
        let words: Vec<u32> = (0..count).map(|turn| 1 + u32::from(turn.is_multiple_of(7))).collect();
        let row =
            |turn: u64| [turn * 8, 5000, turn * 3 + 7].into_iter().take(if turn.is_multiple_of(7) { 3 } else { 2 });
        let data: Vec<u8> = (0..count).flat_map(row).flat_map(u64::to_le_bytes).collect();
        assert!(check(&spans, &words, &data) < 200);
    }

    proptest! {
        #[test]
        fn wide_and_narrow_agree(
            lanes in proptest::collection::vec((0u64..3, 0u64..3, 0u64..3, 0u64..7), GROUP),
            words in 0usize..=2 * GROUP,
        ) {
            let mut group = Group::default();
            let mut data = [0; GROUP_BYTES];
            for (i, (last, stride, other, value)) in lanes.into_iter().enumerate() {
                (group.last[i], group.stride[i], group.other[i]) = (last << 31, stride << 31, other << 31);
                data[8 * i..][..8].copy_from_slice(&(value << 31).to_le_bytes());
            }
            let run = |compare: &dyn Fn(&mut Group, &mut Room<'_>) -> u8| {
                let (mut group, mut wrong, mut values) = (group, [0; GROUP], [0; GROUP]);
                let mask = compare(&mut group, &mut Room { wrong: &mut wrong, values: &mut values });
                let count = mask.count_ones() as usize;
                (mask, wrong[..count].to_vec(), values[..count].to_vec(), group.last, group.stride, group.other)
            };
            let narrow = run(&|group, room| compare(group, &data, &USED[words], room));
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has it.
                let wide = run(&|group, room| unsafe { compare_wide(group, &data, &USED[words], room) });
                prop_assert_eq!(wide, narrow);
            }
        }
    }

    #[test]
    fn data_of_another_length_is_noticed() {
        let spans = spans(&[vec![16]]);
        let mut encoder = Encoder::default();
        assert_eq!(append(&mut encoder, &spans, &[1, 1], &[0; 24]), None);
        assert_eq!(append(&mut encoder, &spans, &[1], &[0; 24]), Some(16));
    }

    /// Rows that are partly guessed right, and events with data.
    fn rows() -> impl Strategy<Value = (Vec<Vec<u32>>, Vec<u32>, Vec<u8>)> {
        let lengths = proptest::collection::vec((0u32..60).prop_map(|words| 4 * words), 1..4);
        let fragments = proptest::collection::vec(lengths, 1..5);
        let value = prop_oneof![
            3 => Just(0u64),
            2 => 0u64..300,
            1 => (0u64..9).prop_map(|value| value << 32),
            1 => (0u64..5).prop_map(|value| value.wrapping_mul(0x1234_5678_9abc_def1)),
            1 => any::<u64>()
        ];
        (fragments, proptest::collection::vec((any::<u32>(), proptest::collection::vec(value, 1..6)), 0..300)).prop_map(
            |(fragments, turns)| {
                let lengths: Vec<u32> = fragments.concat();
                let (mut words, mut data) = (Vec::new(), Vec::new());
                for (choice, values) in turns {
                    let bytes = if choice.is_multiple_of(10) {
                        words.push(word::event(word::SIGNAL, ((choice >> 8) % 9) << 8));
                        words.extend([0; 8]);
                        event_bytes(words[words.len() - 9])
                    } else {
                        let path = choice as usize % lengths.len();
                        words.push(u32::try_from(path).unwrap() + 1);
                        lengths[path] as usize
                    };
                    data.extend(values.iter().flat_map(|value| value.to_le_bytes()).cycle().take(bytes));
                }
                (fragments, words, data)
            },
        )
    }

    proptest! {
        #[test]
        fn rows_come_back((fragments, words, data) in rows()) {
            check(&spans(&fragments), &words, &data);
        }

        #[test]
        fn damage_does_no_harm((fragments, words, data) in rows(), at in any::<usize>(), bits in 1u8.., lost in 0usize..20) {
            let spans = spans(&fragments);
            let mut encoder = Encoder::default();
            encoder.clear();
            append(&mut encoder, &spans, &words, &data).unwrap();
            let mut payload = finish(&mut encoder, false);
            let at = at % payload.len();
            payload[at] ^= bits;
            let mut decoder = Decoder::default();
            let _ = decoder.decode(&spans, &words, &payload, data.len(), &mut Vec::new());
            let shorter = words.len().saturating_sub(lost);
            let _ = decoder.decode(&spans, &words[..shorter], &payload, data.len() / 2, &mut Vec::new());
        }

        #[test]
        fn rubbish_does_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..200), length in 0usize..5000) {
            let spans = spans(&[vec![8, 400], vec![100]]);
            let _ = Decoder::default().decode(&spans, &[1, 2, 3, 9, 1, 2, 3], &payload, length, &mut Vec::new());
        }
    }
}
