//! Eight lanes at a time, with instructions that only some processors have.

use std::arch::x86_64::*;

use super::encode::Room;
use super::sort::{AT_ONCE, Streams};
use super::{GROUP, GROUP_BYTES, GROUP_WORDS, Group, HIGH, MET, MET_BITS, MET_FACTOR, Sums, VALUE, WIDTHS};

/// Whether the processor has all that is used here.
#[inline]
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(from: &[u64; GROUP]) -> __m512i {
    // SAFETY: as many bytes are there, and need not be aligned.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_bytes(from: &[u8; GROUP_BYTES]) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(to: &mut [u64; GROUP], lanes: __m512i) {
    // SAFETY: there is room for as many bytes, which need not be aligned.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), lanes) };
}

#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn load_short(from: &[u32; GROUP]) -> __m256i {
    // SAFETY: as many bytes are there, and need not be aligned.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn store_short(to: &mut [u32; GROUP], lanes: __m256i) {
    // SAFETY: there is room for as many bytes, which need not be aligned.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), lanes) };
}

/// What [`super::encode::compare`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
pub(super) fn compare(
    group: &mut Group,
    data: &[u8; GROUP_BYTES],
    words: usize,
    sums: &mut Sums,
    room: &mut Room<'_>,
) -> u8 {
    // At most sixteen bits for words, and eight for lanes, are left.
    #[allow(clippy::cast_possible_truncation)]
    let used = _bzhi_u32(0xffff, words.min(GROUP_WORDS) as u32) as u16;
    #[allow(clippy::cast_possible_truncation)]
    let lanes = _bzhi_u32(0xff, words.min(GROUP_WORDS).div_ceil(2) as u32) as u8;
    let (last, short_stride) = (load(&group.last), load_short(&group.stride));
    let stride = _mm512_cvtepi32_epi64(short_stride);
    let value = _mm512_mask_mov_epi32(last, used, load_bytes(data));
    let wrong = _mm512_maskz_sub_epi64(lanes, value, _mm512_add_epi64(last, stride));
    let mask = _mm512_test_epi64_mask(wrong, wrong);
    store(&mut group.last, value);
    let turned = _mm512_rol_epi64::<1>(load(&sums.0));
    store(&mut sums.0, _mm512_add_epi64(turned, _mm512_maskz_mov_epi32(used, value)));
    if mask != 0 {
        let moved = _mm512_cvtepi64_epi32(_mm512_add_epi64(wrong, stride));
        let other = load_short(&group.other);
        let again = _mm256_mask_cmpeq_epi32_mask(mask, moved, other);
        // Written as a whole: what is written in part cannot be read again at once.
        store_short(&mut group.stride, _mm256_mask_blend_epi32(again, short_stride, moved));
        store_short(&mut group.other, _mm256_mask_blend_epi32(mask, other, moved));
        store(room.wrong, _mm512_maskz_compress_epi64(mask, wrong));
        store(room.values, _mm512_maskz_compress_epi64(mask, value));
    }
    mask
}

/// What [`Streams::sort_masks`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn sort_masks(streams: &mut Streams, masks: &[u8]) {
    let (many, rest) = masks.as_chunks::<64>();
    for masks in many {
        let all = load_bytes(masks);
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

/// What [`Streams::sort`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn sort(streams: &mut Streams, wrong: &[u64], values: &[u64]) {
    let (many, rest) = wrong.as_chunks::<GROUP>();
    let (many_values, rest_values) = values.as_chunks::<GROUP>();
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

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn sort_lanes(streams: &mut Streams, wrong: &[u64; GROUP], values: &[u64; GROUP]) {
    let (wrong, value) = (load(wrong), load(values));
    let number = |number: usize| _mm512_set1_epi64(number as i64);
    let is_high = _mm512_testn_epi64_mask(wrong, _mm512_set1_epi64(0xffff_ffff));
    let part = _mm512_mask_srai_epi64::<32>(wrong, is_high, wrong);
    let difference = _mm512_xor_si512(_mm512_slli_epi64::<1>(part), _mm512_srai_epi64::<63>(part));
    // Bytes of a number: those of its bits, from 64 less the leading zeros, rounded up.
    let width = _mm512_srli_epi64::<3>(_mm512_sub_epi64(number(71), _mm512_lzcnt_epi64(difference)));
    let small = _mm512_cmple_epu64_mask(width, number(4));
    let class = _mm512_mask_add_epi64(width, is_high, width, number(HIGH));
    let class = _mm512_sub_epi64(class, number(1));
    let factor = _mm512_set1_epi64(MET_FACTOR.cast_signed());
    let place = _mm512_srli_epi64::<{ 64 - MET_BITS }>(_mm512_mullo_epi64(value, factor));
    let met = look_up(streams, place, values, !small);
    let new = !small & !met;
    let class = _mm512_mask_mov_epi64(class, met, number(MET));
    let class = _mm512_mask_mov_epi64(class, new, number(VALUE));
    let classes = _mm_cvtsi128_si64(_mm512_cvtepi64_epi8(class)).cast_unsigned();
    // Two in a byte.
    #[allow(clippy::cast_possible_truncation)]
    let packed = _pext_u64(classes, 0x0f0f_0f0f_0f0f_0f0f) as u32;
    streams.classes.append(4, |room| put(room, &packed.to_le_bytes()));
    let [.., met_stream, value_stream] = &mut streams.stored;
    if new != 0 {
        let lanes = _mm512_maskz_compress_epi64(new, value);
        // SAFETY: there is room for as many bytes, which need not be aligned.
        value_stream.append(8 * new.count_ones() as usize, |room| unsafe {
            _mm512_storeu_si512(room.as_mut_ptr().cast(), lanes);
        });
    }
    if met != 0 {
        let places = _mm512_cvtepi64_epi16(_mm512_maskz_compress_epi64(met, place));
        // SAFETY: as above.
        met_stream.append(2 * met.count_ones() as usize, |room| unsafe {
            _mm_storeu_si128(room.as_mut_ptr().cast(), places);
        });
    }
    let mut left = small;
    while left != 0 {
        let own = (classes >> (8 * left.trailing_zeros()) & 0xf) as usize;
        let alike = _mm512_mask_cmpeq_epi64_mask(left, class, number(own));
        left &= !alike;
        store_small(streams, own, alike.count_ones() as usize, _mm512_maskz_compress_epi64(alike, difference));
    }
}

/// Which of the lanes in `wanted` have a value that was met before; all will have been.
#[target_feature(enable = "avx512f,bmi1")]
#[inline]
fn look_up(streams: &mut Streams, place: __m512i, values: &[u64; GROUP], wanted: u8) -> u8 {
    let mut places = [0; GROUP];
    store(&mut places, place);
    let (mut met, mut left) = (0, wanted);
    while left != 0 {
        let lane = left.trailing_zeros() as usize % GROUP;
        left &= left - 1;
        let (Some(&place), Some(&value)) = (places.get(lane), values.get(lane)) else { break };
        // It has as many bits as the table has entries.
        let Some(known) = usize::try_from(place).ok().and_then(|place| streams.met.get_mut(place)) else { break };
        met |= u8::from(*known == value) << lane;
        *known = value;
    }
    met
}

/// Stores the first `count` of these differences, which have a small class.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn store_small(streams: &mut Streams, class: usize, count: usize, lanes: __m512i) {
    let (Some(stream), Some(&width)) = (streams.stored.get_mut(class), WIDTHS.get(class)) else { return };
    // SAFETY: there is room for as many bytes as a vector has, which need not be aligned.
    stream.append(count * width, |room| unsafe {
        let to = room.as_mut_ptr();
        match width {
            1 => _mm_storeu_si128(to.cast(), _mm512_cvtepi64_epi8(lanes)),
            2 => _mm_storeu_si128(to.cast(), _mm512_cvtepi64_epi16(lanes)),
            4 => _mm256_storeu_si256(to.cast(), _mm512_cvtepi64_epi32(lanes)),
            _ => {
                let mut each = [0; GROUP];
                store(&mut each, lanes);
                // Each writes over the upper bytes of the one before it.
                for (lane, value) in each.into_iter().enumerate() {
                    to.add(3 * lane).cast::<u64>().write_unaligned(value.to_le());
                }
            }
        }
    });
}
