//! Memory accesses of every kind, from hand-made access descriptors and rings through a file and
//! back.

use trackway_trace::{
    Access, AccessDescriptors, AccessKind, AppPc, Batch, BlockId, Codec, DataMode, Event, Exit, Fragment, FragmentId,
    InstructionIndex, Item, PathId, ReadError, Recording, ThreadId, ThreadInfo, Trace, Tsc, Writer, WriterOptions,
};
use wire::code::{self, AccessDescriptor, FragmentBlock, FragmentExit};
use wire::word;

/// An access with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AccessRecord {
    pc: u64,
    kind: AccessKind,
    address: u64,
    size: u32,
    value: Option<Vec<u8>>,
}

fn access_record(batch: &Batch, access: Access) -> AccessRecord {
    let value = batch.value(&access).map(<[u8]>::to_vec);
    AccessRecord { pc: access.pc().get(), kind: access.kind(), address: access.address(), size: access.size(), value }
}

fn read(pc: u64, address: u64, value: &[u8]) -> AccessRecord {
    AccessRecord { pc, kind: AccessKind::Read, address, size: value.len() as u32, value: Some(value.to_vec()) }
}

fn write(pc: u64, address: u64, value: &[u8]) -> AccessRecord {
    AccessRecord { kind: AccessKind::Write, ..read(pc, address, value) }
}

const CODE: u64 = 0x1000;
/// The first event of every recording here.
const START: Event = Event::Start { pc: AppPc::new(CODE), tsc: Tsc::new(1) };

/// A recording of one thread whose code is nothing but one-byte instructions: block 1 at 0x1000,
/// block 2 at 0x1010, both of sixteen instructions, the last a return, in one fragment with two
/// exits, paths 1 (after block 1) and 2 (after both).
struct Sample {
    directory: tempfile::TempDir,
    writer: Option<Writer>,
}

impl Sample {
    fn new(lengths: [u32; 2], accesses: &[AccessDescriptor]) -> Self {
        Self::with(DataMode::Values, WriterOptions::default(), lengths, accesses)
    }

    fn with(data: DataMode, options: WriterOptions, lengths: [u32; 2], accesses: &[AccessDescriptor]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let recording = Recording { data, ..Recording::default() };
        let mut writer = Writer::create_with(&directory.path().join("a.trk"), &recording, options).unwrap();
        let block = *b"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\xc3";
        for (number, address) in [(1, CODE), (2, CODE + 16)] {
            writer.block(0, BlockId::new(number), AppPc::new(address), &block).unwrap();
        }
        let fragment = FragmentId::new(PathId::new(1));
        let blocks = [1, 2].map(|number| FragmentBlock::new(BlockId::new(number), false));
        let exits = [1, 2].map(|count| FragmentExit::new(count, code::TERMINATOR_INDIRECT));
        writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits }).unwrap();
        writer.access_descriptors(&AccessDescriptors { fragment, lengths: &lengths, accesses }).unwrap();
        writer.thread(&ThreadInfo::default()).unwrap();
        writer.path(0, ThreadId::FIRST, &[word::event(word::START, 0), CODE as u32, 0, 1, 0]).unwrap();
        Self { directory, writer: Some(writer) }
    }

    fn path(mut self, words: &[u32], data: &[u8]) -> Self {
        self.writer.as_mut().unwrap().path_with_data(0, ThreadId::FIRST, words, data).unwrap();
        self
    }

    fn finish(&mut self) -> Trace {
        self.writer.take().unwrap().finish(Exit::Code(0)).unwrap();
        let trace = Trace::open(&self.directory.path().join("a.trk")).unwrap();
        let report = trace.verify();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(&report.counts, trace.totals());
        trace
    }

    /// Reads all accesses in every form and compares the results.
    fn accesses(mut self) -> Vec<AccessRecord> {
        let trace = self.finish();
        let mut all = Vec::new();
        let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
        while let Some(batch) = steps.next_batch().unwrap() {
            let own: Vec<AccessRecord> = batch.accesses().map(|access| access_record(batch, access)).collect();
            let items = batch.items_with_accesses().flat_map(|(_, accesses)| accesses);
            let by_item: Vec<AccessRecord> = items.map(|access| access_record(batch, access)).collect();
            assert_eq!(own, by_item);
            all.extend(own);
        }
        let count = |kind| all.iter().filter(|seen| seen.kind == kind).count() as u64;
        assert_eq!((count(AccessKind::Read), count(AccessKind::Write)), (trace.totals().reads, trace.totals().writes));
        let mut merged = trace.merged_with_accesses().unwrap();
        let mut others = Vec::new();
        while let Some(batch) = merged.next_batch().unwrap() {
            others.extend(batch.accesses().map(|access| access_record(batch, access)));
        }
        assert_eq!(others, all);
        let chunks = trace.par_chunks_with_accesses(|steps| {
            let mut own = Vec::new();
            while let Some(batch) = steps.next_batch().unwrap() {
                own.extend(batch.accesses().map(|access| access_record(batch, access)));
            }
            own
        });
        assert_eq!(chunks.unwrap().concat(), all);
        all
    }
}

fn check(lengths: [u32; 2], accesses: &[AccessDescriptor], words: &[u32], data: &[&[u8]], expected: &[AccessRecord]) {
    assert_eq!(Sample::new(lengths, accesses).path(words, &data.concat()).accesses(), expected);
}

fn plain(offset: u16, size: u16, flags: u8) -> AccessDescriptor {
    AccessDescriptor { offset, size, flags, value: code::NO_VALUE, ..AccessDescriptor::default() }
}

fn register(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn without_value(seen: AccessRecord) -> AccessRecord {
    AccessRecord { value: None, ..seen }
}

#[test]
fn plain_accesses() {
    use code::{CONSTANT, HAS_BASE, HAS_FS, HAS_INDEX, IS_SHORT, WRITES};
    let accesses = [
        AccessDescriptor { displacement: -8, value: 16, ..plain(0, 4, HAS_BASE) },
        AccessDescriptor { displacement: 0x30, value: CONSTANT, constant: 0x1234, ..plain(1, 2, WRITES) },
        AccessDescriptor { index: 8, displacement: 1, ..plain(2, 1, HAS_BASE | HAS_INDEX | 3) },
        AccessDescriptor { displacement: 0x28, value: 20, ..plain(3, 8, HAS_FS) },
        AccessDescriptor { displacement: 4, value: CONSTANT, constant: u64::MAX, ..plain(3, 16, HAS_BASE | WRITES) },
        AccessDescriptor { index: 8, displacement: 8, ..plain(4, 1, HAS_BASE | HAS_INDEX | HAS_FS | IS_SHORT) },
        AccessDescriptor { block: 1, value: 28, ..plain(5, 4, HAS_BASE) },
    ];
    let fs = [word::event(word::FS_BASE, 0), 0x100, 7];
    let base = 0x1_ffff_fff0u64;
    let head = [&register(base)[..], &register(2), &[1, 2, 3, 4], &register(99)].concat();
    let expected = [
        read(CODE, base - 8, &[1, 2, 3, 4]),
        write(CODE + 1, 0x30, &[0x34, 0x12]),
        without_value(read(CODE + 2, base + 17, &[0])),
        read(CODE + 3, 0x7_0000_0128, &register(99)),
        write(CODE + 3, base + 4, &[0xff; 16]),
        without_value(read(CODE + 4, 0x7_0000_0100 + 0xffff_fffa, &[0])),
        read(CODE + 21, base, &[9, 8, 7, 6]),
    ];
    let words = [&fs[..], &[2, 1]].concat();
    let all = [&expected[..], &expected[..6]].concat();
    check([28, 32], &accesses, &words, &[&head, &[9, 8, 7, 6], &head], &all);
}

#[test]
fn bit_tests() {
    use code::{HAS_BASE, WRITES};
    let bit =
        |offset, count, size, mask| AccessDescriptor { kind: code::BIT, count, mask, ..plain(offset, size, HAS_BASE) };
    let accesses = [
        bit(0, 8, 8, 8),
        AccessDescriptor { flags: HAS_BASE | WRITES, ..bit(0, 8, 8, 8) },
        bit(1, 4, 4, 16),
        bit(2, 2, 2, 24),
    ];
    let data = [register(0x5000), register(64 * 5 + 3), register(0xffff_ffff), register(0x8000)].concat();
    let expected = [
        without_value(read(CODE, 0x5028, &[0; 8])),
        without_value(write(CODE, 0x5028, &[0; 8])),
        without_value(read(CODE + 1, 0x4ffc, &[0; 4])),
        without_value(read(CODE + 2, 0x5000 - 2 * 2048, &[0; 2])),
    ];
    check([32, 32], &accesses, &[1], &[&data], &expected);
}

#[test]
fn repeated_strings_take_turns() {
    use code::{HAS_BASE, IS_SHORT, WRITES};
    // At 0 rcx before, 8 rsi, 16 rdi; 24 rcx after, 32 rsi after; 40 rcx after, 48 rdi after.
    let string = |offset, size, flags, base, mask| AccessDescriptor {
        kind: code::STRING,
        base,
        mask,
        ..plain(offset, size, flags | HAS_BASE)
    };
    let movs = [string(0, 4, 0, 8, 24), string(0, 4, WRITES, 16, 40)];
    let run = |before: u64, rsi: u64, rdi: u64, after: u64, rsi_after: u64, rdi_after: u64| {
        [before, rsi, rdi, after, rsi_after, after, rdi_after].map(register).concat()
    };
    let pair = |rsi, rdi| [without_value(read(CODE, rsi, &[0; 4])), without_value(write(CODE, rdi, &[0; 4]))];
    let up = [pair(0x100, 0x200), pair(0x104, 0x204), pair(0x108, 0x208)].concat();
    check([56, 56], &movs, &[1], &[&run(3, 0x100, 0x200, 0, 0x10c, 0x20c)], &up);
    let down = [pair(0x100, 0x200), pair(0xfc, 0x1fc)].concat();
    check([56, 56], &movs, &[1, 1], &[&run(9, 0x100, 0x200, 7, 0xf8, 0x1f8), &run(0, 1, 2, 0, 1, 2)], &down);

    // A value is that of every iteration, addresses of 32 bits wrap.
    let stos = AccessDescriptor { value: 56, ..string(3, 2, WRITES | IS_SHORT, 16, 40) };
    let data = run(0xdead_0000_0002, 0, 0xffff_ffff_ffff_fffe, 0, 0, 2);
    let expected = [write(CODE + 3, 0xffff_fffe, &[7, 8]), write(CODE + 3, 0, &[7, 8])];
    check([60, 60], &[stos], &[1], &[&data, &[7, 8, 0, 0]], &expected);
}

#[test]
fn masked_packed_and_indexed_vectors() {
    use code::{HAS_BASE, MASK_BITS, MASK_NONE, MASK_SIGNS, WRITES};
    let vector = |kind, offset, count, size, flags, mask_kind| AccessDescriptor {
        kind,
        count,
        mask_kind,
        mask: 8,
        value: 32,
        ..plain(offset, size, flags | HAS_BASE)
    };
    let accesses = [
        vector(code::MASKED, 0, 4, 4, 0, MASK_BITS),
        vector(code::PACKED, 1, 4, 4, WRITES, MASK_BITS),
        AccessDescriptor { mask: 16, ..vector(code::MASKED, 2, 4, 4, 0, MASK_SIGNS) },
        AccessDescriptor { index: 48, index_bytes: 4, ..vector(code::INDEXED, 3, 4, 4, 2, MASK_BITS) },
        AccessDescriptor { index: 48, index_bytes: 8, ..vector(code::INDEXED, 4, 2, 8, WRITES | 1, MASK_NONE) },
    ];
    let values: Vec<u8> = (0..16).collect();
    let signs = [[0, 0, 0, 0x80], [0x80, 0, 0, 0], [0, 0, 0, 0xff], [0, 0, 0, 0x7f]].concat();
    let indices = [1i32, -2, 3, -4].map(i32::to_le_bytes).concat();
    let data = [&register(0x9000)[..], &register(0b1010), &signs, &values, &indices].concat();
    let element = |i: usize| &values[4 * i..4 * i + 4];
    let expected = [
        read(CODE, 0x9004, element(1)),
        read(CODE, 0x900c, element(3)),
        write(CODE + 1, 0x9000, element(1)),
        write(CODE + 1, 0x9004, element(3)),
        read(CODE + 2, 0x9000, element(0)),
        read(CODE + 2, 0x9008, element(2)),
        read(CODE + 3, 0x9000 - 8, element(1)),
        read(CODE + 3, 0x9000 - 16, element(3)),
        write(CODE + 4, 0x9000u64.wrapping_add(0xffff_fffe_0000_0001 << 1), &values[..8]),
        write(CODE + 4, 0x9000u64.wrapping_add(0xffff_fffc_0000_0003 << 1), &values[8..]),
    ];
    check([64, 64], &accesses, &[1], &[&data], &expected);
}

#[test]
fn a_broadcast_is_read_once_if_any_element_is_selected() {
    let broadcast = |offset| AccessDescriptor {
        kind: code::ANY,
        count: 4,
        mask_kind: code::MASK_BITS,
        mask: 8,
        value: 16,
        ..plain(offset, 4, code::HAS_BASE)
    };
    let data = |mask| [&register(0x9000)[..], &register(mask), &[1, 2, 3, 4, 0, 0, 0, 0]].concat();
    let (some, none) = (data(0b1010), data(0xf0));
    check([24, 24], &[broadcast(0)], &[1, 1], &[&some, &none], &[read(CODE, 0x9000, &[1, 2, 3, 4])]);
}

fn wide(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn string_event(pc: u64, source: u64, destination: u64, count: u32, shape: u32, data_words: u32) -> Vec<u32> {
    let first = word::event(word::STRING, data_words << 8);
    [&[first][..], &wide(pc), &wide(source), &wide(destination), &[count, shape]].concat()
}

fn access_event(pc: u64, address: u64, size: u32, data_words: u32) -> Vec<u32> {
    [&[word::event(word::ACCESS, data_words << 8)][..], &wide(pc), &wide(address), &[size]].concat()
}

fn signal_event(fragment: u32, blocks: u32, pc: u64, data_words: u32) -> Vec<u32> {
    let first = word::event(word::SIGNAL, 11 | data_words << 8);
    [&[first, fragment, blocks][..], &wide(pc), &wide(CODE), &wide(77)].concat()
}

#[test]
fn explicit_accesses_belong_to_the_next_path() {
    use word::{
        ACCESS_WRITES, STRING_BACKWARDS, STRING_READS_DESTINATION, STRING_READS_SOURCE, STRING_WRITES_DESTINATION,
    };
    let movs = string_event(CODE, 0x100, 0x200, 2, 2 | STRING_READS_SOURCE | STRING_WRITES_DESTINATION, 1);
    let cmps =
        string_event(CODE, 0x100, 0x200, 2, 4 | STRING_READS_SOURCE | STRING_READS_DESTINATION | STRING_BACKWARDS, 4);
    let stos = string_event(CODE, 0, 0x300, 2, 8 | STRING_WRITES_DESTINATION, 0);
    let xsave = access_event(CODE, 0x7000, 576 | ACCESS_WRITES, 144);
    let time = [word::event(word::TIME, 0), 5, 0];
    let big: Vec<u8> = (0..576).map(|i| i as u8).collect();
    let words = [&movs[..], &time, &cmps, &[1], &stos, &xsave, &[1]].concat();
    let data = [&[1, 2, 3, 4][..], &[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4], &big].concat();
    let expected = [
        read(CODE, 0x100, &[1, 2]),
        write(CODE, 0x200, &[1, 2]),
        read(CODE, 0x102, &[3, 4]),
        write(CODE, 0x202, &[3, 4]),
        read(CODE, 0x100, &[1; 4]),
        read(CODE, 0x200, &[3; 4]),
        read(CODE, 0xfc, &[2; 4]),
        read(CODE, 0x1fc, &[4; 4]),
        without_value(write(CODE, 0x300, &[0; 8])),
        without_value(write(CODE, 0x308, &[0; 8])),
        write(CODE, 0x7000, &big),
    ];
    check([0, 0], &[], &words, &[&data], &expected);
    let mut sample = Sample::new([0, 0], &[]).path(&words, &data);
    let trace = sample.finish();
    let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
    let batch = steps.next_batch().unwrap().unwrap();
    assert_eq!([0, 1].map(|step| batch.accesses_of_step(step).count()), [8, 3]);
    assert_eq!(batch.accesses_of_event(0).count(), 0);
}

#[test]
fn signals_have_a_part_of_the_data() {
    use code::HAS_BASE;
    use word::{STRING_READS_SOURCE, STRING_WRITES_DESTINATION};
    let accesses = [
        AccessDescriptor { value: 8, ..plain(2, 4, HAS_BASE) },
        AccessDescriptor { value: 12, ..plain(5, 4, HAS_BASE) },
        AccessDescriptor { block: 1, base: 16, ..plain(1, 1, HAS_BASE) },
        AccessDescriptor { block: 1, base: 24, ..plain(9, 1, HAS_BASE) },
    ];
    let data = [&register(0x100)[..], &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
    let first = read(CODE + 2, 0x100, &[1, 0, 0, 0]);
    let second = read(CODE + 5, 0x100, &[2, 0, 0, 0]);
    let movs = string_event(CODE + 5, 0x10, 0x20, 1, 1 | STRING_READS_SOURCE | STRING_WRITES_DESTINATION, 1);
    let words = [
        &signal_event(1, 0, CODE + 2, 0)[..],
        &signal_event(1, 0, CODE + 5, 3),
        &signal_event(1, 0, CODE + 6, 4),
        &signal_event(1, 1, CODE + 16, 4),
        &signal_event(1, 1, CODE + 25, 6),
        &movs,
        &signal_event(1, 0, CODE + 5, 3),
        &signal_event(0, 0, CODE, 0),
    ]
    .concat();
    let third = without_value(read(CODE + 17, 0x300, &[0]));
    let bytes = [&data[..12], &data, &data, &data, &register(0x300)[..], &[9, 0, 0, 0], &data[..12]].concat();
    let explicit = [read(CODE + 5, 0x10, &[9]), write(CODE + 5, 0x20, &[9])];
    let expected = [
        &[first.clone()][..],
        &[first.clone(), second.clone()],
        &[first.clone(), second.clone()],
        &[first.clone(), second.clone(), third],
        std::slice::from_ref(&first),
        &explicit,
    ]
    .concat();
    check([16, 32], &accesses, &words, &[&bytes], &expected);
    let mut sample = Sample::new([16, 32], &accesses).path(&words, &bytes);
    let trace = sample.finish();
    let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
    let batch = steps.next_batch().unwrap().unwrap();
    let counts: Vec<usize> = batch
        .items_with_accesses()
        .filter(|(item, _)| matches!(item, Item::Event(_)))
        .map(|(_, accesses)| accesses.count())
        .collect();
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn explicit_accesses_at_the_end_of_a_chunk_get_an_event() {
    let movs = string_event(CODE, 0x10, 0, 3, 1 | word::STRING_READS_SOURCE, 0);
    let options = WriterOptions { chunk_words: 1, ..WriterOptions::default() };
    let sample = Sample::with(DataMode::Addresses, options, [0, 0], &[]);
    let mut sample = sample.path(&[1], &[]).path(&movs, &[]).path(&[1], &[]);
    let trace = sample.finish();
    assert_eq!(trace.totals().reads, 3);
    let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
    let mut events = Vec::new();
    while let Some(batch) = steps.next_batch().unwrap() {
        for (place, &(_, event)) in batch.events().iter().enumerate() {
            events.push((event, batch.accesses_of_event(place).map(|access| access.address()).collect::<Vec<_>>()));
        }
    }
    assert_eq!(events, [(START, vec![]), (Event::Unfinished { pc: AppPc::new(CODE) }, vec![0x10, 0x11, 0x12])]);
    assert_eq!(trace.steps(ThreadId::FIRST).unwrap().count(), 3, "without accesses there is no such event");
}

#[test]
fn gaps_and_fs_bases_are_events() {
    let gap = [&[word::event(word::GAP, 0)][..], &wide(CODE + 32)].concat();
    let fs = [&[word::event(word::FS_BASE, 0)][..], &wide(0x7777)].concat();
    let words = [&[2][..], &gap, &fs, &[1]].concat();
    let mut sample = Sample::with(DataMode::None, WriterOptions::default(), [0, 0], &[]).path(&words, &[]);
    let trace = sample.finish();
    let events: Vec<Event> = trace
        .steps(ThreadId::FIRST)
        .unwrap()
        .filter_map(|item| if let Item::Event(event) = item.unwrap() { Some(event) } else { None })
        .collect();
    assert_eq!(events, [START, Event::Gap { pc: AppPc::new(CODE + 32) }, Event::FsBase { base: 0x7777 }]);
    assert!(matches!(trace.steps_with_accesses(ThreadId::FIRST), Err(ReadError::NoData)));
    assert!(matches!(trace.merged_with_accesses(), Err(ReadError::NoData)));
    assert!(matches!(trace.par_chunks_with_accesses(|_| ()), Err(ReadError::NoData)));
}

#[test]
fn fs_bases_reach_over_chunks() {
    let access = AccessDescriptor { displacement: 8, ..plain(0, 8, code::HAS_FS) };
    for codec in [Codec::Raw, Codec::Adaptive] {
        let options = WriterOptions { chunk_words: 3, codec, ..WriterOptions::default() };
        let fs = |base| [&[word::event(word::FS_BASE, 0)][..], &wide(base)].concat();
        let sample = Sample::with(DataMode::Addresses, options, [0, 0], &[access]);
        let sample = sample.path(&[1], &[]).path(&fs(0x100), &[]).path(&[1, 1, 1], &[]).path(&fs(0x200), &[]);
        let addresses: Vec<u64> = sample.path(&[1], &[]).accesses().iter().map(|seen| seen.address).collect();
        assert_eq!(addresses, [8, 0x108, 0x108, 0x108, 0x208]);
    }
}

#[test]
fn seeking_finds_the_accesses_of_the_rest() {
    let accesses: Vec<AccessDescriptor> = (0..32)
        .map(|i| AccessDescriptor { block: i / 16, displacement: i64::from(i), ..plain(i % 16, 1, 0) })
        .collect();
    let string = string_event(CODE, 0x10, 0, 1, 1 | word::STRING_READS_SOURCE, 0);
    let words = [&[2, 2][..], &string, &[1]].concat();
    let mut sample = Sample::with(DataMode::Addresses, WriterOptions::default(), [0, 0], &accesses).path(&words, &[]);
    let trace = sample.finish();
    let all: Vec<u64> = (0..32).chain(0..32).chain([0x10]).chain(0..16).collect();
    for number in 0..80 {
        let mut steps = trace.seek_with_accesses(ThreadId::FIRST, InstructionIndex::new(number)).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = steps.next_batch().unwrap() {
            let items = batch.items_with_accesses().flat_map(|(_, accesses)| accesses);
            assert_eq!(items.count(), batch.accesses().count());
            found.extend(batch.accesses().map(|access| access.address()));
        }
        // The access of an event belongs to the first instruction of the last path.
        let skipped = if number > 64 { number + 1 } else { number } as usize;
        assert_eq!(found, all[skipped..], "{number}");
    }
}

#[test]
fn impossible_access_descriptors_are_refused() {
    use code::{HAS_BASE, HAS_INDEX};
    let refusal = |lengths: [u32; 2], access: AccessDescriptor| {
        let mut sample = Sample::new(lengths, &[access]);
        let error = sample.writer.take().unwrap().finish(Exit::Unknown).map(|_| ()).unwrap_err();
        assert!(matches!(error, trackway_trace::WriteError::AccessDescriptors { .. }), "{error}: {access:?}");
    };
    let vector = AccessDescriptor { kind: code::MASKED, count: 4, ..plain(0, 4, 0) };
    for (lengths, access) in [
        ([2, 4], plain(0, 1, 0)),
        ([4, 1 << 20], plain(0, 1, 0)),
        ([4, 8], plain(0, 1, HAS_BASE)),
        ([8, 8], AccessDescriptor { index: 4, ..plain(0, 1, HAS_INDEX) }),
        ([8, 8], AccessDescriptor { block: 2, ..plain(0, 1, 0) }),
        ([8, 8], plain(16, 1, 0)),
        ([8, 8], plain(0, 0, 0)),
        ([8, 8], AccessDescriptor { kind: 6, ..plain(0, 1, 0) }),
        ([8, 8], AccessDescriptor { value: 1, ..plain(0, 8, 0) }),
        ([8, 8], AccessDescriptor { count: 65, ..vector }),
        ([8, 8], AccessDescriptor { mask_kind: 3, ..vector }),
        ([8, 8], AccessDescriptor { mask_kind: code::MASK_SIGNS, ..vector }),
        ([8, 8], AccessDescriptor { kind: code::INDEXED, index_bytes: 3, ..vector }),
        ([8, 8], AccessDescriptor { kind: code::BIT, count: 3, ..plain(0, 4, 0) }),
    ] {
        refusal(lengths, access);
    }
}

#[test]
fn data_of_another_length_is_an_error_and_the_path_is_kept() {
    for data in [&[0; 4][..], &[0; 12]] {
        let mut sample = Sample::new([8, 8], &[]).path(&[1], data);
        let path = trackway_trace::partial_path(&sample.directory.path().join("a.trk"));
        let error = sample.writer.take().unwrap().finish(Exit::Unknown).map(|_| ()).unwrap_err();
        assert!(
            matches!(error, trackway_trace::WriteError::Data { thread: ThreadId::FIRST, needed: 8, .. }),
            "{error}"
        );
        let trace = Trace::open(&path).unwrap();
        assert_eq!(trace.totals().instructions, 16);
        let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
        assert!(steps.next_batch().unwrap_err().to_string().contains("data is missing"));
        assert_eq!(steps.next_batch().unwrap().unwrap().steps().len(), 1);
    }
}
