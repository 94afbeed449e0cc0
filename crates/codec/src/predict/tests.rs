//! Decoded words equal those that were encoded, counts are right, and damaged payloads are refused
//! or decoded to something.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use entity::{FragmentId, PathId};
use proptest::prelude::*;
use wire::word::{self, EVENT};

use super::*;
use crate::error::DecodeError;
use crate::path::PathPayload;
use crate::streams::put_stream;

/// Fragments of four paths each, at addresses that their paths lead to in turn. Path 1 calls,
/// path 2 returns.
struct Model;

const PATHS: u32 = 40;
const EXITS: u32 = 4;

impl PathModel for Model {
    type Path = u32;

    fn path_info(&self, path: PathId) -> Option<u32> {
        (1..=PATHS).contains(&path.get()).then_some(path.get())
    }

    fn stack_effect(&self, path: &u32) -> StackEffect<'_> {
        match *path {
            1 => StackEffect::Calls { pops: 0, returns: false, target: 2, pushes: &[3] },
            2 => StackEffect::Returns,
            path => StackEffect::Jumps(path % (PATHS / EXITS) + 1),
        }
    }

    fn expected_exit(&self, image: u32, target: LowPc, path: &u32, _: PathId) -> Option<u8> {
        let exits = self.exits_at(image, target, u32::MAX)?;
        let number = path.checked_sub(exits.fragment.first_path().get()).filter(|&number| number < EXITS)?;
        u8::try_from(EXITS - 1 - number).ok()
    }

    fn exits_at(&self, _: u32, target: LowPc, _: u32) -> Option<FragmentExits> {
        let first_path = target.checked_sub(1)?.checked_mul(EXITS)? + 1;
        Some(FragmentExits { fragment: FragmentId::new(PathId::new(first_path)), count: 4 })
    }
}

/// Counts paths and events.
#[derive(Default)]
struct Counter(u64);

impl WordCounter<u32> for Counter {
    type Total = (u64, u32);

    fn add_path(&mut self, _: &u32) {
        self.0 += 1;
    }

    fn add_repeated(&mut self, _: &u32, times: u64) {
        self.0 += times;
    }

    fn add_event(&mut self, _: u32, words: &[u32]) -> Option<usize> {
        self.0 += 1;
        word::length(*words.first()?)
    }

    fn finish(self, _: &[u32], last: u32) -> (u64, u32) {
        (self.0, last)
    }

    fn count(self, _: &[u32]) -> Result<(u64, u32), usize> {
        Err(0)
    }
}

fn decode_payload(payload: &[u8], count: usize) -> Result<Vec<u32>, DecodeError> {
    let mut words = Vec::new();
    let source =
        PathPayload { model: &Model, image: 0, sequence: 9, codec: crate::CODEC_PREDICT, payload, length: 4 * count };
    decode(&mut PredictionTables::default(), &source, count, &mut words)?;
    Ok(words)
}

/// Paths, some of them many times, and events.
fn words() -> impl Strategy<Value = (u64, Vec<u32>)> {
    let path =
        (1..=PATHS, prop_oneof![4 => Just(1usize), 1 => 1usize..200]).prop_map(|(path, times)| vec![path; times]);
    let event = any::<u32>().prop_map(|low| vec![word::event(word::RESUME, low), 3, 0, low, 7]);
    proptest::collection::vec(prop_oneof![9 => path, 1 => event], 0..200).prop_map(|parts| {
        let count = |part: &Vec<u32>| if part[0] & EVENT == 0 { part.len() as u64 } else { 1 };
        (parts.iter().map(count).sum(), parts.concat())
    })
}

proptest! {
    #[test]
    fn words_come_back_and_are_counted((count, words) in words()) {
        let (payload, total) = encode(&mut PredictionTables::default(), &Model, 0, &words, Counter::default()).unwrap();
        prop_assert_eq!(total.0, count);
        prop_assert_eq!(decode_payload(&payload, words.len()), Ok(words));
    }

    #[test]
    fn damage_does_no_harm((_, words) in words(), at in any::<usize>(), bits in 1u8..) {
        let (mut payload, _) = encode(&mut PredictionTables::default(), &Model, 0, &words, Counter::default()).unwrap();
        let at = at % payload.len();
        payload[at] ^= bits;
        let _ = decode_payload(&payload, words.len());
    }
}

/// Otherwise each of many streams could unpack to ten bytes for each word.
#[test]
fn streams_longer_than_their_words_allow_are_refused() {
    const STREAMS: usize = 7 + guess::BIT_STREAMS;
    const SHORT: DecodeError = DecodeError::Malformed("its streams do not fit into it");
    let payload = |long: usize, length: usize| {
        let mut out = Vec::new();
        for stream in 0..STREAMS {
            put_stream(&mut out, &mut Compressor::default(), &vec![0; if stream == long { length } else { 0 }]);
        }
        out
    };
    for (stream, length) in [(0, 90), (1, 8), (2, 90), (6, 8), (7, 1), (STREAMS - 1, 1)] {
        assert_ne!(decode_payload(&payload(stream, length), 8), Err(SHORT), "{stream}");
        assert_eq!(decode_payload(&payload(stream, length + 1), 8), Err(SHORT), "{stream}");
    }
}

#[test]
fn an_unknown_path_is_reported_by_its_position() {
    for words in [&[1, 2, 99][..], &[3, 3, 0], &[5, 5, EVENT]] {
        assert_eq!(encode(&mut PredictionTables::default(), &Model, 0, words, Counter::default()).err(), Some(2));
    }
}
