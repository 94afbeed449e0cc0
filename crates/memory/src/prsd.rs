//! Regular sections in the addresses of one access point (METRIC, sections 3.2 and 4).
//!
//! An *access point* is an instruction that accesses memory. An *RSD* (regular section descriptor)
//! is a sequence of addresses with a constant *stride*: what a loop makes. A *PRSD* (power regular
//! section descriptor) is a sequence of RSDs, or of PRSDs, of equal shape whose starts have a
//! constant stride: what a nest of loops makes. Here both are a [`Prsd`], with one [`Dimension`]
//! for each loop. Its *height* is the number of loops around the innermost one.
//!
//! A [`Detector`] takes the addresses of an access point in their order and passes on [`Piece`]s,
//! in the same order: regular ones, and *irregular* addresses, which are in no regular section. The
//! pieces generate exactly the addresses. A nest of loops is one piece, however long the loops are.
//!
//! [`PieceEncoder`] writes pieces as bytes, [`PieceReader`] reads them, and [`AddressReader`] reads
//! the addresses without storing them. An access takes at most nine bytes.

mod code;
mod detector;
mod section;

pub use code::{AddressReader, PieceEncoder, PieceReader};
pub use detector::{Detector, MAX_LEVEL};
pub use section::{Addresses, DIMENSIONS_MAX, Dimension, Prsd};

/// A part of the addresses of an access point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'p> {
    Regular(Prsd),
    /// One address or several, in their order.
    Irregular(&'p [u64]),
}

/// The most irregular addresses in a piece of a detector or a reader.
const IRREGULAR_MAX: usize = 64;
