//! Seccomp: the recorder reports what the engine refuses, and filters that let the recorder work do
//! not end a recording at an exec. The workloads `seccomp` and `seccomp_narrow` show the effect of
//! filters.

use acceptance::Call;
use acceptance::source::compile;
use workloads::{Exit, Variant};

#[test]
fn what_the_engine_refuses_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let executable = compile(directory.path(), "refused.c", include_str!("../programs/refused.c"), &["gcc", "-w"]);
    let sentences =
        [("strict", "seccomp's strict mode"), ("long", "seccomp filter was refused"), ("dispatch", "signals")];
    for (mode, sentence) in sentences {
        let call = Call::new(&executable).arg(mode);
        assert!(!call.natively().stdout_text().contains("Invalid"), "{mode} is not possible natively");
        let finished = call.recorded().finished;
        assert_eq!(finished.stdout_text(), "Invalid argument\n", "{mode}");
        assert_eq!(finished.exit, Exit::Status(0));
        assert!(finished.stderr_text().contains(sentence), "{mode}: {}", finished.stderr_text());
    }
}

/// The recorder does not report what the kernel itself refuses.
#[test]
fn what_the_kernel_refuses_is_not_reported() {
    let directory = tempfile::tempdir().unwrap();
    let executable = compile(directory.path(), "refused.c", include_str!("../programs/refused.c"), &["gcc", "-w"]);
    for mode in ["probe", "strict argument", "strict filtered"] {
        let call = Call::new(&executable).arg(mode);
        assert_eq!(call.natively().stdout_text(), "Invalid argument\n", "{mode}");
        let finished = call.recorded().finished;
        assert_eq!((finished.stdout_text().as_str(), finished.stderr_text().as_str()), ("Invalid argument\n", ""));
    }
}

#[test]
fn a_filter_that_allows_it_does_not_end_the_recording_at_an_exec() {
    let executable = workloads::build("seccomp", Variant::Pie).unwrap();
    let recorded = Call::new(executable).arg("exec").check();
    assert_eq!(recorded.finished.stdout_text(), "after exec: getppid EXDEV\n");
    let images = recorded.trace.modules().iter().map(|mapped| mapped.image).max();
    assert_eq!(images, Some(1), "the program after exec is not in the trace");
}

#[test]
fn a_filter_that_forbids_it_ends_the_recording_at_an_exec_and_nothing_else() {
    let executable = workloads::build("seccomp_narrow", Variant::Static).unwrap();
    let recorded = Call::new(executable).recorded();
    assert_eq!(recorded.finished.stdout_text(), "computed\njoined\nafter exec\n");
    assert_eq!(recorded.finished.exit, Exit::Status(4));
    let words = "the program after exec is not recorded: a seccomp filter forbids it";
    assert!(recorded.finished.stderr_text().contains(words), "{}", recorded.finished.stderr_text());
}
