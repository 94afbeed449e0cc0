//! Writes and reads memory accesses with arbitrary descriptors and data.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = fuzzing::accesses(bytes));
