//! Trace ports: control flow and load values as the bits that a chip would stream out (Tewar 2015,
//! chapters 3 to 5), really written and read back.
//!
//! [`bits`] and [`chunks`] write numbers. [`message`], [`loads`] and [`packet`] write messages. A
//! [`Technique`] combines a filter with a way to write messages. A [`Job`] encodes a trace by
//! several techniques with one filter; each [`Port`] counts what each field costs. A
//! [`PortDecoder`] has the program and the bits, and compares the decoded events with the trace.
//!
//! [`mod@file`] describes the file that keeps bits. Predictors and caches come from `filter`, and
//! the walk over a trace from `replay`. This crate does not know how they work, and opens no files.

pub mod bits;
pub mod chunks;
pub mod cores;
mod count;
mod decoder;
pub mod etrace;
pub mod file;
mod job;
pub mod lengths;
pub mod loads;
pub mod message;
pub mod nexus;
pub mod packet;
pub mod pt;
mod technique;
pub mod traptor;

pub use count::{Field, Port};
pub use decoder::PortDecoder;
pub use job::{Job, LoadCounts, PortResult, Rates};
pub use technique::{ChunkSizes, Config, FilterKind, IllegalConfig, PortSettings, Subject, Technique};
