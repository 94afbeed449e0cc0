//! The system calls of a tracer: one small safe function each. Knows nothing of their purpose.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, pid_t, user_regs_struct};

use crate::Error;

/// Starts `command`, without address randomisation, stopped before its first instruction.
pub fn start(command: &mut Command) -> io::Result<Child> {
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
    command.spawn()
}

/// Binds the calling thread, and its future children, to one of the processors that it may use: the
/// given one, or the next in turn.
pub fn share_one_processor(wanted: Option<usize>) {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: all-zero is an empty set; both calls get a valid one with its size. If they fail,
    // nothing is bound.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed);
        let count = libc::CPU_COUNT(&allowed).max(1) as usize;
        let turn = wanted.unwrap_or_else(|| TURN.fetch_add(1, Ordering::Relaxed)) % count;
        let processor = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed)).nth(turn);
        if let Some(processor) = processor {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
        }
    }
}

/// Waits for any tracee of the calling thread to change its state. Returns its number and the wait
/// status, or `None` if there is no tracee left.
pub fn wait() -> Result<Option<(pid_t, c_int)>, Error> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread > 0 {
            return Ok(Some((thread, status)));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Ok(None),
            _ => return Err(Error::Wait(error)),
        }
    }
}

pub fn kill(process: pid_t) {
    // SAFETY: takes no pointers. `process` is a child of ours that has not been waited for, so the
    // number is its own.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// A stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tracee(pub pid_t);

impl Tracee {
    pub fn set_options(self, options: c_int) -> Result<(), Error> {
        self.request("SETOPTIONS", libc::PTRACE_SETOPTIONS, 0, value(options as usize)).map(drop)
    }

    /// Lets the thread execute one instruction, after delivering `signal` if it is not 0.
    pub fn step(self, signal: c_int) -> Result<(), Error> {
        self.request("SINGLESTEP", libc::PTRACE_SINGLESTEP, 0, value(signal as usize)).map(drop)
    }

    /// Lets the thread run freely.
    pub fn resume(self) -> Result<(), Error> {
        self.request("CONT", libc::PTRACE_CONT, 0, value(0)).map(drop)
    }

    pub fn detach(self) -> Result<(), Error> {
        self.request("DETACH", libc::PTRACE_DETACH, 0, value(0)).map(drop)
    }

    pub fn registers(self) -> Result<user_regs_struct, Error> {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        self.request("GETREGS", libc::PTRACE_GETREGS, 0, (&raw mut registers).cast())?;
        Ok(registers)
    }

    pub fn set_registers(self, registers: &user_regs_struct) -> Result<(), Error> {
        self.request("SETREGS", libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers).cast_mut().cast()).map(drop)
    }

    /// Returns `si_code` of the signal that stopped the thread; `None` in a group stop.
    pub fn signal_code(self) -> Result<Option<c_int>, Error> {
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        match self.request("GETSIGINFO", libc::PTRACE_GETSIGINFO, 0, (&raw mut info).cast()) {
            Ok(_) => Ok(Some(info.si_code)),
            Err(Error::Ptrace { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn event_message(self) -> Result<u64, Error> {
        let mut message = 0u64;
        self.request("GETEVENTMSG", libc::PTRACE_GETEVENTMSG, 0, (&raw mut message).cast())?;
        Ok(message)
    }

    /// Reads up to `bytes.len()` bytes of memory from `address` on, fewer at the end of a mapping.
    pub fn read(self, address: u64, bytes: &mut [u8]) -> usize {
        let done = self.read_readable(address, bytes);
        if done == bytes.len() {
            done
        } else {
            done + self.peek_rest(address.wrapping_add(done as u64), &mut bytes[done..])
        }
    }

    fn read_readable(self, address: u64, bytes: &mut [u8]) -> usize {
        let own = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let theirs = libc::iovec { iov_base: value(address as usize), iov_len: bytes.len() };
        // SAFETY: one vector each; ours is of `bytes`, which is valid for writing, theirs is
        // checked by the kernel.
        let done = unsafe { libc::process_vm_readv(self.0, &raw const own, 1, &raw const theirs, 1, 0) };
        usize::try_from(done).unwrap_or(0)
    }

    /// Reads word by word, even from pages that the program itself may not read.
    fn peek_rest(self, address: u64, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for chunk in bytes.chunks_mut(8) {
            let Ok(word) = self.peek(address.wrapping_add(done as u64)) else { break };
            chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
            done += chunk.len();
        }
        done
    }

    /// Returns the extended state, in the standard format of `xsave`.
    pub fn extended_state(self) -> Result<Vec<u8>, Error> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut bytes = vec![0u8; 16 << 10];
        let mut area = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.request("GETREGSET", libc::PTRACE_GETREGSET as libc::c_uint, NT_X86_XSTATE, (&raw mut area).cast())?;
        bytes.truncate(area.iov_len);
        Ok(bytes)
    }

    pub fn peek(self, address: u64) -> Result<u64, Error> {
        // The C library's wrapper returns the word itself, the kernel stores it through the data
        // pointer.
        let mut word = 0u64;
        // SAFETY: the kernel writes one word to `word`, which is valid for that.
        let result =
            unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, self.0, address as usize, &raw mut word) };
        if result < 0 { Err(self.error("PEEKDATA")) } else { Ok(word) }
    }

    pub fn poke(self, address: u64, word: u64) -> Result<(), Error> {
        self.request("POKEDATA", libc::PTRACE_POKEDATA, address as usize, value(word as usize)).map(drop)
    }

    /// `data` is a plain [`value`], or points to an object that is large enough for what `request`
    /// writes to it.
    fn request(
        self,
        name: &'static str,
        request: libc::c_uint,
        address: usize,
        data: *mut c_void,
    ) -> Result<i64, Error> {
        // SAFETY: the callers above pass either plain values or the address of a live object of the
        // type that the request reads or writes.
        let result = unsafe { libc::ptrace(request, self.0, value(address), data) };
        if result < 0 { Err(self.error(name)) } else { Ok(result) }
    }

    fn error(self, request: &'static str) -> Error {
        Error::Ptrace { request, thread: self.0, source: io::Error::last_os_error() }
    }
}

/// A number in the place of a pointer, as many requests want it.
fn value(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}
