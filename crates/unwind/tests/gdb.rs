//! Compares call stacks with those that gdb finds, in stopped programs of many kinds.

#[allow(dead_code)]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libc::pid_t;
use support::{Memory, Process, build, converted, hex, ptrace, registers, wait};
use tempfile::TempDir;
use trackway_unwind::{Frame, UnwindEnd};

/// Prints a line for each thread, and for each of its frames: the address, whether it is the frame
/// that a signal returns through, and the CFA.
const SCRIPT: &str = r#"
import gdb
for setting in ["backtrace past-main on", "backtrace past-entry on", "backtrace limit 200"]:
    gdb.execute("set " + setting)
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("@thread", thread.ptid[1])
    frame = gdb.newest_frame()
    while frame is not None:
        # Calls that left no return address exist in debug information only.
        if frame.type() not in [gdb.INLINE_FRAME, gdb.TAILCALL_FRAME]:
            frame.select()
            text = gdb.execute("info frame", to_string=True)
            cfa = text.split("frame at ")[1].split(":")[0] if "frame at " in text else "0x0"
            print("@frame", hex(frame.pc()), frame.type() == gdb.SIGTRAMP_FRAME, cfa)
        frame = frame.older()
"#;

/// A frame of gdb.
#[derive(Debug)]
struct GdbFrame {
    address: u64,
    is_signal: bool,
    cfa: u64,
}

/// Returns the frames of each thread.
fn gdb(process: pid_t, directory: &Path) -> BTreeMap<pid_t, Vec<GdbFrame>> {
    let script = directory.join("frames.py");
    fs::write(&script, SCRIPT).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", &process.to_string(), "-x"]).arg(script);
    let output = gdb.stdin(Stdio::null()).output().expect("gdb is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut threads: BTreeMap<pid_t, Vec<GdbFrame>> = BTreeMap::new();
    let mut thread = 0;
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["@thread", number] => thread = number.parse().unwrap(),
            ["@frame", address, is_signal, cfa] => {
                let frame = GdbFrame { address: hex(address), is_signal: *is_signal == "True", cfa: hex(cfa) };
                threads.entry(thread).or_default().push(frame);
            }
            _ => {}
        }
    }
    assert!(!threads.is_empty(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    threads
}

/// A program that has stopped itself. It ends with the test.
struct StoppedProgram(Child);

impl StoppedProgram {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(program).args(arguments).stdout(Stdio::null()).spawn().unwrap();
        let stopped = Self(child);
        let status = wait(stopped.process());
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGSTOP, "status {status:#x}");
        stopped
    }

    fn process(&self) -> pid_t {
        pid_t::try_from(self.0.id()).unwrap()
    }

    /// Unwinds all threads.
    fn unwind(&self) -> BTreeMap<pid_t, (Vec<Frame>, UnwindEnd)> {
        let memory = Memory::of_process(self.process());
        let mut process = Process::default();
        process.update(self.process(), &memory);
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process())).unwrap();
        let threads = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<pid_t>().unwrap());
        let mut unwound = |thread| {
            ptrace(libc::PTRACE_SEIZE, thread, 0);
            ptrace(libc::PTRACE_INTERRUPT, thread, 0);
            wait(thread);
            let registers = converted(&registers(thread));
            let mut frames = Vec::new();
            let end = process.unwinder.unwind(&registers, 200, &mut |address| memory.word(address), &mut frames);
            ptrace(libc::PTRACE_DETACH, thread, 0);
            (frames, end)
        };
        threads.map(|thread| (thread, unwound(thread))).collect()
    }
}

impl Drop for StoppedProgram {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Checks all threads of a program, and returns how many frames they have. `ends` is how the stacks
/// may end.
fn check(source: &str, options: &[&str], arguments: &[&str], ends: &[UnwindEnd]) -> usize {
    let directory = TempDir::new().unwrap();
    let stopped = StoppedProgram::start(&build(directory.path(), source, options), arguments);
    let ours = stopped.unwind();
    let theirs = gdb(stopped.process(), directory.path());
    let place = format!("{source} {options:?} {arguments:?}");
    assert!(ours.keys().eq(theirs.keys()), "{place}: {ours:?} {theirs:?}");
    let mut count = 0;
    for (thread, (frames, end)) in ours {
        let theirs = &theirs[&thread];
        compare(&frames, theirs, &format!("{place} {end:?}"));
        assert!(ends.contains(&end), "{place}: {end:?}");
        count += frames.len();
    }
    count
}

fn compare(ours: &[Frame], theirs: &[GdbFrame], place: &str) {
    let addresses: Vec<String> = ours.iter().map(|frame| format!("{:x}", frame.address)).collect();
    let expected: Vec<String> = theirs.iter().map(|frame| format!("{:x}", frame.address)).collect();
    assert_eq!(addresses, expected, "{place}");
    let mut is_exact = true;
    for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours.is_exact, is_exact, "{place}: frame {index}");
        is_exact = theirs.is_signal;
        // For the frame of a signal gdb names another address, for the outermost one none.
        if let Some(cfa) = ours.cfa.filter(|_| !theirs.is_signal && theirs.cfa != 0) {
            assert_eq!(format!("{cfa:x}"), format!("{:x}", theirs.cfa), "{place}: frame {index}");
        }
    }
}

const OUTERMOST: &[UnwindEnd] = &[UnwindEnd::Outermost];

#[test]
fn callbacks_through_the_library() {
    let kinds: [&[&str]; 6] = [
        &["-O0"],
        &["-O2"],
        &["-O2", "-fno-omit-frame-pointer"],
        &["-O3", "-mavx2", "-no-pie"],
        &["-Os", "-fcf-protection=full", "-Wl,-z,now"],
        &["-O2", "-static"],
    ];
    for options in kinds {
        let count = check("callbacks.c", options, &[], OUTERMOST);
        assert!(count > 10, "{count} frames with {options:?}");
    }
}

#[test]
fn signals_on_an_alternate_stack() {
    for kind in ["fault", "call"] {
        for options in [["-O0"], ["-O2"], ["-static"]] {
            let count = check("signals.c", &options, &[kind], OUTERMOST);
            assert!(count > 10, "{count} frames with {options:?}");
        }
    }
}

#[test]
fn threads_that_wait_and_compute() {
    for options in [["-O0"], ["-O2"], ["-static"]] {
        let count = check("threads.c", &options, &[], OUTERMOST);
        assert!(count > 7 * 4, "{count} frames with {options:?}");
    }
}

#[test]
fn objects_with_callbacks_and_exceptions() {
    for options in [["-O0"], ["-O2"], ["-static"]] {
        let count = check("objects.cc", &options, &[], OUTERMOST);
        assert!(count > 10, "{count} frames with {options:?}");
    }
}

#[test]
fn a_return_from_a_signal_without_call_frame_information() {
    for options in [["-O0"], ["-O2"]] {
        let count = check("restorer.c", &options, &[], OUTERMOST);
        assert!(count > 10, "{count} frames with {options:?}");
    }
}

/// The debug information has what is missing, so that gdb does not have to guess.
#[test]
fn functions_without_call_frame_information() {
    for level in ["-O0", "-O1", "-O2"] {
        let tables = ["-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer"];
        let count = check("plain.c", &[&[level], tables.as_slice()].concat(), &[], OUTERMOST);
        assert!(count > 5, "{count} frames with {level}");
    }
}
