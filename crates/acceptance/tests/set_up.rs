//! Failures while the engine is set up in a process: at launch, after exec, in a running process
//! and in a followed one. The process goes on undisturbed, and one sentence says why it is not
//! recorded.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use acceptance::call::open_sound;
use acceptance::process::{self, LIMIT, RunningProcess, assert_clean, wait_until};
use acceptance::source::compile;
use acceptance::{ProcessOutput, trackway};
use tempfile::TempDir;
use trace::Trace;
use workloads::Exit;

const NO_MEMORY: u32 = wire::FAILURE_NO_MEMORY | wire::INJECT_IN_SET_UP;
const PANIC: u32 = wire::FAILURE_DEFECT | wire::INJECT_IN_SET_UP;
const FAULT: u32 = wire::FAILURE_HANDLER | wire::INJECT_IN_SET_UP;

/// Each failure, the number of places in the set-up of one thread where it can happen, and words of
/// the message about it.
const FAILURES: [(u32, u32, &str); 3] =
    [(NO_MEMORY, 1, "there was no memory left"), (PANIC, 2, "please report this"), (FAULT, 1, "please report this")];

/// A program that prints everything that a failed set-up could have changed.
const LOOK: &str = "grep -E 'Sig(Blk|Ign|Cgt|Pnd)|NoNewPrivs|TracerPid' /proc/self/status; \
    grep -cE 'trackway|rwxp' /proc/self/maps; ls -l /proc/self/fd | wc -l; exit 7";

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Makes the recorder inject a failure.
fn inject(recorder: &mut Command, failure: u32, place: u32) {
    recorder.env("TRACKWAY_INJECT", format!("{failure}:{place}"));
}

/// Asserts that one sentence of the recorder contains `words`; that about a panic also has its
/// position.
fn assert_said(finished: &ProcessOutput, failure: u32, words: &[&str]) {
    let text = finished.stderr_text();
    let (panics, sentences): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| !line.starts_with("trackway: pro") && !line.starts_with("trackway: the pro"));
    assert_eq!(sentences.len(), 1, "{text}");
    assert!(panics.is_empty() || failure == PANIC, "{text}");
    for word in words {
        assert!(sentences[0].contains(word), "'{word}' is not in: {text}");
    }
}

/// A shell that ignores synchronous signals, so that its children do, too.
fn ignoring(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' ILL SEGV USR1; exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell
}

fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    shell
}

fn record(output: &Path, options: &[&str], target: &Command) -> Command {
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "-o"]).arg(output).args(options).arg("--").arg(target.get_program());
    recorder.args(target.get_args());
    recorder
}

/// Records a program, which ignores some signals, with a failure.
fn record_with_failure(target: &Command, failure: u32, place: u32) -> (ProcessOutput, Trace) {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = record(&output, &[], target);
    inject(&mut recorder, failure, place);
    let finished = process::run(&mut ignoring(&recorder));
    (finished, open_sound(&output))
}

fn check_as_native(finished: &ProcessOutput, native: &ProcessOutput) {
    assert_eq!(
        (finished.exit, finished.stdout_text()),
        (native.exit, native.stdout_text()),
        "{}",
        finished.stderr_text()
    );
}

fn instructions(trace: &Trace) -> u64 {
    trace.summary().totals.instructions
}

#[test]
fn a_program_runs_without_an_engine_that_fails_at_launch() {
    let target = shell(LOOK);
    let native = process::run(&mut ignoring(&target));
    assert_eq!(native.exit, Exit::Status(7), "{}", native.stderr_text());
    for (failure, places, reason) in FAILURES {
        for place in 0..places {
            let (finished, trace) = record_with_failure(&target, failure, place);
            check_as_native(&finished, &native);
            assert_said(&finished, failure, &["the program is not recorded", reason]);
            assert_eq!((instructions(&trace), trace.exit()), (0, trace::Exit::Code(7)));
        }
    }
}

#[test]
fn a_program_runs_without_an_engine_that_fails_after_exec() {
    let target = shell(&format!("echo first; exec sh -c \"{LOOK}\""));
    let native = process::run(&mut ignoring(&target));
    assert_eq!(native.exit, Exit::Status(7), "{}", native.stderr_text());
    for (failure, places, reason) in FAILURES {
        for place in places..2 * places {
            let (finished, trace) = record_with_failure(&target, failure, place);
            check_as_native(&finished, &native);
            assert_said(&finished, failure, &["the program after exec is not recorded", reason]);
            assert_eq!(trace.exit(), trace::Exit::Code(7));
            assert!(instructions(&trace) > 10_000, "the first image is recorded");
        }
    }
}

/// Tries to attach, which fails and leaves no file.
fn fail_to_attach(pid: i32, failure: u32, place: u32, reason: &str) {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "-o"]).arg(&output).args(["-p", &pid.to_string()]);
    inject(&mut recorder, failure, place);
    let finished = process::run(&mut recorder);
    assert_eq!(finished.exit, Exit::Status(1), "{}", finished.stderr_text());
    assert_said(&finished, failure, &["could not be taken over", reason]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    assert_clean(pid);
}

fn attach(pid: i32) -> Trace {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "--seconds", "0.1", "-o"]).arg(&output).args(["-p", &pid.to_string()]);
    let finished = process::run(&mut recorder);
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    open_sound(&output)
}

/// Threads that check everything they see. The engine makes their states one after the other, and
/// there may be no memory for any of them.
#[test]
fn threads_go_on_without_an_engine_that_fails_when_it_attaches() {
    let directory = scratch();
    let program =
        compile(directory.path(), "turmoil.c", include_str!("../programs/turmoil.c"), &["gcc", "-O1", "-pthread"]);
    let running = RunningProcess::start(&mut Command::new(program), &[]);
    let pid = running.pid();
    let signals = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().filter(|line| line.starts_with("SigIgn") || line.starts_with("SigCgt")).collect::<String>()
    };
    wait_until("all threads run", || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) >= 64);
    let before = signals();
    for (failure, places, reason) in FAILURES {
        let last = if failure == NO_MEMORY { 40 } else { places - 1 };
        for place in [0, last / 2, last] {
            fail_to_attach(pid, failure, place, reason);
            assert_eq!(signals(), before);
        }
    }
    assert!(attach(pid).threads().len() >= 60);
    running.signal(libc::SIGTERM);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.stdout_text().lines().last(), Some("good"), "{finished:?}");
    assert_eq!(finished.exit, Exit::Status(0));
}

/// System calls that wait go on waiting, for the time that is left.
#[test]
fn waiting_threads_go_on_without_an_engine_that_fails_when_it_attaches() {
    let directory = scratch();
    let program =
        compile(directory.path(), "waits.c", include_str!("../programs/waits.c"), &["gcc", "-O1", "-pthread"]);
    for (failure, place, reason) in [(NO_MEMORY, 0, "no memory"), (NO_MEMORY, 3, "no memory"), (FAULT, 0, "report")] {
        let text = (0..10).find_map(|_| waits_with_failure(&program, failure, place, reason));
        let text = text.expect("on a machine as busy as this, times cannot be judged");
        let wrong: Vec<&str> = text.lines().filter(|line| !line.ends_with(": fine")).collect();
        assert_eq!(wrong, ["ready"], "{text}");
    }
}

/// The program's report about its waits. `None` if the attempt to attach has delayed its threads
/// for longer than the program accepts, as on a busy machine.
fn waits_with_failure(program: &Path, failure: u32, place: u32, reason: &str) -> Option<String> {
    let running = RunningProcess::start(&mut Command::new(program), &[]);
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    fail_to_attach(running.pid(), failure, place, reason);
    let is_in_time = start.elapsed() < Duration::from_millis(800);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.exit, Exit::Status(0), "{finished:?}");
    is_in_time.then(|| finished.stdout_text())
}

/// Without any injection: the limit of the address space leaves room for what the recorder maps,
/// but not for everything that the engine maps when it is set up.
#[test]
fn a_process_with_a_little_too_little_memory_goes_on() {
    const SHARED_KIBIBYTES: u64 = wire::SHARED_BYTES as u64 >> 10;
    let mut failed = 0;
    for more in (0..20).map(|step| 512 * step) {
        let running = RunningProcess::start(Command::new("sleep").arg("1000"), &[]);
        let pid = running.pid();
        wait_until("it sleeps", || process::state_of(pid) == Some('S'));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let size = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
        let size: u64 = size.split_whitespace().nth(1).unwrap().parse().unwrap();
        let limit = (size + SHARED_KIBIBYTES + 4096 + more) << 10;
        let limit = libc::rlimit64 { rlim_cur: limit, rlim_max: limit };
        // SAFETY: the kernel reads the limit.
        assert_eq!(unsafe { libc::prlimit64(pid, libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut()) }, 0);
        let directory = scratch();
        let mut recorder = Command::new(trackway());
        recorder.args(["record", "--seconds", "0.05", "-o"]).arg(directory.path().join("t.trk"));
        let finished = process::run(recorder.args(["-p", &pid.to_string()]));
        assert!(process::is_alive(pid), "{more}: {}", finished.stderr_text());
        assert_clean(pid);
        failed += usize::from(finished.stderr_text().contains("no memory left for the recorder's part"));
        running.signal(libc::SIGTERM);
        assert_eq!(running.wait(LIMIT).exit, Exit::Signal(libc::SIGTERM));
    }
    assert!(failed > 0, "no limit was met while the engine was set up");
}

/// Followed children: made by fork, and made by vfork with an exec.
#[test]
fn a_followed_process_runs_without_an_engine_that_fails() {
    let directory = scratch();
    let text = include_str!("../programs/vfork.c");
    let spawning = compile(directory.path(), "vfork.c", text, &["gcc", "-O1", "-pthread"]);
    let mut spawning = Command::new(spawning);
    spawning.args(["loops", "true"]);
    let forking = shell("(grep -c trackway /proc/self/maps; exit 3); echo $?");
    for (target, sentence) in [(&mut spawning, "is not recorded"), (&mut { forking }, "is not recorded")] {
        let native = process::run(target);
        for (failure, places, reason) in FAILURES {
            for place in 0..places {
                let directory = scratch();
                let output = directory.path().join("t.trk");
                let mut recorder = record(&output, &["--follow"], target);
                recorder.env("TRACKWAY_INJECT_FOLLOWED", format!("{failure}:{place}"));
                let finished = process::run(&mut recorder);
                check_as_native(&finished, &native);
                let text = finished.stderr_text();
                let is_said = |line: &&str| {
                    line.starts_with("trackway: process ") && line.contains(sentence) && line.contains(reason)
                };
                assert!(text.lines().any(|line| is_said(&line)), "{text}");
                assert!(text.lines().all(|line| is_said(&line)) || failure == PANIC, "{text}");
                assert!(instructions(&open_sound(&output)) > 10_000);
            }
        }
    }
}
