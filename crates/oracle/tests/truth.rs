//! The oracle against what can be known about a program without it: its code, its output, itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use oracle::{Error, Execution, Exit, StepOptions, single_step};
use workloads::{OracleProgram, Variant};

fn step(executable: &Path, arguments: &[&str], options: &StepOptions) -> Execution {
    let mut command = Command::new(executable);
    // Without an environment the C library starts with a third of the instructions.
    command.env_clear().args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    single_step(&mut command, options).unwrap()
}

fn step_program(name: &str, variant: Variant) -> Execution {
    step(&workloads::build(name, variant).unwrap(), &[], &StepOptions::default())
}

/// Steps a program twice: what it does is what the catalogue says, and the same each time.
fn check_repeatable(entry: &OracleProgram) {
    let executable = workloads::build(entry.program.name, entry.variant).unwrap();
    let first = step(&executable, entry.arguments, &StepOptions::default());
    let second = step(&executable, entry.arguments, &StepOptions::default());
    let name = format!("{} {}", entry.program.name, entry.variant);
    let expected = &entry.program.runs[0];
    assert_eq!(String::from_utf8_lossy(&first.stdout), expected.stdout, "{name}");
    assert_eq!(
        first.exit,
        match expected.exit {
            workloads::Exit::Status(status) => Exit::Status(status),
            workloads::Exit::Signal(signal) => Exit::Signal(signal),
        },
        "{name}"
    );
    assert_eq!(first.threads.len(), second.threads.len(), "{name}");
    for (thread, (one, other)) in first.threads.iter().zip(&second.threads).enumerate() {
        let difference = one.iter().zip(other).position(|(a, b)| a != b);
        let place = difference.map(|at| (at, one[at], other[at]));
        assert!(place.is_none(), "{name} thread {thread}: differs at {place:x?}");
        assert_eq!(one.len(), other.len(), "{name} thread {thread}");
    }
}

fn check_all_repeatable(part: usize, parts: usize) {
    workloads::oracle_programs().iter().skip(part).step_by(parts).for_each(check_repeatable);
}

#[test]
fn two_runs_agree_first_half() {
    check_all_repeatable(0, 2);
}

#[test]
fn two_runs_agree_second_half() {
    check_all_repeatable(1, 2);
}

/// The code of a static executable at a fixed address.
struct Image(Vec<u8>);

impl Image {
    fn read(executable: &Path) -> Self {
        Self(fs::read(executable).unwrap())
    }

    fn word(&self, offset: usize, length: usize) -> u64 {
        self.0[offset..offset + length].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
    }

    /// The bytes from `address` on, by the program headers.
    fn at(&self, address: u64) -> &[u8] {
        let (headers, size, count) = (self.word(32, 8), self.word(54, 2), self.word(56, 2));
        for header in (0..count).map(|i| (headers + i * size) as usize) {
            let (offset, start, length) =
                (self.word(header + 8, 8), self.word(header + 16, 8), self.word(header + 32, 8));
            let is_load = self.word(header, 4) == 1;
            if is_load && (start..start + length).contains(&address) {
                return &self.0[(address - start + offset) as usize..(start + length - start + offset) as usize];
            }
        }
        panic!("{address:#x} is not in the file");
    }

    fn instruction(&self, address: u64) -> Instruction {
        Decoder::with_ip(64, self.at(address), address, DecoderOptions::NONE).decode()
    }
}

/// Whether `to` can be executed right after `instruction`, when there are no signals.
fn can_follow(instruction: &Instruction, to: u64) -> bool {
    let (next, target) = (to == instruction.next_ip(), to == instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::Next => next,
        FlowControl::ConditionalBranch => next || target,
        FlowControl::UnconditionalBranch => target,
        // The decoder counts syscall among the calls.
        FlowControl::Call => next || target,
        _ => true,
    }
}

#[test]
fn each_instruction_can_follow_the_one_before() {
    for entry in workloads::oracle_programs() {
        let executable = workloads::build(entry.program.name, entry.variant).unwrap();
        let image = Image::read(&executable);
        if image.0.len() > 100_000 || entry.variant != Variant::Static {
            continue; // not one of those without a C library
        }
        let run = step(&executable, entry.arguments, &StepOptions::default());
        let executed = &run.threads[0];
        let name = entry.program.name;
        assert_eq!(executed[0], image.word(24, 8), "{name} begins at its entry point");
        for pair in executed.windows(2) {
            assert!(can_follow(&image.instruction(pair[0]), pair[1]), "{name}: {pair:x?}");
        }
        assert_eq!(image.at(executed[executed.len() - 1])[..2], [0x0f, 0x05], "{name} ends in a system call");
    }
}

#[test]
fn a_rep_counts_once_and_a_loop_each_time() {
    let executable = workloads::build("strings", Variant::Static).unwrap();
    let image = Image::read(&executable);
    let run = step(&executable, &[], &StepOptions::default());
    let is_repeated = |&pc: &u64| image.instruction(pc).has_rep_prefix() || image.instruction(pc).has_repne_prefix();
    let repeated = run.threads[0].iter().copied().filter(is_repeated).count();
    // Ten stand alone, one is in a loop of five rounds and one in a loop of three.
    assert_eq!(repeated, 10 + 5 + 3);

    let run = step_program("loops", Variant::Static);
    let again = run.threads[0].windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(again, 0, "no loop of this program is a single instruction");
}

#[test]
fn a_jump_to_itself_counts_each_time() {
    let run = step_program("timer_loop", Variant::Static);
    let again = run.threads[0].windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(again > 100, "{again}");
    assert_eq!(run.exit, Exit::Status(0));
}

/// Addresses inside the seeds' own section.
fn in_seed(run: &Execution) -> Vec<u64> {
    run.threads[0].iter().copied().filter(|pc| (0x4004c4..0x4005a0).contains(pc)).collect()
}

#[test]
fn branch_test_is_where_myers_saw_it() {
    let run = step_program("BranchTest", Variant::NoPie);
    let executed = in_seed(&run);
    let from = executed.iter().position(|&pc| pc == 0x4004ec).unwrap();
    let expected = [
        0x4004ec, 0x4004f1, 0x4004f5, 0x4004f7, 0x4004fe, 0x4004fe, 0x4004fe, 0x4004fe, 0x4004fe, 0x400500, 0x400505,
        0x40050a, 0x400511, 0x4004c4,
    ];
    assert_eq!(executed[from..from + expected.len()], expected);
}

#[test]
fn branch_enumeration_is_where_myers_saw_it() {
    let run = step_program("BranchEnumeration", Variant::NoPie);
    let executed = in_seed(&run);
    for pc in [0x4004d3, 0x4004d9, 0x400572, 0x40057b, 0x40058f, 0x400599, 0x40059f] {
        assert_eq!(executed.iter().filter(|&&here| here == pc).count(), 1, "{pc:#x}");
    }
    let call = run.threads[0].iter().position(|&pc| pc == 0x400599).unwrap();
    assert_eq!(run.threads[0][call + 1], 0x4003b8);
    let image = Image::read(&workloads::build("BranchEnumeration", Variant::NoPie).unwrap());
    let conditional = executed.iter().map(|&pc| image.instruction(pc));
    let conditional = conditional.filter(|instruction| instruction.flow_control() == FlowControl::ConditionalBranch);
    // Sixteen conditions, three loops, jecxz and jrcxz.
    assert_eq!(conditional.count(), 16 + 3 + 2);
}

#[test]
fn faults_do_not_count_and_traps_do() {
    let executable = workloads::build("sync_signals", Variant::Static).unwrap();
    let image = Image::read(&executable);
    let run = step(&executable, &[], &StepOptions::default());
    let in_file = run.threads[0].iter().filter(|&&pc| pc < 0x1000_0000);
    let (mut faults, mut traps) = (0, 0);
    for &pc in in_file {
        faults += usize::from(image.at(pc).starts_with(&[0x0f, 0x0b]));
        traps += usize::from(image.at(pc)[0] == 0xcc);
    }
    assert_eq!((faults, traps), (0, 1));
}

#[test]
fn threads_begin_after_the_call_that_made_them() {
    let run = step_program("threads_sequential", Variant::Static);
    assert_eq!(run.threads.len(), 4);
    for thread in &run.threads[1..] {
        assert!(run.threads[0].contains(&(thread[0] - 2)), "{:#x}", thread[0]);
        assert!(thread.len() > 100);
    }
}

#[test]
fn an_exec_goes_on_in_the_same_list() {
    let executable = workloads::build("exec_self", Variant::Static).unwrap();
    let entry = Image::read(&executable).word(24, 8);
    let run = step(&executable, &[], &StepOptions::default());
    assert_eq!(run.threads.len(), 1);
    let starts: Vec<usize> = (0..run.threads[0].len()).filter(|&i| run.threads[0][i] == entry).collect();
    assert_eq!(starts.len(), 2);
    assert_eq!(starts[0], 0);
    let image = Image::read(&executable);
    assert_eq!(image.at(run.threads[0][starts[1] - 1])[..2], [0x0f, 0x05], "execve comes before");
    assert_eq!(run.threads[0][starts[1] + 1], image.instruction(entry).next_ip());
}

#[test]
fn programs_without_a_repeatable_path_run_to_their_end() {
    for name in ["signal_restart", "thread_signal", "main_exits", "exec_thread"] {
        let expected = &workloads::find(name).unwrap().runs[0];
        let run = step_program(name, Variant::Static);
        assert_eq!(String::from_utf8_lossy(&run.stdout), expected.stdout, "{name}");
        assert!(matches!((run.exit, expected.exit), (Exit::Status(a), workloads::Exit::Status(b)) if a == b), "{name}");
    }
}

#[test]
fn the_environment_is_passed_on_as_it_is() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo $FOO $#", "sh", "a", "b"]).env_clear().env("FOO", "bar");
    let run = single_step(command.stdout(Stdio::piped()), &StepOptions::default()).unwrap();
    assert_eq!(run.stdout, b"bar 2\n");
}

#[test]
fn a_program_that_does_not_end_is_killed() {
    let executable = workloads::build("timer_loop", Variant::Pie).unwrap();
    let options = StepOptions { stops_max: 1000, ..StepOptions::default() };
    let error = single_step(&mut Command::new(executable), &options).unwrap_err();
    assert!(matches!(error, Error::TooLong(1000)), "{error}");
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let error = single_step(&mut Command::new("/nonexistent/program"), &StepOptions::default()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/program"), "{error}");
}
