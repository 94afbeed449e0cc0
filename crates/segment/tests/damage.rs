//! Traces end where a part of a recording cannot be read; none continues after the gap.

use trace::{
    AppPc, BlockId, Codec, Exit, Fragment, FragmentId, InstructionIndex, PathId, Recording, ThreadId, ThreadInfo,
    Trace, Writer, WriterOptions,
};
use trackway_segment::{Class, Policy, Segmenter, StepBuffer, StepCollector};
use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN};
use wire::word;

const TURNS: u32 = 400;

/// One thread that iterates a loop of two instructions, in chunks of some dozen iterations.
fn recording() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("loop.trk");
    let options = WriterOptions { chunk_words: 40, codec: Codec::Fast, ..WriterOptions::default() };
    let mut writer = Writer::create_with(&path, &Recording::default(), options).unwrap();
    // dec ecx; jnz -4
    let (block, fragment, thread) = (BlockId::new(1), FragmentId::new(PathId::new(1)), ThreadId::FIRST);
    writer.block(0, block, AppPc::new(0x1000), &[0xff, 0xc9, 0x75, 0xfc]).unwrap();
    let blocks = [FragmentBlock::new(block, false)];
    let exits = [TERMINATOR_TAKEN, TERMINATOR_NOT_TAKEN].map(|terminator| FragmentExit::new(1, terminator));
    writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits }).unwrap();
    writer.thread(&ThreadInfo { thread, os_tid: 7, parent: None, image: 0 }).unwrap();
    writer.path(0, thread, &[word::event(word::START, 0), 0x1000, 0, 5, 0]).unwrap();
    for turn in 0..TURNS {
        writer.path(0, thread, &[if turn % 9 == 8 { 2 } else { 1 }]).unwrap();
    }
    writer.path(0, thread, &[word::event(word::END, 0), 9, 0]).unwrap();
    writer.finish(Exit::Code(0)).unwrap();
    std::fs::read(path).unwrap()
}

/// Returns the number of traces and their instructions, if only the end of execution and gaps end
/// traces.
fn runs(trace: &Trace) -> (u64, u64) {
    let policy = Policy::new(u32::MAX, u32::MAX).unwrap();
    let policy = Class::ALL.into_iter().fold(policy, |policy, class| policy.with(class, true));
    let (mut segmenter, mut collector, mut merged) = (Segmenter::new(policy), StepCollector::default(), trace.merged());
    loop {
        match merged.next_batch() {
            Ok(None) => break,
            Ok(Some(batch)) => collector.add(trace.blocks(), batch),
            Err(_) => {}
        }
    }
    collector.take(StepBuffer::default()).threads().for_each(|steps| segmenter.process(steps, trace.blocks()));
    let set = segmenter.finish();
    (set.occurrences(), set.instructions())
}

#[test]
fn traces_end_where_something_is_missing() {
    let file = recording();
    let whole = Trace::from_bytes(file.clone()).unwrap();
    let total = u64::from(2 * TURNS);
    assert_eq!(runs(&whole), (1, total));
    assert!(whole.path_chunks().count() > 5);
    let mut in_two = 0;
    for place in 0..file.len() {
        let mut damaged = file.clone();
        damaged[place] ^= 0x10;
        let Ok(trace) = Trace::from_bytes(damaged) else { continue };
        let missing: Vec<_> = trace.damage().into_iter().filter_map(|damage| damage.instructions).collect();
        let [missing] = &missing[..] else { continue };
        if missing.start == missing.end || trace.threads().len() != 1 {
            continue;
        }
        let expected = u64::from(missing.start > InstructionIndex::FIRST) + u64::from(missing.end.get() < total);
        assert_eq!(runs(&trace), (expected, total - (missing.end - missing.start)), "byte {place}, {missing:?}");
        in_two += u32::from(expected == 2);
    }
    assert!(in_two > 50, "{in_two}");
}
