//! Results for people: a [`Table`] as text or CSV.
//!
//! Knows nothing of traces, and does no I/O: whoever asks gets a string.

mod table;

pub use table::Table;
