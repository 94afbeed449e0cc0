//! Recorded memory accesses are those that the program made. All addresses, sizes, directions and
//! values equal those of single-stepping; the listings equal the figures of Myers 2014; and values
//! are exact when threads race.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use acceptance::memory::{self, Access};
use acceptance::race::{Checker, Counts};
use acceptance::{Call, Data, ProcessOutput, RecordedCall, is_soak, process, say_not_tested, trackway};
use oracle::{Execution, StepOptions, single_step};
use trace::ThreadId;
use workloads::{Exit, Group, OracleProgram, Variant};

fn name(entry: &OracleProgram) -> String {
    format!("{} {:?} {}", entry.program.name, entry.arguments, entry.variant)
}

fn call(program: &str, variant: Variant, arguments: &[&str]) -> Call {
    let executable = workloads::build(program, variant).unwrap();
    Call::new(executable).args(arguments).environment(&[]).fixed_addresses()
}

/// Steps a call on one of the processors; the random bytes are chosen with it.
fn stepped(call: &Call, processor: usize) -> Execution {
    let random_bytes = Some([if processor == 0 { 0x5a } else { 0xa5 }; 16]);
    let processor = Some(processor);
    let options = StepOptions { memory: true, random_bytes, processor, ..StepOptions::default() };
    let mut command = call.command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    single_step(&mut command, &options).unwrap()
}

/// Whether a program is without a C library: everything in its memory is then the same in every
/// run.
fn is_freestanding(entry: &OracleProgram) -> bool {
    let executable = workloads::build(entry.program.name, entry.variant).unwrap();
    let bytes = std::fs::read(executable).unwrap();
    entry.variant == Variant::Static && !bytes.windows(17).any(|window| window == b"__libc_start_main")
}

fn finished(run: &Execution) -> ProcessOutput {
    let exit = match run.exit {
        oracle::Exit::Status(status) => Exit::Status(status),
        oracle::Exit::Signal(signal) => Exit::Signal(signal),
    };
    ProcessOutput { exit, stdout: run.stdout.clone(), stderr: run.stderr.clone() }
}

/// Records a call and compares it with `expected`, thread by thread.
fn compare(what: &str, call: &Call, expected: &Execution, accesses: &[Vec<Access>]) -> Vec<String> {
    let mut problems = Vec::new();
    for data in [Data::Addresses, Data::Values] {
        let recorded = call.clone().data(data).recorded();
        let what = format!("{what}, {}", data.name());
        let finished = finished(expected);
        if recorded.finished != finished {
            problems.push(format!("{what}: ended with {:?} instead of {finished:?}", recorded.finished));
        }
        let threads = recorded.trace.threads();
        if threads.len() != accesses.len() {
            problems.push(format!("{what}: {} threads instead of {}", threads.len(), accesses.len()));
            continue;
        }
        // Under single-stepping SIGTRAP does not stay blocked, and children in posix_spawn check
        // that.
        let comparable = if what.starts_with("spawn ") { 1 } else { usize::MAX };
        for (thread, expected) in threads.iter().zip(accesses).take(comparable) {
            let number = thread.info.thread;
            let ours = memory::recorded_accesses(&recorded.trace, number);
            let difference = memory::differences(&recorded.trace, &ours, expected, data);
            problems.extend(difference.map(|difference| format!("{what}, thread {number}: {difference}")));
        }
    }
    problems
}

/// Checks all of `work`, in as many threads as there are processors, and fails with a list of all
/// errors.
fn check_all(entries: &[OracleProgram], work: impl Fn(&OracleProgram) -> Vec<String> + Sync) {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut problems = Vec::new();
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            // If one cannot be recorded, the others are checked nevertheless.
            match catch_unwind(AssertUnwindSafe(|| work(entry))) {
                Ok(found) => problems.extend(found),
                Err(_) => problems.push(format!("{}: failed, see above", name(entry))),
            }
        }
        problems
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let problems: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(some)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(problems.is_empty(), "{} problems:\n\n{}", problems.len(), problems.join("\n"));
}

/// The features that this machine lacks according to a program, and that are therefore not tested.
fn lacking(stderr: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stderr);
    text.lines().filter_map(|line| line.strip_prefix("this machine has no ")).map(str::to_owned).collect()
}

/// Reports what was not tested.
fn say_what_is_lacking(features: &[String]) {
    features.iter().for_each(|feature| say_not_tested(&format!("this machine has no {feature}")));
}

/// Returns whether a program could use all features. Reports those that it lacks, and checks that
/// the processor really lacks them.
fn has_all_features(stderr: &[u8]) -> bool {
    let lacking = lacking(stderr);
    say_what_is_lacking(&lacking);
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    assert_eq!(lacking_wrongly(&lacking, &flags), [""; 0], "the processor has it");
    lacking.is_empty()
}

/// The name of a feature in /proc/cpuinfo.
fn flag(feature: &str) -> &str {
    match feature {
        "avx state" => "avx",
        "avx512 state" | "avx-512 state" => "avx512f",
        "avx512vbmi2" => "avx512_vbmi2",
        "cmpxchg16b" => "cx16",
        "lzcnt" => "abm",
        "sha" => "sha_ni",
        "sse3" => "pni",
        "sse4.1" => "sse4_1",
        "sse4.2" => "sse4_2",
        other => other,
    }
}

/// Features that the processor has although a program says that it lacks them: their cases were not
/// run.
fn lacking_wrongly<'f>(features: &'f [String], flags: &str) -> Vec<&'f str> {
    let has = |feature: &&str| flags.split_whitespace().any(|there| there == flag(feature));
    features.iter().map(String::as_str).filter(has).collect()
}

#[test]
fn a_case_that_the_processor_could_run_is_not_left_out() {
    let features = lacking(b"this machine has no avx-512 state\nelse\nthis machine has no sse4.1\n");
    assert_eq!(features, ["avx-512 state", "sse4.1"]);
    assert_eq!(lacking_wrongly(&features, "flags : fpu avx2 avx512f"), ["avx-512 state"]);
    assert_eq!(lacking_wrongly(&features, "flags : fpu avx2 avx512bw sse4_1"), ["sse4.1"]);
    assert_eq!(lacking_wrongly(&features, "flags : fpu avx2"), [""; 0]);
}

/// Programs without a C library: every access, every value.
#[test]
fn every_class_of_memory_instruction_is_recorded_in_full() {
    let entries: Vec<OracleProgram> = workloads::oracle_programs().into_iter().filter(is_freestanding).collect();
    let memory_count = entries.iter().filter(|entry| entry.program.group == Group::Memory).count();
    assert!(memory_count >= 14 && entries.len() >= 25, "the catalogue has lost programs: {}", entries.len());
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    assert!(flags.contains("sse2"), "/proc/cpuinfo does not list what the processor has");
    check_all(&entries, |entry| {
        let call = call(entry.program.name, entry.variant, entry.arguments);
        let run = stepped(&call, 0);
        let lacking = lacking(&run.stderr);
        say_what_is_lacking(&lacking);
        let wrongly = lacking_wrongly(&lacking, &flags);
        if !wrongly.is_empty() {
            return vec![format!("{}: did not use {wrongly:?}, which the processor has", name(entry))];
        }
        let accesses: Vec<Vec<Access>> =
            run.accesses.iter().map(|accesses| accesses.iter().map(Access::from).collect()).collect();
        compare(&name(entry), &call, &run, &accesses)
    });
}

/// Programs with a C library hold process numbers, times and random bytes in memory: a value that
/// differs between two single-stepped runs is not compared. Values are not compared either if there
/// are threads, because the kernel decides which comes first. Nor are values of saved contexts:
/// they hold addresses mangled with random bytes, and parts of the floating-point state that
/// processors lose at every stop.
#[test]
fn programs_with_a_c_library_are_recorded_in_full() {
    let mut entries = workloads::oracle_programs();
    let is_usual = |entry: &OracleProgram| entry.variant == entry.program.variants[0];
    // Most of the accesses of these programs are the dynamic linker's, so a few programs are
    // enough.
    let is_chosen = |entry: &OracleProgram| ["recursion", "signal_nested"].contains(&entry.program.name);
    entries.retain(|entry| !is_freestanding(entry) && (is_usual(entry) || is_chosen(entry)));
    assert!(entries.len() >= 25, "the catalogue has lost programs: {}", entries.len());
    check_all(&entries, |entry| {
        let call = call(entry.program.name, entry.variant, entry.arguments);
        let (run, other) = (stepped(&call, 0), stepped(&call, 1));
        let (threads, others) = (run.accesses.len(), other.accesses.len());
        if threads != others {
            return vec![format!("{}: {threads} threads in one run, {others} in another", name(entry))];
        }
        let threads = run.accesses.iter().zip(&other.accesses);
        let mut accesses: Vec<Vec<Access>> =
            threads.map(|(one, other)| memory::repeatable_accesses(&[one, other])).collect();
        if accesses.len() > 1 || entry.program.name == "jumps_and_contexts" {
            accesses.iter_mut().flatten().for_each(|access| access.value = None);
            return compare(&name(entry), &call, &run, &accesses);
        }
        let all = accesses.iter().flatten().count();
        let known = accesses.iter().flatten().filter(|access| access.value.is_some()).count();
        let mut problems = compare(&name(entry), &call, &run, &accesses);
        if known * 100 < all * 95 {
            problems.push(format!("{}: only {known} of {all} values are the same in two runs", name(entry)));
        }
        problems
    });
}

fn dump(recorded: &RecordedCall) -> Vec<String> {
    let finished = process::run(
        Command::new(trackway()).args(["dump", "--kind", "memory", "--format", "ascii"]).arg(&recorded.path),
    );
    assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
    finished.stdout_text().lines().map(str::to_owned).collect()
}

/// Checks that these lines are in the listing, in this order, perhaps with others in between.
fn assert_in_order(listing: &[String], lines: &[&str]) {
    let mut rest = listing.iter();
    for line in lines {
        assert!(rest.any(|found| found == line), "{line} is not there, or not in this order");
    }
}

/// Figure 4.18, without line 10: it has the instruction at 0x4005a7 load what is stored after it
/// (by 0x4005b1).
const FIGURE_4_18: [&str; 16] = [
    "0, S, 0x000000000040056a, 0x00007fff19df619c, 4, 0x00000000",
    "0, L, 0x00000000004005b8, 0x00007fff19df619c, 4, 0x00000000",
    "0, L, 0x000000000040057e, 0x00007fff19df619c, 4, 0x00000000",
    "0, S, 0x0000000000400587, 0x00007fff19df6180, 1, 0x00",
    "0, L, 0x0000000000400595, 0x00007fff19df619c, 4, 0x00000000",
    "0, S, 0x00000000004005a0, 0x00007fff19df6160, 1, 0x00",
    "0, L, 0x000000000040057e, 0x00007fff19df619c, 4, 0x00000001",
    "0, S, 0x0000000000400587, 0x00007fff19df6181, 1, 0x01",
    "0, L, 0x0000000000400595, 0x00007fff19df619c, 4, 0x00000001",
    "0, S, 0x00000000004005a0, 0x00007fff19df6161, 1, 0xff",
    "0, L, 0x00000000004005d1, 0x00007fff19df619c, 4, 0x00000001",
    "0, L, 0x00000000004005da, 0x00007fff19df6181, 1, 0x01",
    "0, L, 0x00000000004005eb, 0x00007fff19df6161, 1, 0xff",
    "0, L, 0x0000000000400604, 0x00007fff19df619c, 4, 0x00000002",
    "0, L, 0x00000000004005da, 0x00007fff19df6182, 1, 0x02",
    "0, L, 0x00000000004005eb, 0x00007fff19df6162, 1, 0xfe",
];

/// Figure 4.20.
const FIGURE_4_20: [&str; 17] = [
    "0, S, 0x0000000000400711, 0x00007fff1a03badc, 4, 0x00000000",
    "0, L, 0x0000000000400760, 0x00007fff1a03badc, 4, 0x00000000",
    "0, S, 0x000000000040072c, 0x00007fff1a03b91c, 4, 0x00000000",
    "0, L, 0x0000000000400730, 0x00007fff1a03b91c, 4, 0x00000000",
    "0, S, 0x000000000040074d, 0x00007fff1a03b980, 10, 0x00000000000000000000",
    "0, S, 0x0000000000400759, 0x00007fff1a03badc, 4, 0x00000001",
    "0, L, 0x0000000000400760, 0x00007fff1a03badc, 4, 0x00000001",
    "0, S, 0x000000000040072c, 0x00007fff1a03b91c, 4, 0x00000001",
    "0, L, 0x0000000000400730, 0x00007fff1a03b91c, 4, 0x00000001",
    "0, S, 0x000000000040074d, 0x00007fff1a03b990, 10, 0x3fff8000000000000000",
    "0, S, 0x000000000040076c, 0x00007fff1a03badc, 4, 0x00000000",
    "0, L, 0x00000000004007de, 0x00007fff1a03badc, 4, 0x00000000",
    "0, L, 0x000000000040079f, 0x00007fff1a03b980, 10, 0x00000000000000000000",
    "0, L, 0x00000000004007a1, 0x00007fff1a03badc, 4, 0x00000000",
    "0, S, 0x00000000004007a8, 0x00007fff1a03b91c, 4, 0x00000000",
    "0, L, 0x00000000004007ac, 0x00007fff1a03b91c, 4, 0x00000000",
    "0, S, 0x00000000004007cb, 0x00007fff1a03b980, 10, 0x00000000000000000000",
];

/// Figure 4.21, values as numbers instead of in memory order. Its third line has B's value at
/// 0x7fff30833de0, where B is not: the line before stores B at 0x7fff30833c00.
const FIGURE_4_21: [&str; 4] = [
    "0, S, 0x00000000004008ba, 0x00007fff1a03b960, 32, 0x3f800000400000004040000040800000_40a0000040c0000040e0000041000000",
    "0, S, 0x0000000000400986, 0x00007fff30833c00, 32, 0x400000004040000040800000_40a0000040c0000040e000004100000041100000",
    "0, L, 0x00000000004009b3, 0x00007fff30833c00, 32, 0x400000004040000040800000_40a0000040c0000040e000004100000041100000",
    "0, S, 0x00000000004009bc, 0x00007fff30833be0, 32, 0x40a00000411000004040000040e00000_41500000418800004130000041700000",
];

#[test]
fn mls_test_gives_figures_4_18_to_4_21() {
    let recorded = call("mlsTest", Variant::NoPie, &[]).data(Data::Values).recorded();
    assert_eq!(recorded.finished.stdout_text(), workloads::find("mlsTest").unwrap().runs[0].stdout);
    let lines = dump(&recorded);
    let own: Vec<String> = lines.into_iter().filter(|line| line.contains(", 0x00000000004")).collect();
    assert_in_order(&own, &FIGURE_4_18);
    assert_in_order(&own, &FIGURE_4_20);
    if has_all_features(&recorded.finished.stderr) {
        let figure = FIGURE_4_21.map(|line| line.replace('_', ""));
        assert_in_order(&own, &figure.each_ref().map(String::as_str));
    }
}

/// The sizes between, which the text has and the figures do not: the number of the element, negated
/// if it is odd.
#[test]
fn mls_test_has_all_sizes() {
    let recorded = call("mlsTest", Variant::NoPie, &[]).data(Data::Values).recorded();
    let accesses = memory::recorded_accesses(&recorded.trace, ThreadId::FIRST);
    let own: Vec<&Access> = accesses.iter().filter(|access| (0x40_04c4..0x40_0c00).contains(&access.pc)).collect();
    let mut sizes: BTreeSet<usize> = own.iter().map(|access| access.size).collect();
    if !has_all_features(&recorded.finished.stderr) {
        sizes.insert(32);
    }
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [1, 2, 4, 8, 10, 16, 32]);
    for (size, offset) in [(2, 0x20), (4, 0x50), (8, 0xa0)] {
        let array = 0x7fff_19df_5fc0 + offset..0x7fff_19df_5fc0 + offset + 17 * size;
        let elements: Vec<&&Access> = own.iter().filter(|access| array.contains(&access.address)).collect();
        assert_eq!(elements.len(), 34, "size {size}");
        for (i, access) in elements.into_iter().enumerate() {
            let number = i as i64 % 17;
            let value = if number % 2 == 0 { number } else { -number };
            let bytes = value.to_le_bytes()[..size as usize].to_vec();
            let expected = (array.start + number as u64 * size, i < 17, Some(bytes));
            assert_eq!((access.address, access.writes, access.value.clone()), expected, "size {size}");
        }
    }
}

/// Checks the accesses of a thread of `race` in a trace.
fn check_racer(recorded: &RecordedCall, thread: ThreadId) -> Counts {
    let mut checker = Checker::default();
    let mut wrong = Vec::new();
    memory::for_each(&recorded.trace, thread, |access, value| {
        let value = value.expect("values were recorded");
        if let Err(problem) = checker.look(access.address(), access.is_write(), value)
            && wrong.len() < 10
        {
            wrong.push(format!("at {:#x}: {problem}", access.pc()));
        }
    });
    assert!(wrong.is_empty(), "thread {thread}:\n{}", wrong.join("\n"));
    checker.counts
}

/// Two threads race on one word: about 20 million instructions, a billion when soaking.
#[test]
fn values_are_exact_when_threads_race() {
    let thousands: u64 = if is_soak() { 1_000_000 } else { 20_000 };
    let executable = workloads::build("race", Variant::Static).unwrap();
    let recorded = Call::new(executable).arg(thousands.to_string()).data(Data::Values).recorded();
    let rounds = thousands * 1000 / 1100 / 2;
    assert_eq!(recorded.finished.stdout_text(), format!("race: 2 threads, {rounds} rounds each\n"));
    let instructions = recorded.trace.summary().totals.instructions;
    assert!(instructions > thousands * 950, "{instructions} instructions");
    let mut foreign = 0;
    for thread in 1..=2 {
        let counts = check_racer(&recorded, ThreadId::new(thread));
        assert_eq!(counts.rounds, rounds);
        assert_eq!(counts.loads, rounds * LOADS);
        assert_eq!(counts.stores, rounds * STORES);
        assert_eq!(counts.results, rounds * RESULTS);
        foreign += counts.foreign;
    }
    assert!(foreign > 0, "the threads never met");
}

/// Accesses to the shared words in each round, and results in the thread's own memory; `rep movsb`
/// makes eight of each.
const LOADS: u64 = 35;
const STORES: u64 = 12;
const RESULTS: u64 = 28;

/// A race of one thread, single-stepped: all values follow from the loads, and a changed value is
/// detected.
#[test]
fn the_checker_of_races_takes_what_is_true_and_nothing_else() {
    let run = stepped(&call("race", Variant::Static, &["50", "1"]), 0);
    let accesses = &run.accesses[1];
    let mut checker = Checker::default();
    for access in accesses {
        checker.look(access.address, access.writes, &access.value).unwrap();
    }
    let Counts { rounds, loads, stores, results, foreign } = checker.counts;
    assert_eq!((rounds, foreign), (45, 0));
    assert_eq!((loads, stores, results), (rounds * LOADS, rounds * STORES, rounds * RESULTS));

    let shared = acceptance::race::SHARED..acceptance::race::SHARED + 16;
    let own = acceptance::race::OWN..acceptance::race::OWN + 4096;
    let matters = |access: &&oracle::Access| shared.contains(&access.address) || own.contains(&access.address);
    let some: Vec<&oracle::Access> = accesses.iter().filter(matters).take(400).collect();
    let (mut noticed, mut unnoticed) = (0, BTreeSet::new());
    for changed in 0..300 {
        let mut checker = Checker::default();
        let result = some.iter().enumerate().try_for_each(|(number, access)| {
            let mut value = access.value.clone();
            value[0] ^= u8::from(number == changed) << 2;
            checker.look(access.address, access.writes, &value)
        });
        match result {
            Ok(()) => _ = unnoticed.insert(some[changed].pc),
            Err(_) => noticed += 1,
        }
    }
    // A plain store of an unknown value; a load that is not moved; a comparison whose outcome stays
    // the same.
    assert!(noticed > 260, "{noticed} of 300 changes were noticed, but not those at {unnoticed:x?}");
}
