//! Inspects a thread at the entry of an exec: which program it is about to run, and whether ptrace
//! would take privileges away from it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::command;
use crate::ptrace::Tracee;

/// Longest path the kernel takes.
const PATH_BYTES_MAX: u64 = 4096;

/// What a thread that is stopped at a system call is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Another call, or the exit from a call.
    Other,
    Exec,
    /// Run this program, under the name that it gives. The program gets its privileges only if it
    /// is not traced.
    PrivilegedExec(PathBuf),
}

/// Inspects a thread of `process` that has stopped at a system call.
pub fn intent(tracee: Tracee, process: i32) -> Intent {
    let Ok(registers) = tracee.registers() else { return Intent::Other };
    if registers.rax as i64 != -i64::from(libc::ENOSYS) {
        return Intent::Other;
    }
    let (directory, address) = match registers.orig_rax as i64 {
        libc::SYS_execve => (libc::AT_FDCWD, registers.rdi),
        libc::SYS_execveat => (registers.rdi as i32, registers.rsi),
        _ => return Intent::Other,
    };
    let named = string(tracee, address);
    let path = recorder_path(process, directory, &named);
    match path.metadata() {
        Ok(metadata) if command::is_privileged(&path, &metadata) => Intent::PrivilegedExec(named),
        _ => Intent::Exec,
    }
}

/// Returns the path under which the recorder reaches what the process reaches as `path`.
fn recorder_path(process: i32, directory: i32, path: &Path) -> PathBuf {
    let base = if path.is_absolute() {
        format!("/proc/{process}/root")
    } else if directory == libc::AT_FDCWD {
        format!("/proc/{process}/cwd")
    } else {
        format!("/proc/{process}/fd/{directory}")
    };
    let rest = path.strip_prefix("/").unwrap_or(path);
    // An empty rest means the descriptor itself. Joining it would add a slash, which only
    // directories may have.
    if rest.as_os_str().is_empty() { base.into() } else { Path::new(&base).join(rest) }
}

/// Reads the string at `address`, as far as possible.
fn string(tracee: Tracee, address: u64) -> PathBuf {
    let mut bytes = Vec::new();
    for offset in (0..PATH_BYTES_MAX).step_by(8) {
        let Ok(word) = tracee.peek(address.wrapping_add(offset)) else { break };
        let word = word.to_le_bytes();
        let length = word.iter().position(|&byte| byte == 0).unwrap_or(8);
        bytes.extend(&word[..length]);
        if length < 8 {
            break;
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_target() {
        let check = |directory, path, expected| {
            assert_eq!(recorder_path(7, directory, Path::new(path)), Path::new(expected));
        };
        check(libc::AT_FDCWD, "/bin/true", "/proc/7/root/bin/true");
        check(3, "/bin/true", "/proc/7/root/bin/true");
        check(libc::AT_FDCWD, "./a", "/proc/7/cwd/a");
        check(3, "a", "/proc/7/fd/3/a");
        check(3, "", "/proc/7/fd/3");
    }
}
