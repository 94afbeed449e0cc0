//! Compares the call stack at every instruction of a program with a list of its calls, which the
//! test keeps while it single-steps the program: an address that a call pushes is on the list until
//! the stack pointer is above it.

#[allow(dead_code)]
mod support;

use std::iter;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libc::{pid_t, user_regs_struct};
use support::{Memory, Process, build, converted, ptrace, registers, wait};
use symbols::{FrameTable, Function, Functions};
use tempfile::TempDir;
use trackway_unwind::{Frame, UnwindEnd};

/// The bytes above the stack pointer that are read at once.
const STACK: usize = 1 << 13;

/// A call that has not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    /// Where the return address is.
    place: u64,
    return_address: u64,
}

#[derive(Default)]
struct Counts {
    stacks: usize,
    frames: usize,
    /// Where the innermost function has no call frame information.
    uncovered: usize,
    /// At the end of longjmp, whose caller is the function that has called setjmp.
    jumping: usize,
}

struct Stepper {
    process: pid_t,
    memory: Memory,
    mapped: Process,
    /// Functions that have no call frame information, but a frame pointer.
    pointed: Vec<Range<u64>>,
    calls: Vec<Call>,
    counts: Counts,
}

impl Stepper {
    // `run` waits for every stop and for the end.
    #[allow(clippy::zombie_processes)]
    fn start(program: &Path, pointed: Vec<Range<u64>>) -> Self {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).env_clear();
        let trace = || {
            // SAFETY: the request has no parameters and no effect but on the new process.
            let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: `trace` makes a system call and allocates nothing.
        let child = unsafe { command.pre_exec(trace) }.spawn().unwrap();
        let process = pid_t::try_from(child.id()).unwrap();
        assert!(libc::WIFSTOPPED(wait(process)));
        // If the test fails, the program must not outlive it.
        ptrace(libc::PTRACE_SETOPTIONS, process, libc::PTRACE_O_EXITKILL as usize);
        let memory = Memory::of_process(process);
        Self { process, memory, mapped: Process::default(), pointed, calls: Vec::new(), counts: Counts::default() }
    }

    /// Executes the program to its end.
    fn run(mut self) -> Counts {
        let mut before = registers(self.process);
        self.mapped.update(self.process, &self.memory);
        loop {
            self.compare(&before);
            ptrace(libc::PTRACE_SINGLESTEP, self.process, 0);
            if libc::WIFEXITED(wait(self.process)) {
                return self.counts;
            }
            let after = registers(self.process);
            self.follow(&before, &after);
            before = after;
        }
    }

    fn follow(&mut self, before: &user_regs_struct, after: &user_regs_struct) {
        // A system call may have mapped something.
        if self.memory.word(before.rip).is_some_and(|code| code.to_le_bytes().starts_with(&[0x0f, 0x05])) {
            self.mapped.update(self.process, &self.memory);
        }
        self.calls.retain(|call| call.place >= after.rsp);
        if after.rsp == before.rsp - 8 {
            let top = self.memory.word(after.rsp).unwrap();
            let is_behind = (2..=15).contains(&top.wrapping_sub(before.rip));
            if is_behind && top != after.rip {
                self.calls.push(Call { place: after.rsp, return_address: top });
            }
        }
    }

    /// Returns whether the caller of a function has to be found.
    fn is_covered(&self, address: u64) -> bool {
        self.mapped.is_covered(address) || self.pointed.iter().any(|range| range.contains(&address))
    }

    fn compare(&mut self, registers: &user_regs_struct) {
        let mut stack = vec![0; STACK];
        let length = self.memory.read(registers.rsp, &mut stack);
        let memory = &self.memory;
        let mut read = |address: u64| {
            let start = address.wrapping_sub(registers.rsp).min(STACK as u64) as usize;
            let bytes = stack[..length].get(start..start + 8);
            bytes.map_or_else(|| memory.word(address), |bytes| Some(u64::from_le_bytes(bytes.try_into().unwrap())))
        };
        let mut frames = Vec::new();
        let end = self.mapped.unwinder.unwind(&converted(registers), 200, &mut read, &mut frames);
        let found: Vec<Call> = frames.windows(2).filter_map(|pair| call_between(pair[0], pair[1])).collect();
        let expected: Vec<Call> = self.calls.iter().rev().copied().collect();
        let place = format!("at {:x}\n{found:x?}\n{expected:x?}", registers.rip);
        let instructions = iter::once(registers.rip).chain(expected.iter().map(|call| call.return_address - 1));
        let covered = instructions.take_while(|&address| self.is_covered(address)).count();
        self.counts.stacks += 1;
        self.counts.frames += covered;
        self.counts.uncovered += usize::from(covered == 0);
        if covered <= expected.len() {
            // The callers of a function without call frame information may be missing.
            assert_eq!(found.get(..covered), expected.get(..covered), "{place}");
            return;
        }
        assert_eq!(end, UnwindEnd::Outermost, "{place}");
        if found != expected {
            assert!(found.len() > 1 && expected.ends_with(&found[1..]), "{place}");
            self.counts.jumping += 1;
        }
    }
}

fn call_between(callee: Frame, caller: Frame) -> Option<Call> {
    Some(Call { place: callee.cfa? - 8, return_address: caller.address })
}

fn check(options: &[&str]) {
    let directory = TempDir::new().unwrap();
    let program = build(directory.path(), "steps.c", options);
    check_stepped(options, Stepper::start(&program, Vec::new()));
}

fn check_stepped(options: &[&str], stepper: Stepper) {
    let Counts { stacks, frames, uncovered, jumping } = stepper.run();
    println!("{options:?}: {stacks} stacks of {frames} frames, {uncovered} not covered, {jumping} in longjmp");
    assert!(stacks > 10_000 && frames > 3 * stacks, "{stacks} stacks of {frames} frames");
    assert!(uncovered < stacks / 50 && jumping < 30, "{uncovered} of {stacks} stacks are not covered, {jumping}");
}

#[test]
fn every_instruction_of_a_program() {
    check(&["-O2"]);
}

#[test]
fn every_instruction_of_a_program_without_optimisation() {
    check(&["-O0", "-no-pie", "-Wl,-z,lazy"]);
}

#[test]
fn every_instruction_of_a_static_program() {
    check(&["-O3", "-mavx2", "-fcf-protection=full", "-static"]);
}

/// The functions of the program, unlike those of its libraries, have frame pointers only.
#[test]
fn every_instruction_of_functions_without_call_frame_information() {
    const OWN: [&str; 8] = ["leaf", "tail", "aligned", "many", "recurse", "jump", "compare", "main"];
    let tables = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer"];
    let options = [&["-O0", "-no-pie"], tables.as_slice()].concat();
    let directory = TempDir::new().unwrap();
    let program = build(directory.path(), "steps.c", &options);
    let functions = Functions::of_file(&program).unwrap();
    let own = functions.list.iter().filter(|function| OWN.contains(&function.symbol.as_str()));
    let pointed: Vec<Range<u64>> = own.map(Function::range).collect();
    assert_eq!(pointed.len(), OWN.len());
    let table = FrameTable::of_file(&program).unwrap();
    assert!(pointed.iter().all(|range| table.entry_at(range.start).is_none()));
    check_stepped(&options, Stepper::start(&program, pointed));
}
