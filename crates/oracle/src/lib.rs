//! Ground truth for tests: the exact sequence of instructions that a program executes, by
//! single-stepping it.
//!
//! [`single_step`] runs a command under `PTRACE_SINGLESTEP` without address space randomisation.
//! For every thread, it lists the address of each instruction once it has been executed. The list
//! begins with the first instruction of the dynamic linker (or of a static program's `_start`) and
//! ends with the system call that ends the thread. Single-stepping is slow: some ten thousand
//! instructions per second, less under a hypervisor. This crate is simple on purpose and knows
//! nothing of the recorder, which tests compare with it.
//!
//! # What counts as executed
//!
//! * A `rep` string instruction counts once, when it has finished, however many stops it takes.
//!   Everything else counts each time, a `jmp` to itself included.
//! * An instruction that faults does not count; the handler's first instruction follows. If the
//!   handler returns to it and it then succeeds, it counts. A trap (`int3`) has been executed when
//!   its signal is delivered and does count.
//! * A system call counts when it returns, or when it ends the thread or replaces the program. One
//!   that the kernel interrupts and restarts counts each time that it is entered.
//! * Instructions in signal handlers count like any others. A new thread starts after the `syscall`
//!   that created it. After exec, the list of the thread continues with the first instruction of
//!   the new program.
//! * Threads are followed. So are children made by vfork (and so `posix_spawn`), which count as
//!   threads until they execute another program. Other children run natively.
//!
//! # What the program can notice
//!
//! Single-stepping sets the trap flag: `pushf` writes it to memory, `syscall` copies it to r11, and
//! handlers find it in their context. The tracer corrects all of these after the step, so that
//! programs that look at their flags take their usual path. A step unblocks SIGTRAP in a thread
//! that blocks it, which a program can see in its mask. Clocks run on: a program that looks at
//! clocks or sets timers may take another path. So may one whose path depends on process numbers or
//! on other randomness; those have no ground truth.
//!
//! # Accesses to memory
//!
//! If wanted, the accesses of each instruction are listed as well ([`Access`]), in the order of
//! execution, reads before writes. The tracer computes addresses from the registers before the
//! step. It looks up values that are read before the step, and values that are written after it.
//! One access has the size of the operand. Repeated string instructions have the accesses of every
//! iteration, even if they are interrupted. Gathers, scatters and operands under a mask have one
//! for each selected element. A failing `cmpxchg` writes what it has read. Faulting instructions,
//! prefetches, `lea` and fences have none. Accesses of the kernel are not listed. An instruction
//! whose accesses are not known is an error. With threads that run at the same time, values are not
//! reliable.
//!
//! The environment, the arguments and so the whole initial stack are those of the given command.

mod access;
mod operand;
mod snapshot;
mod step;
mod tracee;
mod vector;

use std::io;
use std::process::Command;

pub use access::Access;
pub use operand::{MaskUse, mask_use};

/// How to step a program.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// The run ends with an error, and the program is killed, after this many stops of all threads
    /// together.
    pub stops_max: u64,
    /// Whether the program and the tracer share one processor, which is two or three times as fast.
    /// The program can see that in `sched_getaffinity`, but nowhere else.
    pub one_processor: bool,
    /// Which processor, counted among those that the tracer may use. `None`: runs take turns.
    pub processor: Option<usize>,
    /// Whether accesses to memory are listed.
    pub memory: bool,
    /// Whether to search, after every instruction, for changes of memory that none of its accesses
    /// explains. Slow; for programs of one thread, with `memory`.
    pub check_writes: bool,
    /// Replaces the random bytes that the kernel gives the program (for the C library's stack
    /// guard).
    pub random_bytes: Option<[u8; 16]>,
}

impl Default for StepOptions {
    fn default() -> Self {
        Self {
            stops_max: 50_000_000,
            one_processor: true,
            processor: None,
            memory: false,
            check_writes: false,
            random_bytes: None,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Addresses of the executed instructions of each thread, threads in the order of their
    /// creation.
    pub threads: Vec<Vec<u64>>,
    /// The accesses to memory of each thread, if they were wanted.
    pub accesses: Vec<Vec<Access>>,
    pub exit: Exit,
    /// What was written to standard output and standard error, as far as the command had them
    /// piped.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start {command}: {source}")]
    Start { command: String, source: io::Error },
    #[error("ptrace {request} of thread {thread}: {source}")]
    Ptrace { request: &'static str, thread: i32, source: io::Error },
    #[error("waiting for the program: {0}")]
    Wait(io::Error),
    #[error("reading the program's output: {0}")]
    Output(io::Error),
    #[error("the program had not ended after {0} steps")]
    TooLong(u64),
    #[error("thread {thread} stopped unexpectedly with status {status:#x}")]
    Unexpected { thread: i32, status: i32 },
    #[error("what {code} at {pc:#x} does to memory is not known: {why}")]
    Operand { pc: u64, code: String, why: &'static str },
    #[error("the instruction at {pc:#x} has accessed memory at {address:#x}, which cannot be read")]
    Unreadable { pc: u64, address: u64 },
    #[error("the instruction at {pc:#x} has changed memory at {address:#x}, which was not expected of it")]
    Missed { pc: u64, address: u64 },
    #[error("reading the list of the program's mappings: {0}")]
    Mappings(io::Error),
}

/// Runs `command` to its end, one instruction at a time.
///
/// A standard output or error that is [`piped`](std::process::Stdio::piped) is collected; standard
/// input must not be piped.
///
/// # Errors
///
/// If the program cannot be started or traced, or does not end within [`StepOptions::stops_max`].
/// It is killed then.
pub fn single_step(command: &mut Command, options: &StepOptions) -> Result<Execution, Error> {
    // The tracer is a thread of its own: it waits for its own children only, not for others of this
    // process.
    std::thread::scope(|scope| match scope.spawn(|| step::run(command, options)).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
