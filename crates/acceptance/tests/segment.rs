//! The traces of a segmenter together are the execution: for every policy of the thesis, over
//! workloads and real programs.

use std::collections::HashMap;
use std::process::Command;

use acceptance::{Call, RecordedCall, process, tool, trackway};
use segment::{Policy, Segmenter, StepBuffer, StepCollector, TraceSet};
use trace::{AppPc, Trace};
use workloads::{Exit, Variant};

fn policies() -> Vec<Policy> {
    let given = Policy::default();
    let learned = given.with(segment::Class::ForwardTaken, false).restructuring();
    let others = [
        Policy::new(255, 255).unwrap().with_least_consistency(0.5).unwrap(),
        learned,
        learned.keeping_blocks().meeting_from(8),
        given.long(),
        given.two_conditional_jumps(),
        Policy::new(1, 1).unwrap(),
        Policy::new(1 << 20, 1 << 20).unwrap(),
    ];
    given.first_experiment().into_iter().chain(given.fourth_experiment()).chain(others).collect()
}

fn segmented(trace: &Trace, policies: &[Policy]) -> Vec<TraceSet> {
    let mut segmenters: Vec<Segmenter> = policies.iter().map(|&policy| Segmenter::new(policy)).collect();
    let (mut collector, mut merged) = (StepCollector::default(), trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        collector.add(trace.blocks(), batch);
        for steps in collector.take(StepBuffer::default()).threads() {
            segmenters.iter_mut().for_each(|segmenter| segmenter.process(steps, trace.blocks()));
        }
    }
    segmenters.into_iter().map(Segmenter::finish).collect()
}

fn check(recorded: &RecordedCall) {
    let (totals, policies) = (recorded.trace.totals(), policies());
    for (policy, set) in policies.iter().zip(segmented(&recorded.trace, &policies)) {
        assert_eq!(set.instructions(), totals.instructions, "{policy:?}");
        let mut seen = HashMap::new();
        for trace in set.traces() {
            assert!((1..=policy.max_instructions()).contains(&trace.instructions), "{policy:?} {trace:x?}");
            let key = (trace.image, trace.runs.clone(), trace.reason);
            assert_eq!(seen.insert(key, ()), None, "{policy:?} has it twice: {trace:x?}");
        }
        assert!(set.traces_for(0.9) <= set.traces().len() && set.coverage().is_sorted());
    }
}

#[test]
fn traces_are_what_was_executed() {
    for (name, arguments) in
        [("radiosity", &["4", "1"][..]), ("signal_nested", &[]), ("code_changes", &[]), ("loops", &[])]
    {
        let program = workloads::find(name).unwrap();
        let executable = workloads::build(name, program.variants[0]).unwrap();
        check(&Call::new(executable).args(arguments).recorded());
    }
    let call = Call::new(tool::required("perl")).args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]);
    check(&call.recorded());
}

/// With a maximum of one instruction, each address is a trace, with as many occurrences as it was
/// executed.
#[test]
fn traces_of_one_instruction_count_executions() {
    let executable = workloads::build("recursion", Variant::Pie).unwrap();
    let recorded = Call::new(executable).recorded();
    let set = segmented(&recorded.trace, &[Policy::new(1, 1).unwrap()]).remove(0);
    let mut shown: HashMap<AppPc, u64> = HashMap::new();
    set.traces().iter().for_each(|trace| *shown.entry(trace.start()).or_default() += trace.occurrences);
    let mut executed: HashMap<AppPc, u64> = HashMap::new();
    let (trace, mut merged) = (&recorded.trace, recorded.trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        for instruction in batch.steps().iter().flat_map(|step| trace.blocks().instructions(step)) {
            *executed.entry(instruction.address).or_default() += 1;
        }
    }
    assert_eq!(shown, executed);
}

/// Without limits, a trace ends only at a gap in the recording or at exec, even if the addresses
/// are the same afterwards.
#[test]
fn gaps_and_images_end_traces() {
    use segment::Class;
    use trace::Event;
    let unlimited = Policy::new(u32::MAX, u32::MAX).unwrap().with(Class::Syscall, true).with(Class::Interrupt, true);
    for (name, arguments, options) in
        [("radiosity", &["2", "1"][..], &["--no-shared-libs"][..]), ("exec_self", &[], &[])]
    {
        let executable = workloads::build(name, Variant::Pie).unwrap();
        let recorded = Call::new(executable).args(arguments).fixed_addresses().options(options).recorded();
        let (mut runs, mut is_new, mut merged) = (0, HashMap::new(), recorded.trace.merged());
        while let Some(batch) = merged.next_batch().unwrap() {
            let is_new = is_new.entry(batch.thread()).or_insert(true);
            let (mut place, mut events) = (0, batch.events().iter().peekable());
            while place < batch.steps().len() || events.peek().is_some() {
                if let Some((_, event)) = events.next_if(|(at, _)| *at == place) {
                    *is_new |= matches!(event, Event::Start { .. } | Event::Gap { .. } | Event::End { .. });
                } else {
                    runs += u64::from(std::mem::take(is_new));
                    place += 1;
                }
            }
        }
        let set = segmented(&recorded.trace, &[unlimited]).remove(0);
        assert!(runs > 1, "{name}");
        assert_eq!(set.occurrences(), runs, "{name}");
        let images: std::collections::BTreeSet<u32> = set.traces().iter().map(|trace| trace.image).collect();
        assert_eq!(images.len() > 1, name == "exec_self", "{name} {images:?}");
        assert_eq!(set.instructions(), recorded.trace.totals().instructions, "{name}");
    }
}

/// Every instruction that was executed, in a program with one thread and without signals.
fn executed(trace: &Trace) -> Vec<(AppPc, isa::Transfer)> {
    let (mut all, mut merged) = (Vec::new(), trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        for instruction in batch.steps().iter().flat_map(|step| trace.blocks().instructions(step)) {
            let decoded = isa::decoder(instruction.address, instruction.bytes).decode();
            all.push((instruction.address, isa::transfer(&decoded)));
        }
    }
    all
}

/// Consistency and overlap by brute force: traces of sixteen instructions are pieces of the list of
/// all instructions, where the probability that one instruction follows another can be counted.
#[test]
fn consistency_and_overlap_are_as_counted() {
    use segment::{Class, EdgeCounts, InstructionTable, Overlap};
    let call = Call::new(tool::required("perl")).args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]);
    let recorded = call.recorded();
    let (trace, executed) = (&recorded.trace, executed(&recorded.trace));
    let (mut pairs, mut singles): (HashMap<(AppPc, AppPc), f64>, HashMap<AppPc, f64>) = Default::default();
    for pair in executed.windows(2) {
        *pairs.entry((pair[0].0, pair[1].0)).or_default() += 1.0;
        *singles.entry(pair[0].0).or_default() += 1.0;
    }
    let consistency = |piece: &[(AppPc, isa::Transfer)]| {
        let (mut product, mut calls) = (1.0, 0);
        for pair in piece.windows(2) {
            let is_matched = pair[0].1 == isa::Transfer::Return && calls > 0;
            calls += i32::from(matches!(pair[0].1, isa::Transfer::Call { .. } | isa::Transfer::IndirectCall));
            calls -= i32::from(is_matched);
            product *= if is_matched { 1.0 } else { pairs[&(pair[0].0, pair[1].0)] / singles[&pair[0].0] };
        }
        product
    };
    let mut expected: HashMap<Vec<AppPc>, f64> = HashMap::new();
    for piece in executed.chunks(16) {
        expected.insert(piece.iter().map(|instruction| instruction.0).collect(), consistency(piece));
    }
    let policy = Policy::new(16, u32::MAX).unwrap().with(Class::Syscall, true).with(Class::Interrupt, true);
    let set = segmented(trace, &[policy]).remove(0);
    let (mut edges, mut collector, mut merged) = (EdgeCounts::default(), StepCollector::default(), trace.merged());
    while let Some(batch) = merged.next_batch().unwrap() {
        collector.add(trace.blocks(), batch);
    }
    collector.take(StepBuffer::default()).threads().for_each(|steps| edges.add(steps.steps));
    let (listing, probabilities) = (InstructionTable::new(trace.blocks()), edges.probabilities(trace.blocks()));
    let address = |instruction: segment::InstructionRef| {
        segment::CodeAddresses::address(trace.blocks(), instruction.block, instruction.index)
    };
    for trace in set.traces() {
        let path: Vec<AppPc> = listing.path(trace).map(address).collect();
        let expected = expected[&path];
        let shown = probabilities.consistency(&listing, trace);
        assert!((shown - expected).abs() < 1e-9 * expected, "{shown} {expected} {trace:x?}");
    }
    assert_eq!(set.traces().len(), expected.len());
    let different: std::collections::HashSet<AppPc> = executed.iter().map(|instruction| instruction.0).collect();
    let in_each = expected.keys().map(|path| path.iter().collect::<std::collections::HashSet<_>>().len());
    let overlap = Overlap::of(&listing, set.traces());
    assert_eq!((overlap.instructions, overlap.different), (in_each.sum::<usize>() as u64, different.len() as u64));
}

/// "Trace length" by brute force: the list of all instructions is cut behind conditional jumps,
/// system calls and traps, and every 32 instructions; then every instruction, and every piece, adds
/// the length of its piece.
#[test]
fn trace_length_is_as_counted() {
    use isa::Transfer;
    use segment::{Class, LengthWeight};
    let call = Call::new(tool::required("perl")).args(["-e", "print join ',', sort map { $_ * 7 % 13 } 1 .. 40"]);
    let recorded = call.recorded();
    let policy = Class::CONDITIONAL
        .into_iter()
        .fold(Policy::new(32, u32::MAX).unwrap(), |policy, class| policy.with(class, false));
    let mut pieces = vec![0_u64];
    let (executed, mut has_ended) = (executed(&recorded.trace), false);
    for (_, transfer) in &executed {
        if std::mem::take(&mut has_ended) {
            pieces.push(0);
        }
        let length = pieces.last_mut().unwrap();
        *length += 1;
        has_ended =
            *length == 32 || matches!(transfer, Transfer::Conditional { .. } | Transfer::Syscall | Transfer::Trap);
    }
    let by_occurrences = executed.len() as f64 / pieces.len() as f64;
    let mut sum = 0.0;
    for &length in &pieces {
        (0..length).for_each(|_| sum += length as f64);
    }
    let by_coverage = sum / executed.len() as f64;
    let length = segmented(&recorded.trace, &[policy]).remove(0).trace_length();
    for (weight, expected) in [(LengthWeight::Coverage, by_coverage), (LengthWeight::Occurrences, by_occurrences)] {
        assert!((length.by(weight) - expected).abs() < 1e-9 * expected, "{weight:?}: {length:?} {expected}");
    }
    assert!(by_coverage > by_occurrences + 1.0);
}

/// Every output format has the rules of each policy and both lengths.
#[test]
fn weights_and_lengths_are_shown() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let executable = workloads::build("loops", workloads::find("loops").unwrap().variants[0]).unwrap();
    let recorded = Call::new(&executable).recorded();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (plots, parquet) = (path("plots"), path("traces.parquet"));
    let (_, json) = run(&["--policies", "given,third", "--json", "--plots", &plots], &recorded);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let [given, third] = [&report["policies"][0], &report["policies"][1]];
    assert_eq!(
        (&given["weights"], &third["weights"]),
        (&serde_json::json!({}), &serde_json::json!({"conditional": 2}))
    );
    assert_eq!(
        (&given["length_weight"], &given["trace_length"]),
        (&"coverage".into(), &given["trace_length_by_coverage"])
    );
    let (_, text) = run(&["--policies", "given,third"], &recorded);
    assert_eq!(text.matches("conditional=2").count(), 1, "{text}");
    assert!(text.contains("weighted by coverage") && text.contains("length/occurrences"), "{text}");
    let policies = std::fs::read_to_string(format!("{plots}/policies.csv")).unwrap();
    assert!(policies.starts_with("policy,trace length by coverage,trace length by occurrences,"), "{policies}");
    assert_eq!(policies.matches("conditional=2").count(), 1, "{policies}");
    let arguments = ["--weight", "conditional=2", "--length-weight", "occurrences", "--json", "-o", &parquet];
    let (_, json) = run(&arguments, &recorded);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let own = &report["policies"][0];
    assert_eq!(
        (&own["length_weight"], &own["trace_length"]),
        (&"occurrences".into(), &own["trace_length_by_occurrences"])
    );
    assert_eq!(own["trace_length"], third["trace_length_by_occurrences"]);
    let reader = SerializedFileReader::new(std::fs::File::open(&parquet).unwrap()).unwrap();
    let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let value = |key: &str| pairs.iter().find(|pair| pair.key == key).unwrap().value.clone().unwrap();
    assert_eq!(value("weights"), "conditional=2");
    assert_eq!(value("trace_length_by_coverage"), own["trace_length_by_coverage"].to_string());
}

fn run(arguments: &[&str], recorded: &RecordedCall) -> (Exit, String) {
    let mut command = Command::new(trackway());
    command.arg("segment").args(arguments).arg("-i").arg(&recorded.path);
    let finished = process::run(&mut command);
    (finished.exit, finished.stdout_text().to_string() + &finished.stderr_text())
}

/// A running program is segmented like its recorded trace.
#[test]
fn live_is_as_recorded() {
    let executable = workloads::build("loops", workloads::find("loops").unwrap().variants[0]).unwrap();
    let recorded = Call::new(&executable).recorded();
    let (_, from_file) = run(&["--policies", "first", "--json"], &recorded);
    let mut command = Command::new(trackway());
    command.args(["segment", "--policies", "first", "--json", "--"]).arg(&executable);
    let finished = process::run(&mut command);
    assert_eq!(finished.exit, recorded.finished.exit);
    assert_eq!(finished.stdout_text(), recorded.finished.stdout_text().to_string() + &from_file);
}

/// A Parquet file has the same traces as a CSV file, in the same order, with matching columns.
fn check_parquet(path: &std::path::Path, csv: &str) {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len() + 1, csv.lines().count());
    for (row, line) in rows.iter().zip(csv.lines().skip(1)) {
        let (start, outcomes) = (row.get_ulong(0).unwrap(), row.get_uint(3).unwrap());
        let (instructions, cfis) = (row.get_uint(1).unwrap(), row.get_uint(2).unwrap());
        let (reason, occurrences) = (row.get_string(4).unwrap(), row.get_ulong(5).unwrap());
        assert_eq!(format!("{start:#x},{instructions},{cfis},{outcomes:#x},{reason},{occurrences}"), line);
        let (consistency, chain, path) =
            (row.get_double(6).unwrap(), row.get_uint(7).unwrap(), row.get_list(8).unwrap());
        assert!(consistency > 0.0 && consistency <= 1.0, "{row}");
        assert!((1..=instructions).contains(&chain), "{row}");
        assert_eq!(format!("{}", path.elements()[0]), start.to_string());
        assert!(path.len() <= 1 + instructions as usize, "{row}");
    }
}

/// Trace caches and plots.
#[test]
fn trace_caches_and_plots_are_written() {
    let executable = workloads::build("radiosity", Variant::Pie).unwrap();
    let recorded = Call::new(executable).args(["2", "1"]).recorded();
    let directory = tempfile::tempdir().unwrap();
    let plots = directory.path().join("plots");
    let caches = "16x4:lru,4096x4:lru,65536x64:lru,16x4:lfu,16x4:blocks";
    let arguments = ["--policies", "given,fourth", "--restructure", "--cache", caches, "--json", "--plots"];
    let (exit, text) = run(&[&arguments[..], &[plots.to_str().unwrap()]].concat(), &recorded);
    assert_eq!(exit, Exit::Status(0), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let policies = report["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 17);
    for policy in policies {
        let (fetch, traces) = (&policy["fetch"], policy["paths"].as_u64().unwrap());
        let hits = |cache: usize| fetch["caches"][cache]["hits"].as_u64().unwrap();
        let executed = fetch["traces"].as_u64().unwrap();
        // The last trace of a thread does not end, and is not fetched.
        assert!(executed <= policy["occurrences"].as_u64().unwrap());
        assert!(hits(0) <= hits(1) && hits(1) <= hits(2), "{fetch}");
        // Every trace misses once.
        assert!(executed - hits(2) + 8 >= traces && executed - hits(2) <= traces + traces / 100, "{fetch}");
        assert!(fetch["mispredicted"].as_u64().unwrap() + 8 >= traces, "{fetch}");
        assert!((3..5).all(|cache| hits(cache) > 0 && hits(cache) <= hits(1)), "{fetch}");
    }
    for (name, begin) in [
        ("coverage.svg", "<svg"),
        ("coverage.csv", "policy,"),
        ("length-and-count.svg", "<svg"),
        ("ratio.svg", "<svg"),
        ("policies.csv", "policy,"),
    ] {
        assert!(std::fs::read_to_string(plots.join(name)).unwrap().starts_with(begin), "{name}");
    }
}

/// The experiment over recorded traces and over programs: all tables are there.
#[test]
fn the_experiment_has_all_tables() {
    let executable = workloads::build("radiosity", Variant::Pie).unwrap();
    let recorded = Call::new(executable).args(["2", "1"]).recorded();
    let directory = tempfile::tempdir().unwrap();
    let plots = directory.path().join("plots");
    let mut command = Command::new(trackway());
    command.args(["experiment", "segment", "--length", "2M", "--markdown", "--plots"]).arg(&plots).arg(&recorded.path);
    let text = process::run(&mut command).stdout_text().to_string();
    assert!(text.contains("<a id=\"table-7-9-occurrences\"></a>\n\n### Table 7.9: "), "{text}");
    for number in 1..=15 {
        assert!(text.contains(&format!("Table 7.{number}: ")), "{number}: {text}");
        assert!(plots.join(format!("table-7-{number}.csv")).exists());
    }
    assert!(text.contains("Beyond the thesis") && plots.join("figure-7-4.svg").exists());
    let mut command = Command::new(trackway());
    command.args(["experiment", "segment", "--length", "1M", "--json", "--programs", "perl,sort,perl"]);
    let finished = process::run(&mut command);
    let report: serde_json::Value = serde_json::from_str(&finished.stdout_text()).unwrap();
    let programs = report["programs"].as_array().unwrap();
    assert_eq!(programs.len(), 2);
    assert!(report["tables"].as_array().unwrap().len() > 15);
    for program in programs {
        assert_eq!(program["instructions"], 1_000_000);
        for (kind, count) in [("first", 32), ("second", 2), ("third", 2), ("fourth", 16)] {
            assert_eq!(program[kind].as_array().unwrap().len(), count);
        }
    }
    let mut command = Command::new(trackway());
    let finished = process::run(command.args(["experiment", "segment", "--programs", "nothing"]));
    assert!(finished.stderr_text().contains("there are bc, bzip2"), "{}", finished.stderr_text());
}

#[test]
fn the_command_writes_csv_parquet_and_json() {
    let executable = workloads::build("radiosity", Variant::Pie).unwrap();
    let recorded = Call::new(executable).args(["2", "1"]).recorded();
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("traces.csv");
    let thesis = ["-ins", "64", "-cfis", "8", "-flags", "1,0,1,1,0,1,1,1,0,0,1", "-start", "1000", "-stop", "200k"];
    let (exit, text) = run(&[&thesis[..], &["-o", csv.to_str().unwrap()]].concat(), &recorded);
    assert!(exit == Exit::Status(0) && text.contains("199 000 instructions in traces"), "{text}");
    assert!(text.contains("10110111001   64     8"), "{text}");
    let csv = std::fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("StartAddress,Instructions,CFICount,BranchOutcomes,Reason,Occurrences"));
    let sum: u64 = lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert!(cells.len() == 6 && cells[0].starts_with("0x") && cells[3].starts_with("0x"), "{line}");
            cells[1].parse::<u64>().unwrap() * cells[5].parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!(sum, 199_000);
    let parquet = directory.path().join("traces.parquet");
    let (exit, text) = run(&[&thesis[..], &["--dependences", "-o", parquet.to_str().unwrap()]].concat(), &recorded);
    assert_eq!(exit, Exit::Status(0), "{text}");
    check_parquet(&parquet, &csv);
    let (exit, text) = run(&["--policies", "first,second,third,fourth", "--json"], &recorded);
    assert!(exit == Exit::Status(0) && text.matches("\"max_norm_ratio\"").count() == 50, "{text}");
    let (exit, text) = run(&["-start", "100G"], &recorded);
    assert!(exit == Exit::Status(0) && text.contains("none from number 100 000 000 000 on"), "{text}");
    for (arguments, sentence) in [
        (&["-ins", "0"][..], "1 to 4294967295"),
        (&["-cfis", "0"], "1 to 4294967295"),
        (&["-flags", "1,0"], "eleven numbers"),
        (&["--end", "ret"], "direct-call"),
        (&["-start", "5", "-stop", "5"], "-stop has to be larger"),
        (&["--policies", "first", "-o", "x.csv"], "one policy"),
        (&["--consistency", "1.5"], "at most 1"),
        (&["--cache", "100x4"], "1, 2, 4, 8 ... sets"),
        (&["--path", "3"], "--cache"),
    ] {
        let (exit, text) = run(arguments, &recorded);
        assert!(matches!(exit, Exit::Status(1 | 2)) && text.contains(sentence), "{arguments:?}: {text}");
    }
}
