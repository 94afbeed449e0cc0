//! The input is an access descriptor of a fragment and the data behind its paths, which go through
//! a file and back.
//!
//! Two lengths of data in words, the number of accesses, 36 bytes for each of them, a number of
//! paths, and data.

use trace::{
    AccessDescriptors, AppPc, BlockId, DataMode, Exit, Fragment, FragmentId, PathId, Recording, ThreadId, ThreadInfo,
    Trace, WriteError, Writer,
};
use wire::code::{AccessDescriptor, FragmentBlock, FragmentExit, TERMINATOR_INDIRECT};
use wire::word;

use crate::exercise::exercise;
use crate::{next, next_u16, take};

const CODE: u32 = 0x1000;
const ACCESSES_MAX: u8 = 16;
const PATHS_MAX: u8 = 64;
/// Words of data behind a path.
const WORDS_MAX: u16 = 256;

/// Writes and reads accesses; the writer may refuse them.
pub fn accesses(bytes: &[u8]) {
    let Ok(directory) = tempfile::tempdir() else { return };
    let path = directory.path().join("accesses.trk");
    if write(bytes, &path).is_ok()
        && let Ok(file) = std::fs::read(&path)
    {
        let trace = Trace::from_bytes(file.clone()).expect("what was written is read");
        let mut problems = trace.verify().problems;
        // Data of string instructions may ask for more iterations than there can be.
        problems.retain(|problem| !problem.ends_with("accesses cannot be made of its data"));
        assert_eq!(problems, Vec::<String>::new());
        exercise(file);
    }
}

fn write(mut bytes: &[u8], path: &std::path::Path) -> Result<(), WriteError> {
    let recording = Recording { data: DataMode::Values, ..Recording::default() };
    let mut writer = Writer::create(path, &recording)?;
    let block = *b"\x90\x90\x90\x90\x90\x90\x90\xc3";
    let start = AppPc::new(CODE.into());
    writer.block(0, BlockId::new(1), start, &block)?;
    writer.block(0, BlockId::new(2), start + block.len() as u64, &block)?;
    let fragment = FragmentId::new(PathId::new(1));
    let blocks = [1, 2].map(|number| FragmentBlock::new(BlockId::new(number), false));
    let exits = [1, 2].map(|count| FragmentExit::new(count, TERMINATOR_INDIRECT));
    writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits })?;
    let lengths = [next_u16(&mut bytes), next_u16(&mut bytes)].map(|words| u32::from(words % WORDS_MAX) * 4);
    let count = next(&mut bytes) % ACCESSES_MAX;
    let mut accesses: Vec<AccessDescriptor> = (0..count).map(|_| access(&mut bytes)).collect();
    accesses.sort_by_key(|access| (access.block, access.offset));
    writer.access_descriptors(&AccessDescriptors { fragment, lengths: &lengths, accesses: &accesses })?;
    writer.thread(&ThreadInfo::default())?;
    let paths: Vec<u32> = (0..next(&mut bytes) % PATHS_MAX).map(|_| 1 + u32::from(next(&mut bytes) & 1)).collect();
    let needed: u32 = paths.iter().map(|&path| lengths[path as usize - 1]).sum();
    let mut data = take(&mut bytes, needed as usize).to_vec();
    data.resize(needed as usize, 0x5a);
    writer.path(0, ThreadId::FIRST, &[word::event(word::START, 0), CODE, 0, 1, 0])?;
    writer.path_with_data(0, ThreadId::FIRST, &paths, &data)?;
    writer.finish(Exit::Code(0)).map(drop)
}

fn access(bytes: &mut &[u8]) -> AccessDescriptor {
    let wide = |bytes: &mut &[u8]| {
        let mut value = [0; 8];
        let taken = take(bytes, 8);
        value[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(value)
    };
    AccessDescriptor {
        block: u16::from(next(bytes) & 1),
        // Not of the return: the value that it loads is its target.
        offset: u16::from(next(bytes) % 7),
        size: next_u16(bytes) & 0x7f,
        kind: next(bytes) % 8,
        flags: next(bytes),
        base: next_u16(bytes),
        index: next_u16(bytes),
        value: next_u16(bytes),
        mask: next_u16(bytes),
        count: next(bytes) & 0x7f,
        mask_kind: next(bytes) & 3,
        index_bytes: next(bytes) & 15,
        reserved: [0; 5],
        displacement: wide(bytes) as i64,
        constant: wide(bytes),
    }
}
