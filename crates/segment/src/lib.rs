//! Cuts what threads execute into traces by a [`Policy`], and judges the set of traces that comes out (Hadjipavlou 2025).
//!
//! Steps become [`Move`]s once; any number of [`Segmenter`]s, each with a policy of its own, then go through them. A trace is what it is by where
//! it begins and by the way it goes, exactly: a [`Segmenter`] keeps all ways in a tree, whose nodes count. [`TraceSet`] is what is known in the end.
//!
//! Knows nothing of files and of how results are printed.

mod chain;
mod class;
mod edges;
mod fetch;
mod habit;
mod judge;
mod listing;
mod moves;
mod overlap;
mod policy;
mod predictor;
mod segmenter;
mod set;
mod trace_cache;
mod tree;

pub use chain::Chains;
pub use class::Class;
pub use edges::{Edges, Probabilities};
pub use fetch::{Asked, Fetch, Supplied};
pub use judge::{LengthWeight, Score, TraceLength, hamming_distance, max_norm_ratios, pareto_front};
pub use listing::{Listing, Spot};
pub use moves::{Code, Collected, Mix, Move, Moves, Part};
pub use overlap::Overlap;
pub use policy::{IllegalPolicy, Policy};
pub use predictor::LONGEST_PATH;
pub use segmenter::{Executed, Segmenter, Watch};
pub use set::{Reason, Stretch, Trace, TraceSet};
pub use trace_cache::{IllegalShape, Replacement, Shape};
