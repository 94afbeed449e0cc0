//! The profile: finds hot paths in full ring segments. A segment is the exact history of what the
//! thread has just executed, so a few samples show which code is hot and what usually comes next.
//! Translated code needs no counters.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use entity::PathId;
use wire::{DATA_NONE, word};

use crate::engine::{ENGINE, Engine};
use crate::tcb::Tcb;

/// Words between two samples, on average.
const STRIDE: usize = 512;
/// Least number of words behind a sample, for a superblock to follow.
const HISTORY: usize = 80;
/// Words behind a sample that are searched for other executions of its fragment.
const WINDOW: usize = 1 << 13;
/// Most superblocks made per segment, so that the thread is not held up for long.
const SUPERBLOCKS_MAX: usize = 32;

/// Words between two samples if data is recorded: a segment has fewer words then.
const STRIDE_WITH_DATA: usize = 64;
/// The part of a segment with data that is searched. Finding the words between data takes time, and
/// the beginning of a segment is representative, because segments begin anywhere.
const SEARCHED_WITH_DATA: usize = wire::SEGMENT_BYTES / size_of::<u32>() / 4;

/// Samples the segment that the thread has filled, before it is handed over.
pub fn profile_segment(tcb: &Tcb) {
    let words = ((tcb.cursor - tcb.selection.profile_start) / 4) as usize;
    // SAFETY: the thread has written these words and is the only one to write here until it hands
    // the segment over.
    let words = unsafe { core::slice::from_raw_parts(tcb.selection.profile_start as *const u32, words) };
    let mut engine = ENGINE.lock();
    if tcb.control().data.load(Ordering::Relaxed) == DATA_NONE {
        sample(&mut engine, words, STRIDE);
    } else {
        let words = without_data(&engine, &words[..words.len().min(SEARCHED_WITH_DATA)]);
        sample(&mut engine, &words, STRIDE_WITH_DATA);
    }
}

fn sample(engine: &mut Engine, words: &[u32], stride: usize) {
    // The position of the first sample varies from segment to segment.
    let mut at = crate::sys::tsc().get() as usize / 16 % stride;
    let mut superblocks = 0;
    while at + HISTORY < words.len() && superblocks < SUPERBLOCKS_MAX {
        if engine.sample(&words[at..words.len().min(at + WINDOW)]) {
            superblocks += 1;
        }
        at += stride;
    }
}

/// Returns the words of a segment without the data between them.
fn without_data(engine: &Engine, segment: &[u32]) -> Vec<u32> {
    let mut words = Vec::with_capacity(segment.len() / 8);
    let mut at = 0;
    while let Some(&word) = segment.get(at) {
        let data = if word & word::EVENT != 0 {
            word::length(word).unwrap_or(1) - 1 + word::data_words(word)
        } else {
            usize::from(engine.data_words(PathId::new(word)).unwrap_or(0))
        };
        words.push(word);
        at += 1 + data;
    }
    words
}
