//! Reads arbitrary bytes as a trace.
#![no_main]

mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exercise::exercise(bytes.to_vec()));
