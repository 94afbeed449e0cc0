//! A small recording for the examples in the documentation: two threads that count down in memory,
//! in a loop.

use std::path::{Path, PathBuf};

use entity::{AppPc, BlockId, FragmentId, PathId, ThreadId};
use wire::code::{
    AccessDescriptor, FragmentBlock, FragmentExit, HAS_BASE, TERMINATOR_NOT_TAKEN, TERMINATOR_SYSCALL,
    TERMINATOR_TAKEN, WRITES,
};
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
    let (decrement, exit) = (BlockId::new(1), BlockId::new(2));
    writer.block(0, decrement, AppPc::new(0x1000), &[0xff, 0x0e, 0x75, 0xfc])?;
    writer.block(0, exit, AppPc::new(0x1004), &[0xb8, 60, 0, 0, 0, 0x0f, 0x05])?;
    let fragment = FragmentId::new(PathId::new(1));
    let blocks = [decrement, exit].map(|block| FragmentBlock::new(block, false));
    let exits = [FragmentExit::new(1, TERMINATOR_TAKEN), FragmentExit::new(2, TERMINATOR_SYSCALL)];
    writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits })?;
    // Behind each path: rsi, the value before, the value behind.
    let read = AccessDescriptor { size: 4, flags: HAS_BASE, value: 8, ..AccessDescriptor::default() };
    let accesses = [read, AccessDescriptor { flags: HAS_BASE | WRITES, value: 12, ..read }];
    writer.access_descriptors(&AccessDescriptors { fragment, lengths: &[16, 16], accesses: &accesses })?;
    let fragment = FragmentId::new(PathId::new(3));
    let exits = [FragmentExit::new(1, TERMINATOR_NOT_TAKEN)];
    writer.fragment(0, &Fragment { fragment, blocks: blocks.get(..1).unwrap_or(&[]), exits: &exits })?;
    for number in 0..2 {
        let thread = ThreadId::new(number);
        writer.thread(&ThreadInfo { thread, os_tid: 100 + number, parent: None, image: 0 })?;
        let tsc = 1000 + number;
        let mut words = vec![word::event(word::START, 0), 0x1000, 0, tsc, 0];
        words.extend([1; 10]);
        words.extend([2, word::event(word::SYSCALL, 0), 60, tsc + 5, 0, word::event(word::END, 0), tsc + 9, 0]);
        let data: Vec<u8> = (0..=10u32)
            .rev()
            .flat_map(|left| [0x7ff0 + 0x1000 * number, 0, left + 1, left])
            .flat_map(u32::to_le_bytes)
            .collect();
        writer.path_with_data(0, thread, &words, &data)?;
    }
    writer.finish(Exit::Code(0))?;
    Ok(())
}
