//! docs/mtrace.md, docs/port.md, docs/segment.md and docs/memory.md describe the options in the
//! help of the verbs, and no others.

use std::process::Command;

fn help(verb: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_trackway")).args(verb.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the long names of options in a text.
fn options(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'));
    let mut names: Vec<String> =
        words.filter(|word| word.starts_with("--") && !word.ends_with('-')).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

const TOOLS: [&str; 4] = ["mcfTrace", "mlsTrace", "mcfTRaptor", "mlvCFiat"];

const MTRACE: &str = include_str!("../../../docs/mtrace.md");
const SEGMENT: &str = include_str!("../../../docs/segment.md");
const PORT: &str = include_str!("../../../docs/port.md");
const MEMORY: &str = include_str!("../../../docs/memory.md");

/// Asserts that every option of these verbs is on the page, and that every option on the page
/// belongs to one of them or of `others`.
fn check_page(page: &str, verbs: &[&str], others: &[&str]) {
    for verb in verbs {
        let help = help(verb);
        // Options are at the start of a line of their own.
        let is_option = |line: &&str| line.starts_with("  -") || line.starts_with("      --");
        let listed = help.lines().filter(is_option).map(|line| {
            let name = line.split_whitespace().find(|word| word.starts_with("--")).unwrap_or("--help");
            name.trim_end_matches(',').trim_start_matches('-').to_owned()
        });
        for name in listed.filter(|name| name != "help") {
            let spellings = [format!("`-{name}`"), format!("`--{name}`"), format!("-{name}`"), format!("`-{name} ")];
            assert!(spellings.iter().any(|spelling| page.contains(spelling)), "{verb}: {name} is not described");
        }
    }
    let known: String = verbs.iter().chain(others).map(|verb| help(verb)).collect();
    let known = options(&known);
    for option in options(page) {
        assert!(option == "--help" || known.contains(&option), "{option} does not exist");
    }
}

#[test]
fn the_page_of_mtrace_has_every_option() {
    check_page(MTRACE, &TOOLS, &["verify", "record"]);
}

#[test]
fn the_page_of_segment_has_every_option() {
    check_page(SEGMENT, &["segment"], &["experiment segment", "record"]);
}

#[test]
fn the_page_of_port_has_every_option() {
    check_page(PORT, &["port", "port decode", "experiment port"], &["record", "info"]);
    let help = help("port");
    for technique in port::Technique::ALL {
        let name = technique.name();
        assert!(help.contains(name) && PORT.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_page_of_memory_has_every_option() {
    check_page(MEMORY, &["memory compress", "memory expand", "memory streams"], &["record", "dump", "stat"]);
}

/// The flags in the tables of the thesis.
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

/// The help lists the programs that exist.
#[test]
fn the_help_lists_the_programs_of_the_experiment() {
    let arguments = ["experiment", "segment", "--programs", "nothing"];
    let output = Command::new(env!("CARGO_BIN_EXE_trackway")).args(arguments).output().unwrap();
    let failure = String::from_utf8(output.stderr).unwrap();
    let names = failure.split_once("there are ").unwrap().1.trim_end().trim_end_matches(')');
    assert!(names.split(", ").count() >= 12, "{failure}");
    let help = help("experiment segment").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(&format!("of {names};")), "{names}");
}
