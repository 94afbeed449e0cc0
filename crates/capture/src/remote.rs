//! A stopped thread that executes system calls for the recorder.
//!
//! It does so at a `syscall` instruction of the vdso or, if there is none, at its current address,
//! whose code is changed meanwhile. Signals stay blocked until the end.

use std::io;

use libc::user_regs_struct;

use crate::inject::{Context, InjectError, Result};
use crate::maps::Mapping;
use crate::ptrace::{self, Stop, Tracee};
use crate::thread_group::PAUSE;

/// The instruction `syscall`, as the low bytes of a word.
const SYSCALL: u64 = 0x050f;
/// The flag that stops after each instruction.
const FLAG_TRAP: u64 = 1 << 8;

fn is_fault(signal: i32) -> bool {
    wire::FAULT_SIGNALS.iter().any(|&fault| fault.cast_signed() == signal)
}

/// Returns the address of a `syscall` instruction in the vdso, if there is one.
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
    /// The registers with which the thread was stopped.
    pub registers: user_regs_struct,
    /// Its signal mask.
    pub mask: u64,
    at: u64,
    /// The original code at `at`, if it was changed.
    original_word: Option<u64>,
    /// A signal that was about to be delivered. It is blocked now, and becomes pending when the
    /// thread goes on.
    signal: i32,
    /// A stop signal that came meanwhile and must not be lost.
    stop_signal: i32,
}

impl Remote {
    /// Takes a stopped thread. `signal` is about to be delivered, unless it is 0. `gate` comes from
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
        // Not in a system call: the kernel must not restart one.
        let orig_rax = u64::MAX;
        let registers =
            user_regs_struct { rax, rdi, rsi, rdx, r10, r8, r9, rip: self.at, eflags, orig_rax, ..self.registers };
        self.tracee.set_registers(&registers).context("setting registers")?;
        // First to the entry, then to the exit.
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

    /// Makes system calls at this `syscall` instruction of the engine from now on.
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

    /// Brings the thread to a stop after which the kernel looks at signals and at interrupted
    /// system calls, as if it had just been interrupted.
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

    /// Restores code, registers and mask. The kernel does not restart an interrupted system call.
    pub fn finish(&self) -> Result<()> {
        self.restore_code()?;
        self.tracee.set_signal_mask(self.mask).context("setting the signal mask")?;
        let registers = user_regs_struct { orig_rax: u64::MAX, ..self.registers };
        self.tracee.set_registers(&registers).context("setting registers")
    }

    /// Restores the code.
    pub fn restore_code(&self) -> Result<()> {
        let Some(word) = self.original_word else { return Ok(()) };
        self.tracee.poke(self.at, word).context("writing to the target's code")
    }

    /// As [`Self::finish`], with other registers.
    pub fn finish_with(&self, registers: &user_regs_struct, mask: u64) -> Result<()> {
        self.restore_code()?;
        self.tracee.set_signal_mask(mask).context("setting the signal mask")?;
        self.tracee.set_registers(registers).context("setting registers")
    }

    /// Detaches from the thread.
    pub fn detach(self) -> Result<()> {
        self.tracee.detach(self.signal).context("detaching")?;
        if self.stop_signal != 0 {
            ptrace::send(self.tracee.tid, self.stop_signal);
        }
        Ok(())
    }
}
