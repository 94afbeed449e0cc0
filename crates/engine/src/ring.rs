//! The thread's ring, from the engine's side: append words, hand over full segments, wait for room.

use core::sync::atomic::Ordering;

use wire::{Control, SEGMENT_BYTES, SEGMENT_COUNT, word};

use crate::fragment::Progress;
use crate::select::World;
use crate::tcb::Tcb;
use crate::{select, skip, sys};

/// How often a waiting thread looks whether the recorder is still alive.
const PATIENCE_MILLISECONDS: u64 = 100;

fn segment_address(tcb: &Tcb) -> u64 {
    let segment = tcb.slot().head.load(Ordering::Relaxed) as usize % SEGMENT_COUNT;
    tcb.control as u64 + wire::segment_offset(tcb.slot_index as usize, segment) as u64
}

fn open_segment(tcb: &mut Tcb) {
    tcb.segment = segment_address(tcb);
    tcb.limit = tcb.segment + SEGMENT_BYTES as u64;
    tcb.cursor = tcb.segment;
    tcb.stand.opened = tcb.cursor;
}

/// Prepares the ring of a new thread and makes the guard pages that stop its cursor.
pub fn open(tcb: &mut Tcb) {
    for segment in 0..SEGMENT_COUNT {
        let start = tcb.control as u64 + wire::segment_offset(tcb.slot_index as usize, segment) as u64;
        // SAFETY: the guard page of a slot that this thread owns.
        unsafe { sys::protect(start + SEGMENT_BYTES as u64, wire::GUARD_BYTES as u64, 0) };
    }
    open_segment(tcb);
}

/// Whether `address` is in a guard page of this thread's ring.
pub fn is_guard(tcb: &Tcb, address: u64) -> bool {
    (tcb.limit..tcb.limit + wire::GUARD_BYTES as u64).contains(&address)
}

/// Appends a whole event.
fn append(tcb: &mut Tcb, words: &[u32]) {
    if tcb.cursor + 4 * words.len() as u64 > tcb.limit {
        advance(tcb);
    }
    let at = tcb.cursor as *mut u32;
    // SAFETY: there is room in the segment, which only this thread writes. The first word comes last, so that a
    // recorder that finds this thread killed sees a whole event or none.
    unsafe {
        for index in (0..words.len()).rev() {
            at.add(index).write_volatile(words[index]);
        }
    }
    tcb.cursor += 4 * words.len() as u64;
}

/// Hands the segment over, waits for a free one and opens it.
pub fn advance(tcb: &mut Tcb) {
    if select::reuse(tcb) {
        return;
    }
    publish(tcb);
    if !wait_for_room(tcb) {
        // Nobody reads any more: write over what is there until the thread has left.
        tcb.leaving = true;
        tcb.cursor = tcb.segment;
        return;
    }
    open_segment(tcb);
    append_time(tcb, word::TIME);
    tcb.stand.quiet = tcb.stand.world != World::Recording;
    tcb.stand.floor = tcb.cursor;
}

fn publish(tcb: &mut Tcb) {
    let slot = tcb.slot();
    let head = slot.head.load(Ordering::Relaxed);
    slot.used[head as usize % SEGMENT_COUNT].store((tcb.cursor - tcb.segment) as u32, Ordering::Relaxed);
    slot.head.store(head.wrapping_add(1), Ordering::SeqCst);
    ring_doorbell(tcb.control());
}

/// Wakes the recorder if it sleeps.
pub fn ring_doorbell(control: &Control) {
    if control.recorder_sleeping.load(Ordering::SeqCst) != 0 {
        control.doorbell.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&control.doorbell);
    }
}

/// Whether the recorder is alive and wants data.
pub fn is_wanted(control: &Control) -> bool {
    control.recorder[0].load(Ordering::Relaxed) & wire::OWNER_DIED == 0 && control.leave.load(Ordering::Relaxed) == 0
}

/// Waits until the recorder has taken the code ring's content up to `head`.
pub fn wait_for_code(control: &Control, head: u64) {
    loop {
        let tail = control.code_tail.load(Ordering::SeqCst);
        if tail >= head || !is_wanted(control) {
            control.code_waiting.store(0, Ordering::SeqCst);
            return;
        }
        control.code_waiting.store(1, Ordering::SeqCst);
        ring_doorbell(control);
        // SAFETY: the low half of the tail, as an atomic of its own; x86 is little-endian.
        let word = unsafe { &*control.code_tail.as_ptr().cast::<core::sync::atomic::AtomicU32>() };
        sys::futex_wait(word, tail as u32, PATIENCE_MILLISECONDS);
    }
}

fn wait_for_room(tcb: &Tcb) -> bool {
    let slot = tcb.slot();
    loop {
        let tail = slot.tail.load(Ordering::SeqCst);
        let head = slot.head.load(Ordering::Relaxed);
        if (head.wrapping_sub(tail) as usize) < SEGMENT_COUNT {
            return true;
        }
        if !is_wanted(tcb.control()) {
            // Nobody will make room any more.
            slot.head.store(head.wrapping_sub(1), Ordering::SeqCst);
            return false;
        }
        slot.waiting.store(1, Ordering::SeqCst);
        if slot.tail.load(Ordering::SeqCst) == tail {
            sys::futex_wait(&slot.tail, tail, PATIENCE_MILLISECONDS);
        }
        slot.waiting.store(0, Ordering::SeqCst);
    }
}

fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

/// Appends the place where the thread leaves what is recorded.
pub fn append_gap(tcb: &mut Tcb, pc: u64) {
    append(tcb, &[word::event(word::GAP, 0), low(pc), high(pc)]);
}

/// Appends an event of the form `pc, tsc`.
pub fn append_timed(tcb: &mut Tcb, kind: u8, pc: u64) {
    let tsc = sys::tsc();
    append(tcb, &[word::event(kind, 0), low(pc), high(pc), low(tsc), high(tsc)]);
}

/// Appends an event that has only a time.
pub fn append_time(tcb: &mut Tcb, kind: u8) {
    let tsc = sys::tsc();
    append(tcb, &[word::event(kind, 0), low(tsc), high(tsc)]);
}

pub fn append_syscall(tcb: &mut Tcb, number: u32) {
    let tsc = sys::tsc();
    append(tcb, &[word::event(word::SYSCALL, 0), number, low(tsc), high(tsc)]);
}

/// Appends a signal that interrupts the thread at `tcb.registers.rip`, after `tcb.progress`.
pub fn append_signal(tcb: &mut Tcb, signal: u8, handler: u64) {
    let Progress { fragment, blocks } = core::mem::take(&mut tcb.progress);
    let pc = tcb.registers.rip;
    skip::interrupted(tcb, &Progress { fragment, blocks }, pc);
    let tsc = sys::tsc();
    let head = word::event(word::SIGNAL, u32::from(signal));
    append(tcb, &[head, fragment, blocks, low(pc), high(pc), low(handler), high(handler), low(tsc), high(tsc)]);
}

pub fn append_child(tcb: &mut Tcb, thread: u32, os_tid: u32) {
    append(tcb, &[word::event(word::CHILD, 0), thread, os_tid]);
}

/// Says why the thread is not recorded any further, hands everything over and gives up the slot.
pub fn close(tcb: &mut Tcb, kind: u8) {
    skip::give_back(tcb);
    select::forget_silence(tcb);
    append_time(tcb, kind);
    publish(tcb);
    tcb.slot().state.store(wire::SLOT_ENDED, Ordering::SeqCst);
    ring_doorbell(tcb.control());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u32 = 3;

    /// A thread whose ring is open, in memory as the recorder makes it.
    fn thread() -> &'static mut Tcb {
        let shared = crate::memory::tests::shared();
        // SAFETY: zeroed memory of the right size is a control page.
        let control = unsafe { &*(shared as *const Control) };
        let tcb = Tcb::new(control, SLOT, 9, 0).unwrap();
        open(tcb);
        tcb
    }

    /// The words of a segment up to the first that is not written.
    fn words(tcb: &Tcb, segment: usize) -> Vec<u32> {
        let start = tcb.control as u64 + wire::segment_offset(SLOT as usize, segment) as u64;
        // SAFETY: a segment of the mapping that `thread` made, without its guard page.
        let words = unsafe { core::slice::from_raw_parts(start as *const u32, SEGMENT_BYTES / 4) };
        words.iter().copied().take_while(|word| *word != 0).collect()
    }

    /// The kinds of the events that `words` consist of.
    fn kinds(mut words: &[u32]) -> Vec<u8> {
        let mut kinds = Vec::new();
        while let Some(first) = words.first() {
            let length = word::length(*first).expect("no event begins here");
            kinds.push(word::kind(*first));
            words = &words[length..];
        }
        kinds
    }

    #[test]
    fn events_have_the_length_that_the_wire_says() {
        let tcb = thread();
        // No word of an event is 0 here, so that all of them are seen.
        let address = 0x7fff_1111_2222_3333;
        append_timed(tcb, word::START, address);
        append_time(tcb, word::TIME);
        append_syscall(tcb, 0x4d);
        tcb.progress = Progress { fragment: 5, blocks: 2 };
        tcb.registers.rip = address;
        append_signal(tcb, 11, address);
        append_timed(tcb, word::RESUME, address);
        append_child(tcb, 1, 2);
        append_time(tcb, word::LEAVE);
        append_time(tcb, word::END);
        let words = words(tcb, 0);
        let expected =
            [word::START, word::TIME, word::SYSCALL, word::SIGNAL, word::RESUME, word::CHILD, word::LEAVE, word::END];
        assert_eq!(kinds(&words), expected);
        assert_eq!(words.len() as u64 * 4, tcb.cursor - tcb.segment);
        assert_eq!(words[1..3], [0x2222_3333, 0x7fff_1111]);
        let signal = &words[5 + 3 + 4..];
        assert_eq!(signal[0], word::event(word::SIGNAL, 11));
        assert_eq!(signal[1..5], [5, 2, 0x2222_3333, 0x7fff_1111]);
        assert_eq!(tcb.progress.fragment, 0, "it is told once");
    }

    #[test]
    fn a_full_segment_is_handed_over() {
        let tcb = thread();
        let room = SEGMENT_BYTES / 12;
        for _ in 0..room {
            append_time(tcb, word::TIME);
        }
        assert_eq!(tcb.slot().head.load(Ordering::Relaxed), 0);
        append_time(tcb, word::END);
        assert_eq!(tcb.slot().head.load(Ordering::Relaxed), 1);
        assert_eq!(tcb.slot().used[0].load(Ordering::Relaxed) as usize, room * 12);
        assert_eq!(kinds(&words(tcb, 0)).len(), room);
        assert_eq!(kinds(&words(tcb, 1)), [word::TIME, word::END], "every segment begins with the time");
        assert_eq!(tcb.limit - tcb.segment, SEGMENT_BYTES as u64);
        assert!(is_guard(tcb, tcb.limit) && is_guard(tcb, tcb.limit + 8) && !is_guard(tcb, tcb.limit - 1));
    }

    #[test]
    fn a_full_ring_waits_for_the_recorder() {
        let tcb = thread();
        let slot = tcb.slot();
        for _ in 1..SEGMENT_COUNT {
            advance(tcb);
        }
        let recorder = std::thread::spawn(move || {
            while slot.waiting.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            slot.tail.store(1, Ordering::SeqCst);
            sys::futex_wake(&slot.tail);
        });
        advance(tcb);
        recorder.join().unwrap();
        assert_eq!(slot.head.load(Ordering::Relaxed) as usize, SEGMENT_COUNT);
        assert_eq!(tcb.segment, segment_address(tcb));
        assert!(!tcb.leaving);
    }

    #[test]
    fn without_a_recorder_the_thread_leaves() {
        let tcb = thread();
        for _ in 1..SEGMENT_COUNT {
            advance(tcb);
        }
        tcb.control().recorder[0].store(wire::OWNER_DIED, Ordering::Relaxed);
        advance(tcb);
        assert!(tcb.leaving);
        assert_eq!(tcb.cursor, tcb.segment);
        assert_eq!(tcb.slot().head.load(Ordering::Relaxed) as usize, SEGMENT_COUNT - 1);
    }

    #[test]
    fn what_is_in_the_ring_is_not_lost_when_nobody_wants_more() {
        let tcb = thread();
        append_time(tcb, word::TIME);
        tcb.control().leave.store(1, Ordering::Relaxed);
        advance(tcb);
        close(tcb, word::LEAVE);
        let slot = tcb.slot();
        assert_eq!(slot.head.load(Ordering::Relaxed), 2);
        assert_eq!(slot.state.load(Ordering::Relaxed), wire::SLOT_ENDED);
        assert_eq!(kinds(&words(tcb, 0)), [word::TIME]);
        assert_eq!(kinds(&words(tcb, 1)), [word::TIME, word::LEAVE]);
    }
}
