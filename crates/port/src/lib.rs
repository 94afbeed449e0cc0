//! Trace ports: control flow and the values of loads as the bits that a chip would stream out (Tewar 2015, chapters 3 to 5), written for real
//! and read back.
//!
//! [`bits`] and [`chunks`] are the alphabet, [`message`], [`loads`] and [`packet`] the language; [`Technique`] puts a filter and a language
//! together, and a [`Job`] takes a trace through some of them at once, counting on a [`Port`] what each field costs. A [`Follower`] is the mirror
//! image: it has the program and the bits, and compares what comes out with the trace.
//!
//! [`mod@file`] describes what bits are kept in. Predictors and caches are those of `filter`; what is here knows nothing of how they work, and
//! opens no files.

pub mod bits;
pub mod chunks;
pub mod cores;
mod count;
pub mod etrace;
pub mod file;
mod follow;
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
pub use follow::Follower;
pub use job::{Job, Known, Outcome, Rates};
pub use technique::{ChunkSizes, Config, Filter, IllegalConfig, Settings, Subject, Technique};
