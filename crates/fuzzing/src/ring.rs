//! The input is the content of the rings: a byte of flags, the length of the code ring's records
//! (`u16`), those records, and a thread's segment. The recorder drains it to a file, which is then
//! read.

use capture::rings::{Rings, drain};
use recording::FileSink;
use trace::{DataMode, Exit, Recording};

use crate::exercise::exercise;
use crate::{next, next_u16, take};

const IS_COMPLETE: u8 = 1;
const HAS_LENGTH: u8 = 2;
const DATA_MODES: [DataMode; 4] = [DataMode::None, DataMode::Addresses, DataMode::Values, DataMode::Values];

/// Drains rings of this content.
pub fn rings(mut bytes: &[u8]) {
    let flags = next(&mut bytes);
    let data = DATA_MODES[usize::from(flags >> 2 & 3)];
    let length = next_u16(&mut bytes);
    let code = take(&mut bytes, length.into());
    let is_complete = flags & IS_COMPLETE != 0;
    let length = (flags & HAS_LENGTH != 0).then_some(20);
    let rings = Rings { code, segment: bytes, is_complete, data: data.number(), length };
    let Ok(directory) = tempfile::tempdir() else { return };
    let path = directory.path().join("rings.trk");
    let recording = Recording { data, ..Recording::default() };
    let Ok(mut sink) = FileSink::create(&path, &recording) else { return };
    let Ok(failure) = drain(&rings, &mut sink) else { return };
    if failure.is_none()
        && sink.finish(Exit::Unknown, &[]).is_ok()
        && let Ok(file) = std::fs::read(&path)
    {
        exercise(file);
    }
}
