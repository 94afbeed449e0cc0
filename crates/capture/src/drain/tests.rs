//! The drain against threads that behave, or misbehave, as engines would.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use entity::{AppPc, BlockId, FragmentId};
use wire::code::{FragmentRecord, Payload};
use wire::{CODE_RING_BYTES, CODE_RING_OFFSET, Control, SEGMENT_COUNT, SLOT_ENDED, SLOT_LIVE, word};

use super::*;
use crate::memory_sink::{Full, MemorySink};

const TICK: Duration = Duration::from_millis(20);

/// A thread of a target, seen from its engine.
struct Engine<'a> {
    shared: &'a Shared,
    slot: usize,
    at: usize,
}

impl<'a> Engine<'a> {
    fn start(shared: &'a Shared, slot: usize, thread: u32) -> Self {
        let engine = Self { shared, slot, at: 0 };
        engine.view().thread.store(thread, SeqCst);
        engine.view().os_tid.store(1000 + thread, SeqCst);
        engine.view().parent.store(if thread == 0 { u32::MAX } else { 0 }, SeqCst);
        engine.view().state.store(SLOT_LIVE, SeqCst);
        engine
    }

    fn view(&self) -> &'a Slot {
        &self.shared.control().slots[self.slot]
    }

    fn append(&mut self, words: &[u32]) {
        if self.at + words.len() > SEGMENT_WORDS {
            self.publish();
            self.wait_for_room();
        }
        let segment = self.view().head.load(SeqCst) as usize % SEGMENT_COUNT;
        self.shared.write(wire::segment_offset(self.slot, segment) + 4 * self.at, bytemuck::cast_slice(words));
        self.at += words.len();
    }

    fn publish(&mut self) {
        let head = self.view().head.load(SeqCst);
        self.view().used[head as usize % SEGMENT_COUNT].store(4 * self.at as u32, SeqCst);
        self.view().head.store(head + 1, SeqCst);
        ring(self.shared.control());
        self.at = 0;
    }

    fn wait_for_room(&self) {
        loop {
            let tail = self.view().tail.load(SeqCst);
            if ((self.view().head.load(SeqCst) - tail) as usize) < SEGMENT_COUNT {
                return;
            }
            self.view().waiting.store(1, SeqCst);
            shared::wait(&self.view().tail, tail, TICK);
            self.view().waiting.store(0, SeqCst);
        }
    }

    fn end(mut self) {
        self.publish();
        self.view().state.store(SLOT_ENDED, SeqCst);
        ring(self.shared.control());
    }
}

fn ring(control: &Control) {
    if control.recorder_sleeping.load(SeqCst) != 0 {
        control.doorbell.fetch_add(1, SeqCst);
        shared::wake(&control.doorbell);
    }
}

/// Appends a record to the code ring; waits for room if there is none.
fn announce_code(shared: &Shared, kind: u32, payload: &[u8]) {
    let control = shared.control();
    let mut record = [kind.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
    record.extend(payload);
    record.resize(record.len().next_multiple_of(8), 0);
    let head = control.code_head.load(SeqCst);
    loop {
        let tail = control.code_tail.load(SeqCst);
        if head + record.len() as u64 - tail <= CODE_RING_BYTES as u64 {
            break;
        }
        control.code_waiting.store(1, SeqCst);
        // SAFETY: the low half of a live atomic, only waited on.
        shared::wait(unsafe { AtomicU32::from_ptr(control.code_tail.as_ptr().cast()) }, tail as u32, TICK);
        control.code_waiting.store(0, SeqCst);
    }
    for (index, byte) in record.iter().enumerate() {
        shared.write(CODE_RING_OFFSET + (head as usize + index) % CODE_RING_BYTES, &[*byte]);
    }
    control.code_head.store(head + record.len() as u64, SeqCst);
}

fn announce<P: Payload>(shared: &Shared, record: P) {
    let mut payload = Vec::new();
    record.write(&mut |piece| payload.extend_from_slice(piece));
    announce_code(shared, P::KIND, &payload);
}

/// Announces a fragment of one block with so many paths.
fn announce_fragment(shared: &Shared, first_path: u32, path_count: u32, block: u32, is_uninstrumented: bool) {
    announce(
        shared,
        FragmentRecord {
            fragment: fragment(first_path),
            is_uninstrumented,
            blocks: [FragmentBlock::new(BlockId::new(block), false)].into_iter(),
            exits: (0..path_count as usize)
                .map(|_| FragmentExit::new(1, code::TERMINATOR_INDIRECT))
                .collect::<Vec<_>>()
                .into_iter(),
        },
    );
}

fn fragment(first_path: u32) -> FragmentId {
    FragmentId::new(PathId::new(first_path))
}

fn announce_block(shared: &Shared, block: u32, address: u64, code: &[u8]) {
    announce(shared, BlockRecord { address: AppPc::new(address), block: BlockId::new(block), code });
}

/// Announces a fragment of one block with paths for all of `paths`.
fn announce_paths(shared: &Shared, paths: std::ops::Range<u32>) {
    announce_fragment(shared, paths.start, paths.end - paths.start, 0, false);
}

/// `START` or `RESUME`.
fn event(kind: u8, pc: u32) -> Vec<u32> {
    vec![word::event(kind, 0), pc, 0, 7, 0]
}

/// Drains in this thread while `engines` runs in others.
fn drain_while(
    shared: &Shared,
    sink: &mut MemorySink,
    engines: impl FnOnce() + Send,
) -> (Counters, Vec<String>, Option<Full>) {
    let mut drain = Drain::new(shared, sink);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            engines();
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            if !drain.drain_once() {
                drain.sleep(TICK, || done.load(SeqCst));
            }
        }
    });
    drain.drain_once();
    drain.finish_image();
    drain.finish()
}

/// Paths and events that are different for each thread.
fn words(seed: u32, count: usize) -> impl Iterator<Item = Vec<u32>> {
    let mut state = u64::from(seed) + 1;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (state >> 33) as u32;
        if random.is_multiple_of(50) { event(word::RESUME, random) } else { vec![random % 100 + 1] }
    })
}

#[test]
fn nothing_is_lost_when_rings_are_full() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink { delay: Duration::from_millis(10), ..MemorySink::default() };
    // Four times what a ring holds.
    const COUNT: usize = 4 * wire::SEGMENT_COUNT * wire::SEGMENT_BYTES / size_of::<u32>();
    let (counters, warnings, failure) = drain_while(&shared, &mut sink, || {
        announce_paths(&shared, 1..101);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let shared = &shared;
                scope.spawn(move || {
                    let mut engine = Engine::start(shared, thread * 70, thread as u32);
                    // Made before, so that writing is faster than the sink even on a busy machine.
                    let records: Vec<Vec<u32>> = words(thread as u32, COUNT).collect();
                    records.chunks(1000).for_each(|records| engine.append(&records.concat()));
                    engine.end();
                });
            }
        });
    });
    assert_eq!((warnings, failure), (vec![], None));
    for thread in 0..3 {
        let expected: Vec<u32> = words(thread, COUNT).flatten().collect();
        assert!(sink.paths[&(0, thread)] == expected, "the path of thread {thread} is as it was written");
        let info = sink.threads.iter().find(|info| info.thread.get() == thread).unwrap();
        assert_eq!((info.os_tid, info.parent), (1000 + thread, (thread > 0).then_some(ThreadId::FIRST)));
    }
    assert!(counters.stalls > 0, "the ring was too short for the slow recorder");
    assert_eq!(counters.path_words, sink.paths.values().map(|path| path.len() as u64).sum::<u64>());
    assert!(shared.control().slots.iter().all(|slot| slot.state.load(SeqCst) == SLOT_FREE));
}

#[test]
fn what_a_killed_thread_wrote_is_kept() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    drain_while(&shared, &mut sink, || {
        announce_paths(&shared, 1..4);
        let mut engine = Engine::start(&shared, 3, 5);
        engine.append(&event(word::START, 0x4000));
        engine.publish();
        engine.append(&event(word::RESUME, 0));
        engine.append(&[3, 2]);
        // Killed before it could write the first word of the next event, which is written last.
        engine.append(&[0, 1, 2, 3]);
    });
    let expected = [event(word::START, 0x4000), event(word::RESUME, 0), vec![3, 2]].concat();
    assert_eq!(sink.paths[&(0, 5)], expected);
    let mut rest = Vec::new();
    shared.take_segment(3, 1, SEGMENT_WORDS, &mut rest);
    assert!(rest.iter().all(|&word| word == 0), "the slot can be used again");
}

#[test]
fn a_slot_serves_one_thread_after_the_other() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    drain_while(&shared, &mut sink, || {
        for thread in 0..50 {
            let slot = &shared.control().slots[9];
            while slot.state.load(SeqCst) != SLOT_FREE {
                std::thread::yield_now();
            }
            let mut engine = Engine::start(&shared, 9, thread);
            engine.append(&event(word::START, thread));
            engine.end();
        }
    });
    assert_eq!(sink.threads.len(), 50);
    for thread in 0..50 {
        assert_eq!(sink.paths[&(0, thread)], event(word::START, thread));
    }
}

#[test]
fn the_code_ring_wraps_around() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let code = |block: u32| vec![block as u8; 1 + block as usize % code::BLOCK_BYTES_MAX];
    const COUNT: u32 = 20_000;
    let (counters, warnings, _) = drain_while(&shared, &mut sink, || {
        (0..COUNT).for_each(|block| announce_block(&shared, block, u64::from(block), &code(block)));
    });
    assert_eq!(warnings, [""; 0]);
    assert!(counters.code_bytes > CODE_RING_BYTES as u64);
    assert!(sink.blocks.iter().cloned().eq((0..COUNT).map(|block| (
        0,
        BlockId::new(block),
        AppPc::new(block.into()),
        code(block)
    ))));
}

#[test]
fn fragments_are_delivered_with_blocks_and_exits() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let exits = [FragmentExit::new(1, code::TERMINATOR_NOT_TAKEN), FragmentExit::new(2, code::TERMINATOR_INDIRECT)];
    let blocks = [(5, true), (6, false)].map(|(block, is_taken)| FragmentBlock::new(BlockId::new(block), is_taken));
    let fragment = fragment(17);
    drain_while(&shared, &mut sink, || {
        let (blocks, exits) = (blocks.into_iter(), exits.into_iter());
        announce(&shared, FragmentRecord { fragment, is_uninstrumented: false, blocks, exits });
    });
    assert_eq!(sink.fragments, [(0, fragment, blocks.to_vec(), exits.to_vec())]);
}

#[test]
fn modules_come_and_go() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    drain_while(&shared, &mut sink, || {
        announce_code(&shared, code::MODULE, &[words(&[0x1000, 0x2000, 0x3000, 77]), b"/lib/a.so".to_vec()].concat());
        announce_code(&shared, code::UNMAP, &words(&[0x1000, 0x2000, 99]));
    });
    let module =
        Module { address: 0x1000, length: 0x2000, file_offset: 0x3000, path: "/lib/a.so".into(), tsc: Tsc::new(77) };
    assert_eq!(sink.modules, [(0, module)]);
    assert_eq!(sink.unmapped, [(0, 0x1000, 0x2000, Tsc::new(99))]);
}

#[test]
fn nonsense_is_left_out_with_a_warning() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let mut drain = Drain::new(&shared, &mut sink);
    announce_code(&shared, 77, b"what?");
    announce_code(&shared, code::BLOCK, b"short");
    announce_code(&shared, code::FRAGMENT, &[1; 15]);
    announce_code(&shared, code::FRAGMENT, &[1; 32]);
    announce_block(&shared, 4, 5, &[0xc3]);
    announce_paths(&shared, 1..9);
    let mut engine = Engine::start(&shared, 0, 0);
    engine.append(&[3]);
    engine.publish();
    engine.append(&[5]);
    engine.publish();
    drain.drain_once();
    engine.view().used[2].store(u32::MAX, SeqCst);
    engine.view().head.store(100, SeqCst);
    engine.end();
    drain.drain_once();
    shared.control().code_head.fetch_add(1 << 40, SeqCst);
    drain.drain_once();
    let (_, warnings, failure) = drain.finish();
    assert_eq!(failure, None);
    assert_eq!(sink.blocks, [(0, BlockId::new(4), AppPc::new(5), vec![0xc3])]);
    assert!(sink.paths[&(0, 0)].starts_with(&[3, 5]));
    for part in ["kind 77", "kind 1", "kind 4", "slot 0 was damaged", "code ring was damaged"] {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:?}");
    }
}

#[test]
fn a_sink_that_fails_does_not_stop_the_target() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink { fails_at_path: Some(2), ..MemorySink::default() };
    let (_, _, failure) = drain_while(&shared, &mut sink, || {
        let mut engine = Engine::start(&shared, 0, 0);
        // Would wait for ever if the drain did not go on taking words.
        announce_paths(&shared, 1..2);
        (0..10 * SEGMENT_WORDS).for_each(|_| engine.append(&[1]));
        engine.end();
    });
    assert_eq!(failure, Some(Full));
    assert_eq!(sink.paths[&(0, 0)].len(), 2 * SEGMENT_WORDS);
    assert_eq!(shared.control().detach.load(SeqCst), wire::DETACH_TOGETHER);
}

#[test]
fn a_thread_that_took_its_segment_back_is_not_damaged() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let mut drain = Drain::new(&shared, &mut sink);
    let mut engine = Engine::start(&shared, 0, 0);
    announce_paths(&shared, 1..2);
    engine.append(&[1]);
    engine.publish();
    assert!(drain.drain_once());
    engine.view().head.fetch_sub(1, SeqCst);
    assert!(!drain.drain_once());
    let (_, warnings, _) = drain.finish();
    assert_eq!(warnings, [""; 0]);
}

/// A drain that leaves out what is not selected.
fn selecting<'a>(shared: &'a Shared, sink: &'a mut MemorySink, selection: &Selection) -> Drain<'a, &'a mut MemorySink> {
    let mut drain = Drain::new(shared, sink);
    drain.select(selection, std::process::id() as i32);
    drain
}

/// Announces a block of its own for a fragment with one path.
fn announce_path(shared: &Shared, path: u32, is_uninstrumented: bool) {
    announce_block(shared, path, u64::from(path) << 12, &[0x90, 0xc3]);
    announce_fragment(shared, path, 1, path, is_uninstrumented);
}

#[test]
fn uninstrumented_code_is_left_out() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let selection = Selection { length: Some(7), ..Selection::default() };
    let mut drain = selecting(&shared, &mut sink, &selection);
    for path in 1..4 {
        announce_path(&shared, path, path == 2);
    }
    let mut engine = Engine::start(&shared, 0, 0);
    engine.append(&[1, 2, 2, 3]);
    let mut other = Engine::start(&shared, 1, 1);
    other.append(&[1]);
    other.publish();
    engine.publish();
    drain.drain_once();
    assert_eq!(shared.control().detach.load(SeqCst), wire::DETACH_NONE);
    other.append(&[3, 3]);
    other.end();
    engine.append(&[1]);
    engine.end();
    drain.drain_once();
    assert_eq!(shared.control().detach.load(SeqCst), wire::DETACH_TOGETHER);
    drain.finish();
    let gap = [word::event(word::GAP, 0), 2 << 12, 0];
    let detach = [word::event(word::DETACH, 0), 0, 0];
    let half = [word::event(word::SIGNAL, 0), 1, 0, (1 << 12) + 1, 0, (1 << 12) + 1, 0, 0, 0];
    assert_eq!(sink.paths[&(0, 0)], [&[1][..], &gap, &[3], &half, &detach].concat());
    assert_eq!(sink.paths[&(0, 1)], [&[1][..], &detach].concat());
    let numbers: Vec<u32> = sink.blocks.iter().map(|block| block.1.get()).collect();
    assert_eq!(numbers, [1, 3], "a block of uninstrumented code only is not delivered");
    assert_eq!(sink.fragments.len(), 2);
}

#[test]
fn overwritten_words_are_not_read() {
    for detached in [false, true] {
        let shared = Shared::create_alone().unwrap();
        let mut sink = MemorySink::default();
        let selection = Selection { skip: 1000, ..Selection::default() };
        let mut drain = selecting(&shared, &mut sink, &selection);
        announce_path(&shared, 1, false);
        let mut engine = Engine::start(&shared, 0, 0);
        engine.append(&event(word::START, 0x4000));
        engine.view().uninstrumented_from.store(4 * 5 + 1, SeqCst);
        engine.append(&[1, 1, 77, word::event(99, 0)]);
        if detached {
            drain.take_detached(0, 4 * 9, Tsc::new(3));
        } else {
            drain.finish_image();
        }
        let (_, warnings, _) = drain.finish();
        assert_eq!(warnings.len(), 1, "nothing was recorded");
        let detach = if detached { vec![word::event(word::DETACH, 0), 3, 0] } else { vec![] };
        assert_eq!(sink.paths[&(0, 0)], [event(word::START, 0x4000), detach].concat());
        assert_eq!(shared.control().slots[0].uninstrumented_from.load(SeqCst), 0);
    }
}

#[test]
fn a_module_is_known_before_its_announcement_is_taken() {
    let shared = Shared::create_alone().unwrap();
    let mut sink = MemorySink::default();
    let selection = Selection { no_shared_libs: true, ..Selection::default() };
    let mut drain = selecting(&shared, &mut sink, &selection);
    let (done, late) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let control = shared.control();
            for index in 0..100 {
                let module = [0x7000_0000 + index * 0x10000, 0x1000, 0, 9].map(u64::to_le_bytes).concat();
                announce_code(&shared, code::MODULE, &[&module[..], b"/lib/some.so"].concat());
                while control.code_tail.load(SeqCst) != control.code_head.load(SeqCst) {
                    std::thread::yield_now();
                }
                late.fetch_add(u32::from(shared.selection().0.len() as u64 != index + 1), SeqCst);
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            if !drain.drain_once() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(late.into_inner(), 0);
}
