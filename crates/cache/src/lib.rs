//! Processor caches without their data: which lines a cache holds ([`Tags`]), and which bytes of
//! them were accessed since they came in ([`FirstAccess`], the cache first-access mechanism of
//! Myers 2014 and Tewar 2015).
//!
//! Two equal caches give equal answers to equal requests in equal order; encoders and decoders rely
//! on it. This crate knows nothing of messages and files.

mod first_access;
mod geometry;
mod tags;

pub use first_access::{FirstAccess, FlagCoverage, LineAccess, Load};
pub use geometry::{Geometry, IllegalGeometry};
pub use tags::{Line, Replacement, Tags};
