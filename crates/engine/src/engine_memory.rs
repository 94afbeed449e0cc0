//! The engine's own memory. Every range is listed in [`wire::Control::engine_ranges`], so that the
//! recorder can unmap it after a detach.

use core::sync::atomic::{AtomicU64, Ordering};

use wire::Control;

use crate::lock::Mutex;
use crate::sys;

/// Address of the shared memory; 0 outside of a target.
static CONTROL: AtomicU64 = AtomicU64::new(0);
/// Next address for the engine's memory, far from the application's.
static ARENA: Mutex<u64> = Mutex::new(1 << 44);

/// How far the arena advances when a range is in use.
const ARENA_GAP: u64 = 1 << 30;
const ARENA_TRIES: usize = 8;

/// Places the arena behind the shared mapping.
pub fn set_up(control: &Control) {
    let shared = core::ptr::from_ref(control) as u64;
    CONTROL.store(shared, Ordering::Relaxed);
    *ARENA.lock() = shared + ((wire::SHARED_BYTES as u64 + ARENA_GAP - 1) & !(ARENA_GAP - 1));
}

/// See `lock::Mutex::release_for_dead`.
///
/// # Safety
/// As there.
pub unsafe fn release_for_dead(stacks: core::ops::Range<u64>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { ARENA.release_for_dead(stacks) }
}

const fn rounded(length: u64) -> u64 {
    (length + 0xffff) & !0xffff
}

/// Maps memory for the engine.
pub fn map(length: u64) -> Option<u64> {
    let length = rounded(length);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let mut arena = ARENA.lock();
    for _ in 0..ARENA_TRIES {
        if let Some(address) = sys::map(*arena, length, protection, sys::MAP_FIXED_NOREPLACE) {
            *arena += length;
            register(address, length);
            return Some(address);
        }
        *arena += ARENA_GAP;
    }
    let address = sys::map(0, length, protection, 0)?;
    register(address, length);
    Some(address)
}

/// Unmaps memory from [`map`]. The range stays in the list, because the application gets no address
/// there.
///
/// # Safety
/// Nothing may use it any more.
pub unsafe fn unmap(address: u64, length: u64) {
    // SAFETY: the caller's promise.
    unsafe { sys::unmap(address, rounded(length)) };
}

/// The control page; `None` outside of a target.
pub fn control() -> Option<&'static Control> {
    let control = CONTROL.load(Ordering::Relaxed) as *const Control;
    // SAFETY: set once, to the shared mapping, which stays as long as the process.
    unsafe { control.as_ref() }
}

/// Adds a range to the list of the engine's memory.
pub fn register(start: u64, length: u64) {
    let Some(control) = control() else { return };
    if !add_to(&control.engine_ranges, start, start + length) {
        // An unlisted range cannot be unmapped, so nothing ever is.
        control.sharers.store(1, Ordering::SeqCst);
    }
}

/// Whether an address is in the engine's memory.
pub fn contains(address: u64) -> bool {
    let Some(control) = control() else { return false };
    let within =
        |[from, to]: &[AtomicU64; 2]| (from.load(Ordering::SeqCst)..to.load(Ordering::SeqCst)).contains(&address);
    control.engine_ranges.iter().any(within)
}

/// Adds a range to a list, or extends the range before it. False if the list is full. Threads may
/// call this at the same time, because no address is added twice.
fn add_to(list: &[[AtomicU64; 2]], start: u64, end: u64) -> bool {
    for [from, to] in list {
        if to.load(Ordering::SeqCst) == start {
            to.store(end, Ordering::SeqCst);
            return true;
        }
        if to.load(Ordering::SeqCst) == 0 && from.compare_exchange(0, start, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            to.store(end, Ordering::SeqCst);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let list: [[AtomicU64; 2]; 2] = Default::default();
        let ranges = || list.each_ref().map(|range| range.each_ref().map(|address| address.load(Ordering::Relaxed)));
        assert!(add_to(&list, 10, 20) && add_to(&list, 20, 25));
        assert_eq!(ranges(), [[10, 25], [0, 0]]);
        assert!(add_to(&list, 40, 50) && add_to(&list, 25, 30));
        assert_eq!(ranges(), [[10, 30], [40, 50]]);
        assert!(!add_to(&list, 60, 70));
    }
}
