//! What the acceptance tests share: running a command natively and recorded, and comparing the
//! results.
//!
//! A [`Call`] runs natively and recorded, in the same environment. [`process`] runs commands with a
//! time limit. [`listing`] turns a trace into lists of addresses and events, which tests compare
//! with those of the `oracle` and of the [`witness`]. [`memory`] does so with accesses to memory,
//! and [`race`] checks accesses of threads that race. Everything goes through the `trackway`
//! command and the public interface of `trace`; nothing here knows how either works.

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

pub use call::{Call, Data, RecordedCall};
pub use command::trackway;
pub use process::{ProcessOutput, RunningProcess};

/// Returns whether the long versions of tests are wanted, as in `cargo xtask soak`.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("TRACKWAY_SOAK").is_some()
}

/// Reports that a test has left something out, even if the test succeeds.
///
/// # Panics
/// If there is no standard error.
pub fn say_not_tested(what: &str) {
    // The test harness does not capture output that is written in this way.
    std::io::stderr().write_all(format!("NOT TESTED: {what}\n").as_bytes()).expect("standard error is open");
}
