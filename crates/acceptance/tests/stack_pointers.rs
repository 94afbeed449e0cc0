//! `record --scopes` records the stack pointer at the entry of each selected function: the address
//! from which the function's return reads.

use std::path::PathBuf;
use std::process::Command;

use acceptance::source::compile;
use acceptance::{Call, Data, RecordedCall, process, trackway};
use tempfile::TempDir;
use trace::{AccessVisitor, AppPc, Event, Operand, ThreadId, Trace};
use workloads::Exit;

fn program(optimisation: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/recursion.c");
    let compiler = ["gcc", optimisation, "-fno-optimize-sibling-calls"];
    let path = compile(directory.path(), "recursion.c", text, &compiler);
    (directory, path)
}

fn recorded(program: &PathBuf, data: Data, options: &[&str]) -> RecordedCall {
    let call = Call::new(program).data(data).options(options);
    let recorded = call.recorded();
    recorded.assert_finished_as(&call.natively());
    recorded
}

/// The stack pointers of all entries, each checked against the return of its activation.
fn checked_pointers(trace: &Trace) -> Vec<u64> {
    let (mut pointers, mut active) = (Vec::new(), Vec::new());
    let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
    while let Some(batch) = steps.next_batch().unwrap() {
        for (place, step) in batch.steps().iter().enumerate() {
            if let Some(pointer) = batch.stack_pointer_of_step(place) {
                pointers.push(pointer);
                active.push(pointer);
            }
            let block = trace.blocks().get(step.block()).unwrap();
            if block.transfer() == isa::Transfer::Return {
                let read = batch.accesses_of_step(place).last().expect("a return reads its target");
                assert_eq!(Some(read.address()), active.pop(), "the return at {:#x}", read.pc());
            }
        }
    }
    assert!(active.is_empty(), "all functions return");
    pointers
}

/// The stack pointers that a visitor gets, and accesses below them that came before.
#[derive(Default)]
struct Pointers(Vec<(AppPc, u64)>);

impl AccessVisitor for &mut Pointers {
    fn executed(&mut self, _: u64) {}

    fn operand(&mut self, _: Operand<'_>) {}

    fn stack_pointer(&mut self, pc: AppPc, stack_pointer: u64) {
        self.0.push((pc, stack_pointer));
    }

    fn event(&mut self, _: &Event) {}
}

#[test]
fn a_return_reads_where_the_stack_pointer_was_at_the_entry() {
    for optimisation in ["-O0", "-O1", "-O2"] {
        let (_directory, program) = program(optimisation);
        for (data, options) in [
            (Data::Addresses, &["--routine", "tree", "--scopes"][..]),
            (Data::Values, &["--routine", "tree", "--scopes"]),
            (Data::Addresses, &["--routine", "tree", "--callees", "--scopes"]),
            (Data::Values, &["--routine", "even", "--routine", "odd", "--scopes", "--allocations"]),
        ] {
            let recorded = recorded(&program, data, options);
            let trace = &recorded.trace;
            let pointers = checked_pointers(trace);
            let expected = if options.contains(&"tree") { 50 * 127 } else { (0..50).map(|round| round + 1).sum() };
            assert_eq!(pointers.len(), expected, "{optimisation} {options:?}: activations");
            let mut visited = Pointers::default();
            let mut merged = trace.merged_with_accesses().unwrap();
            while merged.visit_next(|_| &mut visited).unwrap() {}
            assert!(visited.0.iter().map(|&(_, pointer)| pointer).eq(pointers), "{optimisation} {options:?}: visitor");
        }
    }
}

#[test]
fn stack_pointers_are_no_accesses() {
    let (_directory, program) = program("-O1");
    let with = recorded(&program, Data::Values, &["--routine", "tree", "--scopes"]);
    let without = recorded(&program, Data::Values, &["--routine", "tree"]);
    let counts = |recorded: &RecordedCall| (recorded.trace.totals().reads, recorded.trace.totals().writes);
    assert_eq!(counts(&with), counts(&without));
    assert!(
        without
            .trace
            .steps_with_accesses(ThreadId::FIRST)
            .unwrap()
            .next_batch()
            .unwrap()
            .is_some_and(|batch| { (0..batch.steps().len()).all(|step| batch.stack_pointer_of_step(step).is_none()) })
    );
}

#[test]
fn scopes_without_routine_or_data_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("t.trk");
    for (options, sentence) in [
        (&["--scopes", "--data", "addresses"][..], "--scopes records the stack pointer at the entries of routines"),
        (&["--scopes", "--routine", "main"], "--scopes records data, which --data none leaves out"),
    ] {
        let mut command = Command::new(trackway());
        command.args(["record", "-o"]).arg(&output).args(options).args(["--", "true"]);
        let recorded = process::run(&mut command);
        assert_ne!(recorded.exit, Exit::Status(0));
        assert!(recorded.stderr_text().contains(sentence), "{}", recorded.stderr_text());
    }
}
