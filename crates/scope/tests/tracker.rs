//! Threads of made-up programs, followed through functions and loops.

use std::fmt::Write;

use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId};
use trace::{Exit, Fragment, Item, Recording, ThreadInfo, Trace, Writer};
use trackway_scope::{FunctionId, ScopeEvent, Scopes, SelectedFunction, Tracker};
use wire::code::{
    FragmentBlock, FragmentExit, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN,
};
use wire::word;

/// How a block ends. Targets are numbers of blocks.
#[derive(Clone, Copy)]
enum End {
    Next,
    Branch(u64),
    Jump(u64),
    Call(u64),
    Return,
    IndirectJump,
    IndirectCall,
}
use End::{Branch, Call, IndirectCall, IndirectJump, Jump, Next, Return};

/// Every block has as many bytes.
const BLOCK_BYTES: u64 = 16;

fn address(block: u64) -> u64 {
    0x1000 + block * BLOCK_BYTES
}

impl End {
    fn code(self, block: u64) -> Vec<u8> {
        let relative = |target: u64| {
            let distance = address(target).wrapping_sub(address(block + 1));
            u32::try_from(distance & 0xffff_ffff).unwrap().to_le_bytes()
        };
        let last = match self {
            Next => vec![0x90],
            Branch(target) => [&[0x0f, 0x84][..], &relative(target)].concat(),
            Jump(target) => [&[0xe9][..], &relative(target)].concat(),
            Call(target) => [&[0xe8][..], &relative(target)].concat(),
            Return => vec![0xc3],
            IndirectJump => vec![0xff, 0xe0],
            IndirectCall => vec![0xff, 0xd0],
        };
        let mut code = vec![0x90; BLOCK_BYTES as usize - last.len()];
        code.extend(last);
        code
    }

    fn terminators(self) -> &'static [u32] {
        match self {
            Next | Jump(_) | Call(_) => &[TERMINATOR_DIRECT],
            Branch(_) => &[TERMINATOR_NOT_TAKEN, TERMINATOR_TAKEN],
            Return | IndirectJump | IndirectCall => &[TERMINATOR_INDIRECT],
        }
    }
}

/// What a thread does.
#[derive(Clone, Copy)]
enum Do {
    /// Executes a block.
    Run(u64),
    /// Does something that is not recorded.
    Gap,
    /// Is interrupted by a signal before a block, and goes on at another one.
    Signal(u64, u64),
    /// A signal's handler returns to a block.
    Resume(u64),
}
use Do::{Gap, Resume, Run, Signal};

/// A program: its blocks, and the first and last block of each function.
struct Program {
    blocks: Vec<End>,
    functions: Vec<(&'static str, u64, u64)>,
}

impl Program {
    /// Records what a thread does, and reads it back.
    fn trace(&self, execution: &[Do]) -> Trace {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.trk");
        let mut writer = Writer::create(&path, &Recording::default()).unwrap();
        for (number, end) in (0..).zip(&self.blocks) {
            let (id, pc) = (BlockId::new(number as u32), AppPc::new(address(number)));
            writer.block(0, id, pc, &end.code(number)).unwrap();
            let fragment = FragmentId::new(PathId::new(first_path(number)));
            let exits: Vec<FragmentExit> =
                end.terminators().iter().map(|&terminator| FragmentExit::new(1, terminator)).collect();
            let blocks = [FragmentBlock::new(id, false)];
            writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits }).unwrap();
        }
        writer.thread(&ThreadInfo { thread: ThreadId::FIRST, os_tid: 1, parent: None, image: 0 }).unwrap();
        writer.path(0, ThreadId::FIRST, &self.words(execution)).unwrap();
        writer.finish(Exit::Code(0)).unwrap();
        Trace::open(&path).unwrap()
    }

    fn words(&self, execution: &[Do]) -> Vec<u32> {
        let wide = |pc: u64| [pc as u32, (pc >> 32) as u32];
        let Run(first) = execution[0] else { panic!("a thread begins with a block") };
        let mut words = vec![word::event(word::START, 0)];
        words.extend([wide(address(first)), [7, 0]].concat());
        for (at, &action) in execution.iter().enumerate() {
            match action {
                Run(block) => {
                    let is_taken = match (self.blocks[block as usize], execution.get(at + 1)) {
                        (Branch(target), Some(&Run(next))) => next == target && next != block + 1,
                        _ => false,
                    };
                    words.push(first_path(block) + u32::from(is_taken));
                }
                Gap => words.extend([&[word::event(word::GAP, 0)][..], &wide(0)].concat()),
                Signal(pc, handler) => {
                    words.push(word::event(word::SIGNAL, 11));
                    words.extend([[0, 0], wide(address(pc)), wide(address(handler)), [8, 0]].concat());
                }
                Resume(pc) => {
                    words.push(word::event(word::RESUME, 0));
                    words.extend([wide(address(pc)), [9, 0]].concat());
                }
            }
        }
        words
    }

    /// What a tracker reports of an execution.
    fn events(&self, execution: &[Do]) -> Vec<ScopeEvent> {
        let trace = self.trace(execution);
        let pc = |block: u64| AppPc::new(address(block));
        let functions = self.functions.iter().map(|&(name, first, last)| SelectedFunction {
            name: name.to_owned(),
            image: 0,
            entry: pc(first),
            ranges: vec![pc(first)..pc(last + 1)],
            file: None,
        });
        let scopes = Scopes::of_trace(&trace, functions.collect());
        let (mut tracker, mut events) = (Tracker::new(&scopes), Vec::new());
        for item in trace.steps(ThreadId::FIRST).unwrap() {
            match item.unwrap() {
                Item::Step(step) => tracker.step(&step, trace.blocks(), |event| events.push(event)),
                Item::Event(event) => tracker.event(&event, |event| events.push(event)),
            }
        }
        tracker.end_all(&mut |event| events.push(event));
        events
    }

    /// The scopes of an execution, as text: `f(` and `)f` for functions, with `'` for each
    /// activation around it; `1[`, `1+` and `3]1` for loop 1, with the number of trips.
    fn check(&self, execution: &[Do], expected: &str) {
        let name = |FunctionId(id)| self.functions[id as usize].0;
        let mut text = String::new();
        for event in self.events(execution) {
            let quotes = |count: u32| "'".repeat(count as usize);
            match event {
                ScopeEvent::Enter { function, recursion } => write!(text, "{}{}( ", name(function), quotes(recursion)),
                ScopeEvent::Exit { function, recursion } => write!(text, "){}{} ", name(function), quotes(recursion)),
                ScopeEvent::EnterLoop { index, .. } => write!(text, "{index}[ "),
                ScopeEvent::Iterate { index, .. } => write!(text, "{index}+ "),
                ScopeEvent::ExitLoop { index, trips, .. } => write!(text, "{trips}]{index} "),
            }
            .unwrap();
        }
        assert_eq!(text.trim(), expected);
    }
}

fn first_path(block: u64) -> u32 {
    block as u32 * 2 + 1
}

fn runs(blocks: &[u64]) -> Vec<Do> {
    blocks.iter().map(|&block| Run(block)).collect()
}

/// `main` (0 to 2) calls `f` (3 to 6), a nest of two loops whose inner one calls `g` (7).
fn nest() -> Program {
    Program {
        blocks: vec![Next, Call(3), Return, Next, Call(7), Branch(4), Branch(3), Return],
        functions: vec![("main", 0, 2), ("f", 3, 6), ("g", 7, 7)],
    }
}

#[test]
fn a_nest_of_loops_with_calls() {
    // Block 6 ends `f` by falling through into `g`, which is a tail call.
    let f = [3, 4, 7, 5, 4, 7, 5, 6, 3, 4, 7, 5, 6];
    let execution = runs(&[&[0, 1][..], &f, &[7, 2]].concat());
    nest().check(&execution, "main( f( 0[ 1[ g( )g 1+ g( )g 2]1 0+ 1[ g( )g 1]1 2]0 )f g( )g )main");
}

#[test]
fn functions_that_are_not_selected_are_passed_through() {
    let mut program = nest();
    program.functions.retain(|&(name, ..)| name == "f");
    program.check(&runs(&[0, 1, 3, 4, 7, 5, 4, 7, 5, 6, 7, 2]), "f( 0[ 1[ 1+ 2]1 1]0 )f");
}

#[test]
fn a_gap_does_not_leave_a_loop() {
    let mut program = nest();
    program.functions.retain(|&(name, ..)| name == "f");
    let execution = [
        &runs(&[3, 4])[..],
        &[Gap],
        &runs(&[5, 4]),
        &[Gap],
        // What is not recorded has called `f` again, which returns.
        &runs(&[3, 4]),
        &[Gap],
        &runs(&[5, 6]),
        &[Gap],
        &runs(&[5, 6]),
    ];
    program.check(&execution.concat(), "f( 0[ 1[ 1+ f'( 0[ 1[ 1]1 1]0 )f' 2]1 1]0 )f");
}

/// `f` (0 to 3) calls itself, and returns.
fn recursion() -> Program {
    Program { blocks: vec![Branch(3), Call(0), Next, Return], functions: vec![("f", 0, 3)] }
}

#[test]
fn activations_of_one_function_are_distinguished() {
    recursion().check(&runs(&[0, 1, 0, 1, 0, 3, 2, 3, 2, 3]), "f( f'( f''( )f'' )f' )f");
}

/// The calls of a default stack, which has eight megabytes, are all remembered, and each takes
/// constant time.
#[test]
fn recursion_may_be_deep() {
    const DEPTH: usize = 500_000;
    let execution = [[0, 1].repeat(DEPTH), vec![0, 3], [2, 3].repeat(DEPTH)].concat();
    let events = recursion().events(&runs(&execution));
    let recursions = events.iter().filter_map(|event| match *event {
        ScopeEvent::Enter { recursion, .. } => Some(recursion as usize),
        _ => None,
    });
    assert!(recursions.eq(0..=DEPTH));
    let exits = events.iter().filter(|event| matches!(event, ScopeEvent::Exit { .. })).count();
    assert_eq!(exits, DEPTH + 1);
}

#[test]
fn a_jump_table_belongs_to_its_loop() {
    let program = Program {
        // while (true) switch (…) { case: jump back; case: jump back; case: return; }
        blocks: vec![IndirectJump, Jump(0), Jump(0), Return],
        functions: vec![("f", 0, 3)],
    };
    program.check(&runs(&[0, 1, 0, 2, 0, 1, 0, 3]), "f( 0[ 0+ 0+ 0+ 4]0 )f");
}

#[test]
fn an_irreducible_loop_counts_its_entries() {
    let program =
        Program { blocks: vec![Branch(2), Branch(4), Branch(1), Return, Return], functions: vec![("f", 0, 4)] };
    program.check(&runs(&[0, 1, 2, 1, 2, 3]), "f( 0[ 0+ 0+ 0+ 4]0 )f");
}

#[test]
fn a_signal_interrupts_a_loop_and_does_not_leave_it() {
    let program = Program {
        blocks: vec![Next, Branch(1), Return, Branch(3), Return],
        functions: vec![("f", 0, 2), ("handler", 3, 4)],
    };
    let execution = [&runs(&[0, 1])[..], &[Signal(1, 3)], &runs(&[3, 3, 4]), &[Resume(1)], &runs(&[1, 2])].concat();
    program.check(&execution, "f( 0[ handler( 1[ 1+ 2]1 )handler 0+ 2]0 )f".replace("1[ 1+ 2]1", "0[ 0+ 2]0").as_str());
}

#[test]
fn a_jump_out_of_inner_calls_ends_them() {
    let program = Program {
        // `f` calls `g` in a loop; `g` calls `h`, which jumps back into `f` as longjmp does.
        blocks: vec![Next, Call(4), Branch(1), Return, Call(6), Return, IndirectJump],
        functions: vec![("f", 0, 3), ("g", 4, 5), ("h", 6, 6)],
    };
    program.check(&runs(&[0, 1, 4, 6, 2, 1, 4, 6, 2, 3]), "f( 0[ g( h( )h )g 0+ g( h( )h )g 2]0 )f");
}

#[test]
fn an_exception_that_a_loop_catches_does_not_leave_it() {
    let program = Program {
        // `f` calls `g` in a loop; `g` may end at a landing pad of `f`, which goes on with the
        // loop.
        blocks: vec![Next, Call(5), Branch(1), Return, Jump(2), Branch(7), Return, IndirectJump],
        functions: vec![("f", 0, 4), ("g", 5, 7)],
    };
    program.check(&runs(&[0, 1, 5, 7, 4, 2, 1, 5, 6, 2, 1, 5, 7, 4, 2, 3]), "f( 0[ g( )g 0+ g( )g 0+ g( )g 3]0 )f");
}

#[test]
fn a_tail_call_takes_the_place_of_its_caller() {
    let program = Program {
        blocks: vec![IndirectCall, Return, Jump(3), Return],
        functions: vec![("main", 0, 1), ("f", 2, 2), ("g", 3, 3)],
    };
    program.check(&runs(&[0, 2, 3, 1]), "main( f( )f g( )g )main");
}

#[test]
fn a_thread_may_begin_anywhere() {
    // In the inner loop of `f`, which returns to a function that was never seen to call it.
    nest().check(&runs(&[5, 4, 7, 5, 6, 7, 2]), "f( 0[ 1[ 1+ g( )g 2]1 1]0 )f g( )g main( )main");
}
