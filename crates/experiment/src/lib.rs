//! Experiments of the theses and of METRIC: runs policies, techniques, tools and codecs over traces
//! and programs, on all processors.
//!
//! [`mtrace`] repeats the measurements of Myers 2014, [`port`] those of Tewar 2015, [`segment`]
//! those of Hadjipavlou 2025, [`metric`] those of METRIC. Each has an `Experiment`, which checks
//! its options before the long work, and a `Study`, which holds the measurements and returns
//! [`Findings`]: tables, figures and JSON. [`port::Survey`] and [`segment::segment_trace`] do the
//! same work for one trace.
//!
//! [`programs`] builds our own parallel programs, `debian` prepares programs of the distribution.
//! Both are recorded with the `trackway` command, whose path the caller gives. This crate knows no
//! arguments and no terminal: it returns strings and values, and reports progress to an
//! [`Observer`].

mod debian;
mod error;
mod observer;
mod spread;

pub mod metric;
pub mod mtrace;
pub mod port;
pub mod programs;
pub mod segment;

use report::Table;
use serde::Serialize;

pub use error::Error;
pub use observer::Observer;

/// A table with a name for its file.
pub type NamedTable = (&'static str, Table);

/// The results of an experiment.
pub trait Findings {
    /// Returns all tables.
    fn tables(&self) -> Vec<NamedTable>;
    /// Returns all figures as files, each with its name and its content.
    fn figures(&self) -> Vec<(String, String)>;
    /// Returns all numbers as JSON.
    fn json(&self) -> impl Serialize;
}
