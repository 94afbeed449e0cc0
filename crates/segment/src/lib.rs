//! Segments executions into traces by a [`Policy`], and scores the resulting set of traces
//! (Hadjipavlou 2025).
//!
//! A [`StepCollector`] converts steps once; any number of [`Segmenter`]s, each with its own policy,
//! then process them. A trace is identified by its start and its exact path: a [`Segmenter`] keeps
//! all paths in a tree whose nodes count. The result is a [`TraceSet`].
//!
//! This crate does not know files, nor how results are printed.

mod bias;
mod chain;
mod class;
mod edges;
mod fetch;
mod instruction_table;
mod overlap;
mod policy;
mod predictor;
mod score;
mod segmenter;
mod set;
mod steps;
mod trace_cache;
mod tree;

pub use chain::DependenceChains;
pub use class::Class;
pub use edges::{EdgeCounts, EdgeProbabilities};
pub use fetch::{CacheSupply, FetchDemand, FetchSimulator};
pub use instruction_table::{InstructionRef, InstructionTable};
pub use overlap::Overlap;
pub use policy::{IllegalPolicy, Policy};
pub use predictor::LONGEST_PATH;
pub use score::{LengthWeight, Score, TraceLength, hamming_distance, max_norm_ratios, pareto_front};
pub use segmenter::{ExecutedTrace, Segmenter, TraceObserver};
pub use set::{EndReason, InstructionRun, SegmentTrace, TraceSet};
pub use steps::{CodeAddresses, InstructionMix, SegmentStep, StepBuffer, StepCollector, ThreadSteps};
pub use trace_cache::{IllegalTraceCacheShape, TraceCacheShape, TraceReplacement};
