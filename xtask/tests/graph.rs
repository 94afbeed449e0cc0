//! Which crate of the workspace may depend on which: what docs/architecture.md draws is what
//! `cargo metadata` reports, no edge more and no edge less. The layers of CONTRIBUTING.md agree.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The allowed edges, a line for each crate, from the bottom to the top; docs/architecture.md has a
/// copy. After `build:` stand dependencies of the build script, after `tests:` those of tests only.
const GRAPH: &str = "\
entity ->
isa -> entity
wire -> entity
effects -> tests: isa
predict ->
cache ->
report ->
symbols ->
unwind -> symbols
workloads ->
oracle -> tests: workloads
engine -> entity isa wire; tests: oracle
codec -> entity wire
trace -> codec entity isa wire
capture -> entity isa symbols trace unwind wire; build: engine entity isa wire
recording -> capture trace
filter -> cache predict
replay -> cache filter isa predict trace
mtrace -> filter predict replay trace; tests: wire
port -> cache filter predict replay trace
segment -> effects isa trace; tests: wire
scope -> entity isa symbols trace; tests: wire
memory -> codec entity isa scope trace wire
experiment -> filter memory port report scope segment trace workloads
trackway -> cache capture experiment filter isa memory mtrace port predict \
    recording replay report scope segment symbols trace workloads; tests: wire
acceptance -> cache filter isa memory mtrace oracle port predict replay scope segment trace wire workloads
fuzzing -> capture memory port recording trace wire; tests: filter
xtask -> trace trackway workloads
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn metadata() -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The name by which the sources call a package.
fn short(name: &str) -> &str {
    name.strip_prefix("trackway-").unwrap_or(name)
}

/// The line of each crate of the workspace, by its name.
fn actual_lines(metadata: &Value) -> BTreeMap<String, String> {
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().map(|package| (short(package["name"].as_str().unwrap()).to_owned(), line(package))).collect()
}

fn line(package: &Value) -> String {
    let of_kind = |kind: &str| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies.filter(|dependency| !dependency["path"].is_null());
        let found = ours.filter(|dependency| dependency["kind"].as_str().unwrap_or("normal") == kind);
        let mut names: Vec<&str> = found.map(|dependency| short(dependency["name"].as_str().unwrap())).collect();
        names.sort_unstable();
        names.join(" ")
    };
    let kinds = [("", "normal"), ("build: ", "build"), ("tests: ", "dev")];
    let parts = kinds.map(|(label, kind)| (label, of_kind(kind)));
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(label, names)| label.is_empty() || !names.is_empty())
        .map(|(label, names)| format!("{label}{names}"))
        .collect();
    let line = format!("{} -> {}", short(package["name"].as_str().unwrap()), parts.join("; "));
    line.replace("-> ; ", "-> ").trim_end().to_owned()
}

/// The line of a crate in the graph.
fn graph_line(name: &str) -> &'static str {
    let line = GRAPH.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("{name} is not in the graph"))
}

/// A line without what only tests need.
fn without_tests(line: &str) -> &str {
    line.split("tests:").next().unwrap().trim_end_matches([' ', ';'])
}

/// The dependencies that a line names, those of the build script and of tests included.
fn dependencies_of(line: &str) -> impl Iterator<Item = &str> {
    line.split([' ', ';']).skip(2).filter(|word| !word.is_empty() && !word.ends_with(':'))
}

/// The dependencies of a crate, those of its build script and of its tests included.
fn dependencies(name: &str) -> Vec<&'static str> {
    dependencies_of(graph_line(name)).collect()
}

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let actual = actual_lines(&metadata());
    let listed: BTreeMap<String, String> =
        GRAPH.lines().map(|line| (line.split(' ').next().unwrap().to_owned(), line.to_owned())).collect();
    for (name, line) in &actual {
        assert_eq!(Some(line), listed.get(name), "the edges of {name}: left is what Cargo.toml says");
    }
    assert_eq!(actual.len(), listed.len(), "the graph has crates that do not exist");
}

#[test]
fn the_architecture_page_draws_the_graph() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    assert!(page.contains(&format!("```text\n{GRAPH}```\n")), "docs/architecture.md does not have\n{GRAPH}");
}

/// An edge goes down: every crate stands below those that use it.
#[test]
fn the_graph_reads_from_the_bottom_to_the_top() {
    let mut known = Vec::new();
    for name in GRAPH.lines().map(|line| line.split(' ').next().unwrap()) {
        for dependency in dependencies(name) {
            assert!(known.contains(&dependency), "{dependency} stands above {name}");
        }
        known.push(name);
    }
}

/// Returns the crates in each row of "Layers", the lowest layer first.
fn layers(page: &str) -> Vec<Vec<&str>> {
    let section = page.split("\n## ").find(|section| section.starts_with("Layers\n")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|row| row.split('`').skip(1).step_by(2).filter(|name| !name.contains('/')).collect()).collect()
}

#[test]
fn every_crate_is_in_one_layer_and_uses_none_above_it() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let layers = layers(&page);
    let layer_of = |name: &str| {
        let found: Vec<usize> = (0..layers.len()).filter(|&layer| layers[layer].contains(&name)).collect();
        let [layer] = found[..] else { panic!("CONTRIBUTING.md has {name} in the layers {found:?}") };
        layer
    };
    for line in GRAPH.lines() {
        let name = line.split(' ').next().unwrap();
        for dependency in dependencies_of(without_tests(line)) {
            assert!(layer_of(dependency) <= layer_of(name), "{name} is in a layer below {dependency}");
        }
    }
    assert_eq!(layers.concat().len(), GRAPH.lines().count(), "CONTRIBUTING.md has crates that do not exist");
}

/// Absences that other parts rely on. A change of the list must not add these edges.
#[test]
fn what_must_not_be_known_is_not() {
    // Everything below the engine is injected into the target.
    assert_eq!(without_tests(graph_line("engine")), "engine -> entity isa wire");
    for alone in ["entity", "predict", "cache", "report", "symbols"] {
        assert!(dependencies(alone).is_empty(), "{alone} depends on {:?}", dependencies(alone));
    }
    assert!(!dependencies("filter").contains(&"trace"));
    // An oracle that shares code with what it judges would share its mistakes.
    assert_eq!(without_tests(graph_line("oracle")), "oracle ->");
    // Only the command and what maintainers run may launch processes.
    for (name, _) in actual_lines(&metadata()) {
        let may = ["trackway", "recording", "fuzzing"].contains(&name.as_str());
        assert!(may || !dependencies(&name).contains(&"capture"), "{name} depends on capture");
    }
}
