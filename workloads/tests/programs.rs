//! Every program builds in every variant, without warnings, and does what the catalogue says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use trackway_workloads::{Builder, Error, Exit, Group, Program, Run, Variant};

fn exit_of(status: ExitStatus) -> Exit {
    status.signal().map_or_else(|| Exit::Status(status.code().unwrap()), Exit::Signal)
}

fn check_run(executable: &Path, run: &Run) {
    let output = Command::new(executable).args(run.arguments).output().unwrap();
    let what = format!("{} {:?}: {}", executable.display(), run.arguments, String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), run.stdout, "{what}");
    assert_eq!(exit_of(output.status), run.exit, "{what}");
}

fn check(program: &Program, variant: Variant) {
    let executable = trackway_workloads::build(program.name, variant).unwrap();
    let run_count = if variant == program.variants[0] { program.runs.len() } else { 1 };
    for run in &program.runs[..run_count] {
        check_run(&executable, run);
    }
}

fn check_group(group: Group, first: usize, step: usize) {
    for program in
        trackway_workloads::programs().iter().filter(|program| program.group == group).skip(first).step_by(step)
    {
        for &variant in program.variants {
            check(program, variant);
        }
    }
}

#[test]
fn parallel_programs() {
    check_group(Group::Parallel, 0, 1);
}

#[test]
fn bench_programs() {
    check_group(Group::Bench, 0, 1);
}

#[test]
fn seed_programs() {
    check_group(Group::Seed, 0, 1);
}

#[test]
fn behaviour_programs_even() {
    check_group(Group::Behaviour, 0, 2);
}

#[test]
fn behaviour_programs_odd() {
    check_group(Group::Behaviour, 1, 2);
}

#[test]
fn memory_programs() {
    check_group(Group::Memory, 0, 1);
}

#[test]
fn programs_that_the_lists_name_exist() {
    for bench in trackway_workloads::bench_programs() {
        assert!(trackway_workloads::find(bench.program).is_some(), "{}", bench.program);
    }
    let oracle = trackway_workloads::oracle_programs();
    assert!(oracle.len() > 30);
    for variant in [Variant::Pie, Variant::NoPie, Variant::Static, Variant::StaticPie] {
        assert!(oracle.iter().any(|program| program.variant == variant), "{variant}");
    }
    for entry in oracle {
        assert!(entry.program.variants.contains(&entry.variant), "{}", entry.program.name);
    }
}

/// An empty directory for one test.
fn scratch(test: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn no_program_gives_a_warning() {
    let directory = scratch("warnings");
    let compiler = directory.join("strict-cc");
    fs::write(&compiler, "#!/bin/sh\nexec cc -Werror \"$@\"\n").unwrap();
    fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
    let builder = Builder { compiler: compiler.into(), directory: directory.join("built") };
    for program in trackway_workloads::programs() {
        builder.build(program.name, program.variants[0]).unwrap();
    }
}

#[test]
fn bad_arguments_are_refused_in_words() {
    for program in trackway_workloads::programs() {
        let executable = trackway_workloads::build(program.name, program.variants[0]).unwrap();
        let bad: &[&[&str]] = match program.group {
            Group::Parallel => &[&[], &["0"], &["1025"], &["two"], &["1", "0"], &["1", "5x"], &["1", "2", "3"]],
            Group::Bench => &[&["0"], &["x"], &["1", "2"]],
            Group::Seed | Group::Behaviour | Group::Memory => continue,
        };
        for arguments in bad {
            let output = Command::new(&executable).args(*arguments).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{} {arguments:?}", program.name);
            assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{} {arguments:?}", program.name);
        }
    }
}

#[test]
fn a_missing_compiler_is_named() {
    let builder = Builder { compiler: "no-such-compiler".into(), directory: scratch("no-compiler") };
    let error = builder.build("loops", Variant::Static).unwrap_err();
    assert!(matches!(error, Error::NoCompiler { .. }));
    assert!(error.to_string().contains("no-such-compiler"), "{error}");
    assert_eq!(fs::read_dir(&builder.directory).unwrap().count(), 0, "nothing half-built may stay");
}

#[test]
fn a_compiler_that_fails_is_quoted() {
    let builder = Builder { compiler: "false".into(), directory: scratch("failing-compiler") };
    assert!(matches!(builder.build("loops", Variant::Static), Err(Error::Refused { program: "loops", .. })));
    assert_eq!(fs::read_dir(&builder.directory).unwrap().count(), 0);
}

#[test]
fn unknown_names_and_variants_are_errors() {
    assert!(matches!(trackway_workloads::build("no-such-program", Variant::Pie), Err(Error::Unknown(_))));
    assert!(matches!(trackway_workloads::build("loops", Variant::Pie), Err(Error::Variant { program: "loops", .. })));
}

#[test]
fn many_can_build_the_same_at_once() {
    let builder = Builder { directory: scratch("concurrent"), ..Builder::default() };
    let build = || builder.build("loops", Variant::Static).unwrap();
    let paths = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(build)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(paths.iter().all(|path| path == &paths[0]));
    assert_eq!(fs::read_dir(&builder.directory).unwrap().count(), 1, "drafts are cleaned away");
    check_run(&paths[0], &trackway_workloads::find("loops").unwrap().runs[0]);
}
