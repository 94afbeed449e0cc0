//! Functions of real binaries, compared with what nm, objdump and readelf print about the same
//! files: programs that gcc builds here, with and without symbols, and programs of the system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use trackway_symbols::{Functions, Pattern, ambiguity, did_you_mean};

/// Two files with a static function of the same name, and each with a part for what is rare.
const ONE: &str = r#"
int other(int value);
__attribute__((noinline, cold)) int rare(int value) { return other(value) / 7; }
__attribute__((noinline)) static int helper(int value) {
    if (value > 1000) return rare(value) + 1;
    return value * 3;
}
__attribute__((noinline)) int outer(int value) {
    if (value == 77) return rare(value) * 11;
    return helper(value) + other(value);
}
int main(int count, char **arguments) { (void)arguments; return outer(count); }
"#;

const TWO: &str = r#"
__attribute__((cold)) int rare(int value);
__attribute__((noinline)) static int helper(int value) {
    if (value > 2000) return rare(value) + 2;
    return value * 5;
}
int other(int value) { return helper(value) - 1; }
"#;

/// How a program is linked.
const LINKS: [&[&str]; 3] = [&["-pie", "-fPIE"], &["-no-pie", "-fno-pie"], &["-static"]];

struct Programs {
    directory: TempDir,
}

impl Programs {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("one.c"), ONE).unwrap();
        fs::write(directory.path().join("two.c"), TWO).unwrap();
        Self { directory }
    }

    /// Builds the program and returns it with a stripped copy.
    fn build(&self, options: &[&str]) -> (PathBuf, PathBuf) {
        let [program, stripped] = ["program", "stripped"].map(|name| self.directory.path().join(name));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-freorder-blocks-and-partition", "one.c", "two.c", "-o", "program"]).args(options);
        assert!(gcc.current_dir(&self.directory).status().unwrap().success());
        let mut strip = Command::new("strip");
        assert!(strip.arg(&program).arg("-o").arg(&stripped).status().unwrap().success());
        (program, stripped)
    }
}

/// Returns the standard output. The status says little: readelf fails if a file refers to another
/// one for its symbols.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{text}"))
}

/// Returns the functions with a length that nm prints, each with its range. The symbol of an
/// indirect function (`i`) is the name of what its resolver chooses, not of the resolver.
fn nm(file: &Path) -> Vec<(String, Range<u64>)> {
    let lines = output(Command::new("nm").args(["--print-size", "--defined-only"]).arg(file));
    let function = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[start, length, kind, name] = fields.as_slice() else { return None };
        "tTwW".contains(kind).then(|| (name.to_owned(), hex(start)..hex(start) + hex(length)))
    };
    lines.lines().filter_map(function).collect()
}

/// Returns the ranges of the frame entries that readelf prints.
fn frame_entries(file: &Path) -> BTreeSet<(u64, u64)> {
    let lines = output(Command::new("readelf").arg("--debug-dump=frames").arg(file));
    let ranges = lines.lines().filter(|line| line.contains(" FDE ")).filter_map(|line| line.split_once("pc="));
    ranges.map(|(_, range)| range.split_once("..").unwrap()).map(|(start, end)| (hex(start), hex(end))).collect()
}

/// An instruction that goes to a known address.
struct Transfer {
    from: u64,
    to: u64,
    is_call: bool,
}

/// Returns the transfers that objdump prints, without those to stubs of the linkage table.
fn transfers(file: &Path) -> Vec<Transfer> {
    let lines = output(Command::new("objdump").args(["-d", "--no-show-raw-insn", "--section=.text"]).arg(file));
    let transfer = |line: &str| {
        let (from, instruction) = line.split_once(":\t")?;
        let words: Vec<&str> = instruction.split_whitespace().filter(|word| *word != "bnd").collect();
        let (&name, &target) = (words.first()?, words.get(1)?);
        let is_direct = (name == "call" || name.starts_with('j')) && !target.starts_with('*');
        let is_stub = words.iter().any(|word| word.ends_with("@plt>"));
        (is_direct && !is_stub).then(|| Transfer { from: hex(from.trim()), to: hex(target), is_call: name == "call" })
    };
    lines.lines().filter_map(transfer).collect()
}

#[test]
fn named_functions_are_those_of_nm() {
    let programs = Programs::new();
    for link in LINKS {
        let (program, _) = programs.build(link);
        let functions = Functions::of_file(&program).unwrap();
        let listed = nm(&program);
        assert!(listed.len() > 5, "{listed:?}");
        for (name, range) in listed {
            let is_same = |function: &&trackway_symbols::Function| function.symbol == name && function.range() == range;
            assert!(functions.list.iter().any(|function| is_same(&function)), "{name} {range:x?} {link:?}");
            for address in [range.start, range.end - 1] {
                let found = functions.at(address).unwrap();
                assert!(found.range().contains(&address), "{found:x?}");
            }
        }
        assert!(functions.list.iter().filter(|function| function.symbol.is_empty()).count() < 3, "{link:?}");
    }
}

#[test]
fn functions_of_a_stripped_file_are_its_frame_entries() {
    let programs = Programs::new();
    for link in LINKS {
        let (program, stripped) = programs.build(link);
        let functions = Functions::of_file(&stripped).unwrap();
        let entries = frame_entries(&stripped);
        assert!(entries.len() > 4, "{entries:?}");
        let all: BTreeSet<(u64, u64)> = functions.list.iter().map(|function| (function.start, function.end)).collect();
        let stubs: Vec<_> = entries.difference(&all).collect();
        assert!(all.is_subset(&entries) && stubs.len() <= 2, "{stubs:x?} are left out of {link:?}");
        for (name, range) in nm(&program).into_iter().filter(|(name, _)| is_ours(name)) {
            let found = functions.at(range.start).unwrap_or_else(|| panic!("{name} in {link:?}"));
            assert_eq!((found.range(), found.symbol.as_str()), (range.clone(), ""), "{name} in {link:?}");
            assert_eq!(functions.at(range.end - 1), Some(found));
            assert_eq!(found.name(), format!("sub_{:x}", range.start));
        }
    }
}

fn is_ours(name: &str) -> bool {
    ["main", "outer", "other"].iter().any(|own| name.trim_end_matches(".cold") == *own) || name.starts_with("helper")
}

/// Removes the section headers, which nothing needs in order to run a program.
#[test]
fn functions_are_found_without_section_headers() {
    let programs = Programs::new();
    let (program, stripped) = programs.build(LINKS[0]);
    let expected = Functions::of_file(&stripped).unwrap();
    let mut bytes = fs::read(&stripped).unwrap();
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let functions = Functions::parse(&bytes).unwrap();
    for (name, range) in nm(&program).into_iter().filter(|(name, _)| is_ours(name)) {
        let found = functions.at(range.start).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(Some(found), expected.at(range.start), "{name}");
    }
}

#[test]
fn a_part_belongs_to_the_function_that_jumps_to_it() {
    let programs = Programs::new();
    for link in LINKS {
        let (program, _) = programs.build(link);
        let functions = Functions::of_file(&program).unwrap();
        let mut checked = BTreeMap::new();
        for Transfer { from, to, .. } in transfers(&program).into_iter().filter(|transfer| !transfer.is_call) {
            let (Some(source), Some(part)) = (functions.at(from), functions.at(to)) else { continue };
            if !part.symbol.contains(".cold") || source.symbol.contains(".cold") || !is_ours(&source.symbol) {
                continue;
            }
            assert_eq!(functions.whole_at(to), Some(source), "{source:x?} {part:x?}");
            assert!(functions.parts(source).contains(&part) && functions.parts(part)[0] == source);
            checked.insert(part.start, source.name());
        }
        let names: Vec<&str> = checked.values().map(String::as_str).collect();
        assert!(names.iter().filter(|name| **name == "helper").count() == 2, "{names:?}");
        assert!(names.contains(&"outer"), "{names:?}");
    }
}

#[test]
fn static_functions_of_the_same_name_are_a_choice() {
    let programs = Programs::new();
    for link in LINKS {
        let (program, _) = programs.build(link);
        let functions = Functions::of_file(&program).unwrap();
        let pattern = Pattern::new("helper");
        let mut expected: Vec<u64> =
            nm(&program).into_iter().filter(|(name, _)| name == "helper").map(|(_, range)| range.start).collect();
        expected.sort_unstable();
        let choices = functions.choices(&pattern);
        assert_eq!(choices.iter().map(|function| function.start).collect::<Vec<_>>(), expected);
        let sources: BTreeSet<&str> = choices.iter().map(|function| &*function.source.as_ref().unwrap().name).collect();
        assert_eq!(sources, BTreeSet::from(["one.c", "two.c"]));
        let sentence = ambiguity(&pattern, &functions, "");
        assert!(sentence.contains(&format!("{:#x} (in ", expected[0])) && sentence.contains("two.c"), "{sentence}");
        assert_eq!(ambiguity(&Pattern::new("outer"), &functions, ""), "");
    }
}

#[test]
fn an_address_selects_one_of_several_functions() {
    let programs = Programs::new();
    let (program, stripped) = programs.build(LINKS[1]);
    let listed = nm(&program);
    let (_, helper) = listed.iter().find(|(name, _)| name == "helper").unwrap();
    let pattern = Pattern::new(&format!("{:#x}", helper.start + 1));
    let named = Functions::of_file(&program).unwrap();
    let selected: Vec<_> = named.list.iter().filter(|function| named.selects(&pattern, function)).collect();
    assert_eq!(selected.iter().map(|function| function.name()).collect::<Vec<_>>(), ["helper"; 2]);
    assert!(selected.iter().any(|function| function.range() == *helper));
    let nameless = Functions::of_file(&stripped).unwrap();
    let selected: Vec<_> = nameless.list.iter().filter(|function| nameless.selects(&pattern, function)).collect();
    assert_eq!(selected.iter().map(|function| function.range()).collect::<Vec<_>>(), vec![helper.clone(); 1]);
    let beyond = Pattern::new("0x7fffffffffff");
    let sentence = did_you_mean(&beyond, std::iter::once(named));
    assert!(sentence.starts_with("the nearest function before it is "), "{sentence}");
}

/// Programs and libraries that distributions strip.
const SYSTEM: [&str; 5] = [
    "/usr/bin/sort",
    "/usr/bin/find",
    "/usr/bin/bash",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
];

/// The most called addresses per file that no function has: `deregister_tm_clones`, a function of
/// the C runtime without call frame information.
const UNKNOWN_MAX: usize = 1;

#[test]
fn every_call_in_stripped_files_of_the_system_goes_to_a_function() {
    for file in SYSTEM {
        let functions = Functions::of_file(Path::new(file)).unwrap();
        let targets: BTreeSet<u64> =
            transfers(Path::new(file)).into_iter().filter(|transfer| transfer.is_call).map(|call| call.to).collect();
        assert!(targets.len() > 100, "{file} has {} calls", targets.len());
        let is_start = |address: u64| functions.at(address).is_some_and(|function| function.start == address);
        let others: Vec<u64> = targets.iter().copied().filter(|&target| !is_start(target)).collect();
        assert!(others.len() <= UNKNOWN_MAX, "{file}: no function starts at {others:x?}");
        assert!(others.iter().all(|&target| functions.at(target).is_none()), "{file}: {others:x?}");
    }
}

#[test]
fn frame_entries_of_the_system_are_those_of_readelf() {
    for file in SYSTEM {
        let table = trackway_symbols::FrameTable::of_file(Path::new(file)).unwrap();
        let own: BTreeSet<(u64, u64)> = table.entries().iter().map(|entry| (entry.start, entry.end)).collect();
        let expected = frame_entries(Path::new(file));
        assert!(expected.len() > 100 && own == expected, "{file}: {} of {}", own.len(), expected.len());
        let (start, end) = *expected.iter().nth(50).unwrap();
        assert_eq!(table.entry_at(end - 1).unwrap().start, start);
    }
}
