//! Prints how fast traces are read and written again: `cargo run --release -p trace --example speed -- FILE...`

use std::path::Path;
use std::time::Duration;

use trace::Trace;
use trace::measure::Measurement;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:24} {:>9} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "trace", "Mwords", "insn/w", "decode", "count", "encode", "steps", "expanded", "bits/i", "zstd", "code"
    );
    for name in std::env::args().skip(1) {
        let measured = Measurement::of(&Trace::open(Path::new(&name))?)?;
        let (words, instructions) = (measured.words as f64, measured.instructions as f64);
        let per_word = |time: Duration| time.as_nanos() as f64 / words;
        let rate = |time: Duration| instructions / time.as_secs_f64() / 1e6;
        let bits = |bytes: u64| bytes as f64 * 8.0 / instructions;
        println!(
            "{:24} {:9.2} {:7.1} {:4.1} ns {:4.1} ns {:4.1} ns {:7.0} M {:7.0} M {:8.4} {:8.4} {:8.4}",
            name.rsplit('/').next().unwrap_or(&name),
            words / 1e6,
            instructions / words,
            per_word(measured.decode),
            per_word(measured.count),
            per_word(measured.encode),
            rate(measured.steps),
            rate(measured.expand),
            bits(measured.encoded_bytes),
            bits(measured.zstd_bytes),
            bits(measured.definition_bytes),
        );
    }
    Ok(())
}
