//! Recording across the boundaries between users, roots and namespaces: the recorder is root, or
//! the user who has made the namespaces.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use acceptance::call::open_sound;
use acceptance::process::{self, LIMIT, RunningProcess, children_of, wait_until};
use acceptance::source::{compile, write};
use acceptance::{ProcessOutput, is_soak, say_not_tested, tool, trackway};
use tempfile::TempDir;
use trace::Trace;
use workloads::Exit;

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// A directory that every user may read.
fn scratch() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// A program that needs no libraries, in `directory`.
fn static_program(directory: &Path, name: &str, text: &str) -> PathBuf {
    compile(directory, name, text, &["gcc", "-O1", "-static"])
}

fn pace(directory: &Path) -> PathBuf {
    static_program(directory, "pace.c", include_str!("../programs/pace.c"))
}

fn command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tool::required(name));
    command.args(arguments);
    command
}

fn record(output: &Path, options: &[&str]) -> Command {
    let mut recorder = Command::new(trackway());
    recorder.args(["record", "-o"]).arg(output).args(options);
    recorder
}

/// Records a process for half a second; it goes on, and has no more files open than before.
fn visit(pid: i32) -> Trace {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let files = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = files();
    let mut recorder = record(&output, &["-p", &pid.to_string()]);
    let recorder = RunningProcess::start(&mut recorder, &[]);
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let is_recorded = || maps().contains("trackway") && status().contains("TracerPid:\t0\n");
    wait_until("it is recorded", || is_recorded() || !process::is_alive(recorder.pid()));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(files(), before, "no descriptor of ours");
    recorder.signal(libc::SIGINT);
    let finished = recorder.wait(LIMIT);
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    assert!(!maps().contains("trackway"));
    let trace = open_sound(&output);
    assert!(trace.is_finished());
    assert_eq!(trace.exit(), trace::Exit::Detached);
    assert_eq!(trace.recording().pid, pid.cast_unsigned());
    assert!(trace.summary().totals.instructions > 100_000);
    trace
}

/// Attaches twice to a process that works until SIGTERM, and ends it.
fn visit_and_end(running: RunningProcess, pid: i32) {
    visit(pid);
    visit(pid);
    // SAFETY: takes no pointers; the process is a descendant that no process has waited for.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let finished = running.wait(LIMIT);
    assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
}

/// The only process that `pid` and its descendants have made, and that has made none.
fn last_descendant(pid: i32) -> i32 {
    let mut last = pid;
    while let Some(&child) = children_of(last).first() {
        last = child;
    }
    last
}

/// Whether the process executes this program.
fn executes(pid: i32, program: &Path) -> bool {
    let name = program.file_name().unwrap();
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|executed| executed.file_name() == Some(name))
}

/// Starts a command that executes `program` in the end, perhaps in a descendant, and attaches to
/// that process.
fn check_visits(command: &mut Command, program: &Path) {
    let running = RunningProcess::start(command, &[]);
    wait_until("the program runs", || executes(last_descendant(running.pid()), program));
    std::thread::sleep(Duration::from_millis(100));
    let pid = last_descendant(running.pid());
    visit_and_end(running, pid);
}

/// The traces of the processes that were followed. All are sound and finished.
fn followed(output: &Path) -> Vec<Trace> {
    let prefix = format!("{}.", output.file_stem().unwrap().to_str().unwrap());
    let mut found = Vec::new();
    for entry in fs::read_dir(output.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(!name.ends_with(".part"), "{name} was left");
        if name.starts_with(&prefix) && path != output && name.ends_with(".trk") {
            let trace = open_sound(&path);
            assert!(trace.is_finished(), "{name}");
            found.push(trace);
        }
    }
    found
}

/// Asserts that this number of processes was followed, and that each has a trace that is not empty.
fn assert_followed(output: &Path, count: usize) {
    let traces = followed(output);
    assert_eq!(traces.len(), count);
    assert!(traces.iter().all(|trace| trace.summary().totals.instructions > 100));
}

fn assert_prints(finished: &ProcessOutput, expected: &str) {
    let seen = (finished.exit, finished.stdout_text(), finished.stderr_text());
    assert_eq!(seen, (Exit::Status(0), expected.to_owned(), String::new()));
}

// -------------------------------------------------------------------------------------- attaching

#[test]
fn another_users_process_is_recorded() {
    let directory = scratch();
    let program = pace(directory.path());
    check_visits(command("setpriv", &NOBODY).arg(&program), &program);
}

#[test]
fn a_process_in_a_chroot_without_proc_is_recorded() {
    let directory = scratch();
    let program = pace(directory.path());
    check_visits(command("chroot", &[]).arg(directory.path()).arg("/pace.executable"), &program);
}

#[test]
fn a_process_in_other_namespaces_is_recorded() {
    let directory = scratch();
    let program = pace(directory.path());
    for proc in [&["--mount-proc"][..], &[]] {
        let options = ["--pid", "--fork", "--mount", "--user", "--map-root-user"];
        check_visits(command("unshare", &options).args(proc).arg(&program), &program);
    }
}

#[test]
fn a_process_in_bubblewrap_is_recorded() {
    let directory = scratch();
    let program = pace(directory.path());
    let options = ["--unshare-all", "--cap-drop", "ALL", "--ro-bind"];
    check_visits(command("bwrap", &options).arg(&program).args(["/pace.executable", "/pace.executable"]), &program);
}

/// Without /proc the engine cannot find out by itself that code is writable.
#[test]
fn writable_code_is_noticed_in_a_chroot_without_proc() {
    let directory = scratch();
    static_program(directory.path(), "rewrites.c", include_str!("../programs/rewrites.c"));
    let mut chroot = command("chroot", &[]);
    let running = RunningProcess::start(chroot.arg(directory.path()).arg("/rewrites.executable"), &[]);
    wait_until("the program runs", || executes(running.pid(), Path::new("rewrites.executable")));
    std::thread::sleep(Duration::from_millis(200));
    visit(running.pid());
    running.signal(libc::SIGTERM);
    assert_prints(&running.wait(LIMIT), "ready\nwrong 0\n");
}

/// A server that has given up its privileges answers while it is recorded.
#[test]
fn memcached_answers_while_it_is_recorded() {
    let directory = scratch();
    let port = free_port();
    let running = RunningProcess::start(&mut memcached(port), &[]);
    wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let output = directory.path().join("t.trk");
    let pid = running.pid().to_string();
    let recorder = RunningProcess::start(&mut record(&output, &["-p", &pid]), &[]);
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    wait_until("it is recorded", || maps().contains("trackway") || !process::is_alive(recorder.pid()));
    converse(port);
    recorder.signal(libc::SIGINT);
    let finished = recorder.wait(LIMIT);
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    assert!(open_sound(&output).summary().totals.instructions > 1_000_000);
    converse(port);
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait(LIMIT).exit, Exit::Status(0));
}

/// The engine can be anywhere: Chromium leaves nothing free below 4 GiB.
#[test]
fn a_process_without_room_below_two_gigabytes_is_recorded() {
    let directory = scratch();
    // The code of the program itself must not be there, or there would be no room for its
    // translation.
    let flags = ["gcc", "-O1", "-static-pie"];
    let program = compile(directory.path(), "guard.c", include_str!("../programs/guard.c"), &flags);
    let running = RunningProcess::start(&mut Command::new(&program), &[]);
    let pid = running.pid().to_string();
    let ranges = || -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        maps.lines().map(|line| line.split_once(' ').unwrap().0.to_owned()).collect()
    };
    wait_until("the low memory is taken", || ranges().iter().any(|range| range == "00010000-100000000"));
    std::thread::sleep(Duration::from_millis(500));
    let before = ranges();
    for options in [&["--data", "none"][..], &["--data", "addresses"], &["--data", "values"], &["--follow"]] {
        let output = directory.path().join("t.trk");
        let mut recorder = record(&output, &["-p", &pid, "--seconds", "1"]);
        let finished = process::run(recorder.args(options));
        assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""), "{options:?}");
        let trace = open_sound(&output);
        assert!(trace.summary().totals.instructions > 100_000);
        assert!(trace.modules().iter().any(|mapped| mapped.module.path.ends_with("guard.executable")));
        assert_eq!(ranges(), before, "nothing of ours stays");
    }
    assert!(!followed(&directory.path().join("t.trk")).is_empty());
    running.signal(libc::SIGTERM);
    assert_prints(&running.wait(LIMIT), "ready\nwrong 0\n");
}

// -------------------------------------------------------------------------------------- launching

#[test]
fn memcached_is_recorded_after_it_becomes_nobody() {
    for mode in ["none", "values"] {
        let directory = scratch();
        let output = directory.path().join("t.trk");
        let port = free_port();
        let server = memcached(port);
        let mut recorder = record(&output, &["--data", mode, "--"]);
        let running = RunningProcess::start(recorder.arg(server.get_program()).args(server.get_args()), &[]);
        wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        converse(port);
        running.signal(libc::SIGTERM);
        let finished = running.wait(LIMIT);
        assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
        assert!(open_sound(&output).summary().totals.instructions > 1_000_000);
    }
}

fn memcached(port: u16) -> Command {
    command("memcached", &["-u", "nobody", "-l", "127.0.0.1", "-t", "2", "-p", &port.to_string()])
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Stores and fetches a thousand values.
fn converse(port: u16) {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    for number in 0..1000 {
        let request = format!("set key{number} 0 0 5\r\n{number:05}\r\nget key{number}\r\n");
        let expected = format!("STORED\r\nVALUE key{number} 0 5\r\n{number:05}\r\nEND\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = vec![0; expected.len()];
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), expected);
    }
}

/// Apache's workers, which give up their privileges, are followed, and attached to.
#[test]
fn apaches_workers_are_followed_and_attached_to() {
    let directory = scratch();
    let (root, port) = (directory.path(), free_port());
    let configuration = root.join("apache.conf");
    let modules = ["mpm_event", "authz_core"]
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .concat();
    let text = format!(
        "ServerRoot {0}\nDocumentRoot {0}\nPidFile {0}/pid\nErrorLog {0}/error.log\nServerName localhost\n\
         Listen 127.0.0.1:{port}\n{modules}User nobody\nGroup nogroup\n\
         StartServers 2\nServerLimit 2\nThreadsPerChild 8\nMaxRequestWorkers 16\n",
        root.display()
    );
    write(root, "apache.conf", &text);
    write(root, "page", "from a worker\n");
    let server = || {
        let mut server = command("apache2", &["-DFOREGROUND", "-f"]);
        server.arg(&configuration);
        server
    };
    let main = || -> i32 { fs::read_to_string(root.join("pid")).unwrap().trim().parse().unwrap() };

    let output = root.join("t.trk");
    let mut recorder = record(&output, &["--follow", "--"]);
    let running = RunningProcess::start(recorder.arg(server().get_program()).args(server().get_args()), &[]);
    wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (0..20).for_each(|_| assert_eq!(get_page(port), "from a worker\n"));
    // SAFETY: sends a signal to the server.
    unsafe { libc::kill(main(), libc::SIGTERM) };
    let finished = running.wait(LIMIT);
    assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    assert_followed(&output, 2);

    let running = RunningProcess::start(&mut server(), &[]);
    wait_until("the server has workers", || children_of(running.pid()).len() == 2);
    wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let output = root.join("worker.trk");
    let workers = children_of(running.pid());
    let recorders: Vec<RunningProcess> = workers
        .iter()
        .map(|pid| {
            RunningProcess::start(
                &mut record(&output.with_extension(format!("{pid}.trk")), &["-p", &pid.to_string()]),
                &[],
            )
        })
        .collect();
    let is_recorded = |pid: i32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains("trackway");
    wait_until("they are recorded", || workers.iter().all(|&pid| is_recorded(pid)));
    (0..20).for_each(|_| assert_eq!(get_page(port), "from a worker\n"));
    for recorder in recorders {
        recorder.signal(libc::SIGINT);
        let finished = recorder.wait(LIMIT);
        assert_eq!((finished.exit, finished.stderr_text().as_str()), (Exit::Status(0), ""));
    }
    assert_followed(&output, 2);
    assert_eq!(get_page(port), "from a worker\n");
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait(LIMIT).exit, Exit::Status(0));
}

fn get_page(port: u16) -> String {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    connection.write_all(b"GET /page HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned())
}

/// Another user executes another program.
#[test]
fn an_exec_after_giving_up_privileges_is_recorded() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = record(&output, &["--"]);
    recorder.arg(tool::required("setpriv")).args(NOBODY).args(["sh", "-c", "id -u; exec id -u"]);
    assert_prints(&process::run(&mut recorder), "65534\n65534\n");
    let trace = open_sound(&output);
    assert_eq!(trace.modules().iter().map(|mapped| mapped.image).max(), Some(2));
}

/// A program that the dynamic linker loads in a chroot: the trace names the files that it maps
/// nevertheless.
#[test]
fn an_exec_into_a_chroot_is_recorded() {
    let directory = scratch();
    let program =
        compile(directory.path(), "hello.c", "int puts(const char *); int main(void) { puts(\"hello\"); }", &["gcc"]);
    let root = directory.path().join("root");
    for file in ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/hello"] {
        let copy = root.join(&file[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(if file == "/hello" { &program } else { Path::new(file) }, copy).unwrap();
    }
    let output = directory.path().join("t.trk");
    let mut recorder = record(&output, &["--"]);
    recorder.arg(tool::required("chroot")).arg(&root).arg("/hello");
    assert_prints(&process::run(&mut recorder), "hello\n");
    let trace = open_sound(&output);
    let is_library = |path: &str| path.ends_with("root/lib/x86_64-linux-gnu/libc.so.6");
    assert!(trace.modules().iter().any(|mapped| mapped.image == 1 && is_library(&mapped.module.path)));
}

// -------------------------------------------------------------------------------------- following

#[test]
fn processes_are_followed_into_bubblewrap() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = record(&output, &["--follow", "--"]);
    recorder.arg(tool::required("bwrap")).args(["--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc"]);
    recorder.args(["--dev", "/dev", "sh", "-c", "echo $$; (exit 3); echo $?; ls -d /proc/self; exec echo end"]);
    assert_prints(&process::run(&mut recorder), "2\n3\n/proc/self\nend\n");
    // Its init, the shell, a subshell, ls.
    assert_followed(&output, 4);
}

#[test]
fn processes_are_followed_into_namespaces_in_namespaces() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let options = ["--pid", "--fork", "--mount", "--user", "--map-root-user"];
    let mut recorder = record(&output, &["--follow", "--"]);
    recorder.arg(tool::required("unshare")).args(options).arg(tool::required("unshare")).args(options);
    recorder.args(["sh", "-c", "echo $$; (exit 3); echo $?; exec echo end"]);
    assert_prints(&process::run(&mut recorder), "1\n3\nend\n");
    assert_followed(&output, 3);
}

#[test]
fn another_users_processes_are_followed() {
    let directory = scratch();
    let output = directory.path().join("t.trk");
    let mut recorder = record(&output, &["--follow", "--"]);
    recorder.arg(tool::required("su")).args(["nobody", "-s", "/bin/sh", "-c", "id -u; (exit 3); echo $?"]);
    assert_prints(&process::run(&mut recorder), "65534\n3\n");
    assert_followed(&output, 3);
}

/// Chromium's sandbox: user, process and network namespaces, a chroot, and seccomp filters. Takes
/// long: for the soak.
#[test]
fn chromium_is_followed_into_its_sandbox() {
    if !is_soak() {
        say_not_tested("Chromium with its sandbox, which takes long: `cargo xtask soak` does");
        return;
    }
    let directory = scratch();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let page = "<script>let s = 0; for (let i = 0; i < 1e6; i++) s += i; document.title = s</script>";
    let page = write(directory.path(), "page.html", page);
    let output = place.join("t.trk");
    // Chromium does not sandbox processes that root starts.
    let mut recorder = command("setpriv", &NOBODY);
    recorder.env("HOME", &place).arg(trackway()).args(["record", "--follow", "-o"]).arg(&output).arg("--");
    recorder.arg(tool::required("chromium")).args(["--headless=new", "--disable-gpu", "--dump-dom"]);
    recorder.arg(format!("--user-data-dir={}/profile", place.display())).arg(format!("file://{}", page.display()));
    let finished = RunningProcess::start(&mut recorder, &[]).wait(5 * LIMIT);
    let text = finished.stderr_text();
    assert_eq!(finished.exit, Exit::Status(0), "{text}");
    assert!(finished.stdout_text().contains("<title>499999500000</title>"), "{}", finished.stdout_text());
    assert!(!text.contains("trackway: "), "{text}");
    assert!(followed(&output).len() > 5);
}

/// If an ordinary user recorded a set-uid program, the program would lose its privileges. So it
/// runs unrecorded, and the recorder warns that it is missing.
#[test]
fn a_set_uid_program_runs_unrecorded_with_a_warning() {
    let directory = scratch();
    let program = compile(
        directory.path(),
        "who.c",
        "#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf(\"%d\\n\", geteuid()); }",
        &["gcc"],
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let output = place.join("t.trk");
    let text = "#include <sys/wait.h>\n#include <unistd.h>\nint main(int count, char **words) {\n\
                pid_t child = count > 2 ? vfork() : fork();\n\
                if (child == 0) { execv(words[1], words + 1); _exit(1); }\n\
                int status = 1; wait(&status); return status; }\n";
    let parent = compile(directory.path(), "parent.c", text, &["gcc"]);
    for shared_memory in [&["vfork"][..], &[]] {
        let report = place.join("report");
        let mut recorder = command("setpriv", &NOBODY);
        recorder.arg(trackway()).args(["record", "--follow", "--report"]).arg(&report).arg("-o").arg(&output);
        let finished = process::run(recorder.arg("--").arg(&parent).arg(&program).args(shared_memory));
        let text = finished.stderr_text();
        assert_eq!((finished.exit, finished.stdout_text().as_str()), (Exit::Status(0), "0\n"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        for word in ["trackway: process ", "who.executable", "other privileges", "recorded"] {
            assert!(text.contains(word), "'{word}' is not in: {text}");
        }
        assert!(fs::read_to_string(&report).unwrap().contains("other privileges"));
    }
}
