//! The thread's ring, from the engine's side: append symbols, hand over full segments, wait for room.

use core::sync::atomic::Ordering;

use wire::{Control, SEGMENT_BYTES, SEGMENT_COUNT, symbol};

use crate::sys;
use crate::tcb::Tcb;

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

/// Appends a whole symbol. `position` is the block whose outcomes come next (0: an arrival or event does), for the case
/// that a new segment has to be opened.
pub fn append(tcb: &mut Tcb, bytes: &[u8], position: u64) {
    if tcb.cursor + bytes.len() as u64 > tcb.limit {
        advance(tcb, position);
    }
    let (first, rest) = bytes.split_at(1);
    // SAFETY: there is room in the segment, which only this thread writes. The first byte comes last, so that a
    // recorder that finds this thread killed sees a whole symbol or none.
    unsafe {
        core::ptr::copy_nonoverlapping(rest.as_ptr(), (tcb.cursor + 1) as *mut u8, rest.len());
        core::sync::atomic::compiler_fence(Ordering::Release);
        (tcb.cursor as *mut u8).write_volatile(first[0]);
    }
    tcb.cursor += bytes.len() as u64;
}

/// Hands the segment over, waits for a free one and opens it.
pub fn advance(tcb: &mut Tcb, position: u64) {
    publish(tcb);
    if !wait_for_room(tcb) {
        // Nobody reads any more: write over what is there until the thread has left.
        tcb.leaving = true;
        tcb.cursor = tcb.segment;
        return;
    }
    open_segment(tcb);
    append_timed(tcb, symbol::SYNC, position, 0);
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

fn wait_for_room(tcb: &Tcb) -> bool {
    let slot = tcb.slot();
    loop {
        let tail = slot.tail.load(Ordering::SeqCst);
        let head = slot.head.load(Ordering::Relaxed);
        if !is_wanted(tcb.control()) {
            // The segment count must not run ahead of the recorder's.
            slot.head.store(head.wrapping_sub(1), Ordering::SeqCst);
            return false;
        }
        if (head.wrapping_sub(tail) as usize) < SEGMENT_COUNT {
            return true;
        }
        slot.waiting.store(1, Ordering::SeqCst);
        if slot.tail.load(Ordering::SeqCst) == tail {
            sys::futex_wait(&slot.tail, tail, PATIENCE_MILLISECONDS);
        }
        slot.waiting.store(0, Ordering::SeqCst);
    }
}

/// Appends an event of the form `pc, tsc`.
pub fn append_timed(tcb: &mut Tcb, tag: u8, pc: u64, position: u64) {
    let mut bytes = [0; 17];
    bytes[0] = tag;
    bytes[1..9].copy_from_slice(&pc.to_le_bytes());
    bytes[9..].copy_from_slice(&sys::tsc().to_le_bytes());
    append(tcb, &bytes, position);
}

/// Appends an event that has only a time.
pub fn append_time(tcb: &mut Tcb, tag: u8, position: u64) {
    let mut bytes = [0; 9];
    bytes[0] = tag;
    bytes[1..].copy_from_slice(&sys::tsc().to_le_bytes());
    append(tcb, &bytes, position);
}

pub fn append_syscall(tcb: &mut Tcb, number: u32, block: u64) {
    let mut bytes = [0; 13];
    bytes[0] = symbol::SYSCALL;
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    bytes[5..].copy_from_slice(&sys::tsc().to_le_bytes());
    append(tcb, &bytes, block);
}

pub fn append_signal(tcb: &mut Tcb, signal: u8, pc: u64, handler: u64, block: u64) {
    let mut bytes = [0; 26];
    bytes[0] = symbol::SIGNAL;
    bytes[1] = signal;
    bytes[2..10].copy_from_slice(&pc.to_le_bytes());
    bytes[10..18].copy_from_slice(&handler.to_le_bytes());
    bytes[18..].copy_from_slice(&sys::tsc().to_le_bytes());
    append(tcb, &bytes, block);
}

pub fn append_child(tcb: &mut Tcb, thread: u32, os_tid: u32, position: u64) {
    let mut bytes = [0; 9];
    bytes[0] = symbol::CHILD;
    bytes[1..5].copy_from_slice(&thread.to_le_bytes());
    bytes[5..].copy_from_slice(&os_tid.to_le_bytes());
    append(tcb, &bytes, position);
}

/// Says that the thread ends, hands everything over and gives up the slot.
pub fn close(tcb: &mut Tcb, tag: u8, position: u64) {
    append_time(tcb, tag, position);
    publish(tcb);
    tcb.slot().state.store(wire::SLOT_ENDED, Ordering::SeqCst);
    ring_doorbell(tcb.control());
}
