//! The index finds an instruction of the merged order: the same one as counting, and without
//! reading what is before it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use acceptance::call::Data;
use acceptance::source::compile;
use acceptance::{Call, RecordedCall, process, trackway};
use trace::{AppPc, Batch, InstructionIndex, Item, MergedBatches, ThreadId, Trace, Tsc};
use workloads::{Exit, Variant};

/// Records some threads, each of which goes round a loop of nine instructions.
fn spun(threads: u32, rounds: u64) -> RecordedCall {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/spin.c");
    let program = compile(directory.path(), "spin.c", text, &["gcc", "-O1", "-pthread"]);
    Call::new(program).args([threads.to_string(), rounds.to_string()]).recorded()
}

/// The address of an instruction of the only thread, and how many chunks were decoded to find it.
fn found(trace: &Trace, index: InstructionIndex) -> (AppPc, u64) {
    let mut merged = trace.merged();
    let before = merged.seek(index);
    let decoded = merged.chunks_decoded();
    let batch = merged.next_batch().unwrap().unwrap();
    assert_eq!(batch.first_instruction() + before, index);
    let mut instructions = batch.steps().iter().flat_map(|step| trace.blocks().instructions(step));
    (instructions.nth(before as usize).unwrap().address, decoded)
}

#[test]
fn seeking_in_billions_of_instructions_decodes_a_few_chunks() {
    let recorded = spun(1, 800_000_000);
    let trace = &recorded.trace;
    let total = trace.totals().instructions;
    let chunks = trace.path_chunks().count();
    assert!(total > 5_000_000_000 && chunks > 15, "{total} instructions in {chunks} chunks");
    for number in (0..20).map(|place| InstructionIndex::new(total / 20 * place + 1)) {
        let (address, decoded) = found(trace, number);
        let Some(Ok(Item::Step(step))) =
            trace.seek(ThreadId::FIRST, number).unwrap().find(|item| matches!(item, Ok(Item::Step(_)) | Err(_)))
        else {
            panic!("nothing at {number}");
        };
        assert_eq!(trace.blocks().instructions(&step).next().unwrap().address, address, "{number}");
        assert!(decoded <= 3, "{decoded} chunks for instruction {number}");
    }
}

/// A description of a batch.
#[derive(Debug, PartialEq)]
struct MergedItems {
    thread: ThreadId,
    first: InstructionIndex,
    tsc: Tsc,
    instructions: u64,
    /// A hash of its steps, events and accesses with their values.
    hash: u64,
}

impl MergedItems {
    fn new(batch: &Batch) -> Self {
        let mut hasher = DefaultHasher::new();
        for (item, accesses) in batch.items_with_accesses() {
            format!("{item:?}").hash(&mut hasher);
            accesses.for_each(|own| (own.pc(), own.address(), own.is_write(), batch.value(&own)).hash(&mut hasher));
        }
        let (thread, first, tsc) = (batch.thread(), batch.first_instruction(), batch.tsc());
        Self { thread, first, tsc, instructions: batch.instructions(), hash: hasher.finish() }
    }
}

fn batches(merged: &mut MergedBatches<'_>, most: usize) -> Vec<MergedItems> {
    std::iter::from_fn(|| merged.next_batch().unwrap().map(MergedItems::new)).take(most).collect()
}

/// Compares what follows a seek with what counting finds there, in many places.
fn check(make: impl Fn() -> MergedBatches<'static>, name: &str) {
    let all = batches(&mut make(), usize::MAX);
    let total: u64 = all.iter().map(|batch| batch.instructions).sum();
    let places = (0..60).map(|place| total / 60 * place + place % 7);
    for number in places.chain([1, total - 1, total, total + 1]) {
        let (mut left, mut at) = (number, 0);
        while let Some(batch) = all.get(at).filter(|batch| left > 0 && batch.instructions <= left) {
            left -= batch.instructions;
            at += 1;
        }
        let mut merged = make();
        assert_eq!(merged.seek(InstructionIndex::new(number)), left, "{name}, instruction {number} of {total}");
        let following = batches(&mut merged, 20);
        assert_eq!(following, all[at..all.len().min(at + 20)], "{name}, instruction {number} of {total}");
    }
}

#[test]
fn seeking_finds_what_counting_finds() {
    for (name, arguments) in
        [("radiosity", ["4", "1"]), ("cholesky", ["3", "10"]), ("fft", ["8", "4"]), ("tree", ["2", "1"])]
    {
        let program = workloads::build(name, Variant::Pie).unwrap();
        let recorded = Call::new(program).args(arguments).data(Data::Values).recorded();
        // Readers are made anew for every place.
        let trace: &'static Trace = Box::leak(Box::new(recorded.trace));
        check(|| trace.merged(), name);
        check(|| trace.merged().interleaved(10), name);
        check(|| trace.merged_with_accesses().unwrap(), name);
    }
}

/// Destroys the payloads of the first half of all path chunks. Returns their number.
fn destroy_paths(file: &mut [u8]) -> usize {
    let (mut at, mut payloads) = (16, Vec::new());
    while file[at..].starts_with(&[0xa7, b'T', b'k', b'C']) {
        let extra = usize::from(u16::from_le_bytes(file[at + 6..at + 8].try_into().unwrap()));
        let stored = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        let payload = at + 32 + extra;
        payloads.extend((file[at + 4] == 4).then_some(payload));
        at = payload + stored;
    }
    payloads.truncate(payloads.len() / 2);
    payloads.iter().for_each(|&payload| file[payload] ^= 0x55);
    payloads.len()
}

/// The output of a verb about some instructions of a file, none of which may be damaged.
fn printed(verb: &[&str], skip: u64, file: &Path) -> String {
    let (name, options) = verb.split_first().unwrap();
    let mut command = Command::new(trackway());
    command.args([name, "--skip", &skip.to_string(), "--length", "5000"]).args(options).arg(file);
    let finished = process::run(&mut command);
    let problem = finished.stderr_text();
    assert!(finished.exit == Exit::Status(0) && !problem.contains("left out:"), "{command:?}: {problem}");
    finished.stdout_text()
}

/// Compares the output of verbs about a place behind destroyed paths with their output before.
fn check_verbs(recorded: &RecordedCall, verbs: &[&[&str]]) {
    let skip = recorded.trace.totals().instructions / 10 * 9;
    let mut merged = recorded.trace.merged();
    merged.seek(InstructionIndex::new(skip));
    assert!(merged.chunks_decoded() <= 8, "{} chunks", merged.chunks_decoded());
    let intact: Vec<String> = verbs.iter().map(|verb| printed(verb, skip, &recorded.path)).collect();
    // A verb that reads the first half complains from now on.
    let mut file = std::fs::read(&recorded.path).unwrap();
    assert!(destroy_paths(&mut file) > 4);
    let damaged = recorded.path.with_extension("damaged");
    std::fs::write(&damaged, &file).unwrap();
    std::fs::rename(&damaged, &recorded.path).unwrap();
    for (verb, intact) in verbs.iter().zip(intact) {
        assert_eq!(printed(verb, skip, &recorded.path), intact, "{verb:?}");
    }
}

#[test]
fn no_verb_reads_chunks_before_skip() {
    let recorded = spun(2, 300_000_000);
    let descriptors = recorded.directory.path().join("descriptors").display().to_string();
    let verbs = [
        &["dump"][..],
        &["dump", "--kind", "control", "-d"],
        &["stat", "--json"],
        &["verify", "--json"],
        &["segment", "--json", "-i"],
        &["port", "--technique", "all", "--json"],
        &["mcfTrace", "-a", "-o", &descriptors, "-i"],
        &["mcfTRaptor", "-a", "-o", &descriptors, "-i"],
        &["mcfTRaptor", "--shared", "-a", "-o", &descriptors, "-i"],
    ];
    check_verbs(&recorded, &verbs);
}

#[test]
fn no_verb_reads_accesses_before_skip() {
    let program = workloads::build("tree", Variant::Pie).unwrap();
    let recorded = Call::new(program).args(["2", "5"]).data(Data::Values).recorded();
    let descriptors = recorded.directory.path().join("descriptors").display().to_string();
    let verbs = [
        &["dump", "--kind", "memory"][..],
        &["port", "--technique", "mlvCF_e", "--json"],
        &["mlsTrace", "-a", "-o", &descriptors, "-i"],
        &["mlvCFiat", "-a", "-o", &descriptors, "-i"],
    ];
    check_verbs(&recorded, &verbs);
}
