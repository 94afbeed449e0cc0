//! A small recording for the examples in the documentation: two threads that count down in a loop.

use std::path::{Path, PathBuf};

use wire::code::{LEAVE_NOT_TAKEN, LEAVE_SYSCALL, LEAVE_TAKEN};
use wire::word;

use crate::{Exit, Fragment, Recording, ThreadInfo, Writer};

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
    let recording = Recording { command: vec!["countdown".into()], ..Recording::default() };
    let mut writer = Writer::create(path, &recording)?;
    // dec ecx; jnz -4 | mov eax, 60; syscall
    writer.block(0, 1, 0x1000, &[0xff, 0xc9, 0x75, 0xfc])?;
    writer.block(0, 2, 0x1004, &[0xb8, 60, 0, 0, 0, 0x0f, 0x05])?;
    let exits = [1 | LEAVE_TAKEN << 16, 2 | LEAVE_SYSCALL << 16];
    writer.fragment(0, &Fragment { first_path: 1, blocks: &[1, 2], exits: &exits })?;
    writer.fragment(0, &Fragment { first_path: 3, blocks: &[1], exits: &[1 | LEAVE_NOT_TAKEN << 16] })?;
    for thread in 0..2 {
        writer.thread(&ThreadInfo { thread, os_tid: 100 + thread, parent: None, image: 0 })?;
        let tsc = 1000 + thread;
        let mut words = vec![word::event(word::START, 0), 0x1000, 0, tsc, 0];
        words.extend([1; 10]);
        words.extend([2, word::event(word::SYSCALL, 0), 60, tsc + 5, 0, word::event(word::END, 0), tsc + 9, 0]);
        writer.path(0, thread, &words)?;
    }
    writer.finish(Exit::Code(0))?;
    Ok(())
}
