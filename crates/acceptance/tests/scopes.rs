//! Scopes of functions and loops, derived from traces: against programs that count their own, and
//! against loops found by brute force in the edges that were executed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::source::compile;
use acceptance::{Call, process, tool, trackway};
use scope::loops::Graph;
use scope::{FlowGraph, FunctionId, Resolver, Scopes, SelectedFunction};
use serde_json::Value;
use trace::{AppPc, Item, Trace};

/// How often a function was called, and for each of its loops, how often it was entered and its
/// iterations.
type Counts = BTreeMap<String, (u64, Vec<(u64, u64)>)>;

/// What the program says of itself.
fn counted_by_program(output: &str) -> Counts {
    let mut counts = Counts::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse().unwrap();
        match fields[0] {
            "function" => counts.entry(fields[1].to_owned()).or_default().0 = number(2),
            "loop" => counts.entry(fields[1].to_owned()).or_default().1.push((number(2), number(3))),
            other => panic!("{other}"),
        }
    }
    counts.values_mut().for_each(|(_, loops)| loops.sort_unstable());
    counts
}

/// What `trackway stat` says of it.
fn counted_from_trace(trace: &Path, routines: &[&str]) -> Counts {
    let mut command = Command::new(trackway());
    command.args(["stat", "--json"]).arg(trace);
    for routine in routines {
        command.args(["--routine", routine]);
    }
    let output = process::run(&mut command);
    let json: Value = serde_json::from_str(&output.stdout_text()).unwrap();
    let describe = |function: &Value| {
        let number = |value: &Value| value.as_u64().unwrap();
        let loops = function["loops"].as_array().unwrap();
        let mut loops: Vec<(u64, u64)> =
            loops.iter().map(|found| (number(&found["entered"]), number(&found["iterations"]))).collect();
        loops.sort_unstable();
        (function["name"].as_str().unwrap().to_owned(), (number(&function["activations"]), loops))
    };
    json["functions"].as_array().unwrap().iter().map(describe).collect()
}

const ROUTINES: [&str; 9] =
    ["nest", "recursive", "interpret", "leap", "thrown", "handle", "compare", "tail", "caller_of_tail"];

fn check_counts(compiler: &[&str]) {
    check_counts_of("scopes.c", include_str!("../programs/scopes.c"), &ROUTINES, compiler);
}

fn check_counts_of(name: &str, text: &str, routines: &[&str], compiler: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), name, text, compiler);
    let call = Call::new(&program);
    let expected = counted_by_program(&call.natively().stdout_text());
    assert_eq!(expected.len(), routines.len());
    let whole = call.recorded();
    assert_eq!(counted_from_trace(&whole.path, routines), expected, "{compiler:?}");
    // The rest of the program is gaps now, and with callees it is not.
    let options: Vec<&str> = routines.iter().flat_map(|routine| ["--routine", routine]).collect();
    for options in [options.clone(), [options, vec!["--callees"]].concat()] {
        let part = call.clone().options(&options).recorded();
        assert_eq!(counted_from_trace(&part.path, &[]), expected, "{compiler:?} {options:?}");
    }
}

#[test]
fn functions_and_loops_are_entered_as_often_as_a_program_counts() {
    let keep = ["-fno-unroll-loops", "-fno-tree-vectorize", "-fno-omit-frame-pointer"];
    check_counts(&["gcc", "-O0"]);
    check_counts(&[&["gcc", "-O1"], &keep[..]].concat());
    check_counts(&[&["gcc", "-O2"], &keep[..]].concat());
    check_counts(&[&["gcc", "-O3", "-fno-peel-loops", "-fno-unswitch-loops"], &keep[..]].concat());
    check_counts(&["gcc", "-O2", "-static"]);
}

#[test]
fn an_exception_that_a_loop_catches_does_not_leave_it() {
    let text = include_str!("../programs/catching.cc");
    for compiler in
        [&["g++", "-O0"][..], &["g++", "-O1"], &["g++", "-O2", "-static"], &["g++", "-O2", "-fno-pie", "-no-pie"]]
    {
        check_counts_of("catching.cc", text, &["throwing", "catcher", "nested"], compiler);
    }
}

// ------------------------------------------------------------------- loops of real programs

/// The blocks of a function that were executed, and the edges between them.
#[derive(Default)]
struct Executed {
    edges: BTreeMap<AppPc, BTreeSet<AppPc>>,
    ends: BTreeMap<AppPc, AppPc>,
}

/// Collects what was executed of each function. A call leads to the instruction behind it, if the
/// thread came there.
fn executed(trace: &Trace, scopes: &Scopes) -> Vec<Executed> {
    let functions: Vec<&SelectedFunction> = scopes.functions().collect();
    let mut all: Vec<Executed> = functions.iter().map(|_| Executed::default()).collect();
    let mut of_block = BTreeMap::new();
    for block in trace.blocks().iter() {
        let is_inside =
            |function: &&SelectedFunction| function.ranges.iter().any(|range| range.contains(&block.address()));
        of_block.insert(block.address(), functions.iter().position(is_inside));
    }
    for thread in trace.threads() {
        for item in trace.steps(thread.info.thread).unwrap() {
            let Item::Step(step) = item.unwrap() else { continue };
            let Some(block) = trace.blocks().get(step.block()) else { continue };
            let Some(Some(function)) = of_block.get(&block.address()) else { continue };
            let executed = &mut all[*function];
            executed.ends.insert(block.address(), block.end());
            let next = match block.transfer() {
                isa::Transfer::Call { .. } | isa::Transfer::IndirectCall => block.end(),
                isa::Transfer::Return => continue,
                _ => step.next(),
            };
            if of_block.get(&next) == Some(&Some(*function)) {
                executed.edges.entry(block.address()).or_default().insert(next);
            }
        }
    }
    all
}

/// Which nodes can be reached from each node in one step or more, by brute force.
fn reachable(count: usize, successors: impl Fn(usize) -> Vec<usize>) -> Vec<Vec<bool>> {
    (0..count)
        .map(|start| {
            let (mut seen, mut waiting) = (vec![false; count], successors(start));
            while let Some(node) = waiting.pop() {
                if !std::mem::replace(&mut seen[node], true) {
                    waiting.extend(successors(node));
                }
            }
            seen
        })
        .collect()
}

/// Every cycle of executed edges has to be in a loop. Returns whether there is one.
fn check_cycles(executed: &Executed, flow: &FlowGraph, name: &str) -> bool {
    let blocks: Vec<AppPc> = executed.ends.keys().copied().collect();
    let number = |block: &AppPc| blocks.binary_search(block).ok();
    let successors = |block: usize| match executed.edges.get(&blocks[block]) {
        Some(next) => next.iter().filter_map(number).collect(),
        None => Vec::new(),
    };
    let reach = reachable(blocks.len(), successors);
    let mut has_cycle = false;
    for (first, second) in (0..blocks.len()).flat_map(|first| (0..=first).map(move |second| (first, second))) {
        if reach[first][second] && reach[second][first] {
            has_cycle = true;
            let nodes = |block: usize| flow.nodes_of(blocks[block]..executed.ends[&blocks[block]]);
            let (first, second) = (nodes(first), nodes(second));
            let contains_both = |index: u32| {
                let found = &flow.forest.loops()[index as usize];
                second.iter().any(|&node| found.contains(node))
            };
            let is_in_loop = first.iter().any(|&node| flow.forest.around(node).any(contains_both));
            assert!(is_in_loop, "{name}: a cycle through {:#x} is in no loop", blocks[0]);
        }
    }
    has_cycle
}

/// A loop: its entries and nodes, and the loops inside.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tree(Vec<u32>, Vec<u32>, Vec<Tree>);

/// The loops among some nodes by brute force: classes of nodes that reach each other.
fn brute_force(graph: &Graph, nodes: &[u32], cut: &BTreeSet<u32>, entry: Option<u32>) -> Vec<Tree> {
    let number = |node: &u32| nodes.binary_search(node).ok().filter(|_| !cut.contains(node));
    let reach = reachable(nodes.len(), |at| graph.successors(nodes[at]).iter().filter_map(number).collect());
    let (mut seen, mut trees) = (BTreeSet::new(), Vec::new());
    for (first, forward) in reach.iter().enumerate() {
        let class: Vec<u32> =
            (0..nodes.len()).filter(|&second| forward[second] && reach[second][first]).map(|at| nodes[at]).collect();
        if class.is_empty() || !seen.insert(class[0]) {
            continue;
        }
        let is_outside = |node: &u32| class.binary_search(node).is_err();
        let is_entered = |node: &u32| {
            entry == Some(*node)
                || (0..graph.node_count()).any(|from| is_outside(&from) && graph.successors(from).contains(node))
        };
        let mut entries: Vec<u32> = class.iter().copied().filter(is_entered).collect();
        if entries.is_empty() {
            entries.push(class[0]);
        }
        let inner_cut: BTreeSet<u32> = cut.iter().chain(&entries).copied().collect();
        let inside = brute_force(graph, &class, &inner_cut, entry);
        trees.push(Tree(entries, class, inside));
    }
    trees.sort();
    trees
}

/// The loops that the forest has inside of a loop.
fn reported(flow: &FlowGraph, parent: Option<u32>) -> Vec<Tree> {
    let children = (0..).zip(flow.forest.loops()).filter(|(_, found)| found.parent == parent);
    let tree = |(index, found): (u32, &scope::loops::Loop)| {
        Tree(found.entries.clone(), found.nodes.clone(), reported(flow, Some(index)))
    };
    let mut trees: Vec<Tree> = children.map(tree).collect();
    trees.sort();
    trees
}

/// Checks all functions of a program that were executed. Returns how many have loops.
fn check_loops(call: &Call) -> usize {
    let recorded = call.recorded();
    let trace = &recorded.trace;
    let functions = Resolver::default().functions(trace, &[]);
    let scopes = Scopes::of_trace(trace, functions);
    let mut with_loops = 0;
    for (number, executed) in (0..).zip(executed(trace, &scopes)) {
        let (id, flow) = (FunctionId(number), scopes.flow(FunctionId(number)).unwrap());
        let function = scopes.function(id).unwrap();
        let has_cycle = check_cycles(&executed, flow, &function.name);
        with_loops += usize::from(has_cycle);
        let nodes: Vec<u32> = (0..flow.graph.node_count()).collect();
        let expected = brute_force(&flow.graph, &nodes, &BTreeSet::new(), flow.node_at(function.entry));
        assert_eq!(reported(flow, None), expected, "{} of {call:?}", function.name);
    }
    with_loops
}

#[test]
fn loops_of_real_programs_are_those_of_brute_force() {
    let directory = tempfile::tempdir().unwrap();
    let text: String = (0..500).map(|number| format!("{} line {number}\n", number * 7919 % 1000)).collect();
    let file = acceptance::source::write(directory.path(), "numbers", &text);
    let call = |name: &str, arguments: &[&str]| Call::new(tool::required(name)).args(arguments).arg(&file);
    let mut counts = vec![
        check_loops(&call("sort", &["-n"])),
        check_loops(&call("gzip", &["-c"])),
        check_loops(&call("grep", &["-E", "l[i-k]ne .*(1|2)+3"])),
        check_loops(&call("sed", &["s/line/LINE/g"])),
        check_loops(&call("awk", &["{ sum += $1 } END { print sum }"])),
        check_loops(&call("sha256sum", &[])),
    ];
    for compiler in [&["gcc", "-O0"][..], &["gcc", "-O2"], &["gcc", "-O3"], &["clang", "-O0"], &["clang", "-O2"]] {
        counts.push(check_loops(&Call::new(compiled(directory.path(), compiler))));
    }
    assert!(counts.iter().sum::<usize>() >= 100 && counts.iter().all(|&count| count > 3), "{counts:?}");
}

/// Compiles the program that counts its loops, with all that a compiler does to loops.
fn compiled(directory: &Path, compiler: &[&str]) -> PathBuf {
    let name = format!("{}.c", compiler.join("_"));
    compile(directory, &name, include_str!("../programs/scopes.c"), compiler)
}
