//! Bits on a trace port decode to the execution: every technique over every workload and over real
//! programs, with threads, signals, code that changes and races. Damaged bits are detected.

use std::process::Command;

use acceptance::{Call, Data, RecordedCall, process, tool, trackway};
use filter::cfiat::KnownCriterion;
use port::bits::BitReader;
use port::chunks::Chunks;
use port::cores::Cores;
use port::message::ExceptionTarget;
use port::nexus::Streams;
use port::{ChunkSizes, Config, Job, PortDecoder, PortSettings, Subject, Technique};
use trace::{Batch, Trace};
use workloads::{Exit, Group, Variant};

/// Only about this number of instructions of longer programs is encoded; the soak test encodes
/// more.
const INSTRUCTIONS_MAX: u64 = 1_000_000;
const SOAK_INSTRUCTIONS_MAX: u64 = 100_000_000;

/// Passes a trace on, batch by batch.
fn each_batch(trace: &Trace, subject: Subject, mut show: impl FnMut(&Batch)) {
    let mut merged = match subject {
        Subject::Flow => trace.merged(),
        Subject::Loads => trace.merged_with_accesses().unwrap(),
    };
    let max = if std::env::var_os("TRACKWAY_SOAK").is_some() { SOAK_INSTRUCTIONS_MAX } else { INSTRUCTIONS_MAX };
    let mut instructions = 0;
    while instructions < max
        && let Some(batch) = merged.next_batch().unwrap()
    {
        instructions += batch.instructions();
        show(batch);
    }
}

fn cores(trace: &Trace) -> Cores {
    Cores::new(trace.threads().iter().map(|thread| thread.info.thread), None).unwrap()
}

/// The bits of a technique, how many there are, and the messages in them.
fn encode(trace: &Trace, technique: Technique, config: &Config, settings: &PortSettings) -> (Vec<u8>, u64, u64) {
    let mut job = Job::new(&[technique], Some(config), settings, &cores(trace), true).unwrap();
    each_batch(trace, technique.subject(), |batch| job.batch(trace.blocks(), batch));
    job.finish();
    let bytes = job.ports()[0].finish();
    let outcome = job.outcomes().remove(0);
    assert_eq!(bytes.len() as u64, outcome.port.bits().div_ceil(8));
    (bytes, outcome.port.bits(), outcome.port.messages)
}

/// Right and wrong steps or loads, and messages.
fn decode(
    trace: &Trace,
    technique: Technique,
    config: &Config,
    settings: &PortSettings,
    bits: BitReader<'_>,
) -> (u64, u64, u64) {
    let mut decoder = PortDecoder::new(technique, config, settings, &cores(trace), bits).unwrap();
    each_batch(trace, technique.subject(), |batch| decoder.batch(trace.blocks(), batch));
    let checked = decoder.finish();
    (checked.matches, checked.mismatches, checked.messages)
}

/// The steps or loads of a trace; some instructions that load are recorded without what they
/// loaded.
fn bits_of(trace: &Trace, subject: Subject) -> u64 {
    let mut count = 0;
    each_batch(trace, subject, |batch| {
        let loads = || batch.accesses().filter(|access| !access.is_write() && batch.value(access).is_some());
        count += match subject {
            Subject::Flow => batch.steps().len(),
            Subject::Loads => loads().count(),
        };
    });
    count as u64
}

fn check_technique(trace: &Trace, technique: Technique, config: &Config, settings: &PortSettings, what: &str) {
    let (bytes, bits, messages) = encode(trace, technique, config, settings);
    let shown = decode(trace, technique, config, settings, BitReader::new(&bytes, bits));
    let compared = bits_of(trace, technique.subject());
    assert_eq!(shown, (compared, 0, messages), "{what}: {} {}", technique.name(), config.name);
}

fn check(recorded: &RecordedCall, config: &Config, what: &str) {
    for technique in Technique::ALL {
        check_technique(&recorded.trace, technique, config, &PortSettings::default(), what);
    }
}

/// The group's programs, this share of them.
fn check_workloads(group: Group, share: usize, shares: usize) {
    for program in workloads::programs().iter().filter(|program| program.group == group).skip(share).step_by(shares) {
        let executable = workloads::build(program.name, program.variants[0]).unwrap();
        let run = &program.runs[0];
        let call = Call::new(executable).args(run.arguments).environment(&[]).data(Data::Values);
        let recorded = call.recorded();
        check(&recorded, &Config::SMALL, program.name);
    }
}

#[test]
fn behaviour_programs_decode_even() {
    check_workloads(Group::Behaviour, 0, 2);
}

#[test]
fn behaviour_programs_decode_odd() {
    check_workloads(Group::Behaviour, 1, 2);
}

#[test]
fn parallel_programs_decode() {
    check_workloads(Group::Parallel, 0, 1);
}

#[test]
fn memory_programs_decode() {
    check_workloads(Group::Memory, 0, 1);
}

#[test]
fn bench_and_seed_programs_decode() {
    check_workloads(Group::Bench, 0, 1);
    check_workloads(Group::Seed, 0, 1);
}

/// Ten programs of a system.
#[test]
fn real_programs_decode() {
    let lines: String = (0..300).map(|i| format!("{} word{} {}\n", i * 7919 % 1000, i % 37, i * 31 % 97)).collect();
    let calls: [(&str, &[&str]); 10] = [
        ("perl", &["-e", "my %h; while (<>) { $h{(split)[1]} += $. } print map { \"$_ $h{$_}\\n\" } sort keys %h"]),
        ("bash", &["-c", "while read a b c; do case $b in word1*) n=$((n + a));; esac; done; echo $n"]),
        ("sort", &["-k2,2", "-k1,1n"]),
        ("awk", &["{ s[$2] += $1 } END { for (w in s) print w, s[w] }"]),
        ("sed", &["-E", "s/(word)([0-9])/\\2\\1/g"]),
        ("grep", &["-cE", "7.*[13]$"]),
        ("gzip", &["-9c"]),
        ("xz", &["-1c", "-T2"]),
        (
            "sqlite3",
            &[
                ":memory:",
                "with recursive n(i) as (select 1 union all select i + 1 from n where i < 200) select sum(i * i) from n",
            ],
        ),
        ("python3", &["-S", "-c", "print(sum(i * i for i in range(1000)))"]),
    ];
    for (name, arguments) in calls {
        let call = Call::new(tool::required(name)).args(arguments).input(lines.clone()).data(Data::Values);
        let recorded = call.recorded();
        assert_eq!(recorded.finished.exit, Exit::Status(0), "{name}");
        check(&recorded, &Config::LARGE, name);
    }
}

fn parallel(name: &str, arguments: &[&str]) -> RecordedCall {
    let executable = workloads::build(name, Variant::Pie).unwrap();
    Call::new(executable).args(arguments).data(Data::Values).recorded()
}

/// The readings of the thesis that are not the default.
#[test]
fn other_readings_of_the_thesis_decode() {
    let nested = workloads::build("signal_nested", Variant::Pie).unwrap();
    for recorded in [parallel("raytrace", &["4", "8"]), Call::new(nested).data(Data::Values).recorded()] {
        let chunks = |first, next| Chunks::new(first, next).unwrap();
        let sizes =
            ChunkSizes { branches: chunks(1, 64), target: chunks(64, 1), loads: chunks(1, 1), ..ChunkSizes::default() };
        let (streams, exception_target) = (Streams::Uninferable, ExceptionTarget::Full);
        let settings = PortSettings { sizes, streams, exception_target, ..PortSettings::default() };
        for technique in Technique::ALL {
            check_technique(&recorded.trace, technique, &Config::SMALL, &settings, "other readings");
        }
        let nexus = |settings| encode(&recorded.trace, Technique::McfNxB, &Config::LARGE, settings).2;
        let totals = recorded.trace.totals();
        let (all, some) = (nexus(&PortSettings::default()), nexus(&settings));
        assert_eq!(all - some, totals.unconditional_direct);
        assert!(some >= totals.conditional_taken);
    }
}

/// Loads that are known by flags alone: no message shows that another thread or the kernel has
/// changed memory. The decoder gets those loads wrong and no others. The messages themselves are
/// right, and there are no more of them than with values.
#[test]
fn flags_alone_decode_all_but_changed_loads() {
    let shell = Call::new("bash").args(["-c", "while read line; do echo $line; done < /etc/passwd"]);
    for recorded in [parallel("radiosity", &["4", "1"]), shell.data(Data::Values).recorded()] {
        let trace = &recorded.trace;
        let settings = PortSettings { known_by: KnownCriterion::Flags, ..PortSettings::default() };
        for technique in [Technique::MlvCfB, Technique::MlvCfE, Technique::MlvCfA, Technique::MlvCcE] {
            let (bytes, bits, messages) = encode(trace, technique, &Config::SMALL, &settings);
            let sound = encode(trace, technique, &Config::SMALL, &PortSettings::default());
            assert!(messages < sound.2 && bits < sound.1, "{}", technique.name());
            let reader = BitReader::new(&bytes, bits);
            let mut decoder = PortDecoder::new(technique, &Config::SMALL, &settings, &cores(trace), reader).unwrap();
            each_batch(trace, Subject::Loads, |batch| decoder.batch(trace.blocks(), batch));
            let checked = decoder.finish();
            assert_eq!((checked.mismatches, checked.messages), (0, messages), "{:?}", checked.problems);
            assert_eq!(checked.matches + checked.stale, bits_of(trace, Subject::Loads));
            // With values, each of them has a message.
            assert!(checked.stale >= sound.2 - messages && checked.stale > 0, "{}", technique.name());
        }
    }
}

/// A wrong bit is detected or has no effect; it never makes the decoder panic.
#[test]
fn damaged_bits_never_panic() {
    let recorded = parallel("raytrace", &["3", "4"]);
    let (trace, settings, config) = (&recorded.trace, PortSettings::default(), Config::SMALL);
    for technique in Technique::ALL {
        let (bytes, bits, _) = encode(trace, technique, &config, &settings);
        let mut noticed = 0;
        const TRIES: usize = 5;
        for try_number in 0..TRIES {
            let mut damaged = bytes.clone();
            let place = damaged.len() * (2 * try_number + 1) / (2 * TRIES);
            damaged[place] ^= 1 << try_number;
            let (_, wrong, _) = decode(trace, technique, &config, &settings, BitReader::new(&damaged, bits));
            noticed += usize::from(wrong > 0);
        }
        assert!(noticed > TRIES / 2, "{}", technique.name());
        let (_, wrong, _) = decode(trace, technique, &config, &settings, BitReader::new(&bytes, bits / 2));
        assert!(wrong > 0, "{}", technique.name());
    }
}

fn run(arguments: &[&str], input: &RecordedCall) -> (process::ProcessOutput, String) {
    let words = arguments.iter().map(|&word| if word == "TRACE" { input.path.as_os_str() } else { word.as_ref() });
    let finished = process::run(Command::new(trackway()).arg("port").args(words));
    let text = finished.stdout_text().to_string() + &finished.stderr_text();
    (finished, text)
}

#[test]
fn the_command_writes_and_reads_bits() {
    let (recorded, directory) = (parallel("radiosity", &["3", "1"]), tempfile::tempdir().unwrap());
    let file = directory.path().join("x.bits");
    let file = file.to_str().unwrap();
    for technique in Technique::ALL {
        let name = technique.name();
        for part in [&[][..], &["--thread", "1", "--skip", "1k"], &["--skip", "2.5k", "--length", "200k"]] {
            let written = [&["TRACE", "--technique", name, "-o", file, "--cores", "8"], part].concat();
            let (finished, text) = run(&written, &recorded);
            assert_eq!(finished.exit, Exit::Status(0), "{text}");
            let (finished, text) = run(&["decode", file, "--program", "TRACE"], &recorded);
            assert_eq!(finished.exit, Exit::Status(0), "{name} {part:?}: {text}");
            assert!(text.contains("equal to the trace"), "{text}");
        }
    }
}

#[test]
fn the_command_counts_loads_that_flags_do_not_determine() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.bits");
    let file = file.to_str().unwrap();
    let write = ["TRACE", "--technique", "mlvCF_e", "--known", "flags", "-o", file];
    let decode = ["decode", file, "--program", "TRACE"];
    let recorded = parallel("radiosity", &["3", "1"]);
    let (finished, text) = run(&write, &recorded);
    assert!(finished.exit == Exit::Status(0) && text.contains("loads known by flags alone"), "{text}");
    let (finished, text) = run(&decode, &recorded);
    assert_eq!(finished.exit, Exit::Status(1), "{text}");
    assert!(text.contains("mlvCF_e (large, known by flags), not equal to the trace: "), "{text}");
    assert!(text.contains(" loads are not what flags promise by "), "{text}");
    let (_, text) = run(&[&decode[..], &["--json"]].concat(), &recorded);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["equal"], &found["wrong"]), (&false.into(), &0.into()));
    assert!(found["stale"].as_u64().unwrap() > 0);
    // Only the program itself changes its memory, and each byte has a flag.
    let alone = workloads::build("memory_moves", workloads::find("memory_moves").unwrap().variants[0]).unwrap();
    let recorded = Call::new(alone).data(Data::Values).recorded();
    run(&[&write[..], &["--config", "custom", "--cfg", "1"]].concat(), &recorded);
    let (finished, text) = run(&decode, &recorded);
    assert!(finished.exit == Exit::Status(0) && text.contains("known by flags), equal to the trace: "), "{text}");
    // With a wrong bit, messages are wrong, too.
    let mut bytes = std::fs::read(file).unwrap();
    bytes[8] ^= 0x80;
    std::fs::write(file, bytes).unwrap();
    let (finished, text) = run(&decode, &recorded);
    assert!(finished.exit == Exit::Status(1) && text.contains(" wrong of "), "{text}");
}

/// The messages that are decoded from the bits are those that mcfTRaptor and mlvCFiat write.
#[test]
fn messages_are_those_of_the_tools() {
    let (recorded, directory) = (parallel("raytrace", &["3", "4"]), tempfile::tempdir().unwrap());
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (bits, messages) = (path("x.bits"), path("x.messages"));
    let cache = ["-cs", "64", "-cls", "64"];
    let known = ["--known", "flags"];
    for (technique, tool, flags, known) in [
        ("mcfTR_e", "mcfTRaptor", &[][..], &[][..]),
        ("mlvCF_e", "mlvCFiat", &cache, &[]),
        ("mlvCF_e", "mlvCFiat", &cache, &known),
    ] {
        run(&[&["TRACE", "--technique", technique, "-o", &bits], known].concat(), &recorded);
        let (finished, text) = run(&["decode", &bits, "--program", "TRACE", "--messages", &messages], &recorded);
        assert_eq!(finished.exit, Exit::Status(i32::from(!known.is_empty())), "{text}");
        let mut command = Command::new(trackway());
        command.args([tool, "-a", "-q", "-o", &path(tool), "-i"]).arg(&recorded.path).args(flags).args(known);
        assert_eq!(process::run(&mut command).exit, Exit::Status(0));
        // Threads may have longer turns.
        let by_thread = |file: &str| {
            let text = std::fs::read_to_string(file).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort_by_key(|line| line.split(',').next().unwrap().to_owned());
            lines
        };
        let (one, other) = (by_thread(&messages), by_thread(&path(&format!("{tool}.txt"))));
        assert!(one.len() > 100 && one == other, "{technique}: {:?} and {:?}", &one[..5], &other[..5]);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let values = parallel("fft", &["2", "1"]);
    let program = workloads::build("fft", Variant::Pie).unwrap();
    let control = Call::new(program).args(["2", "1"]).recorded();
    let cases: [(&RecordedCall, &[&str], &str); 13] = [
        (&values, &["TRACE", "--technique", "mlvNX_b,mcfTR_e", "--known", "flags"], "have no cache"),
        (&values, &["TRACE", "--chunks", "bCnt=0,2"], "sizes are 1 to 64"),
        (&values, &["TRACE", "--chunks", "SL=8,8"], "fields are bCnt, iCnt, diffTA, fahCnt and time"),
        (&values, &["TRACE", "--technique", "mcfTR_b", "--chunks", "bCnt=1,1"], "fixed sizes"),
        (&values, &["TRACE", "--technique", "mcfTR_b", "-o", "TRACE"], "would be written over"),
        (&values, &["TRACE", "--config", "huge"], "small, medium, large, all, custom"),
        (&values, &["TRACE", "--config", "custom", "--gshare", "1000"], "512 and 1024"),
        (&values, &["TRACE", "--config", "custom", "--cs", "3"], "2048 and 4096"),
        (&values, &["TRACE", "--gshare", "1024"], "--config custom"),
        (&values, &["TRACE", "--technique", "mcfTR"], "mcfTR_b, mcfTR_e"),
        (&values, &["TRACE", "--cores", "1"], "2 threads need as many cores, and there are 1"),
        (&values, &["TRACE", "-o", "/tmp/none"], "one technique and one configuration"),
        (&control, &["TRACE", "--technique", "mlvCF_e"], "--data values"),
    ];
    for (recorded, arguments, sentence) in cases {
        let (finished, text) = run(arguments, recorded);
        assert!(matches!(finished.exit, Exit::Status(1 | 2)), "{arguments:?}: {text}");
        assert!(text.contains(sentence), "{arguments:?}: {text}");
    }
    let (finished, text) = run(&["TRACE"], &control);
    assert_eq!(finished.exit, Exit::Status(0));
    assert!(text.contains("mlv techniques are left out") && !text.contains("mlvCF_e"), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.bits");
    let file = file.to_str().unwrap();
    run(&["TRACE", "--technique", "mcfTR_e", "-o", file], &control);
    let (finished, text) = run(&["decode", file, "--program", "TRACE"], &parallel("fft", &["3", "1"]));
    assert!(finished.exit == Exit::Status(1) && text.contains("other threads"), "{text}");
    let (finished, text) = run(&["decode", file, "--program", "TRACE"], &parallel("radix", &["2", "1"]));
    assert!(finished.exit == Exit::Status(1) && text.contains("not equal"), "{text}");
    let (finished, text) = run(&["decode", "TRACE", "--program", "TRACE"], &control);
    assert!(finished.exit == Exit::Status(1) && text.contains("no file of port bits"), "{text}");
}

/// Every program is recorded `--repeat` times, and the tables have the numbers of the figures.
#[test]
fn the_experiment_has_all_tables() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(trackway());
        command.args(["experiment", "port", "--programs", "fft,radix", "--threads", "1,2", "--size", "3"]).args(words);
        let finished = process::run(command.current_dir(directory.path()));
        assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
        finished.stdout_text().to_string()
    };
    let rows: serde_json::Value = serde_json::from_str(&run(&["--repeat", "2", "--json"])).unwrap();
    let rounds: Vec<u64> = rows.as_array().unwrap().iter().map(|row| row["round"].as_u64().unwrap()).collect();
    assert_eq!(rounds, [1, 1, 1, 1, 2, 2, 2, 2]);
    let text = run(&["--repeat", "1", "--markdown", "--plots", "plots"]);
    assert!(text.contains("<a id=\"table-5-7\"></a>\n\n### Table 5.7: "), "{text}");
    let read = |name: &str| std::fs::read_to_string(directory.path().join("plots").join(name)).unwrap();
    let misses = read("figure-5-5.csv");
    let mut lines = misses.lines().map(|line| line.trim_end().split(',').collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap()[..5], ["caches", "config", "N=1", "N=1 min", "N=1 max"]);
    for line in lines {
        let [all, least, most] = [2, 3, 4].map(|place| line[place].parse::<f64>().unwrap());
        assert!(least <= all && all <= most && least < most, "{line:?}");
    }
    let totals = read("figure-5-3.svg");
    for size in ["small", "medium", "large"] {
        assert!(totals.contains(&format!("{size}, N = 2")), "{size}");
    }
}
