//! Eight lanes at a time, with instructions that only some processors have.
//!
//! Lanes are cast to vectors and back; that both are of the same length is checked when this is
//! compiled.

// Lanes are counted, and places have as many bits as the table has entries.
#![allow(clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::arch::x86_64::*;
use std::hint::{black_box, select_unpredictable};

use bytemuck::must_cast;

use super::decode::{self, Lanes, NextMisses};
use super::encode::MissBuffer;
use super::sort::{AT_ONCE, Streams};
use super::{
    GROUP, GROUP_BYTES, GROUP_WORDS, Group, HIGH, SEEN, SEEN_BITS, SEEN_BYTES, SEEN_FACTOR, SMALL_BYTES_MAX,
    SeenValues, Sums, VALUE, VALUE_BYTES,
};

/// Whether the processor has all features that this module uses.
#[inline]
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// As [`super::encode::compare`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
pub(super) fn compare(
    group: &mut Group,
    data: &[u8; GROUP_BYTES],
    words: usize,
    sums: &mut Sums,
    room: &mut MissBuffer<'_>,
) -> u8 {
    // At most sixteen bits for words, and eight for lanes, are left.
    let used = _bzhi_u32(0xffff, words.min(GROUP_WORDS) as u32) as u16;
    let lanes = _bzhi_u32(0xff, words.min(GROUP_WORDS).div_ceil(2) as u32) as u8;
    let (last, short_stride) = (must_cast(group.last), must_cast(group.stride));
    let stride = _mm512_cvtepi32_epi64(short_stride);
    let value = _mm512_mask_mov_epi32(last, used, must_cast(*data));
    let wrong = _mm512_maskz_sub_epi64(lanes, value, _mm512_add_epi64(last, stride));
    let mask = _mm512_test_epi64_mask(wrong, wrong);
    group.last = must_cast(value);
    let turned = _mm512_rol_epi64::<1>(must_cast(sums.0));
    sums.0 = must_cast(_mm512_add_epi64(turned, _mm512_maskz_mov_epi32(used, value)));
    if mask != 0 {
        let moved = _mm512_cvtepi64_epi32(_mm512_add_epi64(wrong, stride));
        let other = must_cast(group.other);
        let again = _mm256_mask_cmpeq_epi32_mask(mask, moved, other);
        // Written as a whole, because a partial store delays the next load.
        group.stride = must_cast(_mm256_mask_blend_epi32(again, short_stride, moved));
        group.other = must_cast(_mm256_mask_blend_epi32(mask, other, moved));
        *room.wrong = must_cast(_mm512_maskz_compress_epi64(mask, wrong));
        *room.values = must_cast(_mm512_maskz_compress_epi64(mask, value));
    }
    mask
}

/// As [`Streams::sort_masks`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn sort_masks(streams: &mut Streams, masks: &[u8]) {
    let (many, rest) = masks.as_chunks::<64>();
    for masks in many {
        let all = must_cast(*masks);
        let flags = _mm512_test_epi8_mask(all, all);
        streams.flags.append(8, |room| put(room, &flags.to_le_bytes()));
        let mut left = flags;
        while left != 0 {
            let mask = masks.get(left.trailing_zeros() as usize).copied().unwrap_or(0);
            streams.masks.append(1, |room| room[0] = mask);
            left &= left - 1;
        }
    }
    streams.sort_masks(rest);
}

/// As [`Streams::sort`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn sort(streams: &mut Streams, wrong: &[u64], values: &[u64]) {
    let (many, rest) = wrong.as_chunks::<GROUP>();
    let (many_values, rest_values) = values.as_chunks::<GROUP>();
    streams.make_room(wrong.len());
    for (wrong, values) in many.iter().zip(many_values) {
        sort_lanes(streams, wrong, values);
    }
    streams.sort(rest, rest_values);
}

#[inline(always)]
fn put<const N: usize>(room: &mut [u8; AT_ONCE], bytes: &[u8; N]) {
    if let Some(room) = room.first_chunk_mut() {
        *room = *bytes;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn sort_lanes(streams: &mut Streams, wrong: &[u64; GROUP], values: &[u64; GROUP]) {
    let (wrong, value) = (must_cast(*wrong), must_cast(*values));
    let number = |number: usize| _mm512_set1_epi64(number as i64);
    let is_high = _mm512_testn_epi64_mask(wrong, _mm512_set1_epi64(0xffff_ffff));
    let part = _mm512_mask_srai_epi64::<32>(wrong, is_high, wrong);
    let difference = _mm512_xor_si512(_mm512_slli_epi64::<1>(part), _mm512_srai_epi64::<63>(part));
    // Bytes of a number: those of its bits, from 64 less the leading zeros, rounded up.
    let width = _mm512_srli_epi64::<3>(_mm512_sub_epi64(number(71), _mm512_lzcnt_epi64(difference)));
    let small = _mm512_cmple_epu64_mask(width, number(SMALL_BYTES_MAX));
    // All bits of the bytes that count.
    let all = _mm512_set1_epi64(-1);
    let counting = _mm512_maskz_andnot_epi64(small, _mm512_sllv_epi64(all, _mm512_slli_epi64::<3>(width)), all);
    let counting = _mm512_movepi8_mask(counting);
    let packed = _mm512_maskz_compress_epi8(counting, difference);
    streams.differences.append(counting.count_ones() as usize, |room| *room = must_cast(packed));
    let mut class = _mm512_sub_epi64(_mm512_mask_add_epi64(width, is_high, width, number(HIGH)), number(1));
    if small != 0xff {
        let factor = _mm512_set1_epi64(SEEN_FACTOR.cast_signed());
        let place = _mm512_srli_epi64::<{ 64 - SEEN_BITS }>(_mm512_mullo_epi64(value, factor));
        let seen = look_up(&mut streams.seen, place, values, small);
        let new = !small & !seen;
        let places = _mm512_castsi128_si512(_mm512_cvtepi64_epi16(_mm512_maskz_compress_epi64(seen, place)));
        streams.places.append(SEEN_BYTES * seen.count_ones() as usize, |room| *room = must_cast(places));
        let new_values = _mm512_maskz_compress_epi64(new, value);
        streams.values.append(VALUE_BYTES * new.count_ones() as usize, |room| *room = must_cast(new_values));
        class = _mm512_mask_mov_epi64(_mm512_mask_mov_epi64(class, seen, number(SEEN)), new, number(VALUE));
    }
    let classes = _mm_cvtsi128_si64(_mm512_cvtepi64_epi8(class)).cast_unsigned();
    // Two in a byte.
    let packed = _pext_u64(classes, 0x0f0f_0f0f_0f0f_0f0f) as u32;
    streams.classes.append(4, |room| put(room, &packed.to_le_bytes()));
}

/// Returns which of the lanes that are not small have a value that was seen before, and enters all
/// of them as seen.
#[target_feature(enable = "avx512f")]
#[inline]
fn look_up(seen: &mut SeenValues, place: __m512i, values: &[u64; GROUP], small: u8) -> u8 {
    let places: [u64; GROUP] = must_cast(place);
    let mut known = 0;
    // Without branches, because they could not be predicted.
    for lane in 0..GROUP {
        let entry = &mut seen[places[lane] as usize % (1 << SEEN_BITS)];
        known |= u8::from(*entry == values[lane]) << lane;
        *entry = select_unpredictable(small >> lane & 1 != 0, *entry, values[lane]);
    }
    known & !small
}

/// As [`decode::restore`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
pub(super) fn restore(
    group: &mut Group,
    words: usize,
    mask: u8,
    next: NextMisses<'_>,
    sums: &mut Sums,
    out: &mut [u8; GROUP_BYTES],
) {
    // At most sixteen bits for words, and eight for lanes, are left.
    let used = _bzhi_u32(0xffff, words.min(GROUP_WORDS) as u32) as u16;
    let lanes = _bzhi_u32(0xff, words.min(GROUP_WORDS).div_ceil(2) as u32) as u8;
    let (last, short_stride) = (must_cast(group.last), must_cast(group.stride));
    let stride = _mm512_cvtepi32_epi64(short_stride);
    let guess = _mm512_mask_add_epi64(last, lanes, last, stride);
    let mut value = guess;
    if mask != 0 {
        let number = _mm512_maskz_expand_epi64(mask, must_cast(*next.numbers));
        let guessed = _mm512_maskz_expand_epi64(mask, must_cast(*next.guessed));
        value = _mm512_mask_add_epi64(guess, mask, _mm512_and_si512(guess, guessed), number);
        let moved = _mm512_cvtepi64_epi32(_mm512_add_epi64(_mm512_sub_epi64(value, guess), stride));
        let other = must_cast(group.other);
        let again = _mm256_mask_cmpeq_epi32_mask(mask, moved, other);
        // Written as a whole, because a partial store delays the next load.
        group.stride = must_cast(_mm256_mask_blend_epi32(again, short_stride, moved));
        group.other = must_cast(_mm256_mask_blend_epi32(mask, other, moved));
    }
    group.last = must_cast(value);
    *out = must_cast(value);
    let turned = _mm512_rol_epi64::<1>(must_cast(sums.0));
    sums.0 = must_cast(_mm512_add_epi64(turned, _mm512_maskz_mov_epi32(used, value)));
}

/// As [`Lanes::unsort_each`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn unsort(lanes: &mut Lanes<'_>, seen: &mut SeenValues, room: decode::MissBuffer<'_>) -> Option<()> {
    let (many, rest) = room.numbers.as_chunks_mut::<GROUP>();
    let (many_guessed, rest_guessed) = room.guessed.as_chunks_mut::<GROUP>();
    for (numbers, guessed) in many.iter_mut().zip(many_guessed) {
        unsort_lanes(lanes, seen, numbers, guessed)?;
    }
    lanes.unsort_each(seen, decode::MissBuffer { numbers: rest, guessed: rest_guessed })
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vbmi2,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn unsort_lanes(
    lanes: &mut Lanes<'_>,
    seen: &mut SeenValues,
    numbers: &mut [u64; GROUP],
    guessed: &mut [u64; GROUP],
) -> Option<()> {
    let number = |number: usize| _mm512_set1_epi64(number as i64);
    let classes = _pdep_u64(u32::from_le_bytes(lanes.classes.peek()).into(), 0x0f0f_0f0f_0f0f_0f0f);
    lanes.classes.pass(4);
    let class = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(classes.cast_signed()));
    let small = _mm512_cmplt_epu64_mask(class, number(SEEN));
    let is_high = _mm512_mask_test_epi64_mask(small, class, number(HIGH));
    let width = _mm512_add_epi64(_mm512_and_si512(class, number(SMALL_BYTES_MAX - 1)), number(1));
    // All bits of the bytes that count.
    let all = _mm512_set1_epi64(-1);
    let counting = _mm512_maskz_andnot_epi64(small, _mm512_sllv_epi64(all, _mm512_slli_epi64::<3>(width)), all);
    let counting = _mm512_movepi8_mask(counting);
    let difference = _mm512_maskz_expand_epi8(counting, must_cast(lanes.differences.peek::<64>()));
    lanes.differences.pass(counting.count_ones() as usize);
    let sign = _mm512_sub_epi64(number(0), _mm512_and_si512(difference, number(1)));
    let part = _mm512_xor_si512(_mm512_srli_epi64::<1>(difference), sign);
    let result = _mm512_mask_slli_epi64::<32>(part, is_high, part);
    if small != 0xff {
        let is_seen = _mm512_cmpeq_epi64_mask(class, number(SEEN));
        let is_new = _mm512_cmpeq_epi64_mask(class, number(VALUE));
        let value = _mm512_maskz_expand_epi64(is_new, must_cast(lanes.values.peek::<64>()));
        lanes.values.pass(VALUE_BYTES * is_new.count_ones() as usize);
        let places = _mm512_cvtepu16_epi64(must_cast(lanes.places.peek::<16>()));
        lanes.places.pass(SEEN_BYTES * is_seen.count_ones() as usize);
        let factor = _mm512_set1_epi64(SEEN_FACTOR.cast_signed());
        let own_place = _mm512_srli_epi64::<{ 64 - SEEN_BITS }>(_mm512_mullo_epi64(value, factor));
        let place = _mm512_mask_expand_epi64(own_place, is_seen, places);
        let is_beyond = _mm512_cmpge_epu64_mask(place, number(1 << SEEN_BITS));
        if is_beyond != 0 || small | is_seen | is_new != 0xff {
            return None;
        }
        *numbers = must_cast(_mm512_mask_mov_epi64(result, is_new, value));
        recall(seen, place, numbers, is_seen, is_new);
    } else {
        *numbers = must_cast(result);
    }
    *guessed = must_cast(_mm512_maskz_mov_epi64(small, all));
    Some(())
}

/// Puts the values that were seen before into their lanes, and remembers those that are new.
#[target_feature(enable = "avx512f")]
#[inline]
fn recall(seen: &mut SeenValues, place: __m512i, numbers: &mut [u64; GROUP], is_seen: u8, is_new: u8) {
    // Through memory, which is quicker than taking vectors apart.
    let places: [u64; GROUP] = black_box(must_cast(place));
    // Without branches, because they could not be predicted.
    for lane in 0..GROUP {
        let entry = &mut seen[places[lane] as usize % (1 << SEEN_BITS)];
        numbers[lane] = select_unpredictable(is_seen >> lane & 1 != 0, *entry, numbers[lane]);
        *entry = select_unpredictable(is_new >> lane & 1 != 0, numbers[lane], *entry);
    }
}
