//! Skipping: the threads together execute a number of instructions uninstrumented before anything
//! is recorded.
//!
//! The number is in [`wire::Control::skip`]. Each thread takes a *quota* from it. A thread writes
//! path words to its segment; at the end of the segment it counts them and overwrites them. With
//! less quota left, segments get shorter (the cursor starts nearer to the guard page), so that a
//! thread cannot exceed its quota. The last few instructions are executed block by block, through
//! the dispatcher. Before a system call, a thread returns its quota, so that a sleeping thread
//! holds none.

use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

use entity::{AppPc, FragmentId, PathId};
use wire::{Control, SEGMENT_BYTES, word};

use crate::engine::ENGINE;
use crate::fragment::PATH_INSTRUCTIONS_MAX;
use crate::select::{self, TranslationMode};
use crate::tcb::Tcb;
use crate::{detach, engine_memory, ring, sys};

const PATH_MAX: i64 = PATH_INSTRUCTIONS_MAX as i64;
/// No segment holds more instructions than this.
const QUOTA_MAX: i64 = (SEGMENT_BYTES as i64 / 4 + 1) * PATH_MAX;
/// A thread with less quota executes block by block: one word in the ring and the path after it may
/// have this many instructions.
const SINGLE_BLOCKS_BELOW: i64 = 2 * PATH_MAX;
/// Milliseconds that a thread waits for others which still have something to skip.
const PATIENCE: u32 = 100;
/// Threads that share the rest take at least this much.
const GRAIN: u64 = 1 << 16;

/// Updates quota and mode of a thread in the dispatcher. The mode is the instrumented one if
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

/// Whether the thread has too little quota for the uninstrumented mode.
pub fn is_near_end(tcb: &Tcb) -> bool {
    tcb.selection.skipping && tcb.selection.quota < SINGLE_BLOCKS_BELOW
}

/// Takes more quota for a segment that has just been emptied.
pub fn refill(tcb: &mut Tcb) {
    take_quota(tcb);
    shorten_segment(tcb);
}

/// Returns the thread's unused quota.
pub fn return_quota(tcb: &mut Tcb) {
    if !tcb.selection.skipping {
        return;
    }
    count_executed(tcb);
    release_quota(tcb);
}

/// Returns the quota of a thread that was killed. What it has executed since the last count is not
/// known.
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

/// Notes that the thread holds no quota.
fn stop_holding(tcb: &mut Tcb) {
    if core::mem::take(&mut tcb.selection.holds_quota) {
        let control = tcb.control();
        control.skippers.fetch_sub(1, Ordering::SeqCst);
        sys::futex_wake(&control.skippers);
    }
}

/// Waits a while for quota that other threads may return. They hold it for a short time, because
/// they use it up or sleep; a stopped thread is not waited for.
fn wait_for_others(tcb: &mut Tcb) {
    let control = tcb.control();
    for _ in 0..PATIENCE {
        let skippers = control.skippers.load(Ordering::SeqCst);
        take_quota(tcb);
        if tcb.selection.quota > 0 || skippers == 0 || !ring::has_recorder(control) || detach::is_parking(control) {
            return;
        }
        sys::futex_wait(&control.skippers, skippers, 1);
    }
}

/// Whether some thread may still skip instructions.
pub fn is_in_progress(control: &Control) -> bool {
    control.skip.load(Ordering::SeqCst) != 0 || control.skippers.load(Ordering::SeqCst) != 0
}

/// Takes enough quota for a segment, or a fair share if there are other threads.
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

/// Moves the cursor so near to the guard page that the quota suffices for the words that fit, and
/// for the path that meets the guard page.
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

/// Subtracts what the thread has executed since the last count from its quota.
pub fn count_executed(tcb: &mut Tcb) {
    let length = (tcb.cursor - tcb.selection.uncounted_start) as usize / 4;
    // SAFETY: the thread has written these words of its segment: `uncounted_start` moves back
    // whenever the cursor does (`select::restart_words`).
    let words = unsafe { core::slice::from_raw_parts(tcb.selection.uncounted_start as *const u32, length) };
    tcb.selection.quota -= count(words) as i64;
    tcb.selection.uncounted_start = tcb.cursor;
}

/// Subtracts the part of a fragment that the thread has executed when a signal interrupts it at
/// `tcb.registers.rip`. The fragment records no word for it.
pub fn count_interrupted(tcb: &mut Tcb, fragment: FragmentId, blocks: u32) {
    if tcb.selection.skipping {
        tcb.selection.quota -= ENGINE.lock().instructions_before(fragment, blocks, tcb.pc()) as i64;
    }
}

/// Instructions in `code`.
pub fn instructions(address: AppPc, code: &[u8]) -> u64 {
    isa::decoder(address, code).iter().count() as u64
}

/// Ends skipping.
fn finish(tcb: &mut Tcb) {
    stop_holding(tcb);
    tcb.selection.skipping = false;
    tcb.selection.quota = 0;
    tcb.selection.mode = TranslationMode::Uninstrumented;
    if tcb.control().selection.load(Ordering::Relaxed) & wire::SELECT_CALLEES == 0 {
        select::begin_recording(tcb);
    }
}

/// Entries of the table. Later path numbers share entries with paths that were reclaimed long ago.
const PATHS_MAX: usize = 1 << 27;

/// Instruction counts of paths, by number. Only used pages of the table take memory. Threads read
/// it without a lock while others add to it.
static INSTRUCTIONS: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

type Table = [AtomicU16; PATHS_MAX];

fn table() -> Option<&'static Table> {
    // SAFETY: null, or zeroed memory of this length, which stays.
    unsafe { INSTRUCTIONS.load(Ordering::Acquire).as_ref() }
}

/// Notes the instruction count of a path. Called under the engine's lock.
pub fn note_instructions(path: PathId, instructions: u64) {
    if INSTRUCTIONS.load(Ordering::Relaxed).is_null() {
        let length = (PATHS_MAX * size_of::<u16>()) as u64;
        // Without memory for the table, nothing is counted.
        let Some(table) = engine_memory::map(length) else { return };
        INSTRUCTIONS.store(table as *mut Table, Ordering::Release);
    }
    if let Some(entry) = table().and_then(|table| table.get(path.get() as usize % PATHS_MAX)) {
        entry.store(instructions as u16, Ordering::Release);
    }
}

/// Counts the instructions of the paths in `words`. This is the hot loop of skipping, so most words
/// are taken eight at a time.
fn count(words: &[u32]) -> u64 {
    const WORDS_AT_ONCE: usize = 8;
    let Some(table) = table() else { return 0 };
    let of_path = |path: u32| u64::from(table[path as usize % PATHS_MAX].load(Ordering::Relaxed));
    let (mut sum, mut rest) = (0u64, words);
    while let Some((&first, after)) = rest.split_first() {
        if let Some((several, after)) = rest.split_first_chunk::<WORDS_AT_ONCE>()
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
        note_instructions(PathId::new(3), 7);
        note_instructions(PathId::new(70_000), 2000);
        let time = [word::event(word::TIME, 0), 3, 3];
        let words = [[3, 70_000, 3].as_slice(), &time, &[3]].concat();
        assert_eq!(count(&words), 2021);
        assert_eq!(count(&words.repeat(5)), 5 * 2021);
        assert_eq!(count(&[3; 23]), 23 * 7);
        assert_eq!(count(&[99]), 0);
        assert_eq!(count(&time[..1]), 0);
    }
}
