//! Reads arbitrary bytes as a memory trace.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::memory_trace(bytes));
