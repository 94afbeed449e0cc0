//! Follows the child processes of a captured process: each gets a thread of the recorder and a
//! sink.
//!
//! A [`SpawnedProcess`] waits in the engine of its parent (see `wire::Child`). The recorder
//! attaches to a child that has a copy of its parent's memory. It only watches a child that shares
//! the memory, until the child executes another program; it injects an engine into that as after a
//! launch. The sinks come from a [`SinkFactory`], so that nothing here knows where events go.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use entity::Tsc;
use rustix::process::{Pid, PidfdFlags};
use trace::{Exit, ProcessInfo, Recording};
use wire::{CHILD_GOES, CHILD_MADE, CHILD_SHARES, CHILD_TAKEN, CHILD_WAITS, Control};

use crate::exec::{self, Intent};
use crate::host::{self, Calibration};
use crate::inject::InjectedRanges;
use crate::ptrace::{self, Stop, Tracee};
use crate::session::{self, Limits, SessionOptions, SessionReport, StartError};
use crate::shared::{self, SEGMENT_NAME, SHARED_NAME, Shared};
use crate::sink::Sink;
use crate::{CaptureOptions, Target, maps, task};

/// Time between two polls of a process that has not executed another program yet.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the indices in `Control::children` of processes that wait for the recorder.
pub fn waiting(control: &Control) -> impl Iterator<Item = usize> + use<'_> {
    let is_waiting = |state: u32| matches!(state, CHILD_WAITS | CHILD_SHARES);
    let children = control.children.iter().enumerate();
    children.filter(move |(_, child)| is_waiting(child.state.load(Ordering::SeqCst))).map(|(index, _)| index)
}

pub fn is_any_waiting(control: &Control) -> bool {
    waiting(control).next().is_some()
}

/// Returns whether a child process needs an answer, is being attached to, or has only just been
/// made: its parent may exit before it executes anything.
pub fn is_any_pending(control: &Control) -> bool {
    let is_pending = |state: u32| matches!(state, CHILD_MADE | CHILD_WAITS | CHILD_SHARES | CHILD_TAKEN);
    control.children.iter().any(|child| is_pending(child.state.load(Ordering::SeqCst)))
}

/// A child process that waits for the recorder.
pub struct SpawnedProcess {
    /// The shared memory of its parent.
    pub shared: Arc<Shared>,
    /// Where the engine is in its parent, hence in the child.
    pub injected: InjectedRanges,
    pub process: i32,
    is_found: bool,
    parent: i32,
    tsc: Tsc,
    shares_memory: bool,
    index: usize,
    is_answered: AtomicBool,
}

impl SpawnedProcess {
    /// Claims the child process that waits at `index`.
    pub fn take(shared: &Arc<Shared>, index: usize, injected: &InjectedRanges, parent: i32) -> Option<Self> {
        let child = &shared.control().children[index];
        let state = child.state.load(Ordering::SeqCst);
        if !matches!(state, CHILD_WAITS | CHILD_SHARES) {
            return None;
        }
        child.state.compare_exchange(state, CHILD_TAKEN, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let number = child.process.load(Ordering::SeqCst);
        let process = find_in_host(shared, number, parent);
        Some(Self {
            shared: Arc::clone(shared),
            injected: injected.clone(),
            process: process.unwrap_or(number.cast_signed()),
            is_found: process.is_some(),
            parent,
            tsc: Tsc::new(child.tsc.load(Ordering::SeqCst)),
            shares_memory: state == CHILD_SHARES,
            index,
            is_answered: AtomicBool::new(false),
        })
    }

    /// Answers the process with one of the `CHILD_*`, once.
    pub fn answer(&self, state: u32) {
        if !self.is_answered.swap(true, Ordering::SeqCst) {
            let child = &self.shared.control().children[self.index];
            child.state.store(state, Ordering::SeqCst);
            shared::wake(&child.state);
        }
    }
}

/// Returns the process that is the child of `parent` with this number, as it sees it. In another
/// process namespace, its number here differs. It maps its parent's shared memory.
fn find_in_host(shared: &Shared, number: u32, parent: i32) -> Option<i32> {
    let has_memory = |process| {
        let mappings = maps::of_process(process).unwrap_or_default();
        let is_ours = |path: &str| path.contains(SHARED_NAME) || path.starts_with(SEGMENT_NAME);
        mappings.iter().any(|mapping| is_ours(&mapping.path) && mapping.inode == shared.inode())
    };
    let is_it = |&process: &i32| process != parent && task::own_number(process) == number && has_memory(process);
    Some(number.cast_signed()).filter(is_it).or_else(|| task::processes().find(is_it))
}

impl Drop for SpawnedProcess {
    /// A process that was not answered goes on natively.
    fn drop(&mut self) {
        self.answer(CHILD_GOES);
    }
}

/// Makes and closes the sinks for child processes.
pub trait SinkFactory: Send + Sync + 'static {
    type Sink: Sink;

    /// Makes the sink for a child process.
    ///
    /// # Errors
    /// If it cannot be made; the process is not captured then.
    fn create(&self, process: i32, recording: &Recording) -> Result<Self::Sink, SinkError<Self>>;

    /// Completes a sink that has taken all events of its process. `processes` are those known by
    /// now.
    ///
    /// # Errors
    /// If what the sink has taken could not be completed.
    fn finish(&self, sink: Self::Sink, exit: Exit, processes: &[ProcessInfo]) -> Result<(), SinkError<Self>>;

    /// Discards a sink whose process could not be captured.
    fn discard(&self, sink: Self::Sink);
}

type SinkError<F> = <<F as SinkFactory>::Sink as Sink>::Error;

/// A process and its descendants, as far as they are captured.
pub struct ProcessTree<F> {
    options: CaptureOptions,
    factory: F,
    calibration: Calibration,
    start: Instant,
    processes: Mutex<Vec<ProcessInfo>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    warnings: Mutex<Vec<String>>,
    is_stopped: fn() -> bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: SinkFactory> ProcessTree<F> {
    /// Makes the tree of which `root` is the only process so far.
    pub fn new(root: &Target, factory: F) -> Self {
        let tree = Self {
            options: root.options.clone(),
            factory,
            calibration: Calibration::start(),
            start: Instant::now(),
            processes: Mutex::default(),
            threads: Mutex::default(),
            warnings: Mutex::default(),
            is_stopped: root.is_stopped(),
        };
        tree.add_process(root.process(), None, host::tsc(), root.command());
        tree
    }

    fn add_process(&self, process: i32, parent: Option<i32>, tsc: Tsc, command: Vec<String>) {
        let parent = parent.map(i32::cast_unsigned);
        lock(&self.processes).push(ProcessInfo { pid: process.cast_unsigned(), parent, tsc, command });
    }

    /// Returns all processes that are known by now.
    pub fn processes(&self) -> Vec<ProcessInfo> {
        lock(&self.processes).clone()
    }

    /// Captures a child process, and its descendants, from now on, in a thread of its own.
    pub(crate) fn follow(self: &Arc<Self>, spawned: SpawnedProcess) {
        let tree = Arc::clone(self);
        let process = spawned.process;
        let thread = std::thread::Builder::new().name(format!("process {process}")).spawn(move || {
            if let Err(sentence) = tree.capture_spawned(&spawned) {
                tree.warn(format!("process {process} is not recorded: {sentence}"));
            }
        });
        match thread {
            Ok(thread) => lock(&self.threads).push(thread),
            Err(error) => self.warn(format!("process {process} is not recorded: {error}")),
        }
    }

    fn warn(&self, warning: String) {
        lock(&self.warnings).push(warning);
    }

    /// Waits until all child processes have exited or run natively. Returns the warnings about
    /// them.
    pub fn wait(&self) -> Vec<String> {
        loop {
            let Some(thread) = lock(&self.threads).pop() else { break };
            if thread.join().is_err() {
                self.warn("recording a process has failed".into());
            }
        }
        std::mem::take(&mut lock(&self.warnings))
    }

    fn capture_spawned(self: &Arc<Self>, spawned: &SpawnedProcess) -> Result<(), String> {
        if !spawned.is_found {
            return Err("it cannot be found".into());
        }
        let Some(pidfd) = open(spawned.process) else { return Ok(()) };
        let tracee = if spawned.shares_memory {
            match self.await_exec(spawned)? {
                Some(tracee) => Some(tracee),
                None => return Ok(()),
            }
        } else {
            None
        };
        let command = task::command(spawned.process);
        self.add_process(spawned.process, Some(spawned.parent), spawned.tsc, command.clone());
        let target = match tracee {
            Some(tracee) => session::SessionTarget::Executed { tracee, pidfd: pidfd.as_fd() },
            None => session::SessionTarget::Spawned { spawned, pidfd: pidfd.as_fd() },
        };
        self.capture(target, spawned.process, command).inspect_err(|_| {
            if let Some(tracee) = tracee {
                // The process is stopped, unless it has exited.
                let _ = tracee.detach(0);
            }
        })
    }

    fn capture(
        self: &Arc<Self>,
        target: session::SessionTarget,
        process: i32,
        command: Vec<String>,
    ) -> Result<(), String> {
        let recording = crate::describe_recording(&self.options, command, process, &self.calibration);
        let mut sink = self.factory.create(process, &recording).map_err(|error| error.to_string())?;
        let report = match self.run_session(target, &mut sink) {
            Ok(report) => report,
            Err(sentence) => {
                self.factory.discard(sink);
                return Err(sentence);
            }
        };
        for warning in report.warnings {
            self.warn(format!("process {process}: {warning}"));
        }
        let finished = match report.failure {
            Some(error) => Err(error),
            None => self.factory.finish(sink, report.end.into(), &self.processes()),
        };
        finished.map_err(|error| format!("the recording is incomplete: {error}"))
    }

    fn run_session(
        self: &Arc<Self>,
        target: session::SessionTarget,
        sink: &mut F::Sink,
    ) -> Result<SessionReport<SinkError<F>>, String> {
        let CaptureOptions { selection, limits, .. } = &self.options;
        let shared = crate::make_shared_for_child(&self.options).map_err(|error| error.to_string())?;
        let session_options = SessionOptions {
            image: &crate::ENGINE,
            shared: &shared,
            selection,
            limits: Limits { time: limits.time.map(|time| time.saturating_sub(self.start.elapsed())), ..*limits },
            is_stopped: &self.is_stopped,
            follow: Some(&|spawned| self.follow(spawned)),
        };
        session::record(target, sink, session_options).map_err(|error| match error {
            StartError::Inject(error) => error.to_string(),
            StartError::Attach(error) => error.to_string(),
        })
    }

    /// Lets a process that shares its parent's memory go on until it has executed another program.
    /// Returns `None` if it exits instead, or if the recording ends; an error if tracing would take
    /// its privileges away.
    fn await_exec(&self, spawned: &SpawnedProcess) -> Result<Option<Tracee>, String> {
        let tracee = Tracee::seize(spawned.process).map_err(|error| error.to_string())?;
        // Under an ordinary user's ptrace, set-uid programs lose their privileges. The recorder has
        // to detach before their exec.
        let watches_calls = !rustix::process::geteuid().is_root();
        if watches_calls {
            tracee.interrupt().map_err(|error| error.to_string())?;
        }
        spawned.answer(CHILD_GOES);
        let resume =
            |signal| drop(if watches_calls { tracee.resume_to_syscall(signal) } else { tracee.resume(signal) });
        let mut is_detaching = false;
        loop {
            match ptrace::try_wait(tracee.tid) {
                Err(_) | Ok(Some(Stop::Exited(_))) => return Ok(None),
                Ok(Some(Stop::Exec)) => return Ok(Some(tracee)),
                Ok(Some(Stop::Signal(signal))) if is_detaching => return Ok(detach_from(tracee, signal)),
                Ok(Some(_)) if is_detaching => return Ok(detach_from(tracee, 0)),
                Ok(Some(Stop::Signal(signal))) => resume(signal),
                Ok(Some(Stop::Group(_))) => drop(tracee.listen()),
                Ok(Some(Stop::Syscall)) => match exec::intent(tracee, spawned.process) {
                    Intent::PrivilegedExec(path) => {
                        detach_from(tracee, 0);
                        return Err(format!("{} runs with other privileges than yours", path.display()));
                    }
                    Intent::Other | Intent::Exec => resume(0),
                },
                Ok(Some(Stop::Other)) => resume(0),
                Ok(None) => std::thread::sleep(PAUSE),
            }
            if !is_detaching && self.is_over() {
                is_detaching = true;
                let _ = tracee.interrupt();
            }
        }
    }

    fn is_over(&self) -> bool {
        (self.is_stopped)() || self.options.limits.time.is_some_and(|time| self.start.elapsed() >= time)
    }
}

fn detach_from(tracee: Tracee, signal: i32) -> Option<Tracee> {
    let _ = tracee.detach(signal);
    None
}

fn open(process: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use wire::CHILD_FREE;

    use super::*;

    #[test]
    fn a_waiting_process_is_taken_once_and_always_answered() {
        let shared = Arc::new(Shared::create_alone().unwrap());
        let child = &shared.control().children[3];
        let injected = InjectedRanges { engine: 0..1, shared: 1..2 };
        assert!(!is_any_waiting(shared.control()) && !is_any_pending(shared.control()));
        child.process.store(42, Ordering::SeqCst);
        child.state.store(CHILD_WAITS, Ordering::SeqCst);
        assert_eq!(waiting(shared.control()).collect::<Vec<_>>(), [3]);
        let spawned = SpawnedProcess::take(&shared, 3, &injected, 41).unwrap();
        assert_eq!((spawned.process, spawned.shares_memory), (42, false));
        assert!(SpawnedProcess::take(&shared, 3, &injected, 41).is_none());
        assert!(!is_any_waiting(shared.control()) && is_any_pending(shared.control()));
        drop(spawned);
        assert_eq!(child.state.load(Ordering::SeqCst), CHILD_GOES);
        child.state.store(CHILD_SHARES, Ordering::SeqCst);
        let spawned = SpawnedProcess::take(&shared, 3, &injected, 41).unwrap();
        spawned.answer(CHILD_FREE);
        drop(spawned);
        assert_eq!(child.state.load(Ordering::SeqCst), CHILD_FREE);
    }
}
