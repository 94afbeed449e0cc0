//! `record --accesses N` detaches with the path that makes the Nth access, and the program runs on
//! as before.

use std::process::Command;

use acceptance::call::open_sound;
use acceptance::process::{self, LIMIT, RunningProcess, assert_clean};
use acceptance::source::compile;
use acceptance::{Call, Data, trackway};
use trace::Trace;
use workloads::Exit;

/// More blocks than any path has.
const PATH_BLOCKS_MAX: usize = 255;

/// The number of accesses of each step and event of a thread, in order.
fn accesses(trace: &Trace, thread: u32) -> Vec<u64> {
    let mut steps = trace.steps_with_accesses(trace::ThreadId::new(thread)).unwrap();
    let mut counts = Vec::new();
    while let Some(batch) = steps.next_batch().unwrap() {
        counts.extend((0..batch.steps().len()).map(|step| batch.accesses_of_step(step).count() as u64));
    }
    counts
}

/// A program with string instructions, masked vectors and plain accesses.
fn program(directory: &std::path::Path) -> std::path::PathBuf {
    compile(directory, "strings.c", include_str!("../programs/strings.c"), &["gcc", "-O1"])
}

#[test]
fn recording_ends_with_the_path_that_makes_the_last_access() {
    let directory = tempfile::tempdir().unwrap();
    let program = program(directory.path());
    for data in [Data::Addresses, Data::Values] {
        for wanted in [1, 1000, 54_321, 150_000] {
            let options = ["--routine", "work", "--callees", "--accesses", &wanted.to_string()].map(str::to_owned);
            let call = Call::new(&program).data(data).options(&options);
            let recorded = call.recorded_until_detach();
            assert_eq!(recorded.finished.stdout, call.natively().stdout);
            let counts = accesses(&recorded.trace, 0);
            let total: u64 = counts.iter().sum();
            let before: u64 = counts[..counts.len().saturating_sub(PATH_BLOCKS_MAX)].iter().sum();
            assert!(before < wanted && wanted <= total, "{data:?}: {before} < {wanted} <= {total}");
            let totals = recorded.trace.totals();
            assert_eq!(totals.reads + totals.writes, total, "the summary counts the same");
        }
    }
}

#[test]
fn nothing_stays_in_the_process_after_the_last_access() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/allocators.c");
    let program = compile(directory.path(), "allocators.c", text, &["gcc", "-O1", "-pthread"]);
    let target = RunningProcess::start(Command::new(program).arg("3"), &[]);
    let output = directory.path().join("t.trk");
    for options in [&["--accesses", "20000"][..], &["--routine", "churn", "--accesses", "5k", "--allocations"]] {
        let mut command = Command::new(trackway());
        command.args(["record", "-q", "--data", "addresses", "-o"]).arg(&output).args(options);
        let recorded = process::run(command.args(["-p", &target.pid().to_string()]));
        assert_eq!((recorded.exit, recorded.stderr_text().as_str()), (Exit::Status(0), ""), "{options:?}");
        assert_clean(target.pid());
        let totals = *open_sound(&output).totals();
        assert!(totals.reads + totals.writes >= 5000, "{options:?}");
    }
    target.signal(libc::SIGUSR2);
    assert_eq!(target.wait(LIMIT).stdout_text(), "3 threads have kept their blocks\n");
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("t.trk");
    for (options, sentence) in [
        (&["--accesses", "5"][..], "--accesses counts memory accesses, and none are recorded"),
        (&["--allocations", "--skip", "5"], "--allocations cannot be used together with --skip"),
    ] {
        let mut command = Command::new(trackway());
        command.args(["record", "-o"]).arg(&output).args(options).args(["--", "true"]);
        let recorded = process::run(&mut command);
        assert_ne!(recorded.exit, Exit::Status(0));
        assert!(recorded.stderr_text().contains(sentence), "{}", recorded.stderr_text());
        assert!(!output.exists());
    }
}
