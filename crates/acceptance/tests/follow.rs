//! `--follow`: every process of a family gets a trace of its own, and all of them behave as without
//! the recorder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use acceptance::call::open_sound;
use acceptance::process::{self, LIMIT, RunningProcess, wait_until};
use acceptance::source::{compile, write};
use acceptance::{ProcessOutput, tool, trackway};
use tempfile::TempDir;
use trace::Trace;
use workloads::Exit;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn family(directory: &Path) -> PathBuf {
    compile(directory, "family.c", include_str!("../programs/family.c"), &["gcc", "-O1"])
}

fn record(output: &Path, options: &[&str], command: &[&str]) -> ProcessOutput {
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "--follow", "-o"]).arg(output).args(options).arg("--").args(command);
    process::run(&mut recorder)
}

/// The traces of the processes that were followed, by the number in their names. All are sound and
/// finished.
fn followed(output: &Path) -> Vec<(u32, Trace)> {
    let prefix = format!("{}.", output.file_stem().unwrap().to_str().unwrap());
    let mut found = Vec::new();
    for entry in fs::read_dir(output.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!name.ends_with(".part"), "{name} was left");
        let number = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".trk"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            let trace = open_sound(&path);
            assert!(trace.is_finished());
            assert_eq!(trace.recording().pid, number);
            found.push((number, trace));
        }
    }
    found.sort_by_key(|(number, _)| *number);
    found
}

const ENDS: &str = "fork: status 3\nvfork: status 4\nposix_spawn: signal 15\nexecuted\nclone: status 0\n\
                    vfork without exec: status 6\n";

#[test]
fn processes_made_in_every_way_are_followed() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let program = family(directory.path());
    let finished = record(&output, &[], &[program.to_str().unwrap()]);
    assert_eq!((finished.stdout_text().as_str(), finished.stderr_text().as_str()), (ENDS, ""));
    assert_eq!(finished.exit, Exit::Status(0));
    let first = open_sound(&output);
    let traces = followed(&output);
    // The child that has neither memory nor a program of its own has no trace of its own.
    assert_eq!(traces.len(), 5);
    let pid = first.recording().pid;
    let members: Vec<_> = first.processes().collect();
    assert_eq!(members.len(), 6);
    assert_eq!(members.iter().filter(|member| member.parent == Some(pid)).count(), 4, "{members:?}");
    assert_eq!(
        members.iter().filter(|member| member.parent.is_none()).map(|member| member.pid).collect::<Vec<_>>(),
        [pid]
    );
    let images = |trace: &Trace| trace.modules().iter().map(|mapped| mapped.image).max();
    for (number, trace) in &traces {
        assert!(trace.summary().totals.instructions > 1000);
        assert_eq!(trace.threads().len(), 1);
        let own = trace.processes().find(|member| member.pid == *number).unwrap();
        let parent = trace.processes().find(|member| Some(member.pid) == own.parent).unwrap();
        assert!(parent.tsc < own.tsc && own.tsc >= first.recording().start_tsc);
    }
    assert_eq!(traces.iter().filter(|(_, trace)| images(trace) == Some(1)).count(), 1, "fork and exec");
    let info = process::run(Command::new(trackway()).arg("info").arg(&output)).stdout_text();
    let tree = info.split("\nprocesses\n").nth(1).unwrap();
    assert_eq!(tree.lines().count(), 6, "{tree}");
    assert!(tree.starts_with(&format!("* {pid} ")), "{tree}");
}

/// The counts of a process that is followed are those of the same process recorded alone.
#[test]
fn a_followed_process_is_recorded_as_if_alone() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let script = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done";
    let alone = directory.path().join("alone.trk");
    let mut command = Command::new(trackway());
    command.args(["record", "--no-aslr", "-o"]).arg(&alone).args(["--", "/bin/sh", "-c", script]);
    assert_eq!(process::run(&mut command).exit, Exit::Status(0));
    // A shell that has another command to run afterwards makes a process.
    let both = format!("/bin/sh -c '{script}'; exit 2");
    let finished = record(&output, &["--no-aslr"], &["/bin/sh", "-c", &both]);
    assert_eq!(finished.exit, Exit::Status(2), "{}", finished.stderr_text());
    let traces = followed(&output);
    let [(_, trace)] = traces.as_slice() else { panic!("{} processes", traces.len()) };
    let last = trace.modules().iter().map(|mapped| mapped.image).max().unwrap();
    let expected = open_sound(&alone).summary().totals.conditional_taken;
    let found = trace.summary().totals.conditional_taken;
    // The environment may differ by a few bytes, hence the dynamic linker's work by a few branches;
    // and before the exec there is a little of the first shell.
    assert!(last <= 1 && found.abs_diff(expected) < expected / 10, "{found} and {expected}");
}

/// The recorder waits for all processes, and its status is that of the first.
#[test]
fn the_recorder_waits_for_a_process_that_outlives_its_parent() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let program = family(directory.path());
    let finished = record(&output, &[], &[program.to_str().unwrap(), "outlived"]);
    assert_eq!(
        (finished.exit, finished.stdout_text().as_str()),
        (Exit::Status(7), "survivor\n"),
        "{}",
        finished.stderr_text()
    );
    let traces = followed(&output);
    assert_eq!(traces.len(), 1);
    assert!(traces[0].1.summary().totals.instructions > 30_000_000);
}

/// Several threads fork, vfork, spawn and call the shell at once.
#[test]
fn processes_of_many_threads_are_followed() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let flags = ["gcc", "-O1", "-pthread"];
    let program = compile(directory.path(), "forks.c", include_str!("../programs/forks.c"), &flags);
    let finished = record(&output, &[], &[program.to_str().unwrap(), "6"]);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "bad 0 good 1\n"));
    assert_eq!(finished.stderr_text(), "");
    assert!(followed(&output).len() > 20);
}

#[test]
fn a_build_is_followed() {
    let directory = scratch();
    let path = directory.path();
    let rules = "all: a b c\na b c: %: %.c\n\tgcc -O1 -o $@ $<\n";
    write(path, "Makefile", rules);
    for name in ["a.c", "b.c", "c.c"] {
        write(path, name, "int main(void) { return 0; }\n");
    }
    let output = path.join("traces").join("t.trk");
    fs::create_dir(output.parent().unwrap()).unwrap();
    let make = tool::required("make");
    let finished = record(&output, &[], &[make.to_str().unwrap(), "-s", "-C", path.to_str().unwrap(), "-j2"]);
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    let traces = followed(&output);
    let compilers = traces.iter().filter(|(_, trace)| trace.recording().command[0].ends_with("cc1")).count();
    assert_eq!(compilers, 3, "{:?}", traces.iter().map(|(_, trace)| &trace.recording().command).collect::<Vec<_>>());
    for name in ["a", "b", "c"] {
        assert_eq!(process::run(&mut Command::new(path.join(name))).exit, Exit::Status(0));
    }
}

/// A running process can be followed, too, and the recorder detaches from the whole family at once.
#[test]
fn a_running_process_is_followed_with_its_children() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let script = "n=0; while [ ! -e stop ]; do n=$((n+1)); /bin/true; done; echo $((n > 3)); sleep 0.1; exit 5";
    let mut command = Command::new("/bin/sh");
    let running = RunningProcess::start(command.args(["-c", script]).current_dir(directory.path()), &[]);
    std::thread::sleep(Duration::from_millis(200));
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "--follow", "--seconds", "0.7", "-o"]).arg(&output);
    let finished = process::run(recorder.args(["-p", &running.pid().to_string()]));
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    assert_eq!(open_sound(&output).exit(), trace::Exit::Detached);
    assert!(!followed(&output).is_empty());
    fs::write(directory.path().join("stop"), "").unwrap();
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(5), "1\n"));
}

/// Without the option, no child is followed, and a process that a recorded one has made can be
/// recorded by itself.
#[test]
fn unfollowed_processes_are_like_any_other() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let program = family(directory.path());
    let finished = process::run(Command::new(trackway()).args(["record", "-o"]).arg(&output).arg("--").arg(&program));
    assert_eq!((finished.stdout_text().as_str(), finished.stderr_text().as_str()), (ENDS, ""));
    assert!(followed(&output).is_empty());
    assert_eq!(open_sound(&output).processes().count(), 0);

    let script = "import os, time\nif os.fork():\n    os._exit(0)\nfor i in range(60):\n    sum(range(100000))\n    time.sleep(0.02)\n";
    let program = write(directory.path(), "child.py", script);
    let marker = directory.path().join("pid");
    let text = fs::read_to_string(&program)
        .unwrap()
        .replace("for i", &format!("open('{}', 'w').write(str(os.getpid()))\nfor i", marker.display()));
    fs::write(&program, text).unwrap();
    let python = tool::required("python3");
    let mut command = Command::new(trackway());
    command.args(["record", "-o"]).arg(&output).arg("--").arg(python).arg(&program);
    let recorder = RunningProcess::start(&mut command, &[]);
    wait_until("the child runs", || fs::read_to_string(&marker).is_ok_and(|text| !text.is_empty()));
    let pid = fs::read_to_string(&marker).unwrap();
    let of_child = directory.path().join("c.trk");
    let mut command = Command::new(trackway());
    let finished = process::run(command.args(["record", "--seconds", "0.2", "-p", &pid, "-o"]).arg(&of_child));
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    assert!(open_sound(&of_child).summary().totals.instructions > 1000);
    assert_eq!(recorder.wait(LIMIT).exit, Exit::Status(0));
}

const PAGE: &str = "<body style='background: #fed'><h1 id=h>hello</h1><script>
let sum = 0;
for (let i = 0; i < 300000; i++) sum += i % 7;
document.getElementById('h').textContent = 'sum ' + sum;
</script>";

/// Makes Firefox write a picture of a page.
fn picture(directory: &Path, name: &str, mut command: Command) -> (ProcessOutput, Vec<u8>) {
    let (home, output) = (directory.join(format!("{name}.home")), directory.join(format!("{name}.png")));
    fs::create_dir_all(&home).unwrap();
    command.args(["--headless", "--profile"]).arg(&home).arg("--screenshot").arg(&output).env("HOME", &home);
    let finished = process::run(command.arg(format!("file://{}", directory.join("page.html").display())));
    (finished, fs::read(&output).unwrap_or_default())
}

/// A browser: many processes and threads, two compilers, and a library that uses gs.
#[test]
fn firefox_makes_the_same_picture() {
    let firefox = tool::required("firefox-esr");
    let directory = scratch();
    write(directory.path(), "page.html", PAGE);
    let (finished, expected) = picture(directory.path(), "native", Command::new(&firefox));
    assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
    assert!(expected.len() > 1000);
    let output = directory.path().join("t.trk");
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "--follow", "-o"]).arg(&output).arg("--").arg(&firefox);
    let (finished, found) = picture(directory.path(), "recorded", recorder);
    assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
    assert!(found == expected, "{} bytes instead of {}: {}", found.len(), expected.len(), finished.stderr_text());
    let trace = open_sound(&output);
    assert!(trace.is_finished() && trace.threads().len() > 20, "{} threads", trace.threads().len());
    assert!(!followed(&output).is_empty());
}
