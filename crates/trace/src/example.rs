//! A small recording for the examples in the documentation: two threads that count down in memory,
//! in a loop.

use std::path::{Path, PathBuf};

use wire::code::{AccessDescriptor, HAS_BASE, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL, TERMINATOR_TAKEN, WRITES};
use wire::word;

use crate::{AccessDescriptors, DataMode, Exit, Fragment, Recording, ThreadInfo, Writer};

/// Writes the recording to `path` and gives the path back.
///
/// # Panics
/// If it cannot be written.
#[must_use]
pub fn write(path: &Path) -> PathBuf {
    write_to(path).expect("the example can be written");
    path.to_owned()
}

fn write_to(path: &Path) -> Result<(), crate::WriteError> {
    let recording = Recording { command: vec!["countdown".into()], data: DataMode::Values, ..Recording::default() };
    let mut writer = Writer::create(path, &recording)?;
    // dec dword ptr [rsi]; jnz -4 | mov eax, 60; syscall
    writer.block(0, 1, 0x1000, &[0xff, 0x0e, 0x75, 0xfc])?;
    writer.block(0, 2, 0x1004, &[0xb8, 60, 0, 0, 0, 0x0f, 0x05])?;
    let exits = [1 | TERMINATOR_TAKEN << 16, 2 | TERMINATOR_SYSCALL << 16];
    writer.fragment(0, &Fragment { first_path: 1, blocks: &[1, 2], exits: &exits })?;
    // Behind each path: rsi, the value before, the value behind.
    let read = AccessDescriptor { size: 4, flags: HAS_BASE, value: 8, ..AccessDescriptor::default() };
    let accesses = [read, AccessDescriptor { flags: HAS_BASE | WRITES, value: 12, ..read }];
    writer.access_descriptors(&AccessDescriptors { first_path: 1, lengths: &[16, 16], accesses: &accesses })?;
    writer.fragment(0, &Fragment { first_path: 3, blocks: &[1], exits: &[1 | TERMINATOR_NOT_TAKEN << 16] })?;
    for thread in 0..2 {
        writer.thread(&ThreadInfo { thread, os_tid: 100 + thread, parent: None, image: 0 })?;
        let tsc = 1000 + thread;
        let mut words = vec![word::event(word::START, 0), 0x1000, 0, tsc, 0];
        words.extend([1; 10]);
        words.extend([2, word::event(word::SYSCALL, 0), 60, tsc + 5, 0, word::event(word::END, 0), tsc + 9, 0]);
        let data: Vec<u8> = (0..=10u32)
            .rev()
            .flat_map(|left| [0x7ff0 + 0x1000 * thread, 0, left + 1, left])
            .flat_map(u32::to_le_bytes)
            .collect();
        writer.path_with_data(0, thread, &words, &data)?;
    }
    writer.finish(Exit::Code(0))?;
    Ok(())
}
