//! Decoded data equals what was encoded, damaged payloads are refused or decoded to something, and
//! the code for wide instructions gives the same as that for narrow ones.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use entity::PathId;
use proptest::prelude::*;
use wire::word;

use super::decode::{Lanes, NextMisses, StreamReader};
use super::encode::MissBuffer;
use super::sort::Streams;
use super::*;
use crate::event::event_bytes;
use crate::streams::Compressor;

/// The tests below compare wide instructions only where the processor has them.
#[test]
fn wide_instructions_are_compared_where_there_are_any() {
    use std::io::Write;
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let wanted = [
        "avx512f",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512_vbmi2",
        "avx512vl",
        "bmi1",
        "bmi2",
        // What Linux calls lzcnt.
        "abm",
        "popcnt",
    ];
    let has = |flag: &&str| flags.split_whitespace().any(|own| own == *flag);
    assert_eq!(wide::is_supported(), wanted.iter().all(has));
    if !wide::is_supported() {
        // The test harness does not catch what is written in this way.
        std::io::stderr().write_all(b"NOT TESTED: this machine has no AVX-512\n").unwrap();
    }
}

/// The layout of a path: fragment, bytes and longest.
#[derive(Clone, Copy, Debug)]
struct Layout(u32, u16, u16);

impl DataLayout for Layout {
    const EMPTY: Self = Self(u32::MAX, 0, 0);

    fn fragment(&self) -> u32 {
        self.0
    }

    fn bytes(&self) -> u16 {
        self.1
    }

    fn longest(&self) -> u16 {
        self.2
    }
}

/// The layouts of paths, numbered from 1.
struct Layouts(Vec<Layout>);

impl DataLayouts for Layouts {
    type Layout = Layout;

    fn layout(&self, path: PathId) -> Option<Layout> {
        self.0.get(path.get().checked_sub(1)? as usize).copied()
    }
}

/// Fragments with these lengths of data behind their exits.
fn layouts(fragments: &[Vec<u32>]) -> Layouts {
    let short = |length: u32| u16::try_from(length).unwrap();
    let fragment = |(number, lengths): (usize, &Vec<u32>)| {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let layout = move |&length: &u32| Layout(u32::try_from(number).unwrap(), short(length), short(longest));
        lengths.iter().map(layout).collect::<Vec<_>>()
    };
    Layouts(fragments.iter().enumerate().flat_map(fragment).collect())
}

fn append(encoder: &mut Encoder<Layout>, layouts: &Layouts, words: &[u32], data: &[u8]) -> Option<usize> {
    encoder.append(layouts, words, data, |_, _| (), |_, _| ())
}

fn finish(encoder: &mut Encoder<Layout>, quickly: bool) -> Vec<u8> {
    let (payload, rest) = encoder.finish(&mut Compressor::default(), quickly);
    [&payload, rest].concat()
}

fn check(layouts: &Layouts, words: &[u32], data: &[u8]) -> usize {
    let mut encoder = Encoder::<Layout>::default();
    let (mut decoder, mut back) = (Decoder::<Layout>::default(), vec![7]);
    let mut length = 0;
    // The second time it must not remember the first.
    for quickly in [true, false] {
        encoder.clear();
        assert_eq!(append(&mut encoder, layouts, words, data), Some(data.len()));
        let payload = finish(&mut encoder, quickly);
        let checksum = decoder.decode(layouts, words, &payload, data.len(), &mut back).unwrap();
        assert_eq!(checksum, encoder.checksum());
        assert!(back == data);
        length = payload.len();
    }
    length
}

#[test]
fn nothing_comes_back() {
    check(&layouts(&[]), &[], &[]);
    check(&layouts(&[vec![0]]), &[1, 1], &[]);
    check(&layouts(&[vec![4]]), &[1], &[1, 2, 3, 4]);
}

#[test]
fn strides_cost_nothing() {
    let layouts = layouts(&[vec![16, 24]]);
    let count = 100_000u64;
    let words: Vec<u32> = (0..count).map(|turn| 1 + u32::from(turn.is_multiple_of(7))).collect();
    let row = |turn: u64| [turn * 8, 5000, turn * 3 + 7].into_iter().take(if turn.is_multiple_of(7) { 3 } else { 2 });
    let data: Vec<u8> = (0..count).flat_map(row).flat_map(u64::to_le_bytes).collect();
    assert!(check(&layouts, &words, &data) < 200);
}

/// What a lane is remembered by and its next value: few different ones, so that much is guessed
/// right.
fn lane() -> impl Strategy<Value = (u64, u32, u32, u64)> {
    (0u64..3, 0u32..3, 0u32..3, 0u64..7)
}

#[cfg(target_arch = "x86_64")]
proptest! {
    #[test]
    fn wide_and_narrow_guess_alike(
        lanes in proptest::collection::vec(lane(), GROUP),
        words in 0usize..=GROUP_WORDS + 5,
        shift in 0u32..40,
    ) {
        let (mut group, mut data) = (Group::default(), [0; GROUP_BYTES]);
        for (i, (last, stride, other, value)) in lanes.into_iter().enumerate() {
            group.last[i] = last << shift;
            group.stride[i] = stride << shift.min(30);
            group.other[i] = other << shift.min(30);
            data[8 * i..][..8].copy_from_slice(&(value << shift).to_le_bytes());
        }
        let run = |compare: &dyn Fn(&mut Group, &mut Sums, &mut MissBuffer<'_>) -> u8| {
            let (mut group, mut wrong, mut values) = (group, [0; GROUP], [0; GROUP]);
            let mut sums = Sums([5; GROUP]);
            let mask = compare(&mut group, &mut sums, &mut MissBuffer { wrong: &mut wrong, values: &mut values });
            let count = mask.count_ones() as usize;
            (mask, wrong[..count].to_vec(), values[..count].to_vec(), group.last, group.stride, group.other, sums)
        };
        let narrow = run(&|group, sums, room| encode::compare(group, &data, words, sums, room));
        if wide::is_supported() {
            // SAFETY: the processor has it.
            let wide = run(&|group, sums, room| unsafe { wide::compare(group, &data, words, sums, room) });
            prop_assert_eq!(wide, narrow);
        }
    }

    #[test]
    fn wide_and_narrow_restore_alike(
        lanes in proptest::collection::vec((lane(), any::<bool>()), GROUP),
        words in 0usize..=GROUP_WORDS + 5,
        mask in any::<u8>(),
        shift in 0u32..40,
    ) {
        let (mut group, mut numbers, mut guessed) = (Group::default(), [0; GROUP], [0; GROUP]);
        for (i, ((last, stride, other, number), is_guessed)) in lanes.into_iter().enumerate() {
            group.last[i] = last << shift;
            group.stride[i] = stride << shift.min(30);
            group.other[i] = other << shift.min(30);
            (numbers[i], guessed[i]) = (number << shift, if is_guessed { u64::MAX } else { 0 });
        }
        let next = NextMisses { numbers: &numbers, guessed: &guessed };
        let run = |restore: &dyn Fn(&mut Group, &mut Sums, &mut [u8; GROUP_BYTES])| {
            let (mut group, mut sums, mut out) = (group, Sums([5; GROUP]), [0; GROUP_BYTES]);
            restore(&mut group, &mut sums, &mut out);
            (group.last, group.stride, group.other, sums, out)
        };
        let narrow = run(&|group, sums, out| decode::restore(group, words, mask, next, sums, out));
        if wide::is_supported() {
            // SAFETY: the processor has it.
            let wide = run(&|group, sums, out| unsafe { wide::restore(group, words, mask, next, sums, out) });
            prop_assert_eq!(wide, narrow);
        }
    }

    /// Streams as they are, cut short, and damaged.
    #[test]
    fn wide_and_narrow_unsort_alike(
        lanes in proptest::collection::vec((value(), 1u64.., 0u32..64), 0..100),
        lost in prop_oneof![3 => Just(0usize), 1 => 0usize..30],
        damage in prop_oneof![3 => Just(0u8), 1 => any::<u8>()],
    ) {
        let (values, wrong): (Vec<u64>, Vec<u64>) = lanes.into_iter().map(|(value, wrong, shift)| {
            (value, match wrong << shift { 0 => 1, wrong => wrong })
        }).unzip();
        let mut streams = Streams::default();
        streams.sort(&wrong, &values);
        let mut classes = streams.classes().to_vec();
        classes.first_mut().into_iter().for_each(|class| *class ^= damage);
        let cut = |stream: &[u8]| stream[..stream.len().saturating_sub(lost)].to_vec();
        let streams = [classes, cut(streams.differences()), cut(streams.places()), cut(streams.values())];
        let run = |unsort: &dyn Fn(&mut Lanes<'_>, &mut SeenValues, decode::MissBuffer<'_>) -> Option<()>| {
            let [classes, differences, places, values] = streams.each_ref().map(|stream| StreamReader::new(stream));
            let mut lanes = Lanes { classes, differences, places, values, left: 0 };
            let (mut numbers, mut guessed) = (vec![0; wrong.len()], vec![0; wrong.len()]);
            let mut seen = [0; 1 << SEEN_BITS];
            unsort(&mut lanes, &mut seen, decode::MissBuffer { numbers: &mut numbers, guessed: &mut guessed })?;
            let Lanes { classes, differences, places, values, .. } = lanes;
            let are_exhausted = [classes, differences, places, values].map(|stream| stream.is_exhausted());
            Some((numbers, guessed, seen, are_exhausted))
        };
        let narrow = run(&|lanes, seen, room| lanes.unsort_each(seen, room));
        if damage == 0 && lost == 0 {
            let (numbers, guessed, ..) = narrow.as_ref().unwrap();
            for (i, &number) in numbers.iter().enumerate() {
                prop_assert_eq!(number, if guessed[i] == 0 { values[i] } else { wrong[i] });
            }
        }
        if wide::is_supported() {
            // SAFETY: the processor has it.
            let wide = run(&|lanes, seen, room| unsafe { wide::unsort(lanes, seen, room) });
            prop_assert_eq!(wide, narrow);
        }
    }

    #[test]
    fn wide_and_narrow_sort_alike(
        masks in proptest::collection::vec(prop_oneof![2 => Just(0u8), 1 => any::<u8>()], 0..300),
        lanes in proptest::collection::vec((value(), 1u64.., 0u32..64), 0..100),
    ) {
        let (values, wrong): (Vec<u64>, Vec<u64>) = lanes.into_iter().map(|(value, wrong, shift)| {
            (value, match wrong << shift { 0 => 1, wrong => wrong })
        }).unzip();
        let streams = |sort: &dyn Fn(&mut Streams)| {
            let mut streams = Streams::default();
            streams.make_room_for_masks(masks.len());
            sort(&mut streams);
            let bits = [streams.flags(), streams.masks(), streams.classes()];
            let all = bits.into_iter().chain([streams.differences(), streams.places(), streams.values()]);
            all.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let narrow = streams(&|streams| {
            streams.sort_masks(&masks);
            streams.sort(&wrong, &values);
        });
        if wide::is_supported() {
            // SAFETY: the processor has it.
            let wide = streams(&|streams| unsafe {
                wide::sort_masks(streams, &masks);
                wide::sort(streams, &wrong, &values);
            });
            prop_assert_eq!(wide, narrow);
        }
    }
}

/// A few bytes of a file can define many fragments and say that each has much data.
#[test]
fn histories_take_bounded_memory() {
    let mut table = LaneTable::default();
    for fragment in 0..100_000 {
        table.place(&Layout(fragment, 4, u16::MAX));
    }
    assert_eq!(table.groups.len(), GROUPS_MAX);
    let (known, refused) = (table.place(&Layout(1, 4, u16::MAX)), table.place(&Layout(99_999, 4, u16::MAX)));
    assert!(table.groups.get(known).is_some() && table.groups.get(refused).is_none());
}

#[test]
fn data_of_another_length_is_noticed() {
    let layouts = layouts(&[vec![16]]);
    let mut encoder = Encoder::<Layout>::default();
    assert_eq!(append(&mut encoder, &layouts, &[1, 1], &[0; 24]), None);
    assert_eq!(append(&mut encoder, &layouts, &[1], &[0; 24]), Some(16));
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(0u64),
        2 => 0u64..300,
        1 => (0u64..9).prop_map(|value| value << 32),
        1 => (0u64..5).prop_map(|value| value.wrapping_mul(0x1234_5678_9abc_def1)),
        1 => any::<u64>()
    ]
}

/// Rows that are partly guessed right, and events with data.
fn rows() -> impl Strategy<Value = (Vec<Vec<u32>>, Vec<u32>, Vec<u8>)> {
    let lengths = proptest::collection::vec((0u32..60).prop_map(|words| 4 * words), 1..4);
    let fragments = proptest::collection::vec(lengths, 1..5);
    (fragments, proptest::collection::vec((any::<u32>(), proptest::collection::vec(value(), 1..6)), 0..300)).prop_map(
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
        check(&layouts(&fragments), &words, &data);
    }

    #[test]
    fn damage_does_no_harm(
        (fragments, words, data) in rows(),
        at in any::<usize>(),
        bits in 1u8..,
        lost in 0usize..20,
    ) {
        let layouts = layouts(&fragments);
        let mut encoder = Encoder::<Layout>::default();
        encoder.clear();
        append(&mut encoder, &layouts, &words, &data).unwrap();
        let mut payload = finish(&mut encoder, false);
        let at = at % payload.len();
        payload[at] ^= bits;
        let mut decoder = Decoder::<Layout>::default();
        let _ = decoder.decode(&layouts, &words, &payload, data.len(), &mut Vec::new());
        let shorter = words.len().saturating_sub(lost);
        let _ = decoder.decode(&layouts, &words[..shorter], &payload, data.len() / 2, &mut Vec::new());
    }

    #[test]
    fn rubbish_does_no_harm(payload in proptest::collection::vec(any::<u8>(), 0..200), length in 0usize..5000) {
        let layouts = layouts(&[vec![8, 400], vec![100]]);
        let words = [1, 2, 3, 9, 1, 2, 3];
        let _ = Decoder::<Layout>::default().decode(&layouts, &words, &payload, length, &mut Vec::new());
    }
}
