//! Cuts what threads execute into traces by a [`Policy`], and judges the set of traces that comes out (Hadjipavlou 2025).
//!
//! Steps become [`Move`]s once; any number of [`Segmenter`]s, each with a policy of its own, then go through them. A trace is what it is by where
//! it begins and by the way it goes, exactly: a [`Segmenter`] keeps all ways in a tree, whose leaves count. [`TraceSet`] is what is known in the end.
//!
//! Knows nothing of files and of how results are printed.

mod chain;
mod class;
mod moves;
mod policy;
mod segmenter;
mod set;

pub use chain::Chains;
pub use class::Class;
pub use moves::{Code, Move, Moves};
pub use policy::{IllegalPolicy, Policy};
pub use segmenter::Segmenter;
pub use set::{Reason, Trace, TraceSet};
