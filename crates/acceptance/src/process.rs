//! Runs a command with a time limit. After the limit, describes what every thread was doing, kills
//! all processes and fails the test.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read, Seek, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use workloads::Exit;

/// The time limit. No command of a test takes nearly as long, even on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Exit and output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOutput {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl ProcessOutput {
    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A running command, in a process group of its own. Its input is empty or a file; its output goes
/// to pipes.
#[derive(Debug)]
pub struct RunningProcess {
    what: String,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    is_over: bool,
}

/// Restores the default actions of the terminal's signals. Shells and `nohup` ignore them in
/// background processes, the tests among them.
fn with_interrupts(command: &mut Command) {
    let restore_defaults = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: takes no pointers but the default, and may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls and nothing else.
    unsafe { command.pre_exec(restore_defaults) };
}

/// Starts a command. A file that was just written is busy while the child that another test is
/// starting has it open, too.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    for _ in 0..500 {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    command.spawn()
}

impl RunningProcess {
    /// # Panics
    ///
    /// If the command cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, input: &[u8]) -> Self {
        let what = format!("{command:?}");
        command.stdin(stdin(input)).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        with_interrupts(command);
        let mut child = spawn(command).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (stdout, stderr) = (child.stdout.take().map(collect), child.stderr.take().map(collect));
        Self { what, child, stdout, stderr, is_over: false }
    }

    /// Returns the process number, which is also that of the group.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends a signal to the process, not to its group.
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers. The child has not been waited for, so the number is its own.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// Waits for the process and for the end of its output.
    ///
    /// # Panics
    ///
    /// If that takes longer than `limit`.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> ProcessOutput {
        let deadline = Instant::now() + limit;
        let status = self.wait_for_exit(deadline);
        while !self.is_output_complete() {
            self.give_up_after(deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
        self.is_over = true;
        ProcessOutput {
            exit: exit_of(status),
            stdout: collected(self.stdout.take()),
            stderr: collected(self.stderr.take()),
        }
    }

    fn wait_for_exit(&mut self, deadline: Instant) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            self.give_up_after(deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_output_complete(&self) -> bool {
        [&self.stdout, &self.stderr].into_iter().flatten().all(JoinHandle::is_finished)
    }

    fn give_up_after(&mut self, deadline: Instant) {
        if Instant::now() < deadline {
            return;
        }
        let description = describe_group(self.pid());
        self.kill_group();
        panic!("{} hangs:\n{description}", self.what);
    }

    fn kill_group(&mut self) {
        // SAFETY: takes no pointers; the group is the child's own.
        unsafe { libc::kill(-self.pid(), libc::SIGKILL) };
        let _ = self.child.wait();
        self.is_over = true;
    }
}

impl Drop for RunningProcess {
    /// A process that a failing test leaves running would disturb the others.
    fn drop(&mut self) {
        if !self.is_over {
            self.kill_group();
        }
    }
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it cannot be started or takes longer than [`LIMIT`].
#[must_use]
pub fn run(command: &mut Command) -> ProcessOutput {
    RunningProcess::start(command, &[]).wait(LIMIT)
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// If that takes longer than [`LIMIT`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a process of this number exists and has not exited.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    !matches!(state_of(pid), None | Some('Z' | 'X'))
}

/// Returns the character that /proc shows for the state of a process.
#[must_use]
pub fn state_of(pid: i32) -> Option<char> {
    stat(&format!("/proc/{pid}/stat"))?.0.chars().next()
}

/// Returns the processes whose parent is `pid`.
#[must_use]
pub fn children_of(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Reads state and process group from a `stat` file of /proc.
fn stat(path: &str) -> Option<(String, i32)> {
    let text = fs::read_to_string(path).ok()?;
    // The name before may contain anything, even parentheses.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    Some((state, fields.nth(1)?.parse().ok()?))
}

fn stdin(input: &[u8]) -> Stdio {
    if input.is_empty() {
        return Stdio::null();
    }
    let mut file = tempfile::tempfile().expect("a temporary file can be made");
    file.write_all(input).and_then(|()| file.rewind()).expect("a temporary file can be written");
    file.into()
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

fn collected(collector: Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    collector.map(|collector| collector.join().expect("collecting does not fail")).unwrap_or_default()
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Status(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

/// Describes what every thread of every process of a group is doing.
fn describe_group(group: i32) -> String {
    let mut description = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        let is_member = stat(&path.join("stat").to_string_lossy()).is_some_and(|(_, its_group)| its_group == group);
        if !is_member {
            continue;
        }
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default().replace('\0', " ");
        let _ = writeln!(description, "{}: {}", path.display(), read("cmdline"));
        for task in fs::read_dir(path.join("task")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let state = stat(&task.path().join("stat").to_string_lossy()).map(|(state, _)| state).unwrap_or_default();
            let line = [
                task.file_name().to_string_lossy().into_owned(),
                state,
                read("wchan"),
                read("syscall"),
                masks(&read("status")),
            ];
            let _ = writeln!(description, "  {}", line.map(|part| part.trim().to_owned()).join(" | "));
        }
    }
    description
}

fn masks(status: &str) -> String {
    let wanted = ["SigPnd", "ShdPnd", "SigBlk"];
    status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))).collect::<Vec<_>>().join(" ")
}

/// Asserts that nothing of the recorder is mapped in a process.
///
/// # Panics
///
/// If there is.
pub fn assert_clean(pid: i32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let start = u64::from_str_radix(range.split_once('-').unwrap().0, 16).unwrap();
        let ours = line.contains("trackway")
            || (0x6000_0000..0x8000_0000).contains(&start)
            || (0x5510_0000_0000..0x5550_0000_0000).contains(&start)
            || rest.starts_with("rwx");
        assert!(!ours, "{line}");
    }
}
