//! A stopped thread that executes system calls for us.
//!
//! It does so at a `syscall` instruction that is there anyway (the kernel's own, in the vdso), or
//! else at the place where it stands, whose code is changed meanwhile. Signals wait until it is
//! over.

use std::io;

use libc::user_regs_struct;

use crate::inject::{Context, InjectError, Result};
use crate::maps::Mapping;
use crate::ptrace::{self, Stop, Tracee};
use crate::thread_group::PAUSE;

/// The instruction `syscall`, as the low bytes of a word.
const SYSCALL: u64 = 0x050f;
/// Stop after each instruction.
const FLAG_TRAP: u64 = 1 << 8;

fn is_fault(signal: i32) -> bool {
    wire::FAULT_SIGNALS.iter().any(|&fault| fault.cast_signed() == signal)
}

/// The address of a `syscall` instruction that every process has, if it can be found.
pub fn gate(tracee: Tracee, mappings: &[Mapping]) -> Option<u64> {
    let vdso = mappings.iter().find(|mapping| mapping.path == "[vdso]")?;
    let mut code = vec![0; (vdso.range.end - vdso.range.start) as usize];
    tracee.read(vdso.range.start, &mut code).ok()?;
    let at = code.windows(2).position(|bytes| bytes == SYSCALL.to_le_bytes()[..2].as_ref())?;
    Some(vdso.range.start + at as u64)
}

#[derive(Debug)]
pub struct Remote {
    pub tracee: Tracee,
    /// What the thread had in its registers when it was stopped.
    pub registers: user_regs_struct,
    /// Its signal mask.
    pub mask: u64,
    at: u64,
    /// The code that was there before we changed it.
    original_word: Option<u64>,
    /// A signal that the thread was about to get: it is blocked now, and becomes pending when the
    /// thread goes on.
    signal: i32,
    /// A stop signal that came meanwhile and must not be lost.
    stop_signal: i32,
}

impl Remote {
    /// Takes a thread that has stopped, about to get `signal` unless it is 0. `gate` comes from
    /// [`gate`].
    pub fn new(tracee: Tracee, gate: Option<u64>, signal: i32) -> Result<Self> {
        let registers = tracee.registers().context("reading registers")?;
        let mask = tracee.signal_mask().context("reading the signal mask")?;
        tracee.set_signal_mask(u64::MAX).context("setting the signal mask")?;
        let mut remote =
            Self { tracee, registers, mask, at: registers.rip, original_word: None, signal, stop_signal: 0 };
        match gate {
            Some(address) => remote.at = address,
            None => remote.change_code()?,
        }
        Ok(remote)
    }

    fn change_code(&mut self) -> Result<()> {
        let word = self.tracee.peek(self.at).context("reading the target's code")?;
        self.original_word = Some(word);
        self.tracee.poke(self.at, word & !0xffff | SYSCALL).context("writing to the target's code")
    }

    /// Makes the thread execute a system call.
    pub fn call(&mut self, what: &'static str, number: i64, arguments: [u64; 6]) -> Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let rax = number as u64;
        let eflags = self.registers.eflags & !FLAG_TRAP;
        // Not in a system call: the kernel must not try to start one again.
        let orig_rax = u64::MAX;
        let registers =
            user_regs_struct { rax, rdi, rsi, rdx, r10, r8, r9, rip: self.at, eflags, orig_rax, ..self.registers };
        self.tracee.set_registers(&registers).context("setting registers")?;
        // Once to the entry, once to the exit.
        self.next_syscall_stop()?;
        self.next_syscall_stop()?;
        let result = self.tracee.registers().context("reading registers")?.rax as i64;
        match result {
            -4095..0 => Err(io::Error::from_raw_os_error(-result as i32)).context(what),
            _ => Ok(result as u64),
        }
    }

    pub fn protect(&mut self, address: u64, length: u64, protection: i32) -> Result<()> {
        self.call("mprotect", libc::SYS_mprotect, [address, length, protection as u64, 0, 0, 0]).map(drop)
    }

    fn next_syscall_stop(&mut self) -> Result<()> {
        loop {
            let signal = std::mem::take(&mut self.signal);
            self.tracee.resume_to_syscall(signal).context("continuing")?;
            match self.tracee.wait().context("waiting")? {
                Stop::Syscall => return Ok(()),
                Stop::Exited(exit) => return Err(InjectError::Exited(exit)),
                Stop::Signal(signal) => self.stop_signal = signal,
                _ => {}
            }
        }
    }

    /// Moves to a `syscall` instruction of the engine's: system calls are made there from now on.
    pub fn move_to(&mut self, gate: u64) -> Result<()> {
        self.restore_code()?;
        self.original_word = None;
        self.at = gate;
        Ok(())
    }

    /// Lets the thread run with these registers until `is_done`, and stops it again. All signals
    /// are blocked meanwhile. After a fault the thread is stopped as well.
    pub fn run(&mut self, registers: &user_regs_struct, is_done: impl Fn() -> bool) -> Result<()> {
        self.tracee.set_registers(registers).context("setting registers")?;
        let signal = std::mem::take(&mut self.signal);
        self.tracee.resume(signal).context("continuing")?;
        while !is_done() {
            match ptrace::try_wait(self.tracee.tid).context("waiting")? {
                None => std::thread::sleep(PAUSE),
                Some(Stop::Exited(exit)) => return Err(InjectError::Exited(exit)),
                Some(Stop::Signal(signal)) if is_fault(signal) => return Err(InjectError::Fault(signal)),
                Some(stop) => {
                    if let Stop::Signal(signal) = stop {
                        self.stop_signal = signal;
                    }
                    self.tracee.resume(0).context("continuing")?;
                }
            }
        }
        self.tracee.interrupt().context("interrupting")?;
        self.wait_for_halt()
    }

    /// Brings the thread from wherever it has stopped to a stop after which the kernel looks at
    /// signals and at interrupted system calls, as if it had just been interrupted.
    pub fn halt(&mut self) -> Result<()> {
        self.tracee.interrupt().context("interrupting")?;
        let signal = std::mem::take(&mut self.signal);
        self.tracee.resume(signal).context("continuing")?;
        self.wait_for_halt()
    }

    fn wait_for_halt(&mut self) -> Result<()> {
        loop {
            match self.tracee.wait().context("waiting")? {
                Stop::Other | Stop::Group(_) => return Ok(()),
                Stop::Exited(exit) => return Err(InjectError::Exited(exit)),
                Stop::Signal(signal) => self.stop_signal = signal,
                Stop::Exec | Stop::Syscall => {}
            }
            self.tracee.resume(0).context("continuing")?;
        }
    }

    /// Puts code, registers and mask back as they were. The kernel does not start an interrupted
    /// system call again.
    pub fn finish(&self) -> Result<()> {
        self.restore_code()?;
        self.tracee.set_signal_mask(self.mask).context("setting the signal mask")?;
        let registers = user_regs_struct { orig_rax: u64::MAX, ..self.registers };
        self.tracee.set_registers(&registers).context("setting registers")
    }

    /// Puts code back as it was.
    pub fn restore_code(&self) -> Result<()> {
        let Some(word) = self.original_word else { return Ok(()) };
        self.tracee.poke(self.at, word).context("writing to the target's code")
    }

    /// As [`Self::finish`], but the thread goes on with other registers.
    pub fn finish_with(&self, registers: &user_regs_struct, mask: u64) -> Result<()> {
        self.restore_code()?;
        self.tracee.set_signal_mask(mask).context("setting the signal mask")?;
        self.tracee.set_registers(registers).context("setting registers")
    }

    /// Lets go of the thread.
    pub fn detach(self) -> Result<()> {
        self.tracee.detach(self.signal).context("detaching")?;
        if self.stop_signal != 0 {
            ptrace::send(self.tracee.tid, self.stop_signal);
        }
        Ok(())
    }
}
