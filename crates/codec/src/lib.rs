//! The codecs of a trace: words and data in, compressed payloads out, and back.
//!
//! Each codec takes slices and returns vectors. None knows files, chunks' headers or the event
//! model.
//!
//! | number | codec | module | compresses |
//! | --- | --- | --- | --- |
//! | 0 | raw | [`path`] | nothing |
//! | 1 | zstd | [`streams`] | any bytes |
//! | 2 | predict | [`predict`] | words, predicted from the words before them and from the program |
//! | 3 | fast | [`fast`] | words, predicted from the words before them alone |
//! | 4 | lanes | [`lanes`] | the data behind words, eight bytes at a time |
//!
//! [`path::PathCoder`] chooses among the codecs of words by number. What a codec has to know of the
//! program comes through a trait that its user implements: [`predict::PathModel`] for paths,
//! [`lanes::DataLayouts`] for the data behind them, [`predict::WordCounter`] for counting on the
//! way. All calls are dispatched statically.
//!
//! [`words::Words`] iterates paths and events for all of them, and for the readers of a trace.
//!
//! `docs/format.md` describes the payloads for other implementations; changing a codec changes the
//! format. The writer and the reader of the crate `trace` are the main users; `memory` has the
//! codecs 3 and 4 to compare with.

mod bits;
pub mod bytes;
mod checksum;
pub mod dense_map;
mod error;
pub mod event;
pub mod fast;
pub mod lanes;
pub mod path;
pub mod predict;
pub mod streams;
pub mod words;

pub use checksum::crc;
pub use error::DecodeError;

/// Numbers of codecs, as the headers of chunks store them.
pub const CODEC_RAW: u8 = 0;
pub const CODEC_ZSTD: u8 = 1;
pub const CODEC_PREDICT: u8 = 2;
pub const CODEC_FAST: u8 = 3;
pub const CODEC_LANES: u8 = 4;
