//! `cargo xtask man`: a man page for `trackway` and for each of its subcommands.
//!
//! The pages are made from the same definition as `--help` and the shell completions:
//! [`trackway::command`].

use std::fs;
use std::path::{Path, PathBuf};

use crate::root;

/// Write man pages for trackway and every subcommand.
#[derive(clap::Args)]
pub struct Arguments {
    /// Write the pages into this directory, which is created if it does not exist.
    #[arg(short, long, value_name = "DIRECTORY", default_value_os_t = root().join("target/man"))]
    output: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let directory = &arguments.output;
    write_pages(directory).map_err(|error| format!("cannot write man pages into {}: {error}", directory.display()))
}

/// Writes all pages into `directory`.
fn write_pages(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(trackway::command(), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a section of a page, without markup.
    fn section<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
        let lines = page.lines().skip_while(|line| *line != format!(".SH {name}")).skip(1);
        lines.take_while(|line| !line.starts_with(".SH")).filter(|line| !line.starts_with('.')).collect()
    }

    #[test]
    fn every_verb_has_a_page_with_a_description() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("man");
        write_pages(&output).unwrap();
        let command = trackway::command();
        let verbs = command.get_subcommands().map(|verb| format!("trackway-{}.1", verb.get_name()));
        let nested = ["trackway-port-decode.1", "trackway-experiment-mtrace.1"].map(str::to_owned);
        for file in verbs.chain(nested).chain(["trackway.1".to_owned()]) {
            let page = fs::read_to_string(output.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let description = section(&page, "DESCRIPTION").concat();
            assert!(description.trim().len() > 20, "{file} has no description: {description:?}");
        }
    }

    #[test]
    fn options_and_examples_are_in_the_page() {
        let directory = tempfile::tempdir().unwrap();
        write_pages(directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("trackway-record.1")).unwrap();
        assert!(section(&page, "OPTIONS").concat().contains(r"\-\-no\-aslr"), "{page}");
        assert!(page.contains("trackway record \\-\\- ./a.out 1 2 3"), "{page}");
    }
}
