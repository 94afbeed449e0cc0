//! Makes the corpus: valid inputs for every target.

use std::path::Path;

use filter::cfiat::KnownCriterion;
use fuzzing::driver::folder;
use memory::second_stage::SecondStage;
use port::cores::Cores;
use port::file::{self, Description};
use port::{Config, Job, PortSettings, Subject, Technique};
use trace::{
    AccessDescriptors, AppPc, BlockId, Codec, DataMode, Exit, Fragment, FragmentId, PathId, Recording, ThreadId,
    ThreadInfo, Trace, Writer, WriterOptions,
};
use wire::code::{
    self, AccessDescriptor, BlockRecord, FragmentBlock, FragmentExit, FragmentRecord, HAS_BASE, Payload,
    TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL, TERMINATOR_TAKEN, WRITES,
};
use wire::word;

const TRACES: [(&str, &[u8]); 3] = [
    ("version-1", include_bytes!("../../../trace/tests/fixtures/version-1.trk")),
    ("version-2-values", include_bytes!("../../../trace/tests/fixtures/version-2-values.trk")),
    ("version-3-allocations", include_bytes!("../../../trace/tests/fixtures/version-3-allocations.trk")),
];

/// Writes all inputs.
pub fn write() {
    for (name, file) in TRACES {
        put("open", name, file);
        put("framed", name, &fuzzing::unframed(file));
    }
    for (name, codec) in [("zstd", Codec::Zstd), ("predict", Codec::Predict), ("fast", Codec::Fast)] {
        put("framed", name, &fuzzing::unframed(&countdown(codec)));
    }
    put("accesses", "plain", &accesses());
    for (name, flags) in [("control", 1), ("unfinished", 0), ("part", 3)] {
        put("rings", name, &rings(flags));
    }
    for technique in Technique::ALL {
        put("port_bits", technique.name(), &port_file(technique, &PortSettings::default()));
    }
    let flags = PortSettings { known_by: KnownCriterion::Flags, ..PortSettings::default() };
    put("port_bits", "mlvCF_e-flags", &port_file(Technique::MlvCfE, &flags));
    for codec in memory::MemoryCodec::ALL {
        put("memory_trace", codec.name(), &memory_trace(codec));
    }
}

/// A memory trace of two threads in a nest of loops, without a second stage, so that mutations
/// reach the contents.
fn memory_trace(codec: memory::MemoryCodec) -> Vec<u8> {
    let entry = AppPc::new(0x1000);
    let function = memory::FunctionScope { name: "nest".into(), image: 0, entry };
    let found = memory::LoopScope { function: 0, parent: None, entry, is_irreducible: false };
    let origin = memory::Origin { codec, functions: vec![function], loops: vec![found], ..memory::Origin::default() };
    let options = memory::CompressionOptions {
        piece_bytes: 16,
        stage: SecondStage::Store,
        ..memory::CompressionOptions::default()
    };
    let mut writer = memory::MemoryTraceWriter::new(Vec::new(), &origin, options).unwrap();
    for (turn, row) in (0..8u64).enumerate() {
        let mut thread = writer.thread(ThreadId::new(turn as u32 % 2));
        let point = thread.point(memory::AccessPoint { image: 0, pc: entry, size: 8, is_write: row % 2 == 0 });
        thread.scope(memory::Action::EnterLoop(memory::LoopIndex(0))).unwrap();
        for column in 0..5 {
            thread.access(point, 0x10_0000 + 800 * row + 8 * column * (row % 3)).unwrap();
            thread.end_row();
        }
        thread.finish().unwrap();
    }
    writer.finish().unwrap().0
}

fn put(target: &str, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder(target)).unwrap();
    std::fs::write(folder(target).join(name), bytes).unwrap();
}

/// dec dword ptr [rsi]; jnz -4
const LOOP: [u8; 4] = [0xff, 0x0e, 0x75, 0xfc];
/// mov eax, 60; syscall
const LEAVING: [u8; 7] = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
const LOOP_EXITS: [FragmentExit; 2] =
    [FragmentExit::new(1, TERMINATOR_TAKEN), FragmentExit::new(2, TERMINATOR_SYSCALL)];
const ENTRY: u32 = 0x1000;

/// A trace of a loop that counts down, with values, whose words and data are long enough to be
/// compressed.
fn countdown(codec: Codec) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("countdown.trk");
    let recording = Recording { command: vec!["countdown".into()], data: DataMode::Values, ..Recording::default() };
    let options = WriterOptions { codec, ..WriterOptions::default() };
    let mut writer = Writer::create_with(&path, &recording, options).unwrap();
    let (entry, numbers) = (AppPc::new(ENTRY.into()), [1, 2].map(BlockId::new));
    writer.block(0, numbers[0], entry, &LOOP).unwrap();
    writer.block(0, numbers[1], entry + 4, &LEAVING).unwrap();
    let blocks = numbers.map(|number| FragmentBlock::new(number, false));
    let [whole, last] = [1, 3].map(|first_path| FragmentId::new(PathId::new(first_path)));
    writer.fragment(0, &Fragment { fragment: whole, blocks: &blocks, exits: &LOOP_EXITS }).unwrap();
    let read = AccessDescriptor { size: 4, flags: HAS_BASE, value: 8, ..AccessDescriptor::default() };
    let accesses = [read, AccessDescriptor { flags: HAS_BASE | WRITES, value: 12, ..read }];
    let descriptors = AccessDescriptors { fragment: whole, lengths: &[16, 16], accesses: &accesses };
    writer.access_descriptors(&descriptors).unwrap();
    let exits = [FragmentExit::new(1, TERMINATOR_NOT_TAKEN)];
    writer.fragment(0, &Fragment { fragment: last, blocks: &blocks[..1], exits: &exits }).unwrap();
    writer.thread(&ThreadInfo::default()).unwrap();
    let words = words();
    let data: Vec<u8> =
        (0..=ROUNDS).rev().flat_map(|left| [0x7ff0, 0, left + 1, left]).flat_map(u32::to_le_bytes).collect();
    writer.path_with_data(0, ThreadId::FIRST, &words, &data).unwrap();
    writer.finish(Exit::Code(0)).unwrap();
    std::fs::read(&path).unwrap()
}

const ROUNDS: u32 = 60;

/// The words of the countdown.
fn words() -> Vec<u32> {
    let mut words = vec![word::event(word::START, 0), ENTRY, 0, 1000, 0];
    for round in 0..ROUNDS {
        words.push(1);
        if round % 20 == 7 {
            words.extend([word::event(word::TIME, 0), 1000 + round, 0]);
        }
    }
    words.extend([2, word::event(word::SYSCALL, 0), 60, 2000, 0, word::event(word::END, 0), 2001, 0]);
    words
}

fn accesses() -> Vec<u8> {
    let mut input = [[8u16, 16].map(u16::to_le_bytes).concat(), vec![3]].concat();
    for (block, offset, kind, flags) in
        [(0, 1, code::PLAIN, HAS_BASE), (0, 2, code::MASKED, HAS_BASE | WRITES), (1, 3, code::BIT, HAS_BASE)]
    {
        input.extend([block, offset, 4, 0, kind, flags, 0, 0, 0, 0, 16, 0, 8, 0, 2, code::MASK_BITS, 4]);
        input.extend([0; 16]);
    }
    input.push(4);
    input.extend([0, 1, 0, 1]);
    input.extend(0..160u8);
    input
}

/// The countdown as an engine writes it.
fn rings(flags: u8) -> Vec<u8> {
    let mut records = Vec::new();
    for (number, address, code) in [(1, ENTRY, &LOOP[..]), (2, ENTRY + 4, &LEAVING)] {
        append(&mut records, BlockRecord { address: AppPc::new(address.into()), block: BlockId::new(number), code });
    }
    let fragment = FragmentRecord {
        fragment: FragmentId::new(PathId::new(1)),
        is_uninstrumented: false,
        blocks: [1, 2].map(|number| FragmentBlock::new(BlockId::new(number), false)).into_iter(),
        exits: LOOP_EXITS.into_iter(),
    };
    append(&mut records, fragment);
    let mut input = vec![flags];
    input.extend((records.len() as u16).to_le_bytes());
    input.extend(records);
    input.extend(words().into_iter().flat_map(u32::to_le_bytes));
    input
}

/// Appends a record of the code ring.
fn append<P: Payload>(records: &mut Vec<u8>, payload: P) {
    records.extend([P::KIND, payload.length() as u32].map(u32::to_le_bytes).concat());
    payload.write(&mut |piece| records.extend_from_slice(piece));
    records.resize(records.len().next_multiple_of(8), 0);
}

/// A file with the bits of a technique for the recorded trace.
fn port_file(technique: Technique, settings: &PortSettings) -> Vec<u8> {
    let mut description = Description::new(technique, &Config::LARGE, settings);
    let bits = bits(technique, settings);
    (description.bits, description.cores) = (8 * bits.len() as u64, 1);
    [&file::MAGIC[..], &bits, &description.trailer()].concat()
}

fn bits(technique: Technique, settings: &PortSettings) -> Vec<u8> {
    let trace = Trace::open(Path::new("../trace/tests/fixtures/version-2-values.trk")).unwrap();
    let cores = Cores::new(trace.threads().iter().map(|thread| thread.info.thread), None).unwrap();
    let mut job = Job::new(&[technique], Some(&Config::LARGE), settings, &cores, true).unwrap();
    let mut merged =
        if technique.subject() == Subject::Loads { trace.merged_with_accesses().unwrap() } else { trace.merged() };
    while let Some(batch) = merged.next_batch().unwrap() {
        job.batch(trace.blocks(), batch);
    }
    job.finish();
    job.ports().into_iter().flat_map(|port| port.finish()).collect()
}
