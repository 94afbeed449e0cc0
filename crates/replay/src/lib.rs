//! Replay of a trace through encoders and decoders, shared by `mtrace` and `port`.
//!
//! [`Sharing::order`] puts the batches of all threads into one order. A [`control::Walk`] passes
//! each batch to a [`control::FlowEncoder`], step by step. A [`control::DecodedFlow`] asks a
//! [`control::FlowDecoder`] where execution continues and compares the answer with the trace;
//! [`branches`] has the decoder of TRaptor messages. [`loads`] does the same for load values, with
//! CFiat. A [`CheckReport`] holds what a comparison found.
//!
//! This crate knows traces and filters. It does not know how messages are written.

pub mod block_end;
pub mod branches;
mod check;
pub mod control;
pub mod loads;
mod threads;

pub use check::{CheckError, CheckReport};
pub use threads::{Interleaving, MessageQueues, MessageSources, OrderedBatches, PerThread, Sharing};
