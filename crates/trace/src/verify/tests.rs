//! Words of a good trace are changed behind its checksums and counts: `verify` has to notice, class
//! by class.

use std::collections::BTreeMap;

use codec::path::bytes;
use entity::{AppPc, PathId, ThreadId};
use wire::word;

use super::follow::{Continuation, Transition};
use crate::InstructionIndex;
use crate::access::AccessBuffer;
use crate::container::{CODEC_RAW, ChunkHeader, ChunkKind, Extra, TRAILER_BYTES, crc, file_header, trailer};
use crate::data;
use crate::decode::{DecodeBuffers, decode};
use crate::model::{DataMode, Terminator};
use crate::program::Program;
use crate::tally::Tally;
use crate::trace::Trace;

const CONTROL_FLOW: &[u8] = include_bytes!("../../tests/fixtures/version-2.trk");
const VALUES: &[u8] = include_bytes!("../../tests/fixtures/version-2-values.trk");

/// A path or an event, and the data behind it.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    words: Vec<u32>,
    data: Vec<u8>,
}

impl Entry {
    fn first(&self) -> u32 {
        self.words[0]
    }

    fn path(&self) -> Option<PathId> {
        word::path(self.first())
    }

    fn is_path(&self) -> bool {
        self.path().is_some()
    }

    fn is_event(&self, kinds: &[u8]) -> bool {
        !self.is_path() && kinds.contains(&word::kind(self.first()))
    }
}

/// The entries of every path chunk of a trace, by place.
type Entries = BTreeMap<usize, Vec<Entry>>;

fn entries(trace: &Trace) -> Entries {
    let places = (0..trace.chunks().len()).filter(|&place| trace.chunks()[place].path().is_some());
    places.map(|place| (place, entries_of(trace, place))).collect()
}

fn entries_of(trace: &Trace, place: usize) -> Vec<Entry> {
    let program = trace.program();
    let (mut buffers, mut words, mut content) = (DecodeBuffers::default(), Vec::new(), Vec::new());
    decode(trace, &trace.chunks()[place], &mut buffers, &mut words).unwrap();
    if let Some(chunk) = trace.data_chunk(place) {
        let payload = trace.payload(chunk).unwrap();
        buffers.data.read(program, &words, &chunk.header, payload, &mut content).unwrap();
    }
    let (mut rest, mut entries) = (&words[..], Vec::new());
    while let Some(&first) = rest.first() {
        let (own, others) = rest.split_at(word::length(first).unwrap());
        let length = if content.is_empty() { 0 } else { needed(program, first) };
        entries.push(Entry { words: own.to_vec(), data: content.drain(..length).collect() });
        rest = others;
    }
    entries
}

fn needed(program: &Program, first: u32) -> usize {
    word::path(first).map_or_else(|| codec::event::event_bytes(first), |path| data::path_bytes(program, path).unwrap())
}

/// Writes the trace with other entries, with headers, counts, checksums and index that agree with
/// them.
fn rewrite(trace: &Trace, entries: &Entries) -> Vec<u8> {
    let (mut file, mut index) = (file_header().to_vec(), Vec::new());
    let mut instructions: BTreeMap<ThreadId, InstructionIndex> = BTreeMap::new();
    let mut last: &[Entry] = &[];
    let index_header = trace.chunks().last().unwrap().header;
    assert_eq!(index_header.kind, ChunkKind::Index);
    for (place, chunk) in trace.chunks().iter().enumerate().filter(|(_, chunk)| chunk.header.kind != ChunkKind::Index) {
        let mut header = chunk.header;
        let mut stored = trace.payload(chunk).unwrap().to_vec();
        if let Extra::Path(path) = &mut header.extra {
            last = &entries[&place];
            let words = words_of(last);
            let total = Tally::new(trace.program()).words(&words).unwrap();
            let first = instructions.entry(path.thread).or_default();
            path.first_instruction = *first;
            *first += total.counts.instructions;
            path.counts = total.counts;
            (path.first_tsc, path.last_tsc) = (total.first_tsc, total.last_tsc);
            (path.start_pc, path.end_pc) = (total.start_pc, total.end_pc);
            (header.codec, stored) = (CODEC_RAW, bytes(&words).to_vec());
        }
        if let Extra::Data(own) = &mut header.extra {
            // It stands behind its path chunk.
            let content: Vec<u8> = last.iter().flat_map(|entry| entry.data.clone()).collect();
            let source = data::DataSource { program: trace.program(), data: &content };
            let total = data::count(source, &words_of(last), own.fs_base, &mut AccessBuffer::default());
            (own.reads, own.writes) = (total.reads, total.writes);
            (header.codec, stored) = (CODEC_RAW, content);
        }
        index.extend((file.len() as u64).to_le_bytes());
        let at = file.len();
        let length = put(&mut file, header, &stored);
        index.extend_from_slice(&file[at..at + length]);
    }
    let at = file.len() as u64;
    put(&mut file, ChunkHeader { codec: CODEC_RAW, ..index_header }, &index);
    let length = (file.len() + TRAILER_BYTES) as u64;
    file.extend(trailer(at, length));
    file
}

fn words_of(entries: &[Entry]) -> Vec<u32> {
    entries.iter().flat_map(|entry| entry.words.clone()).collect()
}

/// Appends a chunk and gives the length of its header. What is stored as it is has a new checksum.
fn put(file: &mut Vec<u8>, mut header: ChunkHeader, stored: &[u8]) -> usize {
    if header.codec == CODEC_RAW {
        (header.raw_length, header.raw_crc) = (stored.len() as u32, crc(&[stored]));
    }
    (header.stored_length, header.stored_crc) = (stored.len() as u32, crc(&[stored]));
    let start = file.len();
    header.write(file);
    let length = file.len() - start;
    file.extend_from_slice(stored);
    length
}

/// How a thread came to an entry, according to the entry before it.
fn class_before(program: &Program, entries: &[Entry], at: usize) -> &'static str {
    const WITHOUT_EXECUTION: [u8; 5] = [word::TIME, word::FS_BASE, word::STRING, word::ACCESS, word::CHILD];
    let Some(before) = entries[..at].iter().rev().find(|entry| !entry.is_event(&WITHOUT_EXECUTION)) else {
        return "chunk";
    };
    if !before.is_path() {
        return match word::kind(before.first()) {
            word::START => "start",
            word::SYSCALL => "system call",
            word::SIGNAL => "signal",
            word::RESUME => "resume",
            _ => "end",
        };
    }
    let last = program.path(before.path().unwrap()).unwrap().last;
    match last.terminator() {
        Terminator::Indirect => {
            let block = program.blocks.get(last.block()).unwrap();
            let is_register = block.code().ends_with(&[0xff, 0xd0]) || block.code().ends_with(&[0xff, 0xe2]);
            if is_register { "indirect by register" } else { "indirect by memory" }
        }
        Terminator::Taken | Terminator::NotTaken => "conditional",
        Terminator::Syscall => "system call instruction",
        _ => "direct",
    }
}

/// Corruptions that were noticed, and all, by class.
type Score = BTreeMap<(&'static str, &'static str), (usize, usize)>;

struct Corruptions<'t> {
    trace: &'t Trace,
    entries: Entries,
    score: Score,
}

impl Corruptions<'_> {
    /// Changes the entries of a chunk and looks whether that is noticed.
    fn attempt(&mut self, what: &'static str, place: usize, at: usize, change: impl Fn(&mut Vec<Entry>)) {
        let mut changed = self.entries.clone();
        change(changed.get_mut(&place).unwrap());
        assert_ne!(changed, self.entries, "{what} changes nothing");
        let class = class_before(self.trace.program(), &self.entries[&place], at);
        let report = Trace::from_bytes(rewrite(self.trace, &changed)).unwrap().verify();
        let (noticed, all) = self.score.entry((what, class)).or_default();
        *noticed += usize::from(!report.is_sound());
        *all += 1;
    }

    /// Another path in the place of the one at `at`; its data is as long as it must be.
    fn replace(&mut self, what: &'static str, place: usize, at: usize, path: PathId) {
        let length = if self.trace.data() == DataMode::None { 0 } else { needed(self.trace.program(), path.get()) };
        self.attempt(what, place, at, |entries| {
            entries[at].words = vec![path.get()];
            entries[at].data.resize(length, 0);
        });
    }

    fn corrupt_path(&mut self, place: usize, at: usize) {
        let program = self.trace.program();
        let own_path = self.entries[&place][at].path().unwrap();
        let own = program.fragment_of(own_path).unwrap();
        for fragment in program.fragments() {
            for path in fragment.paths() {
                if fragment.head != own.head {
                    self.replace("another fragment", place, at, path);
                } else if path != own_path {
                    self.replace("another exit", place, at, path);
                }
            }
        }
        self.attempt("a path is missing", place, at, |entries| drop(entries.remove(at)));
        self.attempt("a path twice", place, at, |entries| entries.insert(at, entries[at].clone()));
    }

    /// Changes the address in an event, which begins with the word `address`.
    fn corrupt_event(&mut self, place: usize, at: usize, address: usize) {
        for change in [1, 2, 0u32.wrapping_sub(1), 0u32.wrapping_sub(2), 0x1000] {
            self.attempt("an address of an event", place, at, |entries| {
                let word = &mut entries[at].words[address];
                *word = word.wrapping_add(change);
            });
        }
    }

    fn corrupt(&mut self, place: usize, at: usize) {
        let entry = &self.entries[&place][at];
        let has_address = entry.is_event(&[word::START, word::SYSCALL, word::SIGNAL, word::RESUME]);
        if entry.is_path() {
            self.corrupt_path(place, at);
        } else if entry.is_event(&[word::START, word::RESUME]) {
            self.corrupt_event(place, at, 1);
        } else if entry.is_event(&[word::SIGNAL]) {
            self.corrupt_event(place, at, 3);
            self.corrupt_event(place, at, 5);
        }
        if has_address {
            self.attempt("an event is missing", place, at, |entries| drop(entries.remove(at)));
            self.attempt("an event twice", place, at, |entries| entries.insert(at, entries[at].clone()));
        }
    }
}

/// Corrupts every path and event of a trace in every way, one at a time.
fn corrupt_all(file: &[u8]) -> Score {
    let trace = Trace::from_bytes(file.to_vec()).unwrap();
    let entries = entries(&trace);
    let same = Trace::from_bytes(rewrite(&trace, &entries)).unwrap().verify();
    assert!(same.is_sound(), "{:?}", same.problems);
    let places: Vec<(usize, usize)> =
        entries.iter().flat_map(|(&place, entries)| (0..entries.len()).map(move |at| (place, at))).collect();
    let mut corruptions = Corruptions { trace: &trace, entries, score: Score::new() };
    places.into_iter().for_each(|(place, at)| corruptions.corrupt(place, at));
    for ((what, class), (noticed, all)) in &corruptions.score {
        println!("{what} behind {class}: {noticed} of {all} noticed");
    }
    corruptions.score
}

/// How many corruptions of each class were missed.
fn missed(file: &[u8]) -> Vec<(&'static str, &'static str, usize)> {
    let score = corrupt_all(file);
    let missed = score.into_iter().map(|((what, class), (noticed, all))| (what, class, all - noticed));
    missed.filter(|&(.., count)| count > 0).collect()
}

/// Both traces are sound with these.
const LEGAL: [(&str, &str, usize); 2] = [
    // The two signals came behind a system call: it might have been made again.
    ("an address of an event", "system call", 2),
    // exit and execve before the thread's end: it might have been killed before it made the call.
    ("an event is missing", "system call instruction", 3),
];

#[test]
fn with_values_all_is_noticed_but_wrong_targets_in_registers() {
    let registers = [
        ("a path is missing", "indirect by register", 2),
        // These end in such a transfer.
        ("a path twice", "indirect by memory", 2),
        LEGAL[0],
        LEGAL[1],
        ("another fragment", "indirect by register", 4),
    ];
    assert_eq!(missed(VALUES), registers);
}

#[test]
fn without_values_all_is_noticed_but_wrong_indirect_targets() {
    let missed = missed(CONTROL_FLOW);
    let is_indirect = |class: &str| class.starts_with("indirect");
    let others: Vec<_> = missed
        .into_iter()
        // A path twice is possible if it ends in an indirect transfer, however the thread came to
        // it.
        .filter(|&(what, class, _)| !is_indirect(class) && what != "a path twice")
        .collect();
    assert_eq!(others, LEGAL);
}

#[test]
fn every_class_has_its_rule() {
    use Continuation::{AnyAddress, At, NotRunning, SyscallPending, SyscallReturn, Unknown};
    const PC: AppPc = AppPc::new(0x1000);
    const HANDLER: AppPc = AppPc::new(7);
    let (path, calling) = (Transition::Execution { head: PC, continuation: AnyAddress }, SyscallPending { after: PC });
    let (signal, again) = (|pc| Transition::Signal { pc, continuation: At(HANDLER) }, AppPc::new(PC.get() - 2));
    let (called, returning) = (SyscallReturn { after: PC, number: 1 }, SyscallReturn { after: PC, number: 15 });
    let (gap, call, child) = (Transition::Gap { pc: PC }, Transition::Syscall { number: 1 }, Transition::Child);
    let (start, resume, end) = (Transition::Start { pc: PC }, Transition::Resume { pc: PC }, Transition::End);
    let good = [
        (At(PC), path, AnyAddress),
        (AnyAddress, path, AnyAddress),
        (Unknown, path, AnyAddress),
        (called, path, AnyAddress),
        (At(PC), signal(PC), At(HANDLER)),
        (called, signal(PC), At(HANDLER)),
        (called, signal(again), At(HANDLER)),
        (returning, signal(again), At(HANDLER)),
        (returning, signal(AppPc::NONE), At(HANDLER)),
        (At(PC), gap, Unknown),
        (calling, call, called),
        (Unknown, call, Unknown),
        (called, child, called),
        (NotRunning, start, At(PC)),
        (returning, resume, At(PC)),
        (At(HANDLER), resume, At(PC)),
        (calling, end, NotRunning),
        (NotRunning, end, NotRunning),
    ];
    for (before, transition, behind) in good {
        assert_eq!(before.then(&transition), Ok(behind), "{before:?}, {transition:?}");
    }
    let bad = [
        (At(PC + 2), path),
        (At(PC + 2), signal(PC)),
        (SyscallReturn { after: PC + 2, number: 1 }, path),
        (SyscallReturn { after: PC + 2, number: 1 }, gap),
        (called, signal(AppPc::NONE)),
        (calling, path),
        (calling, signal(again)),
        (calling, resume),
        (returning, path),
        (NotRunning, path),
        (NotRunning, resume),
        (At(PC), call),
        (AnyAddress, call),
        (called, call),
        (At(PC), child),
        (At(PC), start),
        (AnyAddress, start),
        (At(PC), resume),
        (At(PC + 2), gap),
    ];
    for (before, transition) in bad {
        assert!(before.then(&transition).is_err(), "{before:?}, {transition:?}");
    }
}
