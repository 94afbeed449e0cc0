//! Tests of the tables and figures of METRIC over made-up results.

use memory::MemoryCodec;

use super::*;

fn codec(rate: f64, [detector, order, records, output]: [f64; 4]) -> CodecResult {
    CodecResult {
        rate,
        seconds: detector + order + records + output + 0.5,
        detector_seconds: detector,
        order_seconds: order,
        records_seconds: records,
        output_seconds: output,
        compressed_bytes: 1000,
        order_bytes: 250,
        address_bytes: 500,
        symbols: 100,
        regular_sections: 50,
        ..CodecResult::default()
    }
}

fn round(predictable_percent: f64, prsd: f64, vpc3: f64) -> Round {
    let codecs = [
        (MemoryCodec::Prsd, codec(prsd, [1.0, 2.0, 0.0, 0.5])),
        (MemoryCodec::Vpc3, codec(vpc3, [0.0, 0.0, 1.0, 0.0])),
        (MemoryCodec::Native, codec(3.0, [0.0; 4])),
        (MemoryCodec::Raw, codec(0.5, [0.0; 4])),
    ];
    Round {
        accesses: 6_000_000,
        points: 70,
        predictable_percent,
        run_seconds: Some(RunSeconds { native: 0.25, recorded: 1.25 }),
        codecs: codecs.into_iter().map(|(codec, result)| (codec.name(), result)).collect(),
    }
}

fn study() -> Study {
    let result = |program: &str, rounds| ProgramResult { program: program.to_owned(), rounds };
    let results = vec![
        result("sort", vec![round(20.0, 4.0, 8.0)]),
        result("matmul", vec![round(99.0, 100.0, 20.0), round(99.0, 300.0, 60.0), round(99.0, 200.0, 40.0)]),
        result("fft", vec![round(90.0, 50.0, 25.0)]),
    ];
    Study::new(results, true)
}

fn row(study: &Study, table: &str, first: &str) -> Vec<String> {
    let (_, table) = study.tables().into_iter().find(|(name, _)| *name == table).unwrap();
    table.rows().iter().find(|row| row[0] == first).unwrap().clone()
}

#[test]
fn programs_are_found() {
    assert!(matches!(Subject::find("fft"), Ok(Subject::Parallel("fft"))));
    assert!(matches!(Subject::find("sort"), Ok(Subject::Debian(_))));
    assert!(DEFAULT_PROGRAMS.into_iter().all(|name| Subject::find(name).is_ok()));
    let error = Subject::find("nothing").err().unwrap();
    assert_eq!(error.to_string(), "there is no program called nothing");
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("there are fft, ") && hint.contains(", bc, bzip2,"), "{hint}");
}

#[test]
fn the_most_regular_program_comes_first() {
    let study = study();
    let (_, table) = study.tables().swap_remove(0);
    let names: Vec<&str> = table.rows().iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["matmul", "fft", "sort", "geometric mean", "harmonic mean", "arithmetic mean"]);
}

#[test]
fn rates_have_means_and_ranges() {
    let study = study();
    let cells = row(&study, "table-1", "matmul");
    let expected = ["6.00", "70", "99.00", "200.00 (100.00–300.00)", "40.00 (20.00–60.00)", "5.000", "3.00", "0.50"];
    assert_eq!(cells[1..], expected);
    let geometric = row(&study, "table-1", "geometric mean");
    assert_eq!(geometric[4..], ["34.20", "20.00", "1.710", "3.00", "0.50"]);
    assert_eq!(row(&study, "table-1", "harmonic mean")[4..7], ["10.91", "15.79", ""]);
    assert_eq!(row(&study, "table-1", "arithmetic mean")[4..7], ["84.67", "24.33", ""]);
}

#[test]
fn the_finding_is_computed() {
    let study = study();
    assert_eq!(row(&study, "finding", "regular half")[1..], ["2", "90.00", "2", "3.162", "1.00"]);
    assert_eq!(row(&study, "finding", "irregular half")[1..], ["1", "20.00", "0", "0.500", "-"]);
    let (_, table) = study.tables().swap_remove(1);
    assert_eq!(
        table.caption(),
        "The finding: prsd compresses 2 of 3 programs better than vpc3; the rank correlation of prsd/vpc3 with the \
         share of predictable accesses is 1.00"
    );
}

/// VPC3 takes two seconds, one of them for instrumentation.
#[test]
fn times_are_relative_to_vpc3_with_instrumentation() {
    let study = study();
    assert_eq!(row(&study, "figure-7", "fft")[1..], ["2.00", "0.50", "0.50", "1.00", "0.25", "2.25", "0.25"]);
    assert_eq!(row(&study, "figure-7", "arithmetic mean")[1..4], ["", "0.50", "0.50"]);
    assert_eq!(row(&study, "speed", "fft")[1..], ["6.0", "3.0", "2.0", "6.0"]);
    let mut recorded = round(90.0, 50.0, 25.0);
    recorded.run_seconds = None;
    assert_eq!(recorded.vpc3_seconds(), 1.0);
    assert_eq!(row(&study, "bytes", "fft")[1..], ["1.0", "25.0", "50.0", "60000.0", "120000.0", "10.00"]);
}

#[test]
fn every_figure_shows_every_program() {
    let figures = study().figures();
    assert_eq!(figures.len(), 3);
    for (name, svg) in figures {
        assert!(["matmul", "fft", "sort"].iter().all(|program| svg.contains(program)), "{name}: {svg}");
    }
}

#[test]
fn without_programs_nothing_is_a_number() {
    let empty = Study::new(Vec::new(), true);
    assert_eq!(row(&empty, "table-1", "geometric mean")[4], "-");
    assert_eq!(row(&empty, "finding", "all")[1..], ["0", "-", "0", "-", "-"]);
}
