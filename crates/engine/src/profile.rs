//! What is hot, read off the ring: a full segment is the exact history of what the thread has just executed, so a few
//! samples of it show where the time goes and what usually comes next. No counters are needed in translated code.

use crate::fragment::ENGINE;
use crate::tcb::Tcb;

/// Words between two samples, on average.
const STRIDE: usize = 512;
/// Words of history that a sample looks at.
const HISTORY: usize = 80;
/// Chains made per segment at most, so that the thread is not held up for long.
const CHAINS_MAX: usize = 32;

/// Looks at the segment that the thread has filled, before it is handed over.
pub fn study(tcb: &Tcb) {
    let words = ((tcb.cursor - tcb.stand.opened) / 4) as usize;
    // SAFETY: the thread has written these words and is the only one to write here until it hands the segment over.
    let words = unsafe { core::slice::from_raw_parts(tcb.stand.opened as *const u32, words) };
    let mut engine = ENGINE.lock();
    // The first sample is at a place that changes from segment to segment.
    let mut at = crate::sys::tsc() as usize / 16 % STRIDE;
    let mut chains = 0;
    while at + HISTORY < words.len() && chains < CHAINS_MAX {
        if engine.sample(&words[at..at + HISTORY]) {
            chains += 1;
        }
        at += STRIDE;
    }
}
