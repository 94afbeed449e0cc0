//! A seek in the merged order gives what counting from the start gives, whatever the clocks, the
//! chunks and the damage.

mod support;

use std::time::Duration;

use proptest::prelude::*;
use support::{CODE, Clock, DATA, INDEX, PATH, Random, Setting, chunks, record};
use trackway_trace::{
    Access, AppPc, Batch, ChunkKind, Codec, DataMode, InstructionIndex, Item, MergedBatches, Problem, ReadError,
    ThreadId, Trace, Tsc, WriterOptions,
};

/// A batch or an error of a merged reader.
#[derive(Debug, PartialEq)]
enum Piece {
    Batch {
        thread: ThreadId,
        image: u32,
        first: InstructionIndex,
        tsc: Tsc,
        items: Vec<(Item, Vec<AccessTuple>)>,
        instructions: u64,
    },
    /// A chunk that cannot be decoded, with this number of instructions.
    Lost(u64),
}

/// An access: its instruction, its address, whether it writes, and its value.
type AccessTuple = (AppPc, u64, bool, Option<Vec<u8>>);

impl Piece {
    fn new(batch: &Batch) -> Self {
        let tuple = |own: Access| (own.pc(), own.address(), own.is_write(), batch.value(&own).map(<[u8]>::to_vec));
        let items = batch.items_with_accesses().map(|(item, own)| (item, own.map(tuple).collect()));
        Self::Batch {
            thread: batch.thread(),
            image: batch.image(),
            first: batch.first_instruction(),
            tsc: batch.tsc(),
            items: items.collect(),
            instructions: batch.instructions(),
        }
    }

    /// An error; `None` if all instructions of the chunk are there.
    fn lost(file: &[u8], error: &ReadError) -> Option<Self> {
        let ReadError::Chunk { kind, offset, problem } = error else { panic!("{error}") };
        let at = *offset as usize + 32 + 48;
        let instructions = u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
        (*kind == ChunkKind::Path && *problem != Problem::DataMissing).then_some(Self::Lost(instructions))
    }

    fn instructions(&self) -> u64 {
        match *self {
            Self::Batch { instructions, .. } | Self::Lost(instructions) => instructions,
        }
    }
}

fn rest(file: &[u8], merged: &mut MergedBatches<'_>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    loop {
        match merged.next_batch() {
            Ok(None) => return pieces,
            Ok(Some(batch)) => pieces.push(Piece::new(batch)),
            Err(error) => pieces.extend(Piece::lost(file, &error)),
        }
    }
}

/// The pieces from instruction `number` on, and how many instructions of the first of them come
/// before it.
fn counted(pieces: &[Piece], number: u64) -> (u64, &[Piece]) {
    let (mut left, mut rest) = (number, pieces);
    while let Some((piece, behind)) = rest.split_first().filter(|_| left > 0) {
        match piece {
            Piece::Lost(instructions) if *instructions > left => return (0, rest),
            _ if piece.instructions() > left => break,
            _ => (left, rest) = (left - piece.instructions(), behind),
        }
    }
    (left, rest)
}

/// The orders in which a trace can be merged.
fn merges(trace: &Trace) -> Vec<MergedBatches<'_>> {
    let plain = [trace.merged(), trace.merged().interleaved(3), trace.merged().interleaved(50)];
    plain.into_iter().chain(trace.merged_with_accesses()).collect()
}

fn check(file: &[u8], how: &str, has_all_code: bool, random: &mut Random) {
    let trace = &Trace::from_bytes(file.to_vec()).unwrap();
    let all: Vec<Vec<Piece>> = merges(trace).iter_mut().map(|merged| rest(file, merged)).collect();
    for (order, pieces) in all.iter().enumerate() {
        for number in numbers(pieces, random) {
            let merged = &mut merges(trace)[order];
            // If definitions may be missing, everything is read.
            let (left, expected) = if has_all_code { counted(pieces, number) } else { (number, &pieces[..]) };
            assert_eq!(merged.seek(InstructionIndex::new(number)), left, "instruction {number}, {how}, order {order}");
            compare(&rest(file, merged), expected, &format!("instruction {number}, {how}, order {order}"));
        }
    }
}

/// Numbers of instructions: the first and the last, beyond the end, where pieces end, anywhere.
fn numbers(pieces: &[Piece], random: &mut Random) -> Vec<u64> {
    let (mut ends, mut total) = (vec![0], 0);
    for piece in pieces {
        total += piece.instructions();
        ends.push(total);
    }
    let mut numbers = vec![0, 1, total.saturating_sub(1), total, total + 7];
    for _ in 0..6 {
        numbers.extend([random.next() % (total + 1), ends[random.below(ends.len())]]);
    }
    numbers
}

fn compare(found: &[Piece], expected: &[Piece], what: &str) {
    if let Some(place) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
        panic!("{what}: piece {place} differs");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

fn settings() -> impl Strategy<Value = Setting> {
    let clocks = [
        Clock::default(),
        // Many equal timestamps.
        Clock { least: 0, more: 2, delay: 0, goes_back: false },
        // Threads that start late, or after the others have ended.
        Clock { delay: 30_000, ..Clock::default() },
        Clock { goes_back: true, ..Clock::default() },
        Clock { least: 0, more: 3, delay: 40, goes_back: true },
    ];
    let codec = proptest::sample::select(vec![Codec::Raw, Codec::Predict, Codec::Adaptive]);
    let sizes = (2usize..40, 1u32..6, 1u32..3, 1usize..1500);
    let words = prop_oneof![1usize..40, 1usize..1000];
    (any::<u64>(), sizes, proptest::sample::select(clocks.to_vec()), codec, words).prop_map(
        |(seed, (blocks, threads, images, runs), clock, codec, chunk_words)| {
            let latency = Duration::from_secs(3600);
            let options =
                WriterOptions { codec, chunk_words, open_words: 4 * chunk_words, latency, ..WriterOptions::default() };
            let data = [DataMode::None, DataMode::Addresses, DataMode::Values, DataMode::Values][seed as usize % 4];
            Setting {
                seed,
                blocks,
                threads,
                images,
                runs,
                habit: 10,
                options,
                data,
                clock,
                has_explicit_accesses: seed & 4 != 0,
                has_allocations: true,
            }
        },
    )
}

/// Destroys payloads of some chunks of a kind, or their headers and the index, which has copies;
/// false if there are none.
fn destroy(file: &mut Vec<u8>, random: &mut Random, kind: u8, headers: bool) -> bool {
    let mut own = chunks(file);
    own.retain(|&(header, payload, end)| file[header + 4] == kind && payload < end);
    let count = own.len().min(1 + random.below(3));
    for _ in 0..count {
        let (header, payload, _) = own.swap_remove(random.below(own.len()));
        file[if headers { header } else { payload }] ^= 0x55;
    }
    if headers {
        file.pop();
    }
    count > 0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_seek_and_counting_find_the_same_instruction(setting in settings()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("random.trk");
        record(&path, &setting);
        let file = std::fs::read(&path).unwrap();
        let random = &mut Random(!setting.seed);
        check(&file, "intact", true, random);
        // As if the recorder had been killed.
        let end = chunks(&file).iter().find(|chunk| file[chunk.0 + 4] == INDEX).unwrap().0;
        check(&file[..end - random.below(end / 2)], "cut", true, random);
        for (kind, headers) in [(PATH, true), (PATH, false), (DATA, true), (DATA, false), (CODE, false)] {
            let mut damaged = file.clone();
            let has_all_code = !destroy(&mut damaged, random, kind, headers) || kind != CODE && !headers;
            check(&damaged, &format!("chunk {kind} destroyed, header {headers}"), has_all_code, random);
        }
    }
}

#[test]
fn a_seek_decodes_a_few_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("long.trk");
    let options = WriterOptions { chunk_words: 500, open_words: 2000, ..WriterOptions::default() };
    let (clock, data, has_explicit_accesses) = (Clock::default(), DataMode::Values, false);
    let setting = Setting {
        seed: 7,
        blocks: 40,
        threads: 3,
        images: 1,
        runs: 60_000,
        habit: 10,
        options,
        data,
        clock,
        has_explicit_accesses,
        has_allocations: true,
    };
    record(&path, &setting);
    let trace = Trace::open(&path).unwrap();
    let (chunks, total) = (trace.path_chunks().count(), trace.totals().instructions);
    assert!(chunks > 100, "{chunks}");
    for order in 0..merges(&trace).len() {
        for number in (0..=10).map(|tenth| total * tenth / 10) {
            let merged = &mut merges(&trace)[order];
            merged.seek(InstructionIndex::new(number));
            assert!(merged.chunks_decoded() <= 12, "{} at {number} in order {order}", merged.chunks_decoded());
        }
    }
}
