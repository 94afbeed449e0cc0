//! Small programs, definition by definition.

use codec::predict::{PathModel, StackEffect, low_pc};
use entity::{AppPc, BlockId, FragmentId, PathId};
use wire::code::{
    FragmentBlock, FragmentExit, TAKEN, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_SYSCALL, TERMINATOR_TAKEN,
};
use wire::word::PATH_MAX;

use super::{CountSum, FragmentInfo, Program};
use crate::block::Refusal;
use crate::model::{Fragment, Step, Terminator};

fn pc(address: u64) -> AppPc {
    AppPc::new(address)
}

fn path(number: u32) -> PathId {
    PathId::new(number)
}

fn add_block(program: &mut Program, id: u32, address: u64, code: &[u8]) {
    program.blocks.add(0, BlockId::new(id), pc(address), code).unwrap();
}

/// Adds a fragment of these blocks, where the bit `TAKEN` marks taken branches, and of exits
/// with a number of blocks and a terminator each.
fn add_fragment(
    program: &mut Program,
    first_path: u32,
    blocks: &[u32],
    exits: &[(u16, u32)],
    sequence: u32,
) -> Result<(), Refusal> {
    let blocks: Vec<FragmentBlock> = blocks.iter().map(|&word| FragmentBlock::from_word(word)).collect();
    let exits: Vec<FragmentExit> = exits.iter().map(|&(count, end)| FragmentExit::new(count, end)).collect();
    let fragment = Fragment { fragment: FragmentId::new(path(first_path)), blocks: &blocks, exits: &exits };
    program.add_fragment(0, &fragment, sequence)
}

fn program() -> Program {
    let mut program = Program::default();
    // nop; jz +0x10 — jmp +0 — ret — syscall
    add_block(&mut program, 1, 0x1000, &[0x90, 0x74, 0x10]);
    add_block(&mut program, 2, 0x1003, &[0xeb, 0x00]);
    add_block(&mut program, 3, 0x1005, &[0xc3]);
    add_block(&mut program, 4, 0x1013, &[0x90, 0x0f, 0x05]);
    program
}

#[test]
fn paths_have_steps_and_counts() {
    let mut program = program();
    let exits = [(1, TERMINATOR_TAKEN), (3, TERMINATOR_INDIRECT)];
    add_fragment(&mut program, 1, &[1, 2, 3], &exits, 5).unwrap();
    add_fragment(&mut program, 3, &[1 | TAKEN, 4], &[(2, TERMINATOR_SYSCALL)], 6).unwrap();
    let first = program.path(path(1)).unwrap();
    assert_eq!((first.steps, first.last), (&[][..], Step::new(0, 2, Terminator::Taken, pc(0x1013))));
    let second = program.path(path(2)).unwrap();
    assert_eq!(
        second.steps,
        [Step::new(0, 2, Terminator::NotTaken, pc(0x1003)), Step::new(1, 1, Terminator::Direct, pc(0x1005))]
    );
    assert_eq!(second.last, Step::new(2, 1, Terminator::Indirect, AppPc::NONE));
    assert_eq!((program.target(path(1)), program.target(path(2))), (Some(pc(0x1013)), None));
    let third = program.path(path(3)).unwrap();
    assert_eq!(third.steps, [Step::new(0, 2, Terminator::Taken, pc(0x1013))]);
    assert_eq!(third.last, Step::new(3, 2, Terminator::Syscall, pc(0x1016)));
    assert!(program.path(path(0)).is_none() && program.path(path(4)).is_none());

    let at = |sequence| program.fragment_at(0, low_pc(pc(0x1000)), sequence);
    let heads = [5, 6, 7].map(|sequence| at(sequence).map(|fragment| fragment.id.first_path().get()));
    assert_eq!(heads, [None, Some(1), Some(3)]);

    let mut sum = CountSum::default();
    let counts = |number| program.counts(path(number)).unwrap();
    sum.add_times(counts(2), 1000);
    sum.add(counts(1));
    (0..500).for_each(|_| sum.add(counts(2)));
    assert_eq!(sum.add_all((0..500).map(|_| counts(2))), 500);
    let counts = sum.finish();
    assert_eq!((counts.instructions, counts.steps), (4 * 2000 + 2, 3 * 2000 + 1));
    assert_eq!((counts.conditional_taken, counts.conditional_not_taken), (1, 2000));
    assert_eq!((counts.unconditional_direct, counts.unconditional_indirect), (2000, 2000));
}

/// Otherwise a damaged chunk could make every lookup pass over all fragments of another chunk.
#[test]
fn a_lookup_visits_one_fragment_of_each_chunk() {
    let mut program = program();
    for first_path in 1..=1000 {
        add_fragment(&mut program, first_path, &[1], &[(1, TERMINATOR_TAKEN)], 4 + first_path / 501).unwrap();
    }
    let at = |sequence| program.fragment_at(0, low_pc(pc(0x1000)), sequence).map(|own| own.id.first_path().get());
    assert_eq!([4, 5, 6].map(at), [None, Some(500), Some(1000)]);
    let older = |fragment: &FragmentInfo| program.fragments().get(fragment.older as usize);
    let newest = program.fragments().last();
    assert_eq!(std::iter::successors(newest, |&fragment| older(fragment)).count(), 2);
}

#[test]
fn an_interrupted_fragment_ends_at_its_instruction() {
    let mut program = program();
    add_fragment(&mut program, 1, &[1, 2, 3], &[(3, TERMINATOR_INDIRECT)], 0).unwrap();
    let interrupted = |first_path, blocks, at| program.interrupted(FragmentId::new(path(first_path)), blocks, pc(at));
    let (whole, part) = interrupted(1, 0, 0x1001).unwrap();
    assert_eq!((whole.len(), part), (0, Some(Step::new(0, 1, Terminator::Interrupted, pc(0x1001)))));
    let (whole, part) = interrupted(1, 2, 0x1005).unwrap();
    assert_eq!((whole.len(), part), (2, None));
    assert!(interrupted(1, 0, 0x1002).is_none());
    assert!(interrupted(1, 3, 0x1005).is_none());
    assert!(interrupted(2, 0, 0x1000).is_none());
}

#[test]
fn calls_and_returns_have_an_effect() {
    let mut program = Program::default();
    // call 0x2000 — ret — ret at the callee — jmp to itself
    add_block(&mut program, 1, 0x1000, &[0xe8, 0xfb, 0x0f, 0, 0]);
    add_block(&mut program, 2, 0x1005, &[0xc3]);
    add_block(&mut program, 3, 0x2000, &[0xc3]);
    add_block(&mut program, 4, 0x3000, &[0xeb, 0xfe]);
    let exits = [(1, TERMINATOR_DIRECT), (2, TERMINATOR_INDIRECT), (3, TERMINATOR_INDIRECT)];
    add_fragment(&mut program, 1, &[1, 3, 2], &exits, 0).unwrap();
    add_fragment(&mut program, 4, &[4], &[(1, TERMINATOR_DIRECT)], 0).unwrap();
    let info = |number| program.info(path(number)).unwrap();
    let effect = |number| program.stack_effect(&info(number));
    assert_eq!(effect(1), StackEffect::Calls { pops: 0, returns: false, target: 0x2000, pushes: &[0x1005] });
    assert_eq!(effect(2), StackEffect::Jumps(0x1005));
    assert_eq!(effect(3), StackEffect::Returns);
    assert_eq!(effect(4), StackEffect::Jumps(0x3000));
    let expected = |target, number| program.expected_exit(0, target, &info(number), path(number));
    assert_eq!([expected(0x1000, 1), expected(0x1000, 3), expected(0x3000, 4)], [Some(2), Some(0), Some(0)]);
    assert_eq!([expected(0x1005, 2), expected(0, 2)], [None, None]);
}

#[test]
fn nonsense_is_refused() {
    let mut program = program();
    let mut add =
        |first_path, blocks: &[u32], exits: &[(u16, u32)]| add_fragment(&mut program, first_path, blocks, exits, 0);
    let exit = (1, TERMINATOR_TAKEN);
    assert_eq!(add(0, &[1], &[exit]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[], &[exit]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[1], &[]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[1], &[(2, TERMINATOR_TAKEN)]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[1], &[(0, TERMINATOR_TAKEN)]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[1], &[(1, 5)]), Err(Refusal::Fragment));
    assert_eq!(add(PATH_MAX, &[1], &[exit, exit]), Err(Refusal::Fragment));
    assert_eq!(add(1, &[9], &[exit]), Err(Refusal::UnknownBlock(BlockId::new(9))));
    assert_eq!(add(7, &[1], &[exit, exit]), Ok(()));
    assert_eq!(add(6, &[1], &[exit, exit]), Err(Refusal::Twice));
}
