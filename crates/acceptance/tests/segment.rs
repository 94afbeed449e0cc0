//! Traces that executions are cut into are the executions: for every policy of the thesis, over workloads and real programs.

use std::collections::HashMap;
use std::process::Command;

use acceptance::{Call, Recorded, process, tool, trackway};
use segment::{Moves, Policy, Segmenter, TraceSet};
use trace::Trace;
use workloads::{Exit, Variant};

fn policies() -> Vec<Policy> {
    let given = Policy::default();
    let others = [
        given.long(),
        given.two_conditional_jumps(),
        Policy::new(1, 1).unwrap(),
        Policy::new(1 << 20, 1 << 20).unwrap(),
    ];
    Policy::first_experiment().into_iter().chain(given.fourth_experiment()).chain(others).collect()
}

fn segmented(trace: &Trace, policies: &[Policy]) -> Vec<TraceSet> {
    let mut segmenters: Vec<Segmenter> = policies.iter().map(|&policy| Segmenter::new(policy)).collect();
    let (mut moves, mut merged) = (Moves::default(), trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        let moves = moves.of(trace.blocks(), batch);
        segmenters.iter_mut().for_each(|segmenter| segmenter.moves(batch.thread(), moves, trace.blocks()));
    }
    segmenters.into_iter().map(Segmenter::finish).collect()
}

fn check(recorded: &Recorded) {
    let (totals, policies) = (recorded.trace.totals(), policies());
    for (policy, set) in policies.iter().zip(segmented(&recorded.trace, &policies)) {
        assert_eq!(set.instructions(), totals.instructions, "{policy:?}");
        let mut seen = HashMap::new();
        for trace in set.traces() {
            assert!((1..=policy.max_instructions()).contains(&trace.instructions), "{policy:?} {trace:x?}");
            let key = (trace.start, trace.blocks.clone(), trace.instructions, trace.reason);
            assert_eq!(seen.insert(key, ()), None, "{policy:?} has it twice: {trace:x?}");
        }
        assert!(set.traces_for(0.9) <= set.traces().len() && set.coverage().is_sorted());
    }
}

#[test]
fn traces_are_what_was_executed() {
    for (name, arguments) in
        [("radiosity", &["4", "1"][..]), ("signal_nested", &[]), ("code_changes", &[]), ("loops", &[])]
    {
        let program = workloads::find(name).unwrap();
        let executable = workloads::build(name, program.variants[0]).unwrap();
        check(&Call::new(executable).args(arguments).recorded());
    }
    let call = Call::new(tool::required("perl")).args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]);
    check(&call.recorded());
}

/// Single instructions are single instructions: each address as often as it was executed.
#[test]
fn traces_of_one_instruction() {
    let executable = workloads::build("recursion", Variant::Pie).unwrap();
    let recorded = Call::new(executable).recorded();
    let set = segmented(&recorded.trace, &[Policy::new(1, 1).unwrap()]).remove(0);
    let mut shown: HashMap<u64, u64> = HashMap::new();
    set.traces().iter().for_each(|trace| *shown.entry(trace.start).or_default() += trace.occurrences);
    let mut executed: HashMap<u64, u64> = HashMap::new();
    let (trace, mut merged) = (&recorded.trace, recorded.trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        for instruction in batch.steps().iter().flat_map(|step| trace.blocks().instructions(step)) {
            *executed.entry(instruction.address).or_default() += 1;
        }
    }
    assert_eq!(shown, executed);
}

fn run(arguments: &[&str], recorded: &Recorded) -> (Exit, String) {
    let mut command = Command::new(trackway());
    command.arg("segment").args(arguments).arg("-i").arg(&recorded.path);
    let finished = process::run(&mut command);
    (finished.exit, finished.stdout_text().to_string() + &finished.stderr_text())
}

/// A program that is looked at while it runs is cut as its recorded trace is.
#[test]
fn live_is_as_recorded() {
    let executable = workloads::build("loops", workloads::find("loops").unwrap().variants[0]).unwrap();
    let recorded = Call::new(&executable).recorded();
    let (_, from_file) = run(&["--policies", "first", "--json"], &recorded);
    let mut command = Command::new(trackway());
    command.args(["segment", "--policies", "first", "--json", "--"]).arg(&executable);
    let finished = process::run(&mut command);
    assert_eq!(finished.exit, recorded.finished.exit);
    assert_eq!(finished.stdout_text(), recorded.finished.stdout_text().to_string() + &from_file);
}

#[test]
fn the_command() {
    let executable = workloads::build("radiosity", Variant::Pie).unwrap();
    let recorded = Call::new(executable).args(["2", "1"]).recorded();
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("traces.csv");
    let thesis = ["-ins", "64", "-cfis", "8", "-flags", "1,0,1,1,0,1,1,1,0,0,1", "-start", "1000", "-stop", "200k"];
    let (exit, text) = run(&[&thesis[..], &["-o", csv.to_str().unwrap()]].concat(), &recorded);
    assert!(exit == Exit::Status(0) && text.contains("199 000 instructions in traces"), "{text}");
    assert!(text.contains("10110111001   64     8"), "{text}");
    let csv = std::fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("StartAddress,Instructions,CFICount,BranchOutcomes,Reason,Occurrences"));
    let sum: u64 = lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert!(cells.len() == 6 && cells[0].starts_with("0x") && cells[3].starts_with("0x"), "{line}");
            cells[1].parse::<u64>().unwrap() * cells[5].parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(sum, 199_000);
    let (exit, text) = run(&["--policies", "first,second,third,fourth", "--json"], &recorded);
    assert!(exit == Exit::Status(0) && text.matches("\"max_norm_ratio\"").count() == 50, "{text}");
    for (arguments, sentence) in [
        (&["-ins", "0"][..], "1 to 4294967295"),
        (&["-cfis", "0"], "1 to 4294967295"),
        (&["-flags", "1,0"], "eleven numbers"),
        (&["--end", "ret"], "direct-call"),
        (&["-start", "5", "-stop", "5"], "-stop has to be larger"),
        (&["--policies", "first", "-o", "x.csv"], "one policy"),
    ] {
        let (exit, text) = run(arguments, &recorded);
        assert!(matches!(exit, Exit::Status(1 | 2)) && text.contains(sentence), "{arguments:?}: {text}");
    }
}
