//! Failures of a recording: one sentence on standard error, the status that shells use, no panic,
//! and no incomplete file in the place of an older good one. Everything that was recorded before
//! the failure can be read.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use acceptance::call::{exit_of, open_part, open_sound};
use acceptance::process::{self, LIMIT, RunningProcess, children_of, is_alive, state_of, wait_until};
use acceptance::source::{compile, write};
use acceptance::{Call, ProcessOutput, listing, tool, trackway};
use tempfile::TempDir;
use trace::{ThreadId, Trace};
use workloads::{Exit, Variant};

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn part_of(path: &Path) -> PathBuf {
    trace::partial_path(path)
}

/// Asserts one sentence of the command on standard error, and this status.
fn assert_refused(finished: &ProcessOutput, status: i32, words: &[&str]) {
    let text = finished.stderr_text();
    assert_eq!(finished.exit, Exit::Status(status), "{text}");
    assert!(text.starts_with("trackway: ") && text.lines().count() == 1, "not one sentence: {text}");
    assert!(!text.contains("panicked") && !text.contains("os error"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
    assert!(finished.stdout.is_empty(), "{}", finished.stdout_text());
}

/// A command that cannot be run leaves neither a trace nor a partial file.
fn assert_not_recorded(call: &Call, status: i32, words: &[&str]) {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    assert_refused(&process::run(&mut call.record_command(&output)), status, words);
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?} was left");
}

fn executable(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = write(directory, name, bytes);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The header of an ELF file: class (1: 32 bits, 2: 64 bits), byte order (1: little, 2: big),
/// machine.
fn elf_header(class: u8, order: u8, machine: u16) -> Vec<u8> {
    let number = |value: u16| if order == 1 { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut bytes = vec![0x7f, b'E', b'L', b'F', class, order, 1];
    bytes.resize(16, 0);
    bytes.extend([number(2), number(machine), number(1), number(0)].concat());
    bytes.resize(64, 0);
    bytes
}

// --------------------------------------------------------------------------------------------
// commands that cannot be run

#[test]
fn a_command_that_does_not_exist_has_status_127() {
    assert_not_recorded(&Call::new("no-such-command-anywhere"), 127, &["no-such-command-anywhere", "not found"]);
    assert_not_recorded(&Call::new("/no/such/file"), 127, &["/no/such/file"]);
    assert_not_recorded(&Call::new(""), 127, &[]);
}

#[test]
fn a_missing_command_is_refused() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let finished = process::run(Command::new(trackway()).arg("record").arg("-o").arg(&output));
    assert!(matches!(finished.exit, Exit::Status(1 | 2)), "{finished:?}");
    assert!(!finished.stderr.is_empty() && !finished.stderr_text().contains("panicked"));
    assert!(!output.exists() && !part_of(&output).exists());
}

#[test]
fn files_that_cannot_be_executed_are_refused() {
    let directory = scratch();
    let path = directory.path();
    assert_not_recorded(&Call::new(path), 126, &["is a directory"]);
    assert_not_recorded(&Call::new(write(path, "text", "#!/bin/sh\necho\n")), 126, &["text", "permission"]);
    assert_not_recorded(&Call::new("/dev/null"), 126, &["/dev/null"]);
    assert_not_recorded(&Call::new(executable(path, "i386", &elf_header(1, 1, 3))), 126, &["i386", "32-bit"]);
    assert_not_recorded(
        &Call::new(executable(path, "aarch64", &elf_header(2, 1, 183))),
        126,
        &["aarch64", "another processor"],
    );
    assert_not_recorded(
        &Call::new(executable(path, "s390", &elf_header(2, 2, 22))),
        126,
        &["s390", "another processor"],
    );
    assert_not_recorded(&Call::new(executable(path, "object", &elf_header(2, 1, 62)[..40])), 126, &["object"]);
    assert_not_recorded(&Call::new(executable(path, "x32", &elf_header(1, 1, 62))), 126, &["x32", "32-bit"]);
}

#[test]
fn a_missing_interpreter_is_reported() {
    let directory = scratch();
    let script = executable(directory.path(), "script", b"#!/no/such/interpreter -x\n");
    assert_not_recorded(&Call::new(script), 127, &["script", "/no/such/interpreter"]);
    let flags = ["gcc", "-Wl,--dynamic-linker=/no/such/loader.so"];
    let program = compile(directory.path(), "main.c", "int main(void) { return 0; }\n", &flags);
    assert_not_recorded(&Call::new(program), 127, &["/no/such/loader.so"]);
}

/// Forbids ptrace to the command and its children, as containers do.
fn forbid_ptrace(command: &mut Command) {
    const LOAD_NUMBER: libc::sock_filter = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    const IS_PTRACE: libc::sock_filter = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_ptrace as u32 };
    const REFUSE: libc::sock_filter =
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 };
    const ALLOW: libc::sock_filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    // SAFETY: between fork and exec only plain system calls are made, with pointers to what lives
    // on the stack.
    unsafe {
        command.pre_exec(|| {
            let mut filter = [LOAD_NUMBER, IS_PTRACE, REFUSE, ALLOW];
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

#[test]
fn a_missing_permission_to_trace_is_reported() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut command = Call::new("true").record_command(&output);
    forbid_ptrace(&mut command);
    assert_refused(&process::run(&mut command), 126, &["no permission to trace", "ptrace"]);
    assert!(!output.exists() && !part_of(&output).exists());
}

// ---------------------------------------------------------------------------- where it is written

/// The target is not run if the trace cannot be written.
#[test]
fn an_output_that_cannot_be_created_runs_no_target() {
    let directory = scratch();
    let file = write(directory.path(), "file", "old");
    let marker = directory.path().join("marker");
    for output in [directory.path().join("none/t.trk"), file.join("t.trk"), PathBuf::from("/proc/t.trk")] {
        let finished = process::run(&mut Call::new("touch").arg(&marker).record_command(&output));
        assert_refused(&finished, 1, &["cannot create", &output.display().to_string()]);
        assert!(!marker.exists(), "the command was run although {} cannot be written", output.display());
    }
}

/// A directory in the place of the trace must survive.
#[test]
fn an_output_that_is_a_directory_survives() {
    let directory = scratch();
    let finished = process::run(&mut Call::new("true").record_command(directory.path()));
    assert!(matches!(finished.exit, Exit::Status(status) if status != 0), "{finished:?}");
    assert_eq!(finished.stderr_text().lines().count(), 1, "{finished:?}");
    assert!(directory.path().is_dir());
}

/// A workload whose trace takes some 100 KiB, and what it prints.
fn long_call() -> (Call, &'static str) {
    let program = workloads::find("parser").unwrap();
    let executable = workloads::build(program.name, Variant::Pie).unwrap();
    (Call::new(executable).args(program.runs[0].arguments), program.runs[0].stdout)
}

/// A good trace at `path`, and its bytes.
fn good_trace(path: &Path) -> Vec<u8> {
    let finished = process::run(&mut Call::new("true").record_command(path));
    assert_eq!(finished.exit, Exit::Status(0), "{finished:?}");
    drop(open_sound(path));
    assert!(!part_of(path).exists());
    fs::read(path).unwrap()
}

/// Sets a limit for a command, as `ulimit` does.
fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, limit: u64) {
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            let is_set = libc::setrlimit(resource, &raw const limit) == 0;
            if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

/// A limit on the size of files is like a full disk: the target runs to its end, everything
/// recorded until then is in the partial file, and the older trace stays. The shared memory, which
/// counts as a file, works nevertheless.
#[test]
fn a_limit_on_files_ends_the_trace_not_the_target() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let old = good_trace(&output);
    let (call, expected) = long_call();
    let mut command = call.record_command(&output);
    limit(&mut command, libc::RLIMIT_FSIZE, 40 << 10);
    let finished = process::run(&mut command);
    assert_eq!(finished.stdout_text(), expected, "{}", finished.stderr_text());
    assert_refused(&ProcessOutput { stdout: Vec::new(), ..finished }, 1, &["incomplete", "too large", "t.trk.part"]);
    assert!(fs::read(&output).unwrap() == old);
    let info = process::run(Command::new(trackway()).arg("info").arg(part_of(&output)));
    assert_eq!(info.exit, Exit::Status(0), "{}", info.stderr_text());
}

/// The target inherits the limit, and the action for SIGXFSZ, from the caller of the recorder.
#[test]
fn the_target_inherits_the_limit_on_files() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let script = "ulimit -f 100; dd if=/dev/zero of=file bs=64k count=10 2> error; echo $?";
    let mut shell = Command::new(tool::required("bash"));
    let native = process::run(shell.args(["-c", script]).current_dir(directory.path()));
    assert_eq!(native.stdout_text(), "153\n", "SIGXFSZ");
    let is_reported = |finished: &ProcessOutput| finished.stderr_text().contains("File size limit exceeded");
    let mut call = Call::new("bash").args(["-c", script]).record_command(&output);
    let finished = process::run(call.current_dir(directory.path()));
    assert_eq!((finished.stdout_text().as_str(), is_reported(&finished)), ("153\n", is_reported(&native)));
}

/// The status is that of a command that cannot be traced, wherever in the set-up the memory runs
/// out.
#[test]
fn too_little_address_space_is_reported() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let marker = directory.path().join("marker");
    for gigabytes in [1, 8] {
        let mut command = Call::new("touch").arg(&marker).record_command(&output);
        limit(&mut command, libc::RLIMIT_AS, gigabytes << 30);
        assert_refused(&process::run(&mut command), 126, &["ulimit -v"]);
        assert!(!marker.exists() && !output.exists() && !part_of(&output).exists());
    }
}

/// Traces hold what the program had in its memory: only their owner may read them, however generous
/// the umask is.
#[test]
fn traces_are_private() {
    let directory = scratch();
    let mode = |name: &str| fs::metadata(directory.path().join(name)).unwrap().permissions().mode() & 0o777;
    let output = directory.path().join("t.trk");
    write(directory.path(), "t.trk.part", "old");
    fs::set_permissions(part_of(&output), fs::Permissions::from_mode(0o644)).unwrap();
    let script = format!("stat -c %a {}; (exit 3); true", part_of(&output).display());
    let mut command = Command::new(trackway());
    command.args(["record", "--follow", "--data", "values", "-o"]).arg(&output).args(["--", "sh", "-c", &script]);
    let finished = process::run(&mut command);
    assert_eq!((finished.stdout_text().as_str(), finished.exit), ("600\n", Exit::Status(0)), "{finished:?}");
    let tools: [&[&str]; 4] = [
        &["dump", "-o", "dump", "t.trk"],
        &["mlsTrace", "-q", "-o", "loads", "-i", "t.trk"],
        &["mlvCFiat", "-q", "-o", "values", "-i", "t.trk"],
        &["port", "t.trk", "--technique", "mcfTR_e", "-o", "port"],
    ];
    for arguments in tools {
        let finished = process::run(Command::new(trackway()).args(arguments).current_dir(directory.path()));
        assert_eq!(finished.exit, Exit::Status(0), "{arguments:?}: {}", finished.stderr_text());
    }
    let names: Vec<String> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert_eq!(mode(&name), 0o600, "{name}");
    }
}

/// Runs `script` with a small disk of its own as the current directory, in a namespace of its own.
/// Arguments: the trackway command, and a target that takes longer to trace than there is room.
fn on_a_small_disk(script: &str) -> ProcessOutput {
    let directory = scratch();
    let mount = format!("mount -t tmpfs -o size=256k none {} && cd {0} || exit 99\n", directory.path().display());
    let unshare = |flags: &str, script: &str| {
        let target = long_call().0.command();
        let mut command = Command::new(tool::required("unshare"));
        command.arg(flags).args(["sh", "-c", script, "sh"]).arg(trackway());
        process::run(command.arg(target.get_program()).args(target.get_args()))
    };
    let can_mount = |flags: &&str| unshare(flags, &format!("{mount} exit 0")).exit == Exit::Status(0);
    let flags = ["-m", "-Urm"].into_iter().find(can_mount).expect("mounting needs root, or name spaces for users");
    unshare(flags, &format!("{mount} trackway=$1; shift\n{script}"))
}

/// A full disk: the target does not run, and the older trace stays.
#[test]
fn a_full_disk_runs_no_target() {
    let finished = on_a_small_disk(
        r#"
        "$trackway" record -o t.trk -- true || exit 98
        sum=$(md5sum t.trk)
        dd if=/dev/zero of=filler bs=1k count=1000 2> /dev/null
        "$trackway" record -o t.trk -- "$@"; status=$?
        [ "$(md5sum t.trk)" = "$sum" ] && exit $status
        echo "the older trace was touched"; exit 97
        "#,
    );
    assert_refused(&finished, 1, &["could not be created", "space"]);
}

/// A disk that becomes full: the target runs to its end, everything recorded until then is in the
/// partial file, and the older trace stays.
#[test]
fn a_disk_that_becomes_full_ends_the_trace_not_the_target() {
    let finished = on_a_small_disk(
        r#"
        "$trackway" record -o t.trk -- true || exit 98
        sum=$(md5sum t.trk)
        dd if=/dev/zero of=filler bs=1k count=1000 2> /dev/null
        truncate -s -20k filler
        "$trackway" record -o t.trk -- "$@"; status=$?
        [ "$(md5sum t.trk)" = "$sum" ] || exit 97
        rm filler; "$trackway" info t.trk.part > /dev/null || exit 96
        exit $status
        "#,
    );
    assert_eq!(finished.stdout_text(), long_call().1, "{}", finished.stderr_text());
    assert_refused(&ProcessOutput { stdout: Vec::new(), ..finished }, 1, &["incomplete", "space", "t.trk.part"]);
}

#[test]
fn an_older_trace_survives_a_command_that_cannot_be_run() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let old = good_trace(&output);
    assert_refused(&process::run(&mut Call::new("no-such-command").record_command(&output)), 127, &[]);
    assert_refused(&process::run(&mut Call::new("/").record_command(&output)), 126, &[]);
    assert!(fs::read(&output).unwrap() == old);
    good_trace(&output);
}

// --------------------------------------------------------------------------------- damaged traces

const VERBS: [&[&str]; 5] =
    [&["info"], &["info", "--json"], &["stat"], &["verify"], &["dump", "--kind", "control", "-d", "-o", "/dev/null"]];

fn read_with(verb: &[&str], path: &Path) -> ProcessOutput {
    let finished = process::run(Command::new(trackway()).args(verb).arg(path));
    let is_status = matches!(finished.exit, Exit::Status(_));
    assert!(is_status && !finished.stderr_text().contains("panicked"), "{verb:?} {}: {finished:?}", path.display());
    finished
}

#[test]
fn files_that_are_no_traces_are_refused() {
    let directory = scratch();
    let path = directory.path();
    let files = [
        path.join("none.trk"),
        path.to_owned(),
        write(path, "empty.trk", ""),
        write(path, "text.trk", "This is no trace.\n".repeat(100)),
        write(path, "zeros.trk", vec![0; 100_000]),
        PathBuf::from("/dev/null"),
        PathBuf::from("/bin/sh"),
    ];
    for file in files {
        for verb in VERBS {
            assert_refused(&read_with(verb, &file), 1, &[&file.display().to_string()]);
        }
    }
}

/// A trace of several chunks of several threads, and its file's bytes.
fn sample(directory: &Path) -> (PathBuf, Vec<u8>) {
    let program = workloads::build("radiosity", Variant::Pie).unwrap();
    let path = directory.join("sample.trk");
    for _ in 0..20 {
        let finished = process::run(&mut Call::new(&program).args(["3", "1"]).record_command(&path));
        assert_eq!(finished.exit, Exit::Status(0), "{finished:?}");
        let trace = open_sound(&path);
        assert!(trace.summary().chunks > 6, "{:?}", trace.summary());
        let bytes = fs::read(&path).unwrap();
        if is_in_pieces(&trace, &bytes) {
            return (path, bytes);
        }
    }
    panic!("on a machine as busy as this, one thread does everything, and in one piece");
}

/// Returns whether chunks are small enough for the tests: a file without any one of them still has
/// most of the execution, and a file that is cut still has the first one.
fn is_in_pieces(trace: &Trace, bytes: &[u8]) -> bool {
    let largest = trace.path_chunks().map(|chunk| chunk.counts.instructions).max().unwrap_or(0);
    let cut = Trace::from_bytes(bytes[..bytes.len() * 7 / 8].to_vec()).unwrap();
    largest < trace.totals().instructions * 2 / 3 && cut.path_chunks().next().is_some()
}

/// The addresses that each thread of a trace executed.
type Whole = HashMap<ThreadId, Vec<u64>>;

fn addresses(trace: &Trace) -> Whole {
    let numbers = trace.threads().iter().map(|thread| thread.info.thread);
    numbers.map(|thread| (thread, listing::of_thread(trace, thread).addresses)).collect()
}

/// Returns the number of instructions that can be read of a damaged trace. Checks that each has the
/// same number as in the whole trace.
fn readable(damaged: &Trace, whole: &Whole) -> u64 {
    damaged.threads().iter().map(|thread| readable_of(damaged, thread.info.thread, &whole[&thread.info.thread])).sum()
}

fn readable_of(damaged: &Trace, thread: ThreadId, expected: &[u64]) -> u64 {
    let (mut readable, mut position) = (0, 0);
    let mut steps = damaged.steps(thread).unwrap();
    loop {
        let batch = match steps.next_batch() {
            Ok(None) => return readable,
            Ok(Some(batch)) => batch,
            // Steps after the damage begin behind a gap.
            Err(_) => continue,
        };
        let first = batch.first_instruction().get() as usize;
        assert!(first >= position, "thread {thread} goes backwards");
        let executed = batch.steps().iter().flat_map(|step| damaged.blocks().instructions(step));
        let addresses: Vec<u64> = executed.map(|instruction| instruction.address.get()).collect();
        position = first + addresses.len();
        assert!(expected.get(first..position) == Some(&addresses[..]), "thread {thread} differs after {first}");
        readable += addresses.len() as u64;
    }
}

/// Asserts that every verb reports what is missing. `info` reads only the index, and says whether
/// the trace is complete.
fn assert_damage_is_reported(path: &Path) {
    for verb in VERBS {
        let finished = read_with(verb, path);
        let text = finished.stderr_text();
        match verb[0] {
            "verify" => assert_eq!(finished.exit, Exit::Status(1), "verify finds nothing wrong: {text}"),
            "info" => {}
            _ => {
                assert!(text.lines().all(|line| line.starts_with("trackway: ")), "{verb:?} {}: {text}", path.display());
                assert_eq!(
                    (finished.exit, text.is_empty()),
                    (Exit::Status(1), false),
                    "{verb:?} does not report the damage: {text}"
                );
            }
        }
    }
}

#[test]
fn truncated_traces_are_read_as_far_as_they_go() {
    let directory = scratch();
    let (path, bytes) = sample(directory.path());
    let whole = addresses(&Trace::open(&path).unwrap());
    let mut most = 0;
    for eighths in 1..8 {
        let cut = directory.path().join("cut.trk");
        fs::write(&cut, &bytes[..bytes.len() * eighths / 8]).unwrap();
        assert_damage_is_reported(&cut);
        let damaged = Trace::open(&cut).unwrap();
        assert!(!damaged.is_finished() && !damaged.verify().is_sound());
        let readable = readable(&damaged, &whole);
        assert!(readable >= most, "a longer file has less in it");
        most = readable;
    }
    let total: usize = whole.values().map(Vec::len).sum();
    assert!(most > 0 && most < total as u64, "{most} of {total}");
}

#[test]
fn corrupted_traces_yield_what_is_intact() {
    let directory = scratch();
    let (path, bytes) = sample(directory.path());
    let whole = addresses(&Trace::open(&path).unwrap());
    let total: u64 = whole.values().map(|addresses| addresses.len() as u64).sum();
    // The definitions of code come first and are larger than this.
    let in_code = 10_000;
    for place in (0..16).map(|sixteenth| bytes.len() * sixteenth / 16 + 5).chain([in_code]) {
        let mut changed = bytes.clone();
        changed[place] ^= 0x5a;
        let bad = directory.path().join("bad.trk");
        fs::write(&bad, &changed).unwrap();
        let damaged = Trace::open(&bad).unwrap();
        assert!(!damaged.verify().is_sound(), "the change at {place} was not noticed");
        let readable = readable(&damaged, &whole);
        // Paths mean nothing without the definitions of their blocks.
        let lost_definitions = damaged.damage().iter().any(|damage| damage.to_string().contains("code chunk"));
        let is_right = readable <= total && (readable > 0 || lost_definitions);
        assert!(is_right, "{readable} of {total} instructions with a change at {place}: {:?}", damaged.damage());
        if readable < total {
            assert_damage_is_reported(&bad);
        }
    }
}

// ---------------------------------------------------------------------------------------------
// targets and recorders that die

/// A program that prints that it is ready, computes for a while (in seconds, perhaps with threads),
/// and prints the result.
const WORKER: &str = include_str!("../programs/worker.c");

const WORKER_OUTPUT: &str = "ready\nwrong 0, ticks 1\n";

fn worker(directory: &Path) -> PathBuf {
    compile(directory, "worker.c", WORKER, &["gcc", "-O1", "-pthread"])
}

/// A recording that has come as far as the target's main function.
struct Recording {
    recorder: RunningProcess,
    target: i32,
    output: PathBuf,
}

fn start(directory: &Path, arguments: &[&str]) -> Recording {
    let output = directory.join("t.trk");
    let call = Call::new(worker(directory)).args(arguments);
    let recorder = RunningProcess::start(&mut call.record_command(&output), &[]);
    let pid = recorder.pid();
    wait_until("the target computes", || {
        children_of(pid).first().is_some_and(|&target| processor_time(target) > Duration::from_millis(100))
    });
    Recording { target: children_of(pid)[0], recorder, output }
}

/// Processor time that a process has used.
fn processor_time(pid: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
    let ticks: u64 = fields.get(11..13).unwrap_or_default().iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn a_killed_target_leaves_its_trace() {
    for threads in ["0", "6"] {
        let directory = scratch();
        let Recording { recorder, target, output } = start(directory.path(), &["60", threads]);
        // SAFETY: takes no pointers; the recorder has not waited for its child, which hence has its
        // number.
        unsafe { libc::kill(target, libc::SIGKILL) };
        let finished = recorder.wait(LIMIT);
        assert_eq!(finished.exit, Exit::Status(128 + 9), "{finished:?}");
        assert_eq!(finished.stdout_text(), "ready\n");
        let trace = open_sound(&output);
        assert!(trace.is_finished());
        assert_eq!(exit_of(&trace), Exit::Signal(9));
        assert!(trace.summary().totals.instructions > 1_000_000, "{:?}", trace.summary());
        assert_eq!(trace.threads().len(), threads.parse::<usize>().unwrap() + 1);
        assert!(!part_of(&output).exists());
    }
}

/// Kills the recorder after this number of milliseconds. The target goes on without it and ends as
/// it should.
fn kill_recorder(seconds: &str, threads: &str, delay: u64) -> Trace {
    let directory = scratch();
    let old = good_trace(&directory.path().join("t.trk"));
    let Recording { recorder, target, output } = start(directory.path(), &[seconds, threads]);
    std::thread::sleep(Duration::from_millis(delay));
    recorder.signal(libc::SIGKILL);
    // Waits for the target too, which has the other end of the pipe.
    let finished = recorder.wait(LIMIT);
    assert_eq!(finished.exit, Exit::Signal(9), "{finished:?}");
    let text = finished.stderr_text();
    assert_eq!(finished.stdout_text(), WORKER_OUTPUT, "{threads} threads, after {delay} ms: {text}");
    wait_until("the target is gone", || !is_alive(target));
    assert!(fs::read(&output).unwrap() == old, "the older trace was touched");
    read_with(&["info"], &part_of(&output));
    open_part(&part_of(&output))
}

#[test]
fn a_killed_recorder_leaves_a_readable_part() {
    for (threads, delay) in [("0", 0), ("0", 130), ("3", 10), ("3", 300), ("8", 50)] {
        kill_recorder("1.2", threads, delay);
    }
}

/// Recorded events are in the file after a second at most.
#[test]
fn events_are_in_the_file_after_a_second() {
    let part = kill_recorder("4", "1", 2500);
    assert!(part.summary().totals.instructions > 1_000_000, "too little can be read: {:?}", part.summary().totals);
    assert_eq!(part.threads().len(), 2);
}

/// The recorder passes signals that ask it to end on to the target.
#[test]
fn a_recorder_passes_termination_on_to_the_target() {
    let directory = scratch();
    let Recording { recorder, output, .. } = start(directory.path(), &["60", "2"]);
    recorder.signal(libc::SIGTERM);
    let finished = recorder.wait(LIMIT);
    assert_eq!(finished.exit, Exit::Status(128 + libc::SIGTERM), "{finished:?}");
    assert_eq!(exit_of(&open_sound(&output)), Exit::Signal(libc::SIGTERM));

    let directory = scratch();
    let Recording { recorder, output, .. } = start(directory.path(), &["60", "2", "handles"]);
    recorder.signal(libc::SIGTERM);
    let finished = recorder.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(33), "ready\nterm\n"));
    assert_eq!(exit_of(&open_sound(&output)), Exit::Status(33));
}

/// The terminal's interrupt reaches both; the recorder stays until the target has ended.
#[test]
fn the_recorder_stays_until_an_interrupted_target_has_ended() {
    let directory = scratch();
    let Recording { recorder, output, .. } = start(directory.path(), &["60", "2"]);
    // SAFETY: takes no pointers; the group is the recorder's own.
    unsafe { libc::kill(-recorder.pid(), libc::SIGINT) };
    let finished = recorder.wait(LIMIT);
    assert_eq!(finished.exit, Exit::Status(128 + libc::SIGINT), "{finished:?}");
    assert_eq!(exit_of(&open_sound(&output)), Exit::Signal(libc::SIGINT));
}

/// Events are never dropped: while the recorder is stopped, the target waits as soon as its ring is
/// full.
#[test]
fn a_full_ring_makes_the_target_wait() {
    let directory = scratch();
    let Recording { recorder, target, output } = start(directory.path(), &["2.5", "0"]);
    recorder.signal(libc::SIGSTOP);
    wait_until("the recorder stands", || state_of(recorder.pid()) == Some('T'));
    let begin = Instant::now();
    let mut before = processor_time(target);
    wait_until("the target waits", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = processor_time(target);
        std::mem::replace(&mut before, now) == now
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(state_of(target), Some('S'), "the target does not sleep");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(processor_time(target), before, "the target works although nobody reads");
    recorder.signal(libc::SIGCONT);
    let finished = recorder.wait(LIMIT);
    assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(12), WORKER_OUTPUT), "{finished:?}");
    assert!(open_sound(&output).is_finished());
}

// ----------------------------------------------------------------------------------- many threads

/// The seed's binary format has one byte for the thread.
#[test]
fn binary_formats_refuse_threads_above_255() {
    let directory = scratch();
    let path = directory.path().join("t.trk");
    let program = workloads::build("radix", Variant::Pie).unwrap();
    let finished = process::run(&mut Call::new(program).args(["300", "20"]).record_command(&path));
    assert_eq!(finished.exit, Exit::Status(0), "{finished:?}");
    assert_eq!(open_sound(&path).threads().len(), 300);
    let dump = |options: &[&str]| {
        let mut command = Command::new(trackway());
        command.args(["dump", "--kind", "control", "--format", "binary", "-o"]).arg(directory.path().join("out"));
        process::run(command.args(options).arg(&path))
    };
    assert_refused(&dump(&[]), 1, &["--wide"]);
    assert_eq!(dump(&["--wide"]).exit, Exit::Status(0));
    let length = fs::metadata(directory.path().join("out")).unwrap().len();
    assert_eq!(length, 21 * open_sound(&path).summary().totals.branches());
    assert_eq!(dump(&["--thread", "7"]).exit, Exit::Status(0));
}
