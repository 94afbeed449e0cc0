//! Whole recordings with a stand-in for the engine (`tests/engine.c`) that is really injected into
//! real programs.

use std::mem::offset_of;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use entity::{AppPc, BlockId, ThreadId};
use wire::{Control, Slot, word};

use super::*;
use crate::image::ImageError;
use crate::memory_sink::{Full, MemorySink};

/// Recordings change the signal settings of the whole process: one at a time.
fn exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that vanishes.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trackway-capture-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compile(source: &Path, output: &Path, flags: &[String]) {
    let mut gcc = std::process::Command::new("gcc");
    gcc.args(["-O1", "-masm=intel", "-ffreestanding", "-fno-stack-protector", "-fcf-protection=none", "-fPIE"]);
    gcc.args(["-nostdlib", "-static-pie", "-Wl,-z,norelro", "-Wl,-z,separate-code", "-Wl,--build-id=none"]);
    let result = gcc.args(flags).arg(source).arg("-o").arg(output).output().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

/// What the stand-in does, as values of constants in its source.
fn engine(behaviour: &[(&str, u64)]) -> Image {
    let mut constants = vec![("PUBLISH", 1), ("EXECS", 0), ("EXEC_FAILS", 0)];
    constants.retain(|(name, _)| behaviour.iter().all(|(other, _)| name != other));
    constants.extend(behaviour);
    constants.extend([
        ("START", u64::from(word::event(word::START, 0))),
        ("VERSION", u64::from(wire::VERSION)),
        ("MAGIC", wire::MAGIC),
        ("TABLE_BYTES", wire::TABLE_BYTES as u64),
        ("CODE_RING", wire::CODE_RING_OFFSET as u64),
        ("CODE_RING_BYTES", wire::CODE_RING_BYTES as u64),
        ("SEGMENTS", wire::SLOTS_OFFSET as u64),
        ("SLOT_STRIDE", wire::SLOT_STRIDE as u64),
        ("CODE_HEAD", offset_of!(Control, code_head) as u64),
        ("NEXT_BLOCK", offset_of!(Control, next_block) as u64),
        ("DOORBELL", offset_of!(Control, doorbell) as u64),
        ("EXEC_STATE", offset_of!(Control, exec_state) as u64),
        ("EXEC_TID", offset_of!(Control, exec_tid) as u64),
        ("IMAGE", offset_of!(Control, image) as u64),
        ("STAGE", offset_of!(Control, stage) as u64),
        ("STARTED", u64::from(wire::STAGE_STARTED)),
        ("SLOTS", offset_of!(Control, slots) as u64),
        ("SLOT_BYTES", size_of::<Slot>() as u64),
        ("HEAD", offset_of!(Slot, head) as u64),
        ("USED", offset_of!(Slot, used) as u64),
    ]);
    let flags: Vec<String> = constants.iter().map(|(name, value)| format!("-D{name}={value}UL")).collect();
    let directory = Directory::new("engine");
    let output = directory.0.join("engine");
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/engine.c"), &output, &flags);
    Image::parse(&std::fs::read(output).unwrap()).unwrap()
}

fn options(words: &[&str]) -> CaptureOptions {
    CaptureOptions { command: words.iter().map(OsString::from).collect(), ..CaptureOptions::default() }
}

fn run(words: &[&str], behaviour: &[(&str, u64)], sink: &mut MemorySink) -> CaptureOutcome<Full> {
    let _exclusive = exclusive();
    let image = engine(behaviour);
    Target::open(&options(words)).unwrap().run_session(&image, sink, None).unwrap()
}

/// The address in the `START` event that the stand-in writes.
fn start_address(path: &[u32]) -> u64 {
    let &[first, low, high, _, _] = path else { panic!("{path:?}") };
    assert_eq!(word::kind(first), word::START);
    u64::from(low) | u64::from(high) << 32
}

#[test]
fn an_injected_program_runs_as_without_us() {
    let directory = Directory::new("runs");
    let shell = |name: &str| format!("ls /proc/$$/fd > {}/{name}; exit 7", directory.0.display());
    let mut sink = MemorySink::default();
    let outcome = run(&["sh", "-c", &shell("traced")], &[], &mut sink);
    assert_eq!(outcome.exit, Exit::Code(7));
    assert_eq!((outcome.failure, outcome.report.warnings), (None, vec![]));

    let native = std::process::Command::new("sh").arg("-c").arg(shell("native")).status().unwrap();
    assert_eq!(native.code(), Some(7));
    let files = |name| std::fs::read_to_string(directory.0.join(name)).unwrap();
    assert_eq!(files("traced"), files("native"), "the target has no file of ours open");

    let first = start_address(&sink.paths[&(0, 0)]);
    let (image, block, address, code) = &sink.blocks[0];
    assert_eq!((*image, *block, *address, code.len()), (0, BlockId::new(0), AppPc::new(first), 1));
    let inside = |module: &trace::Module| (module.address..module.address + module.length).contains(&first);
    let linker = sink.modules.iter().find(|(_, module)| inside(module)).unwrap();
    assert!(linker.1.path.contains("ld-linux"), "{}", linker.1.path);
    assert!(sink.modules.iter().any(|(_, module)| module.path == "[vdso]"));
    assert_eq!(sink.threads.len(), 1);
    assert_eq!((sink.threads[0].thread, sink.threads[0].parent), (ThreadId::FIRST, None));
}

#[test]
fn static_programs_start_at_their_own_entry() {
    let directory = Directory::new("static");
    for (name, flags) in [("fixed", &["-static", "-no-pie"][..]), ("movable", &["-static-pie"])] {
        let source = directory.file("exit.c", b"int main(void) { return 42; }", 0o600);
        let program = directory.0.join(name);
        let gcc = std::process::Command::new("gcc").args(flags).arg(&source).arg("-o").arg(&program).status();
        assert!(gcc.unwrap().success());
        let mut sink = MemorySink::default();
        let outcome = run(&[program.to_str().unwrap()], &[], &mut sink);
        assert_eq!(outcome.exit, Exit::Code(42), "{name}");
        let own = sink.modules.iter().find(|(_, module)| module.path.ends_with(name)).unwrap();
        let first = start_address(&sink.paths[&(0, 0)]);
        assert!((own.1.address..own.1.address + own.1.length).contains(&first), "{name}");
    }
}

#[test]
fn what_was_written_before_sigkill_is_kept() {
    let mut sink = MemorySink::default();
    let outcome = run(&["sh", "-c", "kill -KILL $$"], &[("PUBLISH", 0)], &mut sink);
    assert_eq!(outcome.exit, Exit::Signal(libc::SIGKILL));
    assert_ne!(start_address(&sink.paths[&(0, 0)]), 0);
}

#[test]
fn exec_stays_traced() {
    let mut sink = MemorySink::default();
    let command = ["sh", "-c", "exec sh -c 'exec sh -c \"exit 5\"'"];
    let outcome = run(&command, &[("EXECS", 2), ("PUBLISH", 0)], &mut sink);
    assert_eq!(outcome.exit, Exit::Code(5));
    assert_eq!(outcome.report.warnings, [""; 0]);
    let images: Vec<_> = sink.paths.keys().copied().collect();
    assert_eq!(images, [(0, 0), (1, 0), (2, 0)]);
    let blocks: Vec<_> = sink.blocks.iter().map(|block| (block.0, block.1.get())).collect();
    assert_eq!(blocks, [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(sink.threads.len(), 1);
}

#[test]
fn exec_can_fail() {
    let mut sink = MemorySink::default();
    let outcome = run(&["sh", "-c", "exit 3"], &[("EXECS", 1), ("EXEC_FAILS", 1)], &mut sink);
    assert_eq!(outcome.exit, Exit::Code(3));
    assert_eq!(sink.paths.len(), 1);
}

#[test]
fn a_target_that_asks_for_exec_can_be_killed() {
    let mut sink = MemorySink::default();
    let outcome = run(&["sh", "-c", "kill -KILL $$"], &[("EXECS", 1)], &mut sink);
    assert_eq!(outcome.exit, Exit::Signal(libc::SIGKILL));
}

#[test]
fn a_failing_sink_is_reported_at_the_end() {
    let mut sink = MemorySink { fails_at_path: Some(0), ..MemorySink::default() };
    let outcome = run(&["sh", "-c", "exit 4"], &[], &mut sink);
    assert_eq!(outcome.exit, Exit::Code(4));
    assert_eq!(outcome.failure, Some(Full));
}

#[test]
fn signal_settings_are_the_callers() {
    let ignored = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let directory = Directory::new("settings");
    let file = directory.0.join("traced");
    // The shell would change settings of its own; grep does not.
    let script = format!("exec grep Sig /proc/self/status > {}", file.display());
    run(&["sh", "-c", &script], &[], &mut MemorySink::default());
    let traced = std::fs::read_to_string(file).unwrap();
    assert!(traced.contains("SigBlk:\t0000000000000000"), "{traced}");

    let _exclusive = exclusive();
    let ours = ignored(&std::fs::read_to_string("/proc/self/status").unwrap());
    let pipe = 1 << (libc::SIGPIPE - 1);
    assert_eq!(ours & pipe, pipe, "the runtime ignores SIGPIPE");
    let callers = if signals::was_sigpipe_ignored() { ours } else { ours & !pipe };
    assert_eq!(ignored(&traced), callers);
}

#[test]
fn termination_is_passed_on_to_the_target() {
    let directory = Directory::new("term");
    let ready = directory.0.join("ready");
    let script = format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let sender = std::thread::spawn(move || {
        while !ready.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: the recorder's handler is in place while the target runs.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    });
    let mut sink = MemorySink::default();
    let outcome = run(&["sh", "-c", &script], &[], &mut sink);
    sender.join().unwrap();
    assert_eq!(outcome.exit, Exit::Code(9));
}

#[test]
fn address_randomisation_can_be_off() {
    let _exclusive = exclusive();
    let image = engine(&[]);
    let first = || {
        let mut sink = MemorySink::default();
        let options = CaptureOptions { no_aslr: true, ..options(&["true"]) };
        Target::open(&options).unwrap().run_session(&image, &mut sink, None).unwrap();
        start_address(&sink.paths[&(0, 0)])
    };
    assert_eq!(first(), first());
}

#[test]
fn scripts_are_run_by_their_interpreters() {
    let directory = Directory::new("scripts");
    for (name, text) in [("named", "#!/bin/sh\nexit $1\n"), ("unnamed", "exit $1\n")] {
        let script = directory.file(name, text.as_bytes(), 0o755);
        let mut sink = MemorySink::default();
        assert_eq!(run(&[script.to_str().unwrap(), "11"], &[], &mut sink).exit, Exit::Code(11), "{name}");
    }
}

/// An ELF header of the given class and machine, with nothing behind it.
fn elf(class: u8, machine: u8, kind: u8) -> Vec<u8> {
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
    header[16] = kind;
    header[18] = machine;
    header
}

#[test]
fn commands_that_cannot_be_run_are_refused_as_shells_do() {
    let directory = Directory::new("refused");
    let path = |name: &str| directory.0.join(name).to_str().unwrap().to_owned();
    directory.file("plain", b"exit 0\n", 0o644);
    directory.file("lost", b"#!/no/such/interpreter -x\n", 0o755);
    directory.file("bad", b"#! /tmp\n", 0o755);
    directory.file("empty", b"#!\n", 0o755);
    directory.file("old", &elf(1, 3, 2), 0o755);
    directory.file("arm", &elf(2, 183, 2), 0o755);
    directory.file("object", &elf(2, 62, 1), 0o755);
    directory.file("binary", b"\xca\xfe\0\0\n", 0o755);
    let missing = directory.file("missing.c", b"int main(void) { return 0; }", 0o600);
    let mut gcc = std::process::Command::new("gcc");
    gcc.arg("-Wl,--dynamic-linker=/no/ld.so").arg(missing).arg("-o").arg(path("unlinked"));
    assert!(gcc.status().unwrap().success());

    let check = |command: &str, status: u8, part: &str| {
        let error = Target::open(&options(&[command])).map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part), "{command}: {text}");
        assert_eq!(error.exit_status(), status, "{command}: {text}");
    };
    check("no-such-command-anywhere", 127, "command not found");
    check("", 127, "command not found");
    check(&path("nothing"), 127, "nothing: no such file or directory");
    check(&path("plain/below"), 126, "below: not a directory");
    check("/", 126, "directory");
    check("/dev/null", 126, "not a program");
    check(&path("plain"), 126, "no permission");
    check(&path("lost"), 127, "/no/such/interpreter");
    check(&path("bad"), 126, "directory");
    check(&path("empty"), 126, "no interpreter");
    check(&path("old"), 126, "32-bit");
    check(&path("arm"), 126, "another processor");
    check(&path("object"), 126, "not an executable one");
    check(&path("binary"), 126, "neither an ELF file nor a script");
    check(&path("unlinked"), 127, "/no/ld.so");
    let none = Target::open(&options(&[])).map(|_| ()).unwrap_err();
    assert!(matches!(none, Error::NoCommand) && none.hint().is_some());
}

#[test]
fn the_kernels_refusal_is_reported() {
    let _exclusive = exclusive();
    // Passes our checks; the kernel wants at least something to load.
    let directory = Directory::new("kernel");
    let mut header = elf(2, 62, 2);
    header[20] = 1;
    header[52] = 64;
    header[54] = 56;
    let program = directory.file("hollow", &header, 0o755);
    let error = Target::open(&options(&[program.to_str().unwrap()])).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Exec { .. }), "{error}");
    assert_eq!(error.exit_status(), 126);
}

#[test]
fn images_that_need_a_linker_are_refused() {
    let directory = Directory::new("images");
    let check = |source: &str, flags: &[&str], expected: &dyn Fn(&ImageError) -> bool| {
        let file = directory.file("image.c", source.as_bytes(), 0o600);
        let output = directory.0.join("image");
        compile(&file, &output, &flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        let error = Image::parse(&std::fs::read(&output).unwrap()).unwrap_err();
        assert!(expected(&error), "{error}");
    };
    let start = "void _start(void) {}";
    check(&format!("{start} __thread int there; int *here(void) {{ return &there; }}"), &[], &|error| {
        *error == ImageError::ThreadLocalStorage
    });
    let call = "void gone(void); void call(void) { gone(); }";
    check(&format!("{start} {call}"), &["-fPIC", "-shared"], &|error| *error == ImageError::Undefined("gone".into()));
    let pointer = "__attribute__((section(\".text\"))) void *pointer = &_start;";
    check(&format!("{start} {pointer}"), &["-Wl,-z,notext"], &|error| *error == ImageError::TextRelocations);
    check(start, &["-no-pie", "-static"], &|error| *error == ImageError::WrongKind);
    assert!(matches!(Image::parse(b"no image"), Err(ImageError::NotElf(_))));
}

#[test]
fn the_real_engine_is_a_valid_image() {
    assert!(ENGINE.segments.iter().any(|segment| segment.executable && !segment.writable));
    assert!(ENGINE.span > 0);
}

/// The words of a path without the times in them.
fn events(path: &[u32]) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut rest = path;
    while let Some(&first) = rest.first() {
        if first & word::EVENT != 0 {
            kinds.push(word::kind(first));
        }
        rest = &rest[word::length(first).unwrap()..];
    }
    kinds
}

#[test]
fn the_real_engine_follows_a_shell_through_exec() {
    let _exclusive = exclusive();
    let mut sink = MemorySink::default();
    let outcome = capture(&options(&["sh", "-c", "exec sh -c 'exit 6'"]), &mut sink).unwrap();
    assert_eq!(outcome.exit, Exit::Code(6));
    assert_eq!((outcome.failure, outcome.report.warnings), (None, vec![]));
    let images: Vec<_> = sink.paths.keys().copied().collect();
    assert_eq!(images, [(0, 0), (1, 0)]);
    for path in sink.paths.values() {
        assert_eq!(events(path).first(), Some(&word::START));
    }
    assert_eq!(events(&sink.paths[&(1, 0)]).last(), Some(&word::END));
    let counters = outcome.report.counters;
    assert_eq!(counters.path_words, sink.paths.values().map(|path| path.len() as u64).sum::<u64>());
}

#[test]
fn the_real_engine_detaches_when_the_sink_fails() {
    let _exclusive = exclusive();
    let mut sink = MemorySink { fails_at_path: Some(0), ..MemorySink::default() };
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 8";
    let outcome = capture(&options(&["sh", "-c", script]), &mut sink).unwrap();
    assert_eq!((outcome.exit, outcome.failure), (Exit::Code(8), Some(Full)));
}
