//! Encodes rows: compares them with their guesses as they come, and keeps the misses.
//!
//! Most rows are guessed right as a whole, which takes a subtraction per lane and one branch per
//! eight to find out.

use std::hint::select_unpredictable;

use wire::word;

use super::lookahead::RowLookahead;
use super::sort::Streams;
use super::{
    DataLayout, DataLayouts, GROUP, GROUP_BYTES, GROUP_WORDS, Group, LaneTable, Sums, UsedLanes, extended, shortened,
};
use crate::streams::{Compressor, put_last_stream, put_stream, put_stream_quickly};
use crate::words::{Word, Words};

/// Encodes the data of a chunk as it comes.
#[derive(Debug)]
pub struct Encoder<L> {
    memory: LaneTable,
    lookahead: RowLookahead<L>,
    misses: Misses,
    streams: Streams,
    sums: Sums,
    events: Vec<u8>,
}

/// The misses: a mask for each group, and for each wrong lane the difference to its guess and its
/// value, until they are sorted. Only the first `mask_count` and `count` entries are in use.
#[derive(Debug, Default)]
struct Misses {
    masks: Vec<u8>,
    mask_count: usize,
    wrong: Vec<u64>,
    values: Vec<u64>,
    count: usize,
}

/// Misses that are sorted in one go: as many as stay in the processor's nearest cache.
const BATCH: usize = 1024;

impl Misses {
    /// Makes room for `groups` groups.
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

    /// Moves lanes into streams, a multiple of eight of them or all.
    fn sort(&mut self, streams: &mut Streams, all: bool) {
        let count = if all { self.count } else { self.count - self.count % GROUP };
        if let (Some(wrong), Some(values)) = (self.wrong.get(..count), self.values.get(..count)) {
            streams.add(wrong, values);
        }
        self.wrong.copy_within(count..self.count, 0);
        self.values.copy_within(count..self.count, 0);
        self.count -= count;
    }
}

/// Room for the wrong lanes of a group.
pub(super) struct MissBuffer<'t> {
    pub wrong: &'t mut [u64; GROUP],
    pub values: &'t mut [u64; GROUP],
}

/// Compares the first words of `data`, at most as many as a group has, with their guesses, and
/// learns. Returns a mask of the wrong lanes; their differences and values stand side by side in
/// `room`.
#[inline(always)]
pub(super) fn compare(
    group: &mut Group,
    data: &[u8; GROUP_BYTES],
    words: usize,
    sums: &mut Sums,
    room: &mut MissBuffer<'_>,
) -> u8 {
    let UsedLanes { bits, lanes } = UsedLanes::of(words);
    let (mut mask, mut count) = (0, 0);
    let (values, _) = data.as_chunks::<8>();
    let Group { last, stride, other } = group;
    let lanes = last.iter_mut().zip(stride).zip(other).zip(values).zip(bits).zip(lanes);
    for (number, (((((last, stride), other), value), bits), lane)) in lanes.enumerate() {
        let value = u64::from_le_bytes(*value) & bits | *last & !bits;
        let wrong = value.wrapping_sub(*last).wrapping_sub(extended(*stride)) & lane;
        *last = value;
        let is_wrong = wrong != 0;
        if let (Some(wrong_room), Some(value_room)) = (room.wrong.get_mut(count), room.values.get_mut(count)) {
            (*wrong_room, *value_room) = (wrong, value);
        }
        count += usize::from(is_wrong);
        mask |= u8::from(is_wrong) << number;
        let moved = shortened(wrong.wrapping_add(extended(*stride)));
        *stride = select_unpredictable(is_wrong & (moved == *other), moved, *stride);
        *other = select_unpredictable(is_wrong, moved, *other);
    }
    sums.add(last, bits);
    mask
}

impl<L: DataLayout> Default for Encoder<L> {
    fn default() -> Self {
        Self {
            memory: LaneTable::default(),
            lookahead: RowLookahead::default(),
            misses: Misses::default(),
            streams: Streams::default(),
            sums: Sums::default(),
            events: Vec::new(),
        }
    }
}

impl<L: DataLayout> Encoder<L> {
    /// Starts a chunk.
    pub fn clear(&mut self) {
        self.memory.clear();
        (self.misses.mask_count, self.misses.count) = (0, 0);
        self.streams.clear();
        self.sums = Sums::default();
        self.events.clear();
    }

    /// Appends the data behind `words`. Calls `path` with the layout of each path and with the data
    /// from its start on, and `event` with the position of each event among the words and with its
    /// data. Returns the number of bytes that belong to the words, or `None` if there are not so
    /// many.
    pub fn append(
        &mut self,
        layouts: &impl DataLayouts<Layout = L>,
        words: &[u32],
        data: &[u8],
        mut path: impl FnMut(&L, &[u8]),
        mut event: impl FnMut(usize, &[u8]),
    ) -> Option<usize> {
        let (mut rest, mut left) = (Words::new(words), data);
        while let Some(word) = rest.peek() {
            if let Word::Event(next) = word {
                let (own, behind) = left.split_at_checked(next.data_bytes())?;
                event(words.len() - rest.rest().len(), own);
                self.events.extend_from_slice(own);
                left = behind;
                rest.skip_words(word::length(next.first())?);
                continue;
            }
            let groups = self.lookahead.look(layouts, rest.rest(), &mut self.memory);
            self.misses.make_room(groups);
            left = self.rows(left, &mut path)?;
            if self.misses.count >= BATCH {
                self.misses.sort(&mut self.streams, false);
            }
            rest.skip_words(self.lookahead.count());
        }
        Some(data.len() - left.len())
    }

    /// Appends the rows that were looked up, whose data is at the start of `data`. Returns the data
    /// behind it.
    fn rows<'d>(&mut self, data: &'d [u8], path: &mut impl FnMut(&L, &[u8])) -> Option<&'d [u8]> {
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_supported() {
            // SAFETY: `is_supported` has detected all features that the function enables.
            return unsafe { self.rows_wide(data, path) };
        }
        self.rows_with(data, path, compare)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
    fn rows_wide<'d>(&mut self, data: &'d [u8], path: &mut impl FnMut(&L, &[u8])) -> Option<&'d [u8]> {
        self.rows_with(data, path, |group, data, words, sums, room| {
            super::wide::compare(group, data, words, sums, room)
        })
    }

    #[inline(always)]
    fn rows_with<'d>(
        &mut self,
        data: &'d [u8],
        path: &mut impl FnMut(&L, &[u8]),
        compare: impl Fn(&mut Group, &[u8; GROUP_BYTES], usize, &mut Sums, &mut MissBuffer<'_>) -> u8,
    ) -> Option<&'d [u8]> {
        let Self { lookahead, memory, misses, .. } = self;
        // In local variables, so that the compiler knows that no store changes them.
        let (mut sums, mut mask_count, mut count) = (self.sums, misses.mask_count, misses.count);
        let mut left = data;
        for (layout, place) in lookahead.rows() {
            let mut words = usize::from(layout.bytes()) / 4;
            path(layout, left);
            let behind = left.get(usize::from(layout.bytes())..)?;
            let groups = memory.groups.get_mut(place..place + words.div_ceil(GROUP_WORDS))?;
            for group in groups {
                let mut room = MissBuffer {
                    wrong: misses.wrong.get_mut(count..)?.first_chunk_mut()?,
                    values: misses.values.get_mut(count..)?.first_chunk_mut()?,
                };
                let filled_up;
                let data = match left.first_chunk::<GROUP_BYTES>() {
                    Some(data) => data,
                    None => {
                        filled_up = padded(left);
                        &filled_up
                    }
                };
                let mask = compare(group, data, words, &mut sums, &mut room);
                *misses.masks.get_mut(mask_count)? = mask;
                mask_count += 1;
                count += mask.count_ones() as usize;
                words = words.saturating_sub(GROUP_WORDS);
                left = left.get(GROUP_BYTES..).unwrap_or(&[]);
            }
            left = behind;
        }
        (self.sums, misses.mask_count, misses.count) = (sums, mask_count, count);
        Some(left)
    }

    /// Returns the checksum of the data so far.
    pub fn checksum(&self) -> u32 {
        self.sums.finish(&self.events)
    }

    /// Returns the payload in two parts, of which the second is not copied. If `quickly`, only
    /// streams that compress well are compressed.
    pub fn finish(&mut self, compressor: &mut Compressor, quickly: bool) -> (Vec<u8>, &[u8]) {
        let Self { misses, streams, .. } = self;
        misses.sort(streams, true);
        streams.add_masks(misses.masks.get(..misses.mask_count).unwrap_or(&[]));
        let mut out = Vec::new();
        let put = if quickly { put_stream_quickly } else { put_stream };
        let bits = [streams.flags(), streams.classes(), streams.masks()];
        for stream in bits.into_iter().chain([&self.events, streams.differences(), streams.places()]) {
            put(&mut out, compressor, stream);
        }
        let values = put_last_stream(&mut out, compressor, streams.values(), quickly);
        (out, values)
    }
}

#[cold]
fn padded(data: &[u8]) -> [u8; GROUP_BYTES] {
    let mut all = [0; GROUP_BYTES];
    all.iter_mut().zip(data).for_each(|(byte, &own)| *byte = own);
    all
}
