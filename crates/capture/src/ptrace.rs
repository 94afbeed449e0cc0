//! One thread under ptrace, stopped or running. No other module calls ptrace.
//!
//! Requests must come from the thread that has attached. Knows nothing of why it attaches.

use std::io;

use libc::{c_int, c_long, c_void, pid_t, user_fpregs_struct, user_regs_struct};
use wire::Rseq;

/// Options for every tracee: exec is an event, and stops at system calls can be distinguished from
/// signals.
const OPTIONS: c_int = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// How a process ended, as `wait` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// A report of `wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The thread has executed another program.
    Exec,
    /// At the entry or exit of a system call.
    Syscall,
    /// About to receive this signal.
    Signal(i32),
    /// Its process was stopped by this signal.
    Group(i32),
    /// Interrupted by the recorder, or another event that needs no answer.
    Other,
    Exited(Exit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracee {
    pub tid: pid_t,
}

impl Tracee {
    /// Attaches to a thread without stopping it.
    pub fn seize(tid: pid_t) -> io::Result<Self> {
        let tracee = Self { tid };
        tracee.request(libc::PTRACE_SEIZE, 0, OPTIONS as usize)?;
        Ok(tracee)
    }

    /// Lets the thread go on until the next event, delivering `signal` unless it is 0.
    pub fn resume(self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_CONT, 0, signal as usize)
    }

    /// Lets the thread go on until the next entry or exit of a system call, delivering `signal`
    /// unless it is 0.
    pub fn resume_to_syscall(self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_SYSCALL, 0, signal as usize)
    }

    /// Leaves the thread stopped until `SIGCONT`.
    pub fn listen(self) -> io::Result<()> {
        self.request(libc::PTRACE_LISTEN, 0, 0)
    }

    pub fn interrupt(self) -> io::Result<()> {
        self.request(libc::PTRACE_INTERRUPT, 0, 0)
    }

    /// Detaches from a stopped thread, delivering `signal` unless it is 0.
    pub fn detach(self, signal: i32) -> io::Result<()> {
        self.request(libc::PTRACE_DETACH, 0, signal as usize)
    }

    pub fn registers(self) -> io::Result<user_regs_struct> {
        // SAFETY: a structure of integers, for which zero is a value.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    pub fn set_registers(self, registers: &user_regs_struct) -> io::Result<()> {
        self.request(libc::PTRACE_SETREGS, 0, &raw const *registers as usize)
    }

    /// Returns floating-point and vector registers, without the upper halves of the latter.
    pub fn vectors(self) -> io::Result<user_fpregs_struct> {
        // SAFETY: a structure of integers, for which zero is a value.
        let mut registers: user_fpregs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETFPREGS, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    pub fn set_vectors(self, registers: &user_fpregs_struct) -> io::Result<()> {
        self.request(libc::PTRACE_SETFPREGS, 0, &raw const *registers as usize)
    }

    /// Returns what the thread has registered for restartable sequences. Kernels without this
    /// request are older than their use.
    pub fn rseq(self) -> Rseq {
        // The kernel's `struct ptrace_rseq_configuration`: address, size, signature, flags,
        // padding.
        let mut configuration = [0_u32; 6];
        let size = size_of_val(&configuration);
        match self.request(PTRACE_GET_RSEQ_CONFIGURATION, size, &raw mut configuration as usize) {
            Ok(()) => {
                let [low, high, length, signature, ..] = configuration;
                Rseq { address: u64::from(low) | u64::from(high) << 32, length, signature }
            }
            Err(_) => Rseq::default(),
        }
    }

    pub fn signal_mask(self) -> io::Result<u64> {
        let mut mask = 0_u64;
        self.request(PTRACE_GETSIGMASK, size_of::<u64>(), &raw mut mask as usize)?;
        Ok(mask)
    }

    pub fn set_signal_mask(self, mask: u64) -> io::Result<()> {
        self.request(PTRACE_SETSIGMASK, size_of::<u64>(), &raw const mask as usize)
    }

    /// Reads eight bytes, executable or not.
    pub fn peek(self, address: u64) -> io::Result<u64> {
        let mut word = 0_u64;
        // The system call itself stores the word at `data`; only the C library's wrapper returns
        // it.
        // SAFETY: `word` is valid for the kernel's write.
        let status = unsafe {
            libc::syscall(
                libc::SYS_ptrace,
                c_long::from(libc::PTRACE_PEEKDATA),
                c_long::from(self.tid),
                address,
                &raw mut word,
            )
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(word) }
    }

    /// Writes eight bytes, even to a page that is not writable.
    pub fn poke(self, address: u64, word: u64) -> io::Result<()> {
        self.request(libc::PTRACE_POKEDATA, address as usize, word as usize)
    }

    /// Reads memory of the thread's process.
    pub fn read(self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let remote = libc::iovec { iov_base: (address as usize + done) as *mut c_void, iov_len: rest.len() };
            // SAFETY: the local vector describes `rest`, which the kernel writes to; the remote one
            // is checked by it.
            let read = unsafe { libc::process_vm_readv(self.tid, &raw const local, 1, &raw const remote, 1, 0) };
            match read {
                ..0 => return Err(io::Error::last_os_error()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => done += read as usize,
            }
        }
        Ok(())
    }

    /// Writes to writable memory.
    pub fn write(self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let remote = libc::iovec { iov_base: (address as usize + done) as *mut c_void, iov_len: rest.len() };
            // SAFETY: the local vector describes `rest`, which the kernel only reads; the remote
            // one is checked by it.
            let written = unsafe { libc::process_vm_writev(self.tid, &raw const local, 1, &raw const remote, 1, 0) };
            match written {
                ..0 => return Err(io::Error::last_os_error()),
                0 => return Err(io::ErrorKind::WriteZero.into()),
                _ => done += written as usize,
            }
        }
        Ok(())
    }

    /// Waits for the next stop.
    pub fn wait(self) -> io::Result<Stop> {
        loop {
            if let Some(stop) = wait_for(self.tid, 0)? {
                return Ok(stop);
            }
        }
    }

    fn request(self, request: u32, address: usize, data: usize) -> io::Result<()> {
        // SAFETY: none of the requests passed here reads or writes our memory beyond the structure
        // whose address the method above has put into `data`, and which is still alive.
        let status = unsafe { libc::ptrace(request, self.tid, address as *mut c_void, data as *mut c_void) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns what a tracee or child has to report now. `None` also if it cannot be waited for any
/// more.
pub fn poll(tid: pid_t) -> Option<Stop> {
    try_wait(tid).ok().flatten()
}

/// Returns what a tracee or child has to report now. An error if it cannot be waited for any more.
pub fn try_wait(tid: pid_t) -> io::Result<Option<Stop>> {
    wait_for(tid, libc::WNOHANG)
}

/// Reaps a thread if it has exited. Unlike the other functions, may be called by a thread that has
/// not attached.
pub fn reap(tid: pid_t) {
    if has_ended(tid) {
        let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        // SAFETY: the address is null, so that the kernel writes nothing.
        unsafe { libc::syscall(libc::SYS_waitid, libc::P_PID, tid, 0, flags, 0) };
    }
}

/// Returns whether a thread has exited and was not reaped. For a tracee the kernel also reports
/// stops, whatever the flags; this call leaves them to be reported again.
fn has_ended(tid: pid_t) -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: zeros are a valid `siginfo_t`.
    let mut information: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the information, which has the size that it expects.
    let status = unsafe { libc::syscall(libc::SYS_waitid, libc::P_PID, tid, &raw mut information, flags, 0) };
    status == 0 && matches!(information.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
}

/// Sends a signal to one thread, which may have exited.
pub fn send(tid: pid_t, signal: c_int) {
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_tkill, c_long::from(tid), signal) };
}

/// Queues a signal for one thread, with a value.
pub fn queue(process: pid_t, tid: pid_t, signal: c_int, value: u64) -> io::Result<()> {
    // The kernel's `siginfo_t`: signal, error, code, process, user, value.
    let mut information = [0_u64; 16];
    information[0] = signal as u64;
    information[1] = u64::from(libc::SI_QUEUE as u32);
    information[2] = u64::from(std::process::id());
    information[3] = value;
    // SAFETY: the kernel reads the information, which has the size that it expects.
    let status = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            c_long::from(process),
            c_long::from(tid),
            signal,
            information.as_ptr(),
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until a child has exited, and resumes it from all other stops.
pub fn wait_for_exit(pid: pid_t) -> io::Result<Exit> {
    loop {
        match (Tracee { tid: pid }).wait()? {
            Stop::Exited(exit) => return Ok(exit),
            // A thread that dies between the stop and this request reports its exit next.
            _ => drop((Tracee { tid: pid }).resume(0)),
        }
    }
}

fn wait_for(tid: pid_t, flags: c_int) -> io::Result<Option<Stop>> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the kernel's write.
        let reported = unsafe { libc::waitpid(tid, &raw mut status, flags | libc::__WALL) };
        if reported >= 0 {
            return Ok((reported > 0).then(|| decode(status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn decode(status: c_int) -> Stop {
    if libc::WIFEXITED(status) {
        return Stop::Exited(Exit::Code(libc::WEXITSTATUS(status)));
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Exited(Exit::Signal(libc::WTERMSIG(status)));
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    match event {
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Stop::Group(signal),
        0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
        0 => Stop::Signal(signal),
        _ => Stop::Other,
    }
}
