//! Attaching to running processes and detaching from them: the processes never notice, and nothing
//! of ours stays behind.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use acceptance::call::open_sound;
use acceptance::process::{self, LIMIT, RunningProcess, assert_clean, is_alive, state_of, wait_until};
use acceptance::source::compile;
use acceptance::{Call, ProcessOutput, is_soak, tool, trackway};
use tempfile::TempDir;
use trace::Trace;
use workloads::{Exit, Variant};

const C: &[&str] = &["gcc", "-O1", "-pthread"];

/// Programs with many threads leave little processor time to tests that depend on timing.
static MACHINE: RwLock<()> = RwLock::new(());

/// For a test that uses the whole machine.
fn lock_whole_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that depends on timing.
fn lock_for_timing() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn program(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    compile(directory.path(), name, text, C)
}

fn start(program: &Path, arguments: &[&str]) -> RunningProcess {
    RunningProcess::start(Command::new(program).args(arguments), &[])
}

fn record(pid: i32, output: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(trackway());
    command.args(["record", "-o"]).arg(output).args(["-p", &pid.to_string()]).args(arguments);
    command
}

/// Records a process for some seconds; the process goes on.
fn record_for(pid: i32, seconds: &str) -> Trace {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let finished = process::run(&mut record(pid, &output, &["--seconds", seconds]));
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    let trace = open_sound(&output);
    assert!(trace.is_finished());
    assert_eq!(trace.exit(), trace::Exit::Detached);
    assert_eq!(trace.recording().pid, pid.cast_unsigned());
    trace
}

fn task_count(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The signal masks of a process in /proc.
fn signal_settings(pid: i32, wanted: &[&str]) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    let settings: Vec<String> = lines.map(str::to_owned).collect();
    assert_eq!(settings.len(), wanted.len());
    settings
}

/// The signals that a process ignores and handles.
fn handled_signals(pid: i32) -> Vec<String> {
    signal_settings(pid, &["SigIgn", "SigCgt"])
}

/// The signals that the first thread blocks. It briefly blocks more while it creates a thread or is
/// in a handler.
fn blocked_signals(pid: i32) -> Vec<String> {
    signal_settings(pid, &["SigBlk"])
}

/// The signals that the first thread blocks permanently.
fn permanently_blocked_signals(pid: i32) -> Vec<String> {
    // Nearly half a second: if there are many threads, one that is in a handler may have to wait
    // for thirty milliseconds and more.
    const TIMES: usize = 200;
    let (mut stable, mut times) = (Vec::new(), 0);
    wait_until("the blocked signals stay the same", || {
        let blocked = blocked_signals(pid);
        times = if blocked == stable { times + 1 } else { 1 };
        stable = blocked;
        times >= TIMES
    });
    stable
}

fn text_of(finished: &ProcessOutput) -> String {
    format!("{}{}", finished.stdout_text(), finished.stderr_text())
}

/// The recorder attaches to sixty-four threads and detaches again and again, while they check
/// everything they see.
#[test]
fn sixty_four_threads_run_on_through_attaching_and_detaching() {
    let _lock = lock_whole_machine();
    let directory = scratch();
    let running = start(&program(&directory, "turmoil.c", include_str!("../programs/turmoil.c")), &[]);
    wait_until("all threads run", || task_count(running.pid()) >= 64);
    let (handled, blocked) = (handled_signals(running.pid()), permanently_blocked_signals(running.pid()));
    for _ in 0..if is_soak() { 50 } else { 10 } {
        let trace = record_for(running.pid(), "0.05");
        assert!(trace.threads().len() >= 60, "{} threads", trace.threads().len());
        assert_clean(running.pid());
        assert_eq!(handled_signals(running.pid()), handled);
        wait_until(&format!("{blocked:?} is so again"), || blocked_signals(running.pid()) == blocked);
    }
    running.signal(libc::SIGTERM);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.stdout_text().lines().last(), Some("good"), "{}", text_of(&finished));
    assert_eq!(finished.exit, Exit::Status(0));
}

/// Critical sections of restartable sequences stay exclusive while a thread is recorded, and after
/// the recorder has detached.
#[test]
fn restartable_sequences_stay_exclusive() {
    const TURNS: usize = 60_000_000;
    let directory = scratch();
    let program = directory.path().join("rseq");
    fs::copy(workloads::build("rseq", Variant::Pie).unwrap(), &program).unwrap();
    // Building the command may take longer than the program.
    assert!(trackway().exists());
    let running = start(&program, &[&TURNS.to_string()]);
    wait_until("all threads count", || task_count(running.pid()) == 5);
    for _ in 0..5 {
        record_for(running.pid(), "0.1");
        assert_clean(running.pid());
    }
    let finished = running.wait(LIMIT);
    let counted = format!("rseq: counted {}, seen inside 0, at the abort handler yes\n", 4 * TURNS);
    assert_eq!(finished.stdout_text(), counted, "{}", text_of(&finished));
}

/// System calls that wait go on waiting, for the time that is left, and are not interrupted.
#[test]
fn waiting_system_calls_are_not_interrupted() {
    // They wait for two seconds, in which the recorder has to attach twice.
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = start(&program(&directory, "waits.c", include_str!("../programs/waits.c")), &[]);
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..2 {
        record_for(running.pid(), "0.1");
        assert_clean(running.pid());
    }
    let finished = running.wait(LIMIT);
    let wrong: Vec<String> =
        finished.stdout_text().lines().filter(|line| !line.ends_with(": fine")).map(str::to_owned).collect();
    assert_eq!(wrong, ["ready"], "{}", text_of(&finished));
}

/// The median of the times that the program has printed between two points of its output.
fn middle(times: &[u64]) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// A file to which `pace.c` writes the microseconds of processor time that each piece of its work
/// takes.
struct Paces(PathBuf);

impl Paces {
    fn times(&self) -> Vec<u64> {
        let text = fs::read_to_string(&self.0).unwrap();
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        complete.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits for forty more times and returns their median.
    fn next(&self) -> u64 {
        // Work that began before does not count.
        let first = self.times().len() + 2;
        wait_until("the program has made progress", || self.times().len() >= first + 40);
        middle(&self.times()[first..])
    }
}

/// Fails if a program has become slower. On a busy machine, processor time varies.
fn assert_same_pace(what: &[&str], before: u64, after: u64) {
    assert!(after * 10 < before * 13, "{what:?}: {before} microseconds before, {after} after");
}

fn terminate(pid: i32) {
    // SAFETY: takes no pointers; the process was not waited for.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// Thresholds at which the recorder detaches.
const THRESHOLDS: [&[&str]; 3] = [
    &["--seconds", "0.3"],
    &["--data", "addresses", "--accesses", "3000000"],
    &["--data", "addresses", "--routine", "work", "--scopes", "--allocations", "--accesses", "300000"],
];

#[test]
fn a_process_is_as_fast_as_before_after_detaching() {
    let directory = scratch();
    let paces = Paces(directory.path().join("times"));
    let program = program(&directory, "pace.c", include_str!("../programs/pace.c"));
    let mut child = Command::new(program).stdout(fs::File::create(&paces.0).unwrap()).spawn().unwrap();
    let pid = child.id().cast_signed();
    let before = paces.next();
    for options in THRESHOLDS {
        let output = directory.path().join("t.trk");
        let finished = process::run(&mut record(pid, &output, options));
        assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""), "{options:?}");
        assert_eq!(open_sound(&output).exit(), trace::Exit::Detached, "{options:?}");
        assert_same_pace(options, before, paces.next());
    }
    terminate(pid);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_program_is_as_fast_as_natively_after_detaching() {
    let directory = scratch();
    let paces = Paces(directory.path().join("times"));
    let program = program(&directory, "pace.c", include_str!("../programs/pace.c"));
    let mut child = Command::new(&program).stdout(fs::File::create(&paces.0).unwrap()).spawn().unwrap();
    let before = paces.next();
    terminate(child.id().cast_signed());
    assert!(child.wait().unwrap().success());
    for options in THRESHOLDS {
        let output = directory.path().join(format!("{}.trk", options.len()));
        let mut command = Command::new(trackway());
        command.args(["record", "-q", "-o"]).arg(&output).args(options).arg("--").arg(&program);
        let mut recorder = command.stdout(fs::File::create(&paces.0).unwrap()).spawn().unwrap();
        wait_until("the trace is finished", || output.exists());
        assert_same_pace(options, before, paces.next());
        terminate(process::children_of(recorder.id().cast_signed())[0]);
        assert!(recorder.wait().unwrap().success(), "{options:?}");
        assert_eq!(open_sound(&output).exit(), trace::Exit::Detached, "{options:?}");
    }
}

#[test]
fn python_and_go_run_on_through_attaching_and_detaching() {
    let directory = scratch();
    let script = acceptance::source::write(directory.path(), "pulse.py", include_str!("../programs/pulse.py"));
    let go = compile(directory.path(), "pulse.go", include_str!("../programs/pulse.go"), &["go", "build"]);
    let mut python = Command::new(tool::required("python3"));
    python.arg(&script).arg("8");
    for mut command in [python, {
        let mut go = Command::new(go);
        go.arg("8000");
        go
    }] {
        let running = RunningProcess::start(&mut command, &[]);
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..3 {
            record_for(running.pid(), "0.1");
        }
        let finished = running.wait(LIMIT);
        assert_eq!(finished.exit, Exit::Status(0), "{}", text_of(&finished));
        assert!(finished.stdout_text().starts_with("bad 0 many "), "{}", text_of(&finished));
    }
}

#[test]
fn a_shell_goes_on_waiting_for_input() {
    let script = "trap 'echo signal' USR1; while read line; do echo \"got $line\"; done; echo end";
    let mut shell = Command::new(tool::required("bash"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id().cast_signed();
    let mut input = shell.stdin.take().unwrap();
    wait_until("the shell waits", || state_of(pid) == Some('S'));
    input.write_all(b"one\n").unwrap();
    record_for(pid, "0.1");
    input.write_all(b"two\n").unwrap();
    let recorder = std::thread::spawn(move || record_for(pid, "0.6"));
    std::thread::sleep(Duration::from_millis(300));
    input.write_all(b"three\n").unwrap();
    let trace = recorder.join().unwrap();
    assert!(trace.summary().totals.instructions > 100);
    // SAFETY: takes no pointers; the child was not waited for.
    unsafe { libc::kill(pid, libc::SIGUSR1) };
    std::thread::sleep(Duration::from_millis(100));
    drop(input);
    let output = shell.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.replace("signal\n", ""), "got one\ngot two\ngot three\nend\n");
    assert_eq!(text.matches("signal").count(), 1);
}

fn changes(directory: &TempDir) -> PathBuf {
    program(directory, "changes.c", include_str!("../programs/changes.c"))
}

/// Another program in the same process is recorded as well.
#[test]
fn an_exec_in_an_attached_process_is_recorded() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = start(&changes(&directory), &["exec"]);
    std::thread::sleep(Duration::from_millis(300));
    let output = directory.path().join("t.trk");
    let recorder = process::run(&mut record(running.pid(), &output, &[]));
    assert_eq!((recorder.exit, recorder.stderr_text().as_str()), (Exit::Status(0), ""));
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "replaced\n"));
    let trace = open_sound(&output);
    assert_eq!(trace.modules().iter().map(|mapped| mapped.image).max(), Some(1));
}

/// The recording ends with the process. Only the parent of the process learns how it ended.
#[test]
fn recording_ends_with_the_process() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = start(&changes(&directory), &["end"]);
    std::thread::sleep(Duration::from_millis(300));
    let output = directory.path().join("t.trk");
    let recorder = process::run(&mut record(running.pid(), &output, &["--seconds", "60"]));
    assert_eq!((recorder.exit, recorder.stderr_text().as_str()), (Exit::Status(0), ""));
    assert_eq!(running.wait(LIMIT).exit, Exit::Status(5));
    assert_eq!(open_sound(&output).exit(), trace::Exit::Unknown);
}

/// The engine reads beyond the block that a thread is in, where there may be no code.
#[test]
fn a_thread_at_the_end_of_readable_memory_runs_on() {
    let directory = scratch();
    let running = start(&program(&directory, "edge.c", include_str!("../programs/edge.c")), &[]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(record_for(running.pid(), "0.1").summary().totals.instructions > 1000);
    assert_clean(running.pid());
    running.signal(libc::SIGTERM);
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "ready\nsignal 15\n"));
}

/// Addresses that the engine used before an exec may be the application's afterwards.
#[test]
fn detaching_after_an_exec_takes_no_memory_of_the_program() {
    let directory = scratch();
    let text = include_str!("../programs/low_memory.c");
    let second = program(&directory, "low_memory.c", text);
    let first = compile(directory.path(), "first.c", text, &["gcc", "-O1", "-static", "-no-pie"]);
    let output = directory.path().join("t.trk");
    let call = Call::new(first).arg(second).options(["--seconds", "1"]);
    let finished = process::run(&mut call.record_command(&output));
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "mapped, wrong 0\n"));
    assert_eq!(finished.stderr_text(), "");
    assert_eq!(open_sound(&output).modules().iter().map(|mapped| mapped.image).max(), Some(1));
}

/// The recorder does not detach from a process while a child shares its memory.
#[test]
fn detaching_waits_for_a_child_that_shares_the_memory() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = start(&changes(&directory), &["vfork"]);
    std::thread::sleep(Duration::from_millis(100));
    record_for(running.pid(), "0.5");
    assert_clean(running.pid());
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "child 7\n"));
}

#[test]
fn a_process_without_its_first_thread_is_recorded() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = start(&changes(&directory), &["thread"]);
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..2 {
        record_for(running.pid(), "0.2");
    }
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "alone\n"));
}

/// Signals to the recorder end the recording, not the process.
#[test]
fn an_interrupted_recorder_detaches() {
    let directory = scratch();
    let running = start(&program(&directory, "pace.c", include_str!("../programs/pace.c")), &[]);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let output = directory.path().join("t.trk");
        let recorder = RunningProcess::start(&mut record(running.pid(), &output, &[]), &[]);
        wait_until("it is recorded", || is_recorded(running.pid()));
        std::thread::sleep(Duration::from_millis(200));
        recorder.signal(signal);
        let finished = recorder.wait(LIMIT);
        assert_eq!((finished.exit, text_of(&finished).as_str()), (Exit::Status(0), ""));
        assert_eq!(open_sound(&output).exit(), trace::Exit::Detached);
        assert_clean(running.pid());
    }
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait(LIMIT).exit, Exit::Status(0));
}

/// Returns whether the engine is in the process and the recorder no longer traces it.
fn is_recorded(pid: i32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    read("maps").contains("trackway") && read("status").contains("TracerPid:\t0\n")
}

/// A recorder that is killed cannot remove the engine from the process, which goes on nevertheless.
#[test]
fn a_process_runs_on_when_the_recorder_is_killed() {
    let _lock = lock_whole_machine();
    let directory = scratch();
    let running = start(&program(&directory, "turmoil.c", include_str!("../programs/turmoil.c")), &["loose"]);
    wait_until("all threads run", || task_count(running.pid()) >= 64);
    let output = directory.path().join("t.trk");
    let recorder = RunningProcess::start(&mut record(running.pid(), &output, &[]), &[]);
    wait_until("it is recorded", || is_recorded(running.pid()));
    std::thread::sleep(Duration::from_millis(500));
    recorder.signal(libc::SIGKILL);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Signal(libc::SIGKILL));
    std::thread::sleep(Duration::from_millis(500));
    refuse(running.pid(), &["left behind"]);
    running.signal(libc::SIGTERM);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.stdout_text().lines().last(), Some("good"), "{}", text_of(&finished));
}

/// The program with threads that use gs, get signals and see other threads come and go.
fn with_own_gs(directory: &TempDir) -> RunningProcess {
    // Its threads use the whole machine, so the command is built before they start.
    let _ = trackway();
    // Under a name that does not contain ours.
    let program = directory.path().join("gs");
    fs::copy(workloads::build("gs", workloads::Variant::Pie).unwrap(), &program).unwrap();
    let running = start(&program, &["turmoil"]);
    wait_until("its threads run", || task_count(running.pid()) >= 5);
    running
}

/// The engine takes gs over and gives it back, thread by thread, whatever a thread is doing.
#[test]
fn gs_is_taken_over_and_given_back() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let running = with_own_gs(&directory);
    for mode in ["none", "addresses", "values"] {
        for _ in 0..if is_soak() { 30 } else { 4 } {
            let output = directory.path().join("t.trk");
            let arguments = ["--seconds", "0.05", "--data", mode];
            let finished = process::run(&mut record(running.pid(), &output, &arguments));
            assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
            assert!(open_sound(&output).threads().len() >= 5);
            assert_clean(running.pid());
        }
    }
    running.signal(libc::SIGTERM);
    let finished = running.wait(LIMIT);
    assert_eq!(finished.stdout_text(), "ready\ngood\n", "{}", text_of(&finished));
}

/// Without the recorder every thread restores its gs by itself, and the engine's handler does not
/// use gs.
#[test]
fn gs_is_given_back_when_the_recorder_is_killed() {
    let _lock = lock_for_timing();
    for _ in 0..if is_soak() { 30 } else { 3 } {
        let directory = scratch();
        let running = with_own_gs(&directory);
        let output = directory.path().join("t.trk");
        let recorder = RunningProcess::start(&mut record(running.pid(), &output, &[]), &[]);
        wait_until("it is recorded", || is_recorded(running.pid()));
        std::thread::sleep(Duration::from_millis(300));
        recorder.signal(libc::SIGKILL);
        assert_eq!(recorder.wait(LIMIT).exit, Exit::Signal(libc::SIGKILL));
        std::thread::sleep(Duration::from_millis(500));
        running.signal(libc::SIGTERM);
        let finished = running.wait(LIMIT);
        assert_eq!(finished.stdout_text(), "ready\ngood\n", "{}", text_of(&finished));
    }
}

// ----------------------------------------------------------------------------------------- limits

/// The recorder detaches from a program that it started when a limit is reached, and the program
/// runs to its end.
#[test]
fn limits_detach_from_a_program_that_the_recorder_started() {
    let _lock = lock_for_timing();
    let directory = scratch();
    let program = changes(&directory);
    let output = directory.path().join("t.trk");
    for (option, value) in [("--seconds", "0.25"), ("--max-size", "0.001")] {
        let mut command = Command::new(trackway());
        command.args(["record", "-o"]).arg(&output).args([option, value, "--"]).arg(&program).arg("end");
        let finished = process::run(&mut command);
        assert_eq!(
            (finished.exit, finished.stdout_text().as_str()),
            (Exit::Status(5), "end\n"),
            "{}",
            text_of(&finished)
        );
        let trace = open_sound(&output);
        assert_eq!(trace.exit(), trace::Exit::Detached, "{option}");
        assert!(trace.summary().totals.instructions > 1000);
    }
}

/// The trace is there as soon as the recorder has detached, before the program ends.
#[test]
fn the_trace_does_not_wait_for_the_program() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut command = Command::new(trackway());
    command.args(["record", "-o"]).arg(&output).args(["--seconds", "0.1", "--", "sleep", "60"]);
    let recorder = RunningProcess::start(&mut command, &[]);
    wait_until("the trace is finished", || output.exists());
    let children = process::children_of(recorder.pid());
    assert_eq!(children.len(), 1);
    assert!(is_alive(children[0]) && !is_recorded(children[0]));
    // From now on, signals that would end the recorder are passed to the program.
    recorder.signal(libc::SIGTERM);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Status(128 + libc::SIGTERM));
}

// --------------------------------------------------------------------------------------- refusals

/// Asserts that the recorder refuses, in one sentence with these words, and leaves no file.
fn refuse(pid: i32, words: &[&str]) {
    let directory = scratch();
    assert_refused(&process::run(&mut record(pid, &directory.path().join("t.trk"), &["--seconds", "1"])), words);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

fn assert_refused(finished: &ProcessOutput, words: &[&str]) {
    let text = finished.stderr_text();
    assert_eq!(finished.exit, Exit::Status(1), "{text}");
    assert!(text.starts_with("trackway: ") && text.lines().count() == 1 && !text.contains("os error"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
}

#[test]
fn numbers_of_no_process_are_refused() {
    let _lock = lock_whole_machine();
    refuse(0x3fff_ffff, &["no process"]);
    let directory = scratch();
    let running = start(&program(&directory, "turmoil.c", include_str!("../programs/turmoil.c")), &[]);
    wait_until("all threads run", || task_count(running.pid()) >= 64);
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
    let mut threads = tasks.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    let thread = threads.find(|&tid| tid != running.pid()).unwrap();
    refuse(thread, &["is the number of a thread", &running.pid().to_string()]);
    let mut ended = Command::new("true").spawn().unwrap();
    wait_until("it has ended", || state_of(ended.id().cast_signed()) == Some('Z'));
    refuse(ended.id().cast_signed(), &["ended already"]);
    ended.wait().unwrap();
}

/// A misspelt name is refused at once. A library that is named may be loaded later.
#[test]
fn a_routine_that_no_module_has() {
    let directory = scratch();
    let running = start(Path::new("sleep"), &["1000"]);
    let trace = directory.path().join("t.trk");
    let text = |options: &[&str]| {
        let finished = process::run(&mut record(running.pid(), &trace, options));
        assert!(finished.stdout.is_empty());
        (finished.exit, finished.stderr_text())
    };
    let (exit, refusal) = text(&["--routine", "clock_nanoslep"]);
    assert_eq!(exit, Exit::Status(1));
    let expected =
        format!("process {} has no routine called clock_nanoslep (did you mean clock_nanosleep", running.pid());
    assert!(refusal.contains(&expected), "{refusal}");
    assert!(!trace.exists());
    let (exit, warning) = text(&["--routine", "libnone.so:clock_nanoslep", "--seconds", "0.1"]);
    assert_eq!(exit, Exit::Status(0));
    assert!(warning.contains("nothing was recorded for it"), "{warning}");
    let (exit, warning) = text(&["--routine", "clock_nanoslep", "--routine", "clock_nanosleep", "--seconds", "0.1"]);
    assert_eq!(exit, Exit::Status(0));
    assert!(warning.contains("did you mean clock_nanosleep"), "{warning}");
}

#[test]
fn a_stopped_process_is_refused() {
    let running = start(Path::new("sleep"), &["1000"]);
    running.signal(libc::SIGSTOP);
    wait_until("it is stopped", || state_of(running.pid()) == Some('T'));
    refuse(running.pid(), &["is stopped", "kill -CONT"]);
    assert_eq!(state_of(running.pid()), Some('T'));
    running.signal(libc::SIGCONT);
    record_for(running.pid(), "0.1");
}

/// The recorder can detach from a process that was stopped while it is recorded.
#[test]
fn the_recorder_detaches_from_a_process_that_was_stopped() {
    let directory = scratch();
    let running = start(&program(&directory, "pace.c", include_str!("../programs/pace.c")), &[]);
    let output = directory.path().join("t.trk");
    let recorder = RunningProcess::start(&mut record(running.pid(), &output, &[]), &[]);
    wait_until("it is recorded", || is_recorded(running.pid()));
    std::thread::sleep(Duration::from_millis(200));
    running.signal(libc::SIGSTOP);
    wait_until("it is stopped", || state_of(running.pid()) == Some('T'));
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Status(0));
    assert_eq!(state_of(running.pid()), Some('T'));
    assert_clean(running.pid());
    running.signal(libc::SIGCONT);
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait(LIMIT).exit, Exit::Status(0));
}

#[test]
fn a_process_that_is_recorded_already_is_refused() {
    let directory = scratch();
    let running = start(&program(&directory, "pace.c", include_str!("../programs/pace.c")), &[]);
    let recorder = RunningProcess::start(&mut record(running.pid(), &directory.path().join("t.trk"), &[]), &[]);
    wait_until("it is recorded", || is_recorded(running.pid()));
    refuse(running.pid(), &["recorded already"]);
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Status(0));
    record_for(running.pid(), "0.1");
}

#[test]
fn a_process_that_is_traced_already_is_refused() {
    let running = start(Path::new("sleep"), &["1000"]);
    // SAFETY: no pointers that matter; this thread stays until the test is over.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, running.pid(), 0, 0) };
    assert_eq!(seized, 0);
    // SAFETY: no arguments.
    let tracer = unsafe { libc::gettid() };
    refuse(running.pid(), &["is traced by process", &tracer.to_string()]);
}

#[test]
fn a_process_with_a_seccomp_filter_is_refused() {
    let mut command = Command::new("sleep");
    // SAFETY: between fork and exec only plain system calls are made, with pointers to what lives
    // on the stack.
    unsafe {
        command.arg("1000").pre_exec(|| {
            let mut filter = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
            let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    let running = RunningProcess::start(&mut command, &[]);
    refuse(running.pid(), &["seccomp"]);
}

/// Another user's process: our process for the user `nobody`, or root's process for us.
#[test]
fn another_users_process_is_refused() {
    let directory = scratch();
    let running = start(Path::new("sleep"), &["1000"]);
    // SAFETY: no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut command = record(if is_root { running.pid() } else { 1 }, &directory.path().join("t.trk"), &[]);
    if is_root {
        const NOBODY: u32 = 65534;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(directory.path(), mode).unwrap();
        // The command may be in a directory that other users cannot reach.
        let copy = directory.path().join("trackway");
        fs::copy(trackway(), &copy).unwrap();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(copy);
        command.args(arguments).uid(NOBODY).gid(NOBODY);
    }
    assert_refused(&process::run(&mut command), &["no permission to trace process"]);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    for arguments in [&["-p", "1", "--", "true"][..], &["-p", "none"], &["--seconds", "x", "true"]] {
        let finished = process::run(Command::new(trackway()).args(["record", "-o"]).arg(&output).args(arguments));
        assert_eq!(finished.exit, Exit::Status(2), "{arguments:?}");
    }
    assert!(!output.exists());
    let native = Call::new("true").natively();
    assert_eq!(native.exit, Exit::Status(0));
}
