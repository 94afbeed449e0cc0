//! Signals to the recorder while a target runs. The terminal sends its signals to the target as
//! well, so the recorder ignores them. The recorder passes requests to terminate on, and the target
//! decides. The target starts with the signal settings of the recorder's caller. A running process
//! that was attached to does not depend on the recorder: there, all of these signals end the
//! recording.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::{c_int, c_void, sigaction, siginfo_t};

const IGNORED: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
const FORWARDED: [c_int; 2] = [libc::SIGTERM, libc::SIGHUP];

/// The pidfd of the target, or -1 while there is none.
static TARGET: AtomicI32 = AtomicI32::new(-1);
/// The user has ended the recording of a running process.
static STOP: AtomicBool = AtomicBool::new(false);
/// Signals that came before there was a target, as bits.
static EARLY: AtomicU32 = AtomicU32::new(0);
/// Whether SIGPIPE was ignored before the runtime set it to be ignored.
static SIGPIPE_IGNORED: AtomicU32 = AtomicU32::new(0);

/// Returns whether the recorder's caller has ignored SIGPIPE.
pub fn was_sigpipe_ignored() -> bool {
    SIGPIPE_IGNORED.load(Ordering::Relaxed) != 0
}

/// Runs before `main` and before the runtime changes SIGPIPE.
extern "C" fn remember_sigpipe() {
    // SAFETY: a structure of integers and an optional function, for which zero is a value; the call
    // only reads.
    unsafe {
        let mut action: sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action) == 0 {
            SIGPIPE_IGNORED.store(u32::from(action.sa_sigaction == libc::SIG_IGN), Ordering::Relaxed);
        }
    }
}

// SAFETY: the section holds pointers to functions that the C library calls once at start. It passes
// arguments, which this one does not take.
#[unsafe(link_section = ".init_array")]
#[used]
static REMEMBER_SIGPIPE: extern "C" fn() = remember_sigpipe;

/// The recorder's signal settings. Restores the caller's when dropped.
pub struct SignalSettings {
    saved: Vec<(c_int, sigaction)>,
}

impl SignalSettings {
    pub fn install() -> Self {
        TARGET.store(-1, Ordering::SeqCst);
        EARLY.store(0, Ordering::SeqCst);
        // If SIGCHLD were ignored, the recorder could not learn how the target ended.
        let mut saved = vec![(libc::SIGCHLD, set(libc::SIGCHLD, libc::SIG_DFL)), ignore_file_size()];
        for signal in IGNORED {
            saved.push((signal, set(signal, libc::SIG_IGN)));
        }
        for signal in FORWARDED {
            let old = set(signal, forward as *const () as usize);
            if old.sa_sigaction == libc::SIG_IGN {
                // The caller (nohup, for example) has decided for both.
                set(signal, libc::SIG_IGN);
            }
            saved.push((signal, old));
        }
        Self { saved }
    }

    /// For a running process: signals end the recording.
    pub fn install_to_stop() -> Self {
        STOP.store(false, Ordering::SeqCst);
        let mut saved = vec![ignore_file_size()];
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let old = set(signal, stop as *const () as usize);
            if signal == libc::SIGHUP && old.sa_sigaction == libc::SIG_IGN {
                set(signal, libc::SIG_IGN);
            }
            saved.push((signal, old));
        }
        Self { saved }
    }

    /// Returns whether a signal has ended the recording.
    pub fn is_stopped() -> bool {
        STOP.load(Ordering::SeqCst)
    }

    /// Passes signals on to the process of `target` from now on, and those that came before.
    pub fn forward_to(&self, target: BorrowedFd) {
        TARGET.store(target.as_raw_fd(), Ordering::SeqCst);
        let early = EARLY.swap(0, Ordering::SeqCst);
        for signal in FORWARDED.into_iter().filter(|signal| early & 1 << signal != 0) {
            send(target.as_raw_fd(), signal);
        }
    }

    /// Stops passing signals on: the target has exited.
    pub fn forget_target(&self) {
        TARGET.store(-1, Ordering::SeqCst);
    }

    /// Restores the caller's settings in the child, before exec. Async-signal-safe.
    pub fn restore_in_child(&self) {
        restore(&self.saved);
        if !was_sigpipe_ignored() {
            set(libc::SIGPIPE, libc::SIG_DFL);
        }
    }
}

impl Drop for SignalSettings {
    fn drop(&mut self) {
        self.forget_target();
        restore(&self.saved);
    }
}

/// Ignores SIGXFSZ. A file that may not grow any more (`ulimit -f`) is an error of the write, like
/// a full disk.
fn ignore_file_size() -> (c_int, sigaction) {
    (libc::SIGXFSZ, set(libc::SIGXFSZ, libc::SIG_IGN))
}

extern "C" fn stop(_: c_int, _: *const siginfo_t, _: *const c_void) {
    STOP.store(true, Ordering::SeqCst);
}

extern "C" fn forward(signal: c_int, info: *const siginfo_t, _context: *const c_void) {
    // SAFETY: the kernel passes valid information.
    if unsafe { (*info).si_code } == libc::SI_KERNEL {
        // The terminal has sent it to the target as well.
        return;
    }
    // SAFETY: the location of this thread's errno, which the interrupted code may be about to read.
    let error_number = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *error_number };
    let target = TARGET.load(Ordering::SeqCst);
    if target < 0 {
        EARLY.fetch_or(1 << signal, Ordering::SeqCst);
    } else {
        send(target, signal);
    }
    // SAFETY: as above.
    unsafe { *error_number = saved };
}

fn send(target: c_int, signal: c_int) {
    // SAFETY: the kernel checks the descriptor; a target that is gone cannot be mistaken for
    // another process.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, target, signal, ptr::null::<siginfo_t>(), 0) };
}

/// Sets the action of a signal and returns the old one. `handler` is `SIG_DFL`, `SIG_IGN` or one of
/// the functions above.
fn set(signal: c_int, handler: usize) -> sigaction {
    // SAFETY: zero is a valid empty action; the signal numbers used here exist, so that the call
    // cannot fail. The functions may be called at any time: they use atomics and system calls only.
    unsafe {
        let mut action: sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        let mut old: sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const action, &raw mut old);
        old
    }
}

fn restore(saved: &[(c_int, sigaction)]) {
    for (signal, action) in saved {
        // SAFETY: an action that was in force before.
        unsafe { libc::sigaction(*signal, &raw const *action, ptr::null_mut()) };
    }
}
