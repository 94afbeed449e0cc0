//! Pending synchronous signals of the process, and backups of directed ones. The engine never lets
//! the kernel block synchronous signals, so it holds those that the application blocks. Signal
//! handlers use this module, so it takes no lock.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use wire::{Control, SLOT_COUNT};

use crate::signal::{SYNCHRONOUS_COUNT, SYNCHRONOUS_SIGNALS, SignalInfo, bit, synchronous_index};
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
    pub fn put(&self, signal: usize, info: &SignalInfo) {
        let Some(entry) = synchronous_index(signal).map(|index| &self.entries[index]) else { return };
        if entry.state.compare_exchange(EMPTY, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            for (word_slot, &word) in entry.info.iter().zip(info) {
                word_slot.store(word, Ordering::Relaxed);
            }
            entry.state.store(FULL, Ordering::SeqCst);
        }
    }

    /// Takes a signal, for the calling thread to handle.
    pub fn take(&self, signal: usize) -> Option<SignalInfo> {
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
pub fn store_backup(slot: usize, signal: usize, info: &SignalInfo) -> bool {
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
    let tid = control.slots[slot].os_tid.load(Ordering::SeqCst);
    if posted && was_sent && !send_hint(slot, tid, signal) {
        send_backup(slot, tid, signal);
    }
}

/// Sends the signal of a backup again, to a thread that takes no more hints. If the first one is
/// still pending there, the kernel merges them.
fn send_backup(slot: usize, tid: u32, signal: usize) {
    let Some(info) = BACKUPS[slot].take(signal) else { return };
    let [process, tid, signal] = [u64::from(TARGET.load(Ordering::Relaxed)), u64::from(tid), signal as u64];
    // SAFETY: the kernel reads the information.
    unsafe {
        if sys::call(sys::number::RT_TGSIGQUEUEINFO, [process, tid, signal, info.as_ptr() as u64, 0, 0]) < 0 {
            // The kernel lets no thread forge the information of a tgkill, but makes the same.
            sys::call(sys::number::TGKILL, [process, tid, signal, 0, 0, 0]);
        }
    }
}

/// Discards a backup: the signal itself has arrived.
pub fn discard_backup(slot: u32, signal: usize) {
    let Some(entry) = synchronous_index(signal).map(|index| &BACKUPS[slot as usize].entries[index]) else { return };
    for state in [FULL, UNCONFIRMED] {
        let _ = entry.state.compare_exchange(state, EMPTY, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Discards what a slot has of an earlier thread.
pub fn reset(slot: u32) {
    let hints = &HINTS[slot as usize];
    hints.unwanted.store(0, Ordering::SeqCst);
    hints.sent.store(0, Ordering::SeqCst);
    for signal in SYNCHRONOUS_SIGNALS {
        discard_backup(slot, signal);
    }
}

/// The signals with confirmed backups.
pub fn confirmed_backups(slot: u32) -> u64 {
    BACKUPS[slot as usize].bits()
}

/// Takes a confirmed backup, unless its signal is still pending in the kernel.
pub fn take_backup(slot: u32, signal: usize) -> Option<SignalInfo> {
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
pub fn is_hint(signal: usize, info: &SignalInfo) -> bool {
    synchronous_index(signal).is_some() && info[1] as u32 == SI_QUEUE && info[3] == HINT_VALUE
}

/// Sends a hint to a thread that does not block the signal. A thread that unblocks it checks by
/// itself.
pub fn hint_another_thread(control: &Control, signal: usize) {
    let Some(index) = synchronous_index(signal) else { return };
    for (at, (slot, open)) in control.slots.iter().zip(&UNBLOCKED).enumerate() {
        let tid = slot.os_tid.load(Ordering::SeqCst);
        if open.load(Ordering::SeqCst) & 1 << index != 0 && tid != 0 && send_hint(at, tid, signal) {
            return;
        }
    }
}

/// The hints to one thread. None may be pending in the kernel when the thread is native: the
/// application would get it.
struct Hints {
    /// The thread is native or is about to be.
    unwanted: AtomicU8,
    /// How many threads are sending one.
    senders: AtomicU32,
    /// Which of [`SYNCHRONOUS_SIGNALS`] may have one in the kernel, one bit each.
    sent: AtomicU8,
}

static HINTS: [Hints; SLOT_COUNT] =
    [const { Hints { unwanted: AtomicU8::new(0), senders: AtomicU32::new(0), sent: AtomicU8::new(0) } }; SLOT_COUNT];

/// Sends a hint. False if there is no such thread, or if it takes no more hints.
fn send_hint(slot: usize, tid: u32, signal: usize) -> bool {
    let (Some(index), hints) = (synchronous_index(signal), &HINTS[slot]) else { return false };
    hints.senders.fetch_add(1, Ordering::SeqCst);
    let is_sent = hints.unwanted.load(Ordering::SeqCst) == 0 && queue(tid, signal, HINT_VALUE);
    if is_sent {
        hints.sent.fetch_or(1 << index, Ordering::SeqCst);
    }
    hints.senders.fetch_sub(1, Ordering::SeqCst);
    is_sent
}

/// Makes sure that the calling thread, which blocks all signals, gets no more hints, and takes
/// those that are pending. Returns the signals, one bit each, that they were about.
pub fn refuse_hints(slot: u32) -> u64 {
    /// A sender that was killed never finishes.
    const PATIENCE: u32 = 1000;
    let hints = &HINTS[slot as usize];
    hints.unwanted.store(1, Ordering::SeqCst);
    for _ in 0..PATIENCE {
        if hints.senders.load(Ordering::SeqCst) == 0 {
            break;
        }
        sys::nap();
    }
    let sent = hints.sent.swap(0, Ordering::SeqCst);
    let numbers = SYNCHRONOUS_SIGNALS.into_iter().enumerate().filter(|(index, _)| sent & 1 << index != 0);
    numbers.filter(|(_, signal)| take_hint(*signal)).fold(0, |bits, (_, signal)| bits | bit(signal))
}

/// Takes the hint of this number that is pending in the kernel. False if there is none.
fn take_hint(signal: usize) -> bool {
    let (set, now, mut info) = (bit(signal), [0u64; 2], [0u64; 16]);
    let arguments = [&raw const set as u64, info.as_mut_ptr() as u64, now.as_ptr() as u64, 8, 0, 0];
    // SAFETY: the kernel reads the set and the time, and writes the information.
    if unsafe { sys::call(sys::number::RT_SIGTIMEDWAIT, arguments) } < 0 {
        return false;
    }
    if !is_hint(signal, &info) {
        requeue(signal, &info);
        return false;
    }
    true
}

/// Lets the calling thread get hints again.
pub fn accept_hints(slot: u32) {
    HINTS[slot as usize].unwanted.store(0, Ordering::SeqCst);
}

/// Queues a signal for the calling thread itself.
pub fn requeue(signal: usize, info: &SignalInfo) {
    // SAFETY: no arguments; then the kernel reads the information.
    unsafe {
        let process = sys::call(sys::number::GETPID, [0; 6]) as u64;
        let tid = u64::from(sys::gettid());
        sys::call(sys::number::RT_TGSIGQUEUEINFO, [process, tid, signal as u64, info.as_ptr() as u64, 0, 0]);
    }
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
    let mut info: SignalInfo = [0; 16];
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

    fn pending_in_kernel() -> u64 {
        let mut pending = 0u64;
        // SAFETY: the kernel writes the set.
        unsafe { sys::call(sys::number::RT_SIGPENDING, [&raw mut pending as u64, 8, 0, 0, 0, 0]) };
        pending
    }

    /// A thread that is about to become native: no hint is left, none comes, and the signal that a
    /// hint would have been about is sent instead.
    #[test]
    fn a_native_thread_gets_signals_instead_of_hints() {
        const SLOT: usize = SLOT_COUNT - 1;
        set_up();
        let (tid, blocked) = (sys::gettid(), bit(SIGBUS));
        // SAFETY: the kernel reads the mask of this thread, which no other code relies on.
        unsafe { sys::call(sys::number::RT_SIGPROCMASK, [0, &raw const blocked as u64, 0, 8, 0, 0]) };
        assert!(send_hint(SLOT, tid, SIGBUS));
        assert_eq!(pending_in_kernel(), bit(SIGBUS));
        assert_eq!(refuse_hints(SLOT as u32), bit(SIGBUS));
        assert_eq!(pending_in_kernel(), 0);

        assert!(!send_hint(SLOT, tid, SIGBUS));
        assert_eq!(pending_in_kernel(), 0);
        BACKUPS[SLOT].put(SIGBUS, &[0; 16]);
        send_backup(SLOT, tid, SIGBUS);
        assert_eq!((pending_in_kernel(), confirmed_backups(SLOT as u32)), (bit(SIGBUS), 0));

        accept_hints(SLOT as u32);
        assert!(send_hint(SLOT, tid, SIGBUS));
        // The signal was there before the hint, and stays.
        assert_eq!(refuse_hints(SLOT as u32), 0);
        assert_eq!(pending_in_kernel(), bit(SIGBUS));
        assert!(!take_hint(SIGSEGV));
    }
}
