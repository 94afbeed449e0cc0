//! All threads of a process, stopped by ptrace while the recorder changes something that they must
//! not see.
//!
//! Threads start and exit until all of them have stopped. Knows nothing of why they are stopped.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::ptrace::{self, Exit, Stop, Tracee};
use crate::{syscall, task};

/// The longest time to wait for runnable threads to stop.
const RUNNABLE_PATIENCE: Duration = Duration::from_secs(60);
/// A thread that sleeps whenever it is looked at for this long does not stop by itself. One look is
/// not enough: a thread also sleeps for moments while the kernel brings a page, or while another
/// thread has the lock on the memory map.
const ASLEEP: Duration = Duration::from_secs(1);

/// Time between two polls of threads that are stopping.
pub const PAUSE: Duration = Duration::from_micros(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceState {
    /// The recorder has asked it to stop.
    Stopping,
    /// It runs since this time, and the recorder has not asked it to stop since then.
    Running(Instant),
    /// Stopped; `signal` is delivered when it goes on, unless it is 0.
    Stopped { signal: i32, is_group: bool },
}

#[derive(Debug)]
pub struct ThreadGroup {
    process: i32,
    pub members: BTreeMap<i32, TraceState>,
    /// How the process exited, if it did.
    pub exit: Option<Exit>,
    /// The process has executed another program: one thread is left, stopped at the exec event.
    pub has_executed: bool,
    /// Since when no stopping thread was seen runnable; see [`Self::has_timed_out`].
    asleep_since: Option<Instant>,
}

impl ThreadGroup {
    pub fn new(process: i32) -> Self {
        Self { process, members: BTreeMap::new(), exit: None, has_executed: false, asleep_since: None }
    }

    /// Attaches to new threads and asks them to stop. Returns whether there were any.
    pub fn seize_new(&mut self) -> io::Result<bool> {
        let is_new = |tid: &i32| !self.members.contains_key(tid) && task::is_alive(self.process, *tid);
        let new: Vec<i32> = task::all(self.process)?.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(false);
        }
        let known: Vec<i32> = self.members.keys().chain(&new).copied().filter(|&tid| tid != self.process).collect();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || reap(&known, &is_done));
            let _done = done;
            new.into_iter().try_for_each(|tid| self.seize(tid))
        })?;
        Ok(true)
    }

    fn seize(&mut self, tid: i32) -> io::Result<()> {
        match Tracee::seize(tid).and_then(Tracee::interrupt) {
            Ok(()) => drop(self.members.insert(tid, TraceState::Stopping)),
            // It has exited in the meantime.
            Err(_) if !task::is_alive(self.process, tid) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Polls the threads that have not stopped. Returns those that have stopped now.
    pub fn poll(&mut self) -> Vec<i32> {
        let mut stopped = Vec::new();
        let waiting: Vec<i32> =
            self.members.iter().filter(|(_, state)| !is_stopped(state)).map(|(&tid, _)| tid).collect();
        for tid in waiting {
            let state = match ptrace::try_wait(tid) {
                Ok(None) => continue,
                Ok(Some(stop)) => self.state_after(tid, stop),
                Err(_) => None,
            };
            match state {
                Some(state) => {
                    self.members.insert(tid, state);
                    stopped.push(tid);
                }
                None => drop(self.members.remove(&tid)),
            }
        }
        stopped
    }

    fn state_after(&mut self, tid: i32, stop: Stop) -> Option<TraceState> {
        match stop {
            Stop::Exited(exit) => {
                if tid == self.process {
                    self.exit = Some(exit);
                }
                None
            }
            Stop::Signal(signal) => Some(TraceState::Stopped { signal, is_group: false }),
            Stop::Group(_) => Some(TraceState::Stopped { signal: 0, is_group: true }),
            Stop::Exec => {
                self.has_executed = true;
                Some(TraceState::Stopped { signal: 0, is_group: false })
            }
            Stop::Syscall | Stop::Other => Some(TraceState::Stopped { signal: 0, is_group: false }),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.exit.is_some() || self.members.is_empty() && !task::has_any(self.process)
    }

    /// Returns whether all known threads have stopped.
    pub fn all_stopped(&self) -> bool {
        self.members.values().all(is_stopped)
    }

    /// Lets a stopped thread go on.
    pub fn resume(&mut self, tid: i32) {
        let Some(&TraceState::Stopped { signal, .. }) = self.members.get(&tid) else { return };
        // If it fails, the thread is dying, and the next look says so.
        let _ = Tracee { tid }.resume(signal);
        self.members.insert(tid, TraceState::Running(Instant::now()));
    }

    /// Interrupts the threads that have been running for at least `time`.
    pub fn interrupt_running(&mut self, time: Duration) {
        for (&tid, state) in &mut self.members {
            if matches!(state, TraceState::Running(since) if since.elapsed() >= time) {
                let _ = Tracee { tid }.interrupt();
                *state = TraceState::Stopping;
            }
        }
    }

    /// Returns whether a stopping thread only waits for a processor, as on a machine with more work
    /// than processors, or has stopped since the last poll.
    fn has_runnable(&self) -> bool {
        let mut waiting = self.members.iter().filter(|(_, state)| !is_stopped(state));
        waiting.any(|(&tid, _)| task::is_runnable(self.process, tid))
    }

    /// Waits until all threads have stopped, new ones included. Returns false if the process has
    /// exited, or if the others are still asleep after `patience`.
    pub fn stop_all(&mut self, patience: Duration) -> io::Result<bool> {
        let start = Instant::now();
        (self.has_executed, self.asleep_since) = (false, None);
        loop {
            match self.seize_new() {
                // Attaching to a thread that is about to exit may fail; the next poll shows whether
                // it did.
                Err(error) if self.members.is_empty() => return Err(error),
                _ => drop(self.poll()),
            }
            if self.all_stopped() && self.seize_new().is_ok_and(|any| !any) {
                return Ok(!self.members.is_empty() && self.exit.is_none() && !self.has_executed);
            }
            if self.is_gone() || self.has_timed_out(start.elapsed(), patience) {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns whether threads that have not stopped after `elapsed` will not do so soon. Called
    /// again and again.
    pub fn has_timed_out(&mut self, elapsed: Duration, patience: Duration) -> bool {
        if elapsed <= patience || self.has_runnable() {
            self.asleep_since = None;
            return elapsed > RUNNABLE_PATIENCE;
        }
        elapsed > RUNNABLE_PATIENCE || self.asleep_since.get_or_insert_with(Instant::now).elapsed() > ASLEEP
    }

    /// Detaches from all threads, which go on as they are. Those that do not stop soon stay
    /// attached: see [`Self::detach_stopped`].
    pub fn detach_all(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + PATIENCE;
        self.detach_stopped();
        while !self.members.is_empty() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            self.detach_stopped();
        }
    }

    /// Detaches from the threads that have stopped by now, and asks the others to stop.
    pub fn detach_stopped(&mut self) {
        self.interrupt_running(Duration::ZERO);
        self.poll();
        for (&tid, state) in &self.members {
            if let TraceState::Stopped { signal, .. } = *state {
                // If it fails, the thread is dying.
                let _ = restart_interrupted_call(Tracee { tid }, signal).and_then(|()| Tracee { tid }.detach(signal));
            }
        }
        self.members.retain(|_, state| !is_stopped(state));
    }
}

/// Reaps exited threads while the caller attaches to others. Attaching waits for an exec of the
/// process, and an exec waits until dead tracees are reaped. So another thread has to reap them if
/// attaching takes long.
fn reap(threads: &[i32], is_done: &Receiver<()>) {
    const PATIENCE: Duration = Duration::from_millis(20);
    while is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        threads.iter().for_each(|&tid| ptrace::reap(tid));
    }
}

/// Prepares a stopped thread to restart a system call that only the stop has interrupted.
pub fn restart_interrupted_call(tracee: Tracee, signal: i32) -> io::Result<()> {
    let registers = tracee.registers()?;
    match syscall::interrupted_call_of(tracee, &registers, signal) {
        Some(call) if !call.is_restarted() => tracee.set_registers(&syscall::restarted_registers(&registers, call)),
        _ => Ok(()),
    }
}

fn is_stopped(state: &TraceState) -> bool {
    matches!(state, TraceState::Stopped { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(6);
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A process that sleeps until this is dropped.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn new() -> Self {
            Self(std::process::Command::new("sleep").arg("10").spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn wait_for_state(&self, state: char) {
            let start = Instant::now();
            while !std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))
                .unwrap()
                .contains(&format!(") {state} "))
            {
                assert!(start.elapsed().as_secs() < 5, "its state does not become {state}");
                std::thread::yield_now();
            }
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_thread_that_has_stopped_since_we_looked_is_not_too_late() {
        let sleeper = Sleeper::new();
        let mut group = ThreadGroup::new(sleeper.pid());
        assert!(group.seize_new().unwrap());
        sleeper.wait_for_state('t');
        assert!(!group.has_timed_out(LATE, PATIENCE));
        assert_eq!(group.poll(), [sleeper.pid()]);
        group.detach_all();
    }

    #[test]
    fn reaping_leaves_stops_to_be_seen() {
        let sleeper = Sleeper::new();
        let mut group = ThreadGroup::new(sleeper.pid());
        assert!(group.seize_new().unwrap());
        sleeper.wait_for_state('t');
        ptrace::reap(sleeper.pid());
        assert_eq!(group.poll(), [sleeper.pid()]);
        group.detach_all();
    }

    #[test]
    fn reaping_takes_note_of_an_end() {
        let mut sleeper = Sleeper::new();
        let mut group = ThreadGroup::new(sleeper.pid());
        assert!(group.seize_new().unwrap());
        sleeper.0.kill().unwrap();
        sleeper.wait_for_state('Z');
        ptrace::reap(sleeper.pid());
        assert!(ptrace::try_wait(sleeper.pid()).is_err());
    }

    #[test]
    fn a_thread_that_sleeps_whenever_we_look_is_too_late() {
        let sleeper = Sleeper::new();
        let mut group = ThreadGroup::new(sleeper.pid());
        group.members.insert(sleeper.pid(), TraceState::Stopping);
        let start = Instant::now();
        while !group.has_timed_out(LATE, PATIENCE) {
            assert!(start.elapsed().as_secs() < 5);
            std::thread::sleep(PAUSE);
        }
        assert!(start.elapsed() > ASLEEP);
        assert!(!group.has_timed_out(PATIENCE, PATIENCE));
    }
}
