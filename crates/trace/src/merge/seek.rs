//! Finding an instruction of the merged order by the headers of path chunks.
//!
//! The merged order sorts batches by their *turn*: the greatest time at which the batch, or an
//! earlier batch of its thread, begins. Headers bound the turns of a chunk's batches from both
//! sides. A seek to instruction N chooses a time T so that fewer than N instructions have turns
//! before T. It passes over the chunks whose turns are all before T by their counts, and merges
//! from the chunks behind them. The batches before T may then come in another order, but they all
//! come before those from T on, of which instruction N is one.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use entity::Tsc;

use crate::container::PathHeader;

/// Bounds of a chunk's turns, from the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// No batch of this chunk, or of a later chunk of its thread, has an earlier turn.
    earliest: Tsc,
    /// No batch of this chunk, or of an earlier chunk of its thread, has a later turn.
    pub latest: Tsc,
    pub instructions: u64,
    pub has_times: bool,
}

/// The bounds of all chunks of a thread, as long as times between two timestamps are not estimated.
pub(super) fn bounds(headers: &[&PathHeader]) -> Vec<Bounds> {
    let (mut earliest, mut latest, mut before) = (Tsc::NONE, Tsc::NONE, None);
    let bounds = headers.iter().map(|header| {
        let first = (!header.last_tsc.is_none()).then_some(header.first_tsc);
        // Up to its first timestamp, a chunk continues at the last time of the chunk before it.
        let begins = match (before, first) {
            (Some(before), Some(first)) => Tsc::min(before, first),
            (one, other) => one.or(other).unwrap_or(Tsc::NONE),
        };
        before = first.or(before);
        earliest = begins.max(earliest);
        latest = header.last_tsc.max(latest);
        Bounds { earliest, latest, instructions: header.counts.instructions, has_times: first.is_some() }
    });
    bounds.collect()
}

/// Returns the latest time before which fewer than `number` instructions can have their turns, if
/// there are so many at all.
pub(super) fn time_before(threads: &[Vec<Bounds>], number: u64) -> Option<Tsc> {
    let mut chunks: Vec<&Bounds> = threads.iter().flatten().collect();
    chunks.sort_unstable_by_key(|chunk| chunk.earliest);
    let mut instructions = 0u64;
    let reaching = chunks.into_iter().find(|chunk| {
        instructions = instructions.saturating_add(chunk.instructions);
        instructions >= number
    });
    reaching.map(|chunk| chunk.earliest)
}

/// Returns how many of a thread's chunks, from the first on, are passed over if the turns from
/// `time` on matter.
pub(super) fn passed_over(chunks: &[Bounds], time: Tsc, is_estimated: bool) -> usize {
    let passed = chunks.partition_point(|chunk| chunk.latest < time);
    if !is_estimated {
        return passed;
    }
    // Estimates lie between timestamps: one behind the last timestamp of a chunk may be later than
    // the bound, and one at the start of a chunk needs the timestamp before it.
    chunks.iter().take(passed).rposition(|chunk| chunk.has_times).unwrap_or(0)
}
