//! Attaches to a running process with all of its threads.
//!
//! The recorder stops all threads and makes one of them map the engine and set it up. Then each
//! thread starts in the engine with the state that it had. The engine makes an interrupted system
//! call again. If anything fails, every thread goes on natively.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use entity::ThreadId;
use libc::user_regs_struct;
use wire::{CHILD_FREE, Control, FLAG_ATTACHED, Init, Rseq, SLOT_COUNT};

use crate::follow::SpawnedProcess;
use crate::image::Image;
use crate::inject::{self, Context, InjectError, InjectedRanges, Layout, ThreadPlacement};
use crate::maps;
use crate::ptrace::{Exit, Tracee};
use crate::remote::{self, Remote};
use crate::select::UnknownRoutines;
use crate::setup;
use crate::shared::{SHARED_NAME, Shared};
use crate::state::{self, ThreadState};
use crate::syscall;
use crate::task::{self, Status};
use crate::thread_group::{ThreadGroup, TraceState};

/// A thread that the kernel does not interrupt may take this long to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// An exec, or the exit of a thread, may make an attempt fail.
const ATTEMPTS: u32 = 20;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(3);
/// The bytes of a `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Why the recorder could not attach to a process.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("there is no process {0}")]
    NoProcess(i32),
    #[error("{0} is the number of a thread; its process is {1}")]
    NotAProcess(i32, u64),
    #[error("process {0} has ended already")]
    Ended(i32),
    #[error("process {0} is a part of the kernel")]
    Kernel(i32),
    #[error("process {0} is this recorder itself")]
    Ourselves(i32),
    #[error("process {0} is traced by process {1} already")]
    Traced(i32, u64),
    #[error("process {0} is being recorded already, or was left behind by a recorder that was killed")]
    Recorded(i32),
    #[error("process {0} runs under seccomp, which would not let the recorder's own system calls pass")]
    Seccomp(i32),
    #[error("process {0} is not 64-bit code")]
    Not64Bit(i32),
    #[error("process {0} has shadow stacks, which translated code would violate")]
    ShadowStack(i32),
    #[error("process {0} is stopped")]
    Stopped(i32),
    #[error("process {0} has {1} threads, and {SLOT_COUNT} are the most that can be recorded")]
    TooManyThreads(i32, usize),
    #[error("thread {1} of process {0} does not stop")]
    DoesNotStop(i32, i32),
    #[error("process {0} keeps executing other programs")]
    Executes(i32),
    #[error("process {0} has no routine called {1}")]
    UnknownRoutines(i32, UnknownRoutines),
    #[error("no permission to trace process {0}")]
    NoPermission(i32),
    #[error("process {0} could not be taken over: {1}")]
    Inject(i32, #[source] InjectError),
}

impl AttachError {
    /// Returns whether another attempt may succeed. A thread that is about to exit looks like one
    /// that may not be traced.
    fn is_temporary(&self) -> bool {
        matches!(self, Self::Executes(_) | Self::NoPermission(_) | Self::Inject(..))
    }

    /// Returns what the user could do about the error.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotAProcess(_, process) => format!("use -p {process}"),
            Self::NoPermission(_) => {
                "it may be another user's, or ptrace is restricted: see /proc/sys/kernel/yama/ptrace_scope".into()
            }
            Self::Stopped(process) => format!("`kill -CONT {process}` lets it go on"),
            Self::DoesNotStop(..) => "it waits for a device or for a child made by vfork: try again later".into(),
            Self::UnknownRoutines(_, routines) => routines.hint(),
            Self::Seccomp(_) => "start the program under `trackway record` without the filter".into(),
            _ => return None,
        };
        Some(hint)
    }
}

type Result<T> = std::result::Result<T, AttachError>;

/// Checks what can be seen from outside: whether the process can be attached to.
pub fn check(pid: i32) -> Result<()> {
    let status = Status::of(pid).map_err(|_| AttachError::NoProcess(pid))?;
    if pid.cast_unsigned() == std::process::id() {
        return Err(AttachError::Ourselves(pid));
    }
    match status.number("Tgid") {
        Some(process) if process != pid as u64 => return Err(AttachError::NotAProcess(pid, process)),
        _ => {}
    }
    let is_zombie = status.get("State").is_some_and(|state| state.starts_with(['Z', 'X']));
    if is_zombie && !task::has_any(pid) {
        return Err(AttachError::Ended(pid));
    }
    if status.get("Kthread").is_some_and(|value| value == "1") || (status.get("VmSize").is_none() && !is_zombie) {
        return Err(AttachError::Kernel(pid));
    }
    match status.number("TracerPid") {
        Some(tracer) if tracer != 0 => return Err(AttachError::Traced(pid, tracer)),
        _ => {}
    }
    if status.number("Seccomp").is_some_and(|mode| mode != 0) {
        return Err(AttachError::Seccomp(pid));
    }
    Ok(())
}

/// Attaches to all threads of a process. Calls `prepare` with the threads, in the order of their
/// slots, and with the registers that they would go on with, before any of them goes on.
pub fn attach(
    process: i32,
    image: &Image,
    shared: &Shared,
    prepare: impl FnOnce(&[(Tracee, user_regs_struct)]),
) -> Result<InjectedRanges> {
    let mut attempts = 0;
    let mut group = ThreadGroup::new(process);
    let stopped_threads = loop {
        attempts += 1;
        match stop_threads(&mut group, process) {
            Err(error) if error.is_temporary() && attempts < ATTEMPTS => std::thread::sleep(BETWEEN_ATTEMPTS),
            result => break result?,
        }
    };
    start_recorded(stopped_threads, process, image, shared, prepare)
}

/// Attaches to a waiting child of a captured process. First removes the parts of the engine that it
/// has inherited.
pub fn attach_to_child(
    spawned: &SpawnedProcess,
    image: &Image,
    shared: &Shared,
    prepare: impl FnOnce(&[(Tracee, user_regs_struct)]),
) -> Result<InjectedRanges> {
    let process = spawned.process;
    let failed = |error| AttachError::Inject(process, error);
    let mut group = ThreadGroup::new(process);
    let removed = match group.stop_all(PATIENCE) {
        Ok(true) => remove_inherited_engine(&group, spawned).map_err(failed),
        Ok(false) => Err(AttachError::Ended(process)),
        Err(_) => Err(AttachError::NoPermission(process)),
    };
    let stopped = removed.and_then(|()| {
        spawned.answer(CHILD_FREE);
        check_threads(&group, process).and_then(|gate| stopped_threads(&group, process, gate))
    });
    start_recorded(stopped.inspect_err(|_| group.detach_all())?, process, image, shared, prepare)
}

/// Gives the only thread of a new process its native state and unmaps the engine's memory.
fn remove_inherited_engine(group: &ThreadGroup, spawned: &SpawnedProcess) -> inject::Result<()> {
    let Some((&tid, &TraceState::Stopped { signal, .. })) = group.members.iter().next() else {
        return Err(InjectError::Exited(Exit::Code(0)));
    };
    let tracee = Tracee { tid };
    let stopped = tracee.registers().context("reading registers")?;
    if !spawned.injected.engine.contains(&stopped.rip) {
        return Err(InjectError::System {
            what: "finding the process where it waits",
            error: io::ErrorKind::NotFound.into(),
        });
    }
    let control = spawned.shared.control();
    let state = ThreadState::read(tracee, stopped.gs_base, &control.layout)?;
    let gate = control.layout.gate.load(Ordering::SeqCst);
    let mut remote = Remote::new(tracee, Some(gate), signal)?;
    let InjectedRanges { engine, shared } = &spawned.injected;
    let inherited = shared.start..shared.start + wire::CONTROL_BYTES as u64;
    for range in state::engine_ranges(control).chain([inherited, engine.clone()]) {
        remote.call("munmap", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
    }
    remote.halt()?;
    state.restore_vectors(tracee)?;
    remote.finish_with(&state.native_registers(&stopped), state.mask)
}

/// Starts stopped threads in the engine.
fn start_recorded(
    stopped_threads: Vec<StoppedThread>,
    process: i32,
    image: &Image,
    shared: &Shared,
    prepare: impl FnOnce(&[(Tracee, user_regs_struct)]),
) -> Result<InjectedRanges> {
    let threads: Vec<_> = stopped_threads.iter().map(|thread| (thread.remote.tracee, thread.native)).collect();
    prepare(&threads);
    match start_engine(stopped_threads, process, image, shared) {
        Ok(injected) => Ok(injected),
        Err((error, stopped_threads)) => {
            stopped_threads.into_iter().for_each(StoppedThread::resume_natively);
            Err(AttachError::Inject(process, error))
        }
    }
}

/// Stops all threads. After an error they go on.
fn stop_threads(group: &mut ThreadGroup, process: i32) -> Result<Vec<StoppedThread>> {
    let found = match group.stop_all(PATIENCE) {
        Ok(true) => check_threads(group, process),
        Ok(false) if group.is_gone() => Err(AttachError::Ended(process)),
        Ok(false) if group.has_executed => Err(AttachError::Executes(process)),
        Ok(false) => {
            let awake = group.members.iter().find(|(_, state)| !matches!(state, TraceState::Stopped { .. }));
            Err(AttachError::DoesNotStop(process, awake.map_or(process, |(&tid, _)| tid)))
        }
        Err(_) => Err(AttachError::NoPermission(process)),
    };
    found.and_then(|gate| stopped_threads(group, process, gate)).inspect_err(|_| group.detach_all())
}

/// Checks the stopped threads before anything is changed. Returns the address at which they can
/// make system calls.
fn check_threads(group: &ThreadGroup, process: i32) -> Result<Option<u64>> {
    let failed = |error| AttachError::Inject(process, error);
    let Some(&tid) = group.members.keys().next() else { return Err(AttachError::Ended(process)) };
    let mappings = maps::of_process(tid).context("reading the memory map").map_err(failed)?;
    if mappings.iter().any(|mapping| mapping.path.contains(SHARED_NAME)) {
        return Err(AttachError::Recorded(process));
    }
    if group.members.len() > SLOT_COUNT {
        return Err(AttachError::TooManyThreads(process, group.members.len()));
    }
    for (&tid, state) in &group.members {
        if matches!(state, TraceState::Stopped { is_group: true, .. }) {
            return Err(AttachError::Stopped(process));
        }
        let registers = Tracee { tid }.registers().context("reading registers").map_err(failed)?;
        if registers.cs != inject::CODE_SEGMENT_64 {
            return Err(AttachError::Not64Bit(process));
        }
        let status = Status::of(tid).context("reading the status").map_err(failed)?;
        if status.get("x86_Thread_features").is_some_and(|features| features.contains("shstk")) {
            return Err(AttachError::ShadowStack(process));
        }
    }
    Ok(remote::gate(Tracee { tid }, &mappings))
}

/// A stopped thread that is to start in the engine.
struct StoppedThread {
    remote: Remote,
    /// The registers with which it would go on natively.
    native: user_regs_struct,
    call: Option<syscall::InterruptedCall>,
    rseq: Rseq,
}

fn stopped_threads(group: &ThreadGroup, process: i32, gate: Option<u64>) -> Result<Vec<StoppedThread>> {
    let mut stopped_threads = Vec::new();
    // The main thread is the first one of the recording, if it is alive.
    let first = group.members.get_key_value(&process);
    let others = group.members.iter().filter(|&(&tid, _)| tid != process);
    for (&tid, state) in first.into_iter().chain(others) {
        let &TraceState::Stopped { signal, .. } = state else { continue };
        match StoppedThread::new(Tracee { tid }, gate, signal) {
            Ok(thread) => stopped_threads.push(thread),
            Err(error) => {
                stopped_threads
                    .into_iter()
                    .for_each(|thread| drop(thread.remote.finish_with(&thread.native, thread.remote.mask)));
                return Err(AttachError::Inject(process, error));
            }
        }
    }
    Ok(stopped_threads)
}

impl StoppedThread {
    fn new(tracee: Tracee, gate: Option<u64>, signal: i32) -> inject::Result<Self> {
        let registers = tracee.registers().context("reading registers")?;
        // Before signals are blocked: pending signals decide whether a call has ended.
        let call = syscall::interrupted_call_of(tracee, &registers, signal);
        let rseq = tracee.rseq();
        let mut native = syscall::resumed_registers(&registers, call);
        if let Some(abort) = critical_section(tracee, rseq, native.rip) {
            native.rip = abort;
        }
        let remote = Remote::new(tracee, gate, signal)?;
        Ok(Self { remote, native, call, rseq })
    }

    /// Returns the initial values of the thread for the engine.
    fn init(&self, layout: &Layout, placement: ThreadPlacement) -> inject::Result<Init> {
        let tracee = self.remote.tracee;
        let registers =
            self.call.map_or(self.native, |call| syscall::restarted_registers(&self.remote.registers, call));
        let vectors = tracee.vectors().context("reading registers")?;
        let is_syscall = || {
            let mut code = [0; SYSCALL.len()];
            tracee.read(registers.rip, &mut code).is_ok() && code == SYSCALL
        };
        let init = inject::initial_values(tracee, &registers, layout, placement)?;
        Ok(Init {
            flags: init.flags | FLAG_ATTACHED,
            interrupted: self.call.filter(|_| is_syscall()).map_or(0, |call| call.code),
            mask: self.remote.mask,
            rseq: self.rseq,
            mxcsr: vectors.mxcsr,
            vectors: wide(&vectors.xmm_space),
            ..init
        })
    }

    /// Lets the thread go on natively.
    fn resume_natively(mut self) {
        // Requests fail only if the thread is dying.
        let _ = self.remote.halt();
        let _ = self.remote.finish_with(&self.native, self.remote.mask);
        let _ = self.remote.detach();
    }

    /// Lets the thread go on in the engine.
    fn start(self, registers: &user_regs_struct) -> inject::Result<()> {
        self.remote.finish_with(registers, u64::MAX)?;
        self.remote.detach()
    }
}

/// Returns the abort address of the restartable sequence in whose critical section the thread is.
/// The stop has interrupted the section.
fn critical_section(tracee: Tracee, rseq: Rseq, pc: u64) -> Option<u64> {
    const SECTION: u64 = 8;
    if rseq == Rseq::default() {
        return None;
    }
    let word = |address: u64| {
        let mut bytes = [0; 8];
        tracee.read(address, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let section = word(rseq.address + SECTION).filter(|&section| section != 0)?;
    let (start, length, abort) = (word(section + 8)?, word(section + 16)?, word(section + 24)?);
    (pc.wrapping_sub(start) < length).then_some(abort)
}

/// Returns vector registers as pairs of words.
fn wide(space: &[u32; 64]) -> [[u64; 2]; 16] {
    let word = |at: usize| u64::from(space[at]) | u64::from(space[at + 1]) << 32;
    std::array::from_fn(|register| [word(4 * register), word(4 * register + 2)])
}

type StartFailure = (InjectError, Vec<StoppedThread>);

/// Maps the engine, starts it in the first thread and then in the others. With an error, returns
/// the threads that have not been started.
fn start_engine(
    mut stopped_threads: Vec<StoppedThread>,
    process: i32,
    image: &Image,
    shared: &Shared,
) -> std::result::Result<InjectedRanges, StartFailure> {
    let injected = match map_engine(&mut stopped_threads, process, image, shared) {
        Ok(injected) => injected,
        Err(error) => return Err((error, stopped_threads)),
    };
    let (layout, injected) = injected;
    if let Some(first) = stopped_threads.first_mut() {
        let entry = layout.entry(image, &first.remote.registers);
        if let Err(error) = setup::run(&mut first.remote, &entry, &layout, shared.control()) {
            return Err((error, stopped_threads));
        }
    }
    let mut rest = stopped_threads.into_iter();
    if let Some(first) = rest.next()
        && let Err(error) = setup::release(first.remote, shared.control())
    {
        return Err((error, rest.collect()));
    }
    for (index, thread) in (1..).zip(rest) {
        // A thread that cannot be started is dying.
        let _ = start_adopted(thread, &layout, index, shared.control());
    }
    Ok(injected)
}

/// Maps the engine and writes all initial values. Undoes that after an error.
fn map_engine(
    stopped_threads: &mut [StoppedThread],
    process: i32,
    image: &Image,
    shared: &Shared,
) -> inject::Result<(Layout, InjectedRanges)> {
    let count = stopped_threads.len();
    let Some(first) = stopped_threads.first_mut() else { return Err(InjectError::Exited(Exit::Code(0))) };
    let tid = first.remote.tracee.tid;
    let mappings = maps::of_process(tid).context("reading the memory map")?;
    let layout = inject::prepare(&mut first.remote, image, shared, &mappings, count, None)?;
    let injected = layout.injected_ranges();
    match write_initial_values(stopped_threads, process, &layout) {
        Ok(()) => Ok((layout, injected)),
        Err(error) => {
            if let Some(first) = stopped_threads.first_mut() {
                inject::remove(&mut first.remote, &injected)?;
            }
            Err(error)
        }
    }
}

/// Writes the initial values of every thread for the engine.
fn write_initial_values(stopped_threads: &mut [StoppedThread], process: i32, layout: &Layout) -> inject::Result<()> {
    let count = stopped_threads.len() as u32;
    for (index, thread) in (0..).zip(stopped_threads) {
        let placement = ThreadPlacement { thread: ThreadId::new(index), slot: index, process, base: None };
        let init = thread.init(layout, placement)?;
        let init = Init { thread_count: count, ..init };
        let address = layout.init + u64::from(index) * size_of::<Init>() as u64;
        thread.remote.tracee.write(address, inject::as_bytes(&init)).context("writing to the target")?;
    }
    Ok(())
}

/// Starts a further thread, for which the engine has made a state.
fn start_adopted(thread: StoppedThread, layout: &Layout, index: u64, control: &Control) -> inject::Result<()> {
    let tracee = thread.remote.tracee;
    let word = |address: u64| {
        let mut bytes = [0; 8];
        tracee.read(address, &mut bytes).context("reading from the target")?;
        Ok(u64::from_le_bytes(bytes))
    };
    let order = Ordering::SeqCst;
    let init = layout.init + index * size_of::<Init>() as u64;
    let state = word(init + std::mem::offset_of!(Init, state) as u64)?;
    let stack_top = word(state + u64::from(control.layout.engine_stack.load(order)))?;
    let entry = inject::start_at(control.layout.adopt.load(order), state, stack_top, &thread.remote.registers);
    thread.start(&entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vector_registers_are_pairs() {
        let space: [u32; 64] = std::array::from_fn(|index| index as u32);
        assert_eq!(wide(&space)[1], [4 | 5 << 32, 6 | 7 << 32]);
    }

    #[test]
    fn refusals_before_anything_is_done() {
        let own = std::process::id().cast_signed();
        assert!(matches!(check(own), Err(AttachError::Ourselves(_))));
        assert!(matches!(check(0x3fff_ffff), Err(AttachError::NoProcess(_))));
    }
}
