//! Call stacks through calls, returns, jumps out of functions, signals and other stacks.

use entity::PathId;

use super::*;

const STACK: u64 = 0x7fff_0000;

fn pc(address: u64) -> AppPc {
    AppPc::new(address)
}

fn block(end: StackEnd, change: i64) -> BlockStack {
    BlockStack { change, is_unknown: false, end }
}

fn addresses(stack: &CallStack) -> Vec<u64> {
    stack.frames.iter().map(|frame| frame.address.get()).collect()
}

fn stack() -> CallStack {
    let mut stack = CallStack::default();
    stack.set_stack_pointer(STACK);
    stack
}

fn older() -> CallStack {
    let frame = |slot, address| OlderFrame { slot, address: pc(address), is_interrupted: false };
    CallStack::of_frames(&[frame(STACK - 8, 0x30), frame(STACK, 0x10)])
}

fn call(stack: &mut CallStack, address: u64) {
    stack.apply(Move::Call(pc(address)));
}

#[test]
fn calls_and_returns_of_a_path() {
    let mut stacks = CallStacks::default();
    let blocks = [
        (pc(0x1000), block(StackEnd::Call(pc(0x1005)), -8)),
        (pc(0x2000), block(StackEnd::Return(8), 0)),
        (pc(0x1005), block(StackEnd::Call(pc(0x100a)), 0)),
    ];
    let fragment = FragmentId::new(PathId::new(1));
    stacks.add(fragment, &blocks, [1, 2, 3].into_iter());
    let mut stack = stack();
    stacks.path(&mut stack, PathId::new(3), pc(0x1000));
    assert_eq!((addresses(&stack), stack.stack_pointer), (vec![0x100a], Some(STACK - 16)));
    stacks.interrupted(&mut stack, fragment, 1);
    assert_eq!(addresses(&stack), [0x100a, 0x1005]);
    stacks.path(&mut stack, PathId::new(99), pc(0x5000));
    assert_eq!(addresses(&stack), [0x100a, 0x1005], "an unknown path");
}

#[test]
fn a_return_at_the_end_of_a_path_leads_to_the_next_one() {
    let mut stack = stack();
    call(&mut stack, 0x10);
    call(&mut stack, 0x20);
    stack.apply(Move::Return(8, None));
    assert_eq!(addresses(&stack).len(), 2);
    stack.arrive(pc(0x20));
    assert_eq!((addresses(&stack), stack.stack_pointer), (vec![0x10], Some(STACK - 8)));
}

#[test]
fn a_jump_out_of_functions() {
    let mut stack = stack();
    for address in [0x10, 0x20, 0x20, 0x30] {
        call(&mut stack, address);
    }
    // Recursion: only the stack pointer tells the two frames apart.
    stack.apply(Move::Unknown);
    stack.set_stack_pointer(STACK - 16);
    assert_eq!(addresses(&stack), [0x10, 0x20]);
}

#[test]
fn a_pushed_address_that_is_returned_to() {
    let mut stack = stack();
    call(&mut stack, 0x10);
    stack.apply(Move::Change(-8));
    stack.apply(Move::Return(8, Some(pc(0x5000))));
    assert_eq!((addresses(&stack), stack.stack_pointer), (vec![0x10], Some(STACK - 8)));
}

#[test]
fn a_function_that_moves_its_stack_pointer() {
    let mut stack = stack();
    call(&mut stack, 0x10);
    // alloca and a call in one block, then the event.
    stack.apply(Move::Unknown);
    call(&mut stack, 0x20);
    stack.set_stack_pointer(STACK - 0x100);
    assert_eq!(stack.frames[1].slot, Some(STACK - 0x100));
    stack.apply(Move::Return(8, Some(pc(0x20))));
    // leave; ret
    stack.apply(Move::Unknown);
    stack.apply(Move::Return(8, Some(pc(0x10))));
    assert_eq!((addresses(&stack), stack.stack_pointer), (vec![], Some(STACK)));
}

#[test]
fn handlers_on_both_stacks() {
    for handler_stack in [STACK - 0x300, STACK + 0x10_0000, 0x1000_0000] {
        let mut stack = stack();
        call(&mut stack, 0x10);
        stack.enter_handler(pc(0x15));
        stack.set_stack_pointer(handler_stack);
        call(&mut stack, 0x20);
        assert_eq!(addresses(&stack), [0x10, 0x15, 0x20]);
        stack.apply(Move::Return(8, Some(pc(0x20))));
        stack.apply(Move::Return(8, Some(pc(0x7777))));
        stack.lose();
        stack.set_stack_pointer(STACK - 8);
        assert_eq!(addresses(&stack), [0x10], "returned to the interrupted function");

        stack.enter_handler(pc(0x15));
        stack.set_stack_pointer(handler_stack);
        call(&mut stack, 0x20);
        stack.apply(Move::Unknown);
        stack.set_stack_pointer(STACK - 8);
        assert_eq!(addresses(&stack), [0x10], "jumped out of the handler");
    }
}

#[test]
fn coroutines_have_stacks_of_their_own() {
    let mut stack = stack();
    call(&mut stack, 0x10);
    let switch = |stack: &mut CallStack, to| {
        stack.apply(Move::Unknown);
        stack.set_stack_pointer(to);
    };
    for other in [0x1000_0000, STACK + (1 << 30)] {
        switch(&mut stack, other);
        assert!(addresses(&stack).is_empty());
        call(&mut stack, 0x80);
        call(&mut stack, 0x90);
        switch(&mut stack, STACK - 8);
        assert_eq!(addresses(&stack), [0x10]);
        switch(&mut stack, other - 16);
        assert_eq!(addresses(&stack), [0x80, 0x90]);
        switch(&mut stack, STACK - 8);
    }
}

#[test]
fn an_entry_says_what_is_on_top() {
    let mut stack = CallStack::default();
    stack.enter_routine(STACK, pc(0x10));
    assert_eq!(addresses(&stack), [0x10], "nothing was known");
    stack.enter_routine(STACK - 8, pc(0x20));
    stack.enter_routine(STACK - 8, pc(0x30));
    assert_eq!(addresses(&stack), [0x10, 0x30]);
    assert_eq!(addresses(&older()), [0x10, 0x30]);
}

#[test]
fn equal_stacks_have_one_number() {
    let (mut stacks, mut stack) = (CallStacks::default(), stack());
    assert_eq!(stacks.number(&mut stack), CallStackId::EMPTY);
    call(&mut stack, 0x10);
    call(&mut stack, 0x20);
    assert_eq!(stacks.number(&mut stack), CallStackId(2));
    let mut other = older();
    assert_eq!(stacks.number(&mut other), CallStackId(3));
    stack.apply(Move::Return(8, Some(pc(0x20))));
    assert_eq!(stacks.number(&mut stack), CallStackId(1));
    let below: Vec<u32> = stacks.take_new().iter().map(|node| node.below.0).collect();
    assert_eq!((below, stacks.take_new().len()), (vec![0, 1, 1], 0));
}
