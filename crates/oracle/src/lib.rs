//! Ground truth for tests: the exact sequence of instructions that a program executes, by
//! single-stepping it.
//!
//! [`single_step`] runs a command under `PTRACE_SINGLESTEP` with address randomisation off and
//! lists, for every thread, the address of each instruction once it has been executed, from the
//! first instruction of the dynamic linker (or of a static program's `_start`) to the system call
//! that ends the thread. It is slow (some ten thousand instructions per second, a hypervisor makes
//! traps costly) and simple on purpose; it knows nothing of the recorder, which is compared with
//! it.
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
//!   that created it. After exec the list of the thread goes on with the first instruction of the
//!   new program.
//! * Threads are followed, and children by vfork (and so `posix_spawn`), which count as threads
//!   until they execute another program. Other children run natively.
//!
//! # What the program can notice
//!
//! Single-stepping sets the trap flag, which `pushf` writes to memory, `syscall` copies to r11 and
//! handlers can find in their context. All are corrected after the step, so that programs that look
//! at their flags take the same path as without us. A step takes SIGTRAP out of the mask of a
//! thread that blocks it, and a program that looks at its mask sees that. Time passes more quickly
//! than instructions do: a program that looks at clocks or sets timers may take another path. So
//! may one whose path depends on process numbers or on other randomness; those have no ground
//! truth.
//!
//! # Accesses to memory
//!
//! If wanted, what each instruction reads and writes is listed too ([`Access`]), in the order of
//! execution, reads before writes. Addresses are computed from the registers before the step; what
//! is read is looked up before, what is written after it. One access has the size of the operand;
//! repeated string instructions have those of every iteration, also if they are interrupted;
//! gathers, scatters and operands under a mask one for each selected element; a failing `cmpxchg`
//! writes what it has read. A faulting instruction has none, and prefetches, `lea` and fences have
//! none. What the kernel does is not listed. An instruction whose accesses are not known is an
//! error. With threads that run at the same time the values are not reliable.
//!
//! The environment, the arguments and so the whole initial stack are those of the given command,
//! nothing is added.

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

/// What may be changed about a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The run is given up, and the program killed, after this many stops in all threads together.
    pub stops_max: u64,
    /// Whether the program and we share one processor, which is two or three times as quick. The
    /// program can see that, in `sched_getaffinity`, but nowhere else.
    pub one_processor: bool,
    /// Which one, counted among those that we may use; otherwise runs take turns.
    pub processor: Option<usize>,
    /// Whether accesses to memory are listed.
    pub memory: bool,
    /// Whether to look, after every instruction, for changes of memory that none of its accesses
    /// explains. Slow; for programs of one thread, with `memory`.
    pub check_writes: bool,
    /// What the program finds in place of the random bytes that the kernel gives it (for the C
    /// library's stack guard).
    pub random_bytes: Option<[u8; 16]>,
}

impl Default for Options {
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

/// What a program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
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
/// If the program cannot be started or traced, or does not end within [`Options::stops_max`]. It is
/// killed then.
pub fn single_step(command: &mut Command, options: &Options) -> Result<Run, Error> {
    // A thread of its own is the tracer: it waits for its own children only, and so for nobody
    // else's in this process.
    std::thread::scope(|scope| match scope.spawn(|| step::run(command, options)).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
