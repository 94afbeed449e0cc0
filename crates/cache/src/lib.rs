//! Caches as a processor has them, without the data in them: which lines are where ([`Tags`]), and which parts of them were
//! accessed since they came in ([`FirstAccess`], the cache first-access mechanism of Myers 2014 and Tewar 2015).
//!
//! Whoever asks two equal caches the same in the same order gets the same answers: that is what filters and their mirror
//! images live on. Knows nothing of messages and files.

mod first_access;
mod geometry;
mod tags;

pub use first_access::{Cover, FirstAccess, Load, Part};
pub use geometry::{Geometry, IllegalGeometry};
pub use tags::{Line, Replacement, Tags};
