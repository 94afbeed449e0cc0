//! Loops equal those that LLVM finds in its own code.
//!
//! clang writes its loops into the assembly as comments: "=>This Loop Header: Depth=1", "Parent
//! Loop BB0_3 Depth=1". The labels stay symbols, so that the comments get addresses. The loops that
//! crate `scope` finds in a recording of the program have to have the same headers, depths and
//! parents. Two differences are explained, and allowed only where the assembly shows the reason:
//!
//! * A tail call of the function itself is a call to LLVM, and a jump to the function's entry to
//!   us, which makes a loop.
//! * We know the targets of a jump table that were executed, LLVM knows all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::{Call, process, source, tool};
use scope::{FlowGraph, FunctionId, Resolver, Scopes};
use trace::AppPc;

/// A loop, but for the address of its header: its depth, and the header of the loop around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nesting<Address> {
    depth: u32,
    parent: Option<Address>,
}

/// The loops of a function by their headers.
type Loops<Address> = BTreeMap<Address, Nesting<Address>>;

/// What an assembly file says of a function.
#[derive(Default)]
struct CommentedFunction {
    loops: Loops<String>,
    has_jump_table: bool,
    calls_itself_last: bool,
}

/// Reads the functions of an assembly file and the comments in them.
fn commented_functions(assembly: &str) -> BTreeMap<String, CommentedFunction> {
    let mut functions: BTreeMap<String, CommentedFunction> = BTreeMap::new();
    let (mut function, mut label) = (String::new(), String::new());
    let mut parents: Vec<String> = Vec::new();
    for line in assembly.lines() {
        let (code, comment) = line.split_once('#').unwrap_or((line, ""));
        if let Some(name) = code.trim_end().strip_suffix(':').filter(|name| !name.starts_with(char::is_whitespace)) {
            if comment.trim() == format!("@{name}") {
                name.clone_into(&mut function);
                functions.entry(function.clone()).or_default();
            }
            name.clone_into(&mut label);
            parents.clear();
        }
        if let Some(known) = functions.get_mut(&function) {
            known.has_jump_table |= code.trim_start().starts_with("jmpq\t*");
            known.calls_itself_last |=
                comment.trim() == "TAILCALL" && code.trim_end().ends_with(&format!("\t{function}"));
        }
        let words: Vec<&str> = comment.split_whitespace().collect();
        let depth = |word: &str| word.strip_prefix("Depth=").unwrap().parse().unwrap();
        match words[..] {
            ["Parent", "Loop", parent, _] => parents.push(format!(".L{parent}")),
            ["=>This", "Loop", "Header:", last]
            | ["=>This", "Inner", "Loop", "Header:", last]
            | ["=>", "This", "Loop", "Header:", last]
            | ["=>", "This", "Inner", "Loop", "Header:", last] => {
                assert!(label.starts_with(".LBB"), "{line} has no label");
                let nesting = Nesting { depth: depth(last), parent: parents.last().cloned() };
                assert_eq!(parents.len() + 1, nesting.depth as usize, "{line}");
                functions.get_mut(&function).unwrap().loops.insert(label.clone(), nesting);
            }
            _ => {}
        }
    }
    functions
}

/// A program that clang has compiled, with the loops of its functions.
struct Compiled {
    executable: PathBuf,
    functions: Vec<CompiledFunction>,
}

struct CompiledFunction {
    name: String,
    entry: u64,
    loops: Loops<u64>,
    has_jump_table: bool,
    calls_itself_last: bool,
}

/// Compiles a file to an executable that is not moved when it is loaded.
fn compile(directory: &Path, source: &Path, optimisation: &str) -> Compiled {
    let name = format!("{}{optimisation}", source.file_stem().unwrap().to_str().unwrap());
    let path = |extension: &str| directory.join(&name).with_extension(extension);
    let clang = || {
        let mut command = Command::new(tool::required("clang"));
        command.args(["-w", "-std=gnu11", "-fno-pie", "-no-pie", "-pthread", optimisation]);
        command
    };
    source::succeed(clang().arg("-S").arg(source).arg("-o").arg(path("s")));
    source::succeed(clang().args(["-c", "-Wa,-L"]).arg(path("s")).arg("-o").arg(path("o")));
    source::succeed(clang().arg(path("o")).arg("-o").arg(path("executable")).arg("-lm"));
    let symbols = symbols(&path("o"), &path("executable"));
    let address = |name: &String| *symbols.get(name).unwrap_or_else(|| panic!("{source:?} has no symbol {name}"));
    let assembly = std::fs::read_to_string(path("s")).unwrap();
    let functions = commented_functions(&assembly).into_iter().map(|(name, commented)| {
        let CommentedFunction { loops, has_jump_table, calls_itself_last } = commented;
        let nesting =
            |nesting: &Nesting<String>| Nesting { depth: nesting.depth, parent: nesting.parent.as_ref().map(address) };
        let loops = loops.iter().map(|(header, found)| (address(header), nesting(found))).collect();
        CompiledFunction { entry: address(&name), name, loops, has_jump_table, calls_itself_last }
    });
    Compiled { executable: path("executable"), functions: functions.collect() }
}

/// The addresses of an object file's own symbols in the executable.
fn symbols(object: &Path, executable: &Path) -> BTreeMap<String, u64> {
    let nm = |file: &Path| -> BTreeMap<String, u64> {
        let output = process::run(Command::new(tool::required("nm")).args(["--defined-only"]).arg(file));
        let parse = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields[2].to_owned(), u64::from_str_radix(fields[0], 16).unwrap())
        };
        output.stdout_text().lines().map(parse).collect()
    };
    let linked = nm(executable);
    let moved = linked["main"].wrapping_sub(nm(object)["main"]);
    nm(object).into_iter().map(|(name, address)| (name, address.wrapping_add(moved))).collect()
}

/// The loops that crate `scope` has found.
fn found_loops(flow: &FlowGraph) -> Loops<u64> {
    let header = |index: u32| {
        let found = &flow.forest.loops()[index as usize];
        flow.span(found.entries[0]).unwrap().start.get()
    };
    let nesting = |index: u32| {
        let found = &flow.forest.loops()[index as usize];
        Nesting { depth: found.depth, parent: found.parent.map(header) }
    };
    (0..).take(flow.forest.loops().len()).map(|index| (header(index), nesting(index))).collect()
}

/// Returns whether a loop is inside of the one with this header.
fn is_inside(loops: &Loops<u64>, nesting: &Nesting<u64>, header: u64) -> bool {
    nesting.parent.is_some_and(|parent| parent == header || is_inside(loops, &loops[&parent], header))
}

/// Takes away the loop that a tail call of the function itself makes.
fn without_outer_loop(loops: &Loops<u64>, header: u64) -> Loops<u64> {
    let lifted = |(&inner, nesting): (&u64, &Nesting<u64>)| {
        let depth = nesting.depth - u32::from(is_inside(loops, nesting, header));
        (inner, Nesting { depth, parent: nesting.parent.filter(|&parent| parent != header) })
    };
    loops.iter().filter(|&(&inner, _)| inner != header).map(lifted).collect()
}

/// Records a program and compares the loops of every function that it executes. Returns how many
/// of them have loops.
fn check(compiled: &Compiled, arguments: &[&str]) -> usize {
    let recorded = Call::new(&compiled.executable).args(arguments).options(["--no-shared-libs"]).recorded();
    let trace = &recorded.trace;
    let functions = Resolver::default().functions(trace, &[]);
    let scopes = Scopes::of_trace(trace, functions);
    let mut with_loops = 0;
    for (number, function) in (0..).zip(scopes.functions()) {
        let Some(expected) = compiled.functions.iter().find(|known| known.entry == function.entry.get()) else {
            continue;
        };
        let flow = scopes.flow(FunctionId(number)).unwrap();
        if flow.graph.node_count() == 0 {
            continue;
        }
        assert_eq!(function.name, expected.name);
        let what = format!("{} of {} {arguments:?}", expected.name, compiled.executable.display());
        let mut found = found_loops(flow);
        if expected.calls_itself_last && !expected.loops.contains_key(&expected.entry) {
            found = without_outer_loop(&found, expected.entry);
        }
        let is_known = |header: u64| !expected.has_jump_table || flow.node_at(AppPc::new(header)).is_some();
        let mut known = expected.loops.clone();
        known.retain(|&header, _| is_known(header));
        assert_eq!(found, known, "{what}");
        with_loops += usize::from(!known.is_empty());
    }
    with_loops
}

/// Programs of the workloads: directory and name.
const WORKLOADS: [(&str, &str); 14] = [
    ("bench", "hash"),
    ("bench", "parser"),
    ("bench", "sort"),
    ("parallel", "cholesky"),
    ("parallel", "fft"),
    ("parallel", "lu-contiguous"),
    ("parallel", "lu-noncontiguous"),
    ("parallel", "matmul"),
    ("parallel", "nbody"),
    ("parallel", "ocean-contiguous"),
    ("parallel", "radiosity"),
    ("parallel", "radix"),
    ("parallel", "raytrace"),
    ("parallel", "water"),
];

#[test]
fn loops_are_those_of_llvm() {
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for optimisation in ["-O0", "-O1", "-O2", "-O3"] {
        let mut with_loops = check(&compile(directory.path(), &root.join("programs/scopes.c"), optimisation), &[]);
        for (group, name) in WORKLOADS {
            let source = root.join(format!("../../workloads/{group}/{name}.c"));
            let program = workloads::find(name).unwrap();
            with_loops += check(&compile(directory.path(), &source, optimisation), program.runs[0].arguments);
        }
        assert!(with_loops >= 20, "{optimisation}: {with_loops} functions with loops");
    }
}
