//! The filters of mTrace (Myers 2014) over a trace: [`flow`] is mcfTRaptor, [`loads`] is mlvCFiat. Each takes batches of
//! steps, of one thread after the other or of all merged by time, says what has to be told, and counts. Each can be checked by its mirror
//! image, which has the program, what was told, and nothing else that execution decided.
//!
//! Knows nothing of how messages are written.

mod block_end;
mod check;
pub mod control;
pub mod flow;
pub mod loads;
mod threads;

pub use check::{CheckError, CheckReport};
pub use threads::{Interleaving, MessageSources, OrderedBatches, Sharing};
