//! `trackway record` and `trackway demo` as a user meets them: statuses, outputs, error messages,
//! and reading the recorded trace.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use support::{CommandResult, command, run, trackway};
use workloads::Variant;

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn join(&self, name: &str) -> String {
        self.0.path().join(name).to_string_lossy().into_owned()
    }

    fn record(&self, options: &[&str], words: &[&str]) -> CommandResult {
        let trace = self.join("t.trk");
        let arguments = [&["record", "-o", &trace], options, &["--"], words].concat();
        trackway(&arguments)
    }

    /// Asserts that the trace is sound and returns the output of `info --json`.
    #[track_caller]
    fn info(&self) -> serde_json::Value {
        trackway(&["verify", &self.join("t.trk")]).assert_success();
        trackway(&["info", "--json", &self.join("t.trk")]).assert_success().json()
    }
}

fn build(name: &str) -> String {
    workloads::build(name, Variant::Pie).unwrap().to_string_lossy().into_owned()
}

#[test]
fn output_and_status_are_those_of_the_program() {
    let scratch = Scratch::new();
    let script = "echo out; echo err >&2; exit 7";
    let ran = scratch.record(&[], &["sh", "-c", script]);
    assert_eq!((ran.status, ran.text().as_str(), ran.stderr.as_str()), (7, "out\n", "err\n"));
    let info = scratch.info();
    assert_eq!(info["exit"]["code"], 7);
    assert_eq!(info["command"][2], script);
    assert!(info["instructions"].as_u64().unwrap() > 10_000);
}

#[test]
fn death_by_signal_has_a_status_above_128() {
    let scratch = Scratch::new();
    let program = build("die_signal");
    for (word, signal) in [("segv", 11), ("abort", 6), ("kill", 9), ("term", 15)] {
        let ran = scratch.record(&[], &[&program, word]);
        assert_eq!(ran.status, 128 + signal, "{word}: {ran:?}");
        assert_eq!(scratch.info()["exit"]["signal"], signal);
    }
}

#[test]
fn threads_are_listed() {
    let scratch = Scratch::new();
    let program = build("radix");
    let native = run(std::process::Command::new(&program).args(["4", "50"]));
    let ran = scratch.record(&[], &[&program, "4", "50"]).assert_success();
    assert_eq!(ran.stdout, native.stdout);
    let info = scratch.info();
    let threads = info["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 4);
    assert!(threads.iter().all(|thread| thread["instructions"].as_u64().unwrap() > 10_000), "{info}");
    let stat = trackway(&["stat", "--json", &scratch.join("t.trk")]).assert_success().json();
    assert_eq!(stat["instructions"], info["instructions"]);
    assert_eq!(stat["branches"], info["branches"]);
    assert!(stat["system_calls_by_name"].as_array().unwrap().iter().any(|call| call["name"] == "exit_group"));
    let lines = trackway(&["dump", &scratch.join("t.trk")]).assert_success().text().lines().count();
    assert_eq!(info["instructions"], lines);
}

#[test]
fn without_randomisation_a_trace_repeats() {
    let scratch = Scratch::new();
    let program = build("recursion");
    let mut dumps = Vec::new();
    for _ in 0..2 {
        scratch.record(&["--no-aslr"], &[&program]).assert_success();
        dumps.push(trackway(&["dump", "-k", "control", &scratch.join("t.trk")]).assert_success().stdout);
    }
    assert!(dumps[0] == dumps[1], "two recordings without randomisation differ");
}

#[test]
fn impossible_commands_are_refused() {
    let scratch = Scratch::new();
    let refused = |words: &[&str], status, parts: &[&str]| scratch.record(&[], words).assert_failure(status, parts);
    refused(&["no-such-command-anywhere"], 127, &["no-such-command-anywhere", "not found"]);
    refused(&["/nowhere/program"], 127, &["/nowhere/program"]);
    refused(&["/tmp"], 126, &["directory"]);
    let file = |name: &str, bytes: &[u8], mode| {
        std::fs::write(scratch.join(name), bytes).unwrap();
        std::fs::set_permissions(scratch.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        scratch.join(name)
    };
    refused(&[&file("plain", b"#!/bin/sh\n", 0o644)], 126, &["permission", "chmod +x"]);
    refused(&[&file("script", b"#!/nowhere/interpreter\n", 0o755)], 127, &["/nowhere/interpreter"]);
    let mut header = std::fs::read("/proc/self/exe").unwrap()[..4096].to_vec();
    header[4] = 1;
    refused(&[&file("old", &header, 0o755)], 126, &["32-bit"]);
    header[4] = 2;
    header[18] = 183;
    refused(&[&file("foreign", &header, 0o755)], 126, &["another processor"]);
    assert!(!Path::new(&scratch.join("t.trk")).exists());
    assert!(!Path::new(&scratch.join("t.trk.part")).exists());
    trackway(&["record"]).assert_failure(1, &["no command"]);
}

#[test]
fn impossible_outputs_are_refused() {
    trackway(&["record", "-o", "/nowhere/t.trk", "--", "true"]).assert_failure(1, &["/nowhere/t.trk"]);
    trackway(&["record", "-o", "/proc/t.trk", "--", "true"]).assert_failure(1, &["/proc/t.trk"]);
}

#[test]
fn devices_and_directories_are_not_replaced() {
    let scratch = Scratch::new();
    let pipe = scratch.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    trackway(&["record", "-o", &pipe, "--", "true"]).assert_failure(1, &[&pipe, "not a regular file"]);
    let directory = scratch.join(".");
    trackway(&["record", "-o", &directory, "--", "true"]).assert_failure(1, &["is a directory"]);
    trackway(&["demo", "-o", &directory]).assert_failure(1, &["is a directory"]);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
}

#[test]
fn an_older_trace_survives_a_failure() {
    let scratch = Scratch::new();
    scratch.record(&[], &["true"]).assert_success();
    let before = std::fs::read(scratch.join("t.trk")).unwrap();
    assert_eq!(scratch.record(&[], &["no-such-command-anywhere"]).status, 127);
    assert_eq!(std::fs::read(scratch.join("t.trk")).unwrap(), before);
}

#[test]
fn a_program_killed_from_outside_leaves_a_trace() {
    let scratch = Scratch::new();
    let trace = scratch.join("t.trk");
    // The shell executes the program by exec, so that its process number is that of the program.
    let pid = scratch.join("pid");
    let script = format!("echo $$ > {pid}; while :; do :; done");
    let mut child = command().args(["record", "-o", &trace, "--", "sh", "-c", &script]).spawn().unwrap();
    let victim = wait_for_number(&pid);
    let killed = std::process::Command::new("kill").args(["-9", &victim]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert_eq!(scratch.info()["exit"]["signal"], 9);
}

#[test]
fn a_killed_recorder_leaves_a_readable_part_and_a_living_program() {
    let scratch = Scratch::new();
    let (trace, pid, done) = (scratch.join("t.trk"), scratch.join("pid"), scratch.join("done"));
    let script = format!(
        "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); [ $i = 20000 ] && echo 1 > {pid}; done; echo yes > {done}"
    );
    let mut child = command().args(["record", "-o", &trace, "--", "sh", "-c", &script]).spawn().unwrap();
    wait_for_number(&pid);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_for(&done);
    let part = format!("{trace}.part");
    let info = trackway(&["info", "--json", &part]).json();
    assert_eq!(info["finished"], false);
    let stat = trackway(&["stat", "--json", &part]);
    assert!(!stat.stderr.contains("panic"), "{}", stat.stderr);
    assert!(!Path::new(&trace).exists());
}

fn wait_for(path: &str) -> String {
    for _ in 0..6000 {
        if let Ok(text) = std::fs::read_to_string(path)
            && text.ends_with('\n')
        {
            return text.trim().to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{path} does not appear");
}

fn wait_for_number(path: &str) -> String {
    let number = wait_for(path);
    assert!(number.parse::<u32>().is_ok(), "{number}");
    number
}

#[test]
fn the_report_has_what_benchmarks_need() {
    let scratch = Scratch::new();
    let report = scratch.join("report.json");
    scratch.record(&["--report", &report], &["true"]).assert_success();
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    for key in ["instructions", "file_bytes", "cpu_seconds", "peak_memory_bytes"] {
        assert!(json[key].as_f64().is_some(), "{key}");
    }
}

#[test]
fn the_demo_shows_it_all() {
    let scratch = Scratch::new();
    let ran = trackway(&["demo", "--threads", "3", "--output", &scratch.join("t.trk")]).assert_success();
    let text = ran.text();
    for part in ["threads       3", "instructions", "unconditional indirect", "bits per instruction", "times as long"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(scratch.info()["threads"].as_array().unwrap().len(), 3);
}

/// BranchTest of Myers 2014: the descriptors of Figure 4.12, at the addresses where our copy of the
/// program has them.
#[test]
fn branch_test_gives_the_seeds_descriptors() {
    let scratch = Scratch::new();
    let program: PathBuf = workloads::build("BranchTest", Variant::NoPie).unwrap();
    assert_eq!(scratch.record(&[], &[&program.to_string_lossy()]).status, 5);
    let text = trackway(&["dump", "-k", "control", "-d", "-t", "0", &scratch.join("t.trk")]).assert_success().text();
    let expected = [
        "0, 0x00000000004004ec, 0x00000000004004f1, C, D, T jnbe 0x4004f1",
        "0, 0x00000000004004f5, 0x00000000004004f7, C, D, T jz 0x4004f7",
        "0, 0x00000000004004fe, 0x00000000004004fe, C, D, T loop 0x4004fe",
        "0, 0x00000000004004fe, 0x00000000004004fe, C, D, T loop 0x4004fe",
        "0, 0x00000000004004fe, 0x00000000004004fe, C, D, T loop 0x4004fe",
        "0, 0x00000000004004fe, 0x00000000004004fe, C, D, T loop 0x4004fe",
        "0, 0x00000000004004fe, 0x00000000004004fe, C, D, NT loop 0x4004fe",
    ];
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().position(|line| *line == expected[0]).expect("the first descriptor is not there");
    assert_eq!(lines[first..first + expected.len()], expected);
    let call = "0, 0x0000000000400511, 0x00000000004004c4, U, I, T call rax";
    assert!(lines.contains(&call), "no {call}");
}

/// BranchEnumeration of Myers 2014: the descriptors of Figures 4.8 and 4.10.
#[test]
fn branch_enumeration_gives_the_seeds_descriptors() {
    let scratch = Scratch::new();
    let program: PathBuf = workloads::build("BranchEnumeration", Variant::NoPie).unwrap();
    assert_eq!(scratch.record(&[], &[&program.to_string_lossy()]).status, 18);
    let text = trackway(&["dump", "-k", "control", "-d", "-t", "0", &scratch.join("t.trk")]).assert_success().text();
    for expected in [
        "0, 0x00000000004004d3, 0x000000000040059e, C, D, NT jnbe 0x40059e",
        "0, 0x00000000004004d9, 0x000000000040059e, C, D, NT jnb 0x40059e",
        "0, 0x0000000000400572, 0x0000000000400572, C, D, NT loop 0x400572",
        "0, 0x000000000040057b, 0x000000000040057b, C, D, NT loope 0x40057b",
        "0, 0x000000000040058f, 0x0000000000400594, U, D, T jmp 0x400594",
        "0, 0x0000000000400599, 0x00000000004003b8, U, D, T call 0x4003b8",
    ] {
        assert!(text.lines().any(|line| line == expected), "no {expected}");
    }
    let returns = text.lines().filter(|line| line.starts_with("0, 0x000000000040059f, 0x00007f"));
    assert_eq!(returns.filter(|line| line.ends_with(", U, I, T ret")).count(), 1);
}
