//! Executes the commands that the README shows, and compares what they print with what it shows, numbers aside.

mod support;

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use support::run;

/// A command of the README and the lines shown below it.
struct Shown {
    command: String,
    lines: Vec<String>,
}

/// The commands in blocks that are marked `console`.
fn commands(page: &str) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            commands.push(Shown { command: command.to_owned(), lines: Vec::new() });
        } else if let Some(last) = commands.last_mut() {
            last.lines.push(line.to_owned());
        }
    }
    commands
}

/// The first word of a line, numbers made alike.
fn beginning(line: &str) -> String {
    let word = line.split_whitespace().next().unwrap_or_default();
    if word.starts_with(|letter: char| letter.is_ascii_digit()) { "#".into() } else { word.into() }
}

#[test]
fn the_tour_can_be_taken() {
    let page = include_str!("../../../README.md");
    let tour = commands(page);
    assert!(tour.len() >= 6, "the README shows only {} commands", tour.len());
    let directory = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_trackway")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(own.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    for Shown { command, lines } in tour {
        let ran = run(Command::new("bash").args(["-c", &command]).current_dir(directory.path()).env("PATH", &path));
        assert_eq!(ran.status, 0, "`{command}` of the README: {ran:?}");
        let text = ran.text() + &ran.stderr;
        let printed: HashSet<String> = text.lines().map(beginning).collect();
        for line in lines.iter().filter(|line| !line.trim().is_empty() && line.trim() != "…") {
            assert!(printed.contains(&beginning(line)), "`{command}` does not print the README's\n{line}\nbut\n{text}");
        }
    }
}

#[test]
fn the_two_commands_are_there() {
    let page = include_str!("../../../README.md");
    assert!(page.contains("cargo run --release -- demo"));
    let ci = include_str!("../../../.ci/run");
    let test = ci.lines().rfind(|line| !line.trim().is_empty()).unwrap();
    assert!(page.lines().any(|line| line == test), "the README does not have the test command of .ci/run: {test}");
}
