//! Scopes of an execution: the functions and loops that a thread enters and leaves.
//!
//! A [`SelectedFunction`] is what a caller wants to know the scopes of: a name and ranges of code.
//! From the blocks of a trace, [`Scopes`] makes the control-flow graph of each function
//! ([`FlowGraph`]) and finds its loops ([`loops`]). A [`Tracker`] follows the steps of one thread
//! and reports each entry and exit as a [`ScopeEvent`]. Nothing of this is recorded: all of it
//! follows from steps.
//!
//! A [`Resolver`] finds functions by name in the files of a trace's modules.
//!
//! The crate does not know memory accesses, nor what scopes are used for.

mod flow;
pub mod loops;
mod resolve;
mod scopes;
mod tracker;

pub use flow::{FlowGraph, IndirectTargets};
pub use resolve::Resolver;
pub use scopes::{CodeFile, FunctionId, Scopes, SelectedFunction};
pub use tracker::{ScopeEvent, Tracker};
