//! Codec 4: data guessed lane by lane.
//!
//! The data behind a path is a row of *lanes*, eight bytes each. Each lane of each fragment is
//! guessed from what it held before: the last value plus a stride that was seen twice in a row. A
//! mask says which guesses of eight lanes were wrong. For each wrong lane a class says what is
//! stored: a small difference to the guess, the index of a value that was seen before, or the value
//! itself. Data of events is stored as it is. All state starts empty with every chunk.
//!
//! The codec keeps up with a target that writes gigabytes per second: `encode` compares data as
//! it comes, while it is still in the processor's cache, and keeps the misses; `sort` puts those
//! into streams. `decode` goes the same way back.
//!
//! `docs/format.md` describes it for other implementations; changing anything here changes the
//! format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod decode;
mod encode;
mod lookahead;
mod sort;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use decode::Decoder;
pub use encode::Encoder;

use entity::PathId;

use crate::checksum::crc;

/// How much data is behind a path.
pub trait DataLayout: Copy + std::fmt::Debug {
    /// The layout of a path without data.
    const EMPTY: Self;

    /// Number of the path's fragment among those with data.
    fn fragment(&self) -> u32;

    /// Bytes of data behind the path.
    fn bytes(&self) -> u16;

    /// Bytes of the longest data behind any path of the fragment.
    fn longest(&self) -> u16;
}

/// The layouts of all paths.
pub trait DataLayouts {
    type Layout: DataLayout;

    /// Returns the layout of a path; `None` if it has no data.
    fn layout(&self, path: PathId) -> Option<Self::Layout>;
}

/// Lanes that are treated in one go.
const GROUP: usize = 8;
const GROUP_BYTES: usize = 8 * GROUP;
const GROUP_WORDS: usize = 2 * GROUP;

/// Classes of stored lanes: from 0, differences of 1 to 4 bytes; from [`HIGH`], those of the upper
/// half of a lane; [`SEEN`], two bytes, the index of a value; [`VALUE`], the value.
const HIGH: usize = 4;
const SEEN: usize = 8;
const VALUE: usize = 9;
/// Bytes of differences at most.
const SMALL_BYTES_MAX: usize = 4;
const SEEN_BYTES: usize = 2;
const VALUE_BYTES: usize = 8;

/// Values that can be seen again.
const SEEN_BITS: u32 = 12;
/// The upper bits of a value's product with this are its index.
const SEEN_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Values that were guessed wrong, by their hash.
type SeenValues = [u64; 1 << SEEN_BITS];

#[inline]
fn seen_index(value: u64) -> usize {
    // SEEN_BITS bits are left.
    #[allow(clippy::cast_possible_truncation)]
    let place = (value.wrapping_mul(SEEN_FACTOR) >> (64 - SEEN_BITS)) as usize;
    place
}

/// The history of eight lanes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Group {
    last: [u64; GROUP],
    /// Low half of the stride. Strides are short.
    stride: [u32; GROUP],
    /// The difference of the last two values that was not the stride.
    other: [u32; GROUP],
}

/// Returns a stride as a 64-bit number.
#[inline(always)]
fn extended(stride: u32) -> u64 {
    i64::from(stride.cast_signed()).cast_unsigned()
}

/// Returns a difference as it is kept.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // so it is meant
fn shortened(moved: u64) -> u32 {
    moved as u32
}

/// Groups of a chunk at most: half a gigabyte. No recording comes near; but a few bytes of a file
/// can define many fragments and say that each has much data.
const GROUPS_MAX: usize = 1 << 22;

/// The history of all lanes in a chunk.
#[derive(Debug, Default)]
struct LaneTable {
    /// Of each fragment, where its groups are, plus one; 0 if it was not seen.
    places: Vec<u32>,
    groups: Vec<Group>,
}

impl LaneTable {
    fn clear(&mut self) {
        self.places.fill(0);
        self.groups.clear();
    }

    /// Returns the position of a fragment's groups. There are as many as its longest data needs. If
    /// all groups would be too many, there are none at the position.
    #[inline]
    fn place(&mut self, layout: &impl DataLayout) -> usize {
        match self.places.get(layout.fragment() as usize) {
            Some(&place) if place != 0 => place as usize - 1,
            _ => self.new_place(layout),
        }
    }

    #[cold]
    fn new_place(&mut self, layout: &impl DataLayout) -> usize {
        let fragment = layout.fragment() as usize;
        if fragment >= self.places.len() {
            self.places.resize(fragment + 1024, 0);
        }
        let place = self.groups.len();
        let end = place + usize::from(layout.longest()).div_ceil(GROUP_BYTES);
        if end > GROUPS_MAX {
            return GROUPS_MAX;
        }
        if let (Some(slot), Ok(number)) = (self.places.get_mut(fragment), u32::try_from(place + 1)) {
            *slot = number;
        }
        self.groups.resize(end, Group::default());
        place
    }
}

/// The lanes that a number of words fills: the bits in use, and whether a lane is used at all.
#[derive(Clone, Copy, Debug)]
struct UsedLanes {
    bits: [u64; GROUP],
    lanes: [u64; GROUP],
}

impl UsedLanes {
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
        const ALL: [UsedLanes; GROUP_WORDS + 1] = {
            let mut all = [UsedLanes::new(0); GROUP_WORDS + 1];
            let mut words = 0;
            while words < all.len() {
                all[words] = UsedLanes::new(words);
                words += 1;
            }
            all
        };
        const WHOLE: &UsedLanes = &ALL[GROUP_WORDS];
        ALL.get(words).unwrap_or(WHOLE)
    }
}

/// A checksum that costs nearly nothing: one sum for each of eight lanes, rotated by a bit before
/// each addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums([u64; GROUP]);

impl Sums {
    #[inline(always)]
    fn add(&mut self, values: &[u64; GROUP], bits: &[u64; GROUP]) {
        for ((sum, value), bits) in self.0.iter_mut().zip(values).zip(bits) {
            *sum = sum.rotate_left(1).wrapping_add(value & bits);
        }
    }

    /// Returns the checksum of a chunk with this data of events.
    fn finish(&self, events: &[u8]) -> u32 {
        let mut bytes = [0; GROUP_BYTES];
        for (bytes, sum) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = sum.to_le_bytes();
        }
        crc(&[&bytes, events])
    }
}

#[cfg(test)]
mod tests;
