//! The messages of mTrace's filters suffice: over real recordings, with signals, races and a kernel
//! that writes to memory, the decoder rebuilds each step and each load of every thread.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;

use acceptance::{Call, Data, RecordedCall, trackway};
use cache::{FlagCoverage, Geometry, Replacement};
use filter::cfiat::{CfiatConfig, KnownCriterion};
use filter::traptor::{CountStart, PredictorSizes};
use mtrace::flow;
use replay::loads::Invalidation;
use replay::{Interleaving, Sharing, loads};
use trace::{Batch, Event, Item, RoundRobinUnit, ThreadId, Trace};
use workloads::Variant;

const ALL: [Sharing; 3] = [
    Sharing::Private,
    Sharing::Shared(Interleaving::ByTime),
    Sharing::Shared(Interleaving::RoundRobin(NonZeroU64::MIN)),
];

fn record(name: &str, arguments: &[&str]) -> RecordedCall {
    let program = workloads::build(name, Variant::Pie).unwrap();
    Call::new(program).args(arguments).data(Data::Values).recorded()
}

fn flow_settings(sharing: Sharing, entries: usize) -> flow::FlowSettings {
    let sizes =
        PredictorSizes { gshare: 16 * entries, ras: entries.min(64), ibtb: entries, ..PredictorSizes::default() };
    flow::FlowSettings { sizes, count_start: CountStart::FromOne, sharing }
}

fn load_settings(sharing: Sharing, known_by: KnownCriterion) -> loads::LoadSettings {
    let cfiat = CfiatConfig {
        geometry: Geometry::new(4096, 32, 4).unwrap(),
        replacement: Replacement::RoundRobin,
        granularity: 4,
        cover: FlagCoverage::Whole,
        known_by,
    };
    loads::LoadSettings { cfiat, sharing, invalidation: Invalidation { threads: true, kernel: false }, coherent: false }
}

/// Both filters, with private and with shared structures, compared with the counts of the trace.
fn check(trace: &Trace) {
    let totals = trace.totals();
    for sharing in ALL {
        for entries in [0, 2, 64] {
            let checked = flow::check(trace, &flow_settings(sharing, entries)).unwrap();
            assert_eq!((checked.mismatches, &checked.problems[..]), (0, &[][..]), "{sharing:?}, {entries} entries");
            assert_eq!(checked.matches, totals.steps);
            let statistics = checked.statistics;
            assert_eq!(statistics.instructions, totals.instructions);
            let conditional = totals.conditional_taken + totals.conditional_not_taken;
            assert_eq!((statistics.conditional(), statistics.indirect()), (conditional, totals.unconditional_indirect));
            let reported = statistics.outcomes_mispredicted + statistics.targets_mispredicted + statistics.exceptions;
            assert_eq!((checked.messages, statistics.gaps), (reported, 0));
        }
        let checked = mtrace::loads::check(trace, &load_settings(sharing, KnownCriterion::Values)).unwrap();
        assert_eq!((checked.mismatches, &checked.problems[..]), (0, &[][..]), "{sharing:?}");
        assert_eq!(checked.matches, totals.reads);
        let total = checked.statistics.all_loads();
        assert_eq!(total.references(), totals.reads);
        assert_eq!(checked.statistics.all_stores().references(), totals.writes);
        assert_eq!(total.cache_misses + total.flag_misses, checked.messages);
    }
}

#[test]
fn filters_decode_threads_that_share_memory() {
    for (name, size) in [("radiosity", "1"), ("cholesky", "10"), ("raytrace", "16")] {
        let recorded = record(name, &["4", size]);
        assert_eq!(recorded.trace.threads().len(), 4);
        check(&recorded.trace);
    }
}

/// The reported loads of all threads, in order: from batches, or while the trace is read.
fn reported(trace: &Trace, settings: &loads::LoadSettings, as_read: bool) -> Vec<(ThreadId, u64, Vec<u8>)> {
    let mut filter = loads::LoadFilter::new(settings).unwrap();
    let mut merged = trace.merged_with_accesses().unwrap();
    let mut all = Vec::new();
    let mut report =
        |reported: loads::ReportedLoad<'_>| all.push((reported.thread, reported.hits, reported.value.to_vec()));
    if as_read {
        while merged.visit_next(|thread| filter.watch(thread, &mut report)).unwrap() {}
    } else {
        while let Some(batch) = merged.next_batch().unwrap() {
            filter.batch(batch, &mut report);
        }
    }
    // Threads may have longer turns.
    all.sort_by_key(|&(thread, ..)| thread);
    all
}

#[test]
fn batches_and_visits_give_the_same_messages() {
    for (name, arguments) in
        [("raytrace", &["3", "8"][..]), ("signal_nested", &[]), ("memory_strings", &[]), ("memory_state", &[])]
    {
        let variant = workloads::find(name).unwrap().variants[0];
        let program = workloads::build(name, variant).unwrap();
        let recorded = Call::new(program).args(arguments).data(Data::Values).recorded();
        for kernel in [false, true] {
            let invalidation = Invalidation { threads: false, kernel };
            let settings =
                loads::LoadSettings { invalidation, ..load_settings(Sharing::Private, KnownCriterion::Values) };
            // A system call of one thread clears the flags of all threads, so the result depends on
            // the order.
            if !kernel || recorded.trace.threads().len() == 1 {
                let (one, other) =
                    (reported(&recorded.trace, &settings, false), reported(&recorded.trace, &settings, true));
                assert!(one == other && !one.is_empty(), "{name}");
            }
        }
    }
}

/// Figure 3.7 of Tewar 2015 (and 3.4 of Myers 2014), as printed: a cache of a thread, as a list of
/// lines for each set.
struct ModelCache {
    sets: Vec<Vec<Option<ModelLine>>>,
    /// The way of each set that the next new line takes.
    victims: Vec<usize>,
    hits: u64,
}

#[derive(Clone)]
struct ModelLine {
    number: u64,
    flags: Vec<bool>,
}

/// The cache of [`load_settings`]; an access sets all flags whose bytes it touches.
const SETS: usize = 32;
const WAYS: usize = 4;
const LINE_BYTES: u64 = 32;
const FLAG_BYTES: u64 = 4;

impl ModelCache {
    fn new() -> Self {
        Self { sets: vec![vec![None; WAYS]; SETS], victims: vec![WAYS - 1; SETS], hits: 0 }
    }

    fn set(line: u64) -> usize {
        (line % SETS as u64) as usize
    }

    fn find(&mut self, line: u64) -> Option<&mut ModelLine> {
        self.sets[Self::set(line)].iter_mut().flatten().find(|own| own.number == line)
    }

    fn bring_in(&mut self, line: u64) {
        let set = Self::set(line);
        let way = self.victims[set];
        self.victims[set] = (way + WAYS - 1) % WAYS;
        self.sets[set][way] = Some(ModelLine { number: line, flags: vec![false; (LINE_BYTES / FLAG_BYTES) as usize] });
    }

    /// Sets the flags of an operand, line by line. Returns whether all were set before.
    fn access(&mut self, address: u64, bytes: u64) -> bool {
        let mut is_known = true;
        for line in address / LINE_BYTES..=(address + bytes - 1) / LINE_BYTES {
            if self.find(line).is_none() {
                self.bring_in(line);
            }
            let own = self.find(line).unwrap();
            for (place, flag) in own.flags.iter_mut().enumerate() {
                let first = line * LINE_BYTES + place as u64 * FLAG_BYTES;
                if first < address + bytes && address < first + FLAG_BYTES {
                    is_known &= *flag;
                    *flag = true;
                }
            }
        }
        is_known
    }

    /// Line 17: an external write.
    fn invalidate(&mut self, address: u64, bytes: u64) {
        for line in address / LINE_BYTES..=(address + bytes - 1) / LINE_BYTES {
            if let Some(own) = self.find(line) {
                own.flags.fill(false);
            }
        }
    }
}

/// A block of a thread: the threads that are created before it, and its loads and stores.
struct ModelBlock {
    created: Vec<ThreadId>,
    accesses: Vec<(u64, bool, Vec<u8>)>,
}

/// The blocks of a thread.
fn model_blocks(trace: &Trace, thread: ThreadId) -> VecDeque<ModelBlock> {
    let (mut blocks, mut created) = (VecDeque::new(), Vec::new());
    let mut steps = trace.steps_with_accesses(thread).unwrap();
    while let Some(batch) = steps.next_batch().unwrap() {
        for (item, accesses) in batch.items_with_accesses() {
            let own = accesses.map(|access| {
                let value = batch.value(&access).unwrap().to_vec();
                (access.address(), access.is_write(), value)
            });
            match item {
                Item::Step(_) => {
                    blocks.push_back(ModelBlock { created: std::mem::take(&mut created), accesses: own.collect() })
                }
                Item::Event(Event::Child { thread, .. }) => created.push(thread),
                Item::Event(_) => assert_eq!(own.count(), 0, "no string instruction is interrupted here"),
            }
        }
    }
    blocks
}

/// One cache shared by all threads. A turn of a thread is a number of blocks with `count` accesses.
/// A thread begins when it is created.
fn model_turns(trace: &Trace, count: usize) -> Vec<(ThreadId, u64, Vec<u8>)> {
    let threads: Vec<ThreadId> = trace.threads().iter().map(|thread| thread.info.thread).collect();
    let mut blocks: HashMap<ThreadId, VecDeque<ModelBlock>> =
        threads.iter().map(|&thread| (thread, model_blocks(trace, thread))).collect();
    let (mut running, mut cache, mut reported) = (vec![threads[0]], ModelCache::new(), Vec::new());
    let mut hits: HashMap<ThreadId, u64> = HashMap::new();
    while blocks.values().any(|blocks| !blocks.is_empty()) {
        for thread in &threads {
            if !running.contains(thread) {
                continue;
            }
            let mut done = 0;
            while done < count
                && let Some(block) = blocks.get_mut(thread).unwrap().pop_front()
            {
                running.extend(block.created);
                done += block.accesses.len();
                for (address, is_write, value) in block.accesses {
                    let is_known = cache.access(address, value.len() as u64);
                    let hits = hits.entry(*thread).or_default();
                    match (is_write, is_known) {
                        (true, _) => {}
                        (false, true) => *hits += 1,
                        (false, false) => reported.push((*thread, std::mem::take(hits), value)),
                    }
                }
            }
        }
    }
    reported
}

/// `--cshare --interleave N` is a round robin.
#[test]
fn threads_share_a_cache_in_turns() {
    let recorded = record("raytrace", &["4", "8"]);
    for count in [1, 7, 1000] {
        let mut settings = load_settings(Sharing::shared(NonZeroU64::new(count as u64)), KnownCriterion::Flags);
        settings.cfiat.cover = FlagCoverage::Touched;
        let (mut filter, mut reported) = (loads::LoadFilter::new(&settings).unwrap(), Vec::new());
        let mut order = settings.sharing.order(&recorded.trace, RoundRobinUnit::Accesses).unwrap();
        while let Some(batch) = order.next_batch().unwrap() {
            filter.batch(batch, |load| reported.push((load.thread, load.hits, load.value.to_vec())));
        }
        assert!(reported == model_turns(&recorded.trace, count) && reported.len() > 1000, "{count}");
    }
}

/// The loads of a batch that the model reports: thread, hits before, value.
fn model_batch(
    caches: &mut HashMap<ThreadId, ModelCache>,
    batch: &Batch,
    reported: &mut Vec<(ThreadId, u64, Vec<u8>)>,
) {
    let thread = batch.thread();
    caches.entry(thread).or_insert_with(ModelCache::new);
    for access in batch.accesses() {
        let Some(value) = batch.value(&access) else { continue };
        let (address, bytes) = (access.address(), value.len() as u64);
        if access.is_write() {
            let others = caches.iter_mut().filter(|(other, _)| **other != thread);
            others.for_each(|(_, cache)| cache.invalidate(address, bytes));
        }
        let own = caches.get_mut(&thread).unwrap();
        let is_known = own.access(address, bytes);
        if access.is_write() {
            continue;
        }
        if is_known {
            own.hits += 1;
        } else {
            reported.push((thread, std::mem::take(&mut own.hits), value.to_vec()));
        }
    }
}

/// `--known flags --invalidate threads` does what the figures say, load by load.
#[test]
fn flags_are_those_of_the_figures() {
    for (name, size) in [("radiosity", "1"), ("cholesky", "10")] {
        let recorded = record(name, &["4", size]);
        let mut settings = load_settings(Sharing::Private, KnownCriterion::Flags);
        settings.cfiat.cover = FlagCoverage::Touched;
        let mut filter = loads::LoadFilter::new(&settings).unwrap();
        let (mut caches, mut reported, mut expected) = (HashMap::new(), Vec::new(), Vec::new());
        let mut merged = recorded.trace.merged_with_accesses().unwrap();
        while let Some(batch) = merged.next_batch().unwrap() {
            filter.batch(batch, |load| reported.push((load.thread, load.hits, load.value.to_vec())));
            model_batch(&mut caches, batch, &mut expected);
        }
        assert!(reported == expected && reported.len() > 1000, "{name}");
    }
}

#[test]
fn filters_decode_an_interpreter() {
    let recorded =
        Call::new("perl").args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]).data(Data::Values);
    check(&recorded.recorded().trace);
}

/// The kernel writes to memory that was loaded before; the flags alone do not show that.
#[test]
fn flags_alone_are_not_enough() {
    let recorded = Call::new("cat").arg("/proc/self/maps").data(Data::Values).recorded();
    let wrong =
        |trust| mtrace::loads::check(&recorded.trace, &load_settings(Sharing::Private, trust)).unwrap().mismatches;
    assert_eq!(wrong(KnownCriterion::Values), 0);
    let shell = Call::new("bash").args(["-c", "while read line; do echo $line; done < /etc/passwd"]).data(Data::Values);
    let shell = shell.recorded();
    let checked = mtrace::loads::check(&shell.trace, &load_settings(Sharing::Private, KnownCriterion::Flags)).unwrap();
    assert!(checked.stale > 0, "the buffer of read is written again and again");
    assert_eq!((checked.mismatches, checked.matches + checked.stale), (0, shell.trace.totals().reads));
}

#[test]
fn verify_prints_the_result_of_a_filter() {
    let recorded = record("radiosity", &["3", "1"]);
    for (filter, shown) in [("mcfTRaptor", "all steps decoded"), ("mlvCFiat", "all loads decoded")] {
        for shared in [&[][..], &["--shared"]] {
            let mut command = std::process::Command::new(trackway());
            command.args(["verify", "--filter", filter]).args(shared).arg(&recorded.path);
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && text.contains(shown), "{text}");
        }
    }
}
