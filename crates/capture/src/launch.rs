//! Starts a command under ptrace and stops it when its image is loaded and nothing of it has run.

use std::ffi::{CString, c_char};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::{fs::File, ptr};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::command::Command;
use crate::error::Error;
use crate::ptrace::{Exit, Stop, Tracee};
use crate::signals::SignalSettings;

/// A child of the recorder, stopped at its exec event.
#[derive(Debug)]
pub struct LaunchedProcess {
    pub tracee: Tracee,
    pub pidfd: OwnedFd,
}

impl LaunchedProcess {
    pub fn pid(&self) -> i32 {
        self.tracee.tid
    }

    /// Kills the process and reaps it.
    pub fn kill(&self) {
        // It may have exited already.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.as_fd(), Signal::KILL);
        let _ = crate::ptrace::wait_for_exit(self.pid());
    }
}

/// Forks, attaches to the child, and lets it exec.
pub fn launch(command: &Command, no_aslr: bool, signals: &SignalSettings) -> Result<LaunchedProcess, Error> {
    let system = |what| move |error: rustix::io::Errno| Error::System { what, error: error.into() };
    let (permission, give_permission) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system("making a pipe"))?;
    let (failure, report_failure) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system("making a pipe"))?;
    let child = ForkedChild { command, no_aslr, signals, permission, report_failure };
    let pid = child.fork(give_permission.as_raw_fd()).map_err(|error| Error::System { what: "fork", error })?;
    let ForkedChild { permission, report_failure, .. } = child;
    drop((permission, report_failure));

    // The child waits for permission to exec; closing the pipe ends it.
    let seized = Tracee::seize(pid);
    let pidfd = Pid::from_raw(pid)
        .ok_or(io::ErrorKind::NotFound.into())
        .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?));
    let (tracee, pidfd) = match (seized, pidfd) {
        (Ok(tracee), Ok(pidfd)) => (tracee, pidfd),
        (Err(error), _) | (_, Err(error)) => {
            drop(give_permission);
            let _ = crate::ptrace::wait_for_exit(pid);
            return Err(Error::NoPermission { path: command.path.clone(), error });
        }
    };
    signals.forward_to(pidfd.as_fd());
    let launched = LaunchedProcess { tracee, pidfd };
    // If the child is dead already, the wait says so.
    let _ = rustix::io::write(&give_permission, &[1]);
    match wait_for_exec(tracee).map_err(|error| Error::System { what: "waiting for the target", error })? {
        None => Ok(launched),
        Some(exit) => Err(why_not_executed(failure, &command.path, exit)),
    }
}

/// Returns the exit if the child did not get as far as exec.
fn wait_for_exec(tracee: Tracee) -> io::Result<Option<Exit>> {
    loop {
        match tracee.wait()? {
            Stop::Exec => return Ok(None),
            Stop::Exited(exit) => return Ok(Some(exit)),
            Stop::Signal(signal) => tracee.resume(signal)?,
            Stop::Group(_) => tracee.listen()?,
            Stop::Syscall | Stop::Other => tracee.resume(0)?,
        }
    }
}

fn why_not_executed(failure: OwnedFd, path: &Path, exit: Exit) -> Error {
    let mut number = [0; 4];
    let error = match File::from(failure).read_exact(&mut number) {
        Ok(()) => io::Error::from_raw_os_error(i32::from_le_bytes(number)),
        Err(_) => io::Error::other(format!("the process ended before ({exit:?})")),
    };
    Error::Exec { path: path.to_owned(), error }
}

/// The child process between fork and exec.
struct ForkedChild<'a> {
    command: &'a Command,
    no_aslr: bool,
    signals: &'a SignalSettings,
    permission: OwnedFd,
    report_failure: OwnedFd,
}

impl ForkedChild<'_> {
    /// Returns the child's number; does not return in the child. `others_end` is the parent's end
    /// of the pipe.
    fn fork(&self, others_end: i32) -> io::Result<i32> {
        let mut arguments: Vec<*const c_char> = self.command.arguments.iter().map(|word| word.as_ptr()).collect();
        arguments.push(ptr::null());
        let program: &CString = &self.command.program;
        // SAFETY: the child calls only async-signal-safe functions and does not return from here.
        let pid = unsafe { libc::fork() };
        match pid {
            ..0 => Err(io::Error::last_os_error()),
            0 => {
                let error = self.exec(others_end, program.as_ptr(), arguments.as_ptr());
                let bytes = error.to_le_bytes();
                // SAFETY: plain system calls on memory and descriptors that exist.
                unsafe {
                    libc::write(self.report_failure.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
                    libc::_exit(127)
                }
            }
            _ => Ok(pid),
        }
    }

    /// In the child. Returns an error number if exec fails.
    fn exec(&self, others_end: i32, program: *const c_char, arguments: *const *const c_char) -> i32 {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        self.signals.restore_in_child();
        let mut byte = 0_u8;
        // SAFETY: plain system calls; all pointers come from live C strings and arrays that end
        // with a null pointer.
        unsafe {
            // Otherwise the death of the parent would not end the read.
            libc::close(others_end);
            if self.no_aslr {
                let persona = libc::personality(0xffff_ffff);
                if persona < 0 || libc::personality((persona | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong) < 0 {
                    return *libc::__errno_location();
                }
            }
            while libc::read(self.permission.as_raw_fd(), (&raw mut byte).cast(), 1) < 0 {
                if *libc::__errno_location() != libc::EINTR {
                    break;
                }
            }
            if byte != 1 {
                return libc::ECANCELED;
            }
            libc::execve(program, arguments, environ);
            *libc::__errno_location()
        }
    }
}
