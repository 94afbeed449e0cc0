//! Codec 2: words predicted from the words before them.
//!
//! Two tables guess the next word, one from the last three words, one from the last word alone.
//! Both also use the address where execution is about to continue, which a call stack gives behind
//! returns. Where the first table is sure of its guess, only the number of right guesses up to the
//! next wrong one is stored. Everywhere else a bit says whether a guess was right. If none was, the
//! word itself is stored, most often as an exit of the fragment that is expected next.
//!
//! Bits are kept apart by how much a guess is trusted, bytes by their meaning, and each stream is
//! compressed by itself. The words behind the first one of an event go into a stream of their own.
//! All state starts empty with every chunk.
//!
//! `docs/format.md` describes all of it for other implementations; changing anything here changes
//! the format.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod context;
mod decode;
mod encode;
mod guess;
mod model;
#[cfg(test)]
mod tests;

use wire::word::EVENT;

use crate::streams::Compressor;

use context::Context;
use encode::Streams;
use guess::Guess;

pub use decode::decode;
pub use encode::encode;
pub use model::{FragmentExits, LowPc, PathModel, StackEffect, WordCounter, low_pc};

const BITS_MIN: u32 = 8;
const BITS_MAX: u32 = 16;

/// The tables, and memory for streams.
#[derive(Debug, Default)]
pub struct PredictionTables {
    long: Vec<Guess>,
    short: Vec<Guess>,
    streams: Streams,
    compressor: Compressor,
}

impl PredictionTables {
    /// Empties the tables for a chunk of `count` words and returns the context to start with.
    fn start(&mut self, count: usize) -> Context {
        let bits = (usize::BITS - count.leading_zeros()).clamp(BITS_MIN, BITS_MAX);
        for table in [&mut self.long, &mut self.short] {
            table.clear();
            table.resize(1 << bits, Guess::default());
        }
        Context { recent: 0, last: EVENT, target: 0, shift: 64 - bits }
    }
}
