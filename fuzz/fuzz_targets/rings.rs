//! Drains rings with arbitrary content.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = fuzzing::rings(bytes));
