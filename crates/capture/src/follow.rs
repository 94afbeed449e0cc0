//! Processes that a recorded process makes, each recorded to a file of its own by a thread of its own.
//!
//! A [`SpawnedProcess`] waits in the engine of its parent (see `wire::Child`). One that has a copy of its parent's memory is attached to. One that
//! shares it is only watched, until it executes another program, into which an engine is put as after a launch.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};
use trace::{ProcessInfo, Recording, Writer};
use wire::{CHILD_GOES, CHILD_MADE, CHILD_SHARES, CHILD_TAKEN, CHILD_WAITS, Control};

use crate::exec::{self, Intent};
use crate::host::{self, Calibration};
use crate::inject::InjectedRanges;
use crate::ptrace::{self, Stop, Tracee};
use crate::session::{self, End, Limits, SessionOptions, StartError};
use crate::shared::{self, SEGMENT_NAME, SHARED_NAME, Shared};
use crate::{Options, maps, task};

/// Between two looks at a process that has not executed another program yet.
const PAUSE: Duration = Duration::from_millis(1);

/// The places of new processes that wait to be seen.
pub fn waiting(control: &Control) -> impl Iterator<Item = usize> + use<'_> {
    let is_waiting = |state: u32| matches!(state, CHILD_WAITS | CHILD_SHARES);
    let children = control.children.iter().enumerate();
    children.filter(move |(_, child)| is_waiting(child.state.load(Ordering::SeqCst))).map(|(index, _)| index)
}

pub fn is_any_waiting(control: &Control) -> bool {
    waiting(control).next().is_some()
}

/// Whether there is a new process that needs an answer, has been promised something, or has not come so far that it could ask: its parent may be
/// gone before it executes anything.
pub fn is_any_pending(control: &Control) -> bool {
    let is_pending = |state: u32| matches!(state, CHILD_MADE | CHILD_WAITS | CHILD_SHARES | CHILD_TAKEN);
    control.children.iter().any(|child| is_pending(child.state.load(Ordering::SeqCst)))
}

/// A new process that waits for us.
pub struct SpawnedProcess {
    /// Its parent's memory.
    pub shared: Arc<Shared>,
    /// Where the engine is in its parent, hence in itself.
    pub injected: InjectedRanges,
    pub process: i32,
    is_found: bool,
    parent: i32,
    tsc: u64,
    shares_memory: bool,
    index: usize,
    is_answered: AtomicBool,
}

impl SpawnedProcess {
    /// Takes care of the new process that waits at `index`.
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
            tsc: child.tsc.load(Ordering::SeqCst),
            shares_memory: state == CHILD_SHARES,
            index,
            is_answered: AtomicBool::new(false),
        })
    }

    /// Tells the process what becomes of it.
    pub fn answer(&self, state: u32) {
        if !self.is_answered.swap(true, Ordering::SeqCst) {
            let child = &self.shared.control().children[self.index];
            child.state.store(state, Ordering::SeqCst);
            shared::wake(&child.state);
        }
    }
}

/// The process that a child of `parent` is, which has `number` for itself; in another process namespace that is not its number here. It
/// maps its parent's shared memory.
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
    /// Nobody waits for ever.
    fn drop(&mut self) {
        self.answer(CHILD_GOES);
    }
}

/// All processes of a recording.
pub struct ProcessTree {
    options: Options,
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

impl ProcessTree {
    pub fn new(options: &Options, is_stopped: fn() -> bool) -> Self {
        Self {
            options: options.clone(),
            calibration: Calibration::start(),
            start: Instant::now(),
            processes: Mutex::default(),
            threads: Mutex::default(),
            warnings: Mutex::default(),
            is_stopped,
        }
    }

    /// Notes that a process belongs to the tree.
    pub fn add_process(&self, process: i32, parent: Option<i32>, tsc: u64, command: Vec<String>) {
        let parent = parent.map(i32::cast_unsigned);
        lock(&self.processes).push(ProcessInfo { pid: process.cast_unsigned(), parent, tsc, command });
    }

    /// Tells a trace of all processes that are known by now.
    pub fn tell(&self, writer: &mut Writer) -> Result<(), trace::WriteError> {
        lock(&self.processes).iter().try_for_each(|process| writer.process(process))
    }

    /// Records a new process, and those that it makes, from now on.
    pub fn follow(self: &Arc<Self>, spawned: SpawnedProcess) {
        let tree = Arc::clone(self);
        let process = spawned.process;
        let thread = std::thread::Builder::new().name(format!("process {process}")).spawn(move || {
            if let Err(sentence) = tree.record(&spawned) {
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

    /// Waits until all processes that are followed have ended or were left; returns what is to be told.
    pub fn wait(&self) -> Vec<String> {
        loop {
            let Some(thread) = lock(&self.threads).pop() else { break };
            if thread.join().is_err() {
                self.warn("recording a process has failed".into());
            }
        }
        std::mem::take(&mut lock(&self.warnings))
    }

    fn record(self: &Arc<Self>, spawned: &SpawnedProcess) -> Result<(), String> {
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
            Some(tracee) => session::Target::Executed { tracee, pidfd: pidfd.as_fd() },
            None => session::Target::Spawned { spawned, pidfd: pidfd.as_fd() },
        };
        self.record_to_file(target, spawned.process, command).inspect_err(|_| {
            if let Some(tracee) = tracee {
                // It stands still, unless it is gone.
                let _ = tracee.detach(0);
            }
        })
    }

    fn record_to_file(
        self: &Arc<Self>,
        target: session::Target,
        process: i32,
        command: Vec<String>,
    ) -> Result<(), String> {
        let Options { output, data, selection, limits, .. } = &self.options;
        let output = name_for(output, process);
        let described = host::describe(command, process.cast_unsigned(), &self.calibration);
        let recording = Recording { data: *data, options: selection.as_options(), ..described };
        let mut writer = Writer::create(&output, &recording).map_err(|error| error.to_string())?;
        let shared = crate::make_shared_to_follow(&self.options).map_err(|error| error.to_string())?;
        let session_options = SessionOptions {
            image: &crate::ENGINE,
            shared: &shared,
            selection,
            limits: Limits { time: limits.time.map(|time| time.saturating_sub(self.start.elapsed())), ..*limits },
            is_stopped: &self.is_stopped,
            follow: Some(&|spawned| self.follow(spawned)),
        };
        let report = session::record(target, &mut writer, session_options).map_err(|error| {
            // Nothing was recorded; a file of nothing is of no use.
            let _ = std::fs::remove_file(trace::partial_path(&output));
            match error {
                StartError::Inject(error) => error.to_string(),
                StartError::Attach(error) => error.to_string(),
            }
        })?;
        for warning in report.warnings {
            self.warn(format!("process {process}: {warning}"));
        }
        let written = match report.failure {
            Some(error) => Err(error),
            None => self.tell(&mut writer).and_then(|()| writer.finish(as_exit(report.end)).map(drop)),
        };
        written.map_err(|error| format!("the recording is incomplete: {error}"))
    }

    /// Lets a process that shares its parent's memory go on until it has executed another program. `None` if it ends instead, or if
    /// nobody wants to know any more; an error if that would take its privileges away.
    fn await_exec(&self, spawned: &SpawnedProcess) -> Result<Option<Tracee>, String> {
        let tracee = Tracee::seize(spawned.process).map_err(|error| error.to_string())?;
        // An ordinary user's ptrace takes the privileges of set-uid programs away: those have to be let go in time.
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

fn as_exit(end: End) -> trace::Exit {
    match end {
        End::Exit(exit) => crate::as_exit(exit),
        End::Detached => trace::Exit::Detached,
        End::Unknown => trace::Exit::Unknown,
    }
}

/// Where a process that is followed is recorded to: its number comes before the extension.
pub fn name_for(output: &Path, process: i32) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{process}"));
    if let Some(extension) = output.extension() {
        name.push(".");
        name.push(extension);
    }
    output.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use wire::CHILD_FREE;

    use super::*;

    #[test]
    fn files_are_named_after_processes() {
        let check = |output, expected| assert_eq!(name_for(Path::new(output), 17), Path::new(expected));
        check("t.trk", "t.17.trk");
        check("a/b.c/t.x.trk", "a/b.c/t.x.17.trk");
        check("t", "t.17");
    }

    #[test]
    fn who_waits_is_taken_once_and_always_answered() {
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
