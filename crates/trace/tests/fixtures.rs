//! Traces that were written by the recorder of each format version are read as what they were
//! recorded from.

use std::path::{Path, PathBuf};

use trackway_trace::{AccessKind, DataMode, Event, Exit, Step, Terminator, ThreadId, Trace};

/// Where the traces are, and what was executed: see the README there.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn open(name: &str) -> Trace {
    let trace = Trace::open(&fixture(name)).unwrap();
    let report = trace.verify();
    assert_eq!(report.problems, Vec::<String>::new(), "{name}");
    assert_eq!((&report.counts, trace.exit()), (trace.totals(), Exit::Code(0)), "{name}");
    assert!(trace.is_finished() && trace.damage().is_empty(), "{name}");
    trace
}

/// The format version in the file header.
fn version(name: &str) -> u16 {
    let file = std::fs::read(fixture(name)).unwrap();
    u16::from_le_bytes([file[8], file[9]])
}

fn class(terminator: Terminator) -> Option<&'static str> {
    match terminator {
        Terminator::Taken => Some("CDT"),
        Terminator::NotTaken => Some("CDNT"),
        Terminator::Direct => Some("UDT"),
        Terminator::Indirect => Some("UIT"),
        Terminator::Syscall | Terminator::Next | Terminator::Interrupted => None,
    }
}

/// The branches of a trace, in the form of `branches.txt`.
fn branches(trace: &Trace) -> String {
    let mut lines = String::new();
    for thread in trace.threads() {
        let number = thread.info.thread;
        let mut steps = trace.steps(number).unwrap();
        while let Some(batch) = steps.next_batch().unwrap() {
            lines.extend(batch.steps().iter().filter_map(|step| branch(trace, number, step)));
        }
    }
    lines
}

fn branch(trace: &Trace, thread: ThreadId, step: &Step) -> Option<String> {
    let class = class(step.terminator())?;
    let block = trace.blocks().get(step.block())?;
    let target = match block.transfer() {
        isa::Transfer::Conditional { target } => target,
        _ => step.next(),
    };
    Some(format!("{thread} {:x} {target:x} {class}\n", block.last()))
}

/// The accesses of a trace, in the form of `accesses.txt`.
fn accesses(trace: &Trace) -> String {
    let mut lines = String::new();
    for thread in trace.threads() {
        let number = thread.info.thread;
        let mut steps = trace.steps_with_accesses(number).unwrap();
        while let Some(batch) = steps.next_batch().unwrap() {
            for access in batch.accesses() {
                let mut value = [0; 8];
                let bytes = batch.value(&access).unwrap();
                value[..bytes.len()].copy_from_slice(bytes);
                let kind = if access.kind() == AccessKind::Write { 'S' } else { 'L' };
                let (pc, address, size) = (access.pc(), access.address(), access.size());
                let value = u64::from_le_bytes(value);
                lines += &format!("{number} {kind} {pc:x} {address:x} {size} {value:x}\n");
            }
        }
    }
    lines
}

/// The numbers of the system calls and signals of a thread, a signal as a negative number.
fn events(trace: &Trace, thread: ThreadId) -> Vec<i64> {
    let items = trace.steps(thread).unwrap().map(Result::unwrap);
    let events = items.filter_map(|item| match item {
        trackway_trace::Item::Event(Event::Syscall { number, .. }) => Some(i64::from(number)),
        trackway_trace::Item::Event(Event::Signal { signal, .. }) => Some(-i64::from(signal)),
        _ => None,
    });
    events.collect()
}

fn check(name: &str, expected_version: u16) -> Trace {
    assert_eq!(version(name), expected_version, "{name}");
    let trace = open(name);
    let counts = trace.totals();
    assert_eq!((counts.instructions, counts.steps, counts.branches()), (146, 58, 42), "{name}");
    assert_eq!((counts.conditional_taken, counts.conditional_not_taken), (6, 10), "{name}");
    assert_eq!((counts.unconditional_direct, counts.unconditional_indirect), (9, 17), "{name}");
    assert_eq!((counts.system_calls, counts.signals, trace.threads().len()), (16, 2, 2), "{name}");
    assert_eq!(branches(&trace), std::fs::read_to_string(fixture("branches.txt")).unwrap(), "{name}");
    // SIGUSR1 behind kill; SIGALRM in read, which is made again.
    let expected = [13, 39, 62, -10, 15, 22, 13, 38, 0, -14, 1, 15, 0, 56, 202, 59, 60];
    assert_eq!(events(&trace, ThreadId::FIRST), expected, "{name}");
    assert_eq!(events(&trace, ThreadId::new(1)), [60], "{name}");
    assert_eq!(trace.recording().command, ["/transfers"], "{name}");
    assert_eq!(trace.modules().iter().filter(|mapped| mapped.module.path == "/transfers").count(), 2, "{name}");
    trace
}

#[test]
fn version_1_is_read() {
    assert_eq!(check("version-1.trk", 1).data(), DataMode::None);
}

#[test]
fn version_2_is_read() {
    assert_eq!(check("version-2.trk", 2).data(), DataMode::None);
    let trace = check("version-2-values.trk", 2);
    assert_eq!((trace.data(), trace.totals().reads, trace.totals().writes), (DataMode::Values, 21, 9));
    assert_eq!(accesses(&trace), std::fs::read_to_string(fixture("accesses.txt")).unwrap());
}

/// The allocations of a trace, in the form of `allocations.txt`.
fn allocations(trace: &Trace) -> String {
    let hexadecimal = |numbers: &mut dyn Iterator<Item = u64>| {
        numbers.map(|number| format!("{number:x}")).collect::<Vec<_>>().join(" ")
    };
    let mut lines = String::new();
    for item in trace.steps(ThreadId::FIRST).unwrap() {
        let trackway_trace::Item::Event(event) = item.unwrap() else { continue };
        lines += &match event {
            Event::RoutineEnter { call, .. } => {
                let stack = hexadecimal(&mut trace.call_stack(call.stack).map(|address| address.get()));
                let arguments = hexadecimal(&mut call.arguments.into_iter());
                assert_eq!(trace.call_stack(call.stack).next(), Some(call.caller));
                format!("enter {} {arguments}: {stack}\n", call.routine)
            }
            Event::RoutineReturn { routine, value, .. } => format!("return {routine} {value:x}\n"),
            Event::Mapping { call, .. } => {
                let [first, second, _] = call.arguments;
                assert_eq!(trace.call_stack(call.stack).count(), 0, "nothing was called");
                format!("{} {first:x} {second:x} {:x} {}\n", call.name(), call.result, call.is_nested)
            }
            _ => continue,
        };
    }
    lines
}

#[test]
fn version_3_is_read() {
    assert_eq!(check("version-3.trk", 3).data(), DataMode::None);
    let trace = open("version-3-allocations.trk");
    assert_eq!(version("version-3-allocations.trk"), 3);
    assert_eq!(allocations(&trace), std::fs::read_to_string(fixture("allocations.txt")).unwrap());
}

/// The newest version has a trace, too: a change of the format has to add one.
#[test]
fn every_version_has_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new.trk");
    trackway_trace::Writer::create(&path, &trackway_trace::Recording::default())
        .unwrap()
        .finish(Exit::Code(0))
        .unwrap();
    let file = std::fs::read(&path).unwrap();
    let newest = u16::from_le_bytes([file[8], file[9]]);
    for number in 1..=newest {
        assert_eq!(version(&format!("version-{number}.trk")), number);
    }
}
