//! Pending synchronous signals of the process, and backups of directed ones. The engine never lets
//! the kernel block synchronous signals, so it holds those that the application blocks. Signal
//! handlers use this module, so it takes no lock.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use wire::{Control, SLOT_COUNT};

use crate::signal::{Info, SYNCHRONOUS_COUNT, SYNCHRONOUS_SIGNALS, bit, synchronous_index};
use crate::sys;

/// The signals that are pending for the process.
pub static PROCESS: Pending = Pending { entries: [const { Entry::new() }; SYNCHRONOUS_COUNT] };

const EMPTY: u32 = 0;
/// A thread writes or reads the entry. A signal of that number that comes meanwhile merges with it.
const BUSY: u32 = 1;
const FULL: u32 = 2;

pub struct Pending {
    entries: [Entry; SYNCHRONOUS_COUNT],
}

struct Entry {
    state: AtomicU32,
    info: [AtomicU64; 16],
}

impl Entry {
    const fn new() -> Self {
        Self { state: AtomicU32::new(EMPTY), info: [const { AtomicU64::new(0) }; 16] }
    }
}

impl Pending {
    /// Makes a signal pending. As for all standard signals, one per number is kept.
    pub fn put(&self, signal: usize, info: &Info) {
        let Some(entry) = synchronous_index(signal).map(|index| &self.entries[index]) else { return };
        if entry.state.compare_exchange(EMPTY, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            for (word_slot, &word) in entry.info.iter().zip(info) {
                word_slot.store(word, Ordering::Relaxed);
            }
            entry.state.store(FULL, Ordering::SeqCst);
        }
    }

    /// Takes a signal, for the calling thread to handle.
    pub fn take(&self, signal: usize) -> Option<Info> {
        let entry = &self.entries[synchronous_index(signal)?];
        entry.state.compare_exchange(FULL, BUSY, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let info = core::array::from_fn(|at| entry.info[at].load(Ordering::Relaxed));
        entry.state.store(EMPTY, Ordering::SeqCst);
        Some(info)
    }

    /// Which signals are pending.
    pub fn bits(&self) -> u64 {
        let full = |index: &usize| self.entries[*index].state.load(Ordering::SeqCst) == FULL;
        (0..SYNCHRONOUS_COUNT).filter(full).fold(0, |bits, index| bits | bit(SYNCHRONOUS_SIGNALS[index]))
    }
}

/// Backups of the synchronous signals that one thread of the process sends to another one. The
/// kernel drops such a signal while one of the same number is pending for the thread, which may be
/// a fault of the engine's.
///
/// The sender stores a backup, sends the signal, and confirms the backup. The receiver of the
/// signal discards the backup. A thread that has had a fault of that number takes a confirmed
/// backup if no such signal is pending. A hint follows every confirmation, in case it came too late
/// for that.
static BACKUPS: [Pending; SLOT_COUNT] =
    [const { Pending { entries: [const { Entry::new() }; SYNCHRONOUS_COUNT] } }; SLOT_COUNT];

/// The backup is stored, but the signal is not sent yet.
const UNCONFIRMED: u32 = 3;

/// The slot of a live thread of this process.
pub fn slot_of(control: &Control, tid: u32) -> Option<usize> {
    let is_it = |slot: &wire::Slot| {
        slot.os_tid.load(Ordering::SeqCst) == tid && slot.state.load(Ordering::SeqCst) == wire::SLOT_LIVE
    };
    control.slots.iter().position(is_it)
}

/// Stores a backup before a signal is sent to another thread. False if there is one already: then
/// there is a signal, too.
pub fn store_backup(slot: usize, signal: usize, info: &Info) -> bool {
    let Some(entry) = synchronous_index(signal).map(|index| &BACKUPS[slot].entries[index]) else { return false };
    let free = entry.state.compare_exchange(EMPTY, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    if free {
        for (word_slot, &word) in entry.info.iter().zip(info) {
            word_slot.store(word, Ordering::Relaxed);
        }
        entry.state.store(UNCONFIRMED, Ordering::SeqCst);
    }
    free
}

/// Confirms a backup when its signal has been sent; discards it otherwise.
pub fn confirm_backup(control: &Control, slot: usize, signal: usize, was_sent: bool) {
    let Some(entry) = synchronous_index(signal).map(|index| &BACKUPS[slot].entries[index]) else { return };
    let state = if was_sent { FULL } else { EMPTY };
    let posted = entry.state.compare_exchange(UNCONFIRMED, state, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    if posted && was_sent {
        send_hint(control.slots[slot].os_tid.load(Ordering::SeqCst), signal);
    }
}

/// Discards a backup: the signal itself has arrived.
pub fn discard_backup(slot: u32, signal: usize) {
    let Some(entry) = synchronous_index(signal).map(|index| &BACKUPS[slot as usize].entries[index]) else { return };
    for state in [FULL, UNCONFIRMED] {
        let _ = entry.state.compare_exchange(state, EMPTY, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Discards the backups of a slot that has a new thread.
pub fn discard_backups(slot: u32) {
    for signal in SYNCHRONOUS_SIGNALS {
        discard_backup(slot, signal);
    }
}

/// The signals with confirmed backups.
pub fn confirmed_backups(slot: u32) -> u64 {
    BACKUPS[slot as usize].bits()
}

/// Takes a confirmed backup, unless its signal is still pending in the kernel.
pub fn take_backup(slot: u32, signal: usize) -> Option<Info> {
    let mut pending = 0u64;
    // SAFETY: the kernel writes the set.
    unsafe { sys::call(sys::number::RT_SIGPENDING, [&raw mut pending as u64, 8, 0, 0, 0, 0]) };
    if pending & bit(signal) != 0 {
        return None;
    }
    BACKUPS[slot as usize].take(signal)
}

/// By slot: which of [`SYNCHRONOUS_SIGNALS`] the thread does not block, one bit each.
static UNBLOCKED: [AtomicU8; SLOT_COUNT] = [const { AtomicU8::new(0) }; SLOT_COUNT];

/// Publishes the application's mask of a thread.
pub fn publish(slot: u32, mask: u64) {
    let open = SYNCHRONOUS_SIGNALS.iter().enumerate().filter(|(_, signal)| mask & bit(**signal) == 0);
    let bits = open.fold(0u8, |bits, (index, _)| bits | 1 << index);
    UNBLOCKED[slot as usize].store(bits, Ordering::SeqCst);
}

/// The value of a *hint*: a queued signal that makes another thread check for pending signals. It
/// has the number of a signal that is pending for the process and that the other thread does not
/// block. If the kernel drops the hint, a signal of that number is about to arrive, and makes the
/// thread check, too.
const HINT_VALUE: u64 = wire::DETACH_REQUEST ^ 1;
const SI_QUEUE: u32 = -1i32 as u32;

/// Whether a signal is a hint.
pub fn is_hint(signal: usize, info: &Info) -> bool {
    synchronous_index(signal).is_some() && info[1] as u32 == SI_QUEUE && info[3] == HINT_VALUE
}

/// Sends a hint to a thread that does not block the signal. A thread that unblocks it checks by
/// itself.
pub fn hint_another_thread(control: &Control, signal: usize) {
    let Some(index) = synchronous_index(signal) else { return };
    for (slot, open) in control.slots.iter().zip(&UNBLOCKED) {
        let tid = slot.os_tid.load(Ordering::SeqCst);
        if open.load(Ordering::SeqCst) & 1 << index != 0 && tid != 0 && send_hint(tid, signal) {
            return;
        }
    }
}

fn send_hint(tid: u32, signal: usize) -> bool {
    queue(tid, signal, HINT_VALUE)
}

/// The target's process id. The caller of [`queue`] may be another process.
static TARGET: AtomicU32 = AtomicU32::new(0);

/// Notes the target's process id.
pub fn set_up() {
    // SAFETY: no arguments.
    TARGET.store(unsafe { sys::call(sys::number::GETPID, [0; 6]) } as u32, Ordering::Relaxed);
}

/// Queues a signal of the engine for another thread, with a value that the engine's handler knows.
/// False if there is no such thread. Only threads of the target's process get one: a process that
/// shares its memory may have executed another program by now.
pub fn queue(tid: u32, signal: usize, value: u64) -> bool {
    let process = u64::from(TARGET.load(Ordering::Relaxed));
    let mut info: Info = [0; 16];
    (info[0], info[1], info[2], info[3]) = (signal as u64, u64::from(SI_QUEUE), process, value);
    let arguments = [process, u64::from(tid), signal as u64, info.as_ptr() as u64, 0, 0];
    // SAFETY: the kernel reads the information.
    unsafe { sys::call(sys::number::RT_TGSIGQUEUEINFO, arguments) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::{SIGBUS, SIGSEGV};

    #[test]
    fn one_of_a_number_is_kept() {
        let pending = Pending { entries: [const { Entry::new() }; SYNCHRONOUS_COUNT] };
        let (first, second) = ([7; 16], [8; 16]);
        pending.put(SIGSEGV, &first);
        pending.put(SIGSEGV, &second);
        pending.put(SIGBUS, &second);
        assert_eq!(pending.bits(), bit(SIGSEGV) | bit(SIGBUS));
        assert_eq!(pending.take(SIGSEGV), Some(first));
        assert_eq!(pending.take(SIGSEGV), None);
        assert_eq!(pending.take(SIGBUS), Some(second));
        assert_eq!(pending.bits(), 0);
        pending.put(10, &first);
        assert_eq!((pending.bits(), pending.take(10)), (0, None));
    }
}
