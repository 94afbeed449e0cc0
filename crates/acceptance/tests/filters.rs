//! What the filters of mTrace leave is enough to know the rest: of every thread of real recordings, with signals, races and a kernel that
//! writes to memory, each step and each load comes back from the mirror image.

use acceptance::{Call, Data, Recorded, trackway};
use cache::{Cover, Geometry, Replacement};
use filter::cfiat::{Shape, Trust};
use filter::traptor::{Counting, Sizes};
use mtrace::loads::Invalidation;
use mtrace::{Sharing, flow, loads};
use trace::Trace;
use workloads::Variant;

const EITHER: [Sharing; 2] = [Sharing::Private, Sharing::Shared];

fn record(name: &str, arguments: &[&str]) -> Recorded {
    let program = workloads::build(name, Variant::Pie).unwrap();
    Call::new(program).args(arguments).data(Data::Values).recorded()
}

fn flow_settings(sharing: Sharing, entries: usize) -> flow::Settings {
    let sizes = Sizes { gshare: 16 * entries, ras: entries.min(64), ibtb: entries, ..Sizes::default() };
    flow::Settings { sizes, counting: Counting::FromOne, sharing }
}

fn load_settings(sharing: Sharing, trust: Trust) -> loads::Settings {
    let shape = Shape {
        geometry: Geometry::new(4096, 32, 4).unwrap(),
        replacement: Replacement::RoundRobin,
        granularity: 4,
        cover: Cover::Whole,
        trust,
    };
    loads::Settings { shape, sharing, invalidation: Invalidation { threads: true, kernel: false }, coherent: false }
}

/// Both filters with structures of both kinds, compared with what the trace itself has counted.
fn check(trace: &Trace) {
    let totals = trace.totals();
    for sharing in EITHER {
        for entries in [0, 2, 64] {
            let checked = flow::check(trace, &flow_settings(sharing, entries)).unwrap();
            assert_eq!((checked.wrong, &checked.problems[..]), (0, &[][..]), "{sharing:?}, {entries} entries");
            assert_eq!(checked.right, totals.steps);
            let statistics = checked.statistics;
            assert_eq!(statistics.instructions, totals.instructions);
            let conditional = totals.conditional_taken + totals.conditional_not_taken;
            assert_eq!(statistics.outcomes_predicted + statistics.outcomes_mispredicted, conditional);
            let told = statistics.outcomes_mispredicted + statistics.targets_mispredicted + statistics.exceptions;
            assert_eq!((checked.messages, statistics.gaps), (told, 0));
        }
        let checked = loads::check(trace, &load_settings(sharing, Trust::Values)).unwrap();
        assert_eq!((checked.wrong, &checked.problems[..]), (0, &[][..]), "{sharing:?}");
        assert_eq!(checked.right, totals.reads);
        let total = checked.statistics.all_loads();
        assert_eq!(total.references(), totals.reads);
        assert_eq!(checked.statistics.all_stores().references(), totals.writes);
        assert_eq!(total.cache_misses + total.flag_misses, checked.messages);
    }
}

#[test]
fn threads_that_share_memory() {
    for (name, size) in [("radiosity", "1"), ("cholesky", "10"), ("raytrace", "16")] {
        let recorded = record(name, &["4", size]);
        assert_eq!(recorded.trace.threads().len(), 4);
        check(&recorded.trace);
    }
}

/// What is told of each thread, in order: as batches, and as it is read.
fn told(trace: &Trace, settings: &loads::Settings, as_read: bool) -> Vec<(u32, u64, Vec<u8>)> {
    let mut filter = loads::Filter::new(settings).unwrap();
    let mut merged = trace.merged_with_accesses().unwrap();
    let mut all = Vec::new();
    let mut tell = |told: loads::Told<'_>| all.push((told.thread, told.hits, told.value.to_vec()));
    if as_read {
        while merged.watch_next(|thread| filter.watch(thread, &mut tell)).unwrap() {}
    } else {
        while let Some(batch) = merged.next_batch().unwrap() {
            filter.batch(batch, &mut tell);
        }
    }
    // Threads may come in longer turns.
    all.sort_by_key(|&(thread, ..)| thread);
    all
}

#[test]
fn both_ways_through_the_filter_tell_the_same() {
    for (name, arguments) in
        [("raytrace", &["3", "8"][..]), ("signal_nested", &[]), ("memory_strings", &[]), ("memory_state", &[])]
    {
        let variant = workloads::find(name).unwrap().variants[0];
        let program = workloads::build(name, variant).unwrap();
        let recorded = Call::new(program).args(arguments).data(Data::Values).recorded();
        for kernel in [false, true] {
            let invalidation = Invalidation { threads: false, kernel };
            let settings = loads::Settings { invalidation, ..load_settings(Sharing::Private, Trust::Values) };
            // What one thread's system call makes all forget depends on the order.
            if !kernel || recorded.trace.threads().len() == 1 {
                let (one, other) = (told(&recorded.trace, &settings, false), told(&recorded.trace, &settings, true));
                assert!(one == other && !one.is_empty(), "{name}");
            }
        }
    }
}

#[test]
fn an_interpreter() {
    let recorded =
        Call::new("perl").args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]).data(Data::Values);
    check(&recorded.recorded().trace);
}

/// The kernel writes to memory that was loaded before; flags alone do not notice.
#[test]
fn flags_alone_are_not_enough() {
    let recorded = Call::new("cat").arg("/proc/self/maps").data(Data::Values).recorded();
    let wrong = |trust| loads::check(&recorded.trace, &load_settings(Sharing::Private, trust)).unwrap().wrong;
    assert_eq!(wrong(Trust::Values), 0);
    let shell = Call::new("bash").args(["-c", "while read line; do echo $line; done < /etc/passwd"]).data(Data::Values);
    let shell = shell.recorded();
    let checked = loads::check(&shell.trace, &load_settings(Sharing::Private, Trust::Flags)).unwrap();
    assert!(checked.wrong > 0, "the buffer of read is written again and again");
}

#[test]
fn the_command_says_so() {
    let recorded = record("radiosity", &["3", "1"]);
    for (filter, shown) in [("mcfTRaptor", "all steps come back"), ("mlvCFiat", "all loads come back")] {
        for shared in [&[][..], &["--shared"]] {
            let mut command = std::process::Command::new(trackway());
            command.args(["verify", "--filter", filter]).args(shared).arg(&recorded.path);
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && text.contains(shown), "{text}");
        }
    }
}
