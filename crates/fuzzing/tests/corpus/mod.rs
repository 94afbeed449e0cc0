//! Makes the corpus: valid inputs for every target.

use std::path::Path;

use filter::cfiat::KnownCriterion;
use fuzzing::driver::folder;
use port::cores::Cores;
use port::file::{self, Description};
use port::{Config, Job, PortSettings, Subject, Technique};
use trace::{AccessDescriptors, Codec, DataMode, Exit, Fragment, Options, Recording, ThreadInfo, Trace, Writer};
use wire::code::{
    self, AccessDescriptor, HAS_BASE, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL, TERMINATOR_TAKEN, WRITES,
};
use wire::word;

const TRACES: [(&str, &[u8]); 2] = [
    ("version-1", include_bytes!("../../../trace/tests/fixtures/version-1.trk")),
    ("version-2-values", include_bytes!("../../../trace/tests/fixtures/version-2-values.trk")),
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
}

fn put(target: &str, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder(target)).unwrap();
    std::fs::write(folder(target).join(name), bytes).unwrap();
}

/// dec dword ptr [rsi]; jnz -4
const LOOP: [u8; 4] = [0xff, 0x0e, 0x75, 0xfc];
/// mov eax, 60; syscall
const LEAVING: [u8; 7] = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
const LOOP_EXITS: [u32; 2] = [1 | TERMINATOR_TAKEN << 16, 2 | TERMINATOR_SYSCALL << 16];
const ENTRY: u32 = 0x1000;

/// A trace of a loop that counts down, with values, whose words and data are long enough to be
/// compressed.
fn countdown(codec: Codec) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("countdown.trk");
    let recording = Recording { command: vec!["countdown".into()], data: DataMode::Values, ..Recording::default() };
    let options = Options { codec, ..Options::default() };
    let mut writer = Writer::create_with(&path, &recording, options).unwrap();
    writer.block(0, 1, ENTRY.into(), &LOOP).unwrap();
    writer.block(0, 2, u64::from(ENTRY) + 4, &LEAVING).unwrap();
    writer.fragment(0, &Fragment { first_path: 1, blocks: &[1, 2], exits: &LOOP_EXITS }).unwrap();
    let read = AccessDescriptor { size: 4, flags: HAS_BASE, value: 8, ..AccessDescriptor::default() };
    let accesses = [read, AccessDescriptor { flags: HAS_BASE | WRITES, value: 12, ..read }];
    writer.access_descriptors(&AccessDescriptors { first_path: 1, lengths: &[16, 16], accesses: &accesses }).unwrap();
    writer.fragment(0, &Fragment { first_path: 3, blocks: &[1], exits: &[1 | TERMINATOR_NOT_TAKEN << 16] }).unwrap();
    writer.thread(&ThreadInfo::default()).unwrap();
    let words = words();
    let data: Vec<u8> =
        (0..=ROUNDS).rev().flat_map(|left| [0x7ff0, 0, left + 1, left]).flat_map(u32::to_le_bytes).collect();
    writer.path_with_data(0, 0, &words, &data).unwrap();
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
    let mut record = |kind: u32, payload: &[u8]| {
        records.extend([kind, payload.len() as u32].map(u32::to_le_bytes).concat());
        records.extend(payload);
        records.resize(records.len().next_multiple_of(8), 0);
    };
    for (number, address, bytes) in [(1, ENTRY, &LOOP[..]), (2, ENTRY + 4, &LEAVING)] {
        record(code::BLOCK, &[&[address, 0, number, 0].map(u32::to_le_bytes).concat()[..], bytes].concat());
    }
    record(code::FRAGMENT, &[1, 2, 2, 0, 1, 2, LOOP_EXITS[0], LOOP_EXITS[1]].map(u32::to_le_bytes).concat());
    let mut input = vec![flags];
    input.extend((records.len() as u16).to_le_bytes());
    input.extend(records);
    input.extend(words().into_iter().flat_map(u32::to_le_bytes));
    input
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
