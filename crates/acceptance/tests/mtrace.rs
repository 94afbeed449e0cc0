//! The tools of mTrace: their files and statistics against `dump` and `info` of the same trace,
//! live runs against recorded ones, filtering by steps against filtering by paths, and bad
//! arguments.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use acceptance::source::compile;
use acceptance::tool::required;
use acceptance::{Call, Data, RecordedCall, trackway};
use cache::{FlagCoverage, Geometry, Replacement};
use filter::cfiat::{CfiatConfig, KnownCriterion};
use filter::traptor::{BranchKind, BranchMessage, BranchOutcome, BranchSite, Predict, PredictorSizes, Predictors};
use isa::Transfer;
use mtrace::flow;
use port::cores::Cores;
use port::{Job, PortSettings, Technique};
use replay::{Interleaving, Sharing, loads};
use serde_json::Value;
use tempfile::TempDir;
use trace::{Event, Item, RoundRobinUnit, Step, Terminator, ThreadId, Trace};
use workloads::Variant;

fn program(name: &str) -> PathBuf {
    workloads::build(name, Variant::Pie).unwrap()
}

fn recorded(name: &str, arguments: &[&str]) -> RecordedCall {
    Call::new(program(name)).args(arguments).data(Data::Values).recorded()
}

/// A run of a tool in a directory of its own.
struct Run {
    directory: TempDir,
    output: Output,
}

impl Run {
    fn new(words: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(trackway());
        command.args(words).current_dir(directory.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        Self { directory, output }
    }

    fn error(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}; {}", self.error()))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// The files that the tool has written.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// A tool over a trace, with the output called x.
fn over(tool: &str, flags: &[&str], trace: &Path) -> Run {
    let words = [&[tool, "-o", "x", "-i", trace.to_str().unwrap()][..], flags].concat();
    let run = Run::new(&words);
    assert!(run.output.status.success(), "{words:?}: {}", run.error());
    run
}

fn dumped(flags: &[&str], trace: &Path) -> Vec<u8> {
    let output = Command::new(trackway()).arg("dump").args(flags).arg(trace).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn mcftrace_and_mlstrace_write_what_dump_writes() {
    let recorded = recorded("cholesky", &["3", "6"]);
    let trace = &recorded.path;
    assert!(over("mcfTrace", &[], trace).read("x.bin") == dumped(&["-k", "control", "-f", "binary"], trace));
    assert!(over("mcfTrace", &["-a", "-d"], trace).read("x.txt") == dumped(&["-k", "control", "-d"], trace));
    let all = over("mlsTrace", &["-store"], trace);
    assert!(all.read("x.bin") == dumped(&["-k", "memory", "-f", "binary"], trace));
    assert!(over("mlsTrace", &["-a", "-d", "-store"], trace).read("x.txt") == dumped(&["-k", "memory", "-d"], trace));
    // Without -store, there are only loads, and the field that distinguishes them from stores is
    // missing.
    let loads = over("mlsTrace", &["-a"], trace).text("x.txt");
    let listed = String::from_utf8(dumped(&["-k", "memory"], trace)).unwrap();
    let listed: String =
        listed.lines().filter(|line| line.contains(", L, ")).map(|line| line.replacen(", L", "", 1) + "\n").collect();
    assert!(loads == listed);
}

/// Numbers in the statistics are those of the trace.
#[test]
fn statistics_are_those_of_the_trace() {
    let recorded = recorded("radiosity", &["3", "1"]);
    let totals = recorded.trace.totals();
    let text = over("mcfTrace", &[], &recorded.path).text("x.Statistics");
    assert!(text.starts_with(&format!("mcfTrace: Traced {} instructions\nmcfTrace: Skipped 0", totals.instructions)));
    assert!(text.contains(&format!("Recorded {} control transfer instructions.", totals.branches())), "{text}");
    assert!(text.contains(&format!("\t{} ( %", totals.conditional_not_taken)), "{text}");
    let text = over("mlsTrace", &["-store"], &recorded.path).text("x.Statistics");
    for part in [
        "Number of Threads: 3\n".into(),
        format!("Total Load Operands: {}\n", totals.reads),
        format!("Total Store Operands: {}\n", totals.writes),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    let text = over("mcfTRaptor", &[], &recorded.path).text("x.Statistics");
    let conditional = totals.conditional_taken + totals.conditional_not_taken;
    assert!(text.contains(&format!("\n{conditional} conditional direct branches\n")), "{text}");
    let run = over("mlvCFiat", &["--json"], &recorded.path);
    let text = run.text("x.Statistics");
    assert!(text.contains(&format!("\"loads\": {},", totals.reads)), "{text}");
    assert!(text.contains(&format!("\"stores\": {},", totals.writes)), "{text}");
    assert_eq!(run.files(), ["x.Statistics", "x.bin"]);
}

/// Numbers that a verb prints as JSON.
fn printed(words: &[&str], trace: &Path) -> Value {
    let output = Command::new(trackway()).args(words).arg(trace).output().unwrap();
    assert!(output.status.success(), "{words:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The process ends while a thread executes an indirect branch: its target is unknown, and all
/// tools count it.
#[test]
fn a_branch_that_the_process_ends_in_is_counted_alike() {
    let directory = tempfile::tempdir().unwrap();
    let text = include_str!("../programs/killed.c");
    let executable = compile(directory.path(), "killed.c", text, &["gcc", "-O1", "-pthread"]);
    let recorded = Call::new(executable).recorded();
    let (trace, path) = (&recorded.trace, &recorded.path);
    let indirect = trace.totals().unconditional_indirect;
    let expected = Value::from(indirect);
    assert_eq!(printed(&["info", "--json"], path)["branches"]["unconditional_indirect"], expected);
    assert_eq!(printed(&["stat", "--json"], path)["branches"]["unconditional_indirect"], expected);
    let mix = &printed(&["segment", "--json", "-i"], path)["control_flow"];
    let classes = ["Indirect Call", "Indirect Unconditional Jump", "Return"];
    assert_eq!(classes.map(|class| mix[class].as_u64().unwrap()).iter().sum::<u64>(), indirect);
    // mcfTrace: the record says that its target is unknown.
    let statistics = |run: &Run| serde_json::from_slice::<Value>(&run.read("x.Statistics")).unwrap();
    let run = over("mcfTrace", &["--json"], path);
    assert_eq!(statistics(&run)["unconditional_indirect"], expected);
    let types = run.read("x.bin").chunks(18).map(|record| (record[17], record[9..17] == [0; 8])).collect::<Vec<_>>();
    assert_eq!(types.iter().filter(|(kind, _)| [0, 4].contains(kind)).count() as u64, indirect);
    assert_eq!(types.iter().filter(|&&own| own == (4, true)).count(), 1);
    assert!(types.iter().all(|&(kind, is_zero)| is_zero == (kind == 4)));
    let lines = over("mcfTrace", &["-a"], path).text("x.txt");
    let unknown: Vec<&str> = lines.lines().filter(|line| line.contains(", unknown, ")).collect();
    assert!(matches!(unknown[..], [line] if line.starts_with("1, 0x") && line.ends_with(", unknown, U, I, T")));
    let dumped = String::from_utf8(dumped(&["-k", "control", "--json"], path)).unwrap();
    assert_eq!(dumped.matches("\"target\":null").count(), 1);
    // mcfTRaptor, path by path and step by step: neither predicted nor mispredicted.
    for flags in [&[][..], &["-TRaptorShare"]] {
        let run = over("mcfTRaptor", &[&["--json"], flags].concat(), path);
        let statistics = statistics(&run);
        let number = |name: &str| statistics[name].as_u64().unwrap();
        assert_eq!((number("unconditional_indirect"), number("targets_unknown")), (indirect, 1));
        assert_eq!(number("targets_predicted") + number("targets_mispredicted"), indirect - 1);
        let text = over("mcfTRaptor", flags, path).text("x.Statistics");
        assert!(text.contains(&format!("{indirect} unconditional indirect branches\n")), "{text}");
    }
    let threads = trace.threads().iter().map(|thread| thread.info.thread);
    let cores = Cores::new(threads, None).unwrap();
    let mut job = Job::new(&[Technique::McfTrE], None, &PortSettings::default(), &cores, false).unwrap();
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_batch().unwrap() {
        job.batch(trace.blocks(), batch);
    }
    assert_eq!(job.outcomes().remove(0).rates.predicted.unwrap().targets, indirect);
}

/// Reads the binary records of mcfTRaptor back, by thread.
fn parse(mut bytes: &[u8]) -> HashMap<u32, Vec<BranchMessage>> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    let mut messages: HashMap<u32, Vec<BranchMessage>> = HashMap::new();
    while let [thread, ..] = *bytes {
        let (message, length) = match bytes[5] {
            0 => (BranchMessage::Outcome { branches: number(&bytes[1..5]) }, 6),
            1 => {
                assert_eq!(bytes[6], 1);
                (BranchMessage::Target { branches: number(&bytes[1..5]), target: number(&bytes[7..15]) }, 15)
            }
            2 => {
                assert_eq!(bytes[1..5], [0; 4]);
                (BranchMessage::Exception { instructions: number(&bytes[6..10]), target: number(&bytes[10..18]) }, 18)
            }
            kind => panic!("a record of kind {kind}"),
        };
        messages.entry(thread.into()).or_default().push(message);
        bytes = &bytes[length..];
    }
    messages
}

/// A load or store: thread, whether it is a store, instruction, address, value.
type Accessed = (u32, bool, u64, u64, Option<Vec<u8>>);

/// Reads fields of binary records, one after the other.
struct Records<'b> {
    bytes: &'b [u8],
    wide: bool,
}

impl Records<'_> {
    fn number(&mut self, length: usize) -> u64 {
        let (own, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        own.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    fn thread(&mut self) -> u32 {
        self.number(if self.wide { 4 } else { 1 }) as u32
    }

    /// A size and the value behind it, if there is one: as docs/mtrace.md describes them.
    fn value(&mut self) -> Option<Vec<u8>> {
        let size = match if self.wide { 255 } else { self.number(1) } {
            255 => self.number(4),
            short => short,
        };
        if size >> 31 != 0 {
            return None;
        }
        let (own, rest) = self.bytes.split_at(size as usize);
        self.bytes = rest;
        Some(own.to_vec())
    }

    fn accesses(mut self) -> Vec<Accessed> {
        let mut all = Vec::new();
        while !self.bytes.is_empty() {
            let (thread, store) = (self.thread(), self.number(1) == 1);
            all.push((thread, store, self.number(8), self.number(8), self.value()));
        }
        all
    }

    fn loads(mut self) -> Vec<(u32, u64, Vec<u8>)> {
        let mut all = Vec::new();
        while !self.bytes.is_empty() {
            all.push((self.thread(), self.number(4), self.value().unwrap()));
        }
        all
    }
}

/// Programs with operands of more than 255 bytes (xsavec, xrstor, fxsave), and one whose operands
/// are small: the binary decodes to what the trace has.
#[test]
fn operands_of_any_size_come_back() {
    for (name, least) in [("memory_state", 256), ("memory_x87", 100), ("memory_sse", 8)] {
        let program = workloads::build(name, workloads::find(name).unwrap().variants[0]).unwrap();
        let recorded = Call::new(program).data(Data::Values).recorded();
        let (mut accessed, mut longest) = (Vec::new(), 0);
        let mut merged = recorded.trace.merged_with_accesses().unwrap();
        while let Some(batch) = merged.next_batch().unwrap() {
            for access in batch.accesses() {
                let value = batch.value(&access).map(<[u8]>::to_vec);
                longest = longest.max(access.size());
                accessed.push((batch.thread().get(), access.is_write(), access.pc().get(), access.address(), value));
            }
        }
        assert!(longest >= least, "{name}: the longest operand has {longest} bytes");
        let (reported, reported_long) = reported(&recorded.trace);
        assert!(name != "memory_state" || reported_long > 0, "{name}");
        for wide in [false, true] {
            let read = |tool, flags: &[&str]| {
                let flags = if wide { [flags, &["--wide"]].concat() } else { flags.to_vec() };
                over(tool, &flags, &recorded.path).read("x.bin")
            };
            let (bytes, values) = (read("mlsTrace", &["-store"]), read("mlvCFiat", SMALL_CACHE));
            assert!(Records { bytes: &bytes, wide }.accesses() == accessed, "{name}, wide: {wide}");
            assert!(Records { bytes: &values, wide }.loads() == reported, "{name}, wide: {wide}");
        }
    }
}

/// So small that it evicts what xsavec has stored before xrstor loads it.
const SMALL_CACHE: &[&str] = &["-cs", "128B", "-ca", "1"];

/// The loads that mlvCFiat has to report with [`SMALL_CACHE`], and how many of them have more than
/// 255 bytes.
fn reported(trace: &Trace) -> (Vec<(u32, u64, Vec<u8>)>, usize) {
    let cfiat = CfiatConfig {
        geometry: Geometry::new(128, 32, 1).unwrap(),
        replacement: Replacement::RoundRobin,
        granularity: 4,
        cover: FlagCoverage::Touched,
        known_by: KnownCriterion::Values,
    };
    let invalidation = loads::Invalidation::default();
    let settings = loads::LoadSettings { cfiat, sharing: Sharing::Private, invalidation, coherent: false };
    let (mut filter, mut all) = (loads::LoadFilter::new(&settings).unwrap(), Vec::new());
    let mut merged = trace.merged_with_accesses().unwrap();
    while let Some(batch) = merged.next_batch().unwrap() {
        filter.batch(batch, |message| all.push((message.thread.get(), message.hits, message.value.to_vec())));
    }
    let long = all.iter().filter(|(.., value)| value.len() > 255).count();
    (all, long)
}

/// The messages of the filter, step by step.
fn messages_by_step(
    trace: &Trace,
    settings: &flow::FlowSettings,
) -> (HashMap<u32, Vec<BranchMessage>>, flow::FlowStatistics) {
    let mut filter = flow::FlowFilter::new(settings).unwrap();
    let mut messages: HashMap<u32, Vec<BranchMessage>> = HashMap::new();
    let mut order = settings.sharing.order(trace, RoundRobinUnit::Branches).unwrap();
    while let Some(batch) = order.next_batch().unwrap() {
        filter.batch(trace.blocks(), batch, |sent| messages.entry(sent.thread.get()).or_default().push(sent.message));
    }
    (messages, filter.statistics())
}

/// A branch of a thread, or its creation of another thread.
enum ThreadAction {
    Branch(BranchSite, BranchOutcome),
    Create(ThreadId),
}

fn actions(trace: &Trace, thread: ThreadId) -> VecDeque<ThreadAction> {
    let (mut actions, mut steps) = (VecDeque::new(), trace.steps(thread).unwrap());
    while let Some(batch) = steps.next_batch().unwrap() {
        for item in batch.items() {
            match item {
                Item::Step(step) => {
                    actions.extend(branch(trace, &step).map(|(site, outcome)| ThreadAction::Branch(site, outcome)))
                }
                Item::Event(Event::Child { thread, .. }) => actions.push_back(ThreadAction::Create(thread)),
                Item::Event(_) => {}
            }
        }
    }
    actions
}

fn branch(trace: &Trace, step: &Step) -> Option<(BranchSite, BranchOutcome)> {
    let block = trace.blocks().get(step.block()).unwrap();
    let target = BranchOutcome::Target(step.next().get());
    let (kind, outcome) = match (step.terminator(), block.transfer()) {
        (Terminator::Taken, _) => (BranchKind::Conditional, BranchOutcome::Taken(true)),
        (Terminator::NotTaken, _) => (BranchKind::Conditional, BranchOutcome::Taken(false)),
        (Terminator::Direct, Transfer::Call { target }) => (BranchKind::Call, BranchOutcome::Target(target.get())),
        (Terminator::Indirect, Transfer::Return) => (BranchKind::Return, target),
        (Terminator::Indirect, Transfer::IndirectCall) => (BranchKind::IndirectCall, target),
        (Terminator::Indirect, _) => (BranchKind::IndirectJump, target),
        _ => return None,
    };
    Some((BranchSite { kind, address: block.last().get(), fall_through: block.end().get() }, outcome))
}

/// Predictors shared by all threads, in turns of `count` conditional and indirect branches. A
/// thread begins when it is created.
fn model_turns(trace: &Trace, count: u64) -> HashMap<u32, Vec<BranchMessage>> {
    let threads: Vec<ThreadId> = trace.threads().iter().map(|thread| thread.info.thread).collect();
    let mut left: Vec<VecDeque<ThreadAction>> = threads.iter().map(|&thread| actions(trace, thread)).collect();
    let (mut running, mut predictors) = (vec![threads[0]], Predictors::new(&PredictorSizes::default()).unwrap());
    let (mut messages, mut counts) = (HashMap::<u32, Vec<BranchMessage>>::new(), HashMap::<ThreadId, u64>::new());
    while left.iter().any(|actions| !actions.is_empty()) {
        for (thread, actions) in threads.iter().zip(&mut left) {
            let mut done = 0;
            while running.contains(thread)
                && done < count
                && let Some(action) = actions.pop_front()
            {
                let (site, outcome) = match action {
                    ThreadAction::Create(created) => {
                        running.push(created);
                        continue;
                    }
                    ThreadAction::Branch(site, outcome) => (site, outcome),
                };
                let Some(is_right) = predictors.update(&site, outcome) else { continue };
                done += 1;
                let branches = counts.entry(*thread).or_default();
                *branches += 1;
                if is_right {
                    continue;
                }
                let branches = std::mem::take(branches);
                messages.entry(thread.get()).or_default().push(match outcome {
                    BranchOutcome::Taken(_) => BranchMessage::Outcome { branches },
                    BranchOutcome::Target(target) => BranchMessage::Target { branches, target },
                });
            }
        }
    }
    messages
}

/// `-TRaptorShare --interleave N` is a round robin, the same every time, and does not affect
/// private predictors.
#[test]
fn threads_share_predictors_in_turns() {
    let recorded = recorded("radiosity", &["4", "1"]);
    let mut sizes = Vec::new();
    for count in [1, 16, 100_000] {
        let expected = model_turns(&recorded.trace, count);
        let flags = ["-TRaptorShare", "--interleave", &count.to_string()];
        let bytes = over("mcfTRaptor", &flags, &recorded.path).read("x.bin");
        assert!(parse(&bytes) == expected, "{count}");
        assert!(over("mcfTRaptor", &flags, &recorded.path).read("x.bin") == bytes, "{count}");
        let words = ["verify", "--filter", "mcfTRaptor", "--shared", "--interleave", flags[2]];
        let output = Command::new(trackway()).args(words).arg(&recorded.path).output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("all steps decoded"));
        sizes.push(bytes.len());
    }
    // The shorter the turns, the more threads disturb each other (Myers 2014, Table 6.9).
    let private = over("mcfTRaptor", &[], &recorded.path).read("x.bin").len();
    assert!(sizes.is_sorted_by(|one, other| one > other) && sizes[0] > 3 * private, "{sizes:?} and {private}");
    let path = program("radiosity");
    let live = ["mcfTRaptor", "-TRaptorShare", "--interleave", "4", "--", path.to_str().unwrap()];
    assert!(Run::new(&live).error().contains("--interleave <N>' cannot be used with"));
    let private = ["mcfTRaptor", "--interleave", "4", "-i", recorded.path.to_str().unwrap()];
    assert!(Run::new(&private).error().contains("--TRaptorShare"));
}

/// The same, path by path.
fn messages_by_path(
    trace: &Trace,
    settings: &flow::FlowSettings,
) -> (HashMap<u32, Vec<BranchMessage>>, flow::FlowStatistics) {
    let mut filter = flow::FlowFilter::new(settings).unwrap();
    let mut messages: HashMap<u32, Vec<BranchMessage>> = HashMap::new();
    let mut merged = trace.merged();
    while let Some(batch) = merged.next_path_batch().unwrap() {
        filter.path_batch(&batch, |sent| messages.entry(sent.thread.get()).or_default().push(sent.message));
    }
    (messages, filter.statistics())
}

/// Programs with calls through pointers, signals in the middle of blocks, jumps out of handlers,
/// threads.
#[test]
fn steps_and_paths_give_the_same_messages() {
    let programs: [(&str, &[&str]); 11] = [
        ("radiosity", &["3", "1"]),
        ("raytrace", &["2", "40"]),
        ("fft", &["2", "5"]),
        ("indirect_calls", &[]),
        ("recursion", &[]),
        ("deep_recursion", &[]),
        ("sync_signals", &[]),
        ("segv_context", &[]),
        ("thread_signal", &[]),
        ("signal_nested", &[]),
        ("siglongjmp", &[]),
    ];
    for (name, arguments) in programs {
        let recorded = Call::new(program(name)).args(arguments).recorded();
        for (gshare, ras, ibtb) in [(4096, 32, 64), (2, 1, 2), (1 << 20, 5, 16), (0, 0, 0)] {
            let sizes = PredictorSizes { gshare, ras, ibtb, ..PredictorSizes::default() };
            let settings = flow::FlowSettings { sizes, ..flow::FlowSettings::default() };
            let (slow, fast) =
                (messages_by_step(&recorded.trace, &settings), messages_by_path(&recorded.trace, &settings));
            assert_eq!(slow.1, fast.1, "{name}, {gshare}");
            assert!(slow.0 == fast.0, "{name}, {gshare}: other messages");
        }
    }
}

#[test]
fn what_mcftraptor_writes_can_be_read() {
    let recorded = recorded("cholesky", &["4", "6"]);
    for (flags, sharing) in [(&[][..], Sharing::Private), (&["-TRaptorShare"], Sharing::Shared(Interleaving::ByTime))] {
        let settings = flow::FlowSettings { sharing, ..flow::FlowSettings::default() };
        let (messages, statistics) = messages_by_step(&recorded.trace, &settings);
        let run = over("mcfTRaptor", flags, &recorded.path);
        assert!(parse(&run.read("x.bin")) == messages, "{sharing:?}");
        let mispredicted = statistics.outcomes_mispredicted + statistics.targets_mispredicted;
        assert_eq!(messages.values().flatten().count() as u64, mispredicted + statistics.exceptions);
        // The text has a line for each.
        let text = over("mcfTRaptor", &[flags, &["-a"]].concat(), &recorded.path).text("x.txt");
        assert_eq!(text.lines().count() as u64, mispredicted + statistics.exceptions);
    }
    // Sizes as in the text of the thesis, without the type byte of a record.
    let fixed = over("mcfTRaptor", &[], &recorded.path).read("x.bin").len();
    let without = over("mcfTRaptor", &["--layout", "none"], &recorded.path).read("x.bin").len();
    let count = messages_by_step(&recorded.trace, &flow::FlowSettings::default()).0.values().flatten().count();
    assert_eq!(fixed - without, count);
}

/// A program that does the same in every run, live and recorded.
#[test]
fn live_is_as_recorded() {
    let path = workloads::build("loops", Variant::Static).unwrap();
    let recorded = Call::new(&path).data(Data::Values).fixed_addresses().recorded();
    for (tool, flags) in [("mcfTrace", &[][..]), ("mlsTrace", &["-store"]), ("mcfTRaptor", &[]), ("mlvCFiat", &[])] {
        let flags = [flags, &["-a"]].concat();
        let words = [&[tool, "-o", "x", "--no-aslr"][..], &flags, &["--", path.to_str().unwrap()]].concat();
        let live = Run::new(&words);
        assert_eq!(live.output.status.code(), Some(0), "{}", live.error());
        assert!(live.error().contains(&format!("{tool}: thread begin 0 ")), "{}", live.error());
        let (live, file) = (live.text("x.txt"), over(tool, &flags, &recorded.path).text("x.txt"));
        // The environment, which is on the stack, is not the same; its values and addresses are not
        // compared.
        let shown = |text: &str| -> Vec<String> {
            let fields = if tool == "mlsTrace" {
                3
            } else if tool == "mlvCFiat" {
                2
            } else {
                6
            };
            text.lines().map(|line| line.split(", ").take(fields).collect::<Vec<_>>().join(", ")).collect()
        };
        assert_eq!(shown(&live), shown(&file), "{tool}");
        assert!(!live.is_empty() || tool == "mlvCFiat");
    }
}

#[test]
fn threads_of_a_program_are_merged_by_time() {
    let path = program("radiosity");
    let run = Run::new(&["mcfTrace", "-a", "-o", "x", "--", path.to_str().unwrap(), "3", "1"]);
    assert!(run.output.status.success(), "{}", run.error());
    let text = run.text("x.txt");
    // The first thread starts the others, and collects them.
    assert!(text.starts_with("0, ") && text.lines().last().unwrap().starts_with("0, "));
    for thread in ["1, ", "2, "] {
        assert!(text.lines().any(|line| line.starts_with(thread)));
    }
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    let run = Run::new(&["mcfTRaptor", "-q", "-o", "x", "--", "bash", "-c", "exit 7"]);
    assert_eq!((run.output.status.code(), run.error().as_str()), (Some(7), ""));
}

#[test]
fn compressors_keep_the_content() {
    let recorded = recorded("indirect_calls", &[]);
    let plain = over("mcfTrace", &[], &recorded.path).read("x.bin");
    for (compressor, suffix) in
        [("bzip2", "bz2"), ("pbzip2", "bz2"), ("gzip", "gz"), ("pigz", "gz"), ("zstd", "zst"), ("xz", "xz")]
    {
        let program = required(compressor);
        let run = over("mcfTrace", &["-c", compressor], &recorded.path);
        let name = format!("x.bin.{suffix}");
        assert_eq!(run.files(), ["x.Statistics", name.as_str()]);
        let output = Command::new(program).args(["-d", "-c"]).arg(run.path(&name)).output().unwrap();
        assert!(output.stdout == plain, "{compressor}");
    }
}

#[test]
fn a_missing_compressor_is_refused() {
    let run = || {
        let mut command = Command::new(trackway());
        command.args(["mcfTrace", "-c", "gzip", "-o", "/nowhere/x", "-i", "/nowhere/y.trk"]).env("PATH", "/nowhere");
        command.output().unwrap()
    };
    let error = String::from_utf8(run().stderr).unwrap();
    assert!(error.contains("the compressor gzip is not installed (no other is installed either)"), "{error}");
}

#[test]
fn parts_of_a_trace_are_written() {
    let recorded = recorded("recursion", &[]);
    let trace = &recorded.path;
    let part = ["-s", "5k", "-l", "3k"];
    let part_of_dump = ["--skip", "5k", "--length", "3k"];
    let control = over("mcfTrace", &[&part[..], &["-a"]].concat(), trace);
    assert!(control.read("x.txt") == dumped(&[&part_of_dump[..], &["-k", "control"]].concat(), trace));
    assert!(control.text("x.Statistics").starts_with("mcfTrace: Traced 3000 instructions\nmcfTrace: Skipped 5000 "));
    let memory = over("mlsTrace", &[&part[..], &["-a", "-store"]].concat(), trace);
    assert!(memory.read("x.txt") == dumped(&[&part_of_dump[..], &["-k", "memory"]].concat(), trace));
    // No file ends in the middle of a record.
    let limited = over("mcfTrace", &["-f", "0.001"], trace).read("x.bin");
    let whole = over("mcfTrace", &[], trace).read("x.bin");
    assert_eq!(limited.len(), 1000 / 18 * 18);
    assert!(whole.starts_with(&limited));
}

/// The descriptors of a routine are those with an address in it, live and from a trace.
#[test]
fn a_routine_is_the_same_live_and_from_a_trace() {
    let recorded = recorded("radiosity", &["1", "1"]);
    let all = over("mcfTrace", &["-a", "-d"], &recorded.path).text("x.txt");
    let only = over("mcfTrace", &["-a", "-d", "-filter_rtn", "main"], &recorded.path).text("x.txt");
    assert!(!only.is_empty() && only.len() < all.len());
    let mut rest = all.lines();
    assert!(only.lines().all(|line| rest.any(|other| other == line)), "not a part of all");
    let executable = over("mcfTrace", &["-a", "-filter_no_shared_libs"], &recorded.path).text("x.txt");
    let module = &recorded.trace.modules()[0].module;
    let range = module.address..module.address + module.length;
    let address = |line: &str| u64::from_str_radix(&line.split(", ").nth(1).unwrap()[2..], 16).unwrap();
    assert!(executable.lines().all(|line| range.contains(&address(line))));
    let count = all.lines().filter(|line| range.contains(&address(line))).count();
    assert_eq!(executable.lines().count(), count);
    let path = program("radiosity");
    let live = Run::new(&["mcfTrace", "-a", "-o", "x", "-filter_rtn", "main", "--", path.to_str().unwrap(), "1", "1"]);
    assert_eq!(live.text("x.txt").lines().count(), only.lines().count());
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let recorded = Call::new(program("radiosity")).args(["1", "1"]).recorded();
    let trace = recorded.path.to_str().unwrap();
    let path = program("radiosity");
    let path = path.to_str().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (
            &["mcfTRaptor", "-gshare", "1000", "-i", trace],
            "a gshare predictor cannot have 1000 entries; 512 and 1024 are possible",
        ),
        (&["mcfTRaptor", "-RAS", "65", "-i", trace], "a return address stack cannot have 65 entries; 64 is possible"),
        (&["mcfTRaptor", "-iBTB", "3", "-i", trace], "cannot have 3 entries; 2 and 4 are possible"),
        (&["mlvCFiat", "-cs", "3", "--", "ls"], "a cache size of 3072 is not possible; 2048 and 4096 are"),
        (
            &["mlvCFiat", "-cs", "64B", "--", "ls"],
            "4 ways of 32 bytes do not fit into a cache of 64 bytes; 128 bytes would be enough",
        ),
        (&["mlvCFiat", "-i", trace], "memory accesses were not recorded in this trace (record with --data"),
        (
            &["mcfTrace", "-filter_rtn", "mian", "-i", trace],
            "no module of the trace has a routine called mian (did you mean main",
        ),
        (&["mcfTrace", "-filter_rtn", "mian", "--", path], "has a routine called mian (did you mean main"),
        (&["mcfTrace", "-c", "arj", "--", path], "[possible values: bzip2, pbzip2, gzip, pigz, zstd, xz]"),
    ];
    for (words, sentence) in cases {
        let run = Run::new(words);
        assert!(!run.output.status.success() && run.error().contains(sentence), "{words:?}: {}", run.error());
        assert!(run.output.stdout.is_empty() && run.files().is_empty(), "{words:?} left {:?}", run.files());
    }
}

/// Without -o, the name is made of the tool's and the time.
#[test]
fn files_without_a_name_are_named_by_the_time() {
    let recorded = recorded("recursion", &[]);
    let run = Run::new(&["mlsTrace", "-a", "-c", "gzip", "-i", recorded.path.to_str().unwrap()]);
    let files = run.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let name = files[0].strip_suffix(".Statistics").unwrap();
    assert_eq!(files[1], format!("{name}.txt.gz"));
    let digits: Vec<&str> = name.strip_prefix("mlsTrace.out").unwrap().split(['_', '.']).collect();
    assert!(digits.len() == 6 && digits.iter().all(|part| part.parse::<u32>().is_ok()), "{name}");
}

/// A trace that ends in the middle: the intact part is written, and the status is not 0.
#[test]
fn a_trace_that_was_cut_yields_its_intact_part() {
    let recorded = recorded("radiosity", &["2", "1"]);
    let bytes = std::fs::read(&recorded.path).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut.trk");
    std::fs::write(&cut, &bytes[..bytes.len() - bytes.len() / 4]).unwrap();
    for tool in ["mcfTrace", "mcfTRaptor", "mlvCFiat"] {
        let run = Run::new(&[tool, "-o", "x", "-i", cut.to_str().unwrap()]);
        assert_eq!(run.output.status.code(), Some(1), "{}", run.error());
        assert!(run.error().contains("ends early"), "{}", run.error());
        assert_eq!(run.files(), ["x.Statistics", "x.bin"]);
    }
    let verify = |filter: &str| {
        let output = Command::new(trackway()).args(["verify", "--filter", filter]).arg(&cut).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for filter in ["mcfTRaptor", "mlvCFiat"] {
        let (code, error) = verify(filter);
        assert!(code == Some(1) && error.contains("ends early"), "{error}");
    }
}

/// All tables are there, and their known properties hold.
#[test]
fn the_experiment_has_all_tables() {
    let words =
        ["experiment", "mtrace", "--programs", "fft", "--threads", "1,2", "--size", "3", "--repeat", "2", "--json"];
    let run = Run::new(&words);
    assert!(run.output.status.success(), "{}", run.error());
    let rows: serde_json::Value = serde_json::from_slice(&run.output.stdout).unwrap();
    assert_eq!(
        (rows.as_array().unwrap().len(), &rows[1]["program"], &rows[1]["threads"]),
        (2, &"fft".into(), &2.into())
    );
    for row in rows.as_array().unwrap() {
        for time in ["native", "untraced", "untraced_with_values", "recorded", "recorded_with_values"] {
            assert_eq!(row["seconds"][time].as_array().unwrap().len(), 2, "{time}");
        }
        for (tool, name) in [("mcftrace", "mcfTrace"), ("mlvcfiat_shared", "mlvCFiat")] {
            let rounds = row[tool]["rounds"].as_array().unwrap();
            assert!(rounds.len() == 2 && rounds.iter().all(|round| round["statistics"]["tool"] == name), "{rounds:?}");
            let is_positive = |value: &serde_json::Value| value.as_f64().unwrap() > 0.0;
            assert!(rounds.iter().all(|round| is_positive(&round["seconds"]) && is_positive(&round["bytes"])));
            for size in ["seconds", "long_seconds"] {
                let live = row[size]["live"][tool].as_array().unwrap();
                assert!(live.len() == 2 && live.iter().all(is_positive), "{live:?}");
            }
            assert!(is_positive(&row[tool]["bzip2"]["bytes"]) && is_positive(&row[tool]["bzip2"]["live_seconds"]));
        }
    }
    let words = ["experiment", "mtrace", "--programs", "matmul", "--threads", "2", "--size", "4", "-o", "tables"];
    let run = Run::new(&[&words[..], &["--repeat", "1", "--plots", "plots"]].concat());
    assert!(run.output.status.success(), "{}", run.error());
    let tables = run.text("tables");
    let captions = tables.lines().filter(|line| line.starts_with("Table ")).count();
    assert_eq!(captions, 4 + 16 + 5 + 2, "{tables}");
    let by_flags = tables.lines().filter(|line| line.contains("by flags alone, as in the thesis")).count();
    assert_eq!(by_flags, 5, "{tables}");
    for name in ["figure-6-1.svg", "figure-6-2.svg", "figure-6-3.svg", "table-6-16.csv", "figure-6-3.csv"] {
        assert!(run.text(&format!("plots/{name}")).contains("matmul"), "{name}");
    }
    let run = Run::new(&["experiment", "mtrace", "--programs", "nothing"]);
    assert!(run.error().contains("no program called nothing (there are fft, radix"), "{}", run.error());
}
