//! Predictors of branches, as a processor has them: [`Gshare`] for the outcome of conditional branches, [`Ras`] for the targets
//! of returns, [`Ibtb`] for those of other indirect branches.
//!
//! Each is asked with what really happened, says whether it would have known, and learns. Whoever asks two equal
//! predictors the same in the same order gets the same answers: that is what filters and their mirror images live on.
//! Structures and formulas are those of Myers 2014 and Tewar 2015.
//!
//! Knows nothing of messages and files.

mod gshare;
mod ibtb;
mod ras;
mod size;

pub use gshare::{Gshare, Point};
pub use ibtb::{Ibtb, Tagging, Victim};
pub use ras::Ras;
pub use size::{IllegalSize, Structure};
