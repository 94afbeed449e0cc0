//! What the kernel reports about a process and its threads: `/proc/PID/task` and
//! `/proc/PID/status`.

use std::io;

/// Flags of threads that run kernel code only: `PF_IO_WORKER`, `PF_USER_WORKER`, `PF_KTHREAD`.
const KERNEL_WORKER: u64 = 0x10 | 0x4000 | 0x20_0000;

/// Returns the threads of a process, dead ones and the kernel's included.
pub fn all(pid: i32) -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Returns whether a process has a thread that is alive and executes code of its own.
pub fn has_any(pid: i32) -> bool {
    all(pid).is_ok_and(|tasks| tasks.into_iter().any(|tid| is_alive(pid, tid)))
}

/// Returns a thread through which the memory of a process can be read: the first may be dead.
pub fn any(pid: i32) -> i32 {
    let first_alive = || all(pid).ok()?.into_iter().find(|&tid| is_alive(pid, tid));
    if is_alive(pid, pid) { pid } else { first_alive().unwrap_or(pid) }
}

/// Returns whether a thread is alive and executes code of its own.
pub fn is_alive(pid: i32, tid: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")) else { return false };
    state_and_flags(&text).is_some_and(|(state, flags)| !matches!(state, 'Z' | 'X' | 'x') && flags & KERNEL_WORKER == 0)
}

/// Returns whether a thread runs, waits for nothing but a processor, or has stopped.
pub fn is_runnable(pid: i32, tid: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")) else { return false };
    state_and_flags(&text).is_some_and(|(state, _)| matches!(state, 'R' | 't' | 'T'))
}

fn state_and_flags(stat: &str) -> Option<(char, u64)> {
    // The name before may contain anything, even parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(5)?.parse().ok()?))
}

/// Returns the number that a process or thread has for itself; it differs in a container.
pub fn own_number(tid: i32) -> u32 {
    Status::of(tid).ok().and_then(|status| status.own_tid()).unwrap_or(tid.cast_unsigned())
}

/// Returns the thread of a process that has this number for itself.
pub fn thread_with_own_number(pid: i32, number: u32) -> Option<i32> {
    let has_number = |&tid: &i32| Status::of(tid).is_ok_and(|status| status.own_tid() == Some(number));
    let tasks = all(pid).ok()?;
    let same = tasks.iter().copied().find(|&tid| tid.cast_unsigned() == number).filter(has_number);
    same.or_else(|| tasks.iter().copied().find(has_number))
}

/// Returns the numbers of all processes.
pub fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the command line of a process, or its name if it has none.
pub fn command(pid: i32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut words: Vec<String> = words.collect();
    // Each word is followed by a zero.
    words.pop();
    if words.is_empty() {
        words.extend(std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim_end().to_owned()));
    }
    words
}

/// `/proc/PID/status` of a process or thread.
#[derive(Debug, Clone)]
pub struct Status(String);

impl Status {
    pub fn of(tid: i32) -> io::Result<Self> {
        Ok(Self(String::from_utf8_lossy(&std::fs::read(format!("/proc/{tid}/status"))?).into_owned()))
    }

    /// Returns the value of a line, without white space around it.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| *name == key).map(|(_, value)| value.trim())
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.split_whitespace().next()?.parse().ok()
    }

    fn set(&self, key: &str) -> u64 {
        self.get(key).and_then(|value| u64::from_str_radix(value, 16).ok()).unwrap_or(0)
    }

    /// Returns whether a signal is pending and not blocked.
    pub fn has_signal(&self) -> bool {
        (self.set("SigPnd") | self.set("ShdPnd")) & !self.set("SigBlk") != 0
    }

    /// Returns the number that the thread has for itself; it differs in a container.
    pub fn own_tid(&self) -> Option<u32> {
        self.get("NSpid")?.split_whitespace().last()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_processes_are_not_runnable() {
        let own = std::process::id().cast_signed();
        // SAFETY: no arguments, cannot fail.
        let tid = unsafe { libc::gettid() };
        assert!(is_runnable(own, tid));
        let mut sleeper = std::process::Command::new("sleep").arg("10").spawn().unwrap();
        let pid = sleeper.id().cast_signed();
        let start = std::time::Instant::now();
        while is_runnable(pid, pid) && start.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        assert!(!is_runnable(pid, pid));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!is_runnable(pid, pid));
    }

    #[test]
    fn own_threads_are_alive_and_have_numbers() {
        let pid = std::process::id().cast_signed();
        assert!(all(pid).unwrap().contains(&pid) && is_alive(pid, pid) && has_any(pid));
        assert!(!has_any(0x3fff_ffff));
        let status = Status::of(pid).unwrap();
        assert_eq!(status.number("Tgid"), Some(pid as u64));
        assert_eq!(status.number("NoSuchLine"), None);
        assert_eq!(status.own_tid(), Some(own_number(pid)));
        assert_eq!(thread_with_own_number(pid, own_number(pid)), Some(pid));
        assert!(processes().any(|process| process == pid));
    }

    #[test]
    fn a_name_may_contain_parentheses() {
        let worker = "7 (a) Z (b) S 1 7 7 0 -1 4194368 0 0";
        assert_eq!(state_and_flags(worker), Some(('S', 4_194_368)));
        assert_eq!(state_and_flags("nonsense"), None);
    }

    #[test]
    fn blocked_signals_do_not_count_as_pending() {
        let status = |pending, blocked| Status(format!("SigPnd:\t{pending}\nShdPnd:\t0\nSigBlk:\t{blocked}\n"));
        assert!(status("0000000000000100", "0000000000000000").has_signal());
        assert!(!status("0000000000000100", "0000000000000101").has_signal());
    }
}
