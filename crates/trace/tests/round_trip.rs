//! What was recorded is what is read, for random programs, chunk sizes and codecs.

mod support;

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;
use support::{AccessRecord, Clock, ExpectedItem, SampleRecording, Setting, assert_same, record};
use trackway_trace::{
    Access, AccessVisitor, AppPc, Batch, Codec, DataMode, Event, InstructionIndex, Item, Operand, PathItem, ReadError,
    RoundRobinUnit, ThreadId, Trace, Tsc, WriterOptions,
};

fn settings() -> impl Strategy<Value = Setting> {
    let codecs =
        [Codec::Raw, Codec::Zstd, Codec::Predict, Codec::Predict, Codec::Fast, Codec::Adaptive, Codec::Adaptive];
    let codec = proptest::sample::select(codecs.to_vec());
    let sizes = (2usize..60, 1u32..4, 1u32..3, 1usize..2000, 2usize..40);
    (any::<u64>(), sizes, codec, 1usize..3000).prop_map(
        |(seed, (blocks, threads, images, runs, habit), codec, words)| {
            let options = WriterOptions {
                codec,
                chunk_words: words,
                open_words: 4 * words,
                // Often so few that two chunks are encoded at a time.
                waiting_words: words * ((seed >> 8) as usize % 4),
                latency: Duration::from_secs(3600),
                ..WriterOptions::default()
            };
            let data = [DataMode::None, DataMode::Addresses, DataMode::Values, DataMode::Values][seed as usize % 4];
            Setting {
                seed,
                blocks,
                threads,
                images,
                runs,
                habit,
                options,
                data,
                clock: Clock::default(),
                has_explicit_accesses: false,
                has_allocations: true,
            }
        },
    )
}

/// An item without the number of its block.
fn plain(trace: &Trace, item: Item) -> ExpectedItem {
    match item {
        Item::Event(event) => ExpectedItem::Event(event),
        Item::Step(step) => ExpectedItem::Step {
            address: trace.blocks().get(step.block()).expect("a block").address(),
            instructions: step.instructions(),
            terminator: step.terminator(),
            next: step.next(),
        },
    }
}

fn check(trace: &Trace, recorded: &SampleRecording) {
    assert_eq!(trace.summary(), &recorded.summary);
    assert!(trace.is_finished());
    assert_eq!(trace.damage(), []);
    let report = trace.verify();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(&report.counts, trace.totals());
    for thread in &recorded.threads {
        let items: Vec<_> = trace.steps(thread.number).unwrap().map(|item| plain(trace, item.unwrap())).collect();
        assert_same(&items, &thread.expected);
    }
    check_counts(trace, recorded);
    check_merged(trace, recorded);
    check_orders(trace);
    check_interleaved(trace, recorded);
    match trace.data() {
        DataMode::None => assert!(matches!(trace.steps_with_accesses(ThreadId::FIRST), Err(ReadError::NoData))),
        DataMode::Addresses | DataMode::Values => check_accesses(trace, recorded),
    }
}

/// An access; its value is empty if none was recorded.
fn access_record(batch: &Batch, access: Access) -> AccessRecord {
    let value = batch.value(&access).map(<[u8]>::to_vec).unwrap_or_default();
    AccessRecord { pc: access.pc(), writes: access.is_write(), address: access.address(), value }
}

fn check_accesses(trace: &Trace, recorded: &SampleRecording) {
    let keeps = trace.data() == DataMode::Values;
    let stored =
        |own: &AccessRecord| AccessRecord { value: if keeps { own.value.clone() } else { Vec::new() }, ..own.clone() };
    let stored = |own: &[Vec<AccessRecord>]| own.iter().flatten().map(stored).collect::<Vec<AccessRecord>>();
    for thread in &recorded.threads {
        let mut steps = trace.steps_with_accesses(thread.number).unwrap();
        let mut at = 0;
        while let Some(batch) = steps.next_batch().unwrap() {
            for (item, accesses) in batch.items_with_accesses() {
                let executed = if let Item::Step(step) = item { step.instructions() as usize } else { 0 };
                let expected = stored(&thread.seen[at..at + executed]);
                assert!(accesses.map(|access| access_record(batch, access)).eq(expected));
                at += executed;
            }
        }
        assert_eq!(at, thread.seen.len());
        for number in [0, 1, at / 3, at / 2, at.saturating_sub(1)] {
            if number < at {
                let found = rest(trace, thread.number, number);
                assert!(found == stored(&thread.seen[number..]));
            }
        }
    }
    let mut of_threads: Vec<Vec<AccessRecord>> = recorded.threads.iter().map(|_| Vec::new()).collect();
    let mut merged = trace.merged_with_accesses().unwrap();
    while let Some(batch) = merged.next_batch().unwrap() {
        of_threads[batch.thread().get() as usize].extend(batch.accesses().map(|access| access_record(batch, access)));
    }
    for (all, thread) in of_threads.iter().zip(&recorded.threads) {
        assert!(*all == stored(&thread.seen));
        let writes = all.iter().filter(|own| own.writes).count() as u64;
        let counts = &trace.threads()[thread.number.get() as usize].counts;
        assert_eq!((counts.reads, counts.writes), (all.len() as u64 - writes, writes));
    }
}

/// All accesses from instruction `number` on.
fn rest(trace: &Trace, thread: ThreadId, number: usize) -> Vec<AccessRecord> {
    let mut all = Vec::new();
    let mut steps = trace.seek_with_accesses(thread, InstructionIndex::new(number as u64)).unwrap();
    while let Some(batch) = steps.next_batch().unwrap() {
        let items = batch.items_with_accesses().flat_map(|(_, accesses)| accesses);
        assert_eq!(items.count(), batch.accesses().count());
        all.extend(batch.accesses().map(|access| access_record(batch, access)));
    }
    all
}

fn check_counts(trace: &Trace, recorded: &SampleRecording) {
    for (thread, summary) in recorded.threads.iter().zip(trace.threads()) {
        let steps = thread.expected.iter().filter(|item| matches!(item, ExpectedItem::Step { .. })).count() as u64;
        let instructions = thread.expected.iter().map(|item| match item {
            ExpectedItem::Step { instructions, .. } => u64::from(*instructions),
            ExpectedItem::Event(_) => 0,
        });
        assert_eq!((summary.counts.steps, summary.counts.instructions), (steps, instructions.sum()));
        let system_calls = |item: &&ExpectedItem| matches!(item, ExpectedItem::Event(Event::Syscall { .. }));
        assert_eq!(summary.counts.system_calls, thread.expected.iter().filter(system_calls).count() as u64);
    }
}

fn check_merged(trace: &Trace, recorded: &SampleRecording) {
    let mut of_threads: Vec<Vec<ExpectedItem>> = recorded.threads.iter().map(|_| Vec::new()).collect();
    let mut merged = trace.merged();
    let mut last = Tsc::NONE;
    while let Some(batch) = merged.next_batch().unwrap() {
        assert!(batch.tsc() >= last);
        last = batch.tsc();
        let own = &mut of_threads[batch.thread().get() as usize];
        let from = own.len();
        own.extend(batch.items().map(|item| plain(trace, item)));
        // Whatever chunks there are: nothing is later than the last timestamp of its thread.
        let time = |item: &ExpectedItem| if let ExpectedItem::Event(event) = item { event.tsc() } else { None };
        let (before, first) = (own[..from].iter().rev().find_map(time), own.get(from).and_then(time));
        // A signal is together with what it interrupted, which may be nothing.
        let is_signal = matches!(own.get(from), Some(ExpectedItem::Event(Event::Signal { .. })));
        assert!(first.or(before) == Some(batch.tsc()) || is_signal && before == Some(batch.tsc()));
    }
    for (items, thread) in of_threads.iter().zip(&recorded.threads) {
        assert_same(items, &thread.expected);
    }
}

/// Turns of threads: the thread, and the instructions of its turn.
#[derive(Debug, Default, PartialEq)]
struct Turns(Vec<(ThreadId, u64)>);

impl Turns {
    fn add(&mut self, thread: ThreadId, count: u64) {
        match self.0.last_mut() {
            Some(last) if last.0 == thread => last.1 += count,
            _ if count > 0 => self.0.push((thread, count)),
            _ => {}
        }
    }
}

/// There is one order of threads: batch by batch, path by path, and of memory accesses alone.
fn check_orders(trace: &Trace) {
    let (mut by_batch, mut merged) = (Turns::default(), trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        by_batch.add(batch.thread(), batch.instructions());
    }
    let (mut by_path, mut merged) = (Turns::default(), trace.merged());
    while let Some(batch) = merged.next_path_batch().unwrap() {
        for part in batch.items() {
            let (steps, last) = match part {
                PathItem::Path(path) => batch.paths().get(path).map(|(steps, last)| (steps, Some(last))).unwrap(),
                PathItem::Event { steps, last, .. } => (steps, last),
            };
            by_path.add(batch.thread(), steps.iter().chain(&last).map(|step| u64::from(step.instructions())).sum());
        }
    }
    assert_eq!(by_batch, by_path);
    let Ok(mut merged) = trace.merged_with_accesses() else { return };
    let watched = RefCell::new(Turns::default());
    while merged.visit_next(|thread| InstructionCounter { thread, turns: &watched }).unwrap() {}
    assert_eq!(by_batch, watched.into_inner());
}

/// Counts instructions.
struct InstructionCounter<'t> {
    thread: ThreadId,
    turns: &'t RefCell<Turns>,
}

impl AccessVisitor for InstructionCounter<'_> {
    fn executed(&mut self, instructions: u64) {
        self.turns.borrow_mut().add(self.thread, instructions);
    }

    fn operand(&mut self, _: Operand<'_>) {}

    fn event(&mut self, _: &Event) {}
}

/// Interleaved, each thread does what it did.
fn check_interleaved(trace: &Trace, recorded: &SampleRecording) {
    let fresh = || -> Vec<Vec<ExpectedItem>> { recorded.threads.iter().map(|_| Vec::new()).collect() };
    let take = |of_threads: &mut Vec<Vec<ExpectedItem>>, batch: &Batch| {
        of_threads[batch.thread().get() as usize].extend(batch.items().map(|item| plain(trace, item)));
    };
    let check = |of_threads: Vec<Vec<ExpectedItem>>| {
        for (items, thread) in of_threads.iter().zip(&recorded.threads) {
            assert_same(items, &thread.expected);
        }
    };
    let (mut merged, mut of_threads) = (trace.merged().interleaved(3), fresh());
    while let Some(batch) = merged.next_batch().unwrap() {
        take(&mut of_threads, batch);
    }
    check(of_threads);
    for count in [1, 5, 1000] {
        let turns = trace.round_robin(RoundRobinUnit::Branches, NonZeroU64::new(count).unwrap());
        let (mut turns, mut of_threads) = (turns.unwrap(), fresh());
        let mut instructions = vec![InstructionIndex::FIRST; recorded.threads.len()];
        while let Some(batch) = turns.next_batch().unwrap() {
            let own = &mut instructions[batch.thread().get() as usize];
            assert_eq!(batch.first_instruction(), *own);
            *own += batch.instructions();
            take(&mut of_threads, batch);
        }
        check(of_threads);
    }
}

fn check_instructions(trace: &Trace, recorded: &SampleRecording) {
    // Only with one image are addresses unique.
    for thread in &recorded.threads {
        let all = thread.instructions(&recorded.addresses[0]);
        let (mut addresses, mut steps) = (Vec::new(), trace.steps(thread.number).unwrap());
        while let Some(batch) = steps.next_batch().unwrap() {
            assert_eq!(batch.first_instruction().get(), addresses.len() as u64);
            for step in batch.steps() {
                addresses.extend(trace.blocks().instructions(step).map(|instruction| instruction.address));
            }
        }
        assert!(addresses == all);
        for number in [0, 1, all.len() / 3, all.len() / 2, all.len().saturating_sub(1)] {
            check_seek(trace, thread.number, &all, number);
        }
        assert!(trace.seek(thread.number, InstructionIndex::new(all.len() as u64)).is_err());
    }
}

fn check_seek(trace: &Trace, thread: ThreadId, all: &[AppPc], number: usize) {
    if number >= all.len() {
        return;
    }
    let start = InstructionIndex::new(number as u64);
    let mut addresses = Vec::new();
    for item in trace.seek(thread, start).unwrap() {
        if let Item::Step(step) = item.unwrap() {
            addresses.extend(trace.blocks().instructions(&step).map(|instruction| instruction.address));
        }
    }
    assert!(addresses == all[number..]);
    let mut steps = trace.seek(thread, start).unwrap();
    let batch = steps.next_batch().unwrap().unwrap();
    assert_eq!(batch.first_instruction(), start);
    assert_eq!(trace.blocks().instructions(&batch.steps()[0]).next().unwrap().address, all[number]);
}

fn check_parallel(trace: &Trace) {
    let counts = trace.par_chunks(|steps| {
        let mut count = 0;
        while let Some(batch) = steps.next_batch().unwrap() {
            count += batch.instructions();
        }
        count
    });
    let expected: Vec<u64> = trace.path_chunks().map(|path| path.counts.instructions).collect();
    assert_eq!(counts, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn random_recordings_come_back(setting in settings()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("random.trk");
        let recorded = record(&path, &setting);
        let trace = Trace::open(&path).unwrap();
        check(&trace, &recorded);
        if setting.images == 1 {
            check_instructions(&trace, &recorded);
        }
        check_parallel(&trace);
    }
}

#[test]
fn a_long_run_of_many_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for codec in [Codec::Predict, Codec::Zstd] {
        let path = directory.path().join("long.trk");
        let options = WriterOptions { codec, chunk_words: 20_000, ..WriterOptions::default() };
        let setting = Setting {
            seed: 5,
            blocks: 400,
            threads: 3,
            images: 1,
            runs: 200_000,
            habit: 30,
            options,
            data: DataMode::None,
            clock: Clock::default(),
            has_explicit_accesses: false,
            has_allocations: false,
        };
        let recorded = record(&path, &setting);
        let trace = Trace::open(&path).unwrap();
        check(&trace, &recorded);
        check_instructions(&trace, &recorded);
        sizes.push(recorded.summary.file_bytes);
    }
    assert!(sizes[0] < sizes[1] * 4 / 5, "{sizes:?}");
}
