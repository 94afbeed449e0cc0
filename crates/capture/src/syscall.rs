//! System calls that a stop has interrupted, and how they are restarted.
//!
//! An interrupted call returns an internal error number of the kernel that says how to restart it.
//! The kernel restarts it when the thread goes on where it was stopped. A few calls it does not
//! restart; they return `EINTR` as if a signal had been handled. A call that only the recorder has
//! interrupted must not end so.

use libc::user_regs_struct;

use crate::ptrace::Tracee;
use crate::task::Status;

const ERESTARTSYS: u32 = 512;
const ERESTARTNOINTR: u32 = 513;
const ERESTARTNOHAND: u32 = 514;
const ERESTART_RESTARTBLOCK: u32 = 516;
const EINTR: u32 = libc::EINTR as u32;

/// Bytes of the instruction that makes a system call.
pub const INSTRUCTION_BYTES: u64 = 2;

/// Calls that the kernel ends with `EINTR` even if no signal is handled, and that can simply be
/// made again.
const ENDED_BY_EINTR: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    // With a time limit set for the socket.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
];

/// The same, with a signal mask of their own: a signal that is to interrupt them does so again.
const ENDED_BY_EINTR_WITH_MASK: &[i64] = &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, IO_PGETEVENTS];
const IO_PGETEVENTS: i64 = 333;

/// A system call that was interrupted and has to be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptedCall {
    /// The error number that it returned.
    pub code: u32,
    /// The number of the system call that restarts it.
    pub number: u64,
}

impl InterruptedCall {
    /// Returns whether the kernel restarts the call by itself.
    pub fn is_restarted(self) -> bool {
        self.code != EINTR
    }
}

/// Returns the call in which a thread was stopped, if it has to be restarted. `has_signal` says
/// whether the thread is about to handle a signal.
pub fn interrupted_call(registers: &user_regs_struct, has_signal: impl FnOnce() -> bool) -> Option<InterruptedCall> {
    const RESTART_SYSCALL: u64 = 219;
    let call = registers.orig_rax as i64;
    let code = u32::try_from((registers.rax as i64).checked_neg()?).ok()?;
    if call < 0 {
        return None;
    }
    match code {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Some(InterruptedCall { code, number: call as u64 }),
        ERESTART_RESTARTBLOCK => Some(InterruptedCall { code, number: RESTART_SYSCALL }),
        EINTR if ENDED_BY_EINTR_WITH_MASK.contains(&call) || ENDED_BY_EINTR.contains(&call) && !has_signal() => {
            Some(InterruptedCall { code, number: call as u64 })
        }
        _ => None,
    }
}

/// Returns the call in which a thread is stopped. `signal` is delivered when it goes on, unless it
/// is 0.
pub fn interrupted_call_of(tracee: Tracee, registers: &user_regs_struct, signal: i32) -> Option<InterruptedCall> {
    interrupted_call(registers, || signal != 0 || Status::of(tracee.tid).is_ok_and(|status| status.has_signal()))
}

/// Returns registers with which a thread itself restarts the call.
pub fn restarted_registers(registers: &user_regs_struct, call: InterruptedCall) -> user_regs_struct {
    user_regs_struct {
        rip: registers.rip - INSTRUCTION_BYTES,
        rax: call.number,
        // The kernel must not restart it as well.
        orig_rax: u64::MAX,
        ..*registers
    }
}

/// Returns registers with which a thread goes on as if it had not been stopped.
pub fn resumed_registers(registers: &user_regs_struct, call: Option<InterruptedCall>) -> user_regs_struct {
    match call {
        Some(call) if !call.is_restarted() => restarted_registers(registers, call),
        _ => *registers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(call: i64, result: i64) -> user_regs_struct {
        // SAFETY: a structure of integers, for which zero is a value.
        let zero: user_regs_struct = unsafe { std::mem::zeroed() };
        user_regs_struct { orig_rax: call as u64, rax: result as u64, rip: 102, ..zero }
    }

    #[test]
    fn interrupted_calls_are_restarted() {
        let check = |call, result, has_signal, expected: Option<(u32, u64)>| {
            let found = interrupted_call(&registers(call, result), || has_signal);
            assert_eq!(found.map(|call| (call.code, call.number)), expected, "{call} {result}");
        };
        check(libc::SYS_read, -512, true, Some((512, 0)));
        check(libc::SYS_poll, -516, false, Some((516, 219)));
        check(libc::SYS_epoll_wait, -4, false, Some((4, 232)));
        check(libc::SYS_epoll_wait, -4, true, None);
        check(libc::SYS_epoll_pwait, -4, true, Some((4, 281)));
        check(libc::SYS_close, -4, false, None);
        check(libc::SYS_read, 17, false, None);
        check(libc::SYS_read, -9, false, None);
        check(-1, -512, false, None);
        check(libc::SYS_read, i64::MIN, false, None);
    }

    #[test]
    fn the_kernel_makes_most_calls_again() {
        let stopped = registers(libc::SYS_read, -512);
        let call = interrupted_call(&stopped, || false);
        assert_eq!(resumed_registers(&stopped, call).rip, 102);
        let stopped = registers(libc::SYS_epoll_wait, -4);
        let gone_on = resumed_registers(&stopped, interrupted_call(&stopped, || false));
        assert_eq!((gone_on.rip, gone_on.rax, gone_on.orig_rax), (100, 232, u64::MAX));
    }
}
