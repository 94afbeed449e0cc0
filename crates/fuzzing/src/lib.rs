//! The fuzz targets: functions that pass any bytes to a reader of ours, and must not panic.
//! cargo-fuzz (`fuzz`) calls them. So does [`driver`], which needs no other toolchain and runs with
//! the tests.
//!
//! `fuzz/corpus` has a folder of inputs for each target.

mod accesses;
pub mod driver;
mod exercise;
mod framed;
mod memory_trace;
mod port_bits;
mod ring;

pub use accesses::accesses;
pub use framed::{DecodedChunks, framed, unframed};
pub use memory_trace::memory_trace;
pub use port_bits::port_bits;
pub use ring::rings;

/// Reads arbitrary bytes as a trace.
pub fn open(bytes: &[u8]) {
    exercise::exercise(bytes.to_vec());
}

/// A target and its name, which is that of its folder in the corpus.
pub struct FuzzTarget {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [FuzzTarget; 6] = [
    FuzzTarget { name: "open", run: open },
    FuzzTarget { name: "framed", run: |bytes| drop(framed(bytes)) },
    FuzzTarget { name: "accesses", run: accesses },
    FuzzTarget { name: "rings", run: rings },
    FuzzTarget { name: "port_bits", run: port_bits },
    FuzzTarget { name: "memory_trace", run: memory_trace },
];

/// Takes the next byte of an input; 0 behind its end.
fn next(bytes: &mut &[u8]) -> u8 {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    *bytes = rest;
    *first
}

/// Takes the next two bytes of an input as a number.
fn next_u16(bytes: &mut &[u8]) -> u16 {
    u16::from_le_bytes([next(bytes), next(bytes)])
}

/// Takes `length` bytes of an input, or those that are left.
fn take<'b>(bytes: &mut &'b [u8], length: usize) -> &'b [u8] {
    let (taken, rest) = bytes.split_at(length.min(bytes.len()));
    *bytes = rest;
    taken
}
