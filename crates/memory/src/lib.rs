//! Compression of memory access traces, after METRIC (Marathe et al., "METRIC: Memory Tracing via
//! Dynamic Binary Rewriting to Identify Cache Inefficiencies", ACM TOPLAS 29(2), 2007).
//!
//! An *access point* is an instruction that accesses memory. METRIC splits a trace of accesses into
//! two halves (Figure 2), and each has a compressor that suits it:
//!
//! | half | compressor | module |
//! | --- | --- | --- |
//! | the order in which access points are executed | a SEQUITUR grammar | [`sequitur`] |
//! | the addresses of each access point | regular sections of any height (RSDs and PRSDs) | [`prsd`] |
//!
//! A loop nest is a few symbols in one and a single section in the other, however long its loops
//! are. A [`second stage`](second_stage) compresses the rest.
//!
//! [`regularity`] computes how regular an access point is. [`vpc3`] is the compressor that METRIC
//! is compared with; it takes the same accesses as records.
//!
//! The two halves together restore the trace:
//!
//! ```
//! use trackway_memory::prsd::{AddressReader, Detector, MAX_LEVEL, PieceEncoder};
//! use trackway_memory::sequitur::Grammar;
//!
//! // Two access points in a loop: a[i] and b[2 * i].
//! let trace: Vec<(u32, u64)> =
//!     (0..1000).flat_map(|turn| [(0, 0x1000 + 8 * turn), (1, 0x9000 + 16 * turn)]).collect();
//!
//! let mut order = Grammar::new();
//! let mut points: [_; 2] = std::array::from_fn(|_| {
//!     (Detector::new(MAX_LEVEL), PieceEncoder::default(), Vec::new())
//! });
//! for &(point, address) in &trace {
//!     order.push(point);
//!     let (detector, encoder, bytes) = &mut points[point as usize];
//!     detector.push(address, &mut |piece| encoder.put(bytes, piece));
//! }
//! for (detector, encoder, bytes) in &mut points {
//!     detector.finish(&mut |piece| encoder.put(bytes, piece));
//! }
//!
//! let order = order.take();
//! assert!(order.size() == 3 && points.iter().all(|(_, _, bytes)| bytes.len() < 10));
//! let mut addresses = points.each_ref().map(|(_, _, bytes)| AddressReader::new(bytes));
//! let mut next = |point: u32| (point, addresses[point as usize].next().unwrap().unwrap());
//! assert!(order.terminals().map(&mut next).eq(trace));
//! ```
//!
//! What is read from bytes is not trusted: it never panics, and no length in it decides how much
//! memory is allocated.
//!
//! # Memory traces
//!
//! A *memory trace* is a file of accesses, compressed in this way, together with the functions and
//! loops that threads entered. [`compress`](fn@compress) makes one from an execution trace, a
//! [`MemoryTraceWriter`] from anything. [`MemoryTrace`] reads it: a [`ThreadWalk`] goes through
//! what a thread did without expanding the file. `docs/memory.md` is the page for users, and
//! `docs/format.md` describes every byte.
//!
//! The crate does not know processes, source lines or caches.

mod compress;
mod container;
mod origin;
mod point;
pub mod prsd;
mod reader;
mod record;
pub mod regularity;
mod row;
pub mod second_stage;
pub mod sequitur;
pub mod vpc3;
mod writer;

pub use compress::{CompressError, compress};
pub use origin::{CodeModule, FunctionScope, LoopScope, MemoryCodec, Origin};
pub use point::{AccessPoint, PointId};
pub use reader::{MemoryTrace, MemoryTraceError, MergedRecords, ThreadWalk, WalkItem};
pub use record::AccessRecord;
pub use row::{Action, FunctionIndex, LoopIndex};
pub use writer::{CompressionOptions, CompressionSummary, CompressionTimes, MemoryTraceWriter, ThreadWriter};

/// Bytes are not in the form that their kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct FormatError(pub &'static str);
