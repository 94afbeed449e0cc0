//! Executes the blocks of the README in order, in one directory, and compares the output of
//! commands with the page.

mod compare;
mod page;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use compare::{Closeness, Comparison};
use page::{Block, CommandExample};

const README: &str = include_str!("../../../../README.md");

/// The two commands that work on a fresh clone.
const DEMO: &str = "cargo run --release -- demo";
const TEST: &str = "cargo xtask test";

#[test]
fn the_readme_shows_what_happens() {
    let directory = tempfile::tempdir().unwrap();
    let mut comparison = Comparison::default();
    for Block { language, text } in page::blocks(README) {
        match language {
            "console" => {
                page::commands(&text).iter().for_each(|shown| take(directory.path(), shown, &mut comparison));
            }
            "rust" => check_library(directory.path(), &text),
            "" if text == format!("{DEMO}\n") => check_demo(directory.path()),
            // This test is a part of it.
            "" if text == format!("{TEST}\n") => {}
            _ => panic!("this block of the README is not checked:\n{text}"),
        }
    }
}

/// Runs a command of the tour.
fn take(directory: &Path, shown: &CommandExample, comparison: &mut Comparison) {
    let printed = run(directory, &shown.command);
    if let Err(problem) = comparison.lines(&shown.lines, &printed, closeness(&shown.command)) {
        panic!("the README shows something else for `{}`: {problem}\nIt printed\n{printed}", shown.command);
    }
}

/// The program in assembly does the same on every machine. Recordings that end after a time do not,
/// and where chunks end does not depend on the program alone.
fn closeness(command: &str) -> Closeness {
    let is_variable = ["cut.trk", "yes.trk", "family.trk"].iter().any(|name| command.contains(name));
    match command.contains("collatz") {
        _ if is_variable => Closeness::Shape,
        true => Closeness::Exact,
        false => Closeness::Similar,
    }
}

/// Returns the output of a command, errors included, in a shell that finds `trackway`.
fn run(directory: &Path, command: &str) -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_trackway")).parent().unwrap().to_owned();
    let others = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&others))).unwrap();
    let output = directory.join("output");
    let file = File::create(&output).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).current_dir(directory).env("PATH", path);
    let status = shell.stdin(File::open("/dev/null").unwrap()).stdout(file.try_clone().unwrap()).stderr(file).status();
    let text = std::fs::read_to_string(output).unwrap();
    assert!(status.unwrap().success(), "`{command}` of the README failed:\n{text}");
    text
}

/// `cargo run` runs the default member of the workspace.
fn check_demo(directory: &Path) {
    assert!(include_str!("../../../../Cargo.toml").contains("default-members = [\"crates/cli\"]"));
    let printed = run(directory, "trackway demo");
    assert!(printed.contains("What was seen") && printed.contains("What it took"), "{printed}");
}

/// The block is the body of an example of `trace`, which reads a trace of the tour.
fn check_library(directory: &Path, block: &str) {
    let example = include_str!("../../../trace/examples/addresses.rs");
    let body: String =
        block.lines().map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") }).collect();
    assert!(
        example.contains(&body),
        "the README shows something else than crates/trace/examples/addresses.rs:\n{block}"
    );
    let output = Command::new(build_example()).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let shown = dumped_addresses();
    assert!(shown.len() >= 8, "the README dumps only {shown:?}");
    assert_eq!(printed.lines().take(shown.len()).collect::<Vec<_>>(), shown);
}

/// Builds the example as the test command does, so that nothing is built twice.
fn build_example() -> PathBuf {
    let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--example", "addresses"]).args(release);
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    Path::new(env!("CARGO_BIN_EXE_trackway")).with_file_name("examples").join("addresses")
}

/// Returns the addresses that the README dumps from the instruction to which the example seeks,
/// without leading zeros.
fn dumped_addresses() -> Vec<String> {
    let blocks = page::blocks(README);
    let commands = blocks.iter().flat_map(|block| page::commands(&block.text));
    let dumps = commands
        .filter(|shown| shown.command.contains("dump -d --skip 100M") && shown.command.ends_with("collatz.trk"));
    let addresses = dumps.flat_map(|shown| shown.lines).map(|line| {
        let digits = line.split(", 0x").nth(1).unwrap().split(',').next().unwrap().to_owned();
        format!("{:#x}", u64::from_str_radix(&digits, 16).unwrap())
    });
    addresses.collect()
}

#[test]
fn the_test_command_is_what_runs_on_every_change() {
    let commands = include_str!("../../../../.ci/run").lines().filter(|line| line.starts_with("cargo "));
    assert_eq!(commands.collect::<Vec<_>>(), [TEST]);
    assert!(
        page::blocks(README).iter().any(|block| block.text == format!("{TEST}\n")),
        "the README does not have {TEST}"
    );
}
