//! Prints what an access costs in each part of the compression, and in all of it: loop nests,
//! random input, and a mix.

use std::hint::black_box;
use std::time::Instant;

use trackway_memory::prsd::{Detector, MAX_LEVEL, PieceEncoder};
use trackway_memory::second_stage::SecondStage;
use trackway_memory::sequitur::BoundedGrammars;
use trackway_memory::vpc3::{Vpc3Compressor, Vpc3Record};

/// A path is what SEQUITUR compresses; it has several access points.
const POINTS_OF_PATH: usize = 4;
const PATHS: usize = 64;
const ROWS: u64 = 1000;
const SIZE_LIMIT: usize = 1 << 16;
const REPETITIONS: usize = 5;

/// Executed paths, and for each one address of each of its access points.
struct Trace {
    paths: Vec<u32>,
    addresses: Vec<u64>,
}

fn main() {
    println!("ns for an access (SEQUITUR: for a path), the best of {REPETITIONS}; bytes for an access");
    println!("input                    SEQUITUR  detector   both  bytes    VPC3  bytes");
    for (name, trace) in [
        ("nest of one path", nest(1)),
        ("nest of three paths", nest(3)),
        ("nest of twenty paths", nest(20)),
        ("random", random_trace()),
        ("nests and random", mix()),
    ] {
        print_row(name, &trace);
    }
}

fn print_row(name: &str, trace: &Trace) {
    let accesses = trace.addresses.len() as f64;
    let (sequitur, _) = best(|| push_paths(trace));
    let (detector, _) = best(|| push_addresses(trace));
    let (both, both_bytes) = best(|| push_paths(trace) + push_addresses(trace));
    let (vpc3, vpc3_bytes) = best(|| push_records(trace));
    println!(
        "{name:24} {:8.1}  {:8.1}  {:5.1}  {:5.2}  {:6.1}  {:5.2}",
        sequitur / trace.paths.len() as f64,
        detector / accesses,
        both / accesses,
        both_bytes as f64 / accesses,
        vpc3 / accesses,
        vpc3_bytes as f64 / accesses,
    );
}

/// Returns the shortest time in nanoseconds, and the number of bytes.
fn best(work: impl Fn() -> usize) -> (f64, usize) {
    let run = |_| {
        let start = Instant::now();
        let bytes = black_box(work());
        (start.elapsed().as_nanos() as f64, bytes)
    };
    (0..REPETITIONS).map(run).min_by(|one, other| one.0.total_cmp(&other.0)).expect("there are repetitions")
}

fn push_paths(trace: &Trace) -> usize {
    let (mut grammars, mut out) = (BoundedGrammars::new(SIZE_LIMIT), Vec::new());
    for &path in &trace.paths {
        if let Some(rules) = grammars.push(path) {
            rules.encode(&mut out);
        }
    }
    grammars.finish().into_iter().for_each(|rules| rules.encode(&mut out));
    out.len()
}

fn push_addresses(trace: &Trace) -> usize {
    let point = || (Detector::new(MAX_LEVEL), PieceEncoder::default(), Vec::new());
    let mut points: Vec<_> = (0..PATHS * POINTS_OF_PATH).map(|_| point()).collect();
    for (&path, addresses) in trace.paths.iter().zip(trace.addresses.chunks(POINTS_OF_PATH)) {
        let of_path = &mut points[path as usize * POINTS_OF_PATH..][..POINTS_OF_PATH];
        for (&address, (detector, encoder, out)) in addresses.iter().zip(of_path) {
            detector.push(address, &mut |piece| encoder.put(out, piece));
        }
    }
    for (detector, encoder, out) in &mut points {
        detector.finish(&mut |piece| encoder.put(out, piece));
    }
    points.iter().map(|(_, _, out)| out.len()).sum()
}

fn push_records(trace: &Trace) -> usize {
    let mut compressor = Vpc3Compressor::new(SecondStage::Zstd(1));
    let mut length = 0;
    for (&path, addresses) in trace.paths.iter().zip(trace.addresses.chunks(POINTS_OF_PATH)) {
        for (&address, point) in addresses.iter().zip(path * POINTS_OF_PATH as u32..) {
            length += compressor.push(Vpc3Record { pc: point, address }).map_or(0, |chunk| chunk.len());
        }
    }
    length + compressor.finish().map_or(0, |chunk| chunk.len())
}

/// A nest of loops whose inner loop executes `paths` paths, each with one address per column.
fn nest(paths: u32) -> Trace {
    let mut trace = Trace { paths: Vec::new(), addresses: Vec::new() };
    for row in 0..ROWS {
        push_row(&mut trace, 0..paths, row);
    }
    trace
}

/// A row of the inner loop, and the path of the outer loop behind it.
fn push_row(trace: &mut Trace, paths: std::ops::Range<u32>, row: u64) {
    for column in 0..ROWS / u64::from(paths.end - paths.start) {
        for path in paths.clone() {
            push_path(trace, path, |point| (point << 32) + 0x10_0000 * row + 8 * column);
        }
    }
    push_path(trace, paths.end, |point| (point << 32) + 8 * row);
}

fn push_path(trace: &mut Trace, path: u32, mut address: impl FnMut(u64) -> u64) {
    trace.paths.push(path);
    let first = u64::from(path) * POINTS_OF_PATH as u64;
    trace.addresses.extend((first..first + POINTS_OF_PATH as u64).map(&mut address));
}

fn random_trace() -> Trace {
    let (mut random, mut trace) = (random(), Trace { paths: Vec::new(), addresses: Vec::new() });
    for _ in 0..ROWS * ROWS {
        push_path(&mut trace, (random() % PATHS as u64) as u32, |_| random());
    }
    trace
}

/// Rows of different loops, and random accesses in other paths.
fn mix() -> Trace {
    let (mut random, mut trace) = (random(), Trace { paths: Vec::new(), addresses: Vec::new() });
    while trace.paths.len() < (ROWS * ROWS) as usize {
        let (first, count, rows) = ((random() % 8 * 6) as u32, 1 + (random() % 5) as u32, random() % 30);
        for row in 0..rows {
            push_row(&mut trace, first..first + count, row);
        }
        for _ in 0..rows * ROWS / 7 {
            push_path(&mut trace, 48 + (random() % 16) as u32, |_| random() % (1 << 47));
        }
    }
    trace
}

/// Pseudorandom numbers (xorshift).
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
