//! A child that shares its parent's memory (vfork, posix_spawn) is recorded as a thread of its
//! parent, and all processes behave as without the recorder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use acceptance::call::{Call, Data, RecordedCall, open_sound};
use acceptance::process::{self, LIMIT, RunningProcess, wait_until};
use acceptance::source::{compile, write};
use acceptance::{listing, tool, trackway};
use tempfile::TempDir;
use trace::{Event, ThreadId, Trace};
use workloads::Exit;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn program(directory: &Path) -> PathBuf {
    compile(directory, "vfork.c", include_str!("../programs/vfork.c"), &["gcc", "-O1", "-pthread"])
}

/// Without and with following the programs that children execute.
const FOLLOWING: [&[&str]; 2] = [&[], &["--follow"]];

/// A call, in every mode, without and with `--follow`.
fn in_every_way(call: &Call) -> impl Iterator<Item = Call> {
    FOLLOWING.into_iter().flat_map(|options| call.clone().options(options).in_every_mode().collect::<Vec<_>>())
}

/// The address of a symbol in a program without a base address of its own.
fn symbol(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// How often each thread has executed the instruction at this offset of a program, in the order of
/// threads.
fn counts(trace: &Trace, program: &Path, name: &str) -> Vec<usize> {
    let offset = symbol(program, name);
    let file_name = program.file_name().unwrap().to_str().unwrap();
    let modules = trace.modules();
    let module = modules.iter().find(|mapped| mapped.module.path.ends_with(file_name)).unwrap();
    let address = module.module.address - module.module.file_offset + offset;
    let count = |listing: listing::Listing| listing.addresses.iter().filter(|&&pc| pc == address).count();
    listing::of_trace(trace).into_iter().map(count).collect()
}

/// Traces of followed processes are sound, too.
fn check_followed(recorded: &RecordedCall) -> usize {
    let entries = fs::read_dir(recorded.directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let traces: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "trk")).collect();
    traces.iter().for_each(|path| drop(open_sound(path)));
    traces.len() - 1
}

#[test]
fn every_instruction_between_vfork_and_exec_is_recorded() {
    let directory = scratch();
    let program = program(directory.path());
    for (what, count) in
        [(["loops"].as_slice(), 1750), (&["loops", "true"], 1500), (&["loops", "no-such-program"], 1750)]
    {
        let call = Call::new(&program).args(what);
        let expected = call.natively();
        for call in in_every_way(&call) {
            let recorded = call.recorded();
            recorded.assert_finished_as(&expected);
            assert_eq!(counts(&recorded.trace, &program, "count_down"), [100, count], "{what:?}");
            let [first, child] = recorded.trace.threads() else { panic!("not two threads") };
            assert_eq!(child.info.parent, Some(ThreadId::FIRST));
            assert_ne!(child.info.os_tid, first.info.os_tid);
            let events = listing::of_thread(&recorded.trace, ThreadId::new(1)).events;
            assert!(matches!(events.last(), Some((_, Event::End { .. }))), "{:?}", events.last());
            let children = listing::of_thread(&recorded.trace, ThreadId::FIRST).events.into_iter();
            assert_eq!(children.filter(|(_, event)| matches!(event, Event::Child { .. })).count(), 1);
            check_followed(&recorded);
        }
    }
}

#[test]
fn a_child_has_signal_actions_of_its_own() {
    let directory = scratch();
    let call = Call::new(program(directory.path())).arg("handlers");
    let expected = call.natively();
    for call in in_every_way(&call) {
        let recorded = call.recorded();
        recorded.assert_finished_as(&expected);
        let signals = |thread| {
            let events = listing::of_thread(&recorded.trace, ThreadId::new(thread)).events;
            events.iter().filter(|(_, event)| matches!(event, Event::Signal { signal: 1.., .. })).count()
        };
        assert_eq!([signals(0), signals(1)], [3, 3]);
    }
}

#[test]
fn a_child_that_dies_is_recorded_to_its_end() {
    let directory = scratch();
    let program = program(directory.path());
    let call = Call::new(&program).arg("deaths");
    let expected = call.natively();
    for call in in_every_way(&call) {
        let recorded = call.recorded();
        recorded.assert_finished_as(&expected);
        assert_eq!(counts(&recorded.trace, &program, "count_down"), [0, 20, 20, 20, 20, 20, 20]);
    }
}

/// A signal can end a child anywhere without harm to its parent. SIGTERM stays pending while the
/// child is in the engine.
#[test]
fn a_killed_child_does_no_harm_to_its_parent() {
    let directory = scratch();
    let program = program(directory.path());
    for (signal, is_harmless) in [("15", true), ("9", false)] {
        let call = Call::new(&program).args(["kills", "100", signal]);
        for call in call.in_every_mode() {
            let recorded = call.recorded_until_detach();
            assert_eq!(recorded.finished.stdout_text(), "killed 100\n");
            assert_eq!(recorded.finished.exit, Exit::Status(0));
            if is_harmless {
                assert_eq!(recorded.finished.stderr_text(), "");
                assert!(recorded.trace.threads().len() > 90, "{} threads", recorded.trace.threads().len());
            }
        }
    }
}

#[test]
fn a_thousand_children_are_recorded() {
    let directory = scratch();
    let program = program(directory.path());
    for call in in_every_way(&Call::new(&program).args(["many", "5000"])) {
        let recorded = call.recorded();
        assert_eq!(
            (recorded.finished.stdout_text().as_str(), recorded.finished.stderr_text().as_str()),
            ("good 5000\n", "")
        );
        assert_eq!(recorded.trace.threads().len(), 5001);
    }
}

#[test]
fn children_of_spawn_system_and_popen_are_recorded() {
    let directory = scratch();
    let program = program(directory.path());
    for (options, more) in [(FOLLOWING[0], &[][..]), (FOLLOWING[1], &["hide"])] {
        // A followed shell sees the recorder's handlers in /proc.
        let call = Call::new(&program).arg("spawns").args(more).options(options);
        let expected = call.natively();
        for call in call.in_every_mode() {
            let recorded = call.recorded();
            recorded.assert_finished_as(&expected);
            assert_eq!(recorded.trace.threads().len(), 6);
            let followed = check_followed(&recorded);
            assert_eq!(followed, if options.is_empty() { 0 } else { 4 });
        }
    }
}

#[test]
fn rare_system_calls_in_a_child_work() {
    let directory = scratch();
    let call = Call::new(program(directory.path())).arg("rarities");
    let expected = call.natively();
    for call in in_every_way(&call) {
        let recorded = call.recorded();
        recorded.assert_finished_as(&expected);
        assert_eq!(recorded.trace.threads().len(), 4);
    }
}

const SUBPROCESSES: &str = "
import subprocess, threading
results = [None] * 8
def work(index):
    total = 0
    for i in range(12):
        command = ['sh', '-c', 'read x; echo $x; echo e >&2; exit %d' % (i % 5)]
        done = subprocess.run(command, input=b'%d' % i, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              close_fds=i % 2 == 0, restore_signals=i % 3 == 0)
        assert done.stderr == b'e\\n'
        total += int(done.stdout) * 10 + done.returncode
    try:
        subprocess.run(['no-such-program'])
    except FileNotFoundError:
        total += 1000
    results[index] = total
threads = [threading.Thread(target=work, args=(index,)) for index in range(len(results))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(results)
";

#[test]
fn subprocesses_of_many_threads_are_recorded() {
    let directory = scratch();
    let script = write(directory.path(), "subprocesses.py", SUBPROCESSES);
    let call = Call::new(tool::required("python3")).arg(&script);
    let expected = call.natively();
    assert_eq!(expected.exit, Exit::Status(0), "{}", expected.stderr_text());
    for call in in_every_way(&call) {
        let recorded = call.recorded();
        recorded.assert_finished_as(&expected);
        assert!(recorded.trace.threads().len() >= 1 + 8 + 8 * 13, "{} threads", recorded.trace.threads().len());
        check_followed(&recorded);
    }
}

/// The recorder attaches and detaches again and again while children are made.
#[test]
fn children_are_made_through_attaching_and_detaching() {
    let directory = scratch();
    let stop = directory.path().join("stop");
    let program = program(directory.path());
    let running = RunningProcess::start(Command::new(&program).arg("endless").arg(&stop), &[]);
    std::thread::sleep(Duration::from_millis(50));
    let mut children = 0;
    for round in 0..12 {
        let output = directory.path().join(format!("{round}.trk"));
        let mut recorder = Command::new(trackway());
        recorder.args(["record", "--seconds", "0.15", "--data", ["none", "addresses", "values"][round % 3]]);
        recorder.args(FOLLOWING[round / 3 % 2]).arg("-o").arg(&output).args(["-p", &running.pid().to_string()]);
        let finished = process::run(&mut recorder);
        assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""), "round {round}");
        let trace = open_sound(&output);
        assert_eq!(trace.exit(), trace::Exit::Detached);
        children += trace.threads().len() - 2;
    }
    assert!(children > 20, "{children} children");
    fs::write(&stop, "").unwrap();
    let finished = running.wait(LIMIT);
    assert_eq!(
        (finished.exit, finished.stdout_text().as_str()),
        (Exit::Status(0), "bad 0\n"),
        "{}",
        finished.stderr_text()
    );
}

/// The recorder is killed while children are made.
#[test]
fn children_run_on_when_the_recorder_is_killed() {
    let directory = scratch();
    let (stop, output) = (directory.path().join("stop"), directory.path().join("t.trk"));
    let program = program(directory.path());
    let running = RunningProcess::start(Command::new(&program).arg("endless").arg(&stop), &[]);
    std::thread::sleep(Duration::from_millis(50));
    let mut recorder = Command::new(trackway());
    let recorder = RunningProcess::start(
        recorder.args(["record", "-o"]).arg(&output).args(["-p", &running.pid().to_string()]),
        &[],
    );
    std::thread::sleep(Duration::from_millis(300));
    recorder.signal(9);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Signal(9));
    std::thread::sleep(Duration::from_millis(300));
    fs::write(&stop, "").unwrap();
    let finished = running.wait(LIMIT);
    assert_eq!(
        (finished.exit, finished.stdout_text().as_str()),
        (Exit::Status(0), "bad 0\n"),
        "{}",
        finished.stderr_text()
    );
}

/// A child outlives the image whose memory it shares.
#[test]
fn a_child_outlives_the_image_of_its_parent() {
    for executes in [false, true] {
        let directory = scratch();
        let done = directory.path().join("done");
        let program = program(directory.path());
        let more: &[&str] = if executes { &["executes"] } else { &[] };
        let call = Call::new(&program).arg("orphan").arg(&done).args(more);
        for call in call.in_every_mode() {
            let recorded = call.recorded();
            let end = if executes { ("executed\n", Exit::Status(0)) } else { ("", Exit::Status(12)) };
            assert_eq!((recorded.finished.stdout_text().as_str(), recorded.finished.exit), end);
            wait_until("the child has ended", || fs::read(&done).is_ok_and(|text| text == b"done"));
            fs::remove_file(&done).unwrap();
        }
    }
}

/// Records a call with a failure of the engine. Output and status are as expected, the trace is
/// sound, and one sentence says what has happened, if it has. Returns whether it has.
fn check_failure(call: &Call, failure: u32, place: u32, expected: &process::ProcessOutput) -> bool {
    let directory = scratch();
    let path = directory.path().join("failed.trk");
    let mut command = call.record_command(&path);
    command.env("TRACKWAY_INJECT", format!("{failure}:{place}"));
    let finished = process::run(&mut command);
    let text = finished.stderr_text();
    let what = format!("failure {failure:#x} at place {place}: {command:?}: {text}");
    assert_eq!((finished.exit, finished.stdout_text()), (expected.exit, expected.stdout_text()), "{what}");
    let is_left = open_sound(&path).exit() == trace::Exit::Detached;
    let sentences = text.lines().filter(|line| line.starts_with("trackway: recording ended early")).count();
    assert_eq!(sentences, usize::from(is_left), "{what}");
    is_left
}

/// The engine fails in the child, at the first place where it can and at later ones. The child goes
/// on natively, and so does its parent.
#[test]
fn a_child_runs_on_when_the_engine_fails_in_it() {
    let directory = scratch();
    let program = program(directory.path());
    let failures: [(u32, &[u32]); 5] = [
        (wire::FAILURE_NO_ROOM, &[0, 1, 20]),
        (wire::FAILURE_NO_MEMORY, &[0, 1, 20]),
        (wire::FAILURE_UNREADABLE, &[0, 1, 20]),
        (wire::FAILURE_DEFECT, &[0, 1, 5]),
        (wire::FAILURE_HANDLER, &[0, 1, 2]),
    ];
    let programs: [&[&str]; 6] =
        [&["loops"], &["loops", "true"], &["handlers"], &["deaths"], &["spawns", "hide"], &["rarities"]];
    let mut failed = [0; 5];
    for words in programs {
        let call = Call::new(&program).args(words);
        let expected = call.natively();
        for (&(failure, places), count) in failures.iter().zip(&mut failed) {
            for (&place, data) in places.iter().zip([Data::None, Data::Values, Data::None]) {
                for options in FOLLOWING {
                    let call = call.clone().data(data).options(options);
                    *count += usize::from(check_failure(&call, failure | wire::INJECT_IN_CHILD, place, &expected));
                }
            }
        }
    }
    assert!(failed.iter().all(|&count| count >= 2), "too few failures have happened: {failed:?}");
}

/// The engine fails when it makes the child: there is no slot or no memory for it.
#[test]
fn a_child_runs_natively_when_there_is_no_slot() {
    let directory = scratch();
    let program = program(directory.path());
    for words in [&["loops", "true"][..], &["spawns", "hide"], &["many", "20"]] {
        let call = Call::new(&program).args(words);
        let expected = call.natively();
        for options in FOLLOWING {
            for place in [0, 1] {
                check_failure(&call.clone().options(options), wire::FAILURE_TOO_MANY_THREADS, place, &expected);
            }
        }
    }
}

/// How often threads have executed the first instruction of `count_down`, in a recording of a part.
fn part_counts(call: &Call, program: &Path, options: &[&str], expected: &process::ProcessOutput) -> Vec<usize> {
    let recorded = call.clone().options(options).recorded();
    recorded.assert_finished_as(expected);
    check_followed(&recorded);
    counts(&recorded.trace, program, "count_down")
}

/// The instructions of children count, too, in the order in which they are executed: the parent
/// waits.
#[test]
fn skipping_counts_children() {
    let directory = scratch();
    let program = program(directory.path());
    let call = Call::new(&program).args(["loops", "no-such-program"]).fixed_addresses();
    let (expected, whole) = (call.natively(), call.recorded());
    let lengths: Vec<usize> = listing::of_trace(&whole.trace).iter().map(|listing| listing.addresses.len()).collect();
    let total: usize = lengths.iter().sum();
    for skip in [1, 1000, total / 2, total - lengths[1] / 2 - 300, total - 2000, total - 300] {
        for following in FOLLOWING {
            let call = call.clone().options(["--skip", &skip.to_string()]).options(following);
            let recorded = call.recorded();
            recorded.assert_finished_as(&expected);
            let listings = listing::of_trace(&recorded.trace);
            let count: usize = listings.iter().map(|listing| listing.addresses.len()).sum();
            // Skipping ends at the end of a block.
            let difference = (total - count).abs_diff(skip);
            assert!(difference < 200, "{} instead of {skip} of {total} were skipped", total - count);
        }
    }
}

#[test]
fn routines_and_callees_of_children_are_recorded() {
    let directory = scratch();
    let program = program(directory.path());
    for options in FOLLOWING {
        let call = Call::new(&program).args(["loops", "no-such-program"]).options(options);
        let expected = call.natively();
        let counts = |more: &[&str]| part_counts(&call, &program, more, &expected);
        assert_eq!(counts(&["--routine", "count_down"]), [100, 1750]);
        assert_eq!(counts(&["--routine", "count_down", "--callees"]), [100, 1750]);
        assert_eq!(counts(&["--routine", "main"]).iter().sum::<usize>(), 0);
        // A child begins outside of the routine that makes it, as a thread does.
        assert_eq!(counts(&["--routine", "main", "--callees"])[0], 100);
        assert_eq!(counts(&["--no-shared-libs"]), [100, 1750]);
        let spawning = Call::new(&program).args(["spawns", "hide"]).options(options);
        let expected = spawning.natively();
        for routine in ["posix_spawnp", "end_of"] {
            // Followed programs may lack the routine, which the recorder reports.
            let recorded = spawning.clone().options(["--routine", routine, "--callees"]).recorded();
            let RecordedCall { finished, trace, .. } = recorded;
            assert_eq!((finished.exit, finished.stdout), (expected.exit, expected.stdout.clone()), "{routine}");
            assert!(trace.summary().totals.instructions > 50, "{routine}: {:?}", trace.summary().totals);
        }
    }
}

/// The recorder of an ordinary user watches the system calls of a child until its exec.
#[test]
fn an_ordinary_user_follows_children() {
    let directory = scratch();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = program(directory.path());
    for (words, threads, followed) in
        [(&["spawns", "hide"][..], 6, 4), (&["loops", "true"], 2, 1), (&["loops", "no-such-program"], 2, 0)]
    {
        let mut native = Command::new(&program);
        let native = process::run(native.args(words));
        let place = tempfile::tempdir_in(directory.path()).unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let output = place.path().join("t.trk");
        let mut command = Command::new(tool::required("setpriv"));
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(trackway());
        command.args(["record", "--follow", "-o"]).arg(&output).arg("--").arg(&program).args(words);
        let finished = process::run(command.current_dir(place.path()));
        assert_eq!(
            (finished.exit, finished.stdout_text(), finished.stderr_text().as_str()),
            (native.exit, native.stdout_text(), "")
        );
        assert_eq!(open_sound(&output).threads().len(), threads);
        let traces: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(traces.len() - 1, followed, "{traces:?}");
        traces.iter().for_each(|path| drop(open_sound(path)));
    }
}
