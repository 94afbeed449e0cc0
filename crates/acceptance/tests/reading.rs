//! A recorded trace reads the same in every way: thread by thread, from any instruction on, all
//! threads merged by time, chunks in parallel.

use std::collections::HashMap;
use std::sync::Mutex;

use acceptance::listing::{self, Listing};
use acceptance::source::compile;
use acceptance::{Call, RecordedCall};
use trace::{Batch, Event, InstructionIndex, Item, ThreadId, Trace, Tsc};
use workloads::Variant;

fn record(name: &str, arguments: &[&str]) -> RecordedCall {
    Call::new(workloads::build(name, Variant::Pie).unwrap()).args(arguments).recorded()
}

/// The addresses in a batch.
fn addresses(trace: &Trace, batch: &Batch) -> Vec<u64> {
    let executed = batch.steps().iter().flat_map(|step| trace.blocks().instructions(step));
    executed.map(|instruction| instruction.address.get()).collect()
}

fn listings(trace: &Trace) -> HashMap<ThreadId, Listing> {
    let numbers = trace.threads().iter().map(|thread| thread.info.thread);
    numbers.map(|thread| (thread, listing::of_thread(trace, thread))).collect()
}

#[test]
fn steps_are_the_same_from_any_instruction_on() {
    let recorded = record("cholesky", &["3", "10"]);
    let trace = &recorded.trace;
    for (thread, listing) in listings(trace) {
        let all = &listing.addresses;
        assert_eq!(trace.threads()[thread.get() as usize].counts.instructions, all.len() as u64);
        let places = [0, 1, 2, 3, 17, all.len() / 3, all.len() / 2, all.len() - 2, all.len() - 1];
        for number in places.into_iter().chain((0..all.len()).step_by(all.len() / 20 + 1)) {
            let mut read = Vec::new();
            for item in trace.seek(thread, InstructionIndex::new(number as u64)).unwrap() {
                if let Item::Step(step) = item.unwrap() {
                    read.extend(trace.blocks().instructions(&step).map(|instruction| instruction.address.get()));
                }
                if read.len() > 1000 {
                    break;
                }
            }
            let expected = &all[number..all.len().min(number + read.len())];
            assert!(!read.is_empty() && read == expected, "thread {thread} from instruction {number}");
        }
        assert!(trace.seek(thread, InstructionIndex::new(all.len() as u64 + 1)).is_err());
    }
    assert!(trace.seek(ThreadId::new(99), InstructionIndex::FIRST).is_err());
}

#[test]
fn merged_threads_are_in_order_and_complete() {
    let recorded = record("radiosity", &["4", "1"]);
    let trace = &recorded.trace;
    let (mut read, mut time) = (HashMap::<ThreadId, Vec<u64>>::new(), Tsc::NONE);
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch().unwrap() {
        assert!(batch.tsc() >= time, "time goes backwards");
        time = batch.tsc();
        read.entry(batch.thread()).or_default().extend(addresses(trace, batch));
    }
    for (thread, listing) in listings(trace) {
        assert!(read[&thread] == listing.addresses, "thread {thread} differs");
    }
}

/// Threads that run one after the other are not mixed, and a thread is created before it starts.
#[test]
fn the_order_of_threads_is_that_of_what_happened() {
    let recorded = record("threads_sequential", &[]);
    let trace = &recorded.trace;
    let mut order = Vec::new();
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch().unwrap() {
        if batch.thread() != ThreadId::FIRST && batch.instructions() > 0 && order.last() != Some(&batch.thread()) {
            order.push(batch.thread());
        }
    }
    assert_eq!(order, [1, 2, 3].map(ThreadId::new));
    let listings = listings(trace);
    for pair in listings[&ThreadId::FIRST].events.windows(2) {
        if let [(_, Event::Syscall { tsc: created, .. }), (_, Event::Child { thread, .. })] = *pair {
            let Some((_, Event::Start { tsc: started, .. })) = listings[&thread].events.first() else {
                panic!("thread {thread} does not start");
            };
            assert!(created < *started, "thread {thread} starts before it is created");
        }
    }
}

/// In merged order, steps of one thread under a lock come before those of the thread that takes the
/// lock next.
#[test]
fn the_order_of_threads_respects_locks() {
    const ROUNDS: usize = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/turns.c");
    let program = compile(directory.path(), "turns.c", text, &["gcc", "-O1", "-pthread"]);
    let recorded = Call::new(program).arg(ROUNDS.to_string()).recorded();
    let trace = &recorded.trace;
    let printed = recorded.finished.stdout_text();
    let functions: Vec<u64> = printed.lines().map(|line| u64::from_str_radix(line, 16).unwrap()).collect();
    assert_eq!(functions.len(), 8);
    let (mut turn, mut wrong) = (0, 0);
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch().unwrap() {
        for step in batch.steps() {
            let Some(first) = trace.blocks().instructions(step).next() else { continue };
            if let Some(called) = functions.iter().position(|&function| function == first.address.get()) {
                wrong += usize::from(called != turn % 8);
                turn += 1;
            }
        }
    }
    assert_eq!((turn, wrong), (4 * ROUNDS, 0), "turns, and those that are in the wrong place");
}

#[test]
fn times_never_go_backwards() {
    for (program, arguments) in [("thread_signal", &[][..]), ("radiosity", &["4", "1"])] {
        let recorded = record(program, arguments);
        for (thread, listing) in listings(&recorded.trace) {
            let times: Vec<Tsc> = listing.events.iter().filter_map(|(_, event)| event.tsc()).collect();
            let backwards = times.windows(2).filter(|pair| pair[1] < pair[0]).count();
            assert_eq!(backwards, 0, "{program}, thread {thread}: of {} timestamps", times.len());
        }
    }
}

#[test]
fn chunks_decode_in_parallel_as_in_order() {
    let recorded = record("radix", &["3", "100"]);
    let trace = &recorded.trace;
    let pieces = Mutex::new(Vec::new());
    trace.par_chunks(|steps| {
        while let Some(batch) = steps.next_batch().unwrap() {
            let piece = (batch.thread(), batch.first_instruction(), addresses(trace, batch));
            pieces.lock().unwrap().push(piece);
        }
    });
    let mut pieces = pieces.into_inner().unwrap();
    pieces.sort_by_key(|&(thread, first, _)| (thread, first));
    let mut read = HashMap::<ThreadId, Vec<u64>>::new();
    for (thread, first, addresses) in pieces {
        let so_far = read.entry(thread).or_default();
        assert!(first.get() == so_far.len() as u64 || addresses.is_empty(), "thread {thread} has a gap before {first}");
        so_far.extend(addresses);
    }
    for (thread, listing) in listings(trace) {
        assert!(read[&thread] == listing.addresses, "thread {thread} differs");
    }
}
