//! Programs run with the recorder as they run without it: output and status are the same to the byte, and the trace is sound.
//! First the workloads, then what a system is made of: interpreters, compilers, compressors, shells, the usual tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::source::{compile, succeed, write};
use acceptance::{Call, Recorded, tool};
use tempfile::TempDir;
use workloads::{Exit, Group, Program, Run, Variant};

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

// ---------------------------------------------------------------------------------------------------- the workloads

fn check_workload(program: &Program, variant: Variant, run: &Run) {
    let executable = workloads::build(program.name, variant).unwrap();
    let recorded = Call::new(&executable).args(run.arguments).environment(&[]).recorded();
    let what = format!("{} {variant} {:?}: {}", program.name, run.arguments, recorded.finished.stderr_text());
    assert_eq!(recorded.finished.stdout_text(), run.stdout, "{what}");
    assert_eq!(recorded.finished.exit, run.exit, "{what}");
    assert!(recorded.trace.summary().totals.instructions > 0, "{what}");
}

/// The group's programs, this share of them.
fn check_workloads(group: Group, share: usize, shares: usize) {
    for program in workloads::programs().iter().filter(|program| program.group == group).skip(share).step_by(shares) {
        for &variant in program.variants {
            let run_count = if variant == program.variants[0] { program.runs.len() } else { 1 };
            program.runs[..run_count].iter().for_each(|run| check_workload(program, variant, run));
        }
    }
}

#[test]
fn behaviour_programs_even() {
    check_workloads(Group::Behaviour, 0, 2);
}

#[test]
fn behaviour_programs_odd() {
    check_workloads(Group::Behaviour, 1, 2);
}

#[test]
fn parallel_programs() {
    check_workloads(Group::Parallel, 0, 1);
}

#[test]
fn bench_and_seed_programs() {
    check_workloads(Group::Bench, 0, 1);
    check_workloads(Group::Seed, 0, 1);
}

/// As many threads in the trace as were asked for.
#[test]
fn parallel_programs_have_their_threads() {
    for threads in ["2", "4", "16"] {
        let program = workloads::find("radix").unwrap();
        let executable = workloads::build(program.name, Variant::Pie).unwrap();
        let recorded = Call::new(executable).args([threads, "20"]).recorded();
        assert_eq!(recorded.finished.stdout_text(), program.runs[0].stdout);
        assert_eq!(recorded.trace.threads().len().to_string(), threads);
        assert!(recorded.trace.threads().iter().all(|thread| thread.counts.instructions > 10_000));
    }
}

// ------------------------------------------------------------------------------------------------------ interpreters

const PYTHON: &str = include_str!("../programs/mixture.py");

/// One of the way that the name `python3` may take: a wrapper script, a link, or the interpreter itself.
#[test]
fn python() {
    let recorded = Call::new(tool::required("python3")).args(["-c", PYTHON]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(42));
    assert!(recorded.trace.threads().len() >= 7, "{} threads", recorded.trace.threads().len());
}

/// exec stays in the recording: `env` is replaced by the shell, that by the interpreter.
#[test]
fn a_chain_of_execs() {
    let script = "exec python3 -c 'import sys; print(sys.argv[1:]); sys.exit(5)' \"$@\"";
    let recorded = Call::new("env").args(["A=b", "sh", "-c", script, "sh", "one", "two words"]).check();
    assert_eq!(recorded.finished.stdout_text(), "['one', 'two words']\n");
    assert_eq!(recorded.finished.exit, Exit::Status(5));
    let has = |name: &str| recorded.trace.modules().iter().any(|mapped| mapped.module.path.contains(name));
    assert!(has("/env") && has("python"), "{:?}", recorded.trace.modules());
    assert!(recorded.trace.modules().iter().map(|mapped| mapped.image).max() >= Some(2));
}

#[test]
fn perl() {
    let script = r#"
        use strict; use warnings;
        my %count; my $text = join ' ', map { ($_ * 7919) % 101 } 1 .. 20000;
        $count{$_}++ for split / /, $text;
        print join(',', map { "$_=$count{$_}" } sort { $a <=> $b } keys %count), "\n";
        local $SIG{ALRM} = sub { print "alarm\n"; }; alarm 1; select undef, undef, undef, 5;
        local $SIG{USR1} = sub { print "usr1\n" }; kill 'USR1', $$;
        my $sorted = `printf 'b\na\n' | sort`; print $sorted;
        open my $pipe, '|-', 'cat' or die; print $pipe "through cat\n"; close $pipe;
        eval { die "oops\n" }; print "caught $@";
        print STDERR "warned\n"; exit 9;
    "#;
    let recorded = Call::new(tool::required("perl")).args(["-e", script]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(9));
}

#[test]
fn bash_with_pipes_traps_and_substitutions() {
    let script = r#"
        trap 'echo got usr1' USR1
        trap 'echo leaving with $?' EXIT
        kill -USR1 $$
        seq 1 2000 | grep 7 | sort -rn | head -3
        words=$(echo $(echo a; echo b) "$(printf '%s' c)")
        echo "words: $words"
        count=0; for i in {1..300}; do count=$((count + i)); done; echo $count
        while read -r line; do echo "<$line>"; done < <(printf '1\n2\n')
        (exit 6); echo "status $?"
        false | true; echo "${PIPESTATUS[@]}"
        sleep 0.05 & wait $!; echo "waited $?"
        cat <<< "here" >&2
        ( trap 'echo child term; exit 3' TERM; kill -TERM $BASHPID; sleep 5 ); echo "child $?"
        exit 21
    "#;
    let recorded = Call::new(tool::required("bash")).args(["-c", script]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(21));
}

#[test]
fn a_shell_that_is_killed() {
    let recorded = Call::new("sh").args(["-c", "echo before; kill -KILL $$"]).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGKILL));
    let recorded = Call::new("sh").args(["-c", "kill -TERM $$"]).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGTERM));
}

#[test]
fn awk_sed_grep_sort() {
    let lines: String = (0..4000).map(|i| format!("{} word{} {}\n", i * 7919 % 1000, i % 37, i * 31 % 97)).collect();
    let check = |name: &str, arguments: &[&str]| {
        Call::new(tool::required(name)).args(arguments).input(lines.clone()).check();
    };
    check(
        "awk",
        &["{ sum[$2] += $1; n[$2]++ } END { for (w in sum) printf \"%s %.3f\\n\", w, sum[w] / n[w] | \"sort\" }"],
    );
    check("sed", &["-nE", "s/^([0-9]+) (word[0-9]*)/\\2: \\1/; /7/p"]);
    check("grep", &["-nE", "^[0-9]*3 .*(1|2)$"]);
    check("grep", &["no such line"]);
    check("sort", &["-k2,2", "-k1,1n", "--parallel=2", "-S", "1M"]);
}

#[test]
fn tar_find_ls() {
    let directory = scratch();
    for number in 0..30 {
        write(directory.path(), &format!("file{number}"), format!("{number}\n").repeat(number));
    }
    let call =
        |name: &str, arguments: &[&str]| Call::new(tool::required(name)).args(arguments).directory(directory.path());
    call("ls", &["-l"]).check();
    call("ls", &["-l", "nothing"]).check();
    call("find", &[".", "-name", "*[13579]", "-size", "-2", "-exec", "cat", "{}", ";"]).check();
    let tar = ["--sort=name", "--mtime=@0", "-cf", "-", "."];
    let archive = call("tar", &tar).check().finished.stdout;
    call("tar", &["-tvf", "-"]).input(archive).check();
}

#[test]
fn make_builds() {
    let directory = scratch();
    let rules = "all: a.o b.o\n\t@echo linking $^\n%.o: %.txt\n\t@echo making $@; sleep 0.02; cp $< $@\nclean:\n\trm -f *.o\n.PHONY: all clean\n";
    write(directory.path(), "Makefile", rules);
    write(directory.path(), "a.txt", "a");
    write(directory.path(), "b.txt", "b");
    let make = |arguments: &[&str]| Call::new(tool::required("make")).args(arguments).directory(directory.path());
    let native = make(&["-j2", "-O"]).natively();
    succeed(Command::new("make").arg("clean").current_dir(directory.path()));
    let recorded = make(&["-j2", "-O"]).recorded();
    // Which of the two comes first is chance.
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(recorded.finished.stdout_text()), sorted(native.stdout_text()));
    assert_eq!(recorded.finished.exit, native.exit);
    make(&["nothing"]).check();
}

// ------------------------------------------------------------------------------------------------------- compressors

/// Compressible, but not trivially.
fn sample(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let byte = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"etaoin shrdlu\ncmfwyp"[(state >> 28) as usize + (state >> 20) as usize % 4]
    };
    (0..length).map(byte).collect()
}

#[test]
fn xz_compresses_with_threads_and_back() {
    let text = sample(1 << 20);
    let xz = |arguments: &[&str]| Call::new(tool::required("xz")).args(arguments);
    let compressed = xz(&["-T2", "--block-size=256KiB", "-1", "-c"]).input(text.clone()).check();
    assert!(compressed.trace.threads().len() > 2, "{} threads", compressed.trace.threads().len());
    let expanded = xz(&["-d", "-T2", "-c"]).input(compressed.finished.stdout).check();
    assert!(expanded.finished.stdout == text);
    xz(&["-d", "-c"]).input(text).check();
}

#[test]
fn gzip_compresses_and_back() {
    let text = sample(300_000);
    let gzip = |arguments: &[&str]| Call::new(tool::required("gzip")).args(arguments);
    let compressed = gzip(&["-9", "-n", "-c"]).input(text.clone()).check();
    let expanded = gzip(&["-d", "-c"]).input(compressed.finished.stdout).check();
    assert!(expanded.finished.stdout == text);
}

// --------------------------------------------------------------------------------------------------------- compilers

/// The compiler proper, not its driver.
fn cc1() -> PathBuf {
    let output = Command::new(tool::required("gcc")).arg("-print-prog-name=cc1").output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

#[test]
fn the_c_compiler_makes_the_same_assembly() {
    let directory = scratch();
    let functions: String = (0..40)
        .map(|i| format!("int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (s ^ {i}); return s; }}\n"))
        .collect();
    let file = write(directory.path(), "many.c", functions);
    let recorded = Call::new(cc1()).args(["-quiet", "-O2", "-o", "-"]).arg(&file).check();
    assert!(recorded.finished.stdout_text().contains("f39:"));
    let broken = write(directory.path(), "broken.c", "int f( { return }\n");
    let recorded = Call::new(cc1()).args(["-quiet", "-o", "-"]).arg(&broken).check();
    assert_eq!(recorded.finished.exit, Exit::Status(1));
}

/// The driver and its children, one of them the linker.
#[test]
fn the_gcc_driver_makes_the_same_executable() {
    let directory = scratch();
    write(directory.path(), "a.c", "int main(void) { return 3; }\n");
    let gcc =
        Call::new(tool::required("gcc")).args(["-Wl,--build-id=none", "-o", "out", "a.c"]).directory(directory.path());
    let build = |recorded: bool| {
        let finished = if recorded { gcc.recorded().finished } else { gcc.natively() };
        assert_eq!(finished.exit, Exit::Status(0), "{}", finished.stderr_text());
        fs::read(directory.path().join("out")).unwrap()
    };
    assert!(build(false) == build(true));
}

#[test]
fn go_with_goroutines() {
    const GO: &str = include_str!("../programs/goroutines.go");
    let directory = scratch();
    let source = write(directory.path(), "main.go", GO);
    let executable = directory.path().join("main");
    let mut build = Command::new(tool::required("go"));
    build.arg("build").arg("-o").arg(&executable).arg(source).current_dir(directory.path());
    build.env("GOCACHE", directory.path().join("cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
    build.env("GOTOOLCHAIN", "local");
    succeed(&mut build);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Status(4));
    assert!(recorded.trace.threads().len() > 2);
}

#[test]
fn rust_with_threads_and_panics() {
    const RUST: &str = include_str!("../programs/panics.rs");
    let directory = scratch();
    let executable = compile(directory.path(), "main.rs", RUST, &["rustc", "-O", "--edition", "2021"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Status(11));
    assert_eq!(recorded.trace.threads().len(), 13);
}

#[test]
fn cpp_with_exceptions() {
    const CPP: &str = include_str!("../programs/exceptions.cc");
    let directory = scratch();
    let executable = compile(directory.path(), "main.cc", CPP, &["g++", "-O2", "-pthread"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGABRT));
    assert_eq!(recorded.trace.threads().len(), 7);
}

#[test]
fn a_static_program() {
    let directory = scratch();
    let text = "#include <stdio.h>\nint main(int n, char **v) { for (int i = 0; i < n; i++) puts(i ? v[i] : \"-\"); return n; }\n";
    let executable = compile(directory.path(), "main.c", text, &["gcc", "-static", "-O2"]);
    let recorded = Call::new(executable).args(["a", "", "c d"]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(4));
}

#[test]
fn two_hundred_threads() {
    let directory = scratch();
    let executable =
        compile(directory.path(), "main.c", include_str!("../programs/crowd.c"), &["gcc", "-O1", "-pthread"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.trace.threads().len(), 201);
    assert!(recorded.trace.threads().iter().all(|thread| thread.counts.instructions > 1000));
}

// --------------------------------------------------------------------------------- what is tested where it is installed

#[test]
fn java_if_installed() {
    let (Some(java), Some(javac)) = (tool::optional("java"), tool::optional("javac")) else { return };
    const JAVA: &str = include_str!("../programs/Main.java");
    let directory = scratch();
    write(directory.path(), "Main.java", JAVA);
    succeed(Command::new(javac).arg("Main.java").current_dir(directory.path()));
    let recorded = Call::new(java).args(["-Xmx64m", "-Xshare:auto", "Main"]).directory(directory.path()).check();
    assert_eq!(recorded.finished.exit, Exit::Status(8));
}

#[test]
fn node_if_installed() {
    let Some(node) = tool::optional("node") else { return };
    let script = r#"
        const { Worker, isMainThread } = require('worker_threads');
        let total = 0; for (let i = 0; i < 300000; i++) total = (total * 31 + i) % 1000003;
        console.log(total, [3, 1, 2].sort(), JSON.stringify({ a: [1, { b: null }] }));
        try { null.x } catch (error) { console.log(error.constructor.name) }
        const worker = new Worker('require("worker_threads").parentPort.postMessage([..."abc"].reverse().join(""))', { eval: true });
        worker.on('message', text => console.log(text));
        worker.on('exit', () => setTimeout(() => process.exit(6), 10));
    "#;
    let recorded = Call::new(node).args(["-e", script]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(6));
}

/// A debugger is a program like any other, and its child is not ours.
#[test]
fn gdb_if_installed() {
    let Some(gdb) = tool::optional("gdb") else { return };
    let directory = scratch();
    let program = compile(
        directory.path(),
        "main.c",
        "int twice(int n) { return 2 * n; }\nint main(void) { return twice(4); }\n",
        &["gcc", "-g", "-O0"],
    );
    let commands = ["break twice", "run", "bt", "print n", "continue"];
    let arguments = commands.iter().flat_map(|command| ["-ex", command]);
    let recorded = Call::new(gdb).args(["-nx", "--batch"]).args(arguments).arg(&program).recorded();
    let text = recorded.finished.stdout_text();
    assert!(
        text.contains("$1 = 4") && text.contains("exited with code 010"),
        "{text}{}",
        recorded.finished.stderr_text()
    );
}

// ------------------------------------------------------------------------------------------------- what programs can see

/// Arguments, environment, directory, descriptors and limits are as without us.
#[test]
fn the_surroundings_are_the_same() {
    let script = r#"echo "$@"; env | sort; pwd; ls -l /proc/self/fd | wc -l; ulimit -a; umask; ls /proc/$$/fd"#;
    Call::new("sh")
        .args(["-c", script, "sh", "a", "b c"])
        .environment(&[("PATH", "/usr/bin:/bin"), ("X", "y z")])
        .directory(Path::new("/"))
        .check();
}

/// A script without a first line that names an interpreter is run by the shell, as shells do.
#[test]
fn scripts_run() {
    use std::os::unix::fs::PermissionsExt;
    let directory = scratch();
    let check = |name: &str, text: &str| -> Recorded {
        let script = write(directory.path(), name, text);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Call::new(script).args(["x", "y"]).check()
    };
    let recorded = check("with-line", "#!/bin/sh\necho \"$0 $@\" | sed 's,.*/,,'\nexit 3\n");
    assert_eq!(recorded.finished.stdout_text(), "with-line x y\n");
    let recorded = check("env-line", "#!/usr/bin/env -S awk -f\nBEGIN { print ARGV[1]; exit 4 }\n");
    assert_eq!((recorded.finished.stdout_text().as_str(), recorded.finished.exit), ("x\n", Exit::Status(4)));
}
