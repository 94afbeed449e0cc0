//! All threads merged by time: steps of one thread before it synchronises come before steps of
//! another thread after it.

use acceptance::source::compile;
use acceptance::{Call, Data, RecordedCall, is_soak};

const OBJECTS: usize = 256;
const FUNCTIONS_PER_OBJECT: usize = 8;
const FUNCTION_BYTES: u64 = 16;
const THREADS: usize = 8;

/// Takes the turns of all objects in merged order. Returns the number of turns, and the number of
/// those that do not follow the turn before.
fn turns(recorded: &RecordedCall, functions: u64) -> (u64, u64) {
    let trace = &recorded.trace;
    let end = functions + (OBJECTS * FUNCTIONS_PER_OBJECT) as u64 * FUNCTION_BYTES;
    let mut expected = [0; OBJECTS];
    let (mut count, mut wrong) = (0, 0);
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch().unwrap() {
        for step in batch.steps() {
            let Some(first) = trace.blocks().instructions(step).next() else { continue };
            let address = first.address.get();
            if !(functions..end).contains(&address) {
                continue;
            }
            let number = ((address - functions) / FUNCTION_BYTES) as usize;
            let (object, turn) = (number / FUNCTIONS_PER_OBJECT, number % FUNCTIONS_PER_OBJECT);
            wrong += u64::from(turn != expected[object]);
            expected[object] = (turn + 1) % FUNCTIONS_PER_OBJECT;
            count += 1;
        }
    }
    (count, wrong)
}

/// Records the program with this total number of operations and checks the order of all turns.
fn check(data: Data, operations: usize) {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/order.c");
    let program = compile(directory.path(), "order.c", text, &["gcc", "-O2", "-pthread"]);
    let per_thread = (operations / THREADS).to_string();
    let recorded = Call::new(program).args([per_thread, THREADS.to_string()]).data(data).recorded();
    let printed = recorded.finished.stdout_text();
    let (functions, sum) = printed.trim().split_once(' ').unwrap();
    let functions = u64::from_str_radix(functions, 16).unwrap();
    let counted = turns(&recorded, functions);
    assert_eq!(counted, (sum.parse().unwrap(), 0), "turns, and those that are in the wrong place");
}

/// In a soak more often: a hundred million operations in all.
fn rounds() -> usize {
    if is_soak() { 50 } else { 1 }
}

/// Two hundred locks of all kinds, a stack and a queue without locks, and a list with a lock for
/// each node.
#[test]
fn locks_stacks_queues_and_lists_are_in_order() {
    const OPERATIONS: usize = 2_000_000;
    (0..rounds()).for_each(|_| check(Data::None, OPERATIONS));
}

#[test]
fn order_holds_when_addresses_are_recorded() {
    const OPERATIONS: usize = 200_000;
    (0..rounds()).for_each(|_| check(Data::Addresses, OPERATIONS));
}

#[test]
fn order_holds_when_values_are_recorded() {
    const OPERATIONS: usize = 200_000;
    (0..rounds()).for_each(|_| check(Data::Values, OPERATIONS));
}
