//! Threads, signals, forks, execs and changing code at once, in programs whose result does not
//! depend on timing. The tests are short, and much longer with TRACKWAY_SOAK set, as `cargo xtask
//! soak` does.

use std::path::Path;

use acceptance::source::compile;
use acceptance::{Call, RecordedCall, is_soak};
use workloads::{Exit, Variant};

/// How often something is done: `short` times in a test, many more in a soak.
fn rounds(short: u32) -> u32 {
    if is_soak() { short * 20 } else { short }
}

/// Compiles the program, records it with `arguments` that many times, and compares what it prints
/// each time.
fn repeat(name: &str, text: &str, arguments: &[&str], times: u32, stdout: &str) {
    let directory = tempfile::tempdir().unwrap();
    let executable = compile(directory.path(), name, text, &["gcc", "-O1", "-pthread"]);
    for _ in 0..times {
        check(&executable, arguments, stdout);
    }
}

fn check(executable: &Path, arguments: &[&str], stdout: &str) -> RecordedCall {
    let recorded = Call::new(executable).args(arguments).recorded();
    assert_eq!(recorded.finished.stdout_text(), stdout, "{arguments:?}: {}", recorded.finished.stderr_text());
    assert_eq!(recorded.finished.exit, Exit::Status(0), "{arguments:?}: {}", recorded.finished.stderr_text());
    recorded
}

#[test]
fn sixty_four_threads_are_recorded() {
    for variant in [Variant::Pie, Variant::Static] {
        let executable = workloads::build("threads_many", variant).unwrap();
        for _ in 0..rounds(5) {
            let recorded = check(&executable, &[], "threads 64 sum 201600\n");
            assert_eq!(recorded.trace.threads().len(), 65);
        }
    }
}

/// Each thread has a slot of the shared memory, which the recorder has to give back in time.
#[test]
fn slots_of_short_threads_are_reused() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/brood.c");
    let executable = compile(directory.path(), "brood.c", text, &["gcc", "-O1", "-pthread"]);
    let count = u64::from(rounds(1000));
    let stdout = format!("{count} threads, sum {}\n", count * (count - 1) / 2);
    for call in Call::new(&executable).arg(count.to_string()).in_every_mode() {
        let recorded = call.recorded();
        assert_eq!(recorded.finished.stdout_text(), stdout, "{}", recorded.finished.stderr_text());
        assert_eq!(recorded.trace.threads().len() as u64, count + 1);
    }
}

/// Threads compute while a timer of the process and the main thread send them many signals.
/// Handlers nest, run on alternate stacks, and use the data that the interrupted code computes
/// with.
#[test]
fn threads_compute_right_under_many_signals() {
    repeat("signals.c", include_str!("../programs/signals.c"), &["100"], rounds(2), "bad 0, many 1\n");
}

/// Places where the engine once did not expect a signal, a fork or a store.
#[test]
fn signals_in_narrow_windows_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/windows.c");
    let executable = compile(directory.path(), "windows.c", text, &["gcc", "-O1", "-z", "execstack"]);
    for mode in ["0", "1", "2", "3", "4", "5", "6", "7"] {
        for _ in 0..rounds(1) {
            check(&executable, &[mode], "bad 0\n");
        }
    }
}

/// A profiling timer interrupts library functions, and its handler ends by siglongjmp.
#[test]
fn handlers_end_by_siglongjmp() {
    repeat("jumps.c", include_str!("../programs/jumps.c"), &["500"], rounds(2), "sorted\n");
}

/// Thousands of short-lived threads, some detached, some cancelled.
#[test]
fn short_lived_threads_are_recorded() {
    repeat("brief.c", include_str!("../programs/brief.c"), &["150"], rounds(2), "1 1\n");
}

/// Several threads fork, vfork, spawn and call the shell at once.
#[test]
fn processes_of_many_threads_are_made() {
    repeat("forks.c", include_str!("../programs/forks.c"), &["18"], rounds(2), "bad 0 good 1\n");
}

/// The process replaces itself time and again, also by another thread than the first while others
/// run and signals come.
#[test]
fn execs_in_a_loop_are_recorded() {
    let times = rounds(1);
    let directory = tempfile::tempdir().unwrap();
    let executable =
        compile(directory.path(), "execs.c", include_str!("../programs/execs.c"), &["gcc", "-O1", "-pthread"]);
    for _ in 0..times {
        let recorded = check(&executable, &["40"], "last image\n");
        let images = recorded.trace.modules().iter().map(|mapped| mapped.image).max();
        assert_eq!(images, Some(40), "not every image was recorded");
    }
}

/// Threads write code, run it, write it anew in the same place, map and unmap it.
#[test]
fn changed_code_is_translated_anew_in_many_threads() {
    repeat("code.c", include_str!("../programs/code.c"), &["200"], rounds(2), "bad 0\n");
}

/// Libraries are loaded and unloaded while other threads run.
#[test]
fn libraries_are_loaded_and_unloaded_under_threads() {
    repeat("libraries.c", include_str!("../programs/libraries.c"), &["40"], rounds(2), "4.5\n");
}

/// Locks, conditions, pipes and timers between threads, with system calls that signals interrupt.
#[test]
fn interrupted_system_calls_go_on() {
    repeat("calls.c", include_str!("../programs/calls.c"), &["200"], rounds(2), "1 1\n");
    repeat("calls.c", include_str!("../programs/calls.c"), &["200", "restart"], rounds(2), "1 1\n");
}

/// All signals, sent and raised in every way, blocked or not: none is lost, doubled or overtaken,
/// whatever is recorded. Some seconds here, ten minutes in a soak.
#[test]
fn no_signal_is_lost_doubled_or_overtaken() {
    const SECONDS: &str = "5";
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/storm.c");
    let executable = compile(directory.path(), "storm.c", text, &["gcc", "-O1", "-pthread"]);
    let times = if is_soak() { 40 } else { 1 };
    for call in Call::new(&executable).args([SECONDS]).in_every_mode() {
        for _ in 0..times {
            let recorded = call.recorded();
            assert_eq!(recorded.finished.stdout_text(), "storm over\n", "{}", recorded.finished.stderr_text());
            assert_eq!(recorded.finished.exit, Exit::Status(0), "{}", recorded.finished.stderr_text());
        }
    }
}
