//! Support for the tests of the command: runs it, and makes a small trace whose content is known.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trace::{
    AccessDescriptors, AppPc, BlockId, DataMode, Exit, Fragment, FragmentId, Module, PathId, Recording, ThreadId,
    ThreadInfo, Writer,
};
use wire::code::{self, FragmentBlock, FragmentExit};
use wire::word;

/// The result of a run of the command.
#[derive(Debug)]
pub struct CommandResult {
    pub status: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl CommandResult {
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Asserts success and an empty standard error.
    #[track_caller]
    pub fn assert_success(self) -> Self {
        assert_eq!((self.status, self.stderr.as_str()), (0, ""), "{}", String::from_utf8_lossy(&self.stdout));
        self
    }

    /// Asserts a failure that is reported in one sentence which contains all of `words`.
    #[track_caller]
    pub fn assert_failure(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "not one sentence: {}", self.stderr);
        assert!(self.stderr.starts_with("trackway: "), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no '{word}' in: {}", self.stderr);
        }
    }
}

pub fn trackway(arguments: &[&str]) -> CommandResult {
    run(command().args(arguments))
}

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_trackway"))
}

pub fn run(command: &mut Command) -> CommandResult {
    let output = command.stdin(Stdio::null()).output().unwrap();
    CommandResult {
        status: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A directory with the small trace in it.
pub struct Sample {
    directory: tempfile::TempDir,
}

impl Sample {
    pub fn new() -> Self {
        Self::with_threads(&[0, 1])
    }

    /// The same with memory accesses: the call's write and the return's read.
    pub fn with_data(data: DataMode) -> Self {
        Self::recorded(&[0, 1], data)
    }

    /// Every thread executes the same seven instructions, one thread after the other.
    pub fn with_threads(threads: &[u32]) -> Self {
        Self::recorded(threads, DataMode::None)
    }

    fn recorded(threads: &[u32], data: DataMode) -> Self {
        let sample = Self { directory: tempfile::tempdir().unwrap() };
        let command = vec!["sample".into(), "x".into()];
        let recording = Recording { command, pid: 1000, data, ..Recording::default() };
        let mut writer = Writer::create(&sample.path(), &recording).unwrap();
        define_code(&mut writer);
        if data != DataMode::None {
            describe_accesses(&mut writer, data);
        }
        for (&number, start) in threads.iter().zip((1u64..).map(|turn| turn * 1000)) {
            let thread = ThreadId::new(number);
            let parent = (thread != ThreadId::FIRST).then_some(ThreadId::FIRST);
            writer.thread(&ThreadInfo { thread, os_tid: 1000 + number, parent, image: 0 }).unwrap();
            let stack = [0x7fff_0000 + u64::from(number) * 0x1000, 0x40100c].map(u64::to_le_bytes).concat();
            let data = match data {
                DataMode::None => &[][..],
                DataMode::Addresses => &stack[..8],
                DataMode::Values => &stack,
            };
            writer.path_with_data(0, thread, &words(start), data).unwrap();
        }
        writer.finish(Exit::Code(3)).unwrap();
        sample
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("sample.trk")
    }

    pub fn name(&self) -> String {
        self.path().to_string_lossy().into_owned()
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// `mov ecx, 2; loop $; call f; mov eax, 60; syscall; f: ret`.
fn define_code(writer: &mut Writer) {
    let module =
        Module { address: 0x401000, length: 0x1000, file_offset: 0x1000, path: "/sample".into(), ..Module::default() };
    writer.module(0, &module).unwrap();
    let blocks: [(u32, u64, &[u8]); 5] = [
        (1, 0x401000, &[0xb9, 2, 0, 0, 0, 0xe2, 0xfe]),
        (2, 0x401005, &[0xe2, 0xfe]),
        (3, 0x401007, &[0xe8, 0x14, 0, 0, 0]),
        (4, 0x401020, &[0xc3]),
        (5, 0x40100c, &[0xb8, 60, 0, 0, 0, 0x0f, 0x05]),
    ];
    for (id, address, bytes) in blocks {
        writer.block(0, BlockId::new(id), AppPc::new(address), bytes).unwrap();
    }
    let fragments: [(u32, &[u32], &[u32]); 4] = [
        (1, &[1], &[code::TERMINATOR_TAKEN, code::TERMINATOR_NOT_TAKEN]),
        (3, &[2], &[code::TERMINATOR_TAKEN, code::TERMINATOR_NOT_TAKEN]),
        (CALL, &[3, 4], &[code::TERMINATOR_INDIRECT]),
        (6, &[5], &[code::TERMINATOR_SYSCALL]),
    ];
    for (first_path, blocks, terminators) in fragments {
        let blocks: Vec<FragmentBlock> =
            blocks.iter().map(|&number| FragmentBlock::new(BlockId::new(number), false)).collect();
        let exit = |&terminator: &u32| FragmentExit::new(blocks.len() as u16, terminator);
        let exits: Vec<FragmentExit> = terminators.iter().map(exit).collect();
        writer.fragment(0, &Fragment { fragment: fragment(first_path), blocks: &blocks, exits: &exits }).unwrap();
    }
}

/// The path through call and return.
const CALL: u32 = 5;

fn fragment(first_path: u32) -> FragmentId {
    FragmentId::new(PathId::new(first_path))
}

/// Describes the data behind the path through call and return: rsp before, and the value that `ret`
/// reads.
fn describe_accesses(writer: &mut Writer, data: DataMode) {
    let values = data == DataMode::Values;
    let call = code::AccessDescriptor {
        size: 8,
        flags: code::HAS_BASE | code::WRITES,
        displacement: -8,
        value: if values { code::CONSTANT } else { code::NO_VALUE },
        constant: 0x40100c,
        ..code::AccessDescriptor::default()
    };
    let value = if values { 8 } else { code::NO_VALUE };
    let ret = code::AccessDescriptor { block: 1, flags: code::HAS_BASE, value, ..call };
    let lengths = [if values { 16 } else { 8 }];
    let descriptors = AccessDescriptors { fragment: fragment(CALL), lengths: &lengths, accesses: &[call, ret] };
    writer.access_descriptors(&descriptors).unwrap();
}

/// Returns the words of one thread, from time `start` on.
fn words(start: u64) -> Vec<u32> {
    let low = |value: u64| value as u32;
    let mut words = vec![word::event(word::START, 0), 0x401000, 0, low(start), 0];
    words.extend([1, 4, 5, 6]);
    words.extend([word::event(word::SYSCALL, 0), 60, low(start + 10), 0]);
    words.extend([word::event(word::END, 0), low(start + 20), 0]);
    words
}
