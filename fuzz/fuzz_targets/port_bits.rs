//! Follows a trace by arbitrary bits.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| _ = fuzzing::port_bits(bytes));
