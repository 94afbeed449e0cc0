//! The stepping loop: what each kind of stop says about the instruction that a thread was about to
//! execute.
//!
//! Knows ptrace's stops and the few instructions that behave differently under it. The requests are
//! in `tracee`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic};
use libc::{c_int, pid_t, user_regs_struct};

use crate::access::{Access, PlannedAccess};
use crate::operand::{self, ThreadRegisters};
use crate::snapshot::Snapshot;
use crate::tracee::{self, Tracee};
use crate::{Error, Execution, Exit, StepOptions};

const TRAP_FLAG: u64 = 0x100;
/// `si_code` of the stop at the first instruction of a signal handler (the kernel's
/// `ptrace_notify`).
const HANDLER_ENTERED: c_int = libc::SIGTRAP;
const TRACE_OPTIONS: c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_EXITKILL;

/// Starts `command` and steps it until it exits. Must be called on a thread without other children.
pub fn run(command: &mut Command, options: &StepOptions) -> Result<Execution, Error> {
    if options.one_processor {
        tracee::share_one_processor(options.processor);
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = tracee::start(command).map_err(|source| Error::Start { command: name, source })?;
    drop(child.stdin.take());
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let mut stepper = Stepper::new(&child, options);
    let exit = stepper.run().inspect_err(|_| kill_rest(stepper.process))?;
    Ok(Execution {
        threads: stepper.executed,
        accesses: stepper.accesses,
        exit,
        stdout: collected(stdout)?,
        stderr: collected(stderr)?,
    })
}

/// Kills and reaps the rest of a program that cannot be stepped until it exits.
fn kill_rest(process: pid_t) {
    tracee::kill(process);
    while let Ok(Some((thread, status))) = tracee::wait() {
        if libc::WIFSTOPPED(status) {
            // It may have exited already.
            let _ = Tracee(thread).resume();
        }
    }
}

type Collector = Option<JoinHandle<io::Result<Vec<u8>>>>;

/// Reads a pipe in another thread, so that the program never waits for room in it.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Collector {
    let mut pipe = pipe?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    }))
}

fn collected(collector: Collector) -> Result<Vec<u8>, Error> {
    match collector.map(JoinHandle::join) {
        None => Ok(Vec::new()),
        Some(Ok(bytes)) => bytes.map_err(Error::Output),
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}

/// A thread between two stops.
struct SteppedThread {
    /// Position in [`Stepper::executed`].
    index: usize,
    /// The address of the next instruction; `None` while the thread is on its way into a new
    /// program.
    next: Option<u64>,
    stack_pointer: u64,
    /// Whether the last instruction was a system call that the kernel will restart, unless a
    /// handler comes in between.
    will_be_restarted: bool,
    /// Whether the initial stop of a new thread has not been seen yet.
    awaits_first_stop: bool,
    /// The accesses of the next instruction, if they are wanted.
    planned: Vec<PlannedAccess>,
}

struct Stepper<'a> {
    process: pid_t,
    options: &'a StepOptions,
    threads: HashMap<pid_t, SteppedThread>,
    /// Processes whose first stop came before their creator's stop, which says how they were made.
    unidentified: HashSet<pid_t>,
    /// Processes that are not followed and have not stopped yet.
    unfollowed: HashSet<pid_t>,
    executed: Vec<Vec<u64>>,
    accesses: Vec<Vec<Access>>,
    stop_count: u64,
    factory: InstructionInfoFactory,
    /// The writable memory before the step, if that is wanted. Dropped when the kernel writes.
    snapshot: Option<Snapshot>,
}

impl<'a> Stepper<'a> {
    fn new(child: &Child, options: &'a StepOptions) -> Self {
        let process = child.id().cast_signed();
        Self {
            process,
            options,
            threads: HashMap::new(),
            unidentified: HashSet::new(),
            unfollowed: HashSet::new(),
            executed: Vec::new(),
            accesses: Vec::new(),
            stop_count: 0,
            factory: InstructionInfoFactory::new(),
            snapshot: None,
        }
    }

    fn run(&mut self) -> Result<Exit, Error> {
        self.first_stop()?;
        while let Some((thread, status)) = tracee::wait()? {
            if libc::WIFSTOPPED(status) {
                self.count_stop()?;
                ignore_death(self.handle_stop(Tracee(thread), status))?;
            } else {
                self.threads.remove(&thread);
                if thread == self.process {
                    return Ok(exit_of(status));
                }
            }
        }
        Err(Error::Wait(io::Error::from_raw_os_error(libc::ECHILD)))
    }

    /// Waits for the first stop, by SIGTRAP, after the exec.
    fn first_stop(&mut self) -> Result<(), Error> {
        match tracee::wait()? {
            Some((thread, status)) if thread == self.process && libc::WIFSTOPPED(status) => {
                let tracee = Tracee(thread);
                tracee.set_options(TRACE_OPTIONS)?;
                self.add_thread(thread, false);
                self.fix_random_bytes(tracee)?;
                self.resume_in_place(tracee)
            }
            Some((thread, status)) => Err(Error::Unexpected { thread, status }),
            None => Err(Error::Wait(io::Error::from_raw_os_error(libc::ECHILD))),
        }
    }

    fn count_stop(&mut self) -> Result<(), Error> {
        self.stop_count += 1;
        if self.stop_count > self.options.stops_max { Err(Error::TooLong(self.options.stops_max)) } else { Ok(()) }
    }

    fn handle_stop(&mut self, tracee: Tracee, status: c_int) -> Result<(), Error> {
        if !self.threads.contains_key(&tracee.0) && status >> 16 != libc::PTRACE_EVENT_EXEC {
            return self.handle_unknown_stop(tracee);
        }
        match status >> 16 {
            0 => self.handle_signal_stop(tracee, libc::WSTOPSIG(status)),
            libc::PTRACE_EVENT_CLONE => {
                let child = tracee.event_message()? as pid_t;
                if self.is_thread(child) {
                    self.add_thread(child, true);
                } else if self.unidentified.remove(&child) {
                    ignore_death(Tracee(child).detach())?;
                } else {
                    self.unfollowed.insert(child);
                }
                tracee.step(0)
            }
            libc::PTRACE_EVENT_VFORK => {
                let child = tracee.event_message()? as pid_t;
                let has_stopped = self.unidentified.remove(&child);
                self.add_thread(child, !has_stopped);
                tracee.step(0)?;
                if has_stopped { ignore_death(self.resume_in_place(Tracee(child))) } else { Ok(()) }
            }
            libc::PTRACE_EVENT_EXEC if tracee.0 != self.process => self.detach_vfork_child(tracee),
            libc::PTRACE_EVENT_EXEC => self.handle_exec(tracee),
            libc::PTRACE_EVENT_EXIT => self.handle_exit(tracee),
            _ => Err(Error::Unexpected { thread: tracee.0, status }),
        }
    }

    /// Handles the first stop of a thread that comes before its creator's stop.
    fn handle_unknown_stop(&mut self, tracee: Tracee) -> Result<(), Error> {
        if self.unfollowed.remove(&tracee.0) {
            return tracee.detach();
        }
        if !self.is_thread(tracee.0) {
            // Made by clone without CLONE_THREAD, or by vfork.
            self.unidentified.insert(tracee.0);
            return Ok(());
        }
        self.add_thread(tracee.0, false);
        self.resume_in_place(tracee)
    }

    fn is_thread(&self, thread: pid_t) -> bool {
        Path::new(&format!("/proc/{}/task/{thread}", self.process)).exists()
    }

    fn add_thread(&mut self, thread: pid_t, awaits_first_stop: bool) {
        let (executed, accesses) = (&mut self.executed, &mut self.accesses);
        self.threads.entry(thread).or_insert_with(|| {
            executed.push(Vec::new());
            accesses.push(Vec::new());
            let index = executed.len() - 1;
            SteppedThread {
                index,
                next: None,
                stack_pointer: 0,
                will_be_restarted: false,
                awaits_first_stop,
                planned: Vec::new(),
            }
        });
    }

    fn handle_signal_stop(&mut self, tracee: Tracee, signal: c_int) -> Result<(), Error> {
        if signal == libc::SIGSTOP && self.thread(tracee).awaits_first_stop {
            self.thread(tracee).awaits_first_stop = false;
            return self.resume_in_place(tracee);
        }
        match (signal, tracee.signal_code()?) {
            (libc::SIGTRAP, Some(libc::TRAP_BRKPT | libc::TRAP_TRACE)) => self.finish_step(tracee),
            (libc::SIGTRAP, Some(HANDLER_ENTERED)) => {
                hide_framed_trap_flag(tracee)?;
                self.resume_in_place(tracee)
            }
            (libc::SIGTRAP, Some(libc::SI_KERNEL)) => {
                self.record_next(tracee);
                tracee.step(signal)
            }
            (_, Some(_)) => {
                if self.thread(tracee).next.is_none() {
                    self.note_position(tracee)?;
                }
                tracee.step(signal)
            }
            // A group stop: goes on at once, because no other process would continue this one.
            (_, None) => tracee.step(0),
        }
    }

    /// Handles the stop after an instruction, or after one iteration of it.
    fn finish_step(&mut self, tracee: Tracee) -> Result<(), Error> {
        let mut registers = tracee.registers()?;
        let thread = self.thread(tracee);
        if thread.will_be_restarted {
            thread.next = Some(registers.rip - 2);
            thread.planned.clear();
        }
        if let Some(pc) = thread.next {
            let pushed = thread.stack_pointer.wrapping_sub(registers.rsp);
            hide_pushed_trap_flag(tracee, pc, pushed, &registers)?;
            hide_saved_trap_flag(tracee, &mut registers)?;
            self.record_accesses(tracee, pc)?;
            if pc != registers.rip || !is_repeated(tracee, pc) {
                self.record_next(tracee);
            }
        }
        self.thread(tracee).will_be_restarted = will_restart(&registers);
        self.step_next(tracee, registers)
    }

    /// Goes on from where the registers say; nothing has been executed.
    fn resume_in_place(&mut self, tracee: Tracee) -> Result<(), Error> {
        self.thread(tracee).will_be_restarted = false;
        self.snapshot = None;
        let registers = tracee.registers()?;
        self.step_next(tracee, registers)
    }

    /// Notes the address of the next instruction.
    fn note_position(&mut self, tracee: Tracee) -> Result<(), Error> {
        let registers = tracee.registers()?;
        let thread = self.thread(tracee);
        thread.next = Some(registers.rip);
        thread.stack_pointer = registers.rsp;
        Ok(())
    }

    fn step_next(&mut self, tracee: Tracee, mut registers: user_regs_struct) -> Result<(), Error> {
        self.abort_transactions(tracee, &mut registers)?;
        let thread = self.thread(tracee);
        thread.next = Some(registers.rip);
        thread.stack_pointer = registers.rsp;
        if self.options.memory {
            self.plan_accesses(tracee, &registers)?;
        }
        tracee.step(0)
    }

    /// Moves a thread at an `xbegin` to the fallback. Single-stepping aborts every transaction, but
    /// the processor would stop only after the first instruction of the fallback.
    fn abort_transactions(&mut self, tracee: Tracee, registers: &mut user_regs_struct) -> Result<(), Error> {
        while is_xbegin(tracee, registers.rip) {
            let index = self.thread(tracee).index;
            self.executed[index].push(registers.rip);
            registers.rip = instruction_at(tracee, registers.rip).near_branch_target();
            registers.rax = 0;
            tracee.set_registers(registers)?;
        }
        Ok(())
    }

    /// Computes the accesses of the next instruction and reads the values of its reads.
    fn plan_accesses(&mut self, tracee: Tracee, registers: &user_regs_struct) -> Result<(), Error> {
        let instruction = instruction_at(tracee, registers.rip);
        let state = ThreadRegisters::new(tracee, registers);
        let mut planned = operand::accesses(&instruction, &mut self.factory, &state)?;
        planned.iter_mut().filter(|access| !access.writes).for_each(|access| access.read_value(tracee));
        self.thread(tracee).planned = planned;
        if instruction.mnemonic() == Mnemonic::Syscall {
            self.snapshot = None;
        } else if self.options.check_writes && self.snapshot.is_none() {
            self.snapshot = Some(Snapshot::take(tracee)?);
        }
        Ok(())
    }

    /// Lists the planned accesses of the instruction at `pc`, or of one iteration of it.
    fn record_accesses(&mut self, tracee: Tracee, pc: u64) -> Result<(), Error> {
        let thread = self.thread(tracee);
        let (index, planned) = (thread.index, std::mem::take(&mut thread.planned));
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.check(tracee, pc, &planned)?;
        }
        let instruction = self.executed[index].len() as u64;
        for mut access in planned {
            access.read_value(tracee);
            let PlannedAccess { address, writes, .. } = access;
            let value = access.value.ok_or(Error::Unreadable { pc, address })?;
            self.accesses[index].push(Access { instruction, pc, address, writes, value });
        }
        Ok(())
    }

    /// Overwrites the random bytes that the kernel has put on the stack of a new program.
    fn fix_random_bytes(&self, tracee: Tracee) -> Result<(), Error> {
        let Some(bytes) = self.options.random_bytes else { return Ok(()) };
        let Some(place) = random_bytes_of(tracee)? else { return Ok(()) };
        tracee.poke(place, u64::from_le_bytes(std::array::from_fn(|i| bytes[i])))?;
        tracee.poke(place + 8, u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])))
    }

    /// Detaches from a child that shared the memory and executes another program.
    fn detach_vfork_child(&mut self, tracee: Tracee) -> Result<(), Error> {
        self.record_next(tracee);
        self.threads.remove(&tracee.0);
        tracee.detach()
    }

    /// Handles an exec. It makes the thread the only one of the process, under the process's
    /// number.
    fn handle_exec(&mut self, tracee: Tracee) -> Result<(), Error> {
        let former = tracee.event_message()? as pid_t;
        if let Some(mut thread) = self.threads.remove(&former) {
            if let Some(pc) = thread.next.take() {
                self.executed[thread.index].push(pc);
            }
            thread.will_be_restarted = false;
            thread.planned.clear();
            self.threads.clear();
            self.threads.insert(tracee.0, thread);
        }
        self.snapshot = None;
        self.fix_random_bytes(tracee)?;
        tracee.step(0)
    }

    /// Handles the exit of a thread. In a system call (its own exit, or another's while it waited),
    /// the `syscall` was executed.
    fn handle_exit(&mut self, tracee: Tracee) -> Result<(), Error> {
        let registers = tracee.registers()?;
        let pc = self.thread(tracee).next;
        if registers.orig_rax.cast_signed() >= 0 && pc == Some(registers.rip.wrapping_sub(2)) {
            self.record_next(tracee);
        }
        tracee.resume()
    }

    fn record_next(&mut self, tracee: Tracee) {
        let thread = self.thread(tracee);
        let index = thread.index;
        if let Some(pc) = thread.next.take() {
            self.executed[index].push(pc);
        }
    }

    fn thread(&mut self, tracee: Tracee) -> &mut SteppedThread {
        self.threads.get_mut(&tracee.0).expect("threads are adopted before their stops are looked at")
    }
}

fn exit_of(status: c_int) -> Exit {
    if libc::WIFEXITED(status) { Exit::Status(libc::WEXITSTATUS(status)) } else { Exit::Signal(libc::WTERMSIG(status)) }
}

/// Ignores that a stopped thread was killed; `wait` will report it.
fn ignore_death(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Ptrace { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

/// Returns whether the kernel will restart the system call just left: its result is one of the
/// internal codes of the kernel.
fn will_restart(registers: &user_regs_struct) -> bool {
    const RESTART_CODES: [i64; 4] = [-512, -513, -514, -516];
    registers.orig_rax.cast_signed() >= 0 && RESTART_CODES.contains(&registers.rax.cast_signed())
}

/// Returns whether the instruction at `pc` stops after every iteration.
fn is_repeated(tracee: Tracee, pc: u64) -> bool {
    let instruction = instruction_at(tracee, pc);
    instruction.is_string_instruction() && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

fn instruction_at(tracee: Tracee, pc: u64) -> Instruction {
    let mut bytes = [0; 15];
    let length = tracee.read(pc, &mut bytes);
    Decoder::with_ip(64, &bytes[..length], pc, DecoderOptions::NONE).decode()
}

/// Returns the address of the kernel's random bytes, from the auxiliary vector, which lies behind
/// the argument count, arguments and environment.
fn random_bytes_of(tracee: Tracee) -> Result<Option<u64>, Error> {
    let stack = tracee.registers()?.rsp;
    let mut place = stack + 8 * (tracee.peek(stack)? + 2);
    while tracee.peek(place)? != 0 {
        place += 8;
    }
    loop {
        let (kind, value) = (tracee.peek(place + 8)?, tracee.peek(place + 16)?);
        match kind {
            libc::AT_NULL => return Ok(None),
            libc::AT_RANDOM => return Ok(Some(value)),
            _ => place += 16,
        }
    }
}

/// Returns whether the instruction begins a transaction. Without that feature, it faults.
fn is_xbegin(tracee: Tracee, pc: u64) -> bool {
    let mut bytes = [0; 3];
    let length = tracee.read(pc, &mut bytes);
    matches!(bytes[..length], [0xc7, 0xf8, _] | [0x66, 0xc7, 0xf8]) && std::is_x86_feature_detected!("rtm")
}

/// If the instruction at `pc` was a `pushf`, clears the trap flag in the pushed value.
fn hide_pushed_trap_flag(tracee: Tracee, pc: u64, pushed: u64, registers: &user_regs_struct) -> Result<(), Error> {
    let length = registers.rip.wrapping_sub(pc) as usize;
    if !matches!((pushed, length), (8, 1 | 2) | (2, 2 | 3)) {
        return Ok(());
    }
    let mut bytes = [0; 3];
    let read = tracee.read(pc, &mut bytes[..length]);
    let Some((0x9c, prefixes)) = bytes[..read].split_last() else { return Ok(()) };
    if prefixes.iter().all(|prefix| matches!(prefix, 0x66 | 0x40..=0x4f)) {
        let word = tracee.peek(registers.rsp)?;
        tracee.poke(registers.rsp, word & !TRAP_FLAG)?;
    }
    Ok(())
}

/// Clears the trap flag in the context of a handler, to which rdx points. The kernel does so
/// itself, but no longer once the program has executed a `popf`.
fn hide_framed_trap_flag(tracee: Tracee) -> Result<(), Error> {
    const FLAGS_IN_CONTEXT: u64 = 176;
    let place = tracee.registers()?.rdx.wrapping_add(FLAGS_IN_CONTEXT);
    let flags = tracee.peek(place)?;
    if flags & TRAP_FLAG == 0 { Ok(()) } else { tracee.poke(place, flags & !TRAP_FLAG) }
}

/// If a `syscall` was executed, clears the trap flag in r11. Its other mark is the return address
/// in rcx.
fn hide_saved_trap_flag(tracee: Tracee, registers: &mut user_regs_struct) -> Result<(), Error> {
    if registers.rcx == registers.rip && registers.r11 & TRAP_FLAG != 0 {
        registers.r11 &= !TRAP_FLAG;
        tracee.set_registers(registers)?;
    }
    Ok(())
}
