//! docs/mtrace.md and the help of the tools say the same.

use std::process::Command;

fn help(tool: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_trackway")).args([tool, "--help"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// The long names of options in a text.
fn options(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'));
    let mut names: Vec<String> =
        words.filter(|word| word.starts_with("--") && !word.ends_with('-')).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

const TOOLS: [&str; 4] = ["mcfTrace", "mlsTrace", "mcfTRaptor", "mlvCFiat"];

#[test]
fn every_option_is_described() {
    let page = include_str!("../../../docs/mtrace.md");
    for tool in TOOLS {
        // Options stand at the start of a line of their own.
        let help = help(tool);
        let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
        let listed = help.lines().filter(is_option).map(|line| {
            let name = line.split_whitespace().find(|word| word.starts_with("--")).unwrap_or("--help");
            name.trim_end_matches(',').trim_start_matches('-').to_owned()
        });
        for name in listed.filter(|name| name != "help") {
            let spellings = [format!("`-{name}`"), format!("`--{name}`"), format!("-{name}`"), format!("`-{name} ")];
            assert!(
                spellings.iter().any(|spelling| page.contains(spelling)),
                "{tool}: {name} is not in docs/mtrace.md"
            );
        }
    }
}

#[test]
fn every_option_that_is_described_is_there() {
    let known: String = TOOLS.map(help).concat()
        + &{
            let output = Command::new(env!("CARGO_BIN_EXE_trackway")).args(["verify", "--help"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        }
        + &{
            let output = Command::new(env!("CARGO_BIN_EXE_trackway")).args(["record", "--help"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
    let known = options(&known);
    for option in options(include_str!("../../../docs/mtrace.md")) {
        assert!(option == "--help" || known.contains(&option), "{option} of docs/mtrace.md does not exist");
    }
}

/// What the thesis's tables list.
#[test]
fn the_seeds_flags_are_in_the_help() {
    let common = ["-a", "-c", "-d", "-f", "filter_no_shared_libs", "filter_rtn", "-h", "-l", "-o", "-s"];
    let own: [&[&str]; 4] =
        [&[], &["store"], &["gshare", "RAS", "iBTB", "TRaptorShare"], &["ca", "cfg", "cls", "cs", "cshare"]];
    for (tool, own) in TOOLS.into_iter().zip(own) {
        let help = help(tool);
        for flag in common.iter().chain(own) {
            assert!(help.contains(&format!("-{}", flag.trim_start_matches('-'))), "{tool} {flag}");
        }
    }
}
