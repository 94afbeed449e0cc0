//! What the acceptance tests share: running a command with and without the recorder, and looking at
//! what came of it.
//!
//! A [`Call`] is run natively and recorded, in the same surroundings; [`process`] runs commands and
//! does not wait for ever; [`listing`] turns a trace into plain lists of addresses and events,
//! which are compared with those of the `oracle` and of the [`witness`]; [`memory`] does so with
//! accesses to memory, and [`race`] checks those of threads that race. Everything goes through the
//! `trackway` command and the public interface of `trace`; nothing here knows how either works.

pub mod call;
pub mod command;
pub mod listing;
pub mod memory;
pub mod process;
pub mod race;
pub mod source;
pub mod tool;
pub mod witness;

use std::io::Write as _;

pub use call::{Call, Data, Recorded};
pub use command::trackway;
pub use process::{Finished, Running};

/// Whether the long versions of tests are wanted, as in `cargo xtask soak`.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("TRACKWAY_SOAK").is_some()
}

/// Says that a test has left something out, also when the test succeeds.
///
/// # Panics
/// If there is no standard error.
pub fn say_not_tested(what: &str) {
    // The test harness does not catch what is written in this way.
    std::io::stderr().write_all(format!("NOT TESTED: {what}\n").as_bytes()).expect("standard error is open");
}
