//! Memory traces of made-up threads, written with every codec and read back, whole and damaged.

use std::collections::BTreeMap;

use entity::{AppPc, ThreadId};
use proptest::prelude::*;
use trackway_memory::prsd::MAX_LEVEL;
use trackway_memory::second_stage::SecondStage;
use trackway_memory::{
    AccessPoint, AccessRecord, Action, CompressionOptions, CompressionSummary, FunctionIndex, LoopIndex, MemoryCodec,
    MemoryTrace, MemoryTraceWriter, Origin, WalkItem,
};

/// What a thread does.
#[derive(Clone, Copy, Debug)]
enum Do {
    Access { point: u64, address: u64 },
    Scope(Action),
    EndRow,
}

type Turns = Vec<(u32, Vec<Do>)>;

/// Every chunk is as small as can be, so that there are many.
fn small() -> CompressionOptions {
    CompressionOptions {
        grammar_symbols: 3,
        max_level: MAX_LEVEL,
        piece_bytes: 1,
        memory: 1 << 20,
        stage: SecondStage::Zstd(1),
    }
}

fn point(number: u64) -> AccessPoint {
    AccessPoint { image: 0, pc: AppPc::new(0x1000 + 4 * number), size: 8, is_write: number.is_multiple_of(2) }
}

fn write(turns: &Turns, codec: MemoryCodec, options: CompressionOptions) -> (Vec<u8>, CompressionSummary) {
    let mut writer = MemoryTraceWriter::new(Vec::new(), &Origin { codec, ..Origin::default() }, options).unwrap();
    for (thread, actions) in turns {
        let mut thread = writer.thread(ThreadId::new(*thread));
        for &action in actions {
            match action {
                Do::Access { point: number, address } => {
                    let id = thread.point(point(number));
                    thread.access(id, address).unwrap();
                }
                Do::Scope(change) => thread.scope(change).unwrap(),
                Do::EndRow => thread.end_row(),
            }
        }
        thread.finish().unwrap();
    }
    writer.finish().unwrap()
}

/// Accesses in their merged order.
fn accesses(turns: &Turns) -> Vec<(ThreadId, AccessPoint, u64)> {
    let of_turn = |(thread, actions): &(u32, Vec<Do>)| {
        let thread = ThreadId::new(*thread);
        let access = |action: &Do| match *action {
            Do::Access { point: number, address } => Some((thread, point(number), address)),
            _ => None,
        };
        actions.iter().filter_map(access).collect::<Vec<_>>()
    };
    turns.iter().flat_map(of_turn).collect()
}

fn merged(trace: &MemoryTrace) -> Vec<(ThreadId, AccessPoint, u64)> {
    let named = |(thread, AccessRecord { point, address })| (thread, *trace.point(point).unwrap(), address);
    trace.merged().map(|record| named(record.unwrap())).collect()
}

/// What every thread does, except for the ends of rows.
fn walks(trace: &MemoryTrace) -> BTreeMap<ThreadId, Vec<String>> {
    let describe = |item| match item {
        WalkItem::Access { point, address } => format!("{:?} {address}", trace.point(point).unwrap()),
        WalkItem::Scope(change) => format!("{change:?}"),
    };
    let walk = |thread| trace.walk(thread).unwrap().map(|item| describe(item.unwrap())).collect();
    trace.threads().map(|thread| (thread, walk(thread))).collect()
}

fn expected_walks(turns: &Turns) -> BTreeMap<ThreadId, Vec<String>> {
    let mut walks: BTreeMap<ThreadId, Vec<String>> = BTreeMap::new();
    for (thread, actions) in turns {
        let describe = |action: &Do| match *action {
            Do::Access { point: number, address } => Some(format!("{:?} {address}", point(number))),
            Do::Scope(change) => Some(format!("{change:?}")),
            Do::EndRow => None,
        };
        walks.entry(ThreadId::new(*thread)).or_default().extend(actions.iter().filter_map(describe));
    }
    walks.retain(|_, walk| !walk.is_empty());
    walks
}

fn check(turns: &Turns, options: CompressionOptions) {
    for codec in MemoryCodec::ALL {
        let (file, summary) = write(turns, codec, options);
        assert_eq!(summary.bytes, file.len() as u64);
        let trace = MemoryTrace::from_bytes(file).unwrap();
        let expected = accesses(turns);
        assert_eq!(
            (trace.codec(), trace.accesses(), summary.accesses),
            (codec, expected.len() as u64, trace.accesses())
        );
        assert!(merged(&trace) == expected, "{codec}");
        if codec == MemoryCodec::Prsd {
            assert_eq!(walks(&trace), expected_walks(turns));
        }
    }
}

fn any_action() -> impl Strategy<Value = Do> {
    let scope = prop_oneof![
        (0u32..4).prop_map(|number| Action::EnterFunction(FunctionIndex(number))),
        (0u32..4).prop_map(|number| Action::ExitFunction(FunctionIndex(number))),
        (0u32..4).prop_map(|number| Action::EnterLoop(LoopIndex(number))),
        (0u32..4).prop_map(|number| Action::Iterate(LoopIndex(number))),
        (0u32..4).prop_map(|number| Action::ExitLoop(LoopIndex(number))),
    ];
    let address = prop_oneof![any::<u64>(), 0x1000u64..0x1010];
    prop_oneof![
        5 => (0u64..6, address).prop_map(|(point, address)| Do::Access { point, address }),
        1 => scope.prop_map(Do::Scope),
        1 => Just(Do::EndRow),
    ]
}

fn any_turns() -> impl Strategy<Value = Turns> {
    prop::collection::vec((0u32..3, prop::collection::vec(any_action(), 0..60)), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn actions_of_threads_come_back(turns in any_turns()) {
        check(&turns, small());
        check(&turns, CompressionOptions { memory: 0, ..small() });
        check(&turns, CompressionOptions::default());
    }

    #[test]
    fn damaged_files_are_refused_or_read(
        turns in any_turns(),
        at: prop::sample::Index,
        byte: u8,
        length in 1usize..9,
        codec in 0..MemoryCodec::ALL.len(),
    ) {
        let (file, _) = write(&turns, MemoryCodec::ALL[codec], small());
        let damaged = damage(&file, at.index(file.len()), byte, length);
        if let Ok(trace) = MemoryTrace::from_bytes(damaged) {
            let _ = trace.merged().take(10_000).last();
            for thread in trace.threads() {
                let _ = trace.walk(thread).unwrap().take(10_000).last();
                let _ = trace.pieces(thread, |_, _| {});
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes: Vec<u8>) {
        let magic = &write(&Vec::new(), MemoryCodec::Prsd, small()).0[..8];
        let _ = MemoryTrace::from_bytes([magic, &bytes].concat());
        let _ = MemoryTrace::from_bytes(bytes);
    }
}

/// Overwrites bytes, and corrects the checksum of the chunk that they are in.
fn damage(file: &[u8], at: usize, byte: u8, length: usize) -> Vec<u8> {
    let mut file = file.to_vec();
    let mut start = 8;
    while start < file.len() {
        let size = u32::from_le_bytes(file[start + 8..start + 12].try_into().unwrap()) as usize;
        let end = start + 16 + size;
        if (start + 16..end).contains(&at) {
            let last = (at + length).min(end);
            file[at..last].fill(byte);
            let sum = codec::crc(&[&file[start..start + 12], &file[start + 16..end]]);
            file[start + 12..start + 16].copy_from_slice(&sum.to_le_bytes());
        }
        start = end;
    }
    file
}

#[test]
fn a_cut_file_is_refused() {
    let actions = vec![Do::Access { point: 1, address: 2 }; 100];
    let (file, _) = write(&vec![(0, actions)], MemoryCodec::Prsd, small());
    for length in 0..file.len() {
        assert!(MemoryTrace::from_bytes(file[..length].to_vec()).is_err(), "{length}");
    }
}

#[test]
fn a_loop_nest_takes_the_same_space_whatever_its_size() {
    let sizes: Vec<u64> = [200u64, 500, 1000, 2000].iter().map(|&size| nest(size)).collect();
    // The numbers themselves become longer.
    assert!(sizes.iter().all(|&bytes| bytes <= sizes[0] + 16), "{sizes:?}");
}

/// Writes the accesses of `for i, j: c[i] += a[i][j] * b[j][i]` and returns the bytes of the file.
fn nest(size: u64) -> u64 {
    let origin = Origin::default();
    let mut writer = MemoryTraceWriter::new(Vec::new(), &origin, CompressionOptions::default()).unwrap();
    let mut thread = writer.thread(ThreadId::FIRST);
    for i in 0..size {
        for j in 0..size {
            let addresses = [0x10_0000 + 8 * (i * size + j), 0x8000_0000 + 8 * (j * size + i), 0x1000 + 8 * i];
            for (number, address) in (0..).zip(addresses) {
                let id = thread.point(point(number));
                thread.access(id, address).unwrap();
            }
            thread.end_row();
        }
    }
    thread.finish().unwrap();
    let (_, summary) = writer.finish().unwrap();
    assert_eq!((summary.regular_pieces, summary.irregular_accesses), (3, 0), "one PRSD for each access point");
    assert_eq!((summary.grammars, summary.rules, summary.symbols), (1, 1, 1), "{size}");
    summary.bytes
}

#[test]
fn random_addresses_take_little_more_than_raw_ones() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    };
    let actions: Vec<Do> = (0..200_000).map(|_| Do::Access { point: random() % 1000, address: random() }).collect();
    let turns = vec![(0, actions)];
    let (_, prsd) = write(&turns, MemoryCodec::Prsd, CompressionOptions::default());
    let (_, raw) = write(&turns, MemoryCodec::Raw, CompressionOptions::default());
    let ratio = prsd.bytes as f64 / raw.bytes as f64;
    assert!(ratio < 1.2, "{ratio}");
}
