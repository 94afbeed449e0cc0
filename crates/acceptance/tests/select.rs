//! A recording of a part of a program equals that part of a recording of the whole program.
//!
//! The tests determine the part from `nm` and from the calls and returns in the whole trace,
//! independently of the recorder.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use acceptance::listing::{self, Listing};
use acceptance::source::compile;
use acceptance::{Call, RecordedCall, process, source, tool, trackway};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use tempfile::TempDir;
use trace::{Event, Item, Module, ThreadId, Trace};

/// The executable and the plugin, built once.
struct Built {
    executable: PathBuf,
    plugin: PathBuf,
    _directory: TempDir,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let compile = |name, text, flags: &[&str]| {
            compile(directory.path(), name, text, &[&["gcc", "-O1", "-g"], flags].concat())
        };
        let executable = compile(
            "routines.c",
            include_str!("../programs/routines.c"),
            &["-pthread", "-fno-stack-protector", "-Wl,-z,now"],
        );
        let plugin = compile("plugin.c", include_str!("../programs/plugin.c"), &["-shared", "-fPIC"]);
        Built { executable, plugin, _directory: directory }
    })
}

fn call(words: &[&str]) -> Call {
    let environment = [("PATH", "/usr/bin:/bin")];
    Call::new(&built().executable).args(words).environment(&environment).fixed_addresses()
}

fn library_call() -> Call {
    call(&["library", "20"]).arg(&built().plugin)
}

/// Records with options, checks the program's output, and returns what it executed.
fn part(call: &Call, options: &[&str]) -> (RecordedCall, Vec<Listing>) {
    let recorded = recorded(call, options);
    recorded.assert_finished_as(&call.natively());
    assert_eq!(recorded.trace.recording().options, options, "the trace tells what it is a part of");
    let listings = listing::of_trace(&recorded.trace);
    (recorded, listings)
}

/// Records with options that include a length, which ends the recording before the program ends.
fn recorded(call: &Call, options: &[&str]) -> RecordedCall {
    let call = call.clone().options(options);
    if options.contains(&"--length") { call.recorded_until_detach() } else { call.recorded() }
}

/// The address ranges of the functions of a file, according to `nm`.
fn functions(file: &Path) -> Vec<(String, Range<u64>)> {
    let finished = process::run(Command::new(tool::required("nm")).args(["-S", "--defined-only"]).arg(file));
    let text = finished.stdout_text();
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [start, length, "T" | "t", name] = fields[..] else { return None };
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((name.to_owned(), number(start)?..number(start)? + number(length)?))
    };
    text.lines().filter_map(parse).collect()
}

/// Executable mappings of files that satisfy a condition.
fn modules(trace: &Trace, is_wanted: impl Fn(&Module) -> bool) -> Vec<&Module> {
    trace.modules().iter().map(|mapped| &mapped.module).filter(|module| is_wanted(module)).collect()
}

/// The address ranges of those mappings.
fn ranges(modules: &[&Module]) -> Vec<Range<u64>> {
    modules.iter().map(|module| module.address..module.address + module.length).collect()
}

/// The places in a trace of the functions of `file` whose names begin with `prefix`. The files have
/// been linked as position-independent, their first byte at address 0.
fn places(trace: &Trace, file: &Path, prefix: &str) -> Vec<Range<u64>> {
    let file_name = file.to_str().unwrap();
    let modules = modules(trace, |module| module.path == file_name);
    assert!(!modules.is_empty(), "{file_name} was not mapped");
    let functions: Vec<_> = functions(file).into_iter().filter(|(name, _)| name.starts_with(prefix)).collect();
    assert!(!functions.is_empty(), "{file_name} has no {prefix}");
    let bias = |module: &Module| module.address - module.file_offset;
    let of_module = |module: &Module| {
        let bias = bias(module);
        functions.iter().map(move |(_, range)| bias + range.start..bias + range.end)
    };
    modules.into_iter().flat_map(of_module).collect()
}

fn is_in(places: &[Range<u64>], address: u64) -> bool {
    places.iter().any(|place| place.contains(&address))
}

/// Fails where the lists differ first.
fn assert_same(what: &str, trace: &Trace, part: &Listing, expected: &[u64]) {
    if let Some(difference) = listing::first_difference(trace, part, expected) {
        panic!("{what}: {difference}");
    }
}

#[test]
fn routines_without_callees() {
    let call = call(&["plain"]);
    let all = call.recorded();
    let listing = listing::of_thread(&all.trace, ThreadId::FIRST);
    for (options, prefix) in [
        (&["--routine", "chosen"][..], "chosen\0"),
        (&["--routine", "chosen*"], "chosen"),
        (&["--routine", "chosen", "--routine", "[hl]e*"], ""),
    ] {
        let executable = &built().executable;
        let places = match prefix {
            "" => {
                ["chosen\0", "helper", "leaf"].iter().flat_map(|name| exactly(&all.trace, executable, name)).collect()
            }
            "chosen\0" => exactly(&all.trace, executable, "chosen"),
            prefix => places(&all.trace, executable, prefix),
        };
        let expected: Vec<u64> = listing.addresses.iter().copied().filter(|&address| is_in(&places, address)).collect();
        assert!(expected.len() > 1000 && expected.len() < listing.addresses.len());
        let (recorded, parts) = part(&call, options);
        assert_same(&format!("{options:?}"), &recorded.trace, &parts[0], &expected);
    }
}

/// As [`places`], for one name.
fn exactly(trace: &Trace, file: &Path, name: &str) -> Vec<Range<u64>> {
    let name = name.trim_end_matches('\0');
    let functions = functions(file);
    let (_, wanted) = functions.iter().find(|(function, _)| function == name).unwrap();
    let all = places(trace, file, name);
    all.into_iter().filter(|place| place.start & 0xfff == wanted.start & 0xfff).collect()
}

#[test]
fn a_routine_of_a_library_and_one_that_is_loaded_later() {
    for (call, file, routine) in
        [(library_call(), &built().plugin, "plugged"), (library_call(), &built().plugin, "own")]
    {
        let all = call.recorded();
        let listing = listing::of_thread(&all.trace, ThreadId::FIRST);
        let places = places(&all.trace, file, routine);
        let expected: Vec<u64> = listing.addresses.iter().copied().filter(|&address| is_in(&places, address)).collect();
        assert!(!expected.is_empty());
        let (recorded, parts) = part(&call, &["--routine", routine]);
        assert_same(routine, &recorded.trace, &parts[0], &expected);
    }
}

#[test]
fn without_shared_libraries() {
    for (call, threads) in [(call(&["plain"]), 1), (library_call(), 1), (call(&["threads"]), 5)] {
        let all = call.recorded();
        let listings = listing::of_trace(&all.trace);
        let executable = built().executable.to_str().unwrap();
        let libraries = ranges(&modules(&all.trace, |module| module.path != executable));
        let (recorded, parts) = part(&call, &["--no-shared-libs"]);
        assert_eq!((listings.len(), parts.len()), (threads, threads));
        for (all, part) in listings.iter().zip(&parts) {
            let expected: Vec<u64> =
                all.addresses.iter().copied().filter(|&address| !is_in(&libraries, address)).collect();
            assert!(expected.len() < all.addresses.len());
            assert_same("--no-shared-libs", &recorded.trace, part, &expected);
        }
    }
}

#[test]
fn every_gap_is_told() {
    let (recorded, parts) = part(&call(&["plain"]), &["--routine", "helper"]);
    let gaps = parts[0].events.iter().filter(|(_, event)| matches!(event, Event::Gap { .. })).count();
    let places = places(&recorded.trace, &built().executable, "helper");
    let calls = parts[0].addresses.iter().filter(|&&address| address == places[0].start).count();
    // One before the first call, one for each of the two calls that it makes, one after each
    // return.
    assert_eq!(gaps, 1 + 3 * calls);
    assert!(matches!(parts[0].events.last(), Some((_, Event::End { .. }))));
}

/// What the model of the dynamic extent knows.
struct Extent {
    /// Where selected routines begin.
    entries: Vec<u64>,
    /// Functions that are never inside a selected routine: jumps out of a routine end there.
    outside: Vec<Range<u64>>,
}

/// The addresses that a thread executes from an entry until it returns, by counting calls and
/// returns.
fn in_extent(trace: &Trace, thread: ThreadId, extent: &Extent) -> Vec<u64> {
    let mut executed = Vec::new();
    // Calls that have not returned since the entry; the counts that signal handlers have
    // interrupted.
    let mut depth: Option<u64> = None;
    let mut interrupted = Vec::new();
    for item in trace.steps(thread).unwrap() {
        let step = match item.unwrap() {
            Item::Step(step) => step,
            Item::Event(Event::Signal { signal, .. }) if signal != 0 => {
                interrupted.push(depth);
                // As a call that never returns.
                depth = depth.map(|depth| depth + 1_000_000);
                continue;
            }
            Item::Event(Event::Resume { .. }) => {
                depth = interrupted.pop().unwrap();
                continue;
            }
            Item::Event(_) => continue,
        };
        for instruction in trace.blocks().instructions(&step) {
            let address = instruction.address.get();
            if is_in(&extent.outside, address) {
                depth = None;
            }
            if depth.is_none() && extent.entries.contains(&address) {
                depth = Some(0);
            }
            let Some(calls) = depth else { continue };
            executed.push(address);
            let decoded = Decoder::with_ip(64, instruction.bytes, address, DecoderOptions::NONE).decode();
            depth = match decoded.flow_control() {
                FlowControl::Call if decoded.is_call_near() => Some(calls + 1),
                FlowControl::IndirectCall => Some(calls + 1),
                FlowControl::Return => calls.checked_sub(1),
                _ => Some(calls),
            };
        }
    }
    executed
}

fn check_extent(call: &Call, file: &Path, prefix: &str, outside: &[&str]) {
    let all = call.recorded();
    let entries = places(&all.trace, file, prefix).iter().map(|place| place.start).collect();
    let outside = outside.iter().flat_map(|name| places(&all.trace, &built().executable, name)).collect();
    let extent = Extent { entries, outside };
    let pattern = format!("{prefix}*");
    let (recorded, parts) = part(call, &["--routine", &pattern, "--callees"]);
    let threads: Vec<ThreadId> = all.trace.threads().iter().map(|thread| thread.info.thread).collect();
    assert_eq!(parts.len(), threads.len());
    let mut text = String::new();
    for (&thread, part) in threads.iter().zip(&parts) {
        let expected = in_extent(&all.trace, thread, &extent);
        write!(text, " {}", expected.len()).unwrap();
        assert_same(&format!("{prefix}, thread {thread}"), &recorded.trace, part, &expected);
    }
    assert!(text.split(' ').any(|count| count.len() > 3), "next to nothing was selected:{text}");
}

#[test]
fn routines_with_callees() {
    check_extent(&call(&["plain"]), &built().executable, "chosen", &[]);
    check_extent(&call(&["plain", "600"]), &built().executable, "helper", &[]);
}

#[test]
fn callees_with_threads() {
    check_extent(&call(&["threads", "30"]), &built().executable, "chosen", &[]);
}

#[test]
fn callees_that_are_left_by_longjmp() {
    check_extent(&call(&["jumps", "300"]), &built().executable, "chosen_jumper", &["catcher"]);
}

#[test]
fn callees_that_are_left_by_an_exception() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/thrower.cc");
    let executable = compile(directory.path(), "thrower.cc", text, &["g++", "-O1", "-Wl,-z,now"]);
    let environment = [("PATH", "/usr/bin:/bin")];
    let call = Call::new(&executable).environment(&environment).fixed_addresses();
    let all = call.recorded();
    let named = |prefix: &str| places(&all.trace, &executable, prefix);
    let entries = named("_ZN4some6chosen").iter().map(|place| place.start).collect();
    let extent = Extent { entries, outside: named("_ZN4some7catcher") };
    let expected = in_extent(&all.trace, ThreadId::FIRST, &extent);
    assert!(expected.len() > 1000);
    let (recorded, parts) = part(&call, &["--routine", "some::chosen", "--callees"]);
    assert_same("exceptions", &recorded.trace, &parts[0], &expected);
}

#[test]
fn callees_and_signal_handlers_on_a_stack_of_their_own() {
    check_extent(&call(&["signals", "200"]), &built().executable, "chosen_raiser", &[]);
    check_extent(&call(&["signals", "200"]), &built().executable, "handler", &[]);
}

#[test]
fn callees_of_a_routine_that_is_loaded_later() {
    check_extent(&library_call(), &built().plugin, "plugged", &[]);
}

#[test]
fn callees_without_shared_libraries() {
    let call = call(&["plain"]);
    let all = call.recorded();
    let executable = built().executable.to_str().unwrap();
    let entries = places(&all.trace, &built().executable, "chosen_too").iter().map(|place| place.start).collect();
    let mains = ranges(&modules(&all.trace, |module| module.path == executable));
    let mut expected = in_extent(&all.trace, ThreadId::FIRST, &Extent { entries, outside: Vec::new() });
    let inside = expected.len();
    expected.retain(|&address| is_in(&mains, address));
    assert!(expected.len() < inside && expected.len() > 1000);
    let (recorded, parts) = part(&call, &["--no-shared-libs", "--routine", "chosen_too", "--callees"]);
    assert_same("callees of the executable", &recorded.trace, &parts[0], &expected);
}

/// Longest block in instructions.
const BLOCK: usize = 100;

#[test]
fn skipping_is_exact_to_the_block() {
    let call = call(&["plain", "600"]);
    let all = listing::of_thread(&call.recorded().trace, ThreadId::FIRST).addresses;
    for skip in [1, 17, 5000, 100_000, 1_234_567, all.len() - 2000, all.len() - 200] {
        let (recorded, parts) = part(&call, &["--skip", &skip.to_string()]);
        let skipped = all.len() - parts[0].addresses.len();
        assert!((skip..skip + BLOCK).contains(&skipped), "{skipped} instead of {skip}");
        assert_same(&format!("--skip {skip}"), &recorded.trace, &parts[0], &all[skipped..]);
        let [(0, Event::Start { pc, .. }), rest @ ..] = parts[0].events.as_slice() else {
            panic!("{:?}", parts[0].events)
        };
        let gap = rest
            .iter()
            .find_map(|(place, event)| if let Event::Gap { pc } = event { Some((*place, pc.get())) } else { None });
        assert_eq!((pc.get(), gap), (all[0], Some((0, all[0]))));
    }
}

#[test]
fn skipping_with_signals() {
    let call = call(&["signals", "3000"]);
    let all = listing::of_thread(&call.recorded().trace, ThreadId::FIRST).addresses;
    for skip in [200_000, 777_777, all.len() - 10_000] {
        let (recorded, parts) = part(&call, &["--skip", &skip.to_string()]);
        let skipped = all.len() - parts[0].addresses.len();
        assert!((skip..skip + BLOCK).contains(&skipped), "{skipped} instead of {skip}");
        assert_same(&format!("--skip {skip}"), &recorded.trace, &parts[0], &all[skipped..]);
    }
}

#[test]
fn lengths_are_exact() {
    let call = call(&["plain", "600"]);
    let all = listing::of_thread(&call.recorded().trace, ThreadId::FIRST).addresses;
    for length in [1, 2, 3, 1000, 54_321, 1_000_003] {
        let (recorded, parts) = part(&call, &["--length", &length.to_string()]);
        assert_same(&format!("--length {length}"), &recorded.trace, &parts[0], &all[..length]);
        assert!(matches!(parts[0].events.last(), Some((at, Event::Detach { .. })) if *at == length));
    }
    let more = call.clone().options(["--length", &(all.len() + 1).to_string()]).recorded();
    assert_same("more than there is", &more.trace, &listing::of_thread(&more.trace, ThreadId::FIRST), &all);
    for (skip, length) in [(100_000, 10_000), (1_000_000, 1)] {
        let (recorded, parts) = part(&call, &["--skip", &skip.to_string(), "--length", &length.to_string()]);
        let start = (skip..skip + BLOCK).find(|&start| all[start..start + length] == parts[0].addresses);
        assert!(start.is_some(), "{skip} {length}: {:x?}", &parts[0].addresses[..1]);
        assert_eq!(recorded.trace.summary().totals.instructions, length as u64);
    }
}

#[test]
fn a_part_of_a_part() {
    let call = call(&["plain", "600"]);
    let all = call.recorded();
    let places = places(&all.trace, &built().executable, "chosen");
    let listing = listing::of_thread(&all.trace, ThreadId::FIRST);
    let expected: Vec<u64> = listing.addresses.iter().copied().filter(|&address| is_in(&places, address)).collect();
    let (recorded, parts) = part(&call, &["--length", "5000", "--routine", "chosen*"]);
    assert_same("the first of them", &recorded.trace, &parts[0], &expected[..5000]);
    let (recorded, parts) = part(&call, &["--skip", "900000", "--routine", "chosen*"]);
    let rest = listing.addresses[900_000..].iter().filter(|&&address| is_in(&places, address)).count();
    assert!(rest.abs_diff(parts[0].addresses.len()) <= BLOCK);
    assert_same("the last of them", &recorded.trace, &parts[0], &expected[expected.len() - parts[0].addresses.len()..]);
}

/// A memory access: instruction, address, size, whether it writes, value.
type Memory = (u64, u64, u32, bool, Option<Vec<u8>>);

fn memory(trace: &Trace) -> Vec<Memory> {
    let mut list = Vec::new();
    let mut steps = trace.steps_with_accesses(ThreadId::FIRST).unwrap();
    while let Some(batch) = steps.next_batch().unwrap() {
        list.extend(batch.accesses().map(|access| {
            let value = batch.value(&access).map(<[u8]>::to_vec);
            (access.pc().get(), access.address(), access.size(), access.is_write(), value)
        }));
    }
    list
}

/// Fails where the lists differ first.
fn assert_same_memory(what: &str, part: &[Memory], expected: &[Memory]) {
    let differing = part.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(place) = differing {
        panic!("{what}: access {place} differs: {:x?} instead of {:x?}", part[place], expected[place]);
    }
    assert_eq!(part.len(), expected.len(), "{what}");
}

#[test]
fn data_of_a_part() {
    let call = call(&["plain"]);
    for data in ["addresses", "values"] {
        let all = call.clone().options(["--data", data]).recorded();
        let accesses = memory(&all.trace);
        let places = places(&all.trace, &built().executable, "chosen");
        let mut expected = accesses.clone();
        expected.retain(|(pc, ..)| is_in(&places, *pc));
        assert!(expected.len() > 1000 && expected.iter().all(|access| access.4.is_some() == (data == "values")));
        let part = |options: &[&str]| {
            let recorded = recorded(&call, &[&["--data", data][..], options].concat());
            (memory(&recorded.trace), recorded)
        };
        let (routines, _) = part(&["--routine", "chosen*"]);
        assert_same_memory("routines", &routines, &expected);
        // Before the first instructions of the executable, the program reads values that the kernel
        // chooses anew in every run.
        let addresses = |list: &[Memory]| -> Vec<Memory> {
            list.iter().map(|(pc, address, size, writes, _)| (*pc, *address, *size, *writes, None)).collect()
        };
        let all = addresses(&accesses);
        let (callees, recorded) = part(&["--routine", "helper", "--callees"]);
        assert_eq!(callees.len() as u64, reads_and_writes(&recorded));
        assert!(callees.len() > 1000 && callees.len() < all.len());
        let (later, _) = part(&["--skip", "70000"]);
        assert_same_memory("the last", &addresses(&later), &all[all.len() - later.len()..]);
        for length in [1, 1001, 50_003] {
            let (first, recorded) = part(&["--length", &length.to_string()]);
            assert_eq!(first.len() as u64, reads_and_writes(&recorded));
            assert_same_memory("the first", &addresses(&first), &all[..first.len()]);
        }
    }
}

fn reads_and_writes(recorded: &RecordedCall) -> u64 {
    let totals = recorded.trace.summary().totals;
    totals.reads + totals.writes
}

/// Instructions of all threads.
fn total(recorded: &RecordedCall) -> u64 {
    recorded.trace.summary().totals.instructions
}

#[test]
fn threads_skip_and_record_together() {
    let call = call(&["threads", "600"]);
    let all = total(&call.recorded());
    assert!(all > 5_000_000);
    for skip in [10_000, 1_000_000, 4_000_000] {
        let (recorded, parts) = part(&call, &["--skip", &skip.to_string()]);
        assert_eq!(parts.len(), 5);
        // How threads wait for each other is not the same in every run.
        let difference = all.abs_diff(total(&recorded) + skip);
        assert!(difference < 20_000, "{skip}: {} of {all} were recorded", total(&recorded));
    }
    for length in [1000, 3_000_000] {
        let (recorded, _) = part(&call, &["--length", &length.to_string()]);
        assert_eq!(total(&recorded), length);
    }
}

/// What the recorder says to the user.
fn complaint(call: &Call, options: &[&str]) -> (RecordedCall, String) {
    let recorded = call.clone().options(options).recorded();
    assert_eq!(recorded.finished.stdout, call.natively().stdout);
    let text = recorded.finished.stderr_text();
    (recorded, text)
}

#[test]
fn routines_that_do_not_exist() {
    let (recorded, text) = complaint(&call(&["plain"]), &["--routine", "chosne", "--routine", "chosen"]);
    assert!(text.contains("no") && text.contains("chosne") && text.contains("did you mean chosen"), "{text}");
    assert!(total(&recorded) > 1000, "the other one is recorded");
    let (recorded, text) = complaint(&call(&["plain"]), &["--routine", "xyzzy_*", "--callees"]);
    assert!(text.contains("xyzzy_*") && !text.contains("did you mean"), "{text}");
    assert_eq!(total(&recorded), 0);
}

/// A program with the functions of `routines.c`, at fixed addresses, without its names.
fn stripped(directory: &Path) -> (PathBuf, u64) {
    let text = include_str!("../programs/routines.c");
    let flags = ["gcc", "-O1", "-pthread", "-fno-stack-protector", "-fno-pie", "-no-pie"];
    let executable = compile(directory, "stripped.c", text, &flags);
    let chosen = functions(&executable).into_iter().find(|(name, _)| name == "chosen").unwrap().1;
    source::succeed(Command::new(tool::required("strip")).arg(&executable));
    (executable, chosen.start)
}

#[test]
fn routines_of_a_stripped_program() {
    let directory = tempfile::tempdir().unwrap();
    let (executable, chosen) = stripped(directory.path());
    let call = Call::new(executable).arg("plain");
    let (recorded, text) = complaint(&call, &["--routine", &format!("{chosen:#x}")]);
    assert!(text.is_empty() && total(&recorded) > 1000, "{text}");
    // Libraries have similar names to others.
    let (recorded, text) = complaint(&call, &["--routine", "xyzzy_chosen"]);
    assert!(text.contains("the executable is stripped") && text.lines().count() == 1, "{text}");
    assert_eq!(total(&recorded), 0);
    // No function of a library is near an address of the executable.
    let (_, text) = complaint(&call, &["--routine", "0x400001"]);
    assert!(text.contains("routine called 0x400001") && !text.contains("nearest"), "{text}");
}

#[test]
fn one_of_two_routines_that_does_not_exist() {
    let recorded = call(&["plain"]).recorded();
    let mut command = Command::new(trackway());
    command.args(["stat", "--routine", "chosen", "--routine", "chosne"]).arg(&recorded.path);
    let output = process::run(&mut command);
    let text = output.stderr_text();
    assert!(text.contains("called chosne (did you mean chosen") && text.lines().count() == 1, "{text}");
    assert!(output.stdout_text().contains(" chosen\n"));
}

#[test]
fn a_program_that_is_shorter_than_what_is_skipped() {
    for words in [&["plain"][..], &["threads"]] {
        let (recorded, text) = complaint(&call(words), &["--skip", "10G"]);
        assert_eq!(total(&recorded), 0);
        assert!(text.contains("--skip") && text.contains("nothing"), "{text}");
    }
}
