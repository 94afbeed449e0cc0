//! Captures one process from its first instruction to its last: a loop drains the rings, follows
//! the process from image to image, notices its exit, and detaches from it when a limit is reached.
//!
//! All ptrace requests come from the thread that runs the loop. Between injection, exec and
//! detaching, no thread of the target is traced by ptrace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use entity::ThreadId;
use libc::user_regs_struct;
use rustix::event::{PollFd, PollFlags};
use wire::{
    Control, DETACH_NONE, DETACH_TOGETHER, EXEC_FAILED, EXEC_IDLE, EXEC_READY, EXEC_REFUSED, EXEC_WANTED, SLOT_FREE,
    SLOT_LIVE,
};

use crate::attach::{self, AttachError};
use crate::detach::{self, DetachOutcome};
use crate::drain::{Counters, Drain};
use crate::error::reason;
use crate::exec::{self, Intent};
use crate::follow::{self, SpawnedProcess};
use crate::host;
use crate::image::Image;
use crate::inject::{self, InjectError, InjectedRanges, ThreadPlacement};
use crate::maps;
use crate::older_calls::StackFinder;
use crate::ptrace::{self, Exit, Stop, Tracee};
use crate::select::Selection;
use crate::shared::{self, LivenessLock, Shared};
use crate::sink::Sink;
use crate::task;
use crate::thread_group::ThreadGroup;

/// Passes over empty rings before the recorder sleeps.
const SPINS: u32 = 50;
/// The longest sleep. Every event rings the doorbell; the limit is for a target that was killed
/// while it rang.
const SLEEP: Duration = Duration::from_millis(50);
/// The longest sleep while a thread is attached: its stops do not ring the doorbell.
const SLEEP_ATTACHED: Duration = Duration::from_millis(1);

/// The slot of the first thread of an image.
const FIRST_SLOT: u32 = 0;

/// Time between two attempts to detach from a target.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two checks of the number of bytes written.
const SIZE_INTERVAL: Duration = Duration::from_millis(10);
/// The longest time to wait until all child processes are followed.
const CHILDREN_TIME: Duration = Duration::from_secs(5);
/// The longest time to wait for threads that detach separately.
const SEPARATE_DETACH_TIME: Duration = Duration::from_secs(1);

/// When to detach from a target before it exits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// After this time.
    pub time: Option<Duration>,
    /// When the sink has written this many bytes.
    pub bytes: Option<u64>,
}

/// A process to capture.
#[derive(Clone, Copy)]
pub enum SessionTarget<'a> {
    /// A child of the recorder, stopped at its exec event.
    Launched { tracee: Tracee, pidfd: BorrowedFd<'a> },
    /// A process that is running.
    Running { process: i32, pidfd: BorrowedFd<'a> },
    /// A process that has executed another program and is stopped at its exec event. It is not a
    /// child of the recorder.
    Executed { tracee: Tracee, pidfd: BorrowedFd<'a> },
    /// A child of a captured process. It waits for the recorder.
    Spawned { spawned: &'a SpawnedProcess, pidfd: BorrowedFd<'a> },
}

impl SessionTarget<'_> {
    fn process(&self) -> i32 {
        match *self {
            Self::Launched { tracee, .. } | Self::Executed { tracee, .. } => tracee.tid,
            Self::Running { process, .. } => process,
            Self::Spawned { spawned, .. } => spawned.process,
        }
    }

    fn pidfd(&self) -> BorrowedFd<'_> {
        match *self {
            Self::Launched { pidfd, .. }
            | Self::Running { pidfd, .. }
            | Self::Executed { pidfd, .. }
            | Self::Spawned { pidfd, .. } => pidfd,
        }
    }
}

/// Why nothing could be captured.
#[derive(Debug)]
pub enum StartError {
    Inject(InjectError),
    Attach(AttachError),
}

/// How a process left its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    Exit(Exit),
    /// It exited; only its parent knows how.
    Unknown,
    /// It runs on natively.
    Detached,
}

/// The result of a session.
#[derive(Debug)]
pub struct SessionReport<E> {
    pub end: SessionEnd,
    pub counters: Counters,
    pub warnings: Vec<String>,
    /// The sink's error. Later events were discarded.
    pub failure: Option<E>,
}

/// What a session needs beside its target and its sink.
#[derive(Clone, Copy)]
pub struct SessionOptions<'a> {
    pub image: &'a Image,
    pub shared: &'a Arc<Shared>,
    pub selection: &'a Selection,
    pub limits: Limits,
    /// Whether the user has ended the recording.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Takes child processes. `None`: they are not followed.
    pub follow: Option<&'a dyn Fn(SpawnedProcess)>,
}

/// Injects the engine into a process, or attaches to it, and captures it until it exits or a limit
/// is reached.
pub fn record<S: Sink>(
    target: SessionTarget,
    sink: S,
    session_options: SessionOptions,
) -> Result<SessionReport<S::Error>, StartError> {
    let SessionOptions { image, shared, selection, limits, is_stopped, follow } = session_options;
    shared.control().follow.store(u32::from(follow.is_some()), Ordering::SeqCst);
    let exited = AtomicBool::new(false);
    let (done, is_over) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map(|(is_over, done)| (done, is_over))
        .map_err(|error| StartError::Inject(InjectError::System { what: "making a pipe", error: error.into() }))?;
    std::thread::scope(|scope| {
        // Inside of the scope: after a panic, the target has to learn that the recorder no longer
        // reads, before the recorder waits for its exit.
        let _lock = LivenessLock::acquire(shared)
            .map_err(|error| StartError::Inject(InjectError::System { what: "making the sign of life", error }))?;
        // Closing the pipe ends `watch`.
        let _done = done;
        let mut drain = Drain::new(shared, sink);
        drain.select(selection, target.process());
        let mut session = Session {
            shared,
            image,
            process: target.process(),
            is_child: matches!(target, SessionTarget::Launched { .. }),
            drain,
            injected: None,
            group: ThreadGroup::new(target.process()),
            attached: None,
            watches_calls: false,
            end: None,
            limits,
            start: Instant::now(),
            next_size_check: Instant::now(),
            is_detaching: false,
            next_attempt: Instant::now(),
            is_stopped,
            follow,
        };
        match target {
            SessionTarget::Launched { tracee, .. } | SessionTarget::Executed { tracee, .. } => {
                let started = session.start_image(tracee);
                match started {
                    Ok(()) => {}
                    Err(InjectError::Exited(exit)) => session.end = Some(SessionEnd::Exit(exit)),
                    Err(InjectError::SetUp(reason)) => {
                        session.drain.warn(format!("the program is not recorded: {reason}"));
                    }
                    Err(error) => return Err(StartError::Inject(error)),
                }
            }
            SessionTarget::Running { .. } => session.attach_process(None).map_err(StartError::Attach)?,
            SessionTarget::Spawned { spawned, .. } => {
                session.attach_process(Some(spawned)).map_err(StartError::Attach)?
            }
        }
        scope.spawn(|| watch(target.pidfd(), is_over.as_fd(), &exited, shared.control()));
        let mut end = session.run(&exited);
        session.finish_children();
        if end == SessionEnd::Unknown {
            end = host::exit_of(target.pidfd()).map_or(end, SessionEnd::Exit);
        }
        session.drain.finish_image();
        session.warn_of_notices();
        let (counters, warnings, failure) = session.drain.finish();
        Ok(SessionReport { end, counters, warnings, failure })
    })
}

/// Rings the doorbell when the process has exited. Returns early when `is_over` is closed.
fn watch(process: BorrowedFd, is_over: BorrowedFd, exited: &AtomicBool, control: &Control) {
    let mut files = [PollFd::new(&process, PollFlags::IN), PollFd::new(&is_over, PollFlags::IN)];
    while rustix::event::poll(&mut files, None).is_err() {}
    if files[0].revents().is_empty() {
        return;
    }
    exited.store(true, Ordering::SeqCst);
    control.doorbell.fetch_add(1, Ordering::SeqCst);
    shared::wake(&control.doorbell);
}

struct Session<'a, S: Sink> {
    shared: &'a Arc<Shared>,
    image: &'a Image,
    process: i32,
    /// Whether the process is a child of the recorder, which can then wait for its status.
    is_child: bool,
    drain: Drain<'a, S>,
    /// Where the engine is, if it is injected.
    injected: Option<InjectedRanges>,
    /// Threads that did not stop in an earlier attempt to detach.
    group: ThreadGroup,
    /// The thread that is about to exec.
    attached: Option<Tracee>,
    /// Whether the attached thread stops at system calls, so that the recorder sees its exec before
    /// it happens.
    watches_calls: bool,
    end: Option<SessionEnd>,
    limits: Limits,
    start: Instant,
    next_size_check: Instant,
    /// The recorder is detaching from the target.
    is_detaching: bool,
    next_attempt: Instant,
    is_stopped: &'a dyn Fn() -> bool,
    follow: Option<&'a dyn Fn(SpawnedProcess)>,
}

impl<S: Sink> Session<'_, S> {
    fn run(&mut self, exited: &AtomicBool) -> SessionEnd {
        let mut idle = 0;
        loop {
            let progress = self.drain.drain_once();
            self.handle_exec_request();
            self.follow_children();
            if !self.group.members.is_empty() {
                self.group.detach_stopped();
                self.end = self.end.or(self.group.exit.map(SessionEnd::Exit));
            }
            let has_exited = exited.swap(false, Ordering::SeqCst);
            if has_exited || idle > SPINS {
                self.poll_process();
            }
            if has_exited && !self.is_child {
                self.end.get_or_insert(SessionEnd::Unknown);
            }
            if self.end.is_none() && self.should_detach() {
                self.detach_target();
            }
            if let Some(end) = self.end {
                return end;
            }
            idle = if progress { 0 } else { idle + 1 };
            if idle > SPINS {
                self.sleep(exited);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn sleep(&mut self, exited: &AtomicBool) {
        let is_tracing = self.attached.is_some() || !self.group.members.is_empty();
        let mut timeout = if is_tracing { SLEEP_ATTACHED } else { SLEEP };
        if let Some(time) = self.limits.time {
            timeout = timeout.min(time.saturating_sub(self.start.elapsed()));
        }
        if self.is_detaching {
            timeout = timeout.min(RETRY_INTERVAL);
        }
        let control = self.shared.control();
        let attached = self.attached.is_some();
        self.drain.sleep(timeout, || {
            let waiting = match control.exec_state.load(Ordering::SeqCst) {
                EXEC_WANTED => !attached,
                EXEC_FAILED => true,
                _ => false,
            };
            waiting || exited.load(Ordering::SeqCst) || follow::is_any_waiting(control)
        });
    }

    /// Returns whether a limit is reached, the user or the engine has asked for the end, or the
    /// sink has failed.
    fn should_detach(&mut self) -> bool {
        if self.is_detaching {
            return true;
        }
        let is_requested =
            self.shared.control().detach.load(Ordering::SeqCst) != DETACH_NONE || self.drain.has_failed();
        let now = Instant::now();
        let late = self.limits.time.is_some_and(|time| now.duration_since(self.start) >= time);
        self.is_detaching = is_requested || late || self.is_too_large(now) || (self.is_stopped)();
        self.is_detaching
    }

    fn is_too_large(&mut self, now: Instant) -> bool {
        let Some(limit) = self.limits.bytes else { return false };
        if now < self.next_size_check {
            return false;
        }
        self.next_size_check = now + SIZE_INTERVAL;
        self.drain.bytes() >= limit
    }

    /// Tries to bring all threads of the target back to native code.
    fn detach_target(&mut self) {
        let Some(injected) = &self.injected else {
            self.end = Some(SessionEnd::Detached);
            return;
        };
        // An exec that has begun completes first; no other one begins.
        if Instant::now() < self.next_attempt {
            return;
        }
        self.shared.control().detach.store(DETACH_TOGETHER, Ordering::SeqCst);
        if self.attached.is_some() {
            return;
        }
        let target = detach::DetachTarget { process: self.process, shared: self.shared, injected };
        let drain = &mut self.drain;
        match detach::detach(&target, &mut self.group, &mut || _ = drain.drain_once()) {
            DetachOutcome::Complete { slots, problem } => {
                let tsc = host::tsc();
                slots.into_iter().for_each(|(slot, bytes)| self.drain.take_detached(slot, bytes, tsc));
                if let Some(problem) = problem {
                    self.drain.warn(format!("not everything of the recorder is out of the program: {problem}"));
                }
                self.end = Some(SessionEnd::Detached);
            }
            DetachOutcome::Executed => self.end = Some(SessionEnd::Detached),
            DetachOutcome::Exited(exit) => self.end = exit.map(SessionEnd::Exit).or(self.end),
            DetachOutcome::Deferred => self.next_attempt = Instant::now() + RETRY_INTERVAL,
            DetachOutcome::Partial => {
                self.drain.warn("threads of the program did not stop: the recorder's code stays in its memory");
                let deadline = Instant::now() + SEPARATE_DETACH_TIME;
                while Instant::now() < deadline {
                    self.drain.drain_once();
                    std::thread::sleep(SLEEP_ATTACHED);
                }
                self.end = Some(SessionEnd::Detached);
            }
        }
    }

    /// Attaches to a running process.
    fn attach_process(&mut self, spawned: Option<&SpawnedProcess>) -> Result<(), AttachError> {
        let control = self.shared.control();
        let mut finder = self.stack_finder();
        let mut older_calls = Vec::new();
        let prepare = |threads: &[(Tracee, user_regs_struct)]| {
            for ((slot, thread), (tracee, registers)) in control.slots.iter().zip(0_u32..).zip(threads) {
                slot.thread.store(thread, Ordering::Relaxed);
                slot.os_tid.store(task::own_number(tracee.tid), Ordering::Relaxed);
                slot.parent.store(u32::MAX, Ordering::Relaxed);
                slot.state.store(SLOT_LIVE, Ordering::SeqCst);
                older_calls.extend(finder.as_mut().map(|finder| (thread, finder.frames_of(*tracee, registers))));
            }
            control.next_thread.store(threads.len() as u32, Ordering::SeqCst);
        };
        self.deliver_modules();
        let injected = match spawned {
            Some(spawned) => attach::attach_to_child(spawned, self.image, self.shared, prepare)?,
            None => attach::attach(self.process, self.image, self.shared, prepare)?,
        };
        for (thread, frames) in older_calls {
            self.drain.set_older_calls(ThreadId::new(thread), &frames);
        }
        self.injected = Some(injected);
        self.start = Instant::now();
        Ok(())
    }

    /// Prepares to find the call stacks of the process, before its threads are stopped; `None` if
    /// they are not recorded.
    fn stack_finder(&self) -> Option<StackFinder> {
        if !self.drain.follows_calls() {
            return None;
        }
        let mappings = maps::of_process(task::any(self.process)).unwrap_or_default();
        Some(StackFinder::new(self.process, &mappings))
    }

    /// Hands over the child processes that wait.
    fn follow_children(&mut self) {
        let (Some(follow), Some(injected)) = (self.follow, &self.injected) else { return };
        let control = self.shared.control();
        for index in follow::waiting(control) {
            if let Some(spawned) = SpawnedProcess::take(self.shared, index, injected, self.process) {
                follow(spawned);
            }
        }
        if control.lost_children.load(Ordering::SeqCst) != 0 {
            self.drain.warn("so many processes were made at once that some could not be followed");
        }
    }

    /// Waits until no child process needs the shared memory any more.
    fn finish_children(&mut self) {
        let deadline = Instant::now() + CHILDREN_TIME;
        while follow::is_any_pending(self.shared.control()) && Instant::now() < deadline {
            self.follow_children();
            std::thread::sleep(SLEEP_ATTACHED);
        }
    }

    /// Delivers the modules that are mapped. The engine has to know which code is selected before
    /// it translates any.
    fn deliver_modules(&mut self) {
        let tsc = host::tsc();
        let mappings = maps::of_process(task::any(self.process)).unwrap_or_default();
        let modules = mappings.iter().filter(|mapping| mapping.is_module());
        self.drain.start_image(modules.map(|mapping| mapping.module(tsc)));
    }

    /// Handles a stop or the exit of the process.
    fn poll_process(&mut self) {
        if let Some(stop) = ptrace::poll(self.process) {
            self.handle_stop(Tracee { tid: self.process }, stop);
        }
    }

    fn handle_exec_request(&mut self) {
        let control = self.shared.control();
        match (control.exec_state.load(Ordering::SeqCst), self.attached) {
            (EXEC_WANTED, None) => self.attach(control.exec_tid.load(Ordering::SeqCst)),
            (EXEC_FAILED, attached) => {
                if let Some(tracee) = attached {
                    self.detach_thread(tracee);
                }
                self.answer_exec(EXEC_IDLE);
            }
            (_, Some(tracee)) => {
                if let Some(stop) = ptrace::poll(tracee.tid) {
                    self.handle_stop(tracee, stop);
                }
                // After exec, the thread has the number of the process.
                if self.attached.is_some() && tracee.tid != self.process {
                    self.poll_process();
                }
            }
            _ => {}
        }
    }

    fn answer_exec(&self, state: u32) {
        let control = self.shared.control();
        control.exec_tid.store(0, Ordering::SeqCst);
        control.exec_state.store(state, Ordering::SeqCst);
        shared::wake(&control.exec_state);
    }

    /// Attaches to the thread with this number, as the target sees it.
    fn attach(&mut self, number: u32) {
        if number == 0 {
            // The thread has asked for an exec, but not stored its number yet.
            return;
        }
        let control = self.shared.control();
        let is_forbidden = control.notices.load(Ordering::SeqCst) & wire::NOTICE_SECCOMP_EXEC != 0;
        if control.detach.load(Ordering::SeqCst) != 0 || is_forbidden {
            self.answer_exec(EXEC_REFUSED);
            return;
        }
        match self.try_to_attach(number) {
            Ok(tracee) => {
                self.attached = Some(tracee);
                self.answer_exec(EXEC_READY);
            }
            Err(error) => {
                let reason = reason(&error);
                self.drain.warn(format!("the program after exec is not recorded: attaching failed ({reason})"));
                self.answer_exec(EXEC_REFUSED);
            }
        }
    }

    /// Adds warnings for what the engine has noticed.
    fn warn_of_notices(&mut self) {
        const SENTENCES: [(u32, &str); 4] = [
            (
                wire::NOTICE_SECCOMP_STRICT,
                "the program asked for seccomp's strict mode, which was refused: it would forbid the recording",
            ),
            (
                wire::NOTICE_SECCOMP_LONG,
                "the program's seccomp filter was refused: it leaves no room for what the recording adds to it",
            ),
            (wire::NOTICE_SECCOMP_EXEC, "the program after exec is not recorded: a seccomp filter forbids it"),
            (wire::NOTICE_DISPATCH, "the program asked for its system calls to become signals, which was refused"),
        ];
        let failure = self.shared.control().failure.load(Ordering::SeqCst);
        if failure != 0 {
            let reason = describe_failure(failure);
            self.drain.warn(format!("recording ended early, the program went on without it: {reason}"));
        }
        let notices = self.shared.control().notices.load(Ordering::SeqCst);
        for (notice, sentence) in SENTENCES {
            if notices & notice != 0 {
                self.drain.warn(sentence);
            }
        }
    }

    /// Attaches to a thread of the target, which waits for an answer before it calls exec.
    fn try_to_attach(&mut self, number: u32) -> io::Result<Tracee> {
        let tid = task::thread_with_own_number(self.process, number).ok_or(io::ErrorKind::NotFound)?;
        let tracee = Tracee::seize(tid)?;
        // Under an ordinary user's ptrace, set-uid programs lose their privileges. The recorder has
        // to detach before their exec.
        self.watches_calls = !rustix::process::geteuid().is_root();
        if self.watches_calls {
            tracee.interrupt()?;
            match tracee.wait()? {
                Stop::Exited(_) => return Err(io::ErrorKind::NotFound.into()),
                Stop::Signal(signal) => tracee.resume_to_syscall(signal)?,
                _ => tracee.resume_to_syscall(0)?,
            }
        }
        Ok(tracee)
    }

    /// Handles a stop of the attached thread at a system call.
    fn handle_syscall_stop(&mut self, tracee: Tracee) {
        match exec::intent(tracee, self.process) {
            Intent::Other => drop(tracee.resume_to_syscall(0)),
            Intent::Exec => {
                self.watches_calls = false;
                drop(tracee.resume(0));
            }
            Intent::PrivilegedExec(path) => {
                let path = path.display();
                self.drain.warn(format!("{path} runs with other privileges than yours after exec, hence unrecorded"));
                self.attached = None;
                drop(tracee.detach(0));
            }
        }
    }

    /// Detaches from a thread whose exec has failed and which waits for that.
    fn detach_thread(&mut self, tracee: Tracee) {
        self.attached = None;
        if tracee.interrupt().is_err() {
            return;
        }
        match tracee.wait() {
            Ok(Stop::Signal(signal)) => drop(tracee.detach(signal)),
            Ok(Stop::Exited(exit)) => self.handle_exit(tracee, exit),
            _ => drop(tracee.detach(0)),
        }
    }

    /// Handles a stop. If a request fails, the thread is dying; the next wait says so.
    fn handle_stop(&mut self, tracee: Tracee, stop: Stop) {
        match stop {
            Stop::Exec => self.change_image(Tracee { tid: self.process }),
            Stop::Exited(exit) => self.handle_exit(tracee, exit),
            Stop::Syscall if self.attached == Some(tracee) => self.handle_syscall_stop(tracee),
            Stop::Group(_) => drop(tracee.listen()),
            Stop::Signal(signal) => self.resume(tracee, signal),
            Stop::Syscall | Stop::Other => self.resume(tracee, 0),
        }
    }

    fn resume(&self, tracee: Tracee, signal: i32) {
        drop(if self.watches_calls { tracee.resume_to_syscall(signal) } else { tracee.resume(signal) });
    }

    fn handle_exit(&mut self, tracee: Tracee, exit: Exit) {
        if tracee.tid == self.process {
            self.end = Some(SessionEnd::Exit(exit));
        }
        if self.attached == Some(tracee) {
            self.attached = None;
            self.answer_exec(EXEC_IDLE);
        }
    }

    /// Handles a new image of the process. All threads of the old one but this are dead.
    fn change_image(&mut self, tracee: Tracee) {
        self.attached = None;
        // The new image makes shared memory of its own: no child may wait in the old one any more.
        self.finish_children();
        self.injected = None;
        self.drain.finish_image();
        self.drain.next_image();
        self.answer_exec(EXEC_IDLE);
        if self.shared.control().detach.load(Ordering::SeqCst) != 0 {
            drop(tracee.detach(0));
            return;
        }
        match self.start_image(tracee) {
            Ok(()) => {}
            Err(InjectError::Exited(exit)) => self.end = Some(SessionEnd::Exit(exit)),
            Err(error) => {
                self.drain.warn(format!("the program after exec is not recorded: {error}"));
                drop(tracee.detach(0));
            }
        }
    }

    /// Sets up the first slot and injects the engine.
    fn start_image(&mut self, tracee: Tracee) -> Result<(), InjectError> {
        let control = self.shared.control();
        let slot = &control.slots[FIRST_SLOT as usize];
        slot.thread.store(ThreadId::FIRST.get(), Ordering::Relaxed);
        slot.os_tid.store(task::own_number(self.process), Ordering::Relaxed);
        slot.parent.store(u32::MAX, Ordering::Relaxed);
        slot.state.store(SLOT_LIVE, Ordering::SeqCst);
        control.next_thread.fetch_max(ThreadId::FIRST.get() + 1, Ordering::SeqCst);
        self.deliver_modules();
        let is_filtered = control.notices.load(Ordering::SeqCst) & wire::NOTICE_FILTERED != 0;
        let base = is_filtered.then(|| control.engine_start.load(Ordering::SeqCst));
        let placement = ThreadPlacement { thread: ThreadId::FIRST, slot: FIRST_SLOT, process: self.process, base };
        let injected = inject::inject(tracee, self.image, self.shared, placement)
            .inspect_err(|_| slot.state.store(SLOT_FREE, Ordering::SeqCst))?;
        self.injected = Some(injected);
        Ok(())
    }
}

/// Describes one of the `FAILURE_*`, for which the engine could not go on.
pub fn describe_failure(failure: u32) -> &'static str {
    match failure {
        wire::FAILURE_NO_ROOM => "there was no room for translated code near the program's code",
        wire::FAILURE_NO_MEMORY => "there was no memory left for the recorder's part in the process",
        wire::FAILURE_TOO_MANY_THREADS => "it has more threads than can be recorded (4096)",
        wire::FAILURE_UNREADABLE => "it has code that can be executed but not read",
        wire::FAILURE_KILLED_CHILD => {
            "a child that it had made by vfork was killed while the recorder's part was at work in it"
        }
        _ => "the recorder's part in the process failed; please report this",
    }
}
