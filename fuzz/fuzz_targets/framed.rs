//! Reads chunks, made up from the input, as a trace.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = fuzzing::framed(bytes));
