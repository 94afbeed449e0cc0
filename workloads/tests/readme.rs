//! README.md lists every program as the catalogue has it. `UPDATE_README=1 cargo test -p
//! trackway-workloads` writes the list anew.

use std::fmt::Write;
use std::fs;

use trackway_workloads::{Group, Program};

const BEGIN: &str = "<!-- list of programs: begin -->\n";
const END: &str = "<!-- list of programs: end -->";

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// What a program prints, its lines joined.
fn printed(stdout: &str) -> String {
    format!("`{}`", cell(stdout.trim_end()).replace('\n', "` `"))
}

fn row(program: &Program, oracle: bool) -> String {
    let variants: Vec<String> = program.variants.iter().map(ToString::to_string).collect();
    let calls: Vec<String> = program
        .runs
        .iter()
        .filter(|run| program.group != Group::Parallel || run.arguments[0] == "1")
        .map(|run| {
            let arguments = run.arguments.iter().map(|argument| format!(" {argument:?}")).collect::<String>();
            format!("{}: {} ({})", arguments.trim(), printed(run.stdout), run.exit).trim_start_matches(": ").to_owned()
        })
        .collect();
    let mark = if oracle { "yes" } else { "" };
    format!(
        "| {} | {} | {} | {mark} | {} |\n",
        program.name,
        cell(program.purpose),
        variants.join(", "),
        calls.join("; ")
    )
}

fn list() -> String {
    let oracle = trackway_workloads::oracle_programs();
    let mut text = String::new();
    for (group, title) in [
        (Group::Parallel, "Parallel: NAME THREADS [SIZE] (`parallel/`; the same result with any number of threads)"),
        (Group::Bench, "Single-threaded: NAME [SIZE] (`bench/`)"),
        (Group::Seed, "From the seeds (`seeds/`)"),
        (Group::Behaviour, "One behaviour each (`behaviour/`)"),
        (
            Group::Memory,
            "Memory instructions, one class each (`memory/`; what the machine lacks is left out and said on standard \
             error)",
        ),
    ] {
        write!(text, "\n### {title}\n\n| program | for | variants | oracle | arguments: output (status) |\n").unwrap();
        text.push_str("| --- | --- | --- | --- | --- |\n");
        for program in trackway_workloads::programs().iter().filter(|program| program.group == group) {
            text.push_str(&row(program, oracle.iter().any(|entry| entry.program.name == program.name)));
        }
    }
    text + "\n"
}

#[test]
fn the_readme_lists_every_program() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = fs::read_to_string(path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE_README").is_some() {
        fs::write(path, format!("{before}{BEGIN}{}{END}{after}", list())).unwrap();
    } else {
        assert_eq!(found, list(), "run UPDATE_README=1 cargo test -p trackway-workloads");
    }
}
