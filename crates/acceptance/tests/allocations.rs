//! Allocations and their call stacks equal what programs say of themselves.
//!
//! `programs/allocations.c` logs its own calls with their results and with the call stack that
//! backtrace() finds by the unwind tables. The trace has to show the same calls in the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use acceptance::process::RunningProcess;
use acceptance::source::compile;
use acceptance::{Call, ProcessOutput, RecordedCall, process, trackway};
use serde_json::Value;
use tempfile::TempDir;
use trace::Trace;

/// A call of an allocation routine: name, size, result, old block, call stack.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Allocated {
    routine: String,
    size: u64,
    result: u64,
    old: u64,
    stack: Vec<u64>,
}

/// The calls of each thread, by the system's number of the thread.
type Log = BTreeMap<u64, Vec<Allocated>>;

struct Built {
    programs: Vec<(&'static str, PathBuf)>,
    _directory: TempDir,
}

impl Built {
    fn program(&self, name: &str) -> &Path {
        &self.programs.iter().find(|(built, _)| *built == name).unwrap().1
    }
}

/// The program with and without frame pointers, and linked statically.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let text = include_str!("../programs/allocations.c");
        let variants = [
            ("plain", &["-fomit-frame-pointer"][..]),
            ("frames", &["-fno-omit-frame-pointer"]),
            ("static", &["-fomit-frame-pointer", "-static"]),
        ];
        let build = |(name, flags): (&'static str, &[&str])| {
            let compiler = ["gcc", "-O1", "-pthread", "-fno-builtin", "-fno-optimize-sibling-calls"];
            let path = compile(directory.path(), &format!("{name}.c"), text, &[&compiler[..], flags].concat());
            (name, path)
        };
        let programs = variants.into_iter().map(build).collect();
        Built { programs, _directory: directory }
    })
}

fn number(text: &str) -> u64 {
    match text {
        "(nil)" => 0,
        _ => u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap(),
    }
}

/// What the program says that it has done.
fn own_log(output: &ProcessOutput) -> Log {
    let mut log = Log::new();
    for line in output.stdout_text().lines().filter(|line| !line.starts_with("ready")) {
        let fields: Vec<&str> = line.split(' ').collect();
        log.entry(fields[0].parse().unwrap()).or_default().push(Allocated {
            routine: fields[1].to_owned(),
            size: fields[2].parse().unwrap(),
            result: number(fields[3]),
            old: number(fields[4]),
            stack: fields[5..].iter().map(|field| number(field)).collect(),
        });
    }
    log
}

/// The lines of `dump --kind allocations --json`.
fn dumped(path: &Path) -> Vec<Value> {
    let mut command = Command::new(trackway());
    command.args(["dump", "--kind", "allocations", "--json"]).arg(path);
    let output = process::run(&mut command);
    assert_eq!(output.stderr_text(), "");
    output.stdout_text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn address(value: &Value) -> u64 {
    value.as_str().map_or(0, number)
}

/// The calls in a trace that the program logs: those from its functions `logged_*`.
fn recorded_log(recorded: &RecordedCall) -> Log {
    let tids: BTreeMap<u64, u64> = recorded
        .trace
        .threads()
        .iter()
        .map(|thread| (u64::from(thread.info.thread.get()), u64::from(thread.info.os_tid)))
        .collect();
    log_of(&dumped(&recorded.path), &tids)
}

fn log_of(lines: &[Value], tids: &BTreeMap<u64, u64>) -> Log {
    let mut log = Log::new();
    for line in lines {
        let frames = line["frames"].as_array().unwrap();
        let is_logged = |frame: &Value| frame.as_str().unwrap().starts_with("logged_");
        let Some(at) = frames.iter().take(3).position(is_logged) else { continue };
        if line["nested"].as_bool().unwrap() {
            continue;
        }
        // In the C library, one function has both names.
        let routine = line["routine"].as_str().map(|name| if name == "memalign" { "aligned_alloc" } else { name });
        let routine = routine.unwrap();
        let stack = line["stack"].as_array().unwrap()[at + 1..].iter().map(address).collect();
        let only_frees = routine == "free";
        log.entry(tids[&line["thread"].as_u64().unwrap()]).or_default().push(Allocated {
            routine: routine.to_owned(),
            size: if only_frees { 0 } else { line["size"].as_u64().unwrap_or(0) },
            result: address(&line["result"]),
            old: address(&line["block"]),
            stack,
        });
    }
    log
}

/// Fails where two logs differ first.
fn assert_same(what: &str, recorded: &Log, expected: &Log) {
    assert!(!expected.is_empty(), "{what}: the program has logged nothing");
    assert!(recorded.keys().eq(expected.keys()), "{what}: other threads");
    for (thread, expected) in expected {
        let recorded = &recorded[thread];
        for (at, (recorded, expected)) in recorded.iter().zip(expected).enumerate() {
            assert_eq!(recorded, expected, "{what}: call {at} of thread {thread}");
        }
        assert_eq!(recorded.len(), expected.len(), "{what}: number of calls of thread {thread}");
    }
}

fn check(program: &Path, arguments: &[&str], options: &[&str], environment: &[(&str, &str)]) {
    let call = Call::new(program).args(arguments).environment(environment).options(options);
    let recorded = call.recorded();
    let what = format!("{} {arguments:?} {options:?} {environment:?}", program.display());
    assert_same(&what, &recorded_log(&recorded), &own_log(&recorded.finished));
}

#[test]
fn one_thread_with_and_without_frame_pointers() {
    for name in ["plain", "frames"] {
        check(built().program(name), &["all"], &["--allocations"], &[]);
    }
}

#[test]
fn many_threads() {
    check(built().program("plain"), &["all", "8"], &["--allocations"], &[]);
}

#[test]
fn selected_routines() {
    let program = built().program("plain");
    for options in [
        &["--routine", "recursive", "--allocations"][..],
        &["--routine", "recursive", "--callees", "--allocations"],
        &["--routine", "logged_free", "--callees", "--allocations", "--data", "addresses"],
        &["--no-shared-libs", "--allocations", "--data", "values"],
    ] {
        check(program, &["all", "3"], options, &[]);
    }
}

#[test]
fn a_static_program() {
    check(built().program("static"), &["all", "2"], &["--allocations"], &[]);
}

#[test]
fn other_allocators() {
    for library in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let path = format!("/usr/lib/x86_64-linux-gnu/{library}");
        assert!(Path::new(&path).exists(), "{path} is missing");
        check(built().program("plain"), &["all", "4"], &["--allocations"], &[("LD_PRELOAD", &path)]);
    }
}

#[test]
fn in_signal_handlers() {
    let call = Call::new(built().program("plain")).args(["signals"]).options(["--allocations"]);
    let recorded = call.recorded();
    // Between a handler and what it has interrupted, backtrace() also sees the C library's code
    // that returns from the handler, to which nobody has called.
    let interrupted = |log: Log| -> Vec<Allocated> {
        let calls = log.into_values().flatten();
        calls.map(|call| Allocated { stack: call.stack.into_iter().take(1).collect(), ..call }).collect()
    };
    let (seen, expected) = (interrupted(recorded_log(&recorded)), interrupted(own_log(&recorded.finished)));
    assert_eq!(seen.len(), 24);
    // Of a handler, the first frame is that code or the interrupted function.
    let without_handlers = |calls: Vec<Allocated>| -> Vec<Allocated> {
        calls
            .into_iter()
            .map(|call| if call.size == 123 { Allocated { stack: Vec::new(), ..call } } else { call })
            .collect()
    };
    let outside = |calls: &[Allocated]| calls.iter().filter(|call| call.size == 7).cloned().collect::<Vec<_>>();
    assert_eq!(outside(&seen), outside(&expected), "the stacks are right behind the handlers");
    let key = |call: Allocated| (call.routine, call.size, call.result, call.old);
    let seen: Vec<_> = without_handlers(seen).into_iter().map(key).collect();
    let expected: Vec<_> = without_handlers(expected).into_iter().map(key).collect();
    assert_eq!(seen, expected);
}

#[test]
fn exceptions_through_constructors() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/thrown.cc");
    for flags in [&["-O1"][..], &["-O2"], &["-O0"]] {
        let compiler = [&["g++", "-fno-optimize-sibling-calls"], flags].concat();
        let program = compile(directory.path(), "thrown.cc", text, &compiler);
        let recorded = Call::new(&program).options(["--allocations"]).recorded();
        let text = recorded.finished.stdout_text();
        let expected: Vec<(String, Vec<u64>)> = text
            .lines()
            .map(|line| {
                let (routine, stack) = line.split_once(" 0x").unwrap();
                let routine = routine.split_once(' ').unwrap().1.to_owned();
                (routine, stack.split(' ').map(number).collect())
            })
            .collect();
        let is_logged =
            |line: &&Value| line["frames"][0].as_str().unwrap().contains("logged_") && line["routine"] != "free";
        // What the compiler calls when a constructor fails is not logged.
        let is_cleanup = |line: &&Value| {
            line["routine"] == "operator delete" && line["frames"][0].as_str().unwrap().contains("logged_inner")
        };
        let lines = dumped(&recorded.path);
        let seen: Vec<(String, Vec<u64>)> = lines
            .iter()
            .filter(|line| is_logged(line) && !is_cleanup(line))
            .map(|line| {
                let stack = line["stack"].as_array().unwrap()[1..].iter().map(address).collect();
                (line["routine"].as_str().unwrap().to_owned(), stack)
            })
            .collect();
        assert_eq!(seen, expected, "{flags:?}");
        assert!(lines.iter().any(|line| is_cleanup(&line)), "a failed constructor gives its memory back");
    }
}

#[test]
fn operator_new_that_throws() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/refused.cc");
    for flags in [&["-O0"][..], &["-O2"], &["-O1", "-static"], &["-O2", "-fno-omit-frame-pointer"]] {
        let compiler = [&["g++", "-w", "-fno-builtin"], flags].concat();
        let program = compile(directory.path(), "refused.cc", text, &compiler);
        let recorded = Call::new(&program).options(["--allocations"]).recorded();
        let mut command = Command::new(trackway());
        command.args(["dump", "--kind", "allocations"]).arg(&recorded.path);
        let listed = process::run(&mut command).stdout_text();
        let of_program = |line: &str| {
            let (call, frames) = line.rsplit_once(", ")?;
            let is_own =
                ["ask+", "inner+", "passes_on+", "round+", "main+"].iter().any(|name| frames.starts_with(name));
            // The exception itself was allocated inside of the call that it has left.
            let is_exception = call.ends_with("allocated before the recording");
            (is_own && !is_exception).then(|| call.split_once(", ").unwrap().1.to_owned())
        };
        let mut listed: Vec<String> = listed.lines().filter_map(of_program).collect();
        // Calls without a return are listed last.
        let text = recorded.finished.stdout_text();
        let (expected, mut thrown): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| !line.ends_with("no return"));
        assert_eq!((expected.len(), thrown.len()), (3 * 10 + 3, 6), "{text}");
        let mut unreturned = listed.split_off(expected.len().min(listed.len()));
        assert_eq!(listed, expected, "{flags:?}");
        unreturned.sort_unstable();
        thrown.sort_unstable();
        assert_eq!(unreturned, thrown, "{flags:?}");
    }
}

#[test]
fn attached_in_the_middle() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("t.trk");
    for (name, options) in [
        ("plain", &["--allocations"][..]),
        ("frames", &["--allocations", "--routine", "logged_free"]),
        ("static", &["--allocations"]),
    ] {
        let mut program = Command::new(built().program(name));
        let target = RunningProcess::start(program.arg("attach"), &[]);
        process::wait_until("the program sleeps", || process::state_of(target.pid()) == Some('S'));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let pid = target.pid();
        let mut command = Command::new(trackway());
        command.args(["record", "-q", "-o"]).arg(&output).args(["-p", &pid.to_string()]).args(options);
        let recorder = RunningProcess::start(&mut command, &[]);
        process::wait_until("the recorder has attached", || {
            std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("memfd:trackway"))
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        target.signal(libc::SIGUSR2);
        let finished = target.wait(process::LIMIT);
        let recorded = recorder.wait(process::LIMIT);
        assert_eq!(recorded.stderr_text(), "");
        let trace = acceptance::call::open_sound(&output);
        let tids = trace
            .threads()
            .iter()
            .map(|thread| (u64::from(thread.info.thread.get()), u64::from(thread.info.os_tid)))
            .collect();
        let lines = dumped(&output);
        assert_same(name, &log_of(&lines, &tids), &own_log(&finished));
        let older: Vec<&Value> = lines.iter().filter(|line| line["is_older"] == true).collect();
        let ready = number(finished.stdout_text().lines().next().unwrap().split_once(' ').unwrap().1);
        assert!(older.iter().any(|line| address(&line["block"]) == ready), "the block is older than the recording");
    }
}

#[test]
fn attached_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/allocators.c");
    let program = compile(directory.path(), "allocators.c", text, &["gcc", "-O1", "-pthread"]);
    let target = RunningProcess::start(Command::new(program).arg("8"), &[]);
    for visit in 0..5 {
        let output = directory.path().join("t.trk");
        let mut command = Command::new(trackway());
        command.args(["record", "-q", "--allocations", "--seconds", "0.03", "-o"]).arg(&output);
        let recorded = process::run(command.args(["-p", &target.pid().to_string()]));
        assert_eq!(recorded.stderr_text(), "", "visit {visit}");
        assert_eq!(acceptance::call::open_sound(&output).threads().len(), 9, "visit {visit}");
        let lines = dumped(&output);
        assert!(!lines.is_empty(), "visit {visit}");
        for line in lines.iter().filter(|line| line["routine"] == "malloc") {
            let frames: Vec<&str> =
                line["frames"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap()).collect();
            assert!(frames[0].starts_with("churn+") && frames[1].starts_with("worker+"), "visit {visit}: {frames:?}");
        }
    }
    target.signal(libc::SIGUSR2);
    let finished = target.wait(process::LIMIT);
    assert_eq!(finished.stdout_text(), "8 threads have kept their blocks\n");
}

/// Fails unless every complete activation of `churn` has two loops of sixteen trips.
fn assert_whole_activations(path: &Path, what: &str) {
    let mut command = Command::new(trackway());
    command.args(["dump", "--kind", "scopes"]).arg(path);
    let output = process::run(&mut command);
    assert_eq!(output.stderr_text(), "", "{what}");
    let mut activations: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for line in output.stdout_text().lines() {
        let fields: Vec<&str> = line.split(", ").collect();
        let of_thread = activations.entry(fields[0].to_owned()).or_default();
        match fields[1] {
            "enter" => of_thread.push(Vec::new()),
            "exit loop" => of_thread.last_mut().unwrap().push(fields[4].to_owned()),
            _ => {}
        }
    }
    let mut whole = 0;
    for (thread, of_thread) in activations {
        // The recorder has attached within the first one, and detached within the last one.
        for trips in of_thread.iter().take(of_thread.len() - 1).skip(1) {
            assert_eq!(*trips, ["trips 16", "trips 16"], "{what}, thread {thread}");
            whole += 1;
        }
    }
    assert!(whole > 100, "{what}: {whole} activations");
}

/// Fails unless all activations of `churn` in a thread begin with the same stack pointer.
fn assert_stack_pointers(trace: &Trace, what: &str) {
    let mut threads = 0;
    for thread in trace.threads() {
        let mut pointers = BTreeSet::new();
        let mut steps = trace.steps_with_accesses(thread.info.thread).unwrap();
        while let Some(batch) = steps.next_batch().unwrap() {
            pointers.extend((0..batch.steps().len()).filter_map(|step| batch.stack_pointer_of_step(step)));
        }
        assert!(pointers.len() <= 1, "{what}: {pointers:x?}");
        threads += pointers.len();
    }
    assert!(threads >= 8, "{what}: {threads} threads");
}

#[test]
fn everything_at_once_in_many_threads_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/allocators.c");
    let program = compile(directory.path(), "allocators.c", text, &["gcc", "-O1", "-pthread"]);
    let target = RunningProcess::start(Command::new(program).arg("32"), &[]);
    let tasks = format!("/proc/{}/task", target.pid());
    process::wait_until("all threads run", || std::fs::read_dir(&tasks).unwrap().count() == 33);
    for visit in 0..6 {
        let limit = if visit % 2 == 0 { 2_000_000 } else { 4_000_000 };
        let what = format!("visit {visit}");
        let output = directory.path().join("t.trk");
        let mut command = Command::new(trackway());
        command.args(["record", "-q", "--data", "addresses", "--routine", "churn", "--scopes", "--allocations"]);
        command.args(["--accesses", &limit.to_string(), "-p", &target.pid().to_string(), "-o"]).arg(&output);
        assert_eq!(process::run(&mut command).stderr_text(), "", "{what}");
        process::assert_clean(target.pid());
        let trace = acceptance::call::open_sound(&output);
        // Not all threads may have begun before the limit is reached.
        assert!((8..=33).contains(&trace.threads().len()), "{what}: {} threads", trace.threads().len());
        assert_eq!(trace.exit(), trace::Exit::Detached, "{what}");
        let totals = trace.totals();
        let accesses = totals.reads + totals.writes;
        assert!((limit..limit + 1000).contains(&accesses), "{what}: {accesses} accesses");
        assert_whole_activations(&output, &what);
        assert_stack_pointers(&trace, &what);
        let lines = dumped(&output);
        for routine in ["malloc", "free"] {
            let calls: Vec<&Value> = lines.iter().filter(|line| line["routine"] == routine).collect();
            assert!(calls.len() > 1000, "{what}: {} calls of {routine}", calls.len());
            for call in calls {
                let frame = |at: usize| call["frames"][at].as_str().unwrap();
                assert!(frame(0).starts_with("churn+") && frame(1).starts_with("worker+"), "{what}: {call}");
            }
        }
    }
    target.signal(libc::SIGUSR2);
    assert_eq!(target.wait(process::LIMIT).stdout_text(), "32 threads have kept their blocks\n");
}

/// The calls that a preloaded library has logged, up to the program's exit.
#[test]
fn real_programs_against_a_preloaded_logger() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/logger.c");
    let library = compile(directory.path(), "logger.c", text, &["gcc", "-O1", "-shared", "-fPIC", "-fno-builtin"]);
    let log = directory.path().join("log");
    let words = directory.path().join("words");
    std::fs::write(&words, text.repeat(20)).unwrap();
    let script = "import json; print(len(json.dumps([{str(i): list(range(i % 9))} for i in range(300)])))";
    for (program, arguments) in
        [("python3", ["-S", "-c", script]), ("sort", ["--parallel=1", "-k2", words.to_str().unwrap()])]
    {
        let environment = [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("ALLOCATION_LOG", log.to_str().unwrap()),
            ("PATH", "/usr/bin:/bin"),
            ("PYTHONMALLOC", "malloc"),
        ];
        let program = acceptance::tool::required(program);
        let output = directory.path().join("t.trk");
        // The recorder itself must not write the log.
        let mut command = Command::new("/usr/bin/env");
        command.env_clear().env("PATH", "/usr/bin:/bin").arg(trackway());
        command.args(["record", "-q", "--allocations", "--routine", "getenv", "-o"]).arg(&output).arg("--");
        command.arg("/usr/bin/env").args(environment.map(|(name, value)| format!("{name}={value}")));
        let finished = process::run(command.arg(&program).args(arguments));
        assert_eq!(finished.stderr_text(), "", "{program:?}");
        let expected = std::fs::read_to_string(&log).unwrap();
        let seen: Vec<String> = dumped(&output)
            .iter()
            .filter(|line| !["mmap", "munmap", "mremap", "brk"].contains(&line["routine"].as_str().unwrap()))
            .map(|line| {
                let routine = line["routine"].as_str().unwrap();
                let size = if routine == "free" { 0 } else { line["size"].as_u64().unwrap() };
                format!("{routine} {size:x} {:x} {:x}", address(&line["result"]), address(&line["block"]))
            })
            .collect();
        let expected: Vec<&str> = expected.lines().collect();
        // `env` has made calls of its own before, without the library.
        let first = seen.len().checked_sub(expected.len()).expect("all calls are recorded");
        let start = (0..=first).rev().find(|&at| seen[at..at + expected.len()].iter().eq(&expected));
        assert!(expected.len() > 10, "{program:?}: {} calls", expected.len());
        if start.is_none() {
            let different = (0..=first).map(|at| seen[at..].iter().zip(&expected).take_while(|(a, b)| a == b).count());
            panic!("{program:?}: {} of {} calls are the same", different.max().unwrap(), expected.len());
        }
    }
}
