//! `trackway memory`: what it compresses comes back exactly, takes as little space as it says, and
//! bad input is refused in a sentence.

use std::path::Path;
use std::process::Command;

use acceptance::source::compile;
use acceptance::{Call, Data, ProcessOutput, RecordedCall, process, tool, trackway};
use memory::{MemoryCodec, MemoryTrace};
use serde_json::Value;
use trace::Trace;

fn run(arguments: &[&str], files: &[&Path]) -> ProcessOutput {
    process::run(Command::new(trackway()).args(arguments).args(files))
}

/// Compresses a recording and returns what the command reports.
fn compress(trace: &Path, codec: MemoryCodec, out: &Path, options: &[&str]) -> Value {
    let arguments = [&["memory", "compress", "--json", "--codec", codec.name()], options, &["-o"]].concat();
    let output = run(&arguments, &[out, trace]);
    assert_eq!(output.stderr_text(), "");
    serde_json::from_str(&output.stdout_text()).unwrap()
}

/// Compares the accesses of a memory trace with those of the trace that it was made from.
fn assert_equal(trace: &Trace, compressed: &Path, what: &str) {
    let memory = MemoryTrace::open(compressed).unwrap();
    let (mut records, mut merged) = (memory.merged(), trace.merged_with_accesses().unwrap());
    while let Some(batch) = merged.next_batch().unwrap() {
        for access in batch.accesses() {
            let (thread, record) = records.next().unwrap_or_else(|| panic!("{what}: too few")).unwrap();
            let point = memory.point(record.point).unwrap();
            let back = (thread, point.pc, point.size, point.is_write, record.address);
            let recorded = (batch.thread(), access.pc(), access.size(), access.is_write(), access.address());
            assert_eq!(back, recorded, "{what}");
        }
    }
    assert!(records.next().is_none(), "{what}: too many");
}

/// Records a program, and checks that every codec gives its accesses back.
fn check(call: &Call) {
    check_codecs(call, &MemoryCodec::ALL);
}

fn check_codecs(call: &Call, codecs: &[MemoryCodec]) {
    let recorded = call.clone().data(Data::Addresses).recorded();
    let out = recorded.directory.path().join("t.mem");
    for &codec in codecs {
        let what = format!("{call:?} {codec}");
        let report = compress(&recorded.path, codec, &out, &[]);
        let counts = recorded.trace.totals();
        assert_eq!(report["accesses"].as_u64(), Some(counts.reads + counts.writes), "{what}");
        assert_eq!(report["raw_bytes"].as_u64(), Some(6 * (counts.reads + counts.writes)), "{what}");
        assert_eq!(report["compressed_bytes"].as_u64(), Some(out.metadata().unwrap().len()), "{what}");
        assert_equal(&recorded.trace, &out, &what);
    }
}

#[test]
fn real_programs_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let text: String = (0..2000).map(|number| format!("{} line {number}\n", number * 7919 % 1000)).collect();
    let file = acceptance::source::write(directory.path(), "numbers", &text);
    let call = |name: &str, arguments: &[&str]| Call::new(tool::required(name)).args(arguments);
    check(&call("sort", &["-n", "--parallel=2"]).arg(&file));
    check(&call("gzip", &["-c"]).arg(&file));
    check(&call("bzip2", &["-c"]).arg(&file));
    check(&call("xz", &["-1", "-c"]).arg(&file));
    check(&call("grep", &["-E", "l[i-k]ne .*(1|2)+3"]).arg(&file));
    check(&call("sed", &["s/line/LINE/g"]).arg(&file));
    check(&call("awk", &["{ sum += $1 } END { print sum }"]).arg(&file));
    check(&call("sha256sum", &[]).arg(&file));
    check(&call("perl", &["-e", "my %h; $h{$_ % 97} += $_ for 1..5000; print scalar keys %h"]));
    check(&call("sqlite3", &[":memory:", "create table t(a); insert into t values (1), (2); select sum(a) from t"]));
}

#[test]
fn workloads_come_back() {
    let of_oracle: Vec<&str> = workloads::oracle_programs().iter().map(|program| program.program.name).collect();
    for program in workloads::programs() {
        let executable = workloads::build(program.name, program.variants[0]).unwrap();
        let call = Call::new(executable).args(program.runs[0].arguments).environment(&[]);
        // The others have threads, and many more accesses.
        let codecs = if of_oracle.contains(&program.name) { &MemoryCodec::ALL[..] } else { &[MemoryCodec::Prsd] };
        check_codecs(&call, codecs);
    }
}

/// The accesses of a nest of two loops over matrices with `size` rows and columns.
const NEST: &str = "\
#include <stdlib.h>
double a[2000 * 2000], b[2000 * 2000];
__attribute__((noinline)) void nest(long size) {
    for (long i = 0; i < size; i++)
        for (long j = 0; j < size; j++)
            a[i * size + j] += b[j * size + i];
}
int main(int count, char **words) { (void)count; nest(atol(words[1])); }
";

#[test]
fn a_nest_of_loops_takes_constant_space() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "nest.c", NEST, &["gcc", "-O1"]);
    let shape = |size: u32| {
        let call = Call::new(&program).arg(size.to_string()).data(Data::Addresses).options(["--routine", "nest"]);
        let recorded = call.recorded();
        let out = recorded.directory.path().join("t.mem");
        let report = compress(&recorded.path, MemoryCodec::Prsd, &out, &[]);
        let accesses = 3 * u64::from(size).pow(2) + 1;
        assert_eq!(report["accesses"].as_u64(), Some(accesses), "three in the loops, and the return");
        assert_equal(&recorded.trace, &out, "nest");
        ["regular_sections", "irregular_accesses", "rules", "symbols", "rows"].map(|key| report[key].as_u64().unwrap())
    };
    let [first, others @ ..] = [200, 333, 1000, 2000].map(shape);
    assert_eq!(first[..2], [3, 1], "one PRSD for each access point");
    assert_eq!(others, [first; 3], "sections, irregular accesses, rules, symbols, rows");
    let [sections, _, rules, symbols, _] = first;
    println!("{sections} PRSDs of 3 access points, a grammar of {rules} rules and {symbols} symbols, for every size");
}

#[test]
fn expansion_is_what_dump_lists() {
    let recorded = Call::new(tool::required("true")).data(Data::Addresses).recorded();
    let out = recorded.directory.path().join("t.mem");
    compress(
        &recorded.path,
        MemoryCodec::Prsd,
        &out,
        &["--second-stage", "bzip2", "--grammar", "100", "--levels", "2"],
    );
    for format in [&["--format", "ascii"][..], &["--format", "binary"], &["--format", "binary", "--wide"], &["--json"]]
    {
        let expanded = run(&[&["memory", "expand"], format].concat(), &[&out]);
        let listed = run(&[&["dump", "--kind", "memory"], format].concat(), &[&recorded.path]);
        assert!(expanded.stdout == listed.stdout && !listed.stdout.is_empty(), "{format:?}");
    }
}

#[test]
fn regularity_is_that_of_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(directory.path(), "nest.c", NEST, &["gcc", "-O1"]);
    let recorded = Call::new(&program).arg("300").data(Data::Addresses).options(["--routine", "nest"]).recorded();
    let out = recorded.directory.path().join("t.mem");
    compress(&recorded.path, MemoryCodec::Prsd, &out, &[]);
    let json: Value = serde_json::from_str(&run(&["memory", "streams", "--json"], &[&out]).stdout_text()).unwrap();
    let points = json["points"].as_array().unwrap();
    let mut strides = Vec::new();
    for point in points.iter().filter(|point| point["accesses"] == 90_000) {
        let number = |key: &str| point[key].as_u64().unwrap();
        assert_eq!((point["regularity_ratio"].as_f64(), number("distinct_strides")), (Some(1.0), 1));
        assert!(point["name"].as_str().unwrap().starts_with("nest+0x"));
        let length = point["lengths"][0]["value"].as_u64().unwrap();
        strides.push((point["strides"][0]["value"].as_i64().unwrap(), number("streams"), length));
    }
    strides.sort_unstable();
    // The rows of one matrix follow each other; the columns of the other one do not.
    assert_eq!(strides, [(8, 1, 90_000), (8, 1, 90_000), (2400, 300, 300)]);
}

fn refused(arguments: &[&str], files: &[&Path]) -> String {
    let output = run(arguments, files);
    assert_eq!((output.exit, output.stdout_text().as_str()), (workloads::Exit::Status(1), ""));
    output.stderr_text()
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let with_data: RecordedCall = Call::new(tool::required("true")).data(Data::Addresses).recorded();
    let without = Call::new(tool::required("true")).recorded();
    let out = with_data.directory.path().join("t.mem");
    let compress_to = ["memory", "compress", "-o"];
    let text = refused(&compress_to, &[&out, &without.path]);
    assert!(text.contains("--data addresses"), "{text}");
    let text =
        refused(&[&["memory", "compress", "--routine", "mallok"][..], &["-o"]].concat(), &[&out, &with_data.path]);
    assert!(text.contains("no module of the trace has a function called mallok (did you mean malloc"), "{text}");
    let text = refused(&["memory", "compress", "--codec", "vpc3", "--routine", "main", "-o"], &[&out, &with_data.path]);
    assert!(text.contains("the codec vpc3 keeps no scopes"), "{text}");
    assert!(!out.exists());
    let text = refused(&compress_to, &[&with_data.path, &with_data.path]);
    assert!(text.contains("would be written over"), "{text}");
    let text = refused(&["memory", "expand"], &[&with_data.path]);
    assert!(text.contains("is not a memory trace") && text.contains("trackway memory compress"), "{text}");
    compress(&with_data.path, MemoryCodec::Vpc3, &out, &[]);
    let text = refused(&["memory", "streams"], &[&out]);
    assert!(text.contains("codec vpc3"), "{text}");
    let bytes = std::fs::read(&out).unwrap();
    std::fs::write(&out, &bytes[..bytes.len() - 1]).unwrap();
    let text = refused(&["memory", "expand"], &[&out]);
    assert!(text.contains("is damaged at byte"), "{text}");
}
