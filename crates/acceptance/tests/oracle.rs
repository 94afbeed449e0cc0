//! The recorded execution is the real one. For every repeatable program, all recorded instruction
//! addresses of each thread equal those of single-stepping. System calls, signals, threads and
//! modules are those that are observed from outside.

use std::collections::HashSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use acceptance::listing::{self, Listing};
use acceptance::witness::{self, ObservedEvent};
use acceptance::{Call, RecordedCall};
use oracle::{Execution, StepOptions, single_step};
use trace::{AppPc, Event, ThreadId, Tsc};
use workloads::{Exit, OracleProgram};

/// Programs with code that is in no file.
const MAKES_CODE: [&str; 2] = ["code_changes", "code_everywhere"];

/// Programs whose children check whether SIGTRAP is blocked, as the C library does in posix_spawn.
/// Under single-stepping it is not blocked.
const LOOKS_AT_TRAPS: [&str; 1] = ["spawn"];

/// Programs whose children share their memory until they call exec, and how many there are. They
/// are recorded as threads and single-stepped, but the witness does not observe child processes.
const UNSEEN: [(&str, usize); 2] = [("spawn", 3), ("vfork_exec", 3)];

fn name(entry: &OracleProgram) -> String {
    format!("{} {:?} {}", entry.program.name, entry.arguments, entry.variant)
}

/// All calls of the usual variant of every repeatable program, one of each further variant.
fn entries() -> Vec<OracleProgram> {
    let calls = |entry: OracleProgram| {
        let is_usual = entry.variant == entry.program.variants[0];
        let count = if is_usual { entry.program.runs.len() } else { 1 };
        entry.program.runs[..count].iter().map(move |run| OracleProgram { arguments: run.arguments, ..entry })
    };
    workloads::oracle_programs().into_iter().flat_map(calls).collect()
}

fn call(entry: &OracleProgram) -> Call {
    let executable = workloads::build(entry.program.name, entry.variant).unwrap();
    Call::new(executable).args(entry.arguments).environment(&[]).fixed_addresses()
}

/// The call with the same standard streams that a recorded one has.
fn command(call: &Call) -> Command {
    let mut command = call.command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stepped(call: &Call) -> Execution {
    single_step(&mut command(call), &StepOptions::default()).unwrap()
}

/// Checks one program in every way. Returns a description of each error.
fn problems_of(entry: &OracleProgram) -> Vec<String> {
    let call = call(entry);
    let expected = stepped(&call);
    let recorded = call.recorded();
    let listings = listing::of_trace(&recorded.trace);
    let mut problems = Vec::new();
    problems.extend(end_differs(&recorded, &expected));
    let comparable = if LOOKS_AT_TRAPS.contains(&entry.program.name) { 1 } else { usize::MAX };
    problems.extend(addresses_differ(&recorded, &listings, &expected, comparable));
    let unseen = UNSEEN.iter().find(|(name, _)| *name == entry.program.name).map_or(0, |&(_, count)| count);
    problems.extend(happenings_differ(&listings, &witness::watch(&mut command(&call)), unseen));
    problems
        .extend(listings.iter().enumerate().filter_map(|(thread, listing)| ends_are_odd(&recorded, thread, listing)));
    problems.extend(children_differ(&recorded, &listings));
    if !MAKES_CODE.contains(&entry.program.name) {
        problems.extend(code_differs(&recorded));
    }
    problems.into_iter().map(|problem| format!("{}: {problem}", name(entry))).collect()
}

fn end_differs(recorded: &RecordedCall, expected: &Execution) -> Option<String> {
    let expected_exit = match expected.exit {
        oracle::Exit::Status(status) => Exit::Status(status),
        oracle::Exit::Signal(signal) => Exit::Signal(signal),
    };
    let finished = &recorded.finished;
    let same =
        finished.exit == expected_exit && finished.stdout == expected.stdout && finished.stderr == expected.stderr;
    (!same).then(|| {
        format!("ended with {finished:?} instead of {expected_exit} {:?}", String::from_utf8_lossy(&expected.stdout))
    })
}

/// Compares the addresses of the first `comparable` threads.
fn addresses_differ(
    recorded: &RecordedCall,
    listings: &[Listing],
    expected: &Execution,
    comparable: usize,
) -> Vec<String> {
    if listings.len() != expected.threads.len() {
        return vec![format!("{} threads instead of {}", listings.len(), expected.threads.len())];
    }
    let threads = listings.iter().zip(&expected.threads).enumerate().take(comparable);
    let differences = threads.filter_map(|(thread, (listing, expected))| {
        let difference = listing::first_difference(&recorded.trace, listing, expected)?;
        Some(format!("thread {thread}: {difference}"))
    });
    differences.collect()
}

/// The events of a listing that the witness observes, too.
fn events(listing: &Listing) -> Vec<ObservedEvent> {
    let seen = listing.events.iter().filter_map(|&(_, event)| match event {
        Event::Syscall { number, .. } => Some(ObservedEvent::Call(u64::from(number))),
        Event::Signal { signal, pc, handler, .. } if signal != 0 => {
            Some(ObservedEvent::Signal { signal: i32::from(signal), pc: pc.get(), handler: handler.get() })
        }
        _ => None,
    });
    seen.collect()
}

/// A thread that another one kills has no event for that; the exit of the trace shows it.
fn without_kill(events: &[ObservedEvent]) -> &[ObservedEvent] {
    const ITS_OWN_DOING: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    match events {
        [before @ .., ObservedEvent::Signal { signal, handler: 0, .. }] if !ITS_OWN_DOING.contains(signal) => before,
        all => all,
    }
}

/// Compares the events of each thread. The last `unseen` threads are not observed from outside.
fn happenings_differ(listings: &[Listing], expected: &[Vec<ObservedEvent>], unseen: usize) -> Vec<String> {
    if listings.len() != expected.len() + unseen {
        let (recorded, seen) = (listings.len(), expected.len());
        return vec![format!("{recorded} threads recorded, {seen} seen from outside instead of all but {unseen}")];
    }
    let threads = listings.iter().zip(expected).enumerate();
    let differences = threads.filter_map(|(thread, (listing, expected))| {
        let (ours, expected) = (events(listing), without_kill(expected));
        let place = ours.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(ours.len().min(expected.len()));
        let around = |list: &[ObservedEvent]| {
            format!("{:x?}", &list[place.saturating_sub(3).min(list.len())..list.len().min(place + 3)])
        };
        (ours != expected).then(|| {
            format!(
                "thread {thread}: event {place} differs ({} recorded, {} expected)\nrecorded {}\nexpected {}",
                ours.len(),
                expected.len(),
                around(&ours),
                around(expected)
            )
        })
    });
    differences.collect()
}

/// A thread starts where its first instruction is and ends once, with the last of its events.
fn ends_are_odd(recorded: &RecordedCall, thread: usize, listing: &Listing) -> Option<String> {
    let starts_right = match listing.events.first() {
        Some(&(0, Event::Start { pc, .. })) => listing.addresses.first() == Some(&pc.get()),
        _ => false,
    };
    let ends_right = match (recorded.finished.exit, listing.events.last()) {
        (_, Some((before, Event::End { .. }))) => *before == listing.addresses.len(),
        (Exit::Signal(killer), Some(&(before, Event::Signal { handler: AppPc::NONE, signal, .. }))) => {
            killer == i32::from(signal) && before == listing.addresses.len()
        }
        // Killed in (or by) its last system call.
        (Exit::Signal(_), Some(&(before, Event::Syscall { .. }))) => before == listing.addresses.len(),
        _ => false,
    };
    let (first, last) = (listing.events.first(), listing.events.last());
    (!starts_right || !ends_right).then(|| format!("thread {thread} starts with {first:x?} and ends with {last:x?}"))
}

/// Each thread but the first was announced by another one, under the same numbers.
fn children_differ(recorded: &RecordedCall, listings: &[Listing]) -> Option<String> {
    let threads = recorded.trace.threads();
    let created: HashSet<(ThreadId, ThreadId, u32)> = threads
        .iter()
        .filter_map(|thread| Some((thread.info.parent?, thread.info.thread, thread.info.os_tid)))
        .collect();
    let announced = threads.iter().zip(listings).flat_map(|(parent, listing)| {
        listing.events.iter().filter_map(|&(_, event)| match event {
            Event::Child { thread, os_tid } => Some((parent.info.thread, thread, os_tid)),
            _ => None,
        })
    });
    let announced: HashSet<_> = announced.collect();
    let complete = created.len() == threads.len() - 1 && created == announced;
    (!complete).then(|| format!("(parent, thread, os tid): {created:?} exist and {announced:?} were announced"))
}

/// Every block lies in a module, and its bytes are those of the module's file.
fn code_differs(recorded: &RecordedCall) -> Option<String> {
    let trace = &recorded.trace;
    let mut files = std::collections::HashMap::new();
    for block in trace.blocks().iter() {
        let module = trace.modules().iter().find(|mapped| {
            let module = &mapped.module;
            let range = module.address..module.address + module.length;
            mapped.image == block.image() && range.contains(&block.address().get())
        });
        let Some(module) = module.map(|mapped| &mapped.module) else {
            return Some(format!("the block at {:#x} is in no module", block.address()));
        };
        if !module.path.starts_with('/') {
            continue;
        }
        let file = files.entry(&module.path).or_insert_with(|| fs::read(&module.path).unwrap());
        let offset = (block.address().get() - module.address + module.file_offset) as usize;
        if file.get(offset..offset + block.code().len()) != Some(block.code()) {
            return Some(format!("the block at {:#x} is not what {} has at {offset:#x}", block.address(), module.path));
        }
    }
    None
}

/// A comparison that loses a thread, or the end of one, does not pass.
#[test]
fn missing_threads_and_events_are_noticed() {
    let event = Event::Syscall { number: 1, tsc: Tsc::NONE };
    let listing = Listing { events: vec![(0, event)], ..Listing::default() };
    let call = ObservedEvent::Call(1);
    let differ =
        |listings: &[Listing], expected: &[Vec<ObservedEvent>]| !happenings_differ(listings, expected, 0).is_empty();
    let one = std::slice::from_ref(&listing);
    assert!(!differ(one, &[vec![call]]));
    assert!(differ(&[], &[vec![call]]), "a thread was not recorded");
    assert!(differ(one, &[vec![call], vec![call]]), "a thread was not recorded");
    assert!(differ(one, &[]), "a thread was not seen");
    assert!(differ(one, &[vec![call, call]]), "an event was not recorded");
    assert!(differ(one, &[vec![]]), "an event was not seen");
    assert!(happenings_differ(&[listing.clone(), listing.clone()], &[vec![call]], 1).is_empty());
    assert!(!happenings_differ(one, &[vec![call]], 1).is_empty(), "a thread that is not seen was not recorded");
}

/// Checks all programs, in as many threads as there are processors, and lists all errors.
#[test]
fn every_repeatable_program_is_recorded_as_it_is_executed() {
    let entries = entries();
    assert!(entries.len() >= 40, "the catalogue has lost programs: {}", entries.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut problems = Vec::new();
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            problems.extend(problems_of(entry));
        }
        problems
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let problems: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(problems.is_empty(), "{} problems:\n\n{}", problems.len(), problems.join("\n"));
}
