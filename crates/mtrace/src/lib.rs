//! The filters of mTrace (Myers 2014) over a trace: [`flow`] is mcfTRaptor, and [`loads`] checks
//! mlvCFiat, whose filter is in `replay`. A filter takes batches of steps, of one thread after the
//! other or of all threads merged by time. It emits messages and counts. A check decodes the
//! messages with the program and nothing else, and compares with the trace.
//!
//! This crate does not know how messages are written.

pub mod flow;
pub mod loads;
