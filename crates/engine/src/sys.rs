//! System calls of the engine itself: no errno; negative results are errors.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64};

use entity::Tsc;

use crate::limits;

pub mod number {
    pub const READ: u64 = 0;
    pub const OPEN: u64 = 2;
    pub const CLOSE: u64 = 3;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const BRK: u64 = 12;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const RT_SIGRETURN: u64 = 15;
    pub const READV: u64 = 19;
    pub const MREMAP: u64 = 25;
    pub const MADVISE: u64 = 28;
    pub const SHMAT: u64 = 30;
    pub const SHMCTL: u64 = 31;
    pub const GETPID: u64 = 39;
    pub const CLONE: u64 = 56;
    pub const FORK: u64 = 57;
    pub const VFORK: u64 = 58;
    pub const EXECVE: u64 = 59;
    pub const EXIT: u64 = 60;
    pub const KILL: u64 = 62;
    pub const SHMDT: u64 = 67;
    pub const READLINK: u64 = 89;
    pub const GETRLIMIT: u64 = 97;
    pub const RT_SIGPENDING: u64 = 127;
    pub const RT_SIGTIMEDWAIT: u64 = 128;
    pub const RT_SIGQUEUEINFO: u64 = 129;
    pub const RT_SIGSUSPEND: u64 = 130;
    pub const GETUID: u64 = 102;
    pub const SIGALTSTACK: u64 = 131;
    pub const PRCTL: u64 = 157;
    pub const ARCH_PRCTL: u64 = 158;
    pub const SETRLIMIT: u64 = 160;
    pub const GETTID: u64 = 186;
    pub const TKILL: u64 = 200;
    pub const FUTEX: u64 = 202;
    pub const EXIT_GROUP: u64 = 231;
    pub const TGKILL: u64 = 234;
    pub const OPENAT: u64 = 257;
    pub const PSELECT6: u64 = 270;
    pub const PPOLL: u64 = 271;
    pub const EPOLL_PWAIT: u64 = 281;
    pub const SIGNALFD: u64 = 282;
    pub const SIGNALFD4: u64 = 289;
    pub const RT_TGSIGQUEUEINFO: u64 = 297;
    pub const PRLIMIT64: u64 = 302;
    pub const SECCOMP: u64 = 317;
    pub const MEMFD_CREATE: u64 = 319;
    pub const EXECVEAT: u64 = 322;
    pub const PKEY_MPROTECT: u64 = 329;
    pub const MEMBARRIER: u64 = 324;
    pub const RSEQ: u64 = 334;
    pub const CLONE3: u64 = 435;
    pub const EPOLL_PWAIT2: u64 = 441;
}

pub const ENOSYS: i64 = -38;
pub const EFAULT: i64 = -14;
pub const EBUSY: i64 = -16;
pub const EINVAL: i64 = -22;
pub const EPERM: i64 = -1;
pub const ENOMEM: i64 = -12;
pub const EINTR: i64 = -4;
pub const EAGAIN: i64 = -11;

pub const PROT_READ: u64 = 1;
pub const PROT_WRITE: u64 = 2;
pub const PROT_EXEC: u64 = 4;
pub const MAP_SHARED: u64 = 1;
pub const MAP_PRIVATE: u64 = 2;
pub const MAP_ANONYMOUS: u64 = 0x20;
pub const MAP_NORESERVE: u64 = 0x4000;
pub const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
pub const PAGE: u64 = 4096;
const MADV_DONTFORK: u64 = 10;
const MADV_HUGEPAGE: u64 = 14;
const MADV_DONTDUMP: u64 = 16;

/// Makes a system call.
///
/// # Safety
/// As safe as the system call with these arguments.
#[inline]
pub unsafe fn call(number: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result: i64;
    // SAFETY: the kernel changes rax, rcx and r11 only; memory effects are the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Anonymous private memory. `address` is a hint, or exact and free with `MAP_FIXED_NOREPLACE` in
/// `flags`.
pub fn map(address: u64, length: u64, protection: u64, flags: u64) -> Option<u64> {
    let flags = flags | MAP_PRIVATE | MAP_ANONYMOUS;
    limits::grow(length);
    // SAFETY: new memory at a free address changes nothing that exists.
    let result = unsafe { call(number::MMAP, [address, length, protection, flags, u64::MAX, 0]) };
    let address = u64::try_from(result).ok();
    if address.is_none() {
        limits::shrink(length);
    }
    address
}

/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(address: u64, length: u64) {
    // SAFETY: the caller's promise.
    unsafe { call(number::MUNMAP, [address, length, 0, 0, 0, 0]) };
    limits::shrink(length);
}

/// # Safety
/// Nothing may rely on the protection that the range had.
pub unsafe fn protect(address: u64, length: u64, protection: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { call(number::MPROTECT, [address, length, protection, 0, 0, 0]) }
}

/// Keeps a range of the engine out of forked children and core files.
pub fn keep_private(address: u64, length: u64) {
    for advice in [MADV_DONTFORK, MADV_DONTDUMP] {
        // SAFETY: only children are affected, and those leave the engine at once.
        unsafe { call(number::MADVISE, [address, length, advice, 0, 0, 0]) };
    }
}

/// Asks for huge pages.
pub fn prefer_huge_pages(address: u64, length: u64) {
    // SAFETY: changes how memory is backed, not what it holds.
    unsafe { call(number::MADVISE, [address, length, MADV_HUGEPAGE, 0, 0, 0]) };
}

/// Waits while `*word == expected`, for `milliseconds` at most.
pub fn futex_wait(word: &AtomicU32, expected: u32, milliseconds: u64) {
    futex_wait_at(word.as_ptr() as u64, expected, milliseconds);
}

/// Waits while the low half of `*word` is `expected`, for `milliseconds` at most.
pub fn futex_wait_low_half(word: &AtomicU64, expected: u32, milliseconds: u64) {
    // The processor is little-endian: the low half comes first.
    futex_wait_at(word.as_ptr() as u64, expected, milliseconds);
}

fn futex_wait_at(address: u64, expected: u32, milliseconds: u64) {
    let timeout = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    // SAFETY: the kernel reads the word, if there is one, and the timeout.
    unsafe { call(number::FUTEX, [address, 0, u64::from(expected), timeout.as_ptr() as u64, 0, 0]) };
}

/// Waits while `*word == expected`. Unlike a wait with a time limit, this keeps the kernel's state
/// of an interrupted system call of the application (`restart_syscall`).
pub fn futex_wait_without_limit(word: &AtomicU32, expected: u32) {
    // SAFETY: the kernel reads the word.
    unsafe { call(number::FUTEX, [word.as_ptr() as u64, 0, u64::from(expected), 0, 0, 0]) };
}

/// Lets other threads run for some microseconds. It uses neither sched_yield, which starves a
/// looping caller on some kernels, nor nanosleep, which overwrites the kernel's state of an
/// interrupted system call.
pub fn nap() {
    let mut time = [0_u64, 20_000];
    // SAFETY: there are no descriptors; the kernel reads the time and writes what is left of it.
    unsafe { call(number::PPOLL, [0, 0, time.as_mut_ptr() as u64, 0, 0, 0]) };
}

pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: wakes waiters, touches no memory.
    unsafe { call(number::FUTEX, [word.as_ptr() as u64, 1, i32::MAX as u64, 0, 0, 0]) };
}

/// The base of the calling thread's fs segment.
pub fn fs_base() -> u64 {
    const ARCH_GET_FS: u64 = 0x1003;
    let mut base = 0u64;
    // SAFETY: the kernel writes the base.
    unsafe { call(number::ARCH_PRCTL, [ARCH_GET_FS, &raw mut base as u64, 0, 0, 0, 0]) };
    base
}

pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(number::GETTID, [0; 6]) as u32 }
}

/// Writes to standard error; only before the process ends.
pub fn complain(text: &str) {
    // SAFETY: the kernel reads the text.
    unsafe { call(1, [2, text.as_ptr() as u64, text.len() as u64, 0, 0, 0]) };
}

/// Ends the process because an invariant of the engine is broken.
pub fn abort() -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call(number::EXIT_GROUP, [134, 0, 0, 0, 0, 0]) };
    }
}

#[inline]
pub fn tsc() -> Tsc {
    // SAFETY: always available on x86-64 Linux.
    Tsc::new(unsafe { core::arch::x86_64::_rdtsc() })
}
