//! The code cache: its memory is bounded, it never runs out, and the program goes on after any
//! failure of the engine.

use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use acceptance::call::{MODES, open_sound};
use acceptance::process::RunningProcess;
use acceptance::source::compile;
use acceptance::{Call, is_soak};
use tempfile::TempDir;
use workloads::{Exit, Variant};

/// A program that generates functions and calls each once: see programs/churn.c.
fn churn() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/churn.c");
    let executable = compile(directory.path(), "churn.c", text, &["gcc", "-O2", "-pthread"]);
    (directory, executable)
}

/// Records the program in every mode, for as long as that takes.
fn check_churn(arguments: &[&str]) {
    const LIMIT: Duration = Duration::from_secs(3600);
    let (directory, executable) = churn();
    let trace = directory.path().join("churn.trk");
    for call in Call::new(&executable).args(arguments).in_every_mode() {
        let finished = RunningProcess::start(&mut call.record_command(&trace), &[]).wait(LIMIT);
        let expected = format!("{} functions per thread, 0 wrong\n", arguments[0]);
        assert_eq!(finished.stdout_text(), expected, "{arguments:?}: {}", finished.stderr_text());
        assert_eq!(finished.exit, Exit::Status(0), "{arguments:?}: {}", finished.stderr_text());
        assert!(finished.stderr.is_empty(), "{}", finished.stderr_text());
        if !is_soak() {
            let trace = open_sound(&trace);
            let count: u64 = arguments[0].parse().unwrap();
            assert!(trace.summary().totals.instructions >= 3 * count, "three instructions each");
        }
    }
}

#[test]
fn generated_functions_never_fill_the_cache() {
    let count = if is_soak() { "50000000" } else { "300000" };
    check_churn(&[count]);
}

#[test]
fn threads_that_generate_functions_do_not_fill_the_cache() {
    let count = if is_soak() { "3000000" } else { "60000" };
    check_churn(&[count, "3"]);
}

/// A thread that never comes to the dispatcher by itself does not prevent memory from being reused.
#[test]
fn a_thread_that_stays_in_the_cache_is_called_out() {
    let count = if is_soak() { "3000000" } else { "60000" };
    check_churn(&[count, "1", "spin"]);
}

/// Large programs in a cache that is too small for them.
#[test]
fn code_is_translated_again_when_the_cache_is_full() {
    let script = "import json, re, decimal, email.message, unittest, asyncio, http.client, xml.dom.minidom, ctypes.util\n\
        print(sum(len(json.dumps(list(range(i)))) for i in range(300)), decimal.Decimal(2).sqrt())";
    Call::new("python3").args(["-c", script]).options(["--code-cache", "16M"]).check();
}

/// Every failure of the engine that translated code can lead to, at the first place where it can
/// happen and at later ones: the program behaves as without the recorder, the trace is sound, and
/// one sentence says what has happened.
#[test]
fn no_failure_of_the_engine_ends_the_program() {
    let threads = workloads::build("threads_many", Variant::Pie).unwrap();
    let (_directory, generating) = churn();
    let failures: [(u32, &[u32], &str); 5] = [
        (wire::FAILURE_NO_ROOM, &[0, 1, 300, 2500], "no room for translated code"),
        (wire::FAILURE_NO_MEMORY, &[0, 1, 300, 2500], "no memory"),
        (wire::FAILURE_TOO_MANY_THREADS, &[0, 1, 40], "more threads than can be recorded"),
        (wire::FAILURE_UNREADABLE, &[0, 1, 300, 2500], "executed but not read"),
        (wire::FAILURE_DEFECT, &[0, 1, 300, 2500], "please report this"),
    ];
    let calls = [Call::new(&threads), Call::new(&generating).args(["5000", "3", "spin"])];
    for (failure, places, sentence) in failures {
        for (call, place) in calls.iter().flat_map(|call| places.iter().map(move |place| (call, place))) {
            let expected = call.natively();
            for &data in MODES {
                check_failure(&call.clone().data(data), failure, *place, sentence, &expected.stdout_text());
            }
        }
    }
}

/// The same in the engine's signal handler, which may have interrupted the program anywhere.
#[test]
fn no_failure_of_a_handler_ends_the_program() {
    for name in ["timers", "signal_sent", "signal_exit", "timer_loop", "signal_flood"] {
        let call = Call::new(workloads::build(name, Variant::Pie).unwrap());
        let expected = call.natively();
        for place in [0, 1, 50, 3000] {
            check_failure(&call, wire::FAILURE_HANDLER, place, "please report this", &expected.stdout_text());
        }
    }
}

/// A handler fails while it interrupts another one that has failed. The other one cannot write its
/// message yet, because the pipe is full, so the signals of the flood find it there.
#[test]
fn no_failure_of_nested_handlers_ends_the_program() {
    let flood = workloads::build("signal_flood", Variant::Pie).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for place in 0..8 {
        let (mut messages, mut full) = std::io::pipe().unwrap();
        fill(&mut full);
        let mut command = Call::new(&flood).args(["spin"]).record_command(&directory.path().join("failed.trk"));
        command.env("TRACKWAY_INJECT", format!("{}:{place}", wire::FAILURE_HANDLER));
        let started = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
        // The command keeps a copy of the pipe's end.
        drop(command);
        std::thread::sleep(Duration::from_millis(30));
        let mut text = Vec::new();
        messages.read_to_end(&mut text).unwrap();
        let output = started.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(text.trim_ascii_start());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "flooded\n", "place {place}: {text}");
        assert!(output.status.success(), "place {place}: {text}");
        assert!(text.contains("a test wants the handler to fail"), "place {place}: {text}");
    }
}

/// Fills a pipe with spaces.
fn fill(pipe: &mut PipeWriter) {
    // SAFETY: takes no pointers; the descriptor is open.
    let capacity = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) };
    pipe.write_all(&vec![b' '; usize::try_from(capacity).unwrap()]).unwrap();
}

fn check_failure(call: &Call, failure: u32, place: u32, sentence: &str, stdout: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("failed.trk");
    let mut command = call.record_command(&path);
    command.env("TRACKWAY_INJECT", format!("{failure}:{place}"));
    let finished = RunningProcess::start(&mut command, &[]).wait(acceptance::process::LIMIT);
    let what = format!("failure {failure} at place {place}: {command:?}: {}", finished.stderr_text());
    assert_eq!(finished.stdout_text(), stdout, "{what}");
    assert_eq!(finished.exit, Exit::Status(0), "{what}");
    let trace = open_sound(&path);
    if trace.exit() == trace::Exit::Detached {
        let text = finished.stderr_text();
        // A defect also says where it is.
        let is_said = |line: &str| line.starts_with("trackway: recording ended early") && line.contains(sentence);
        assert!(text.lines().filter(|line| is_said(line)).count() == 1, "{what}");
        let is_defect = matches!(failure, wire::FAILURE_DEFECT | wire::FAILURE_HANDLER);
        assert!(is_defect || text.lines().count() == 1, "{what}");
    } else {
        // Not all programs reach the later places.
        assert!(place > 1 && finished.stderr.is_empty(), "{what}");
    }
}
