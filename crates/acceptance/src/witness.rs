//! A second source of events: the system calls of a program and its signals, observed by ptrace
//! while the program runs natively. (The `oracle` lists the instructions in between.)

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use libc::{c_int, c_void, pid_t, user_regs_struct};

/// An event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedEvent {
    /// A system call was entered.
    Call(u64),
    /// A signal interrupted the thread before (or by) the instruction at `pc`. The thread went on
    /// at `handler`, or ended (0).
    Signal { signal: i32, pc: u64, handler: u64 },
}

/// `si_code` of the stop at the first instruction of a handler.
const HANDLER_ENTERED: c_int = libc::SIGTRAP;
const SYSTEM_CALL_STOP: c_int = libc::SIGTRAP | 0x80;
const TRACE_OPTIONS: c_int =
    libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
/// The offset of rip in the frame of a handler: behind the return address, the head of the context,
/// and sixteen registers.
const FRAME_RIP: u64 = 8 + 40 + 16 * 8;

/// Runs a command natively, without address space randomisation. Returns the events of each of its
/// threads, in the order of their creation. The output has to fit into the pipes. Child processes
/// are not observed.
///
/// # Panics
///
/// If the program cannot be run under ptrace.
#[must_use]
pub fn watch(command: &mut Command) -> Vec<Vec<ObservedEvent>> {
    // A thread of its own is the tracer: it waits for its own children only.
    std::thread::scope(|scope| match scope.spawn(|| Witness::start(command).run()).join() {
        Ok(events) => events,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

struct TracedThread {
    /// Position in [`Witness::events`].
    index: usize,
    in_call: bool,
    /// The signal whose handler is about to be entered.
    delivered: c_int,
    /// Whether the initial stop of a new thread has not been seen yet.
    awaits_first_stop: bool,
}

struct Witness {
    process: pid_t,
    threads: HashMap<pid_t, TracedThread>,
    events: Vec<Vec<ObservedEvent>>,
    /// Keeps the program's pipes open.
    _child: Child,
}

impl Witness {
    fn start(command: &mut Command) -> Self {
        // SAFETY: between fork and exec only plain system calls are made, all safe there.
        unsafe {
            command.pre_exec(|| {
                let current = libc::personality(0xffff_ffff);
                if libc::personality((current | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) < 0
                    || libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0
                {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let process = child.id().cast_signed();
        let (thread, status) = wait().expect("the child stops when its exec is complete");
        assert!(thread == process && libc::WIFSTOPPED(status), "{command:?} did not stop: {status:#x}");
        request(libc::PTRACE_SETOPTIONS, process, TRACE_OPTIONS as usize);
        let mut witness = Self { process, threads: HashMap::new(), events: Vec::new(), _child: child };
        witness.add_thread(process, false);
        resume_to_syscall(process, 0);
        witness
    }

    fn run(mut self) -> Vec<Vec<ObservedEvent>> {
        while let Some((thread, status)) = wait() {
            if libc::WIFSTOPPED(status) {
                self.handle_stop(thread, status);
            } else if thread == self.process {
                break;
            }
        }
        self.events
    }

    fn add_thread(&mut self, thread: pid_t, awaits_first_stop: bool) {
        let events = &mut self.events;
        self.threads.entry(thread).or_insert_with(|| {
            events.push(Vec::new());
            TracedThread { index: events.len() - 1, in_call: false, delivered: 0, awaits_first_stop }
        });
    }

    fn handle_stop(&mut self, thread: pid_t, status: c_int) {
        match status >> 16 {
            0 => self.handle_signal_stop(thread, libc::WSTOPSIG(status)),
            libc::PTRACE_EVENT_CLONE => {
                self.add_thread(event_message(thread), true);
                resume_to_syscall(thread, 0);
            }
            _ => resume_to_syscall(thread, 0),
        }
    }

    fn handle_signal_stop(&mut self, thread: pid_t, signal: c_int) {
        // The first stop of a thread can come before the one of its creator.
        self.add_thread(thread, true);
        let state = self.threads.get_mut(&thread).expect("adopted above");
        if signal == libc::SIGSTOP && state.awaits_first_stop {
            state.awaits_first_stop = false;
            resume_to_syscall(thread, 0);
        } else if signal == SYSTEM_CALL_STOP {
            self.system_call(thread);
        } else if signal == libc::SIGTRAP && signal_code(thread) == Some(HANDLER_ENTERED) {
            self.handler_entered(thread);
        } else if signal_code(thread).is_none() {
            // A group stop: no other process would continue it.
            resume_to_syscall(thread, 0);
        } else {
            self.deliver(thread, signal);
        }
    }

    fn system_call(&mut self, thread: pid_t) {
        let state = self.threads.get_mut(&thread).expect("threads are adopted before");
        state.in_call = !state.in_call;
        if state.in_call {
            self.events[state.index].push(ObservedEvent::Call(registers(thread).orig_rax));
        }
        resume_to_syscall(thread, 0);
    }

    /// Handles a signal that is about to be delivered: to a handler, whose entry follows, or to end
    /// the process, or to be ignored.
    fn deliver(&mut self, thread: pid_t, signal: c_int) {
        let state = self.threads.get_mut(&thread).expect("threads are adopted before");
        if is_in_mask(thread, "SigCgt:", signal) {
            state.delivered = signal;
            request(libc::PTRACE_SINGLESTEP, thread, signal as usize);
            return;
        }
        const HARMLESS: [c_int; 8] = [
            libc::SIGCHLD,
            libc::SIGURG,
            libc::SIGWINCH,
            libc::SIGCONT,
            libc::SIGSTOP,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
        ];
        if !HARMLESS.contains(&signal) && !is_in_mask(thread, "SigIgn:", signal) {
            let pc = registers(thread).rip;
            self.events[state.index].push(ObservedEvent::Signal { signal, pc, handler: 0 });
        }
        resume_to_syscall(thread, signal);
    }

    fn handler_entered(&mut self, thread: pid_t) {
        let registers = registers(thread);
        let pc = peek(thread, registers.rsp + FRAME_RIP);
        let state = self.threads.get_mut(&thread).expect("threads are adopted before");
        let signal = std::mem::take(&mut state.delivered);
        self.events[state.index].push(ObservedEvent::Signal { signal, pc, handler: registers.rip });
        resume_to_syscall(thread, 0);
    }
}

/// Returns whether a signal is in one of the masks that /proc shows.
fn is_in_mask(thread: pid_t, name: &str, signal: c_int) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & 1 << (signal - 1) != 0
}

/// Waits for the next stop of a traced thread; `None` when there is none left.
fn wait() -> Option<(pid_t, c_int)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread > 0 {
            return Some((thread, status));
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Lets a thread run to its next system call or signal, after delivering `signal` if it is not 0.
fn resume_to_syscall(thread: pid_t, signal: c_int) {
    request(libc::PTRACE_SYSCALL, thread, signal as usize);
}

/// Makes a request whose data is a number. If it fails, the thread was killed meanwhile; the next
/// wait reports that.
fn request(request: libc::c_uint, thread: pid_t, data: usize) {
    // SAFETY: none of the requests made here takes a pointer.
    unsafe { libc::ptrace(request, thread, 0, std::ptr::without_provenance_mut::<c_void>(data)) };
}

fn registers(thread: pid_t) -> user_regs_struct {
    // SAFETY: all-zero is a valid value of this plain struct, which the request fills in.
    unsafe {
        let mut registers: user_regs_struct = std::mem::zeroed();
        libc::ptrace(libc::PTRACE_GETREGS, thread, 0, (&raw mut registers).cast::<c_void>());
        registers
    }
}

fn event_message(thread: pid_t) -> pid_t {
    let mut message = 0u64;
    // SAFETY: the request writes one word to `message`.
    unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, (&raw mut message).cast::<c_void>()) };
    message as pid_t
}

/// Returns `si_code` of the signal that stopped the thread; `None` in a group stop.
fn signal_code(thread: pid_t) -> Option<c_int> {
    // SAFETY: all-zero is a valid value of this plain struct, which the request fills in.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::ptrace(libc::PTRACE_GETSIGINFO, thread, 0, (&raw mut info).cast::<c_void>());
        (result == 0).then_some(info.si_code)
    }
}

fn peek(thread: pid_t, address: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: the kernel's own request (unlike the C library's) writes one word to `word`.
    unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, thread, address as usize, &raw mut word) };
    word
}
