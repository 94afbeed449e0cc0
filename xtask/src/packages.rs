//! Finds and installs the missing programs that a command of `cargo xtask` needs, before anything
//! is built.
//!
//! `xtask/packages.txt` is the list; a new package is a line there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::succeed;

const LIST: &str = include_str!("../packages.txt");

/// The components of a Rust toolchain that the tests need: their names for cargo and for rustup.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// Options for missing programs.
#[derive(clap::Args, Default)]
#[group(skip)]
pub struct Arguments {
    /// If programs are missing, list their packages and stop instead of installing them.
    #[arg(long)]
    no_install: bool,
}

/// Installs the missing packages of these sections of the list.
pub fn require(sections: &[&str], arguments: &Arguments) -> Result<(), String> {
    let missing = missing(sections);
    if missing.is_empty() {
        return Ok(());
    }
    let advice = format!("install them with `apt-get install --no-install-recommends {}`", missing.join(" "));
    if arguments.no_install {
        return Err(format!("packages are missing; {advice}"));
    }
    eprintln!("xtask: installing {}", missing.join(", "));
    install(&missing).map_err(|problem| format!("packages are missing, and {problem}; {advice}"))?;
    match self::missing(sections) {
        rest if rest.is_empty() => Ok(()),
        rest => Err(format!("apt has installed {}, but their programs are not found", rest.join(", "))),
    }
}

/// Installs the components for checking format and lints, if they are missing.
pub fn require_components(arguments: &Arguments) -> Result<(), String> {
    let works = |name: &str| Command::new(env!("CARGO")).args([name, "--version"]).output();
    let is_missing = |name: &str| works(name).is_ok_and(|output| !output.status.success());
    let missing: Vec<&str> =
        COMPONENTS.iter().filter(|(name, _)| is_missing(name)).map(|&(_, component)| component).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let command = format!("rustup component add {}", missing.join(" "));
    if arguments.no_install {
        return Err(format!("the Rust toolchain lacks {}; add it with `{command}`", missing.join(", ")));
    }
    succeed(Command::new("rustup").args(["component", "add"]).args(missing))
}

/// Returns the packages of these sections that are incomplete, each once.
fn missing(sections: &[&str]) -> Vec<&'static str> {
    let packages = sections.iter().flat_map(|section| packages(LIST, section));
    let missing = packages.filter(|(_, proofs)| !proofs.iter().all(|proof| is_there(proof))).map(|(name, _)| name);
    missing.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the packages in a section, each with the programs or files that prove its installation.
fn packages<'a>(list: &'a str, section: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let heading = format!("[{section}]");
    let lines = list.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('['));
    let entries = lines.filter_map(|line| line.split_once(": "));
    entries.map(|(package, proofs)| (package, proofs.split_whitespace().collect())).collect()
}

/// Returns whether a program is in the path, or a file exists if it is an absolute path.
fn is_there(proof: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Servers are in directories that users may not have in their path.
    let mut directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.any(|directory| directory.join(proof).is_file())
}

fn install(packages: &[&str]) -> Result<(), String> {
    succeed(apt_get().args(["-q", "update"]))?;
    succeed(apt_get().args(["-q", "-y", "--no-install-recommends", "install"]).args(packages))
}

/// Returns an apt-get command that runs as root, with sudo for other users, and asks no questions.
fn apt_get() -> Command {
    const WORDS: [&str; 3] = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
    let words: &[&str] = if is_root() { &WORDS } else { &["sudo", WORDS[0], WORDS[1], WORDS[2]] };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn is_root() -> bool {
    let answer = Command::new("id").arg("-u").output();
    answer.is_ok_and(|output| output.stdout == b"0\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let list = "# text: no package\n[a]\none: first /second\n\n[b]\ntwo: third\n";
        assert_eq!(packages(list, "a"), [("one", vec!["first", "/second"])]);
        assert_eq!(packages(list, "b"), [("two", vec!["third"])]);
        assert!(packages(list, "c").is_empty());
    }

    #[test]
    fn every_line_of_the_list_is_understood() {
        let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
        let understood: Vec<_> = ["test", "bench", "valgrind", "experiments", "soak"]
            .iter()
            .flat_map(|section| packages(LIST, section))
            .collect();
        assert_eq!(understood.len(), lines.count());
        assert!(understood.iter().all(|(_, proofs)| !proofs.is_empty()));
    }

    #[test]
    fn programs_and_files_are_looked_for() {
        assert!(is_there("sh") && is_there("/bin/sh"));
        assert!(!is_there("no-such-program") && !is_there("/no/such/file"));
    }
}
