//! Decodes rows: guesses them again and corrects the wrong guesses.
//!
//! What is stored for wrong lanes does not depend on any guess. So [`Misses`] takes it out of its
//! streams for many lanes at a time, and rows are then corrected without a branch per lane.

use wire::word;

use super::lookahead::RowLookahead;
use super::{
    DataLayout, DataLayouts, GROUP, GROUP_BYTES, GROUP_WORDS, Group, HIGH, LaneTable, SEEN, SEEN_BITS, SEEN_BYTES,
    SeenValues, Sums, UsedLanes, VALUE, VALUE_BYTES, extended, seen_index, shortened,
};
use crate::bytes::{ByteReader, unzigzag};
use crate::error::DecodeError;
use crate::streams::take_stream_into;
use crate::words::{Word, Words};

const SHORT: DecodeError = DecodeError::Malformed("one of its streams is too short");
const STREAMS: usize = 7;

/// Memory for decoding, kept between chunks.
#[derive(Debug)]
pub struct Decoder<L> {
    memory: LaneTable,
    lookahead: RowLookahead<L>,
    misses: Misses,
    buffers: [Vec<u8>; STREAMS],
}

/// Reads a stream, and zeros behind its end. [`Self::is_exhausted`] says at the end whether all was
/// read and no more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamReader<'p> {
    bytes: &'p [u8],
    at: usize,
}

impl<'p> StreamReader<'p> {
    pub(super) fn new(bytes: &'p [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next bytes and stays.
    #[inline(always)]
    pub(super) fn peek<const N: usize>(&self) -> [u8; N] {
        match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk()) {
            Some(bytes) => *bytes,
            None => self.peek_at_end(),
        }
    }

    #[cold]
    fn peek_at_end<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.iter_mut().zip(self.bytes.iter().skip(self.at)).for_each(|(byte, &own)| *byte = own);
        bytes
    }

    #[inline(always)]
    pub(super) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads a number of `width` bytes, at most eight.
    #[inline(always)]
    fn take(&mut self, width: usize) -> u64 {
        let number = u64::from_le_bytes(self.peek());
        self.pass(width);
        number << (64 - 8 * width) >> (64 - 8 * width)
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// The streams of a chunk that is being decoded.
#[derive(Debug)]
struct Payload<'p> {
    masks: Masks<'p>,
    events: &'p [u8],
    lanes: Lanes<'p>,
}

/// Flags that say of each group whether a lane was guessed wrong, and masks that say which.
#[derive(Clone, Copy, Debug)]
struct Masks<'p> {
    flags: &'p [u8],
    flag_at: usize,
    masks: &'p [u8],
    mask_at: usize,
}

impl Masks<'_> {
    /// The lanes of the next group that were guessed wrong.
    #[inline(always)]
    fn take(&mut self) -> Option<u8> {
        let flag = self.flags.get(self.flag_at / 8)? >> (self.flag_at % 8) & 1;
        self.flag_at += 1;
        let mask = self.masks.get(self.mask_at).copied().unwrap_or(0) & 0u8.wrapping_sub(flag);
        self.mask_at += usize::from(flag);
        Some(mask)
    }

    /// Lanes that were guessed wrong.
    fn lanes(&self) -> usize {
        self.masks.iter().map(|mask| mask.count_ones() as usize).sum()
    }

    fn is_exhausted(&self) -> bool {
        self.flag_at.div_ceil(8) == self.flags.len() && self.mask_at == self.masks.len()
    }
}

/// What is stored for lanes that were guessed wrong.
#[derive(Debug)]
pub(super) struct Lanes<'p> {
    /// Two in a byte.
    pub(super) classes: StreamReader<'p>,
    pub(super) differences: StreamReader<'p>,
    pub(super) places: StreamReader<'p>,
    pub(super) values: StreamReader<'p>,
    /// Lanes still to come.
    pub(super) left: usize,
}

impl<'p> Payload<'p> {
    fn split(payload: &'p [u8], length: usize, buffers: &'p mut [Vec<u8>; STREAMS]) -> Result<Self, DecodeError> {
        let mut bytes = ByteReader::new(payload);
        // Of every eight bytes, or of those behind a single path, no stream takes more than eight.
        let most = 2 * length + 8;
        let [flags, classes, masks, events, differences, places, values] = buffers;
        let mut take = |buffer: &'p mut Vec<u8>, most| take_stream_into(&mut bytes, most, buffer);
        let (flags, classes, masks) = (take(flags, most)?, take(classes, most)?, take(masks, most)?);
        let events = take(events, length)?;
        let mut stored = |buffer| Ok(StreamReader::new(take(buffer, most)?));
        let (differences, places, values) = (stored(differences)?, stored(places)?, stored(values)?);
        let masks = Masks { flags, flag_at: 0, masks, mask_at: 0 };
        let left = masks.lanes();
        let lanes = Lanes { classes: StreamReader::new(classes), differences, places, values, left };
        Ok(Self { masks, events, lanes })
    }

    fn is_exhausted(&self) -> bool {
        let Lanes { classes, differences, places, values, left, .. } = &self.lanes;
        let streams = [classes, differences, places, values];
        self.masks.is_exhausted() && *left == 0 && streams.into_iter().all(StreamReader::is_exhausted)
    }
}

/// Lanes that are taken out of their streams in one go: as many as stay in the processor's nearest
/// cache.
const BATCH: usize = 512;
const ROOM: usize = BATCH + 2 * GROUP;

/// The values of lanes that were guessed wrong. Those from `at` to `count` are still to be used;
/// behind them is room.
#[derive(Debug)]
struct Misses {
    /// The value, or its difference to the guess.
    numbers: Box<[u64; ROOM]>,
    /// Which bits of the guess are to be added: all or none.
    guessed: Box<[u64; ROOM]>,
    at: usize,
    count: usize,
    seen: Box<SeenValues>,
}

impl Default for Misses {
    fn default() -> Self {
        let room = || Box::new([0; ROOM]);
        Self { numbers: room(), guessed: room(), at: 0, count: 0, seen: Box::new([0; 1 << SEEN_BITS]) }
    }
}

/// The next lanes that were guessed wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextMisses<'t> {
    pub numbers: &'t [u64; GROUP],
    pub guessed: &'t [u64; GROUP],
}

/// Room for lanes that were guessed wrong.
pub(super) struct MissBuffer<'t> {
    pub numbers: &'t mut [u64],
    pub guessed: &'t mut [u64],
}

impl Misses {
    fn clear(&mut self) {
        (self.at, self.count) = (0, 0);
        self.seen.fill(0);
    }

    /// Takes `count` lanes, with others behind them. `None` if there are fewer.
    #[inline(always)]
    fn take(&mut self, lanes: &mut Lanes<'_>, count: usize) -> Option<NextMisses<'_>> {
        if self.count - self.at < count {
            self.refill(lanes).filter(|&available| available >= count)?;
        }
        let numbers = self.numbers.get(self.at..)?.first_chunk()?;
        let guessed = self.guessed.get(self.at..)?.first_chunk()?;
        self.at += count;
        Some(NextMisses { numbers, guessed })
    }

    /// Takes lanes out of their streams, a multiple of eight or all. Returns the number of lanes
    /// that can be used now.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, lanes: &mut Lanes<'_>) -> Option<usize> {
        self.numbers.copy_within(self.at..self.count, 0);
        self.guessed.copy_within(self.at..self.count, 0);
        (self.at, self.count) = (0, self.count - self.at);
        let more = lanes.left.min(BATCH);
        lanes.left -= more;
        let to = self.count..self.count + more;
        let room = MissBuffer { numbers: self.numbers.get_mut(to.clone())?, guessed: self.guessed.get_mut(to)? };
        lanes.unsort(&mut self.seen, room)?;
        self.count += more;
        Some(self.count)
    }
}

impl Lanes<'_> {
    /// Takes the next lanes. The number of lanes before them is a multiple of eight. `None` if a
    /// class or an index is impossible.
    fn unsort(&mut self, seen: &mut SeenValues, room: MissBuffer<'_>) -> Option<()> {
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_supported() {
            // SAFETY: `is_supported` has detected all features that the function enables.
            return unsafe { super::wide::unsort(self, seen, room) };
        }
        self.unsort_each(seen, room)
    }

    pub(super) fn unsort_each(&mut self, seen: &mut SeenValues, room: MissBuffer<'_>) -> Option<()> {
        let (mut classes, mut left) = (0, 0);
        for (number, guessed) in room.numbers.iter_mut().zip(room.guessed) {
            if left == 0 {
                (classes, left) = (self.classes.take(1), 2);
            }
            (*number, *guessed) = self.lane(seen, usize::try_from(classes & 15).ok()?)?;
            (classes, left) = (classes >> 4, left - 1);
        }
        Some(())
    }

    /// Takes a lane of this class.
    fn lane(&mut self, seen: &mut SeenValues, class: usize) -> Option<(u64, u64)> {
        Some(match class {
            0..HIGH => (unzigzag(self.differences.take(class + 1)), u64::MAX),
            HIGH..SEEN => (unzigzag(self.differences.take(class + 1 - HIGH)) << 32, u64::MAX),
            SEEN => (*seen.get(usize::try_from(self.places.take(SEEN_BYTES)).ok()?)?, 0),
            VALUE => {
                let value = self.values.take(VALUE_BYTES);
                *seen.get_mut(seen_index(value))? = value;
                (value, 0)
            }
            _ => return None,
        })
    }
}

/// Guesses the first words of a group, at most as many as it has, corrects the lanes of `mask`, and
/// learns. Writes the lanes to `out`.
#[inline(always)]
pub(super) fn restore(
    group: &mut Group,
    words: usize,
    mask: u8,
    next: NextMisses<'_>,
    sums: &mut Sums,
    out: &mut [u8; GROUP_BYTES],
) {
    let UsedLanes { bits, lanes } = UsedLanes::of(words);
    let Group { last, stride, other } = group;
    for ((last, &stride), lane) in last.iter_mut().zip(&*stride).zip(lanes) {
        *last = last.wrapping_add(extended(stride) & lane);
    }
    let mut misses = next.numbers.iter().zip(next.guessed);
    for (number, ((last, stride), other)) in last.iter_mut().zip(stride).zip(other).enumerate() {
        if mask >> number & 1 == 0 {
            continue;
        }
        let Some((number, guessed)) = misses.next() else { break };
        let guess = *last;
        *last = (guess & guessed).wrapping_add(*number);
        let moved = shortened(last.wrapping_sub(guess).wrapping_add(extended(*stride)));
        if moved == *other {
            *stride = moved;
        }
        *other = moved;
    }
    sums.add(last, bits);
    for (out, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(last) {
        *out = value.to_le_bytes();
    }
}

/// A chunk that is being decoded.
struct ChunkDecoder<'p, 'd> {
    payload: Payload<'p>,
    sums: Sums,
    data: &'d mut [u8],
    /// How much of the data is there.
    end: usize,
}

impl<L: DataLayout> Default for Decoder<L> {
    fn default() -> Self {
        Self {
            memory: LaneTable::default(),
            lookahead: RowLookahead::default(),
            misses: Misses::default(),
            buffers: Default::default(),
        }
    }
}

impl<L: DataLayout> Decoder<L> {
    /// Decodes the `length` bytes of data behind `words` into `data`, and returns their checksum.
    pub fn decode(
        &mut self,
        layouts: &impl DataLayouts<Layout = L>,
        words: &[u32],
        payload: &[u8],
        length: usize,
        data: &mut Vec<u8>,
    ) -> Result<u32, DecodeError> {
        let Self { memory, lookahead, misses, buffers } = self;
        let payload = Payload::split(payload, length, buffers)?;
        memory.clear();
        misses.clear();
        // A group is written as a whole. Old bytes are overwritten, or there is an error.
        data.resize(length + GROUP_BYTES, 0);
        let mut decoding = ChunkDecoder { payload, sums: Sums::default(), data, end: 0 };
        let mut rows = RowDecoder { memory, lookahead, misses };
        rows.all(layouts, words, &mut decoding).ok_or(SHORT)?;
        if decoding.end != length || !decoding.payload.is_exhausted() || misses.at != misses.count {
            return Err(DecodeError::Malformed("its streams do not fit its paths"));
        }
        let checksum = decoding.sums.finish(decoding.payload.events);
        data.truncate(length);
        Ok(checksum)
    }
}

/// Decodes the rows of paths.
struct RowDecoder<'m, L> {
    memory: &'m mut LaneTable,
    lookahead: &'m mut RowLookahead<L>,
    misses: &'m mut Misses,
}

impl<L: DataLayout> RowDecoder<'_, L> {
    fn all(
        &mut self,
        layouts: &impl DataLayouts<Layout = L>,
        words: &[u32],
        decoding: &mut ChunkDecoder<'_, '_>,
    ) -> Option<()> {
        let (mut rest, mut events) = (Words::new(words), decoding.payload.events);
        while let Some(word) = rest.peek() {
            if let Word::Event(event) = word {
                let (own, behind) = events.split_at_checked(event.data_bytes())?;
                let to = decoding.end..decoding.end + own.len();
                decoding.data.get_mut(to)?.copy_from_slice(own);
                decoding.end += own.len();
                events = behind;
                rest.skip_words(word::length(event.first())?);
                continue;
            }
            self.lookahead.look(layouts, rest.rest(), self.memory);
            self.some(decoding)?;
            rest.skip_words(self.lookahead.count());
        }
        events.is_empty().then_some(())
    }

    /// Decodes the rows that were looked up.
    fn some(&mut self, decoding: &mut ChunkDecoder<'_, '_>) -> Option<()> {
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_supported() {
            // SAFETY: `is_supported` has detected all features that the function enables.
            return unsafe { self.some_wide(decoding) };
        }
        self.some_with(decoding, restore)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    fn some_wide(&mut self, decoding: &mut ChunkDecoder<'_, '_>) -> Option<()> {
        self.some_with(decoding, |group, words, mask, next, sums, out| {
            super::wide::restore(group, words, mask, next, sums, out)
        })
    }

    #[inline(always)]
    fn some_with(
        &mut self,
        decoding: &mut ChunkDecoder<'_, '_>,
        restore: impl Fn(&mut Group, usize, u8, NextMisses<'_>, &mut Sums, &mut [u8; GROUP_BYTES]),
    ) -> Option<()> {
        let ChunkDecoder { payload, sums, data, end } = decoding;
        // In local variables, so that the compiler knows that no store changes them.
        let (mut own_sums, mut masks) = (*sums, payload.masks);
        for (layout, place) in self.lookahead.rows() {
            let bytes = usize::from(layout.bytes());
            let groups = self.memory.groups.get_mut(place..place + bytes.div_ceil(GROUP_BYTES))?;
            // Behind this row, too, there must be room for a group.
            let room = data.get_mut(*end..*end + groups.len() * GROUP_BYTES)?;
            let mut words = bytes / 4;
            for (out, group) in room.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().zip(groups) {
                let mask = masks.take()?;
                let next = self.misses.take(&mut payload.lanes, mask.count_ones() as usize)?;
                restore(group, words, mask, next, &mut own_sums, out);
                words = words.saturating_sub(GROUP_WORDS);
            }
            *end += bytes;
        }
        (*sums, payload.masks) = (own_sums, masks);
        Some(())
    }
}
