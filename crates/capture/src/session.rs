//! One recording from the first instruction to the last: the loop that drains the rings, follows the process from image to
//! image, and notices its end.
//!
//! All ptrace requests come from the thread that runs the loop. Between injection and exec the target is not traced
//! by ptrace at all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use wire::{Control, EXEC_FAILED, EXEC_IDLE, EXEC_READY, EXEC_REFUSED, EXEC_WANTED, SLOT_FREE, SLOT_LIVE};

use crate::drain::{Counters, Drain};
use crate::error::reason;
use crate::exec::{self, Intent};
use crate::host;
use crate::image::Image;
use crate::inject::{self, InjectError, Placement};
use crate::launch::Launched;
use crate::maps::{self, Mapping};
use crate::ptrace::{self, Exit, Stop, Tracee};
use crate::select::Selection;
use crate::shared::{self, Shared, SignOfLife};
use crate::sink::{Module, Sink};

/// Looks at the rings this often before it sleeps.
const SPINS: u32 = 50;
/// The longest sleep; everything that matters rings, this is for a target that was killed while it rang.
const SLEEP: Duration = Duration::from_millis(50);
/// The longest sleep while a thread is attached, whose stops do not ring.
const SLEEP_ATTACHED: Duration = Duration::from_millis(1);

/// The slot and number of the thread that an image starts with.
const FIRST_SLOT: u32 = 0;
const FIRST_THREAD: u32 = 0;

/// How a recording ended.
#[derive(Debug)]
pub struct Report<E> {
    pub exit: Exit,
    pub counters: Counters,
    pub warnings: Vec<String>,
    /// The sink's error; what came after it was thrown away.
    pub failure: Option<E>,
}

/// Injects into a launched process and records it until it ends. After an error nothing of the target is left.
pub fn record<S: Sink>(
    launched: &Launched,
    image: &Image,
    shared: &Shared,
    selection: &Selection,
    sink: S,
) -> Result<Report<S::Error>, InjectError> {
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Inside of the scope, so that after a panic the target learns that nobody reads before its end is waited for.
        let _life = SignOfLife::give(shared)
            .map_err(|error| InjectError::System { what: "making the sign of life", error })
            .inspect_err(|_| launched.kill())?;
        let mut drain = Drain::new(shared, sink);
        drain.select(selection, launched.pid());
        let mut session =
            Session { shared, image, process: launched.pid(), drain, attached: None, watches_calls: false, exit: None };
        session.start_image(launched.tracee).inspect_err(|_| launched.kill())?;
        scope.spawn(|| watch(launched.pidfd.as_fd(), &gone, shared.control()));
        let exit = session.run(&gone);
        session.drain.finish_image();
        session.tell_notices();
        let (counters, warnings, failure) = session.drain.finish();
        Ok(Report { exit, counters, warnings, failure })
    })
}

/// Rings when the process has ended.
fn watch(process: BorrowedFd, gone: &AtomicBool, control: &Control) {
    while rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], None).is_err() {}
    gone.store(true, Ordering::SeqCst);
    control.doorbell.fetch_add(1, Ordering::SeqCst);
    shared::wake(&control.doorbell);
}

struct Session<'a, S: Sink> {
    shared: &'a Shared,
    image: &'a Image,
    process: i32,
    drain: Drain<'a, S>,
    /// The thread that wants to exec.
    attached: Option<Tracee>,
    /// The attached thread stops at system calls, so that its exec is seen before it happens.
    watches_calls: bool,
    exit: Option<Exit>,
}

impl<S: Sink> Session<'_, S> {
    fn run(&mut self, gone: &AtomicBool) -> Exit {
        let mut idle = 0;
        loop {
            let progress = self.drain.pass();
            self.attend_exec();
            if gone.swap(false, Ordering::SeqCst) || idle > SPINS {
                self.attend_process();
            }
            if let Some(exit) = self.exit {
                return exit;
            }
            idle = if progress { 0 } else { idle + 1 };
            if idle > SPINS {
                self.sleep(gone);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn sleep(&mut self, gone: &AtomicBool) {
        let timeout = if self.attached.is_some() { SLEEP_ATTACHED } else { SLEEP };
        let state = &self.shared.control().exec_state;
        let attached = self.attached.is_some();
        self.drain.sleep(timeout, || {
            let waiting = match state.load(Ordering::SeqCst) {
                EXEC_WANTED => !attached,
                EXEC_FAILED => true,
                _ => false,
            };
            waiting || gone.load(Ordering::SeqCst)
        });
    }

    /// Looks whether the process has something to report.
    fn attend_process(&mut self) {
        if let Some(stop) = ptrace::poll(self.process) {
            self.handle(Tracee { tid: self.process }, stop);
        }
    }

    fn attend_exec(&mut self) {
        let control = self.shared.control();
        match (control.exec_state.load(Ordering::SeqCst), self.attached) {
            (EXEC_WANTED, None) => self.attach(control.exec_tid.load(Ordering::SeqCst) as i32),
            (EXEC_FAILED, attached) => {
                if let Some(tracee) = attached {
                    self.detach(tracee);
                }
                self.answer(EXEC_IDLE);
            }
            (_, Some(tracee)) => {
                if let Some(stop) = ptrace::poll(tracee.tid) {
                    self.handle(tracee, stop);
                }
                // A thread that has executed a new image has the number of the process from then on.
                if self.attached.is_some() && tracee.tid != self.process {
                    self.attend_process();
                }
            }
            _ => {}
        }
    }

    fn answer(&self, state: u32) {
        let control = self.shared.control();
        control.exec_tid.store(0, Ordering::SeqCst);
        control.exec_state.store(state, Ordering::SeqCst);
        shared::wake(&control.exec_state);
    }

    fn attach(&mut self, tid: i32) {
        if tid == 0 {
            // It has said that it wants to exec, but not yet who it is.
            return;
        }
        let control = self.shared.control();
        let is_forbidden = control.notices.load(Ordering::SeqCst) & wire::NOTICE_SECCOMP_EXEC != 0;
        if control.leave.load(Ordering::SeqCst) != 0 || is_forbidden {
            self.answer(EXEC_REFUSED);
            return;
        }
        match self.try_to_attach(tid) {
            Ok(tracee) => {
                self.attached = Some(tracee);
                self.answer(EXEC_READY);
            }
            Err(error) => {
                let reason = reason(&error);
                self.drain.warn(format!("the program after exec is not recorded: attaching failed ({reason})"));
                self.answer(EXEC_REFUSED);
            }
        }
    }

    /// Tells what the engine has noticed.
    fn tell_notices(&mut self) {
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
        let notices = self.shared.control().notices.load(Ordering::SeqCst);
        for (notice, sentence) in SENTENCES {
            if notices & notice != 0 {
                self.drain.warn(sentence);
            }
        }
    }

    /// Attaches to a thread of the target. It waits for an answer, so that it does not exec meanwhile.
    fn try_to_attach(&mut self, tid: i32) -> io::Result<Tracee> {
        if !std::fs::exists(format!("/proc/{}/task/{tid}", self.process))? {
            return Err(io::ErrorKind::NotFound.into());
        }
        let tracee = Tracee::seize(tid)?;
        // An ordinary user's ptrace takes the privileges of set-uid programs away: those have to be let go in time.
        self.watches_calls = !rustix::process::geteuid().is_root();
        if self.watches_calls {
            tracee.interrupt()?;
            match tracee.wait()? {
                Stop::Gone(_) => return Err(io::ErrorKind::NotFound.into()),
                Stop::Signal(signal) => tracee.resume_to_syscall(signal)?,
                _ => tracee.resume_to_syscall(0)?,
            }
        }
        Ok(tracee)
    }

    /// The attached thread stands at a system call.
    fn look_at_call(&mut self, tracee: Tracee) {
        match exec::intent(tracee, self.process) {
            Intent::SomethingElse => drop(tracee.resume_to_syscall(0)),
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

    /// Lets go of a thread whose exec has failed and which waits for that.
    fn detach(&mut self, tracee: Tracee) {
        self.attached = None;
        if tracee.interrupt().is_err() {
            return;
        }
        match tracee.wait() {
            Ok(Stop::Signal(signal)) => drop(tracee.detach(signal)),
            Ok(Stop::Gone(exit)) => self.gone(tracee, exit),
            _ => drop(tracee.detach(0)),
        }
    }

    /// Answers a stop. A request that fails means that the thread is dying; the next wait says so.
    fn handle(&mut self, tracee: Tracee, stop: Stop) {
        match stop {
            Stop::Exec => self.change_image(Tracee { tid: self.process }),
            Stop::Gone(exit) => self.gone(tracee, exit),
            Stop::Syscall if self.attached == Some(tracee) => self.look_at_call(tracee),
            Stop::Group(_) => drop(tracee.listen()),
            Stop::Signal(signal) => self.resume(tracee, signal),
            Stop::Syscall | Stop::Other => self.resume(tracee, 0),
        }
    }

    fn resume(&self, tracee: Tracee, signal: i32) {
        drop(if self.watches_calls { tracee.resume_to_syscall(signal) } else { tracee.resume(signal) });
    }

    fn gone(&mut self, tracee: Tracee, exit: Exit) {
        if tracee.tid == self.process {
            self.exit = Some(exit);
        }
        if self.attached == Some(tracee) {
            self.attached = None;
            self.answer(EXEC_IDLE);
        }
    }

    /// The process has a new image; the threads of the old one, except for this, are dead.
    fn change_image(&mut self, tracee: Tracee) {
        self.attached = None;
        self.drain.finish_image();
        self.drain.next_image();
        self.answer(EXEC_IDLE);
        if self.shared.control().leave.load(Ordering::SeqCst) != 0 {
            drop(tracee.detach(0));
            return;
        }
        match self.start_image(tracee) {
            Ok(()) => {}
            Err(InjectError::Gone(exit)) => self.exit = Some(exit),
            Err(error) => {
                self.drain.warn(format!("the program after exec is not recorded: {error}"));
                drop(tracee.detach(0));
            }
        }
    }

    /// Gives the process its first slot and the engine.
    fn start_image(&mut self, tracee: Tracee) -> Result<(), InjectError> {
        let control = self.shared.control();
        let slot = &control.slots[FIRST_SLOT as usize];
        slot.thread.store(FIRST_THREAD, Ordering::Relaxed);
        slot.os_tid.store(self.process as u32, Ordering::Relaxed);
        slot.parent.store(u32::MAX, Ordering::Relaxed);
        slot.state.store(SLOT_LIVE, Ordering::SeqCst);
        control.next_thread.fetch_max(FIRST_THREAD + 1, Ordering::SeqCst);
        let tsc = host::tsc();
        // The engine has to know what is selected before it translates anything.
        let mappings = maps::of_process(self.process).unwrap_or_default();
        let modules = mappings.iter().filter(|mapping| mapping.is_module());
        self.drain.start_image(modules.map(|mapping| as_module(mapping, tsc)));
        let is_filtered = control.notices.load(Ordering::SeqCst) & wire::NOTICE_FILTERED != 0;
        let base = is_filtered.then(|| u64::from(control.engine_start.load(Ordering::SeqCst)));
        let placement = Placement { thread: FIRST_THREAD, slot: FIRST_SLOT, process: self.process, base };
        inject::inject(tracee, self.image, self.shared, placement)
            .inspect_err(|_| slot.state.store(SLOT_FREE, Ordering::SeqCst))?;
        Ok(())
    }
}

fn as_module(mapping: &Mapping, tsc: u64) -> Module {
    Module {
        address: mapping.range.start,
        length: mapping.range.end - mapping.range.start,
        file_offset: mapping.file_offset,
        path: mapping.path.clone(),
        tsc,
    }
}
