//! Branch predictors of processors: [`Gshare`] or [`Tage`] for the outcomes of conditional
//! branches, [`Ras`] for the targets of returns, [`Ibtb`] or [`Ittage`] for the targets of other
//! indirect branches.
//!
//! The caller passes each executed branch to `update`, which returns whether the branch was
//! predicted. Two equal predictors give equal answers to equal branches in equal order; encoders
//! and decoders rely on it. Structures and formulas of [`Gshare`], [`Ras`] and [`Ibtb`] are those
//! of Myers 2014 and Tewar 2015.
//!
//! [`Tage`] and [`Ittage`] are predictors of current processors (Seznec and Michaud 2006), in the
//! sizes of a [`Budget`]. Each keeps its own history and needs all branches but direct jumps,
//! including those that it does not predict:
//!
//! ```
//! use trackway_predict::{Budget, Ittage, Tage};
//!
//! let (mut tage, mut ittage) = (Tage::new(Budget::Large), Ittage::new(Budget::Large));
//! let mut conditional = |address, taken| {
//!     ittage.record_outcome(address, taken);
//!     tage.update(address, taken)
//! };
//! assert!(!conditional(0x1000, true), "it starts with \"not taken\"");
//! assert!(conditional(0x1000, true));
//!
//! let mut indirect = |address, target| {
//!     tage.record_transfer(address, target);
//!     ittage.update(address, target)
//! };
//! assert!(!indirect(0x2000, 0x5000) && indirect(0x2000, 0x5000));
//!
//! // Direct calls and returns.
//! tage.record_transfer(0x3000, 0x6000);
//! ittage.record_transfer(0x3000, 0x6000);
//! ```
//!
//! This crate knows nothing of messages and files.

mod budget;
mod corrector;
mod counter;
mod gshare;
mod hash;
mod history;
mod ibtb;
mod ittage;
mod loops;
mod ras;
mod size;
mod tage;
mod tagged_table;

pub use budget::Budget;
pub use gshare::{Gshare, RowBranch};
pub use ibtb::{Ibtb, Tagging, Victim};
pub use ittage::Ittage;
pub use ras::Ras;
pub use size::{IllegalSize, Structure};
pub use tage::Tage;
