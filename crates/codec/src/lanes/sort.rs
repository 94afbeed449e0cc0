//! Sorts misses into streams, by what is stored of them.

use std::hint::select_unpredictable;

use super::{GROUP, HIGH, SEEN, SEEN_BITS, SEEN_BYTES, SMALL_BYTES_MAX, SeenValues, VALUE, VALUE_BYTES, seen_index};
use crate::bytes::zigzag;

/// Bytes with room behind them.
#[derive(Debug, Default)]
pub(super) struct Stream {
    bytes: Vec<u8>,
    length: usize,
}

/// Bytes that may be written at once, though fewer count.
pub(super) const AT_ONCE: usize = 64;

impl Stream {
    /// Makes room for `bytes` bytes.
    fn make_room(&mut self, bytes: usize) {
        let room = self.length + bytes + AT_ONCE;
        if self.bytes.len() < room {
            self.bytes.resize(room.next_power_of_two(), 0);
        }
    }

    /// Appends the low bytes of `value`.
    #[inline(always)]
    fn push(&mut self, value: u64, width: usize) {
        if let Some(room) = self.bytes.get_mut(self.length..self.length + 8) {
            room.copy_from_slice(&value.to_le_bytes());
            self.length += width;
        }
    }

    /// Appends `length` of the bytes that are written to the room behind it.
    #[inline(always)]
    pub(super) fn append(&mut self, length: usize, write: impl FnOnce(&mut [u8; AT_ONCE])) {
        if let Some(room) = self.bytes.get_mut(self.length..).and_then(|room| room.first_chunk_mut()) {
            write(room);
            self.length += length;
        }
    }

    fn content(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }
}

/// The streams of wrong lanes.
#[derive(Debug)]
pub(super) struct Streams {
    /// A bit for each group: whether any lane was guessed wrong.
    pub(super) flags: Stream,
    /// Which lanes, of groups where any was.
    pub(super) masks: Stream,
    /// Four bits for each lane.
    pub(super) classes: Stream,
    /// Small differences.
    pub(super) differences: Stream,
    /// Indexes of values that were seen before.
    pub(super) places: Stream,
    pub(super) values: Stream,
    pub(super) seen: Box<SeenValues>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            flags: Stream::default(),
            masks: Stream::default(),
            classes: Stream::default(),
            differences: Stream::default(),
            places: Stream::default(),
            values: Stream::default(),
            seen: Box::new([0; 1 << SEEN_BITS]),
        }
    }
}

impl Streams {
    /// Starts a chunk.
    pub(super) fn clear(&mut self) {
        let Self { flags, masks, classes, differences, places, values, .. } = self;
        [flags, masks, classes, differences, places, values].into_iter().for_each(|stream| stream.length = 0);
        self.seen.fill(0);
    }

    /// Adds wrong lanes, with their differences and values. The number of lanes before them is a
    /// multiple of eight.
    pub(super) fn add(&mut self, wrong: &[u64], values: &[u64]) {
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_supported() {
            // SAFETY: `is_supported` has detected all features that the function enables.
            return unsafe { super::wide::sort(self, wrong, values) };
        }
        self.sort(wrong, values);
    }

    /// Adds the masks of all groups.
    pub(super) fn add_masks(&mut self, masks: &[u8]) {
        self.make_room_for_masks(masks.len());
        #[cfg(target_arch = "x86_64")]
        if super::wide::is_supported() {
            // SAFETY: `is_supported` has detected all features that the function enables.
            return unsafe { super::wide::sort_masks(self, masks) };
        }
        self.sort_masks(masks);
    }

    pub(super) fn make_room_for_masks(&mut self, count: usize) {
        self.flags.make_room(count.div_ceil(8));
        self.masks.make_room(count);
    }

    /// Makes room for `lanes` lanes.
    pub(super) fn make_room(&mut self, lanes: usize) {
        self.classes.make_room(lanes.div_ceil(2));
        self.differences.make_room(lanes * SMALL_BYTES_MAX);
        self.places.make_room(lanes * SEEN_BYTES);
        self.values.make_room(lanes * VALUE_BYTES);
    }

    pub(super) fn sort_masks(&mut self, masks: &[u8]) {
        for eight in masks.chunks(8) {
            let mut flags = 0;
            for (place, &mask) in eight.iter().enumerate() {
                flags |= u64::from(mask != 0) << place;
                self.masks.push(mask.into(), usize::from(mask != 0));
            }
            self.flags.push(flags, 1);
        }
    }

    pub(super) fn sort(&mut self, wrong: &[u64], values: &[u64]) {
        self.make_room(wrong.len());
        for (wrong, values) in wrong.chunks(GROUP).zip(values.chunks(GROUP)) {
            let mut classes = 0;
            for (place, (&wrong, &value)) in wrong.iter().zip(values).enumerate() {
                classes |= (self.lane(wrong, value) as u64) << (4 * place);
            }
            self.classes.push(classes, wrong.len().div_ceil(2));
        }
    }

    /// Stores a lane and returns its class. Without branches, because they could not be predicted.
    #[inline(always)]
    fn lane(&mut self, wrong: u64, value: u64) -> usize {
        let is_high = wrong << 32 == 0;
        let part = select_unpredictable(is_high, (wrong.cast_signed() >> 32).cast_unsigned(), wrong);
        let difference = zigzag(part);
        let width = (u64::BITS - difference.leading_zeros()).div_ceil(8) as usize;
        let is_small = width <= SMALL_BYTES_MAX;
        let place = seen_index(value);
        let Some(known) = self.seen.get_mut(place) else { return 0 };
        let is_seen = *known == value;
        *known = select_unpredictable(is_small, *known, value);
        self.differences.push(difference, select_unpredictable(is_small, width, 0));
        self.places.push(place as u64, select_unpredictable(!is_small & is_seen, SEEN_BYTES, 0));
        self.values.push(value, select_unpredictable(!is_small & !is_seen, VALUE_BYTES, 0));
        let small_class = width.wrapping_sub(1) + select_unpredictable(is_high, HIGH, 0);
        select_unpredictable(is_small, small_class, select_unpredictable(is_seen, SEEN, VALUE))
    }

    pub(super) fn flags(&self) -> &[u8] {
        self.flags.content()
    }

    pub(super) fn masks(&self) -> &[u8] {
        self.masks.content()
    }

    pub(super) fn classes(&self) -> &[u8] {
        self.classes.content()
    }

    pub(super) fn differences(&self) -> &[u8] {
        self.differences.content()
    }

    pub(super) fn places(&self) -> &[u8] {
        self.places.content()
    }

    pub(super) fn values(&self) -> &[u8] {
        self.values.content()
    }
}
