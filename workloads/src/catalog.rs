//! The list of all programs: text, flags, variants, examples of runs.

use std::fmt;

/// A program, its variants and examples of its output.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    pub group: Group,
    /// Its purpose, in a few words.
    pub purpose: &'static str,
    /// The variants that it can be built in, the usual one first.
    pub variants: &'static [Variant],
    /// Calls with their results, quick enough for tests.
    pub runs: &'static [Run],
    /// The first is compiled, it includes the others.
    pub(crate) sources: &'static [Source],
    /// Whether every run takes the same path, so that it can be compared with single-stepping.
    is_repeatable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Multithreaded kernels, called as NAME THREADS \[SIZE].
    Parallel,
    /// Single-threaded, called as NAME \[SIZE].
    Bench,
    /// Programs that the theses describe.
    Seed,
    /// One behaviour each.
    Behaviour,
    /// Memory instructions, one class each.
    Memory,
}

/// How an executable is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Dynamic, position-independent.
    Pie,
    /// Dynamic, at a fixed address.
    NoPie,
    /// Static, at a fixed address.
    Static,
    /// Static, position-independent.
    StaticPie,
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pie => "pie",
            Self::NoPie => "no-pie",
            Self::Static => "static",
            Self::StaticPie => "static-pie",
        })
    }
}

impl Variant {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Pie => &["-fPIE", "-pie"],
            Self::NoPie => &["-fno-pie", "-no-pie"],
            Self::Static => &["-fno-pie", "-no-pie", "-static"],
            Self::StaticPie => &["-fPIE", "-static-pie"],
        }
    }
}

/// One call of a program.
#[derive(Debug)]
pub struct Run {
    pub arguments: &'static [&'static str],
    pub stdout: &'static str,
    pub exit: Exit,
}

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Status(status) => write!(formatter, "{status}"),
            Self::Signal(signal) => write!(formatter, "signal {signal}"),
        }
    }
}

#[derive(Debug, Hash)]
pub(crate) struct Source {
    pub name: &'static str,
    pub text: &'static str,
}

impl Program {
    /// Everything after the name of the source on the compiler's command line.
    pub(crate) fn flags(&self, variant: Variant) -> Vec<&'static str> {
        let is_assembly = self.sources[0].name.ends_with(".s");
        let own: &[&str] = match self.group {
            Group::Parallel | Group::Bench => &["-O2", "-pthread", "-lm"],
            Group::Behaviour | Group::Memory if is_assembly => &["-nostdlib"],
            // Calls stay calls: -O2 would turn recursion into loops.
            Group::Behaviour | Group::Memory => &["-O1", "-pthread"],
            Group::Seed => &["-Wl,-z,lazy", "-Wl,-Ttext-segment=0x3ff000", "-Wl,-T,placement.ld"],
        };
        [&["-g", "-std=gnu11", "-Wall", "-Wextra"], variant.flags(), own].concat()
    }
}

/// A program whose path is the same in every run, and how to run it.
#[derive(Clone, Copy, Debug)]
pub struct OracleProgram {
    pub program: &'static Program,
    pub variant: Variant,
    pub arguments: &'static [&'static str],
}

/// A program that `xtask bench` runs: CPU-bound, about a quarter of a second each.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    pub name: &'static str,
    pub program: &'static str,
    pub arguments: &'static [&'static str],
}

/// All programs.
#[must_use]
pub fn programs() -> &'static [Program] {
    PROGRAMS
}

/// The program called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| program.name == name)
}

/// Programs for the comparison with single-stepping: each repeatable one in its usual variant, some
/// in others too.
#[must_use]
pub fn oracle_programs() -> Vec<OracleProgram> {
    let repeatable = PROGRAMS.iter().filter(|program| program.is_repeatable);
    let usual = repeatable.map(|program| (program, program.variants[0]));
    let further = ORACLE_FURTHER.iter().filter_map(|&(name, variant)| Some((find(name)?, variant)));
    usual
        .chain(further)
        .map(|(program, variant)| OracleProgram { program, variant, arguments: program.runs[0].arguments })
        .collect()
}

/// The single-threaded benchmark programs that need nothing but a C compiler.
#[must_use]
pub fn bench_programs() -> &'static [Bench] {
    &[
        Bench { name: "hash", program: "hash", arguments: &[] },
        Bench { name: "parser", program: "parser", arguments: &[] },
        Bench { name: "sort", program: "sort", arguments: &[] },
        Bench { name: "matrix", program: "matmul", arguments: &["1"] },
        Bench { name: "fft", program: "fft", arguments: &["1"] },
    ]
}

/// Further variants in which a program is compared with single-stepping.
const ORACLE_FURTHER: &[(&str, Variant)] = &[
    ("recursion", Variant::Pie),
    ("recursion", Variant::NoPie),
    ("recursion", Variant::StaticPie),
    ("indirect_calls", Variant::Pie),
    ("signal_nested", Variant::Pie),
    ("segv_context", Variant::Pie),
    ("siglongjmp", Variant::Pie),
    ("threads_sequential", Variant::Pie),
];

macro_rules! source {
    ($directory:literal, $name:literal) => {
        Source { name: $name, text: include_str!(concat!("../", $directory, "/", $name)) }
    };
}

const DYNAMIC: &[Variant] = &[Variant::Pie, Variant::NoPie, Variant::Static];
const ANY_STATIC_FIRST: &[Variant] = &[Variant::Static, Variant::Pie, Variant::NoPie, Variant::StaticPie];
const FREESTANDING: &[Variant] = &[Variant::Static];

const fn run(arguments: &'static [&'static str], stdout: &'static str, exit: Exit) -> Run {
    Run { arguments, stdout, exit }
}

/// A multithreaded kernel, small, with one, two and five threads.
macro_rules! parallel {
    ($name:literal, $file:literal $(, $header:literal)*; $purpose:literal; $size:literal => $stdout:literal) => {
        Program {
            name: $name,
            group: Group::Parallel,
            purpose: $purpose,
            variants: DYNAMIC,
            runs: &[
                run(&["1", $size], $stdout, Exit::Status(0)),
                run(&["2", $size], $stdout, Exit::Status(0)),
                run(&["5", $size], $stdout, Exit::Status(0)),
            ],
            sources: &[source!("parallel", $file), $(source!("parallel", $header),)* source!("parallel", "common.h")],
            is_repeatable: false,
        }
    };
}

macro_rules! bench {
    ($name:literal, $file:literal; $purpose:literal; $size:literal => $stdout:literal) => {
        Program {
            name: $name,
            group: Group::Bench,
            purpose: $purpose,
            variants: DYNAMIC,
            runs: &[run(&[$size], $stdout, Exit::Status(0))],
            sources: &[source!("bench", $file), source!("bench", "common.h")],
            is_repeatable: false,
        }
    };
}

macro_rules! seed {
    ($name:literal, $file:literal; $purpose:literal; $stdout:literal, $exit:expr) => {
        Program {
            name: $name,
            group: Group::Seed,
            purpose: $purpose,
            variants: &[Variant::NoPie],
            runs: &[run(&[], $stdout, $exit)],
            sources: &[source!("seeds", $file), source!("seeds", "placement.ld")],
            is_repeatable: true,
        }
    };
}

/// A program in assembly without a C library, which prints one number.
macro_rules! assembly {
    ($name:literal, $file:literal; $purpose:literal; $stdout:literal) => {
        Program {
            name: $name,
            group: Group::Behaviour,
            purpose: $purpose,
            variants: FREESTANDING,
            runs: &[run(&[], concat!($stdout, "\n"), Exit::Status(0))],
            sources: &[source!("behaviour", $file), source!("behaviour", "freestanding.inc")],
            is_repeatable: true,
        }
    };
}

/// A program in C. The usual variant is static where the path is repeatable, because
/// single-stepping is slow.
macro_rules! behaviour {
    ($name:literal, $file:literal $(+ $header:literal)*, $variants:expr, $repeatable:literal; $purpose:literal;
        $($arguments:expr => $stdout:literal, $exit:expr);+) => {
        Program {
            name: $name,
            group: Group::Behaviour,
            purpose: $purpose,
            variants: $variants,
            runs: &[$(run(&$arguments, $stdout, $exit)),+],
            sources: &[
                source!("behaviour", $file),
                $(source!("behaviour", $header),)*
                source!("behaviour", "common.h"),
            ],
            is_repeatable: $repeatable,
        }
    };
}

/// A program in assembly without a C library, for one class of memory instructions. It reports on
/// standard error what the processor lacks.
macro_rules! memory {
    ($name:literal, $file:literal; $purpose:literal) => {
        Program {
            name: $name,
            group: Group::Memory,
            purpose: $purpose,
            variants: FREESTANDING,
            runs: &[run(&[], "done\n", Exit::Status(0))],
            sources: &[
                source!("memory", $file),
                source!("memory", "memory.inc"),
                source!("behaviour", "freestanding.inc"),
            ],
            is_repeatable: true,
        }
    };
}

use Exit::{Signal, Status};

const PROGRAMS: &[Program] = &[
    parallel!("fft", "fft.c"; "Fourier transform by the six-step method"; "4" =>
        "fft: 256 points, energy 4.071398231e+01, inverse agrees\n"),
    parallel!("lu-contiguous", "lu-contiguous.c", "lu.h"; "LU decomposition, blocks in one piece"; "4" =>
        "lu-contiguous: 64 x 64, log determinant 2.666351230e+02, product agrees\n"),
    parallel!("lu-noncontiguous", "lu-noncontiguous.c", "lu.h"; "LU decomposition of a plain array"; "4" =>
        "lu-noncontiguous: 64 x 64, log determinant 2.666351230e+02, product agrees\n"),
    parallel!("radix", "radix.c"; "radix sort"; "20" => "radix: 20000 keys, weighted sum 07f75a1462bb3df3, sorted\n"),
    parallel!("cholesky", "cholesky.c"; "sparse Cholesky decomposition, columns from a counter"; "12" =>
        "cholesky: order 144, log determinant 1.991367991e+02, product agrees\n"),
    parallel!("ocean-contiguous", "ocean-contiguous.c", "ocean.h"; "red-black relaxation, grid in tiles"; "20" =>
        "ocean-contiguous: 20 x 20, 100 sweeps, residual 8.765691971e-04, sum 1.234450890e+02\n"),
    parallel!("ocean-noncontiguous", "ocean-noncontiguous.c", "ocean.h"; "red-black relaxation, plain grid"; "20" =>
        "ocean-noncontiguous: 20 x 20, 100 sweeps, residual 8.765691971e-04, sum 1.234450890e+02\n"),
    parallel!("nbody", "nbody.c"; "Barnes-Hut gravity"; "100" =>
        "nbody: 100 bodies, kinetic energy 1.230376050e-01, spread 2.378682152e-01\n"),
    parallel!("radiosity", "radiosity.c"; "light between patches, work stealing"; "2" =>
        "radiosity: 24 patches, 81456 transfers, light 9929743024, hash 7144b65e23f04155\n"),
    parallel!("raytrace", "raytrace.c"; "mirroring spheres, tiles from a counter"; "32" =>
        "raytrace: 32 x 32, hash d559a807e14b6ecc\n"),
    parallel!("water", "water.c"; "molecular dynamics"; "4" =>
        "water: 64 molecules, kinetic energy 1.628097092e+02, potential energy -1.908791053e+02\n"),
    parallel!("matmul", "matmul.c"; "matrix product in tiles"; "48" =>
        "matmul: 48 x 48, weighted sum 1.383480542e+02, sums agree\n"),
    parallel!("mutexes", "mutexes.c"; "uncontended locks"; "2" => "mutexes: 2000 locked, counts agree\n"),
    parallel!("mutex", "mutex.c"; "one lock for all"; "2" =>
        "mutex: 2000 locked, mixed afa82a1ef06f73f0, counts agree\n"),
    parallel!("counts", "counts.c"; "reference counts"; "2" =>
        "counts: 2000 references, every object destroyed once\n"),
    parallel!("tree", "tree.c"; "Barnes-Hut tree, built by all threads under a lock per cell"; "2" =>
        "tree: 2000 points, 3475 cells, force 3.222504321e+09\n"),
    bench!("hash", "hash.c"; "SHA-256 and SipHash"; "2" =>
        "hash: sha256 b3d3be0c8df5a585..., siphash 627b33744a73da74, examples agree\n"),
    bench!("parser", "parser.c"; "JSON and arithmetic, recursive descent"; "20" =>
        "parser: 160 objects, 560 strings, 160 numbers, hash b14bb61b7548c425, no errors\n"),
    bench!("sort", "sort.c"; "quicksort and merge sort with a callback"; "500" =>
        "sort: 500 records, digest 3819d279d571a650, sorted\n"),
    seed!("BranchEnumeration", "BranchEnumeration.s";
        "every branch instruction once (Myers 2014, Figures 4.7 to 4.10)"; "BranchEnumeration\n", Status(18)),
    seed!("BranchTest", "BranchTest.s";
        "taken branches, a loop, an indirect call (Myers 2014, Figures 4.11 and 4.12)"; "BranchTest\ntest\n",
        Status(5)),
    seed!("mlsTest", "mlsTest.s"; "loads and stores of all sizes (Myers 2014, Figures 4.17 to 4.21)";
        "i address: 0x7fff19df619c\nuint8 address: 0x7fff19df6180\nsint8 address: 0x7fff19df6160\nextendedPre80 \
         address: 0x7fff1a03b980\n", Status(0)),
    assembly!("loops", "loops.s"; "counted and nested loops, loop, loope, loopne, jrcxz, jecxz"; "000000000007a5dd"),
    assembly!("calls", "calls.s";
        "calls through registers and memory, relative to rsp, ret imm16, returns without calls";
        "0000000000000164"),
    assembly!("jump_table", "jump_table.s"; "indirect jumps by table, register, memory and stack"; "0000000000002b66"),
    assembly!("strings", "strings.s"; "rep movs, stos, lods, scas, cmps; zero counts; backwards"; "00000000000001d5"),
    assembly!("r15", "r15.s"; "r15 as data, base, index and target"; "0000000000003884"),
    assembly!("red_zone", "red_zone.s"; "the 128 bytes below rsp survive branches and system calls";
        "0000000000000088"),
    assembly!("rip_relative", "rip_relative.s"; "operands relative to rip, push and pop of memory, locked ones";
        "00000000000069f6"),
    assembly!("flags", "flags.s"; "flags survive jumps, calls, returns, indirect jumps; pushf, lahf";
        "000000004441d711"),
    assembly!("jump_back", "jump_back.s"; "unconditional jumps backwards"; "0000000000000175"),
    assembly!("overlap", "overlap.s"; "jumps into the middle of an instruction, over a prefix"; "0000000000000107"),
    assembly!("x87", "x87.s"; "the x87 stack survives branches"; "0000000000000065"),
    behaviour!("recursion", "recursion.c", ANY_STATIC_FIRST, true; "recursion, double, deep in arguments, mutual";
        [] => "fibonacci 144 ackermann 13 even 0\n", Status(0)),
    behaviour!("deep_recursion", "deep_recursion.c", DYNAMIC, false; "100,000 calls before the first return";
        [] => "depth 100000 odd 50000\n", Status(0)),
    behaviour!("indirect_calls", "indirect_calls.c", ANY_STATIC_FIRST, true;
        "function pointers, a callback of libc, a switch";
        [] => "operations 4013735917 sorted 0 84 59 switch 67437672\n", Status(0)),
    behaviour!("raw_syscalls", "raw_syscalls.c", ANY_STATIC_FIRST, true;
        "system calls without wrappers; rcx, r11 and the rest afterwards";
        [] => "written\nrcx right, zero flag 1, trap flag 0, r9 1234567\n", Status(0)),
    behaviour!("avx", "avx.c", ANY_STATIC_FIRST, true;
        "upper halves of vector registers survive branches and system calls";
        [] => "total 3600 length 299 compare 0\n", Status(0)),
    behaviour!("code_changes", "code_changes.c", ANY_STATIC_FIRST, true; "code written, overwritten, mapped anew";
        [] => "in place 55\nprotected 355\nmapped again 3355\n", Status(0)),
    behaviour!("arguments", "arguments.c", DYNAMIC, false; "arguments, environment and descriptors are as without us";
        [] => "variables 0\n", Status(0);
        ["one", "", "two words"] => "variables 0\n1: one\n2: \n3: two words\n", Status(3)),
    behaviour!("signal_raise", "signal_raise.c", ANY_STATIC_FIRST, true; "raise and kill to oneself, siginfo";
        [] => "raise\nkill\ndone\n", Status(5)),
    behaviour!("signal_altstack", "signal_altstack.c", ANY_STATIC_FIRST, true; "handlers on and off an alternate stack";
        [] => "inside on\noutside off\ninside on\noutside disabled\n", Status(0)),
    behaviour!("signal_nested", "signal_nested.c", ANY_STATIC_FIRST, true; "handlers inside handlers, sa_mask";
        [] => "[usr1 pending [usr2 [hup]]][usr1 [usr2 [hup]]][term]\n", Status(0)),
    behaviour!("signal_mask", "signal_mask.c", ANY_STATIC_FIRST, true; "blocked, pending, queued, unblocked";
        [] => "blocked: 0 0 pending 1 1\nunblocked: 1 3 order 123 pending 0\n", Status(0)),
    behaviour!("signal_suspend", "signal_suspend.c", ANY_STATIC_FIRST, true;
        "sigsuspend, ppoll, pselect, epoll_pwait, sigtimedwait";
        [] =>
        "sigsuspend: EINTR, handler ran 1, blocked again 1\nppoll: EINTR, handler ran 1, blocked again 1\npselect: \
         EINTR, handler ran 1, blocked again 1\nepoll_pwait: EINTR, handler ran 1, blocked again 1\nsigtimedwait: \
         1, handler ran 0\n", Status(4)),
    behaviour!("signal_restart", "signal_restart.c", DYNAMIC, false; "SA_RESTART and EINTR on a pipe";
        [] => "read 'x' after 1\nEINTR after 2\n", Status(2)),
    behaviour!("signal_resethand", "signal_resethand.c", ANY_STATIC_FIRST, true;
        "SA_RESETHAND, then the default action";
        [] => "once, reset\nagain\n", Signal(10)),
    behaviour!("signal_nodefer", "signal_nodefer.c", ANY_STATIC_FIRST, true; "SA_NODEFER";
        [] => "((((()))))\n", Status(5)),
    behaviour!("signal_sent", "signal_sent.c", DYNAMIC, false; "SIGSEGV, SIGTRAP and SIGBUS from another thread";
        [] => "arrived 20000, wrong 0\n", Status(0)),
    behaviour!("signal_flood", "signal_flood.c", DYNAMIC, false; "more signals than can be handled";
        [] => "flooded\n", Status(0)),
    behaviour!("signal_pending", "signal_pending.c", DYNAMIC, false;
        "blocked signals stay pending, also those that faults raise";
        [] => "pending\n", Status(0)),
    behaviour!("signal_order", "signal_order.c", DYNAMIC, false; "queued real-time signals keep their order";
        [] => "taken 10000 10000 10000, wrong 0\n", Status(0)),
    behaviour!("signal_exit", "signal_exit.c", DYNAMIC, false; "signals to the process while its threads end";
        [] => "taken 6000 sum 17997000\n", Status(0)),
    behaviour!("rseq", "rseq.c", DYNAMIC, false;
        "restartable sequences, interrupted by other threads, by signals and by membarrier";
        [] => "rseq: counted 80000, seen inside 0, at the abort handler yes\n", Status(0)),
    behaviour!("sync_signals", "sync_signals.c", ANY_STATIC_FIRST, true;
        "SIGFPE, SIGILL, SIGTRAP, SIGBUS, SIGSEGV with the exact address";
        [] =>
        "signal 8 offset 0\nsignal 4 offset 0\nsignal 5 offset 1\nsignal 7 offset 0\nsignal 11 offset 0\nsignal 11 \
         offset -1\n", Status(0)),
    behaviour!("segv_context", "segv_context.c", ANY_STATIC_FIRST, true;
        "a SIGSEGV handler changes rip and rax, or repairs the cause";
        [] => "faults 4 value 4242 page p\n", Status(0)),
    behaviour!("siglongjmp", "siglongjmp.c", ANY_STATIC_FIRST, true; "leaving handlers by siglongjmp";
        [] => "usr1\nsegv\nusr1\nsegv\n", Status(0)),
    behaviour!("timer_loop", "timer_loop.c", DYNAMIC, false; "a timer gets into `jmp .`";
        [] => "out of the loop\nout of the other\n", Status(0)),
    behaviour!("threads_sequential", "threads_sequential.c", ANY_STATIC_FIRST, true; "threads run one after the other";
        [] => "total 70300\n", Status(0)),
    behaviour!("threads_many", "threads_many.c", DYNAMIC, false; "64 threads at once, mutex, barrier";
        [] => "threads 64 sum 201600\n", Status(0)),
    behaviour!("thread_exit", "thread_exit.c", DYNAMIC, false; "pthread_exit, also of the main thread";
        [] => "cleanup\ndata\nmain has ended\n", Status(7)),
    behaviour!("thread_signal", "thread_signal.c", DYNAMIC, false;
        "pthread_kill, masks and alternate stacks per thread";
        [] => "handled 0 1 0 0, main 0\n", Status(0)),
    behaviour!("main_exits", "main_exits.c", DYNAMIC, false; "the process ends while threads run";
        [] => "leaving\n", Status(3)),
    behaviour!("fork_wait", "fork_wait.c", ANY_STATIC_FIRST, true; "fork, statuses, exec in the child";
        [] => "child\nstatus 23 value 1\nsignal 9\nshell\nstatus 5\n", Status(0)),
    behaviour!("vfork_exec", "vfork_exec.c", ANY_STATIC_FIRST, true; "vfork, exec that succeeds and fails";
        [] => "status 9, exec succeeded\nstatus 127, exec No such file or directory\nstatus 9, exec succeeded\n",
        Status(9)),
    behaviour!("spawn", "spawn.c", ANY_STATIC_FIRST, true; "posix_spawn, ENOENT, signal attributes";
        [] => "spawned\nstatus 4\nmissing: ENOENT\nsignal 10\n", Status(0)),
    behaviour!("exec_self", "exec_self.c", ANY_STATIC_FIRST, true; "exec in the same process, failing and succeeding";
        [] => "failed once\nsecond image\n", Status(6)),
    behaviour!("exec_thread", "exec_thread.c", DYNAMIC, false; "exec by another thread than the first";
        [] => "same process\n", Status(0)),
    behaviour!("exit_status", "exit_status.c", ANY_STATIC_FIRST, true; "exit status, atexit";
        [] => "second\nfirst\n", Status(17);
        ["0"] => "second\nfirst\n", Status(0);
        ["255"] => "second\nfirst\n", Status(255)),
    behaviour!("die_signal", "die_signal.c", ANY_STATIC_FIRST, true; "death by a signal";
        ["segv"] => "dying\n", Signal(11);
        ["abort"] => "dying\n", Signal(6);
        ["kill"] => "dying\n", Signal(9);
        ["term"] => "dying\n", Signal(15);
        ["fpe"] => "dying\n", Signal(8)),
    behaviour!("code_everywhere", "code_everywhere.c", ANY_STATIC_FIRST, true;
        "code beside data, changed by itself, through another mapping, by another process, between mprotects";
        [] =>
        "beside data 20100\nby itself 20100\nneighbours 20500\nthrough another mapping 21099\nby another process \
         520\nSystem V 19900\nbetween protections 20708\n", Status(0)),
    behaviour!("alignment_check", "alignment_check.c", ANY_STATIC_FIRST, true;
        "the AC flag: misaligned accesses raise SIGBUS, nothing else does";
        [] => "sum 333833500, checks 1, faults 1\n", Status(0)),
    behaviour!("jumps_and_contexts", "jumps_and_contexts.c", ANY_STATIC_FIRST, true;
        "setjmp, longjmp, makecontext, swapcontext";
        [] => "sum 5050, callback 78\norder a0b0c0a1b1c1a2b2c2\n", Status(0)),
    behaviour!("timers", "timers.c", DYNAMIC, false;
        "setitimer, timer_create, timerfd, signalfd, sleeps that are interrupted";
        [] => "intervals 1 1 1\nvalue 42 notified 5\nexpirations 1 signal 10\nalarm 1\n", Status(0)),
    behaviour!("cancel", "cancel.c", DYNAMIC, false;
        "pthread_cancel in calls that wait, in a loop, while it is disabled; clean-up handlers";
        [] => "cancelled 12, order 213452134521345\n", Status(0)),
    behaviour!("clocks", "clocks.c", DYNAMIC, false; "time through the vdso and the old fixed addresses";
        [] => "backwards 0, same day 1\nimage 1\nold calls 1\n", Status(0)),
    behaviour!("limits", "limits.c", DYNAMIC, false;
        "small limits of address space, stack, files; memory that runs out";
        [] => "files 3, sizes 4\ndeep 40000\nspace 1, malloc 1, first 0\n", Status(0)),
    behaviour!("seccomp", "seccomp.c" + "seccomp.h", ANY_STATIC_FIRST, true;
        "seccomp filters that answer with errors, across exec";
        ["errors"] =>
        "getppid EDOM, getuid EDOM, getpid allowed\nmmap EXDEV, munmap allowed, fork EXDEV\nsigaction EXDEV, \
         sigprocmask allowed, sigaltstack EXDEV, exec EDOM\n", Status(0);
        ["bad"] =>
        "nothing EINVAL, broken EINVAL, nowhere EFAULT, no program EFAULT, no operation EINVAL, mode 0\n",
        Status(0);
        ["exec"] => "after exec: getppid EXDEV\n", Status(0)),
    behaviour!("seccomp_trap", "seccomp.c" + "seccomp.h", DYNAMIC, false;
        "seccomp filters that raise SIGSYS, with the exact addresses; one of a thread";
        ["trap"] =>
        "getppid 1110, mprotect 1010, sigprocmask 1014, clone 1056, fork 1057\ntraps 1005, in order 1005\n",
        Signal(31);
        ["thread"] => "in the thread EXDEV, outside allowed\n", Status(0)),
    behaviour!("seccomp_narrow", "seccomp_narrow.c" + "seccomp.h", FREESTANDING, false;
        "behind a filter that kills at everything but a few calls";
        [] => "computed\njoined\nafter exec\n", Status(4)),
    behaviour!("transactions", "transactions.c", ANY_STATIC_FIRST, true;
        "transactional memory: xbegin, xend, xabort, xtest";
        [] => "total 499500, inside 0, code 80\n", Status(0)),
    behaviour!("gs", "gs.c", ANY_STATIC_FIRST, false;
        "gs belongs to the program: set in every way, inherited by threads and processes, seen by handlers; \
         `turmoil` until SIGTERM is for attaching";
        ["ways"] =>
        "first 0 0\nset 1 1 1\nstored 77 5\nwritten 1 1\nhandled 1\nrefused 1\nthread 1, here 1\nchild 7, here 1\n\
         child 9, here 1\n", Status(0);
        ["threads"] => "200000 rounds, 120 signals, 0 here, 1\n", Status(0)),
    behaviour!("gs_faults", "gs.c", ANY_STATIC_FIRST, true;
        "faults of operands relative to gs, and of loading gs, are exact; a selector of a local descriptor table";
        ["faults"] =>
        "store 10 1\nadd 18 1\njump 20 1\nstring 40 1\nload 8 1, 1234 4d\nnot canonical 0 80\nselector 0 80\nsame \
         1, 7 handled\n", Status(0);
        ["selectors"] => "selector 0 7, 1 1 1\nwithout 1\n", Status(0)),
    memory!("memory_moves", "memory_moves.s";
        "mov, movzx, movsx, cmov, setcc, movbe, movnti, movdiri, movdir64b, xlat; high bytes, absolute addresses"),
    memory!("memory_addressing", "memory_addressing.s";
        "every base with every index, displacements, rip, addresses of 32 bits"),
    memory!("memory_arithmetic", "memory_arithmetic.s";
        "arithmetic, logic, shifts, mul, div, bmi, crc32 with memory; all widths, flags"),
    memory!("memory_stack", "memory_stack.s"; "push, pop, call, ret, enter, leave, pushf; rsp as data and as base"),
    memory!("memory_atomic", "memory_atomic.s";
        "xchg, xadd, cmpxchg, cmpxchg8b, cmpxchg16b, everything that can be locked"),
    memory!("memory_bits", "memory_bits.s"; "bt, bts, btr, btc far from their operand, bsf, bsr"),
    memory!("memory_strings", "memory_strings.s";
        "string instructions of every width, alone and repeated, both directions"),
    memory!("memory_x87", "memory_x87.s"; "x87 and MMX with memory, environments and states, fxsave"),
    memory!("memory_sse", "memory_sse.s"; "SSE to SSE4.2, AES, SHA with memory, bytes under a mask"),
    memory!("memory_avx", "memory_avx.s"; "AVX, AVX2, FMA, F16C with memory, masked moves, gathers"),
    memory!("memory_avx512", "memory_avx512.s";
        "AVX-512 with memory: masks, broadcasts, compression, gathers, scatters"),
    memory!("memory_state", "memory_state.s"; "xsave, xsavec, xsaveopt, xrstor"),
    memory!("memory_segment", "memory_segment.s"; "operands relative to fs; arch_prctl, wrfsbase, rdfsbase"),
    memory!("memory_gs", "memory_gs.s";
        "operands relative to gs in every form; arch_prctl, wrgsbase, rdgsbase, selectors"),
    memory!("memory_faults", "memory_faults.s";
        "faults in every class, with the context before the instruction, which is repeated"),
    Program {
        name: "race",
        group: Group::Memory,
        purpose: "threads race on one word; what each loads and stores can be checked \
                  (THOUSANDS of instructions, THREADS)",
        variants: ANY_STATIC_FIRST,
        runs: &[
            run(&["1000"], "race: 2 threads, 454 rounds each\n", Exit::Status(0)),
            run(&["1000", "1"], "race: 1 threads, 909 rounds each\n", Exit::Status(0)),
        ],
        sources: &[source!("memory", "race.c"), source!("memory", "race_rounds.inc"), source!("behaviour", "common.h")],
        is_repeatable: false,
    },
];
