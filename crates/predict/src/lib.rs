//! Predictors of branches, as a processor has them: [`Gshare`] or [`Tage`] for the outcome of conditional branches, [`Ras`] for the
//! targets of returns, [`Ibtb`] or [`Ittage`] for those of other indirect branches.
//!
//! Each is asked with what really happened, says whether it would have known, and learns. Whoever asks two equal
//! predictors the same in the same order gets the same answers: that is what filters and their mirror images live on.
//! Structures and formulas of [`Gshare`], [`Ras`] and [`Ibtb`] are those of Myers 2014 and Tewar 2015.
//!
//! [`Tage`] and [`Ittage`] are of the kind that processors have today (Seznec and Michaud 2006), in the sizes of a [`Budget`]. Each
//! keeps a history of its own and has to hear of all branches but direct jumps, also of those that it does not predict:
//!
//! ```
//! use trackway_predict::{Budget, Ittage, Tage};
//!
//! let (mut tage, mut ittage) = (Tage::new(Budget::Large), Ittage::new(Budget::Large));
//! let mut conditional = |address, taken| {
//!     ittage.note(address, taken);
//!     tage.branch(address, taken)
//! };
//! assert!(!conditional(0x1000, true), "it starts with \"not taken\"");
//! assert!(conditional(0x1000, true));
//!
//! let mut indirect = |address, target| {
//!     tage.pass(address, target);
//!     ittage.branch(address, target)
//! };
//! assert!(!indirect(0x2000, 0x5000) && indirect(0x2000, 0x5000));
//!
//! // Direct calls and returns.
//! tage.pass(0x3000, 0x6000);
//! ittage.pass(0x3000, 0x6000);
//! ```
//!
//! Knows nothing of messages and files.

mod budget;
mod corrector;
mod counter;
mod gshare;
mod hash;
mod history;
mod ibtb;
mod ittage;
mod loops;
mod pool;
mod ras;
mod size;
mod tage;

pub use budget::Budget;
pub use gshare::{Gshare, Point};
pub use ibtb::{Ibtb, Tagging, Victim};
pub use ittage::Ittage;
pub use ras::Ras;
pub use size::{IllegalSize, Structure};
pub use tage::Tage;
