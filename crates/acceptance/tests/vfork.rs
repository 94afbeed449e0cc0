//! What a child executes that shares its parent's memory (vfork, posix_spawn) is recorded as a thread of its parent, and everybody behaves
//! as without us.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use acceptance::call::{Call, Recorded, open_sound};
use acceptance::process::{self, LIMIT, Running, wait_until};
use acceptance::source::{compile, write};
use acceptance::{listing, tool, trackway};
use tempfile::TempDir;
use trace::{Event, Trace};
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

/// How often each thread has executed the instruction at this offset of a program, in the order of threads.
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
fn check_followed(recorded: &Recorded) -> usize {
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
            assert_eq!(child.info.parent, Some(0));
            assert_ne!(child.info.os_tid, first.info.os_tid);
            let events = listing::of_thread(&recorded.trace, 1).events;
            assert!(matches!(events.last(), Some((_, Event::End { .. }))), "{:?}", events.last());
            let children = listing::of_thread(&recorded.trace, 0).events.into_iter();
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
            let events = listing::of_thread(&recorded.trace, thread).events;
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

/// A signal can end a child anywhere without harm to its parent. SIGTERM waits until the child is not at work in the engine.
#[test]
fn children_that_another_thread_kills() {
    let directory = scratch();
    let program = program(directory.path());
    for (signal, is_harmless) in [("15", true), ("9", false)] {
        let call = Call::new(&program).args(["kills", "100", signal]);
        for call in call.in_every_mode() {
            let recorded = call.left();
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
fn a_thousand_children() {
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
fn spawn_system_and_popen() {
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
fn rare_system_calls_in_a_child() {
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
fn subprocesses_of_many_threads() {
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

/// Attached and left again and again while children are made.
#[test]
fn attach_and_leave_while_children_are_made() {
    let directory = scratch();
    let stop = directory.path().join("stop");
    let program = program(directory.path());
    let running = Running::start(Command::new(&program).arg("endless").arg(&stop), &[]);
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
        assert_eq!(trace.exit(), trace::Exit::Left);
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
fn children_without_a_recorder() {
    let directory = scratch();
    let (stop, output) = (directory.path().join("stop"), directory.path().join("t.trk"));
    let program = program(directory.path());
    let running = Running::start(Command::new(&program).arg("endless").arg(&stop), &[]);
    std::thread::sleep(Duration::from_millis(50));
    let mut recorder = Command::new(trackway());
    let recorder =
        Running::start(recorder.args(["record", "-o"]).arg(&output).args(["-p", &running.pid().to_string()]), &[]);
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
fn a_child_whose_parent_is_gone() {
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
