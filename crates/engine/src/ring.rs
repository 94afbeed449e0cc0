//! The data ring of a thread, on the engine's side: appends words, hands over full segments, and
//! waits for free ones.

use core::sync::atomic::Ordering;

use entity::{AppPc, PathId, ThreadId, Tsc};
use wire::{Control, SEGMENT_BYTES, SEGMENT_COUNT, word};

use crate::emulate;
use crate::fragment::Progress;
use crate::select::TranslationMode;
use crate::tcb::Tcb;
use crate::translate::IN_STRING;
use crate::{pending, reclaim, select, skip, sys};

/// How often a waiting thread checks that the recorder is alive.
const PATIENCE_MILLISECONDS: u64 = 100;

fn segment_address(tcb: &Tcb) -> u64 {
    let segment = tcb.slot().head.load(Ordering::Relaxed) as usize % SEGMENT_COUNT;
    tcb.control as u64 + wire::segment_offset(tcb.slot_index as usize, segment) as u64
}

fn open_segment(tcb: &mut Tcb) {
    tcb.segment = segment_address(tcb);
    tcb.limit = tcb.segment + SEGMENT_BYTES as u64;
    tcb.cursor = tcb.segment;
    select::restart_words(tcb);
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
    append_with_data(tcb, words, &[]);
}

/// Appends a whole event and the data that belongs to it, filled up to whole words.
fn append_with_data(tcb: &mut Tcb, words: &[u32], data: &[&[u8]]) {
    let total = bytes_of(words.len(), data);
    make_room(tcb, total);
    let mut at = tcb.cursor + 4 * words.len() as u64;
    for part in data {
        // SAFETY: there is room in the segment, which only this thread writes.
        unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), at as *mut u8, part.len()) };
        at += part.len() as u64;
    }
    let at = tcb.cursor as *mut u32;
    // SAFETY: there is room in the segment, which only this thread writes. The first word comes
    // last, so that a recorder that finds this thread killed sees a whole event or none.
    unsafe {
        for index in (0..words.len()).rev() {
            at.add(index).write_volatile(words[index]);
        }
    }
    tcb.cursor += total;
}

fn bytes_of(words: usize, data: &[&[u8]]) -> u64 {
    let bytes: usize = data.iter().map(|part| part.len()).sum();
    4 * words as u64 + bytes.next_multiple_of(4) as u64
}

fn make_room(tcb: &mut Tcb, bytes: u64) {
    if tcb.cursor + bytes > tcb.limit {
        advance(tcb);
    }
}

/// Returns the timestamp for an event of `bytes` bytes. It is read when there is room for the
/// event, because a new segment begins with a timestamp, too. It is read before any following
/// instruction is executed: see `owners`.
fn time_of_event(tcb: &mut Tcb, bytes: u64) -> Tsc {
    make_room(tcb, bytes);
    let time = sys::tsc();
    // SAFETY: part of every x86-64 processor.
    unsafe { core::arch::x86_64::_mm_lfence() };
    time
}

/// The first word of an event with data.
fn head(kind: u8, low: u8, data: &[&[u8]]) -> u32 {
    let bytes: usize = data.iter().map(|part| part.len()).sum();
    word::event(kind, u32::from(low) | (bytes.div_ceil(4) as u32) << 8)
}

/// Hands the segment over, waits for a free one and opens it.
pub fn advance(tcb: &mut Tcb) {
    if select::reuse_segment(tcb) {
        return;
    }
    if tcb.selection.skipping {
        skip::count_executed(tcb);
    }
    publish(tcb);
    if !wait_for_room(tcb) {
        // The recorder reads no more: overwrite the segment until the thread has detached.
        tcb.detaching = true;
        tcb.cursor = tcb.segment;
        select::restart_words(tcb);
        return;
    }
    open_segment(tcb);
    append_time(tcb, word::TIME);
    tcb.selection.is_uninstrumented = tcb.selection.mode != TranslationMode::Instrumented;
    tcb.selection.reuse_start = tcb.cursor;
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

/// Whether the recorder is alive and takes data.
pub fn has_recorder(control: &Control) -> bool {
    control.recorder[0].load(Ordering::Relaxed) & wire::OWNER_DIED == 0
        && control.detach.load(Ordering::Relaxed) != wire::DETACH_SEPARATELY
}

/// Waits until the recorder has taken the code ring's content up to `head`.
pub fn wait_for_code(control: &Control, head: u64) {
    loop {
        let tail = control.code_tail.load(Ordering::SeqCst);
        if tail >= head || !has_recorder(control) {
            control.code_waiting.store(0, Ordering::SeqCst);
            return;
        }
        control.code_waiting.store(1, Ordering::SeqCst);
        ring_doorbell(control);
        sys::futex_wait_low_half(&control.code_tail, tail as u32, PATIENCE_MILLISECONDS);
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
        // A process that has shared the memory of an image that is gone has no slot any more.
        let is_orphan = tcb.is_child_process() && slot.state.load(Ordering::SeqCst) != wire::SLOT_LIVE;
        if is_orphan || !has_recorder(tcb.control()) {
            // The recorder will free no segment any more.
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

/// The low and the high half.
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Appends the address from which on the thread is not recorded.
pub fn append_gap(tcb: &mut Tcb, pc: AppPc) {
    let [low, high] = halves(pc.get());
    append(tcb, &[word::event(word::GAP, 0), low, high]);
}

/// Appends an event of the form `pc, tsc`.
pub fn append_timed(tcb: &mut Tcb, kind: u8, pc: AppPc) {
    let tsc = time_of_event(tcb, bytes_of(5, &[]));
    let [pc, tsc] = [pc.get(), tsc.get()].map(halves);
    append(tcb, &[word::event(kind, 0), pc[0], pc[1], tsc[0], tsc[1]]);
}

/// Appends an event that has only a time.
pub fn append_time(tcb: &mut Tcb, kind: u8) {
    let [low, high] = halves(time_of_event(tcb, bytes_of(3, &[])).get());
    append(tcb, &[word::event(kind, 0), low, high]);
}

pub fn append_syscall(tcb: &mut Tcb, number: u32) {
    let [low, high] = halves(time_of_event(tcb, bytes_of(4, &[])).get());
    append(tcb, &[word::event(word::SYSCALL, 0), number, low, high]);
}

/// Appends a signal that interrupts the thread at `tcb.registers.rip`, after `tcb.progress`.
pub fn append_signal(tcb: &mut Tcb, signal: u8, handler: AppPc) {
    let Progress { fragment, blocks, data } = core::mem::take(&mut tcb.progress);
    // The fragment has stored its data where the event goes.
    let mut room = [0; wire::RECORD_BYTES_MAX];
    let length = (data as usize & !IN_STRING).min(wire::RECORD_BYTES_MAX);
    // SAFETY: the fragment has stored so much behind the cursor.
    unsafe { core::ptr::copy_nonoverlapping((tcb.cursor + 4) as *const u8, room.as_mut_ptr(), length) };
    let (pairs, count) = if data as usize & IN_STRING == 0 { ([0; 32], 0) } else { emulate::string_progress(tcb) };
    let data = [&room[..length], &pairs[..count]];
    skip::count_interrupted(tcb, fragment, blocks);
    let (pc, tsc) = (tcb.pc(), time_of_event(tcb, bytes_of(9, &data)));
    let (head, fragment) = (head(word::SIGNAL, signal, &data), fragment.first_path().get());
    let [pc, handler, tsc] = [pc.get(), handler.get(), tsc.get()].map(halves);
    let words = [head, fragment, blocks, pc[0], pc[1], handler[0], handler[1], tsc[0], tsc[1]];
    append_with_data(tcb, &words, &data);
}

/// Appends a call of an allocation routine, at whose entry the thread is.
pub fn append_enter(tcb: &mut Tcb, routine: u8, arguments: [u64; 3], caller: AppPc) {
    let tsc = time_of_event(tcb, bytes_of(16, &[]));
    let [pc, rsp] = [tcb.registers.rip, tcb.registers.general[wire::RSP]].map(halves);
    let [first, second, third] = arguments.map(halves);
    let [caller, tsc] = [caller.get(), tsc.get()].map(halves);
    let pairs = [pc, rsp, first, second, third, caller];
    let mut words = [word::event(word::ENTER, routine.into()); 16];
    words[1..word::ENTER_STACK].copy_from_slice(pairs.as_flattened());
    words[word::ENTER_STACK..].copy_from_slice(&[0, tsc[0], tsc[1]]);
    append(tcb, &words);
}

/// Appends the result of an allocation routine.
pub fn append_return(tcb: &mut Tcb, routine: u8, value: u64) {
    let tsc = time_of_event(tcb, bytes_of(5, &[]));
    let [value, tsc] = [value, tsc.get()].map(halves);
    append(tcb, &[word::event(word::RETURN, routine.into()), value[0], value[1], tsc[0], tsc[1]]);
}

/// Appends a system call that has changed what is mapped. `low` is `word::MAPPING_NESTED` or 0.
pub fn append_mapping(tcb: &mut Tcb, low: u32, number: u32, arguments: [u64; 3], result: u64) {
    let tsc = time_of_event(tcb, bytes_of(13, &[])).get();
    let [first, second, third] = arguments;
    let pairs = [first, second, third, result].map(halves);
    let mut words = [word::event(word::MAPPING, low); 13];
    words[1] = number;
    words[2..word::MAPPING_STACK].copy_from_slice(pairs.as_flattened());
    words[word::MAPPING_STACK..].copy_from_slice(&[0, tsc as u32, (tsc >> 32) as u32]);
    append(tcb, &words);
}

/// Appends the stack pointer.
pub fn append_stack_pointer(tcb: &mut Tcb) {
    let [low, high] = halves(tcb.registers.general[wire::RSP]);
    append(tcb, &[word::event(word::STACK_POINTER, 0), low, high]);
}

/// Appends a path without data.
pub fn append_path(tcb: &mut Tcb, path: PathId) {
    append(tcb, &[path.get()]);
}

/// Appends one access of the instruction at `tcb.registers.rip`.
pub fn append_access(tcb: &mut Tcb, address: u64, size: u32, value: &[u8]) {
    let [pc, address] = [tcb.registers.rip, address].map(halves);
    let head = head(word::ACCESS, 0, &[value]);
    append_with_data(tcb, &[head, pc[0], pc[1], address[0], address[1], size], &[value]);
}

/// Appends iterations of the string instruction at `tcb.registers.rip`.
pub fn append_string(tcb: &mut Tcb, source: u64, destination: u64, count: u32, shape: u32, values: [&[u8]; 2]) {
    let head = head(word::STRING, 0, &values);
    let [pc, source, destination] = [tcb.registers.rip, source, destination].map(halves);
    let words = [head, pc[0], pc[1], source[0], source[1], destination[0], destination[1], count, shape];
    append_with_data(tcb, &words, &values);
}

/// Appends the base of the thread's fs segment, if data is recorded.
pub fn append_fs_base(tcb: &mut Tcb) {
    if tcb.control().data.load(Ordering::Relaxed) != wire::DATA_NONE {
        let [low, high] = halves(sys::fs_base());
        append(tcb, &[word::event(word::FS_BASE, 0), low, high]);
    }
}

/// Continues in the next segment when the cursor has met the end of its segment. Data behind the
/// cursor that belongs to no path yet moves along.
pub fn advance_with_data(tcb: &mut Tcb) {
    let (start, length) = (tcb.cursor, (tcb.limit - tcb.cursor) as usize);
    let mut room = [0; wire::RECORD_BYTES_MAX];
    let data = &mut room[..length.min(wire::RECORD_BYTES_MAX)];
    // SAFETY: from the cursor to the end of the segment, which only this thread writes. Words that
    // are not written are zero.
    unsafe {
        core::ptr::copy_nonoverlapping(start as *const u8, data.as_mut_ptr(), data.len());
        core::ptr::write_bytes(start as *mut u8, 0, data.len());
    }
    advance(tcb);
    // SAFETY: a new segment has room for it.
    unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), tcb.cursor as *mut u8, data.len()) };
}

pub fn append_child(tcb: &mut Tcb, thread: ThreadId, os_tid: u32) {
    append(tcb, &[word::event(word::CHILD, 0), thread.get(), os_tid]);
}

/// Appends the last event of the thread, hands the segment over and gives up the slot.
pub fn close(tcb: &mut Tcb, kind: u8) {
    skip::return_quota(tcb);
    select::discard_overwritten_words(tcb);
    append_time(tcb, kind);
    publish(tcb);
    tcb.closed = true;
    if tcb.is_child_process() {
        // Its parent lives on, and another thread may get the slot at once.
        pending::publish(tcb.slot_index, !0);
        reclaim::exit_cache(tcb);
    }
    tcb.slot().state.store(wire::SLOT_ENDED, Ordering::SeqCst);
    ring_doorbell(tcb.control());
}

#[cfg(test)]
mod tests {
    use entity::FragmentId;

    use super::*;
    use crate::tcb::OwnedTcb;

    const SLOT: u32 = 3;

    /// A thread whose ring is open, in memory as the recorder makes it.
    fn thread() -> OwnedTcb {
        let shared = crate::memory::tests::shared();
        // SAFETY: zeroed memory of the right size is a control page.
        let control = unsafe { &*(shared as *const Control) };
        let mut tcb = OwnedTcb::new(control, SLOT, ThreadId::new(9), 0).unwrap();
        open(&mut tcb);
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
        let mut tcb = thread();
        let tcb = &mut *tcb;
        // No word of an event is 0 here, so that all of them are seen.
        let address = AppPc::new(0x7fff_1111_2222_3333);
        append_timed(tcb, word::START, address);
        append_time(tcb, word::TIME);
        append_syscall(tcb, 0x4d);
        tcb.progress = Progress { fragment: FragmentId::new(PathId::new(5)), blocks: 2, data: 0 };
        tcb.set_pc(address);
        append_signal(tcb, 11, address);
        append_timed(tcb, word::RESUME, address);
        append_child(tcb, ThreadId::new(1), 2);
        append_time(tcb, word::DETACH);
        append_time(tcb, word::END);
        let words = words(tcb, 0);
        let expected =
            [word::START, word::TIME, word::SYSCALL, word::SIGNAL, word::RESUME, word::CHILD, word::DETACH, word::END];
        assert_eq!(kinds(&words), expected);
        assert_eq!(words.len() as u64 * 4, tcb.cursor - tcb.segment);
        assert_eq!(words[1..3], [0x2222_3333, 0x7fff_1111]);
        let signal = &words[5 + 3 + 4..];
        assert_eq!(signal[0], word::event(word::SIGNAL, 11));
        assert_eq!(signal[1..5], [5, 2, 0x2222_3333, 0x7fff_1111]);
        assert!(!tcb.progress.has_fragment(), "it is appended once");
    }

    #[test]
    fn a_full_segment_is_handed_over() {
        let mut tcb = thread();
        let tcb = &mut *tcb;
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
        let mut tcb = thread();
        let tcb = &mut *tcb;
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
        assert!(!tcb.detaching);
    }

    #[test]
    fn without_a_recorder_the_thread_detaches() {
        let mut tcb = thread();
        let tcb = &mut *tcb;
        for _ in 1..SEGMENT_COUNT {
            advance(tcb);
        }
        tcb.control().recorder[0].store(wire::OWNER_DIED, Ordering::Relaxed);
        advance(tcb);
        assert!(tcb.detaching);
        assert_eq!(tcb.cursor, tcb.segment);
        assert_eq!(tcb.slot().head.load(Ordering::Relaxed) as usize, SEGMENT_COUNT - 1);
    }

    #[test]
    fn the_content_of_the_ring_is_not_lost_when_the_thread_detaches() {
        let mut tcb = thread();
        let tcb = &mut *tcb;
        append_time(tcb, word::TIME);
        tcb.control().detach.store(1, Ordering::Relaxed);
        advance(tcb);
        close(tcb, word::DETACH);
        let slot = tcb.slot();
        assert_eq!(slot.head.load(Ordering::Relaxed), 2);
        assert_eq!(slot.state.load(Ordering::Relaxed), wire::SLOT_ENDED);
        assert_eq!(kinds(&words(tcb, 0)), [word::TIME]);
        assert_eq!(kinds(&words(tcb, 1)), [word::TIME, word::DETACH]);
    }

    /// Skipping writes to the end of a segment only; when recording begins, the words begin at the
    /// cursor.
    #[test]
    fn words_begin_where_the_thread_writes() {
        let mut tcb = thread();
        let tcb = &mut *tcb;
        tcb.selection.is_uninstrumented = true;
        tcb.selection.reuse_start = tcb.cursor;
        select::invalidate_words(tcb);
        tcb.cursor = tcb.limit - 8;
        tcb.selection.profile_start = tcb.cursor;
        let floor = tcb.selection.reuse_start;
        select::begin_recording(tcb);
        assert_eq!((tcb.selection.profile_start, tcb.selection.uncounted_start), (floor, floor));
        assert!(tcb.cursor > floor);
    }
}
