//! Brings all threads of a target back to native code and removes the engine from it.
//!
//! The engine asks its threads to stop with their state saved (`wire::DETACH_TOGETHER`). Most do so
//! at their next visit to the dispatcher. The recorder sends a signal to those that loop in
//! translated code, and stops those that wait in a system call there. When every thread is at a
//! safe point, one of them restores the signal handlers. Then each gets its alternate stack, mask
//! and registers, and the recorder unmaps the engine's memory. An interrupted system call goes on
//! natively, in the application's own code.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::user_regs_struct;
use wire::{
    Control, DETACH_NONE, DETACH_REQUEST, DETACH_TOGETHER, EXEC_FAILED, EXEC_IDLE, EXEC_REFUSED, EXEC_WANTED,
    STAGE_FINISHED,
};

use crate::inject::{self, Context, InjectError, InjectedRanges, Result};
use crate::maps;
use crate::ptrace::{self, Exit, Tracee};
use crate::remote::{self, Remote};
use crate::shared::{self, Shared};
use crate::state::{self, ThreadState};
use crate::syscall::{self, InterruptedCall};
use crate::task::Status;
use crate::thread_group::{PAUSE, ThreadGroup, TraceState};

/// Threads that visit the dispatcher within this time are not interrupted.
const GRACE: Duration = Duration::from_millis(3);
/// A thread in the engine, or on its way there, runs for this time before it is stopped again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(2);
/// The longest time that the other threads wait for one that waits for a child made by vfork.
const VFORK_PATIENCE: Duration = Duration::from_millis(50);
/// The longest time that they wait for any other reason.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of an attempt to detach.
#[derive(Debug)]
pub enum DetachOutcome {
    /// All threads run natively, and the engine is gone unless there was a problem. `slots` has the
    /// slot of each thread and the number of bytes in the segment that it did not complete.
    Complete { slots: Vec<(u32, u32)>, problem: Option<InjectError> },
    /// The process has executed another program, which runs natively.
    Executed,
    /// The process has exited.
    Exited(Option<Exit>),
    /// A thread waits for a child that shares its memory. All threads go on, recorded, as before.
    Deferred,
    /// Some threads do not stop. All were asked to detach separately; the engine stays in the
    /// process.
    Partial,
}

/// A target to detach from.
pub struct DetachTarget<'a> {
    pub process: i32,
    pub shared: &'a Shared,
    pub injected: &'a InjectedRanges,
}

/// Tries to detach. Calls `meanwhile` again and again, to drain the rings. `group` has the threads
/// that did not stop in earlier attempts.
pub fn detach(target: &DetachTarget, group: &mut ThreadGroup, meanwhile: &mut dyn FnMut()) -> DetachOutcome {
    let control = target.shared.control();
    let mut detachment = Detachment { target, control, group, threads: Vec::new() };
    // The sink or the engine may have set it already.
    control.detach.store(DETACH_TOGETHER, Ordering::SeqCst);
    let start = Instant::now();
    while start.elapsed() < GRACE {
        detachment.refuse_exec();
        meanwhile();
        std::thread::sleep(PAUSE);
    }
    match detachment.stop_all(meanwhile) {
        StopOutcome::Stopped => {}
        StopOutcome::Executed => return DetachOutcome::Executed,
        StopOutcome::Exited => return DetachOutcome::Exited(detachment.group.exit),
        StopOutcome::TimedOut => {
            let waits = control.vforks.load(Ordering::SeqCst) != 0;
            detachment.resume_all(if waits { DETACH_NONE } else { wire::DETACH_SEPARATELY });
            return if waits { DetachOutcome::Deferred } else { DetachOutcome::Partial };
        }
    }
    let slots = detachment.threads.iter().filter_map(DetachableThread::slot).collect();
    let problem = detachment.finish();
    DetachOutcome::Complete { slots, problem }
}

enum StopOutcome {
    Stopped,
    TimedOut,
    Executed,
    Exited,
}

struct Detachment<'a> {
    target: &'a DetachTarget<'a>,
    control: &'a Control,
    group: &'a mut ThreadGroup,
    /// Those that are stopped at a safe point.
    threads: Vec<DetachableThread>,
}

/// A thread that is stopped at a safe point.
struct DetachableThread {
    tracee: Tracee,
    stopped: user_regs_struct,
    /// The application's system call in which it was interrupted.
    call: Option<InterruptedCall>,
    /// `None` for a thread that the engine does not know.
    state: Option<ThreadState>,
}

/// Where a stopped thread is.
enum ThreadLocation {
    /// At a safe point, from where it can go on natively.
    SafePoint(Box<DetachableThread>),
    /// In translated code.
    CodeCache,
    /// In the engine, or on its way there.
    Engine,
}

impl Detachment<'_> {
    /// Stops one thread after the other at a safe point, until all have stopped.
    fn stop_all(&mut self, meanwhile: &mut dyn FnMut()) -> StopOutcome {
        let start = Instant::now();
        loop {
            self.refuse_exec();
            meanwhile();
            // Attaching to a thread that is about to exit may fail; the next poll shows whether it
            // did.
            let _ = self.group.seize_new();
            if self.group.is_gone() || self.group.has_executed {
                self.group.detach_all();
                return if self.group.has_executed { StopOutcome::Executed } else { StopOutcome::Exited };
            }
            for tid in self.group.poll() {
                self.keep_if_detachable(tid);
            }
            self.remove_exited();
            let all_stopped = self.group.all_stopped() && self.threads.len() == self.group.members.len();
            if all_stopped && self.group.seize_new().is_ok_and(|any| !any) {
                return StopOutcome::Stopped;
            }
            let waits = self.control.vforks.load(Ordering::SeqCst) != 0;
            let has_timed_out = match waits {
                true => start.elapsed() > VFORK_PATIENCE,
                false => self.group.has_timed_out(start.elapsed(), PATIENCE),
            };
            if has_timed_out {
                return StopOutcome::TimedOut;
            }
            self.group.interrupt_running(RECHECK_INTERVAL);
            std::thread::sleep(PAUSE);
        }
    }

    /// Keeps a stopped thread if it is at a safe point; lets it go on otherwise.
    fn keep_if_detachable(&mut self, tid: i32) {
        let Some(&TraceState::Stopped { signal, .. }) = self.group.members.get(&tid) else { return };
        // A thread that is about to get a signal handles it first.
        if signal == 0 {
            match self.locate(Tracee { tid }) {
                Ok(ThreadLocation::SafePoint(thread)) => return self.threads.push(*thread),
                Ok(ThreadLocation::CodeCache) => {
                    // If it fails, the thread is dying.
                    let _ = ptrace::queue(self.target.process, tid, libc::SIGTRAP, DETACH_REQUEST);
                }
                Ok(ThreadLocation::Engine) | Err(_) => {}
            }
        }
        self.group.resume(tid);
    }

    fn remove_exited(&mut self) {
        let members = &self.group.members;
        self.threads.retain(|thread| members.contains_key(&thread.tracee.tid));
    }

    fn locate(&self, tracee: Tracee) -> Result<ThreadLocation> {
        let registers = tracee.registers().context("reading registers")?;
        let pc = registers.rip;
        let in_engine = self.target.injected.engine.contains(&pc);
        let Some(state) = self.state_of(tracee, registers.gs_base)? else {
            if in_engine || self.is_engine_memory(pc) {
                // A thread that has just started or is about to exit.
                return Ok(ThreadLocation::Engine);
            }
            let thread = DetachableThread { tracee, stopped: registers, call: None, state: None };
            return Ok(ThreadLocation::SafePoint(Box::new(thread)));
        };
        if pc == self.control.layout.system_call.load(Ordering::SeqCst) + syscall::INSTRUCTION_BYTES {
            let call = syscall::interrupted_call_of(tracee, &registers, 0);
            if call.is_some() {
                let thread = DetachableThread { tracee, stopped: registers, call, state: Some(state) };
                return Ok(ThreadLocation::SafePoint(Box::new(thread)));
            }
        }
        if in_engine {
            let parked: u32 = state::field(tracee, state.address, &self.control.layout.parked)?;
            let thread = DetachableThread { tracee, stopped: registers, call: None, state: Some(state) };
            return Ok(if parked != 0 { ThreadLocation::SafePoint(Box::new(thread)) } else { ThreadLocation::Engine });
        }
        Ok(if self.is_engine_memory(pc) { ThreadLocation::CodeCache } else { ThreadLocation::Engine })
    }

    /// Returns whether `address` is in memory of the engine.
    fn is_engine_memory(&self, address: u64) -> bool {
        state::engine_ranges(self.control).any(|range| range.contains(&address))
    }

    /// Returns the engine's state of a thread, if gs points at it. A thread that has just started
    /// still has its parent's.
    fn state_of(&self, tracee: Tracee, address: u64) -> Result<Option<ThreadState>> {
        let layout = &self.control.layout;
        if address == 0
            || !self.is_engine_memory(address)
            || state::field::<u64>(tracee, address, &layout.this)? != address
        {
            return Ok(None);
        }
        let slot: u32 = state::field(tracee, address, &layout.slot)?;
        let owner = self.control.slots.get(slot as usize).map_or(0, |slot| slot.os_tid.load(Ordering::SeqCst));
        if Status::of(tracee.tid).ok().and_then(|status| status.own_tid()) != Some(owner) {
            return Ok(None);
        }
        ThreadState::read(tracee, address, layout).map(Some)
    }

    /// Refuses an exec: the thread executes the other program untraced.
    fn refuse_exec(&self) {
        let state = &self.control.exec_state;
        let answer = match state.load(Ordering::SeqCst) {
            EXEC_WANTED => EXEC_REFUSED,
            EXEC_FAILED => EXEC_IDLE,
            _ => return,
        };
        self.control.exec_tid.store(0, Ordering::SeqCst);
        state.store(answer, Ordering::SeqCst);
        shared::wake(state);
    }

    /// Lets all threads go on as they are, with this request in `Control::detach`.
    fn resume_all(&mut self, request: u32) {
        self.control.detach.store(request, Ordering::SeqCst);
        shared::wake(&self.control.detach);
        self.group.detach_all();
    }

    /// Lets all threads go on natively. Whatever fails, does the rest; returns the first failure.
    /// Most often it means that the process is dying.
    fn finish(mut self) -> Option<InjectError> {
        let threads = std::mem::take(&mut self.threads);
        let tid = threads.first().map_or(self.target.process, |thread| thread.tracee.tid);
        // A seccomp filter of the application allows every call from the engine's image.
        let engine_gate = Some(self.control.layout.gate.load(Ordering::SeqCst)).filter(|&gate| gate != 0);
        let gate = engine_gate
            .or_else(|| maps::of_process(tid).ok().and_then(|mappings| remote::gate(Tracee { tid }, &mappings)));
        let (mut remotes, mut problems) = (Vec::new(), Vec::new());
        for thread in threads {
            match Remote::new(thread.tracee, gate, 0) {
                Ok(remote) => remotes.push((remote, thread)),
                Err(error) => problems.push(error),
            }
        }
        problems.extend(self.restore_process(&mut remotes).err());
        for (remote, thread) in &mut remotes {
            problems.extend(self.restore_alternate_stack(remote, thread).err());
        }
        if problems.is_empty()
            && self.control.sharers.load(Ordering::SeqCst) == 0
            && let Some((remote, _)) = remotes.first_mut()
        {
            problems.extend(self.unmap(remote).err());
        }
        for (mut remote, thread) in remotes {
            let restored = remote.halt().and_then(|()| thread.restore(&remote));
            problems.extend(restored.and_then(|()| remote.detach()).err());
        }
        problems.into_iter().next()
    }

    /// Makes a thread execute the engine's function that restores what belongs to the process as a
    /// whole.
    fn restore_process(&self, remotes: &mut [(Remote, DetachableThread)]) -> Result<()> {
        let has_state = |(remote, thread)| Some((remote, DetachableThread::state(thread)?));
        let Some((remote, state)) = remotes.iter_mut().map(|(remote, thread)| (remote, &*thread)).find_map(has_state)
        else {
            return Ok(());
        };
        let function = self.control.layout.finish.load(Ordering::SeqCst);
        let entry = inject::start_at(function, state.address, state.engine_stack, &remote.registers);
        remote.run(&entry, || self.control.stage.load(Ordering::SeqCst) == STAGE_FINISHED)
    }

    /// Restores the alternate stack of a thread. The thread makes the call on the application's
    /// stack: a thread that runs on an alternate stack cannot change it.
    fn restore_alternate_stack(&self, remote: &mut Remote, thread: &DetachableThread) -> Result<()> {
        let Some(state) = thread.state() else { return Ok(()) };
        remote.registers.rsp = state.registers.general[wire::RSP];
        let stack = state.address + u64::from(self.control.layout.alternate_stack.load(Ordering::SeqCst));
        remote.call("sigaltstack", libc::SYS_sigaltstack, [stack, 0, 0, 0, 0, 0])?;
        Ok(())
    }

    fn unmap(&self, remote: &mut Remote) -> Result<()> {
        for range in state::engine_ranges(self.control) {
            remote.call("munmap", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
        }
        inject::remove(remote, self.target.injected)
    }
}

impl DetachableThread {
    fn state(&self) -> Option<&ThreadState> {
        self.state.as_ref()
    }

    fn slot(&self) -> Option<(u32, u32)> {
        let state = self.state.as_ref()?;
        Some((state.slot, u32::try_from(state.used).unwrap_or(0)))
    }

    /// Gives the thread its native registers and mask. It is stopped where the kernel looks at
    /// interrupted calls.
    fn restore(&self, remote: &Remote) -> Result<()> {
        let Some(state) = &self.state else {
            return remote.finish_with(&syscall::resumed_registers(&self.stopped, self.call), remote.mask);
        };
        state.restore_vectors(self.tracee)?;
        let native = state.native_registers(&self.stopped);
        remote.finish_with(&inside_call(&native, &self.stopped, self.call), state.mask)
    }
}

/// Returns the registers of a thread in a system call as if the application's own instruction had
/// made the call.
fn inside_call(
    native: &user_regs_struct,
    stopped: &user_regs_struct,
    call: Option<InterruptedCall>,
) -> user_regs_struct {
    let Some(call) = call else { return *native };
    let after = native.rip + syscall::INSTRUCTION_BYTES;
    let inside = user_regs_struct {
        rip: after,
        rcx: after,
        r11: native.eflags,
        rax: stopped.rax,
        orig_rax: stopped.orig_rax,
        ..*native
    };
    syscall::resumed_registers(&inside, Some(call))
}
