//! What is hot, read off the ring: a full segment is the exact history of what the thread has just
//! executed, so a few samples of it show where the time goes and what usually comes next. No
//! counters are needed in translated code.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use wire::{DATA_NONE, word};

use crate::engine::{ENGINE, Engine};
use crate::tcb::Tcb;

/// Words between two samples, on average.
const STRIDE: usize = 512;
/// Words behind a sample that a superblock may be made of, at least.
const HISTORY: usize = 80;
/// Words from a sample on in which other executions of its fragment are looked for.
const WINDOW: usize = 1 << 13;
/// Chains made per segment at most, so that the thread is not held up for long.
const SUPERBLOCKS_MAX: usize = 32;

/// Words between two samples if there is data between them: a segment has fewer then.
const STRIDE_WITH_DATA: usize = 64;
/// As much of a segment with data is looked at: where words are is found out one after the other,
/// which takes time. Segments end anywhere, so their beginnings show what the rest would.
const SHOWN_WITH_DATA: usize = wire::SEGMENT_BYTES / size_of::<u32>() / 4;

/// Looks at the segment that the thread has filled, before it is handed over.
pub fn profile_segment(tcb: &Tcb) {
    let words = ((tcb.cursor - tcb.selection.profile_start) / 4) as usize;
    // SAFETY: the thread has written these words and is the only one to write here until it hands
    // the segment over.
    let words = unsafe { core::slice::from_raw_parts(tcb.selection.profile_start as *const u32, words) };
    let mut engine = ENGINE.lock();
    if tcb.control().data.load(Ordering::Relaxed) == DATA_NONE {
        sample(&mut engine, words, STRIDE);
    } else {
        let words = without_data(&engine, &words[..words.len().min(SHOWN_WITH_DATA)]);
        sample(&mut engine, &words, STRIDE_WITH_DATA);
    }
}

fn sample(engine: &mut Engine, words: &[u32], stride: usize) {
    // The first sample is at a place that changes from segment to segment.
    let mut at = crate::sys::tsc() as usize / 16 % stride;
    let mut superblocks = 0;
    while at + HISTORY < words.len() && superblocks < SUPERBLOCKS_MAX {
        if engine.sample(&words[at..words.len().min(at + WINDOW)]) {
            superblocks += 1;
        }
        at += stride;
    }
}

/// The words of a segment without the data behind them.
fn without_data(engine: &Engine, segment: &[u32]) -> Vec<u32> {
    let mut words = Vec::with_capacity(segment.len() / 8);
    let mut at = 0;
    while let Some(&word) = segment.get(at) {
        let data = if word & word::EVENT != 0 {
            word::length(word).unwrap_or(1) - 1 + word::data_words(word)
        } else {
            usize::from(engine.data_words(word).unwrap_or(0))
        };
        words.push(word);
        at += 1 + data;
    }
    words
}
