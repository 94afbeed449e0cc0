//! Skipping: a number of instructions, of all threads together, is executed in the uninstrumented
//! mode before anything is recorded.
//!
//! The number stands in [`wire::Control::skip`]. Each thread takes a *quota* of it upon itself.
//! What it executes stands as path words in its segment; at the end of a segment they are counted
//! and written over. The more of its quota a thread has used up, the shorter are its segments (the
//! cursor starts nearer to the guard page), so that the quota is not exceeded by whatever it
//! executes; the last few instructions go block by block, through the dispatcher. Before a system
//! call, what is left goes back, so that a thread that sleeps keeps nothing from the others.

use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

use wire::{Control, SEGMENT_BYTES, word};

use crate::engine::ENGINE;
use crate::fragment::PATH_INSTRUCTIONS_MAX;
use crate::select::{self, TranslationMode};
use crate::tcb::Tcb;
use crate::{detach, engine_memory, ring, sys};

const PATH_MAX: i64 = PATH_INSTRUCTIONS_MAX as i64;
/// No segment holds more instructions than this.
const QUOTA_MAX: i64 = (SEGMENT_BYTES as i64 / 4 + 1) * PATH_MAX;
/// A thread with a quota below this executes block by block: a word in the ring and the path after
/// it may be this long.
const SINGLE_BLOCKS_BELOW: i64 = 2 * PATH_MAX;
/// Milliseconds that a thread waits for others which still have something to skip.
const PATIENCE: u32 = 100;
/// Threads that share what is left take at least so much.
const GRAIN: u64 = 1 << 16;

/// The thread is in the dispatcher: chooses the way it goes on, which is the instrumented mode if
/// nothing is left to skip.
pub fn update_mode(tcb: &mut Tcb) {
    if !tcb.selection.skipping {
        return;
    }
    count_executed(tcb);
    tcb.selection.previous_mode = Some(tcb.selection.mode);
    if tcb.selection.quota < SINGLE_BLOCKS_BELOW {
        take_quota(tcb);
    }
    if tcb.selection.quota <= 0 {
        stop_holding(tcb);
        wait_for_others(tcb);
    }
    if tcb.selection.quota <= 0 {
        return finish(tcb);
    }
    if is_near_end(tcb) {
        tcb.selection.mode = TranslationMode::SingleBlocks;
    } else {
        tcb.selection.mode = TranslationMode::Uninstrumented;
        shorten_segment(tcb);
    }
}

/// Whether the thread must not go on in the uninstrumented mode.
pub fn is_near_end(tcb: &Tcb) -> bool {
    tcb.selection.skipping && tcb.selection.quota < SINGLE_BLOCKS_BELOW
}

/// The segment has just been emptied and the thread goes on: takes more upon itself.
pub fn refill(tcb: &mut Tcb) {
    take_quota(tcb);
    shorten_segment(tcb);
}

/// What is left of the thread's quota is there for others.
pub fn return_quota(tcb: &mut Tcb) {
    if !tcb.selection.skipping {
        return;
    }
    count_executed(tcb);
    release_quota(tcb);
}

/// The thread was killed: what it has taken upon itself is there for others. What it has executed
/// since it was counted last is not known.
pub fn abandon(tcb: &mut Tcb) {
    if tcb.selection.skipping {
        release_quota(tcb);
    }
}

fn release_quota(tcb: &mut Tcb) {
    if let Ok(left @ 1..) = u64::try_from(tcb.selection.quota) {
        tcb.control().skip.fetch_add(left, Ordering::SeqCst);
        tcb.selection.quota = 0;
    }
    stop_holding(tcb);
}

/// The thread holds nothing any more.
fn stop_holding(tcb: &mut Tcb) {
    if core::mem::take(&mut tcb.selection.holds_quota) {
        let control = tcb.control();
        control.skippers.fetch_sub(1, Ordering::SeqCst);
        sys::futex_wake(&control.skippers);
    }
}

/// Nothing is left, but others may give back a part of what they have taken. They have it for a
/// short time only, as they use it up or go to sleep; whoever is stopped is not waited for.
fn wait_for_others(tcb: &mut Tcb) {
    let control = tcb.control();
    for _ in 0..PATIENCE {
        let skippers = control.skippers.load(Ordering::SeqCst);
        take_quota(tcb);
        if tcb.selection.quota > 0 || skippers == 0 || !ring::is_wanted(control) || detach::is_parking(control) {
            return;
        }
        sys::futex_wait(&control.skippers, skippers, 1);
    }
}

/// Whether some thread may still have something to skip.
pub fn is_in_progress(control: &Control) -> bool {
    control.skip.load(Ordering::SeqCst) != 0 || control.skippers.load(Ordering::SeqCst) != 0
}

/// Takes so much that the thread has what it needs for a segment; no more than a fair share if
/// there are others.
fn take_quota(tcb: &mut Tcb) {
    let control = tcb.control();
    if control.skip.load(Ordering::SeqCst) == 0 {
        return;
    }
    if !core::mem::replace(&mut tcb.selection.holds_quota, true) {
        control.skippers.fetch_add(1, Ordering::SeqCst);
    }
    let (quota, threads) = (tcb.selection.quota, u64::from(control.next_thread.load(Ordering::Relaxed)));
    let share = |left: u64| {
        let fair = if threads > 1 { (left / (2 * threads)).max(GRAIN) } else { QUOTA_MAX as u64 };
        let wanted = fair.min(QUOTA_MAX as u64) as i64 - quota;
        u64::try_from(wanted).unwrap_or(0).min(left)
    };
    let taken = control.skip.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left - share(left)));
    tcb.selection.quota += taken.map_or(0, share) as i64;
}

/// Leaves as much room in the segment as the quota allows: the words that fit, and one more path
/// that has been executed when the guard page is met.
fn shorten_segment(tcb: &mut Tcb) {
    let words = (tcb.selection.quota / PATH_MAX - 1).max(1) as u64;
    let start = tcb.limit.saturating_sub(4 * words);
    if start > tcb.cursor {
        select::invalidate_words(tcb);
        tcb.cursor = start;
        tcb.selection.profile_start = start;
        tcb.selection.uncounted_start = start;
    }
}

/// Counts what the thread has executed since it was counted last.
pub fn count_executed(tcb: &mut Tcb) {
    let length = (tcb.cursor - tcb.selection.uncounted_start) as usize / 4;
    // SAFETY: the thread has written these words of its own segment.
    let words = unsafe { core::slice::from_raw_parts(tcb.selection.uncounted_start as *const u32, length) };
    tcb.selection.quota -= count(words) as i64;
    tcb.selection.uncounted_start = tcb.cursor;
}

/// The thread is interrupted at `tcb.registers.rip`, after so many blocks of a fragment, which then
/// writes no word.
pub fn count_interrupted(tcb: &mut Tcb, fragment: u32, blocks: u32) {
    if tcb.selection.skipping {
        tcb.selection.quota -= ENGINE.lock().instructions_before(fragment, blocks, tcb.registers.rip) as i64;
    }
}

/// Instructions in `code`.
pub fn instructions(address: u64, code: &[u8]) -> u64 {
    isa::decoder(address, code).iter().count() as u64
}

/// Nothing is left to skip.
fn finish(tcb: &mut Tcb) {
    stop_holding(tcb);
    tcb.selection.skipping = false;
    tcb.selection.quota = 0;
    tcb.selection.mode = TranslationMode::Uninstrumented;
    if tcb.control().selection.load(Ordering::Relaxed) & wire::SELECT_CALLEES == 0 {
        select::begin_recording(tcb);
    }
}

/// Paths whose lengths are known at most. The numbers of a recording that goes beyond share them
/// with paths that are long gone.
const PATHS_MAX: usize = 1 << 27;

/// Instructions of each path, by its number: address space for all of them, of which only what is
/// used takes memory. Threads read it without a lock while others add to it.
static INSTRUCTIONS: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

type Table = [AtomicU16; PATHS_MAX];

fn table() -> Option<&'static Table> {
    // SAFETY: null, or zeroed memory of this length, which stays.
    unsafe { INSTRUCTIONS.load(Ordering::Acquire).as_ref() }
}

/// Notes how many instructions a path has. Only one thread at a time comes here, under the engine's
/// lock.
pub fn note_instructions(path: u32, instructions: u64) {
    if INSTRUCTIONS.load(Ordering::Relaxed).is_null() {
        let length = (PATHS_MAX * size_of::<u16>()) as u64;
        // Without memory for it, nothing is skipped.
        let Some(table) = engine_memory::map(length) else { return };
        INSTRUCTIONS.store(table as *mut Table, Ordering::Release);
    }
    if let Some(entry) = table().and_then(|table| table.get(path as usize % PATHS_MAX)) {
        entry.store(instructions as u16, Ordering::Release);
    }
}

/// Instructions of the paths in `words`. Everything that is skipped passes through here, so most
/// words are taken several at a time.
fn count(words: &[u32]) -> u64 {
    const GO: usize = 8;
    let Some(table) = table() else { return 0 };
    let of_path = |path: u32| u64::from(table[path as usize % PATHS_MAX].load(Ordering::Relaxed));
    let (mut sum, mut rest) = (0u64, words);
    while let Some((&first, after)) = rest.split_first() {
        if let Some((several, after)) = rest.split_first_chunk::<GO>()
            && (several.iter().fold(0, |all, word| all | word) as usize) < PATHS_MAX
        {
            sum += several.iter().map(|&path| of_path(path)).sum::<u64>();
            rest = after;
        } else if first & word::EVENT == 0 {
            sum += of_path(first);
            rest = after;
        } else {
            let length = word::length(first).unwrap_or(1) + word::data_words(first);
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_and_events_are_not() {
        note_instructions(3, 7);
        note_instructions(70_000, 2000);
        let time = [word::event(word::TIME, 0), 3, 3];
        let words = [[3, 70_000, 3].as_slice(), &time, &[3]].concat();
        assert_eq!(count(&words), 2021);
        assert_eq!(count(&words.repeat(5)), 5 * 2021);
        assert_eq!(count(&[3; 23]), 23 * 7);
        assert_eq!(count(&[99]), 0);
        assert_eq!(count(&time[..1]), 0);
    }
}
