//! Reads arbitrary bytes as a trace.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = fuzzing::open(bytes));
