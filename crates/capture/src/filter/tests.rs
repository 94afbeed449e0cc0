//! The filter on small sequences of words.

use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_DIRECT, TERMINATOR_INDIRECT};

use super::*;

const NOP: [u8; 4] = [0x90, 0x90, 0x90, 0xc3];
/// Addresses of the two blocks, of four instructions each.
const RECORDED: u64 = 0x1_0000_1000;
const UNINSTRUMENTED: u64 = 0x1_0000_2000;

fn filter(length: Option<u64>) -> Filter {
    let mut filter = Filter::new(&Selection { length, ..Selection::default() });
    let [recorded, uninstrumented] = [7, 8].map(BlockId::new);
    filter.block(recorded, AppPc::new(RECORDED), &NOP);
    filter.block(uninstrumented, AppPc::new(UNINSTRUMENTED), &NOP);
    let exits = [FragmentExit::new(1, TERMINATOR_DIRECT), FragmentExit::new(3, TERMINATOR_INDIRECT)];
    let blocks = [FragmentBlock::new(recorded, false); 3];
    let delivered = filter.fragment(&Fragment { fragment: fragment(1), blocks: &blocks, exits: &exits }, false);
    assert_eq!(delivered.unwrap().iter().map(|(block, _)| *block).collect::<Vec<_>>(), [recorded]);
    let blocks = [FragmentBlock::new(uninstrumented, false)];
    assert!(filter.fragment(&Fragment { fragment: fragment(3), blocks: &blocks, exits: &exits[..1] }, true).is_none());
    filter
}

fn fragment(first_path: u32) -> FragmentId {
    FragmentId::new(PathId::new(first_path))
}

/// Filters the words of a thread without data.
fn pass(filter: &mut Filter, thread: u32, words: &mut Vec<u32>) {
    filter.words(ThreadId::new(thread), words, &[], |_| 0);
}

fn timed(kind: u8, tsc: u64) -> Vec<u32> {
    super::timed(kind, Tsc::new(tsc)).to_vec()
}

fn event(kind: u8, low: u32, rest: &[u32]) -> Vec<u32> {
    [&[word::event(kind, low)], rest].concat()
}

fn start(pc: u64) -> Vec<u32> {
    event(word::START, 0, &[pc as u32, (pc >> 32) as u32, 5, 0])
}

fn gap(pc: u64) -> Vec<u32> {
    event(word::GAP, 0, &[pc as u32, (pc >> 32) as u32])
}

fn signal(number: u32, fragment: u32, blocks: u32, pc: u64, tsc: u32) -> Vec<u32> {
    let (low, high) = (pc as u32, (pc >> 32) as u32);
    event(word::SIGNAL, number, &[fragment, blocks, low, high, 0x77, 0, tsc, 0])
}

fn check(length: Option<u64>, input: &[Vec<u32>], expected: &[Vec<u32>]) -> Filter {
    let mut filter = filter(length);
    let mut words = input.concat();
    pass(&mut filter, 0, &mut words);
    assert_eq!(words, expected.concat(), "{input:x?}");
    filter
}

#[test]
fn uninstrumented_code_becomes_a_gap() {
    let time = |tsc| timed(word::TIME, tsc);
    let call = event(word::SYSCALL, 0, &[1, 9, 0]);
    let child = event(word::CHILD, 0, &[1, 2]);
    let input =
        [start(RECORDED), vec![1], vec![3, 3], call.clone(), time(10), child.clone(), vec![3, 2], time(11), vec![3]];
    check(
        None,
        &input,
        &[start(RECORDED), vec![1], gap(UNINSTRUMENTED), child, time(10), vec![2], time(11), gap(UNINSTRUMENTED)],
    );
    // Nothing happened in the gap, so it has no timestamp.
    check(None, &[vec![1, 3, 1]], &[vec![1], gap(UNINSTRUMENTED), vec![1]]);
    check(None, &[vec![1], call.clone(), time(3), vec![2]], &[vec![1], call, time(3), vec![2]]);
}

#[test]
fn a_gap_goes_on_in_the_next_segment() {
    let mut filter = filter(None);
    let mut words = vec![3];
    pass(&mut filter, 0, &mut words);
    assert_eq!(words, gap(UNINSTRUMENTED));
    let mut words = [timed(word::TIME, 4), vec![3, 1]].concat();
    pass(&mut filter, 0, &mut words);
    assert_eq!(words, [timed(word::TIME, 4), vec![1]].concat());
    let mut words = vec![3];
    pass(&mut filter, 1, &mut words);
    assert_eq!(words, gap(UNINSTRUMENTED), "each thread has its own");
}

#[test]
fn the_engine_may_write_the_gap() {
    let input = [
        start(UNINSTRUMENTED),
        gap(UNINSTRUMENTED),
        vec![3, 1],
        gap(UNINSTRUMENTED),
        gap(UNINSTRUMENTED),
        timed(word::END, 9),
    ];
    check(
        None,
        &input,
        &[start(UNINSTRUMENTED), gap(UNINSTRUMENTED), vec![1], gap(UNINSTRUMENTED), timed(word::END, 9)],
    );
}

#[test]
fn signals_at_the_edges() {
    // Instrumented code is interrupted, in a gap and outside.
    let interrupted = signal(11, 1, 0, RECORDED + 1, 6);
    check(None, &[vec![1], interrupted.clone(), vec![3]], &[vec![1], interrupted.clone(), gap(UNINSTRUMENTED)]);
    check(None, &[vec![3], interrupted.clone()], &[gap(UNINSTRUMENTED), timed(word::TIME, 6), interrupted]);
    // Uninstrumented code is interrupted.
    let uninstrumented = signal(11, 3, 0, UNINSTRUMENTED + 1, 6);
    check(None, &[vec![1], uninstrumented.clone(), vec![2]], &[vec![1], gap(UNINSTRUMENTED), vec![2]]);
    check(None, &[vec![3], uninstrumented, vec![1]], &[gap(UNINSTRUMENTED), timed(word::TIME, 6), vec![1]]);
    // No code is interrupted: after a system call.
    let after = signal(11, 0, 0, RECORDED + 3, 6);
    check(None, &[vec![1], after.clone()], &[vec![1], after.clone()]);
    check(None, &[vec![3], after], &[gap(UNINSTRUMENTED)]);
}

#[test]
fn memory_accesses_belong_to_what_is_recorded() {
    let access = event(word::ACCESS, 0, &[1, 2, 3, 4, 5]);
    check(None, &[vec![3], access.clone(), vec![1]], &[gap(UNINSTRUMENTED), access, vec![1]]);
}

/// What stands where a path was cut.
fn cut(blocks: u32, pc: u64, tsc: u32) -> Vec<u32> {
    let (low, high) = (pc as u32, (pc >> 32) as u32);
    event(word::SIGNAL, 0, &[1, blocks, low, high, low, high, tsc, 0])
}

#[test]
fn recording_ends_after_the_wanted_instructions() {
    let all = [start(RECORDED), vec![1, 3, 2], timed(word::TIME, 8), vec![1]];
    let opening = [start(RECORDED), vec![1], gap(UNINSTRUMENTED)].concat();
    let long = check(Some(21), &all, &[opening.clone(), vec![2], timed(word::TIME, 8), vec![1]]);
    assert!(!long.is_full());
    // Four instructions, then twelve in three blocks.
    for (length, expected) in [
        (1, [start(RECORDED), cut(0, RECORDED + 1, 5)].concat()),
        (4, [start(RECORDED), vec![1]].concat()),
        (5, [opening.clone(), cut(0, RECORDED + 1, 5)].concat()),
        (8, [opening.clone(), cut(1, RECORDED, 5)].concat()),
        (15, [opening.clone(), cut(2, RECORDED + 3, 5)].concat()),
        (16, [opening.clone(), vec![2]].concat()),
        (19, [opening.clone(), vec![2], timed(word::TIME, 8), cut(0, RECORDED + 3, 8)].concat()),
    ] {
        let mut filter = check(Some(length), &all, &[expected]);
        assert!(filter.is_full());
        let mut more = vec![1, 2];
        pass(&mut filter, 1, &mut more);
        assert!(more.is_empty());
        let tsc = if length > 16 { 8 } else { 5 };
        assert_eq!(filter.detached_threads()[0], (ThreadId::FIRST, timed(word::DETACH, tsc)));
        assert!(filter.detached_threads().is_empty());
    }
}

#[test]
fn data_ends_with_its_words() {
    let data: Vec<u8> = (0..80).collect();
    // Two words of data behind path 1, ten behind path 2, three behind the access.
    let all = [vec![1], event(word::ACCESS, 3 << 8, &[1, 2, 3, 4, 5]), vec![1, 2, 2]].concat();
    let data_words = |path: PathId| if path == PathId::new(1) { 2 } else { 10 };
    for (length, kept, last) in [(4, 2, 0), (8, 7, 0), (9, 17, 10), (20, 17, 0), (21, 27, 10)] {
        let mut filter = filter(Some(length));
        assert!(filter.access_descriptors(&AccessDescriptors {
            fragment: fragment(1),
            lengths: &[8, 40],
            accesses: &[]
        }));
        let mut words = all.clone();
        assert_eq!(
            filter.words(ThreadId::FIRST, &mut words, &data, data_words),
            &data[..(4 * kept).min(data.len())],
            "{length}"
        );
        let data_words = words.len().checked_sub(9).map_or(0, |at| word::data_words(words[at]));
        assert_eq!(data_words, last, "{length}");
    }
    let mut filter = filter(Some(100));
    let descriptors = AccessDescriptors { fragment: fragment(3), lengths: &[0], accesses: &[] };
    assert!(!filter.access_descriptors(&descriptors), "it is uninstrumented");
    assert_eq!(filter.words(ThreadId::FIRST, &mut all.clone(), &data, data_words), data);
}

#[test]
fn interrupted_paths_are_counted() {
    let interrupted = signal(11, 1, 1, RECORDED + 2, 6);
    let filter = check(Some(7), &[interrupted.clone(), vec![1]], &[interrupted.clone(), cut(0, RECORDED + 1, 6)]);
    assert!(filter.is_full());
    check(Some(5), &[interrupted.clone(), vec![1]], &[cut(1, RECORDED + 1, 6)]);
    let exact = check(Some(6), &[interrupted.clone(), vec![1]], &[interrupted]);
    assert!(exact.is_full());
}

#[test]
fn nonsense_is_passed_on() {
    check(None, &[vec![1, 0, 3]], &[vec![1, 0, 3]]);
    check(None, &[vec![1, 9999, word::event(99, 0), 3]], &[vec![1, 9999, word::event(99, 0), 3]]);
    check(None, &[vec![word::event(word::TIME, 0), 1]], &[vec![word::event(word::TIME, 0), 1]]);
    let mut filter = filter(None);
    let (blocks, exits) = ([FragmentBlock::from_word(1)], [FragmentExit::from_word(1)]);
    let far = Fragment { fragment: fragment(u32::MAX >> 1), blocks: &blocks, exits: &exits };
    filter.fragment(&far, true);
    assert!(filter.paths.len() < 100);
}
