//! Servers under the recorder that answer clients outside of it, and clients under the recorder, in
//! every data mode.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use acceptance::process::{LIMIT, run, wait_until};
use acceptance::source::write;
use acceptance::{Call, ProcessOutput, RunningProcess, tool};
use tempfile::TempDir;
use workloads::Exit;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A server's command line and how to talk to it.
struct Server {
    call: Call,
    /// Exists when the server is ready.
    socket: std::path::PathBuf,
    /// The requests, one after the other.
    requests: Vec<Command>,
    /// Ends it.
    stop: Box<dyn Fn(&RunningProcess)>,
}

/// Starts the server, asks, stops it; returns the answers and its end.
fn converse(command: &mut Command, server: &mut Server) -> (Vec<ProcessOutput>, ProcessOutput) {
    let running = RunningProcess::start(command, &[]);
    // The file exists before the server listens.
    wait_until("the server listens", || UnixStream::connect(&server.socket).is_ok());
    let answers = server.requests.iter_mut().map(run).collect();
    (server.stop)(&running);
    (answers, running.wait(LIMIT))
}

/// Natively and recorded in every mode, the answers are the same.
fn check(make: impl Fn(&Path) -> Server) {
    let directory = scratch();
    let mut native = make(directory.path());
    let command = &mut native.call.command();
    let (expected, end) = converse(command, &mut native);
    assert_eq!(end.exit, Exit::Status(0), "{end:?}");
    assert!(!expected.is_empty() && expected.iter().all(|answer| answer.exit == Exit::Status(0)), "{expected:?}");
    let calls: Vec<Call> = native.call.in_every_mode().collect();
    for (number, _) in calls.iter().enumerate() {
        let directory = scratch();
        let mut server = make(directory.path());
        let call = server.call.in_every_mode().nth(number).unwrap();
        let path = directory.path().join("test.trk");
        let (answers, end) = converse(&mut call.record_command(&path), &mut server);
        assert_eq!(answers, expected, "{}", end.stderr_text());
        assert_eq!(end.exit, Exit::Status(0), "{end:?}");
        let trace = acceptance::call::open_sound(&path);
        assert!(trace.is_finished() && trace.summary().totals.instructions > 100_000);
    }
}

#[test]
fn redis_runs_as_natively() {
    let (server, client) = (tool::required("redis-server"), tool::required("redis-cli"));
    check(|directory| {
        let socket = directory.join("socket");
        let options = ["--port", "0", "--save", "", "--daemonize", "no", "--unixsocket", "socket", "--dir", "."];
        let ask = |words: &[&str]| {
            let mut command = Command::new(&client);
            command.arg("-s").arg(&socket).args(words);
            command
        };
        let sum = "local s = 0 for i = 1, tonumber(ARGV[1]) do s = s + i redis.call('rpush', 'list', i) end return s";
        let requests = vec![
            ask(&["set", "key", "value"]),
            ask(&["get", "key"]),
            ask(&["eval", sum, "0", "500"]),
            ask(&["sort", "list", "limit", "0", "10", "desc"]),
            ask(&["debug", "set-active-expire", "0"]),
            ask(&["zadd", "z", "3", "c", "1", "a", "2", "b"]),
            ask(&["zrange", "z", "0", "-1"]),
            ask(&["info", "nothing"]),
        ];
        let stop = {
            let (client, socket) = (client.clone(), socket.clone());
            Box::new(move |_: &RunningProcess| {
                let _ = run(Command::new(&client).arg("-s").arg(&socket).args(["shutdown", "nosave"]));
            })
        };
        Server { call: Call::new(&server).args(options).directory(directory), socket, requests, stop }
    });
}

#[test]
fn nginx_runs_as_natively() {
    let (server, client) = (tool::required("nginx"), tool::required("curl"));
    check(|directory| {
        let text = "daemon off; master_process off; pid pid; error_log error.log; events {}\n\
            http { access_log off; gzip on; gzip_types *; gzip_min_length 1; client_body_temp_path a; proxy_temp_path b;\n\
            fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n\
            server { listen unix:socket; root .; location /answer { return 418 \"$request_method $arg_x\\n\"; } } }\n";
        let text = text.replace("unix:socket", &format!("unix:{}", directory.join("socket").display()));
        let text = text.replace("root .", &format!("root {}", directory.display()));
        write(directory, "nginx.conf", text);
        write(directory, "file", "line\n".repeat(5000));
        let ask = |words: &[&str]| {
            let mut command = Command::new(&client);
            command.arg("-s").arg("--unix-socket").arg(directory.join("socket")).args(words);
            command
        };
        let requests = vec![
            ask(&["http://a/file"]),
            ask(&["--compressed", "http://a/file"]),
            ask(&["-r", "7-30", "http://a/file"]),
            ask(&["-X", "PUT", "http://a/answer?x=5"]),
            ask(&["http://a/nothing"]),
        ];
        let stop = Box::new(move |running: &RunningProcess| quit(running.pid()));
        let options = ["-p", ".", "-c", "nginx.conf"];
        let socket = directory.join("socket");
        Server { call: Call::new(&server).args(options).directory(directory), socket, requests, stop }
    });
}

/// Asks the server to end: the process itself, or the process that the recorder has started.
fn quit(pid: i32) {
    let target = acceptance::process::children_of(pid).first().copied().unwrap_or(pid);
    // SAFETY: takes no pointers. Neither has been waited for.
    unsafe { libc::kill(target, libc::SIGQUIT) };
}
