//! The workloads, and small programs in several languages, run with the recorder as they run
//! without it, in every data mode: output and status are the same to the byte, and the trace is
//! sound. The programs of a system are in `tools.rs`, `runtimes.rs` and `servers.rs`.

use std::fs;
use std::path::Path;

use acceptance::source::{compile, write};
use acceptance::{Call, RecordedCall};
use tempfile::TempDir;
use workloads::{Exit, Group, Program, Run, Variant};

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

// ---------------------------------------------------------------------------------- the workloads

fn check_workload(program: &Program, variant: Variant, run: &Run) {
    let executable = workloads::build(program.name, variant).unwrap();
    for call in Call::new(&executable).args(run.arguments).environment(&[]).in_every_mode() {
        let recorded = call.recorded();
        let what = format!("{variant} {call:?}: {}", recorded.finished.stderr_text());
        assert_eq!(recorded.finished.stdout_text(), run.stdout, "{what}");
        assert_eq!(recorded.finished.exit, run.exit, "{what}");
        assert!(recorded.trace.summary().totals.instructions > 0, "{what}");
    }
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
fn behaviour_programs_run_as_natively_even() {
    check_workloads(Group::Behaviour, 0, 2);
}

#[test]
fn behaviour_programs_run_as_natively_odd() {
    check_workloads(Group::Behaviour, 1, 2);
}

#[test]
fn parallel_programs_run_as_natively() {
    check_workloads(Group::Parallel, 0, 1);
}

#[test]
fn bench_and_seed_programs_run_as_natively() {
    check_workloads(Group::Bench, 0, 1);
    check_workloads(Group::Seed, 0, 1);
}

/// The trace has the requested number of threads.
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

// -------------------------------------------------------------------------------------------------
// threads, execs, files

/// The recording goes on after exec: the shell replaces `env`, and the interpreter replaces the
/// shell.
#[test]
fn a_chain_of_execs_is_recorded() {
    let script = "exec python3 -c 'import sys; print(sys.argv[1:]); sys.exit(5)' \"$@\"";
    let recorded = Call::new("env").args(["A=b", "sh", "-c", script, "sh", "one", "two words"]).check();
    assert_eq!(recorded.finished.stdout_text(), "['one', 'two words']\n");
    assert_eq!(recorded.finished.exit, Exit::Status(5));
    let has = |name: &str| recorded.trace.modules().iter().any(|mapped| mapped.module.path.contains(name));
    assert!(has("/env") && has("python"), "{:?}", recorded.trace.modules());
    assert!(recorded.trace.modules().iter().map(|mapped| mapped.image).max() >= Some(2));
}

#[test]
fn a_static_program_is_recorded() {
    let directory = scratch();
    let text = "#include <stdio.h>\nint main(int n, char **v) { for (int i = 0; i < n; i++) puts(i ? v[i] : \"-\"); return n; }\n";
    let executable = compile(directory.path(), "main.c", text, &["gcc", "-static", "-O2"]);
    let recorded = Call::new(executable).args(["a", "", "c d"]).check();
    assert_eq!(recorded.finished.exit, Exit::Status(4));
}

#[test]
fn two_hundred_threads_are_recorded() {
    let directory = scratch();
    let executable =
        compile(directory.path(), "main.c", include_str!("../programs/many_threads.c"), &["gcc", "-O1", "-pthread"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.trace.threads().len(), 201);
    assert!(recorded.trace.threads().iter().all(|thread| thread.counts.instructions > 1000));
}

const MAPS: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(int count, char **arguments)
{
    static const char code[] = "\xb8\x05\x00\x00\x00\xc3"; /* mov eax, 5; ret */
    /* The descriptor of a mapping without a file means nothing. */
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, 0, 0);
    memcpy(memory, code, sizeof code);
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    int (*six)(void) = library ? (int (*)(void))dlsym(library, "six") : NULL;
    printf("%d %d %p\n", ((int (*)(void))memory)(), six ? six() : 0, memory);
    return 0;
}
"#;

/// Mappings of files are modules under their whole name; others are none, whatever descriptor they
/// name.
#[test]
fn modules_are_files_with_whole_names() {
    let directory = scratch();
    let program = compile(directory.path(), "maps.c", MAPS, &["gcc", "-O1"]);
    let library = compile(directory.path(), "six.c", "int six(void) { return 6; }", &["gcc", "-shared", "-fPIC"]);
    let deep = (0..16).fold(directory.path().to_owned(), |path, _| path.join("d".repeat(200)));
    fs::create_dir_all(&deep).unwrap();
    let long = deep.join("six.so");
    fs::copy(library, &long).unwrap();
    let recorded = Call::new(program).arg(long.to_str().unwrap()).recorded();
    let text = recorded.finished.stdout_text();
    let [five, six, memory] = text.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert_eq!((five, six), ("5", "6"));
    let memory = u64::from_str_radix(memory.trim_start_matches("0x"), 16).unwrap();
    let modules = recorded.trace.modules();
    let at = modules.iter().find(|mapped| mapped.module.address == memory);
    assert!(at.is_none(), "{at:?}");
    let long = long.to_str().unwrap();
    assert!(long.len() > 3000 && modules.iter().any(|mapped| mapped.module.path == long), "{modules:?}");
}

// -------------------------------------------------------------------------------------------------
// what programs can see

/// Arguments, environment, directory, descriptors and limits are as without the recorder.
#[test]
fn arguments_environment_and_limits_are_as_natively() {
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
    let check = |name: &str, text: &str| -> RecordedCall {
        let script = write(directory.path(), name, text);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Call::new(script).args(["x", "y"]).check()
    };
    let recorded = check("with-line", "#!/bin/sh\necho \"$0 $@\" | sed 's,.*/,,'\nexit 3\n");
    assert_eq!(recorded.finished.stdout_text(), "with-line x y\n");
    let recorded = check("env-line", "#!/usr/bin/env -S awk -f\nBEGIN { print ARGV[1]; exit 4 }\n");
    assert_eq!((recorded.finished.stdout_text().as_str(), recorded.finished.exit), ("x\n", Exit::Status(4)));
}
