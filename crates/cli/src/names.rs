//! Names for the numbers that the kernel uses: system calls and signals.

/// Returns the name of a system call of x86-64 Linux.
pub fn system_call(number: u32) -> String {
    match syscalls::Sysno::new(number as usize) {
        Some(call) => call.name().to_owned(),
        None => format!("syscall_{number}"),
    }
}

/// Returns the name of a signal.
pub fn signal(number: u8) -> String {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match number {
        1..=31 => NAMES[usize::from(number) - 1].to_owned(),
        32..=64 => format!("SIGRT{}", number - 32),
        _ => format!("signal_{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_names() {
        assert_eq!(system_call(0), "read");
        assert_eq!(system_call(231), "exit_group");
        assert_eq!(system_call(435), "clone3");
        assert_eq!(system_call(99_999), "syscall_99999");
        assert_eq!(signal(1), "SIGHUP");
        assert_eq!(signal(11), "SIGSEGV");
        assert_eq!(signal(31), "SIGSYS");
        assert_eq!(signal(34), "SIGRT2");
        assert_eq!(signal(0), "signal_0");
    }
}
